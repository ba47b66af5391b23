"""Tells masks that are drawn in black and white, whose numbers are 0 and 255, from masks of classes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from imagebeam.transforms.images import checked_image, image_formats, pillow_decoder, png_chunks

if TYPE_CHECKING:
    import PIL.Image

BLACK, WHITE = 0, 255
COLORS = {"background": [BLACK] * 3, "foreground": [WHITE] * 3}  # what source.masks.colors must be for such masks
COLORS_TEXT = "{background: [0, 0, 0], foreground: [255, 255, 255]}"  # the same in YAML
_MAX_PIXELS = 1 << 24
_PNG_DEPTH = png_chunks.HEADER_START + png_chunks.DEPTH_BYTE
_BMP_DEPTH = 28  # byte offset
_TIFF_DEPTH = 258  # tag


def is_black_and_white(mask: bytes) -> bool:
    """Returns whether a mask is gray with 8 bits, and has pixels of 0 and of 255 and of no other number.

    False for a file that is broken or larger than 16 million pixels, or neither PNG, BMP nor TIFF.
    """
    format = image_formats.sniff_format(mask)
    if format not in ("png", "bmp", "tiff"):
        return False
    try:
        picture = pillow_decoder.open_lazily(mask, format)
        if picture.mode != "L" or picture.width * picture.height > _MAX_PIXELS:
            return False
        if _bits_of(mask, format, picture) != 8:
            return False
        pillow_decoder.load(picture)
    except checked_image.BadImageError:
        return False
    numbers = picture.histogram()
    return bool(numbers[BLACK] and numbers[WHITE]) and not any(numbers[BLACK + 1 : WHITE])


def _bits_of(mask: bytes, format: str, picture: PIL.Image.Image) -> int:
    """Returns the bits of a number in the file: of fewer than 8, Pillow stretches the numbers to 255."""
    if format == "png":
        return mask[_PNG_DEPTH]
    if format == "bmp":
        bits: int = struct.unpack_from("<H", mask, _BMP_DEPTH)[0]
        return bits
    found = getattr(picture, "tag_v2", {}).get(_TIFF_DEPTH, 1)
    return int(found[0] if isinstance(found, tuple) else found)
