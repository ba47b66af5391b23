"""Arrays of bytes in IDX files, plain or .gz; for data sets whose pixels are not in the order of rows, as EMNIST's.

Source: the description of the format at the end of https://yann.lecun.com/exdb/mnist/.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from imagebeam.transforms.arrays import found_array, numpy_files
from imagebeam.transforms.packed import gzip_content

_UINT8 = b"\0\0\x08"
_MAX_DIMENSIONS = 4
_MAX_HEADER_BYTES = 4 + 4 * _MAX_DIMENSIONS


def list_arrays(uri: str, version: int) -> list[found_array.FoundArray]:
    """Returns the array of a file; a .gz file is read to its end.

    Raises:
        BrokenContentError: if the file is no IDX file of bytes, or not complete.
        OSError: if it cannot be read.
    """
    head, num_bytes = bytearray(), 0
    for piece in _read_pieces(uri, version):
        head += piece[: _MAX_HEADER_BYTES - len(head)]
        num_bytes += len(piece)
    if bytes(head[:3]) != _UINT8 or len(head) < 4 or not 1 <= head[3] <= _MAX_DIMENSIONS:
        raise found_array.broken(f"is not an IDX file of bytes: it begins with 0x{head[:4].hex()}")
    start = 4 + 4 * head[3]
    if len(head) < start:
        raise found_array.cut_short("is an IDX file that")
    found = found_array.FoundArray(numpy_files.ONLY, struct.unpack(f">{head[3]}I", head[4:start]), "|u1", "C", start)
    found_array.check_size(found, 1, num_bytes - start, "is an IDX file that")
    return [found._replace(start=-1) if gzip_content.has_gzip_name(uri) else found]


def read_values(uri: str, version: int, array: found_array.FoundArray) -> Iterator[bytes]:
    """Yields the values of the array in their order; errors are those of `list_arrays`."""
    skipped = 4 + 4 * len(array.shape)
    for piece in _read_pieces(uri, version):
        yield piece[skipped:]
        skipped = max(0, skipped - len(piece))


def _read_pieces(uri: str, version: int) -> Iterator[bytes]:
    if gzip_content.has_gzip_name(uri):
        yield from gzip_content.read_content(uri, version)
        return
    with found_array.open_version(uri, version) as file:
        while piece := file.read(found_array.PIECE_BYTES):
            yield piece
