"""Reads one member of a zip archive from its byte range: stored, or deflated.

A reference to `archive.zip!/train/cat/x.jpg` is a range of `archive.zip`: from the header of the member to the next
one. The header is read with the content, so that a listing needs the central directory alone.

Source: PKWARE APPNOTE.TXT 6.3.10, sections 4.3.7 to 4.3.9.
"""

from __future__ import annotations

import re
import struct
import zlib

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.packed import packed_file

MARK = "!/"  # between the address of an archive and the path of a member
STORED, DEFLATED = 0, 8  # methods of compression
HAS_DESCRIPTOR = 0x08  # flag: checksum and sizes follow the content
LOCAL_HEADER = struct.Struct("<4s5H3I2H")
LOCAL_SIGNATURE = b"PK\x03\x04"
MAX_RATIO = 1032  # deflate packs no better: more is a lie, or a bomb; https://zlib.net/zlib_tech.html

_DESCRIPTOR_SIGNATURE = b"PK\x07\x08"
_ADDRESS = re.compile(r"(.+?\.zip)!/(.+)", re.IGNORECASE | re.DOTALL)


def address_of(archive: str, member: str) -> str:
    """Returns the address of a member."""
    return f"{archive}{MARK}{member}"


def archive_of(address: str) -> str | None:
    """Returns the archive that an address is in; None for any other address."""
    if MARK not in address:
        return None
    match = _ADDRESS.fullmatch(address)
    return match[1] if match else None


def unpack(data: bytes, size: int) -> bytes:
    """Returns the content of a member.

    Args:
        data: bytes of the archive, from the header of the member to the next one.
        size: of the content, as the central directory says; no more is unpacked.

    Raises:
        BrokenContentError: if the range holds no such member, or its checksum does not match.
    """
    if len(data) < LOCAL_HEADER.size or not data.startswith(LOCAL_SIGNATURE):
        raise _broken("has no header of a member where its directory says so")
    header = LOCAL_HEADER.unpack_from(data)
    flags, method, crc, name_bytes, extra_bytes = header[2], header[3], header[6], header[9], header[10]
    start = LOCAL_HEADER.size + name_bytes + extra_bytes
    if method == STORED:
        content, rest = data[start : start + size], data[start + size : start + size + 8]
        if len(content) < size:
            raise packed_file.BrokenContentError(Reason.TRUNCATED, f"ends after {len(content):,} of {size:,} bytes")
    else:
        content, rest = _inflate(memoryview(data)[start:], size)
    if flags & HAS_DESCRIPTOR:
        rest = rest.removeprefix(_DESCRIPTOR_SIGNATURE)[:4] if rest.startswith(_DESCRIPTOR_SIGNATURE) else rest[:4]
        crc = int.from_bytes(rest, "little")
    if zlib.crc32(content) != crc:
        raise _broken("has another checksum than the archive says")
    return content


def _inflate(data: memoryview, size: int) -> tuple[bytes, bytes]:
    """Returns the content of `size` bytes, and some bytes after the compressed ones."""
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = stream.decompress(data, size + 1)
    except zlib.error as e:
        raise _broken(f"is broken ({str(e).rpartition(': ')[2]})") from e
    if not stream.eof and len(content) <= size:  # the end of the stream may follow the last byte
        content += stream.decompress(stream.unconsumed_tail, 1)
    if len(content) != size or not stream.eof:
        more = "more" if len(content) > size else f"{len(content):,}"
        raise _broken(f"unpacks to {more} bytes, the archive says {size:,}")
    return content, bytes(stream.unused_data[:8])


def _broken(detail: str) -> packed_file.BrokenContentError:
    return packed_file.BrokenContentError(Reason.CORRUPT, f"{detail}; fetch the archive again")
