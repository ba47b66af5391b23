"""The chunks of a PNG, and the check that they are complete and well-formed, without decoding pixels.

A PNG is a signature, then chunks. A chunk is the length of its data, its type, the data, and the CRC of type and data.

Source: https://www.w3.org/TR/png-3/, sections 5 and 11.2.1; what decoders tolerate: pngrutil.c of libpng, and
trials with TensorFlow 2.21 and Pillow 12.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from imagebeam.transforms.images import checked_image, image_formats, orientations
from imagebeam.transforms.images.checked_image import Image, corrupt, truncated

SIGNATURE = b"\x89PNG\r\n\x1a\n"
HEADER, PALETTE, TRANSPARENCY, PIXELS, END = b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"
GRAY, PALETTE_INDEX = 0, 3  # color types

HEAD_BYTES = 8  # length and type, before the data
CRC_BYTES = 4
HEADER_BYTES = 13  # data of the header chunk, which is always the first
HEADER_START = len(SIGNATURE) + HEAD_BYTES  # byte offset of these data in the file
DEPTH_BYTE, COLOR_TYPE_BYTE = 8, 9  # byte offsets in these data

_WIDE = 16  # bits per value
_WIDE_GRAY = bytes((_WIDE, GRAY))
_KIND = slice(HEADER_START + DEPTH_BYTE, HEADER_START + COLOR_TYPE_BYTE + 1)

unpack_head = struct.Struct(">I4s").unpack_from  # length of the data, type
unpack_crc = struct.Struct(">I").unpack_from
_header = struct.Struct(">IIBBBBB")
unpack_header = _header.unpack_from  # width, height, bits per value, color type, compression, filter, interlace


class Chunk(NamedTuple):
    """One chunk of a file."""

    kind: bytes
    data: bytes  # without length, type and CRC
    whole: bytes


def read_chunks(png: bytes) -> Iterator[Chunk]:
    """Yields the chunks of a checked PNG; nothing of what follows the last one."""
    position, kind = len(SIGNATURE), b""
    while kind != END:
        length, kind = unpack_head(png, position)
        start, position = position, position + HEAD_BYTES + length + CRC_BYTES
        yield Chunk(kind, png[start + HEAD_BYTES : position - CRC_BYTES], png[start:position])


def is_wide_gray(png: bytes) -> bool:
    """Returns whether a checked PNG has gray numbers of 16 bits."""
    return png.startswith(SIGNATURE) and png[_KIND] == _WIDE_GRAY


def has_transparency(png: bytes) -> bool:
    """Returns whether a checked PNG names colors, or gray levels, that are transparent."""
    if not png.startswith(SIGNATURE):
        return False
    kinds = (chunk.kind for chunk in read_chunks(png))
    return next(kind for kind in kinds if kind in (TRANSPARENCY, PIXELS)) == TRANSPARENCY


def encode_chunk(kind: bytes, data: bytes = b"") -> bytes:
    """Returns one chunk: length, type, data and CRC."""
    return struct.pack(">I4s", len(data), kind) + data + struct.pack(">I", zlib.crc32(kind + data))


def encode_header(
    height: int,
    width: int,
    depth: int = 8,
    color_type: int = GRAY,
    compression: int = 0,
    filtering: int = 0,
    interlace: int = 0,
) -> bytes:
    """Returns the header chunk; `depth` is in bits per value."""
    return encode_chunk(HEADER, _header.pack(width, height, depth, color_type, compression, filtering, interlace))


# By color type: channels and color space. Type 3 holds indices of a palette.
_COLORS = {0: (1, "GRAY"), 2: (3, "RGB"), 3: (3, "RGB"), 4: (2, "GRAY_ALPHA"), 6: (4, "RGBA")}
_DEPTHS = {0: (1, 2, 4, 8, 16), 3: (1, 2, 4, 8)}  # bits per value; the other color types allow 8 and 16
_MAX_UINT31 = 2**31 - 1  # PNG allows no larger length, width or height
_MAX_COLORS = 256  # a palette has no more, 3 bytes each
_IS_ANCILLARY = 0x20  # bit of the first letter of a chunk's type: decoders may ignore the chunk


def check_png(data: bytes, only_header: bool = False) -> Image:
    """Checks the chunks up to IEND: lengths, CRCs, and the order that libpng requires.

    Args:
        data: the bytes of the file.
        only_header: whether to stop at the first pixels.

    Raises:
        BadImageError: if the PNG is truncated, broken, or larger than decoders accept.
    """
    size = len(data)
    view = memoryview(data)
    image: Image | None = None
    has_palette, palette_bytes, pixel_bytes = False, 0, 0
    previous = b""
    position = len(SIGNATURE)
    while True:
        start = position + HEAD_BYTES  # where the chunk's data begin
        if start + CRC_BYTES > size:
            raise truncated(f"no IEND chunk from byte {position} on", size)
        length, kind = unpack_head(data, position)
        end = start + length
        if not kind.isalpha() or length > _MAX_UINT31:
            raise corrupt(f"no chunk at byte {position}: type {kind!r}, {length} bytes")
        if end + CRC_BYTES > size:
            raise truncated(f"the chunk {kind.decode()} at byte {position} ends at byte {end + 4}", size)
        if zlib.crc32(view[position + 4 : end]) != unpack_crc(data, end)[0]:
            raise corrupt(f"the chunk {kind.decode()} at byte {position}, of {length} bytes, has a wrong CRC")
        if image is None:
            if kind != HEADER or length != HEADER_BYTES:
                raise corrupt(f"the first chunk is {kind.decode()} of {length} bytes, expected IHDR of 13")
            image = _read_header(data, start)
            has_palette = data[start + COLOR_TYPE_BYTE] == PALETTE_INDEX
        elif kind == PIXELS:
            if has_palette and not palette_bytes:
                raise corrupt(f"the chunk IDAT at byte {position} has no palette (PLTE) before it")
            if only_header:
                return image
            if pixel_bytes and previous != PIXELS:
                raise corrupt(f"the chunk IDAT at byte {position} does not follow the other IDAT chunks")
            pixel_bytes += length
        elif kind == PALETTE:
            if has_palette and (palette_bytes or length % 3 or not 3 <= length <= 3 * _MAX_COLORS):
                raise corrupt(f"the palette at byte {position} is a second one or of a wrong length, {length} bytes")
            palette_bytes = length
        elif kind == TRANSPARENCY and has_palette:  # with other color types decoders return no alpha by default
            if not pixel_bytes and 0 < length <= palette_bytes // 3:  # libpng ignores any other
                image = image._replace(channels=4, colorspace="RGBA")
        elif kind == b"eXIf":
            image = image._replace(orientation=orientations.read_orientation(data, start, end))
        elif kind == END:
            if not pixel_bytes:
                raise corrupt("no pixels: there is no IDAT chunk")
            return image
        elif not kind[0] & _IS_ANCILLARY:
            raise corrupt(f"the chunk {kind.decode()} at byte {position} is critical and unknown, or a second one")
        previous = kind
        position = end + CRC_BYTES


def _read_header(data: bytes, start: int) -> Image:
    """Returns the image that the header chunk describes; `start` is the byte offset of the chunk's data."""
    width, height, depth, color_type, compression, filtering, interlace = unpack_header(data, start)
    if color_type not in _COLORS or depth not in _DEPTHS.get(color_type, (8, 16)):
        raise corrupt(f"the chunk IHDR says color type {color_type} with {depth} bits")
    if not 0 < width <= _MAX_UINT31 or not 0 < height <= _MAX_UINT31:
        raise corrupt(f"the chunk IHDR says {height} x {width} pixels")
    if compression or filtering or interlace > 1:
        raise corrupt(f"the chunk IHDR says compression {compression}, filter {filtering}, interlace {interlace}")
    if max(height, width) > checked_image.MAX_SIDE_PX["png"] or height * width > checked_image.MAX_VALUES:
        raise checked_image.too_many_pixels(height, width)
    image = Image(data, image_formats.PNG, height, width, *_COLORS[color_type])
    return image._replace(dtype="uint16") if depth == _WIDE else image
