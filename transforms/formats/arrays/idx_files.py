"""Arrays of bytes in IDX files, plain or .gz.

Source: the description of the format at the end of https://yann.lecun.com/exdb/mnist/.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import BinaryIO

from imagebeam.transforms.formats.arrays import found_array
from imagebeam.transforms.packed import gzip_content, unpacked_content

_UINT8 = 0x08
_OTHER_TYPES = {0x09: "int8", 0x0B: "int16", 0x0C: "int32", 0x0D: "float32", 0x0E: "float64"}
_MAGIC_BYTES = 4  # two zeros, the type, the number of dimensions; then each dimension as 4 bytes, big-endian
_MAX_DIMENSIONS = 4


def header_bytes(array: found_array.FoundArray) -> int:
    """Returns the number of bytes before the values of an array."""
    return _MAGIC_BYTES + 4 * len(array.shape)


def list_arrays(uri: str, version: int) -> list[found_array.FoundArray]:
    """Returns the array of a file; a .gz file is unpacked.

    Raises:
        BrokenContentError: if the file is no IDX file of bytes, or not complete.
        OSError: if it cannot be read.
    """
    with _open(uri, version) as file:
        head = file.read(_MAGIC_BYTES + 4 * _MAX_DIMENSIONS)
        num_bytes = file.seek(0, 2)
    if head.startswith(gzip_content.MAGIC):
        raise found_array.broken(f"is gzip, and its name does not end in {gzip_content.SUFFIX}; rename it")
    if len(head) >= _MAGIC_BYTES and head[:2] == b"\0\0" and head[2] in _OTHER_TYPES:
        raise found_array.broken(f"holds numbers of type {_OTHER_TYPES[head[2]]}; only uint8 can be taken")
    if len(head) < _MAGIC_BYTES or head[:3] != bytes((0, 0, _UINT8)) or not 1 <= head[3] <= _MAX_DIMENSIONS:
        begins = f"0x{head[:_MAGIC_BYTES].hex()}" if head else "nothing"
        raise found_array.broken(
            f"is not an IDX file of bytes: it begins with {begins}, expected 0x00000801 to 0x00000804"
        )
    start = _MAGIC_BYTES + 4 * head[3]
    if len(head) < start:
        raise found_array.cut_short(f"ends in its header, after {len(head)} bytes: it")
    shape = struct.unpack(f">{head[3]}I", head[_MAGIC_BYTES:start])
    found = found_array.FoundArray(found_array.ONLY, shape, "|u1", "C", start)
    found_array.check_size(found, 1, num_bytes - start, "is an IDX file that")
    return [found._replace(start=-1) if gzip_content.has_gzip_name(uri) else found]


def read_values(uri: str, version: int, array: found_array.FoundArray) -> Iterator[bytes]:
    """Yields the values of the array in their order; errors are those of `list_arrays`."""
    with _open(uri, version) as file:
        file.seek(header_bytes(array))
        yield from found_array.read_exactly(file, array.num_values, "is an IDX file that")


@contextlib.contextmanager
def _open(uri: str, version: int) -> Iterator[BinaryIO]:
    if gzip_content.has_gzip_name(uri):
        with unpacked_content.open_unpacked(uri, version) as file:
            yield file
    else:
        with found_array.open_version(uri, version) as file:
            yield file
