"""Finds where the values of a binary column lie in a Parquet file, so that one can be read without the others.

Reads pages that are not compressed, or by Snappy, and hold their values one after the other, in plain or dictionary
encoding: what `datasets` and pyarrow write. pyarrow reads everything else.

Source: https://github.com/apache/parquet-format (README.md, Encodings.md, src/main/thrift/parquet.thrift) and the
compact protocol of Thrift, https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from imagebeam.transforms import elements
from imagebeam.transforms.packed import parquet_content

MAX_PAGE_BYTES = 1 << 30  # a compressed page is read as a whole to find its values
_MAX_PAGE_VALUES = 1 << 24  # a page of a few bytes may claim any number of nulls
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3  # types of pages
_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8  # encodings
_BY_INDEX = (_PLAIN_DICTIONARY, _RLE_DICTIONARY)
_HEADER_BYTES = (4 << 10, 16 << 20)  # read at first and at most: statistics may hold two whole values
_LENGTH = struct.Struct("<I")
_MAX_DEPTH = 8  # levels of structs in a page header: there are three


class NotLocatedError(ValueError):
    """The values cannot be found: the pages are of another kind, or damaged."""


class Chunk(NamedTuple):
    """The values of a column in one row group."""

    start: int  # byte offset of the first page
    end: int
    num_values: int  # with nulls
    is_snappy: bool  # else it is not compressed
    max_level: int  # definition level of a value that is not null
    list_level: int = 0  # in a column of lists: definition level from which on a list has an entry; 0 without lists
    entry_level: int = 0  # the same of an entry that is not null


class Place(NamedTuple):
    """Where one value lies."""

    size: int  # bytes
    offset: int  # byte offset in the file
    length: int  # bytes to read
    blocks: elements.SnappyBlocks | None = None  # set if these bytes are compressed


NO_BYTES = Place(-1, 0, 0)  # of an entry of a list that is there, and has none

Read = Callable[[int, int], bytes]  # offset and length of a range of a file -> its bytes, fewer at the end


def locate_lists(read: Read, chunk: Chunk) -> Iterator[list[Place | None]]:
    """Yields the places of the values of each list of a chunk; none for null. None and NO_BYTES are entries of a list.

    Raises:
        NotLocatedError: as `locate_values`.
        OSError: if the file cannot be read.
    """
    row: list[Place | None] | None = None
    for place, level, repeat in _locate_entries(read, chunk):
        if not repeat:
            if row is not None:
                yield row
            row = []
        _check(row is not None, "a list that begins in no row")
        if level >= chunk.list_level and row is not None:
            row.append(NO_BYTES if place is None and level >= chunk.entry_level else place)
    if row is not None:
        yield row


def locate_values(read: Read, chunk: Chunk) -> Iterator[Place | None]:
    """Yields the place of each value of a chunk, None for null.

    Holds one page in memory where pages are compressed; else it reads only the length of each value.

    Raises:
        NotLocatedError: if a page is of a kind that is not read here, is damaged or larger than `MAX_PAGE_BYTES`.
        OSError: if the file cannot be read.
    """
    return (place for place, _, _ in _locate_entries(read, chunk))


def _locate_entries(read: Read, chunk: Chunk) -> Iterator[tuple[Place | None, int, int]]:
    """Yields the place of each value, its definition level, and its repetition level: 0 where a row begins."""
    at, found = chunk.start, 0
    dictionary: Sequence[Place] = ()
    while found < chunk.num_values:
        header, at = _read_header(read, at, chunk.end)
        kind, stored = header.get(1), _number(header, 3)
        _check(stored <= chunk.end - at, "a page leaves its column")
        if kind == _DICTIONARY:
            about = _struct(header, 7)
            _check(about.get(2) in (_PLAIN, _PLAIN_DICTIONARY), "an unknown encoding of a dictionary")
            page = _open_page(read, at, header, 0, is_snappy=chunk.is_snappy)
            dictionary = list(page.values(0, _count(about)))
        elif kind in (_DATA, _DATA_2):
            about = _struct(header, 5 if kind == _DATA else 8)
            count = _count(about)
            left = chunk.num_values - found
            _check(0 < count <= min(left, _MAX_PAGE_VALUES), "a page with another number of values")
            yield from _locate_in_page(read, at, header, about, chunk, dictionary)
            found += count
        at += stored


def _locate_in_page(
    read: Read, at: int, header: dict[int, Any], about: dict[int, Any], chunk: Chunk, dictionary: Sequence[Place]
) -> Iterator[tuple[Place | None, int, int]]:
    is_second = header[1] == _DATA_2
    encoding, count = about.get(4 if is_second else 2), _count(about)
    _check(encoding == _PLAIN or encoding in _BY_INDEX, "an unknown encoding of values")
    if is_second:  # levels are before the values, never compressed
        num_repeats, num_levels = _number(about, 6), _number(about, 5)
        _check(num_repeats + num_levels <= header[3] and bool(num_repeats) <= bool(chunk.list_level), "other levels")
        repeats = read(at, num_repeats) if num_repeats else b""
        levels = read(at + num_repeats, num_levels) if num_levels else b""
        num_levels += num_repeats
        page = _open_page(read, at, header, num_levels, is_snappy=chunk.is_snappy and about.get(7, True))
        start = 0
    else:
        page = _open_page(read, at, header, 0, is_snappy=chunk.is_snappy)
        repeats, start = _read_levels(page, 0, about.get(4)) if chunk.list_level else (b"", 0)
        levels, start = _read_levels(page, start, about.get(3)) if chunk.max_level else (b"", start)
    decoded = decode_levels(levels, chunk.max_level.bit_length(), count) if chunk.max_level else []
    repeated: Iterable[int] = decode_levels(repeats, 1, count) if chunk.list_level else itertools.repeat(0)
    num_there = decoded.count(chunk.max_level) if chunk.max_level else count
    places = page.values(start, num_there) if encoding == _PLAIN else _by_index(page, start, num_there, dictionary)
    if num_there == count:
        yield from zip(places, itertools.repeat(chunk.max_level), repeated)
    else:
        levelled = zip(decoded, repeated)
        yield from ((next(places) if level == chunk.max_level else None, level, repeat) for level, repeat in levelled)


def _read_levels(page: _Page, at: int, encoding: int | None) -> tuple[bytes, int]:
    """Returns the levels of a page that begin at an offset, and where they end."""
    _check(encoding == _RLE, "an unknown encoding of levels")
    (num_bytes,) = _LENGTH.unpack(page.read(at, _LENGTH.size))
    return page.read(at + _LENGTH.size, num_bytes), at + _LENGTH.size + num_bytes


def _by_index(page: _Page, start: int, count: int, dictionary: Sequence[Place]) -> Iterator[Place]:
    if not count:
        return
    data = page.read(start, page.num_bytes - start)
    _check(bool(data) and data[0] <= 32, "an unknown width of indexes")
    for index in decode_levels(data[1:], data[0], count):
        _check(index < len(dictionary), "an index that is not in the dictionary")
        yield dictionary[index]


def decode_levels(data: bytes, width: int, count: int) -> list[int]:
    """Decodes numbers of `width` bits in the hybrid of runs and packed bits.

    Raises:
        NotLocatedError: if there are fewer than `count`.
    """
    numbers: list[int] = []
    at, num_bytes, mask = 0, (width + 7) // 8, (1 << width) - 1
    while len(numbers) < count:
        try:
            header, at = _varint(data, at)
        except IndexError as e:
            raise NotLocatedError("numbers that end early") from e
        if header & 1:
            groups = min(header >> 1, (count - len(numbers) + 7) // 8)  # a group has eight numbers
            packed = data[at : at + groups * width]
            _check(len(packed) == groups * width, "numbers that end early")
            at += (header >> 1) * width
            for first in range(0, len(packed), width) if width else ():
                bits = int.from_bytes(packed[first : first + width], "little")
                numbers += [bits >> shift & mask for shift in range(0, 8 * width, width)]
            if not width:
                numbers += [0] * (8 * groups)
        else:
            value = data[at : at + num_bytes]
            _check(len(value) == num_bytes, "numbers that end early")
            at += num_bytes
            numbers += [int.from_bytes(value, "little")] * min(header >> 1, count - len(numbers))
        _check(bool(header >> 1), "an empty run of numbers")
    del numbers[count:]
    return numbers


class _Page:
    """The content of a page that is not compressed: its bytes stay in the file."""

    def __init__(self, read: Read, start: int, num_bytes: int):
        self._read, self._start = read, start
        self.num_bytes = num_bytes

    def read(self, offset: int, length: int) -> bytes:
        """Returns a range of the page.

        Raises:
            NotLocatedError: if it leaves the page.
        """
        _check(0 <= length <= self.num_bytes - offset, "a value that leaves its page")
        data = self._read(self._start + offset, length)
        _check(len(data) == length, "a page that is cut short")
        return data

    def values(self, start: int, count: int) -> Iterator[Place]:
        """Yields the places of `count` plain values, which must end where the page does."""
        at = start
        for _ in range(count):
            (size,) = _LENGTH.unpack(self.read(at, _LENGTH.size))
            at += _LENGTH.size
            _check(size <= self.num_bytes - at, "a value that leaves its page")
            yield self._place(at, size)
            at += size
        _check(at == self.num_bytes, "a page with more bytes than its values have")

    def _place(self, offset: int, size: int) -> Place:
        return Place(size, self._start + offset, size)


class _SnappyPage(_Page):
    """The content of a page that was unpacked in memory."""

    def __init__(self, data: bytes, start: int, num_bytes: int):
        _check(num_bytes <= MAX_PAGE_BYTES and len(data) <= MAX_PAGE_BYTES, "a page of more than 1 GB")
        blocks = parquet_content.find_blocks(data, num_bytes)
        if blocks is None:
            raise NotLocatedError("Snappy that is damaged, or in blocks of another size")
        try:
            plain = parquet_content.decode(data, num_bytes)
        except OSError as e:
            raise NotLocatedError("Snappy that is damaged") from e
        self._blocks = blocks
        super().__init__(lambda at, length: plain[at - start : at - start + length], start, num_bytes)

    def _place(self, offset: int, size: int) -> Place:
        first, last = offset // parquet_content.BLOCK_BYTES, -(-(offset + size) // parquet_content.BLOCK_BYTES)
        if not size:
            return Place(0, self._start, 0)
        plain_start = first * parquet_content.BLOCK_BYTES
        num_bytes = min(last * parquet_content.BLOCK_BYTES, self.num_bytes) - plain_start
        start, end = self._blocks[first], self._blocks[last]
        within = elements.SnappyBlocks(num_bytes, offset - plain_start)
        return Place(size, self._start + start, end - start, within)


def _open_page(read: Read, at: int, header: dict[int, Any], skipped: int, *, is_snappy: bool) -> _Page:
    """Returns the content of a page without its first `skipped` bytes."""
    stored, num_bytes = header[3] - skipped, _number(header, 2)
    _check(num_bytes >= skipped, "a page that is shorter than its levels")
    if not is_snappy or not stored:
        return _Page(read, at + skipped, stored)
    _check(stored <= MAX_PAGE_BYTES, "a page of more than 1 GB")
    return _SnappyPage(read(at + skipped, stored), at + skipped, num_bytes - skipped)


def _count(about: dict[int, Any]) -> int:
    """Returns the number of values in a page."""
    return _number(about, 1)


def _number(fields: dict[int, Any], number: int) -> int:
    found = fields.get(number)
    if not isinstance(found, int) or found < 0:
        raise NotLocatedError("a page header without a number that it must have")
    return found


def _struct(fields: dict[int, Any], number: int) -> dict[int, Any]:
    found = fields.get(number)
    if not isinstance(found, dict):
        raise NotLocatedError("a page without its header")
    return found


def _check(is_right: bool, what: str) -> None:
    if not is_right:
        raise NotLocatedError(what)


# --- compact protocol of Thrift --------------------------------------------------------------------------------------


def _read_header(read: Read, at: int, end: int) -> tuple[dict[int, Any], int]:
    """Returns the fields of the page header at `at` by number, and where it ends."""
    least, most = _HEADER_BYTES
    num_bytes = least
    while True:
        data = read(at, min(num_bytes, end - at))
        try:
            fields, length = _read_struct(data, 0, 0)
            return fields, at + length
        except IndexError:
            _check(num_bytes < min(most, end - at), "a page header that is cut short")
            num_bytes *= 8


def _read_struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Returns the fields of a struct by number, and where it ends. IndexError: the bytes end early."""
    fields: dict[int, Any] = {}
    number = 0
    _check(depth < _MAX_DEPTH, "a page header of too many levels")
    while head := data[at]:
        kind = head & 0xF
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _zigzag(data, at)
        if kind in (1, 2):  # a boolean is in its kind
            fields[number] = kind == 1
        elif kind == 3:
            fields[number], at = data[at], at + 1
        elif kind in (4, 5, 6):
            fields[number], at = _zigzag(data, at)
        elif kind == 8:  # bytes: statistics, which are not needed
            length, at = _varint(data, at)
            at += length
            data[at - 1]  # raises IndexError if they end early
        elif kind == 12:
            fields[number], at = _read_struct(data, at, depth + 1)
        else:
            raise NotLocatedError(f"a page header with a field of type {kind}")
    return fields, at + 1


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return number >> 1 ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 64, 7):
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return number, at
    raise NotLocatedError("a number of more than 64 bits")
