"""Decodes images with Pillow."""

from __future__ import annotations

import functools
import io
import struct
import types
import warnings
import zlib
from typing import TYPE_CHECKING

from imagebeam import errors, missing_packages
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import image_formats
from imagebeam.transforms.images.checked_image import BadImageError, Image

if TYPE_CHECKING:
    import PIL.Image

# By our name of a format: Pillow's name of it.
DECODED_FORMATS = {
    image_formats.JPEG: "JPEG",
    image_formats.PNG: "PNG",
    "gif": "GIF",
    "bmp": "BMP",
    "webp": "WEBP",
    "tiff": "TIFF",
    "ppm": "PPM",
    "avif": "AVIF",
    "jp2": "JPEG2000",
}

# Errors that Pillow's parsers, which are written in Python, raise on broken bytes. MemoryError is left out: it comes
# from the machine, and a job that silently drops images on some days is worse than one that fails.
_FAILURES = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    struct.error,
    zlib.error,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
)


def require_pillow() -> None:
    """Refuses to begin without Pillow, whose version the catalog records, also where no image is decoded.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        pillow_version()
    except ModuleNotFoundError as e:
        raise missing_packages.missing_package(e, "convert", "convert") from e


def pillow_version() -> str:
    """Returns the version that PIL itself states, because pillow-simd may be installed in place of Pillow."""
    import PIL

    return PIL.__version__


@functools.cache
def pillow() -> types.ModuleType:
    """Returns the module PIL.Image, with its warnings turned off for the whole process.

    warnings.catch_warnings is not thread-safe.

    Raises:
        ConfigError: if Pillow is not installed.
    """
    try:
        import PIL.Image
    except ImportError as e:
        raise errors.ConfigError(
            "image.check: decode, image.encode, statistics.pixels and masks with a palette need Pillow: "
            "pip install 'imagebeam[convert]', or leave them out"
        ) from e
    warnings.filterwarnings("ignore", module=r"PIL\.")
    return PIL.Image


def decode(image: Image, keeps_ycbcr: bool = False) -> PIL.Image.Image:
    """Decodes all pixels of a checked JPEG or PNG; of a file with several images, the first one.

    Args:
        image: the result of a check.
        keeps_ycbcr: returns the YCbCr values of a JPEG that Pillow would convert to RGB.

    Raises:
        BadImageError: if the pixels cannot be decoded, or their size differs from the header's.
    """
    picture = decode_any(image.data, image.format, keeps_ycbcr)
    width, height = picture.size
    if (height, width) != (image.height, image.width):
        expected = f"the header says {image.height} x {image.width}"
        raise BadImageError(Reason.UNDECODABLE, f"Pillow: {height} x {width} pixels, {expected}")
    return picture


def decode_any(data: bytes, format: str, keeps_ycbcr: bool = False) -> PIL.Image.Image:
    """Decodes all pixels of an image of one of `DECODED_FORMATS`; of a file with several images, the first one.

    Args:
        data: the bytes of the file.
        format: by our name.
        keeps_ycbcr: as for `decode`.

    Raises:
        BadImageError: if the pixels cannot be decoded.
    """
    module = pillow()
    try:
        picture = module.open(io.BytesIO(data), formats=(DECODED_FORMATS[format],))
        if keeps_ycbcr:
            picture.draft("YCbCr", None)
        picture.load()
    except (*_FAILURES, module.DecompressionBombError) as e:
        # The text of UnidentifiedImageError contains a memory address, which differs from run to run.
        found = "cannot identify the image" if isinstance(e, module.UnidentifiedImageError) else e
        raise BadImageError(Reason.UNDECODABLE, f"Pillow: {found}") from e
    return picture
