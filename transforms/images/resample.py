"""Scales images: in C by default, by Pillow on request.

A JPEG that stays a JPEG is decoded, scaled and encoded in one call: its planes are scaled as they are stored,
brightness and color apart, without a conversion to RGB and back. The pixels of other images are scaled once they are
decoded. Both are the same on every processor. The picture is the one that Pillow makes with the same filter, up to
rounding and, for a JPEG, the noise of encoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from imagebeam import errors
from imagebeam.transforms.images import checked_image, image_formats, pillow_decoder, structure

if TYPE_CHECKING:
    import PIL.Image

    from imagebeam.transforms.images import encoders

try:
    from imagebeam import _writer
except ImportError:  # installed without a compiler
    _writer = None  # type: ignore[assignment]

NATIVE, PILLOW = "native", "pillow"  # values of image.resampler
FILTERS = {"bicubic": "BICUBIC", "lanczos": "LANCZOS", "area": "BOX", "bilinear": "BILINEAR"}  # Pillow's names
_NUMBERS = {"area": 0, "bilinear": 1, "bicubic": 2, "lanczos": 3}  # of `_writer`
_MULTIPLIED = {
    "LA": "La",
    "RGBA": "RGBa",
}  # modes of Pillow: colors multiplied by alpha, so that what is hidden counts 0
_SAMPLINGS = {"source": (0, 0), "4:4:4": (1, 1), "4:2:2": (2, 1), "4:2:0": (2, 2)}  # of Y, across and down
_CHANNELS = {"GRAY": 1, "RGB": 3}


def resize(picture: PIL.Image.Image, size: tuple[int, int], filter: str, resampler: str = NATIVE) -> PIL.Image.Image:
    """Returns `picture` scaled.

    Args:
        picture: in mode L, LA, RGB or RGBA.
        size: width and height in pixels.
        filter: a key of FILTERS; all are antialiased.
        resampler: NATIVE or PILLOW.

    Raises:
        ConfigError: if the C extension is missing.
    """
    module = pillow_decoder.pillow()
    if resampler == PILLOW:
        return picture.resize(size, getattr(module.Resampling, FILTERS[filter]))
    mode = picture.mode
    source = picture.convert(_MULTIPLIED[mode]) if mode in _MULTIPLIED else picture
    shape = source.height, source.width, len(source.getbands())
    scaled: PIL.Image.Image = module.frombytes(source.mode, size, resize_bytes(source.tobytes(), shape, size, filter))
    return scaled.convert(mode) if mode in _MULTIPLIED else scaled


def resize_bytes(data: bytes, shape: tuple[int, int, int], size: tuple[int, int], filter: str) -> bytes:
    """Returns bare pixels scaled in C.

    Args:
        data: rows of pixels, one byte for each channel, none of which is alpha.
        shape: height, width and channels.
        size: width and height in pixels.
        filter: a key of FILTERS.

    Raises:
        ConfigError: if the C extension is missing.
    """
    height, width, channels = shape
    pixels: bytes = require().resize_pixels(data, channels, (width, height), size, _NUMBERS[filter])
    return pixels


def resize_jpeg(
    image: checked_image.Image,
    size: tuple[int, int],
    part: tuple[int, int, int, int],
    reduction: int,
    filter: str,
    encoding: encoders.Encoding,
    is_gray: bool = False,
) -> checked_image.Image | None:
    """Returns a part of a JPEG resized in C.

    Args:
        image: a checked JPEG. Its EXIF orientation is ignored.
        size: width and height in pixels to which the whole image is scaled.
        part: left, upper, width and height of what is stored of it, in pixels.
        reduction: 1, 2, 4 or 8: the JPEG is decoded at this part of its size.
        filter: a key of FILTERS.
        encoding: of the result.
        is_gray: whether to store brightness (ITU-R 601) alone.

    Returns:
        None for a JPEG whose pixels must be decoded first: neither gray nor YCbCr, damaged in a way that libjpeg
            notices, or longer than a JPEG once it is scaled.

    Raises:
        ConfigError: if the C extension is missing.
    """
    if image.colorspace not in _CHANNELS:
        return None
    if max(size) > checked_image.MAX_SIDE_PX[image_formats.JPEG]:  # cropped afterwards, or refused
        return None
    data = require().resize_jpeg(
        image.data,
        size,
        part,
        reduction,
        _NUMBERS[filter],
        encoding.quality,
        _SAMPLINGS[encoding.chroma],
        encoding.progressive,
        is_gray,
    )
    if data is None:
        return None
    channels = 1 if is_gray else _CHANNELS[image.colorspace]
    return checked_image.Image(
        data, image_formats.JPEG, part[3], part[2], channels, structure.RAW_COLORSPACES[channels]
    )


def require() -> Any:
    """Returns the C extension.

    Raises:
        ConfigError: if it is missing, or was built without libjpeg: other code would write other bytes.
    """
    if library() is None:
        raise errors.ConfigError(
            "images are to be resized, and this installation of imagebeam has no resizer in C: install a C compiler "
            "and libjpeg-turbo (apt-get install gcc python3-dev libjpeg-dev) and then imagebeam again, or set "
            "image.resampler: pillow, which stores other pixels"
        )
    return _writer


def library() -> str | None:
    """Returns name and version of what resizes; None where it was not built. The bytes depend on it."""
    return getattr(_writer, "RESIZER", None)
