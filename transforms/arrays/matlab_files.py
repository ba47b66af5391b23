"""Arrays in MATLAB's .mat files: of version 5 (MATLAB 5 to 7), and of version 7.3, which are HDF5.

Values of version 5 are read as a stream, also where they are compressed: an array of any size takes little memory.

Source: "MAT-File Format", https://www.mathworks.com/help/pdf_doc/matlab/matfile_format.pdf.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from imagebeam.transforms.arrays import found_array, hdf5_files

_HEADER_BYTES = 128
_HDF5 = b"MATLAB 7.3"
_MAX_NAME_BYTES = 256
_MAX_DIMENSIONS = 32
_READ_BYTES = 64 << 10
_COMPRESSED, _MATRIX = 15, 14
_STORED = {  # types of stored values
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
}  # fmt: skip
_CLASSES = {  # of arrays; values may be stored in a smaller type
    6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8",
}  # fmt: skip
_COMPLEX = 0x08


class _Tag(NamedTuple):
    """The beginning of an element: what it holds, and how many bytes."""

    type: int
    num_bytes: int
    small: bytes | None = None  # the whole element, if it is part of the tag


def list_arrays(uri: str, version: int) -> list[found_array.FoundArray]:
    """Returns the arrays of numbers in a file, with shapes as MATLAB shows them; others are passed over.

    Raises:
        BrokenContentError: if the file is not MATLAB's, or not complete.
        ConfigError: if it is HDF5, and h5py is not installed.
        OSError: if it cannot be read.
    """
    if _is_hdf5(uri, version):
        listed = (each for each in hdf5_files.list_arrays(uri, version) if not each.name.startswith("#"))
        return [each._replace(shape=each.shape[::-1], order="F", start=-1) for each in listed]
    with found_array.open_version(uri, version) as file:
        return [array for array, _ in _scan(file)]


def read_values(uri: str, version: int, array: found_array.FoundArray) -> Iterator[bytes]:
    """Yields the values of an array in their order, the first index fastest; errors are those of `list_arrays`."""
    if _is_hdf5(uri, version):
        yield from hdf5_files.read_values(uri, version, array._replace(shape=array.shape[::-1]))
        return
    with found_array.open_version(uri, version) as file:
        for found, element in _scan(file):
            if found.name == array.name:
                yield from element.read_values(found)
                return
    raise found_array.broken(f"has no array {array.name!r} any more")


def _is_hdf5(uri: str, version: int) -> bool:
    with found_array.open_version(uri, version) as file:
        return file.read(len(_HDF5)) == _HDF5


class _Element:
    """One element of the top level, read from its beginning to its end."""

    def __init__(self, read: Callable[[int], bytes], byte_order: str):
        self._read = read
        self._order = byte_order

    def exactly(self, num_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < num_bytes:
            piece = self._read(min(num_bytes - len(data), found_array.PIECE_BYTES))
            if not piece:
                raise found_array.cut_short("is a .mat file that")
            data += piece
        return bytes(data)

    def tag(self) -> _Tag:
        first, second = struct.unpack(f"{self._order}2I", start := self.exactly(8))
        if first >> 16 > 4:
            raise found_array.broken(f"has a small element of {first >> 16:,} bytes, and at most 4 fit; fetch it again")
        if first >> 16:
            return _Tag(first & 0xFFFF, first >> 16, start[4 : 4 + (first >> 16)])
        return _Tag(first, second)

    def small(self, most: int) -> bytes:
        """Reads an element of at most `most` bytes."""
        tag = self.tag()
        if tag.small is not None:
            return tag.small
        if tag.num_bytes > most:
            raise found_array.broken(f"has an element of {tag.num_bytes:,} bytes where at most {most} are expected")
        return self.exactly(-(-tag.num_bytes // 8) * 8)[: tag.num_bytes]

    def describe(self) -> found_array.FoundArray | None:
        """Reads up to the values of an array; returns None if it is not one of real numbers."""
        word = self.small(8)[:4]
        if len(word) < 4:
            raise found_array.broken("has an array without its flags; fetch it again")
        flags = struct.unpack(f"{self._order}I", word)[0]
        sides = self.small(4 * _MAX_DIMENSIONS)
        shape = struct.unpack(f"{self._order}{len(sides) // 4}i", sides[: len(sides) // 4 * 4])
        name = self.small(_MAX_NAME_BYTES).decode("latin-1")
        kind = _CLASSES.get(flags & 0xFF)
        if any(side < 0 for side in shape):
            raise found_array.broken(f"says that the array {name!r} has the shape {shape}")
        if kind is None or flags >> 8 & _COMPLEX:
            return None
        return found_array.FoundArray(name, shape, np.dtype(self._order + kind).str, "F")

    def read_values(self, array: found_array.FoundArray) -> Iterator[bytes]:
        tag = self.tag()
        stored = np.dtype(self._order + _STORED[tag.type]) if tag.type in _STORED else None
        if stored is None or tag.num_bytes != array.num_values * stored.itemsize:
            raise found_array.broken(
                f"has {tag.num_bytes:,} bytes of values of the array {array.name!r}, whose shape is {array.shape}"
            )
        rest = tag.num_bytes
        while rest:
            data = self.exactly(min(rest, found_array.PIECE_BYTES)) if tag.small is None else tag.small
            rest -= len(data)
            yield data if stored == array.dtype else np.frombuffer(data, stored).astype(array.dtype).tobytes()


def _scan(file: BinaryIO) -> Iterator[tuple[found_array.FoundArray, _Element]]:
    """Yields each array of numbers, and the element that its values can be read from next."""
    header = file.read(_HEADER_BYTES)
    byte_order = {b"IM": "<", b"MI": ">"}.get(header[126:128])
    if len(header) < _HEADER_BYTES or byte_order is None:
        raise found_array.broken("is not a .mat file of version 5 or 7.3; save it by save('-v7', ...)")
    end = file.seek(0, 2)
    position = _HEADER_BYTES
    while position < end:
        file.seek(position)
        start = file.read(8)
        if len(start) < 8:
            raise found_array.cut_short("is a .mat file that")
        type, num_bytes = struct.unpack(f"{byte_order}2I", start)
        position += 8 + num_bytes
        if position > end:
            raise found_array.cut_short("is a .mat file that")
        if type == _COMPRESSED:
            element = _Element(_Inflated(file, num_bytes).read, byte_order)
            type = element.tag().type
        else:
            element = _Element(file.read, byte_order)
        if type == _MATRIX and (array := element.describe()) is not None:
            yield array, element


class _Inflated:
    """A compressed element of a file, unpacked as it is read."""

    def __init__(self, file: BinaryIO, num_bytes: int):
        self._file, self._rest = file, num_bytes
        self._stream = zlib.decompressobj()
        self._pending = b""

    def read(self, num_bytes: int) -> bytes:
        """Returns 1 to `num_bytes` bytes; none at the end."""
        while not self._stream.eof:
            if not self._pending:
                self._pending = self._file.read(min(self._rest, _READ_BYTES))
                self._rest -= len(self._pending)
                if not self._pending:
                    return b""
            try:
                plain = self._stream.decompress(self._pending, num_bytes)
            except zlib.error as e:
                raise found_array.broken(f"is a broken .mat file ({e}); fetch it again") from e
            self._pending = self._stream.unconsumed_tail
            if plain:
                return plain
        return b""
