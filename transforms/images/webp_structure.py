"""Reads the header of a still WebP and checks that it is complete, without decoding it.

Source: RFC 9649, sections 2 and 3.4; RFC 6386, section 9.1, for the header of a lossy picture.
"""

from __future__ import annotations

import struct

from imagebeam.transforms.images import checked_image, image_formats
from imagebeam.transforms.images.checked_image import Image, corrupt, truncated

RIFF_HEADER_BYTES = 12  # "RIFF", the size of what follows it, "WEBP"
LOSSY, LOSSLESS, EXTENDED = b"VP8 ", b"VP8L", b"VP8X"
_ANIMATION, _ALPHA = 0x02, 0x10  # flags of an extended file
_START_CODE = b"\x9d\x01\x2a"
_SIDE_BITS = 14
_SIDE_MASK = (1 << _SIDE_BITS) - 1
_IS_TRANSPARENT = 1 << 2 * _SIDE_BITS  # of a lossless picture
unpack_chunk = struct.Struct("<4sI").unpack_from  # kind, bytes of its data


def check_webp(data: bytes) -> Image:
    """Checks the chunks up to the end of the file.

    Raises:
        BadImageError: if the WebP is truncated, broken or animated.
    """
    end = 8 + int.from_bytes(data[4:8], "little")
    if end > len(data):
        raise truncated(f"the RIFF header says {end:,} bytes", len(data))
    found: Image | None = None
    has_alpha, position = False, RIFF_HEADER_BYTES
    while position + 8 <= end:
        kind, length = unpack_chunk(data, position)
        start = position + 8
        if start + length > end:
            raise truncated(f"the chunk {kind!r} at byte {position} ends at byte {start + length}", end)
        if kind == EXTENDED:
            if data[start] & _ANIMATION:
                raise checked_image.unsupported("an animated WebP, on which TensorFlow 2.21 fails")
            has_alpha = bool(data[start] & _ALPHA)
        elif kind in (LOSSY, LOSSLESS) and found is None:
            height, width, is_transparent = _read_picture(kind, data[start : start + 10], position)
            has_alpha |= is_transparent
            channels, colorspace = (4, "RGBA") if has_alpha else (3, "RGB")
            found = Image(data, image_formats.WEBP, height, width, channels, colorspace)
        position = start + length + length % 2
    if found is None:
        raise corrupt("no picture: there is no VP8 or VP8L chunk")
    return found


def _read_picture(kind: bytes, head: bytes, position: int) -> tuple[int, int, bool]:
    """Returns height and width in pixels, and whether a lossless picture has alpha."""
    if kind == LOSSLESS and head[:1] == b"\x2f" and len(head) >= 5:
        bits = int.from_bytes(head[1:5], "little")
        return (bits >> _SIDE_BITS & _SIDE_MASK) + 1, (bits & _SIDE_MASK) + 1, bool(bits & _IS_TRANSPARENT)
    if kind == LOSSY and head[3:6] == _START_CODE and len(head) == 10:
        width, height = struct.unpack_from("<HH", head, 6)
        return height & _SIDE_MASK, width & _SIDE_MASK, False
    raise corrupt(f"the chunk {kind!r} at byte {position} begins with {head!r}, which is no picture")
