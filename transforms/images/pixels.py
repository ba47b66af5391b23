"""Changes decoded pixels: turns them upright, converts colors, resizes, encodes and sums them.

Images are Pillow's, with 8 bits per channel, in one of four modes: L (gray), LA, RGB, RGBA.
"""

from __future__ import annotations

import contextlib
import io
import struct
from operator import mul
from typing import TYPE_CHECKING, Any

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, exif, image_formats, structure
from imagebeam.transforms.images.pillow_decoder import pillow

if TYPE_CHECKING:
    import PIL.Image

_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_CHANNELS = {mode: channels for channels, mode in _MODES.items()}
# By the mode in which Pillow decodes: the mode of ours that it is converted to.
_EIGHT_BITS = {mode: mode for mode in _CHANNELS} | {
    "1": "L",
    "PA": "RGBA",
    "La": "LA",
    "RGBa": "RGBA",
    "RGBX": "RGB",
    "CMYK": "RGB",
    "YCbCr": "RGB",
}
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
_WITHOUT_ALPHA = {"LA": "L", "RGBA": "RGB"}
_BYTES_PER_VALUE = {image_formats.RAW: 1, "int64_list": 2, "float_list": 4}  # at most
_VALUES = range(256)
_SQUARES = [value * value for value in _VALUES]

# By EXIF orientation: Pillow's method that turns the image upright. PIL.ImageOps.exif_transpose does the same, but it
# also rewrites the EXIF data and fails where they are broken.
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
_BROKEN_EXIF = (ArithmeticError, AttributeError, LookupError, OSError, SyntaxError, TypeError, ValueError, struct.error)


def from_bytes(data: bytes, shape: tuple[int, int, int]) -> PIL.Image.Image:
    """Returns the image whose rows are `data`; `shape` is height, width, channels."""
    height, width, channels = shape
    return pillow().frombytes(_MODES[channels], (width, height), data)


def orientation(picture: PIL.Image.Image) -> int:
    """Returns the orientation in a decoded file's EXIF data: 1 (no turn) to 8; 1 if the data are missing or broken."""
    with contextlib.suppress(*_BROKEN_EXIF):
        found = picture.getexif().get(exif.ORIENTATION_TAG)
        return found if found in _TURNS else checked_image.UPRIGHT
    return checked_image.UPRIGHT


def turn_upright(picture: PIL.Image.Image, orientation: int) -> PIL.Image.Image:
    """Returns `picture` turned as its EXIF `orientation` asks for."""
    turn = _TURNS.get(orientation)
    return picture if turn is None else picture.transpose(pillow().Transpose[turn])


def to_eight_bits(picture: PIL.Image.Image) -> PIL.Image.Image:
    """Converts `picture` to one of the four modes.

    A palette becomes RGB, or RGBA if it has transparency; of 16 bits the upper 8 are kept; CMYK becomes RGB.

    Raises:
        BadImageError: if there is no rule for its mode.
    """
    mode = picture.mode
    if mode in _SIXTEEN_BITS or (mode == "I" and picture.format in ("PNG", "PPM")):
        return _upper_bits(picture)
    if mode == "P":
        wanted: str | None = "RGBA" if "transparency" in picture.info else "RGB"
    else:
        wanted = _EIGHT_BITS.get(mode)
    if wanted is None:
        detail = f"{(picture.format or '').lower()} of Pillow's mode {mode}: convert it to 8 bits a channel first"
        raise checked_image.BadImageError(Reason.UNSUPPORTED_FORMAT, detail)
    return picture if mode == wanted else picture.convert(wanted)


def _upper_bits(picture: PIL.Image.Image) -> PIL.Image.Image:
    """Keeps the upper 8 bits, as libpng and TensorFlow do; Pillow's own conversion turns all values above 255 white."""
    import numpy as np

    values = np.asarray(picture).astype(np.int64)
    return pillow().fromarray((values >> 8).clip(0, 255).astype(np.uint8))


def recolor(picture: PIL.Image.Image, color: str) -> PIL.Image.Image:
    """Converts `picture` to the channels that image.color names; all but "keep" drop alpha without blending it in."""
    if color == "keep":
        return picture
    if color == "rgb":
        return _in_mode(picture, "RGB")
    picture = _without_alpha(picture)
    if picture.mode == "L":
        return picture
    return picture.convert("L") if color == "gray" else _mean_of_channels(picture)


def _mean_of_channels(picture: PIL.Image.Image) -> PIL.Image.Image:
    import numpy as np

    channels = np.asarray(picture)
    total = channels[..., 0].astype(np.uint16)
    total += channels[..., 1]
    total += channels[..., 2]
    return pillow().fromarray((total // 3).astype(np.uint8))


def resize(picture: PIL.Image.Image, size: tuple[int, int] | None, shortest_side: int | None) -> PIL.Image.Image:
    """Scales `picture` by Pillow's antialiased bicubic filter.

    Args:
        picture: of any of the four modes.
        size: exact height and width in pixels; None leaves the size to `shortest_side`.
        shortest_side: in pixels; larger images are scaled down to it, smaller ones stay. None changes nothing.
    """
    width, height = picture.size
    if size is not None:
        target = size[::-1]
    elif shortest_side is not None and min(width, height) > shortest_side:
        target = scaled(width, height, shortest_side)
    else:
        return picture
    return picture if target == picture.size else picture.resize(target, pillow().Resampling.BICUBIC)


def scaled(width: int, height: int, shortest_side: int) -> tuple[int, int]:
    """Returns width and height with this shortest side; the other side is rounded to the nearest pixel, halves up."""
    shorter, longer = min(width, height), max(width, height)
    other = (2 * longer * shortest_side + shorter) // (2 * shorter)
    return (shortest_side, other) if width <= height else (other, shortest_side)


def encode(picture: PIL.Image.Image, encoding: str, quality: int) -> checked_image.Image:
    """Encodes `picture` as the image that is stored, without any metadata.

    Args:
        picture: of any of the four modes.
        encoding: "jpeg" (which drops alpha), "png", "raw", "int64_list" or "float_list".
        quality: of a JPEG, 1 to 100.

    Raises:
        BadImageError: if the image is larger than the format or an example allows.
    """
    if encoding == image_formats.JPEG:
        picture = _without_alpha(picture)
    width, height = picture.size
    channels = _CHANNELS[picture.mode]
    if max(height, width) > checked_image.MAX_SIDE_PX.get(encoding, max(height, width)):
        raise checked_image.too_many_pixels(height, width)
    num_bytes = height * width * channels * _BYTES_PER_VALUE.get(encoding, 0)
    if num_bytes > structure.MAX_IMAGE_BYTES:
        detail = f"up to {num_bytes:,} bytes as {encoding}, a tf.train.Example takes {structure.MAX_IMAGE_BYTES:,}"
        raise checked_image.BadImageError(Reason.TOO_LARGE, f"{height} x {width} x {channels} pixels are {detail}")
    if encoding in (image_formats.JPEG, image_formats.PNG):
        options = {"quality": quality} if encoding == image_formats.JPEG else {}
        data, format = _save(picture, encoding, options), encoding
    else:
        data, format = picture.tobytes(), image_formats.RAW
    return checked_image.Image(data, format, height, width, channels, structure.RAW_COLORSPACES[channels])


def _save(picture: PIL.Image.Image, format: str, options: dict[str, Any]) -> bytes:
    picture.info = {}  # else Pillow stores the color profile, comment and transparency of the source file
    buffer = io.BytesIO()
    picture.save(buffer, format, **options)
    return buffer.getvalue()


def sum_up(picture: PIL.Image.Image) -> checked_image.PixelSums:
    """Returns the sums of the pixels as a reader decodes them: as RGB (gray repeated), without alpha."""
    picture = _without_alpha(to_eight_bits(picture))
    counts = picture.histogram()
    channels = [counts[start : start + 256] for start in range(0, len(counts), 256)]
    totals = [sum(map(mul, channel, _VALUES)) for channel in channels]
    squares = [sum(map(mul, channel, _SQUARES)) for channel in channels]
    repeats = 3 // len(channels)
    return checked_image.PixelSums(picture.width * picture.height, (*totals * repeats,), (*squares * repeats,))


def _without_alpha(picture: PIL.Image.Image) -> PIL.Image.Image:
    return _in_mode(picture, _WITHOUT_ALPHA.get(picture.mode, picture.mode))


def _in_mode(picture: PIL.Image.Image, mode: str) -> PIL.Image.Image:
    return picture if picture.mode == mode else picture.convert(mode)
