"""Turns decoded pixels upright, and sums them."""

from __future__ import annotations

import contextlib
import struct
from operator import mul
from typing import TYPE_CHECKING

from imagebeam.transforms.images import checked_image, colors, exif, orientations
from imagebeam.transforms.images.pillow_decoder import pillow

if TYPE_CHECKING:
    import PIL.Image

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
    return pillow().frombytes(colors.MODES[channels], (width, height), data)


def orientation(picture: PIL.Image.Image) -> int:
    """Returns the orientation in a decoded file's EXIF data: 1 (no turn) to 8; 1 if the data are missing or broken.

    Also 1 for a JPEG XL, which states the turn in its own header: decoders apply it, and EXIF data may repeat it. One
    that was made of a JPEG without loss has the turn of that JPEG (ISO/IEC 18181-2, annex A).
    """
    if picture.format == "JXL" and not getattr(picture, "jpeg", False):
        return checked_image.UPRIGHT
    with contextlib.suppress(*_BROKEN_EXIF):
        found = picture.getexif().get(exif.ORIENTATION_TAG)
        return found if found in _TURNS else checked_image.UPRIGHT
    return checked_image.UPRIGHT


def stored_size(opened: PIL.Image.Image, orientation: int) -> tuple[int, int]:
    """Returns height and width of an opened file's pixels as they are stored, before any turn.

    Args:
        opened: the image as Pillow opened it: a TIFF has the size of the upright picture.
        orientation: in its EXIF data.
    """
    size = opened.height, opened.width
    return orientations.turn_size(*size, orientation) if opened.format == "TIFF" else size


def turn_upright(picture: PIL.Image.Image, orientation: int) -> PIL.Image.Image:
    """Returns `picture` turned as its EXIF `orientation` asks for."""
    turn = _TURNS.get(orientation)
    return picture if turn is None else picture.transpose(pillow().Transpose[turn])


def sum_up(picture: PIL.Image.Image) -> checked_image.PixelSums:
    """Returns the sums of the pixels as a reader decodes them: as RGB (gray repeated), without alpha."""
    picture = colors.without_alpha(colors.to_eight_bits(picture))
    counts = picture.histogram()
    channels = [counts[start : start + 256] for start in range(0, len(counts), 256)]
    totals = [sum(map(mul, channel, _VALUES)) for channel in channels]
    squares = [sum(map(mul, channel, _SQUARES)) for channel in channels]
    repeats = 3 // len(channels)
    return checked_image.PixelSums(picture.width * picture.height, (*totals * repeats,), (*squares * repeats,))
