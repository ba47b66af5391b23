"""Checks the mask of an image, and makes of it the PNG that is stored: one value a pixel, the class."""

from __future__ import annotations

import io
import struct
import zlib

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import structure

_IHDR_BYTES = 13
_IHDR_DATA = 16  # where the header's fields begin: after the signature, the chunk's length and its type
_DEPTH, _COLOR_TYPE = _IHDR_DATA + 8, _IHDR_DATA + 9
_GRAY, _PALETTE = 0, 3
_PIXELS = (b"IDAT", b"IEND")
_unpack_chunk = struct.Struct(">I4s").unpack_from


def with_mask(image: structure.Image, mask: bytes, check: str = "structure") -> structure.Image:
    """`image` with the PNG of its classes.

    Masks with a palette (Pascal VOC) are stored as gray with the palette's indices as values: a decoder would give the
    palette's colors, or the brightness of those, in place of classes. Other masks are stored as they are.

    Args:
        image: as it is stored.
        mask: the bytes of a PNG file.
        check: as for the image itself.

    Raises:
        BadImageError: if `mask` is no whole PNG of the image's size.
    """
    found = structure.check_image(mask, check)
    if found.format != "png":
        raise structure.BadImageError(
            Reason.UNSUPPORTED_FORMAT, f"{found.format}, which blurs classes at their edges: masks must be png"
        )
    if (found.height, found.width) != (image.height, image.width):
        raise structure.BadImageError(
            Reason.BAD_VALUE,
            f"{found.height} x {found.width} pixels, and the image has {image.height} x {image.width} (height x width)",
        )
    return image._replace(mask=_indices(mask) if mask[_COLOR_TYPE] == _PALETTE else mask)


def _indices(png: bytes) -> bytes:
    """A checked PNG with a palette as one in gray whose values are the indices."""
    if png[_DEPTH] != 8:
        return _decoded_indices(png)
    # An index of 8 bits is stored, filtered and compressed as a gray value of 8 bits is: only the header differs.
    header = png[_IHDR_DATA:_COLOR_TYPE] + bytes([_GRAY]) + png[_COLOR_TYPE + 1 : _IHDR_DATA + _IHDR_BYTES]
    kept = [png[:8], _chunk(b"IHDR", header)]
    position = 8
    while True:
        length, kind = _unpack_chunk(png, position)
        end = position + 12 + length
        if kind in _PIXELS:
            kept.append(png[position:end])
        if kind == b"IEND":
            return b"".join(kept)
        position = end


def _decoded_indices(png: bytes) -> bytes:
    """The same for indices of less than 8 bits: as gray, decoders would stretch them to 255."""
    picture = structure.decode_any(png, "png")
    gray = structure.pillow().frombytes("L", picture.size, picture.tobytes())
    stored = io.BytesIO()
    gray.save(stored, "PNG")
    return stored.getvalue()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I4s", len(data), kind) + data + struct.pack(">I", zlib.crc32(kind + data))
