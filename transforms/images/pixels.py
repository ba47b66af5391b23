"""What becomes of decoded pixels: turned upright, given other colors and sizes, encoded, summed up.

Pictures are Pillow's, of 8 bits a channel: gray (L), RGB, and each with alpha (LA, RGBA).
"""

from __future__ import annotations

import contextlib
import io
import struct
from operator import mul
from typing import TYPE_CHECKING, Any

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, structure

if TYPE_CHECKING:
    import PIL.Image

JPEG = "jpeg"
PNG = "png"
RAW = "raw"

_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_CHANNELS = {mode: channels for channels, mode in _MODES.items()}
# By the modes in which Pillow decodes: what stands for them here.
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
_BYTES_PER_VALUE = {"raw": 1, "int64_list": 2, "float_list": 4}  # at most
_VALUES = range(256)
_SQUARES = [value * value for value in _VALUES]

_ORIENTATION = 0x0112  # the tag of EXIF
# By its values: the method of Pillow that turns the picture upright, as PIL.ImageOps.exif_transpose, which also
# rewrites the EXIF data and fails where they are broken.
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
    """The picture whose rows are `data`, of height, width and channels."""
    height, width, channels = shape
    return structure.pillow().frombytes(_MODES[channels], (width, height), data)


def orientation(picture: PIL.Image.Image) -> int:
    """How a decoded file's EXIF data say that it is to be turned: 1 (not at all) to 8."""
    with contextlib.suppress(*_BROKEN_EXIF):
        found = picture.getexif().get(_ORIENTATION)
        return found if found in _TURNS else 1
    return 1


def turn_upright(picture: PIL.Image.Image, orientation: int) -> PIL.Image.Image:
    """`picture` as it is to be seen."""
    turn = _TURNS.get(orientation)
    return picture if turn is None else picture.transpose(structure.pillow().Transpose[turn])


def to_eight_bits(picture: PIL.Image.Image) -> PIL.Image.Image:
    """`picture` in one of the four modes: palettes become RGB, of 16 bits the upper 8 stay, CMYK becomes RGB.

    Raises:
        BadImageError: if its values are of a kind for which there is no rule.
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
        raise structure.BadImageError(Reason.UNSUPPORTED_FORMAT, detail)
    return picture if mode == wanted else picture.convert(wanted)


def _upper_bits(picture: PIL.Image.Image) -> PIL.Image.Image:
    """As libpng and TensorFlow do; Pillow's own conversion makes white of all above 255."""
    import numpy as np

    values = np.asarray(picture).astype(np.int64)
    return structure.pillow().fromarray((values >> 8).clip(0, 255).astype(np.uint8))


def recolor(picture: PIL.Image.Image, color: str) -> PIL.Image.Image:
    """`picture` in the channels that image.color names; all but "keep" drop alpha, the pixels below it stay."""
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
    return structure.pillow().fromarray((total // 3).astype(np.uint8))


def resize(picture: PIL.Image.Image, size: tuple[int, int] | None, shortest_side: int | None) -> PIL.Image.Image:
    """`picture` scaled to `size` (height, width), or down to a shortest side; bicubic, antialiased, as Pillow does."""
    width, height = picture.size
    if size is not None:
        target = size[::-1]
    elif shortest_side is not None and min(width, height) > shortest_side:
        target = scaled(width, height, shortest_side)
    else:
        return picture
    return picture if target == picture.size else picture.resize(target, structure.pillow().Resampling.BICUBIC)


def scaled(width: int, height: int, shortest_side: int) -> tuple[int, int]:
    """Width and height that have this shortest side, the other one rounded to the nearest pixel, a half up."""
    shorter, longer = min(width, height), max(width, height)
    other = (2 * longer * shortest_side + shorter) // (2 * shorter)
    return (shortest_side, other) if width <= height else (other, shortest_side)


def encode(picture: PIL.Image.Image, encoding: str, quality: int) -> structure.Image:
    """The image that is stored of `picture`; nothing of its metadata stays.

    Raises:
        BadImageError: if it is larger than the format or an example can be.
    """
    if encoding == JPEG:  # which has no alpha
        picture = _without_alpha(picture)
    width, height = picture.size
    channels = _CHANNELS[picture.mode]
    if max(height, width) > checked_image.MAX_SIDE_PX.get(encoding, max(height, width)):
        raise checked_image.too_many_pixels(height, width)
    num_bytes = height * width * channels * _BYTES_PER_VALUE.get(encoding, 0)
    if num_bytes > structure.MAX_IMAGE_BYTES:
        detail = f"up to {num_bytes:,} bytes as {encoding}, a tf.train.Example takes {structure.MAX_IMAGE_BYTES:,}"
        raise structure.BadImageError(Reason.TOO_LARGE, f"{height} x {width} x {channels} pixels are {detail}")
    if encoding in (JPEG, PNG):
        data, format = _save(picture, encoding, {"quality": quality} if encoding == JPEG else {}), encoding
    else:
        data, format = picture.tobytes(), RAW
    return structure.Image(data, format, height, width, channels, structure.RAW_COLORSPACES[channels])


def _save(picture: PIL.Image.Image, format: str, options: dict[str, Any]) -> bytes:
    picture.info = {}  # or Pillow would store color profile, comment and transparency of the file it came from
    buffer = io.BytesIO()
    picture.save(buffer, format, **options)
    return buffer.getvalue()


def sum_up(picture: PIL.Image.Image) -> structure.PixelSums:
    """The sums of the pixels as a reader decodes them: RGB, gray repeated, without alpha."""
    picture = _without_alpha(to_eight_bits(picture))
    counts = picture.histogram()
    channels = [counts[start : start + 256] for start in range(0, len(counts), 256)]
    totals = [sum(map(mul, channel, _VALUES)) for channel in channels]
    squares = [sum(map(mul, channel, _SQUARES)) for channel in channels]
    repeats = 3 // len(channels)
    return structure.PixelSums(picture.width * picture.height, (*totals * repeats,), (*squares * repeats,))


def _without_alpha(picture: PIL.Image.Image) -> PIL.Image.Image:
    return _in_mode(picture, _WITHOUT_ALPHA.get(picture.mode, picture.mode))


def _in_mode(picture: PIL.Image.Image, mode: str) -> PIL.Image.Image:
    return picture if picture.mode == mode else picture.convert(mode)
