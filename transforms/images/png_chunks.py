"""The chunks of a PNG file: signature, header and framing.

A PNG is a signature, then chunks. A chunk is the length of its data, its type, the data, and the CRC of type and data.

Source: https://www.w3.org/TR/png-3/, sections 5 and 11.2.1.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

SIGNATURE = b"\x89PNG\r\n\x1a\n"
HEADER, PALETTE, TRANSPARENCY, PIXELS, END = b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"
GRAY, PALETTE_INDEX = 0, 3  # color types

HEAD_BYTES = 8  # length and type, before the data
CRC_BYTES = 4
HEADER_BYTES = 13  # data of the header chunk, which is always the first
HEADER_START = len(SIGNATURE) + HEAD_BYTES  # byte offset of these data in the file
DEPTH_BYTE, COLOR_TYPE_BYTE = 8, 9  # byte offsets in these data

_WIDE_GRAY = bytes((16, GRAY))
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
    position, kind = len(SIGNATURE), b""
    while kind not in (TRANSPARENCY, PIXELS):
        length, kind = unpack_head(png, position)
        position += HEAD_BYTES + length + CRC_BYTES
    return kind == TRANSPARENCY


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
