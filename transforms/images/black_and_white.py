"""Tells masks that are drawn in black and white, whose numbers are 0 and 255, from masks of classes."""

from __future__ import annotations

import collections
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from imagebeam.transforms.images import checked_image, image_formats, pillow_decoder, png_structure

if TYPE_CHECKING:
    import PIL.Image

BLACK, WHITE = 0, 255
COLORS = {"background": [BLACK] * 3, "foreground": [WHITE] * 3}  # what source.masks.colors must be for such masks
COLORS_TEXT = "{background: [0, 0, 0], foreground: [255, 255, 255]}"  # the same in YAML
MAX_CLASSES = 64  # different numbers of a gray mask, at most; a gray picture has more
_DARK, _LIGHT = range(32), range(224, 256)  # nearly black, nearly white
_MIN_GRAYS = 16  # different numbers between them
_SHARE = 0.9  # of the pixels
_MAX_PIXELS = 1 << 24
_PNG_DEPTH = png_structure.HEADER_START + png_structure.DEPTH_BYTE
_BMP_DEPTH = 28  # byte offset
_TIFF_DEPTH = 258  # tag


def are_black_and_white(masks: Sequence[Mapping[int, int]]) -> bool:
    """Returns whether masks are gray with 8 bits, and have pixels of 0 and of 255 and of no other number.

    Args:
        masks: of each, the numbers of its pixels: see `count_numbers`.
    """
    return all(masks) and set().union(*masks) == {BLACK, WHITE}


def are_smoothed(masks: Sequence[Mapping[int, int]]) -> bool:
    """Returns whether gray masks of 8 bits are together of black and white with all kinds of gray between them.

    Such are masks that were compressed with loss or resized: most pixels are nearly black or nearly white, and the
    others have many different numbers.

    Args:
        masks: of each, the numbers of its pixels: see `count_numbers`.
    """
    counts: collections.Counter[int] = collections.Counter()
    for mask in masks:
        counts.update(mask)
    dark, light = (sum(counts[number] for number in numbers) for numbers in (_DARK, _LIGHT))
    num_grays = sum(_DARK.stop <= number < _LIGHT.start for number in counts)
    return num_grays >= _MIN_GRAYS and min(dark, light) > 0 and dark + light >= _SHARE * counts.total()


def count_numbers(mask: bytes) -> dict[int, int]:
    """Returns the numbers of the pixels of a gray mask of 8 bits, each with how many pixels have it.

    Empty for a mask with a palette or colors, for a file that is broken or larger than 16 million pixels, and for one
    that is neither PNG, BMP nor TIFF.
    """
    format = image_formats.sniff_format(mask)
    if format not in ("png", "bmp", "tiff"):
        return {}
    try:
        picture = pillow_decoder.open_lazily(mask, format)
        if picture.mode != "L" or picture.width * picture.height > _MAX_PIXELS:
            return {}
        if _bits_of(mask, format, picture) != 8:
            return {}
        pillow_decoder.load(picture)
    except checked_image.BadImageError:
        return {}
    return {number: count for number, count in enumerate(picture.histogram()) if count}


def _bits_of(mask: bytes, format: str, picture: PIL.Image.Image) -> int:
    """Returns the bits of a number in the file: of fewer than 8, Pillow stretches the numbers to 255."""
    if format == "png":
        return mask[_PNG_DEPTH]
    if format == "bmp":
        bits: int = struct.unpack_from("<H", mask, _BMP_DEPTH)[0]
        return bits
    found = getattr(picture, "tag_v2", {}).get(_TIFF_DEPTH, 1)
    return int(found[0] if isinstance(found, tuple) else found)
