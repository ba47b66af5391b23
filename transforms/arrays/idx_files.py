"""Arrays of bytes in IDX files, plain or .gz; for data sets whose pixels are not in the order of rows, as EMNIST's.

Source: the description of the format at the end of https://yann.lecun.com/exdb/mnist/.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import BinaryIO

from imagebeam.transforms import gzip_content
from imagebeam.transforms.arrays import found_array, numpy_files

_UINT8 = b"\0\0\x08"
_MAX_DIMENSIONS = 4


def list_arrays(uri: str, version: int) -> list[found_array.FoundArray]:
    """Returns the array of a file.

    Raises:
        BrokenContentError: if the file is no IDX file of bytes, or not complete.
        OSError: if it cannot be read.
    """
    with _open(uri, version) as file:
        head = file.read(4)
        if head[:3] != _UINT8 or not 1 <= head[3] <= _MAX_DIMENSIONS:
            raise found_array.broken(f"is not an IDX file of bytes: it begins with 0x{head.hex()}")
        sides = file.read(4 * head[3])
        if len(sides) < 4 * head[3]:
            raise found_array.cut_short("is an IDX file that")
        shape = struct.unpack(f">{head[3]}I", sides)
        start = 4 + len(sides)
        found = found_array.FoundArray(numpy_files.ONLY, shape, "|u1", "C", start)
        found_array.check_size(found, 1, file.seek(0, 2) - start, "is an IDX file that")
        return [found._replace(start=-1) if gzip_content.has_gzip_name(uri) else found]


def read_values(uri: str, version: int, array: found_array.FoundArray) -> Iterator[bytes]:
    """Yields the values of the array in their order; errors are those of `list_arrays`."""
    with _open(uri, version) as file:
        file.seek(4 + 4 * len(array.shape))
        yield from found_array.read_exactly(file, array.num_values, "is an IDX file that")


def _open(uri: str, version: int) -> contextlib.AbstractContextManager[BinaryIO]:
    from imagebeam.transforms import unpacked_content  # late: it imports the names of these formats

    if gzip_content.has_gzip_name(uri):
        return unpacked_content.open_unpacked(uri, version)
    return found_array.open_version(uri, version)
