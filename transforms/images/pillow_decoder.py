"""Decodes images with Pillow."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import io
import logging
import struct
import types
import warnings
import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from imagebeam import errors
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, image_formats, pixel_type
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
    "psd": "PSD",
    "ico": "ICO",
}
# By our name of a format that a package adds to Pillow: Pillow's name of it, and the package's module.
_PLUGINS = {"heic": ("HEIF", "pillow_heif"), "jxl": ("JXL", "pillow_jxl")}
_ALSO = {"BMP": ("DIB",)}  # Pillow has two names where we have one
_PACKAGES = {"heic": "pillow-heif", "jxl": "pillow-jxl-plugin"}

_TILE_SIZE = (322, 323)  # tags of TIFF: width and height of a tile
_BITS, _BANDS = 258, 277  # tags of TIFF: the bits of each number, how many there are of a pixel
_MAX_TILE_PIXELS = 1 << 26  # with more, 1 MB of compressed zeros takes 1 GB of memory, whatever the size of the picture

# Errors that parsers written in Python, such as Pillow's, raise on broken bytes. MemoryError is left out: it comes
# from the machine, and a job that silently drops images on some days is worse than one that fails.
FAILURES = (
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


def require_pillow(user: str = "convert") -> None:
    """Refuses to begin without Pillow, whose version the catalog records, also where no image is decoded.

    Args:
        user: the command that needs it.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        pillow_version()
    except ModuleNotFoundError as e:
        raise errors.missing_package(e, user, "convert") from e


def pillow_version() -> str:
    """Returns the version that PIL itself states, because pillow-simd may be installed in place of Pillow."""
    import PIL

    return PIL.__version__


@functools.cache
def pillow() -> types.ModuleType:
    """Returns the module PIL.Image, with what it prints of broken images turned off for the whole process.

    warnings.catch_warnings is not thread-safe.

    Raises:
        ConfigError: if Pillow is not installed.
    """
    try:
        import PIL.Image
    except ImportError as e:
        user = "image.check: decode, image.encode, statistics.pixels or a mask with a palette"
        raise errors.missing_package(e, user, "convert", "leave that out") from e
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # else its errors go to stderr where none is configured
    _silence_libtiff(importlib.import_module("PIL._imaging"))
    return PIL.Image


def _silence_libtiff(extension: types.ModuleType) -> None:
    """Stops libtiff from printing errors, which name no file: Pillow raises them, too. It turns off warnings itself.

    libtiff, and libjpeg inside of it, print a line for each broken strip, straight to file descriptor 2. A symbol that
    is looked up in Pillow's extension is found in the libtiff that it is linked to, bundled or the system's. Where it
    is not found (Windows, linked statically), the lines stay.

    Source: https://libtiff.gitlab.io/libtiff/functions/TIFFError.html, TIFFSetErrorHandler
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        set_handler = ctypes.CDLL(extension.__file__).TIFFSetErrorHandler
        set_handler.argtypes, set_handler.restype = [ctypes.c_void_p], ctypes.c_void_p
        set_handler(None)


@functools.cache
def decoded_formats() -> Mapping[str, str]:
    """Returns the formats that are decoded here: our name of each, and Pillow's, those of installed plugins included.

    Raises:
        ConfigError: if Pillow is not installed.
    """
    formats = dict(DECODED_FORMATS)
    module = pillow()
    for name, (pillow_name, plugin) in _PLUGINS.items():
        with contextlib.suppress(ImportError):
            imported = importlib.import_module(plugin)  # registers the format, or has a function for it
            getattr(imported, "register_heif_opener", lambda: None)()
            if pillow_name in module.OPEN:
                formats[name] = pillow_name
    return formats


def plugin_for(format: str) -> str | None:
    """Returns the name of the package that adds a format to Pillow; None if there is none, or it is installed."""
    return None if format in decoded_formats() else _PACKAGES.get(format)


def plugin_versions() -> dict[str, str]:
    """Returns the versions of the installed packages that add formats to Pillow, by their module."""
    if not any(importlib.util.find_spec(plugin) for _, plugin in _PLUGINS.values()):
        return {}  # without an import of Pillow, which takes 25 ms
    from importlib import metadata  # late: 15 ms

    versions = {}
    for name in decoded_formats():
        if name in _PLUGINS:
            with contextlib.suppress(metadata.PackageNotFoundError):  # a module without a package
                versions[_PLUGINS[name][1]] = metadata.version(_PACKAGES[name])
    return versions


def decode(image: Image) -> PIL.Image.Image:
    """Decodes all pixels of a checked JPEG or PNG; of a file with several images, the first one.

    Args:
        image: the result of a check.

    Raises:
        BadImageError: if the pixels cannot be decoded, or their size differs from the header's.
    """
    picture = decode_any(image.data, image.format)
    width, height = picture.size
    if (height, width) != (image.height, image.width):
        expected = f"the header says {image.height} x {image.width}"
        raise BadImageError(Reason.UNDECODABLE, f"Pillow: {height} x {width} pixels, {expected}")
    return picture


def decode_any(data: bytes, format: str) -> PIL.Image.Image:
    """Decodes all pixels of an image of one of `decoded_formats`; of a file with several images, the first one.

    Args:
        data: the bytes of the file.
        format: by our name.

    Raises:
        BadImageError: if the pixels cannot be decoded.
    """
    picture = open_lazily(data, format)
    load(picture)
    return picture


def open_lazily(data: bytes, format: str) -> PIL.Image.Image:
    """Reads the header of an image of one of `decoded_formats`. Its pixels are decoded by `load`.

    Raises:
        BadImageError: if the header cannot be read.
    """
    module = pillow()
    try:
        with _as_bad_image(module):
            picture: PIL.Image.Image = module.open(io.BytesIO(data), formats=_pillow_names(format))
    except BadImageError:
        if format == "tiff" and (found := _describe_tiff(data)):
            raise found from None
        raise
    if format == "tiff":
        _check_tiles(picture)
    return picture


def open_picture(data: bytes, format: str) -> PIL.Image.Image:
    """Reads the header of an image like `open_lazily`, and refuses what Pillow would decode as another picture.

    Raises:
        BadImageError: if the header cannot be read, or is that of a camera's raw photo or of a wide JPEG 2000.
    """
    opened = open_lazily(data, format)
    if format == "jp2" and image_formats.is_wide_jp2(data):
        raise checked_image.unsupported("colors of more than 8 bits in jpeg 2000, which Pillow decodes wrong")
    if format == "tiff" and image_formats.is_raw_photo(opened):
        raise checked_image.unsupported("a camera's raw photo (DNG, NEF or the like), which begins with a preview")
    return opened


def _describe_tiff(data: bytes) -> BadImageError | None:
    """Returns the error for a TIFF of more bits or bands than Pillow reads; None for any other that it cannot open.

    Source: TIFF 6.0, section 8.
    """
    from PIL import TiffImagePlugin

    with contextlib.suppress(*FAILURES):
        file = io.BytesIO(data)
        is_big = b"\x2b" in data[2:4]
        tags = TiffImagePlugin.ImageFileDirectory_v2(file.read(16 if is_big else 8))
        file.seek(tags.next)
        tags.load(file)
        bands, bits = int(tags.get(_BANDS, 1)), max(tags.get(_BITS, (1,)))
        found = f"a tiff of {bands} band{'s' * (bands > 1)} of {bits} bits, which Pillow does not read"
        if bands not in pixel_type.PICTURE_BANDS:
            also = ", and image.dtype or image.range, since the numbers have more than 8 bits" if bits > 8 else ""
            return checked_image.other_numbers(found, pixel_type.several_bands(bands) + also)
        return checked_image.other_numbers(found, pixel_type.SET_RANGE) if bits > 8 else None
    return None


def _check_tiles(picture: PIL.Image.Image) -> None:
    """Refuses a TIFF whose tiles are far larger than those of any program: each is decoded whole.

    Raises:
        BadImageError: if it has such tiles.
    """
    tags: Mapping[int, object] = getattr(picture, "tag_v2", {})
    width, height = (tags.get(tag, 0) for tag in _TILE_SIZE)
    if isinstance(width, int) and isinstance(height, int) and width * height > _MAX_TILE_PIXELS:
        raise BadImageError(
            Reason.TOO_LARGE,
            f"a tiff with tiles of {height} x {width} pixels, expected up to {_MAX_TILE_PIXELS:,}: save it again",
        )


def _pillow_names(format: str) -> tuple[str, ...]:
    name = decoded_formats()[format]
    return (name, *_ALSO.get(name, ()))


def load(picture: PIL.Image.Image) -> None:
    """Decodes the pixels of an opened image.

    Raises:
        BadImageError: if the pixels cannot be decoded.
    """
    with _as_bad_image(pillow()):
        picture.load()


def seek(picture: PIL.Image.Image, number: int) -> None:
    """Goes to one of the images in an opened file, counted from 0.

    Raises:
        BadImageError: if it, or one on which it is drawn, cannot be read.
    """
    with _as_bad_image(pillow()):
        picture.seek(number)


def count_frames(picture: PIL.Image.Image) -> int:
    """Returns the number of images in an opened file.

    Raises:
        BadImageError: if the file cannot be read to its end.
    """
    with _as_bad_image(pillow()):
        return int(getattr(picture, "n_frames", 1))


def is_animated(picture: PIL.Image.Image) -> bool:
    """Returns whether an opened file has several images; a GIF is read for that up to its second one.

    Raises:
        BadImageError: if the file cannot be read so far.
    """
    with _as_bad_image(pillow()):
        return bool(getattr(picture, "is_animated", False))


def has_more_frames(picture: PIL.Image.Image) -> bool:
    """Returns whether an opened file has more images than its first one, as far as they can be read."""
    try:
        return is_animated(picture)
    except BadImageError:
        return False


@contextlib.contextmanager
def _as_bad_image(module: types.ModuleType) -> Iterator[None]:
    try:
        yield
    except module.DecompressionBombError as e:
        size = " ".join(str(e).split()[:4])  # without a guess at an attack
        detail = f"Pillow: {size}, it opens up to {module.MAX_IMAGE_PIXELS * 2:,} pixels: scale it down"
        raise BadImageError(Reason.TOO_LARGE, detail) from e
    except FAILURES as e:
        # The text of UnidentifiedImageError contains a memory address, which differs from run to run.
        found = "broken, or of a kind that it does not read" if isinstance(e, module.UnidentifiedImageError) else e
        raise BadImageError(Reason.UNDECODABLE, f"Pillow: {found}") from e
