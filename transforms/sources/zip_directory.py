"""Reads the central directory of a zip archive: the names, places and sizes of its members.

The names may lie, and so may the numbers: nothing is unpacked here, and no name is used as a path.

Source: PKWARE APPNOTE.TXT 6.3.10, sections 4.3.12 to 4.3.16, 4.5.3 and appendix D.
"""

from __future__ import annotations

import array
import bisect
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from imagebeam.transforms.packed import zip_members

ENCRYPTED = 0x01 | 0x40 | 0x2000  # flags: the content, strongly, the directory
_UTF8 = 0x800  # flag
_END = struct.Struct("<4s4H2IH")
_END_SIGNATURE = b"PK\x05\x06"
_END64_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_MAX_COMMENT = 0xFFFF
_MAX_DIRECTORY_BYTES = 2 << 30
_LESS = 0xFFFFFFFF  # a number that a zip64 field replaces
_ZIP64_FIELD, _UNICODE_PATH_FIELD = 0x0001, 0x7075
_SYMBOLIC_LINK = 0o120000
_UNIX = (3, 19)  # systems whose attributes hold a mode: Unix, OS X


class ZipError(ValueError):
    """The archive cannot be read as a whole."""


class Member(NamedTuple):
    """One member of an archive."""

    name: str  # as stored, with slashes
    flags: int
    method: int  # of compression
    crc32: int
    packed_bytes: int
    size: int  # bytes, unpacked
    offset: int  # of its header
    length: int  # bytes from there to the next header
    is_link: bool = False

    @property
    def is_directory(self) -> bool:
        return self.name.endswith("/")


def read_members(read: Callable[[int, int], bytes], num_bytes: int) -> Iterator[Member]:
    """Yields the members in the order of the directory. Of members with one name, only the last one counts.

    Args:
        read: returns so many bytes from an offset.
        num_bytes: of the archive.

    Raises:
        ZipError: if it is no archive, or one that cannot be read: cut short, of several files.
        OSError: if it cannot be read.
    """
    start, size, count, shift = _find_directory(read, num_bytes)
    data = read(start, size)
    if len(data) < size:
        raise ZipError("its directory is cut short")
    offsets, last = array.array("Q"), dict[bytes, int]()  # name -> number of its last member
    for number, (entry, offset) in enumerate(_entries(data, shift)):
        offsets.append(offset)
        last[entry[1]] = number
    if len(offsets) != count and len(offsets) % 0x10000 != count:  # old archives count to 65,535
        raise ZipError(f"its directory holds {len(offsets):,} members and says {count:,}")
    ordered = array.array("Q", sorted(offsets))
    for number, (entry, offset) in enumerate(_entries(data, shift)):
        fields, name, extra = entry
        if last[name] != number:
            continue
        size, packed = fields[9], fields[8]
        if _LESS in (size, packed):
            size, packed = _sizes_of_zip64(extra, size, packed)
        following = bisect.bisect_right(ordered, offset)
        end = ordered[following] if following < len(ordered) else start
        # what follows may be no member: at most the header, its longest fields, the content and what is behind it
        length = min(end - offset, zip_members.LOCAL_HEADER.size + 2 * _MAX_COMMENT + packed + 24)
        if offset >= start or length < zip_members.LOCAL_HEADER.size + packed:
            raise ZipError(f"its directory says that {_decode(name, fields[3], extra)!r} lies outside of the archive")
        mode = fields[15] >> 16 if fields[1] >> 8 in _UNIX else 0
        is_link = mode & 0o170000 == _SYMBOLIC_LINK
        yield Member(
            _decode(name, fields[3], extra), fields[3], fields[4], fields[7], packed, size, offset, length, is_link
        )


def _find_directory(read: Callable[[int, int], bytes], num_bytes: int) -> tuple[int, int, int, int]:
    """Returns offset and bytes of the directory, the number of members, and what is to be added to their offsets."""
    tail_bytes = min(num_bytes, _MAX_COMMENT + _END.size + _END64_LOCATOR.size)
    tail_start = num_bytes - tail_bytes
    tail = read(tail_start, tail_bytes)
    at = _find_end(tail)
    if at < 0:
        raise ZipError("it has no directory at its end: it was cut short, or is no zip archive")
    _, disk, disk_of_directory, here, count, size, offset, _ = _END.unpack_from(tail, at)
    end = tail_start + at
    if (disk, disk_of_directory) not in ((0, 0), (0xFFFF, 0xFFFF)) or (here != count):
        raise ZipError("it is one of several files of an archive: join them first (zip -s 0)")
    locator = at - _END64_LOCATOR.size
    if locator >= 0 and tail.startswith(b"PK\x06\x07", locator):
        _, _, end64, _ = _END64_LOCATOR.unpack_from(tail, locator)
        found = read(end64, _END64.size)
        if len(found) < _END64.size or not found.startswith(b"PK\x06\x06"):
            raise ZipError("its zip64 directory is not where it says")
        _, _, _, _, _, _, _, count, size, offset = _END64.unpack(found)
        end = end64
    if size > _MAX_DIRECTORY_BYTES:
        raise ZipError(f"its directory says that it has {size:,} bytes; up to {_MAX_DIRECTORY_BYTES:,} are read")
    start = end - size  # where it really is: bytes may have been put before the archive, such as a program
    if start < 0 or start < offset:
        raise ZipError("its directory is not where it says: it was cut short")
    return start, size, count, start - offset


def _find_end(tail: bytes) -> int:
    """Returns where the last record of an archive is: its comment ends with the archive. -1 if there is none."""
    latest = at = tail.rfind(_END_SIGNATURE, 0, len(tail) - _END.size + 4)
    while at >= 0:
        if at + _END.size + int.from_bytes(tail[at + _END.size - 2 : at + _END.size], "little") == len(tail):
            return at
        at = tail.rfind(_END_SIGNATURE, 0, at + 3)
    return latest


_Entry = tuple[tuple[int, ...], bytes, bytes]


def _entries(data: bytes, shift: int) -> Iterator[tuple[_Entry, int]]:
    """Yields the fields, name and extra fields of each member, and the offset of its header."""
    position = 0
    while position < len(data):
        if len(data) - position < _ENTRY.size or not data.startswith(b"PK\x01\x02", position):
            if data.startswith(b"PK\x05\x05", position):  # a signature of the directory
                return
            raise ZipError(f"its directory is broken at byte {position:,} of it")
        fields = _ENTRY.unpack_from(data, position)
        name_bytes, extra_bytes, comment_bytes = fields[10:13]
        first = position + _ENTRY.size
        name, extra = data[first : first + name_bytes], data[first + name_bytes : first + name_bytes + extra_bytes]
        position = first + name_bytes + extra_bytes + comment_bytes
        offset = fields[16]
        if offset == _LESS:
            offset = _offset_of_zip64(extra, fields)
        yield (fields, name, extra), offset + shift


def _extra_fields(extra: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, position)
        yield kind, extra[position + 4 : position + 4 + size]
        position += 4 + size


def _zip64_numbers(extra: bytes) -> list[int]:
    for kind, data in _extra_fields(extra):
        if kind == _ZIP64_FIELD:
            return [number for (number,) in struct.iter_unpack("<Q", data[: len(data) // 8 * 8])]
    raise ZipError("a member of more than 4 GB lacks its zip64 field")


def _sizes_of_zip64(extra: bytes, size: int, packed: int) -> tuple[int, int]:
    numbers = _zip64_numbers(extra)
    try:
        size = numbers.pop(0) if size == _LESS else size
        return size, numbers.pop(0) if packed == _LESS else packed
    except IndexError as e:
        raise ZipError("a member has a zip64 field that is too short") from e


def _offset_of_zip64(extra: bytes, fields: tuple[int, ...]) -> int:
    numbers = _zip64_numbers(extra)
    place = (fields[9] == _LESS) + (fields[8] == _LESS)
    if place >= len(numbers):
        raise ZipError("a member has a zip64 field that is too short")
    return numbers[place]


def _decode(name: bytes, flags: int, extra: bytes) -> str:
    """Returns a name. Archives say whether it is UTF-8; many are wrong, so what can be UTF-8 is taken as such."""
    if not flags & _UTF8:
        for kind, data in _extra_fields(extra):
            if (
                kind == _UNICODE_PATH_FIELD
                and data[:1] == b"\x01"
                and zlib.crc32(name) == int.from_bytes(data[1:5], "little")
            ):
                name = data[5:]
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = name.decode("cp437")
    return text.replace("\\", "/")  # some programs for Windows write their own separator
