"""Arrays in the binary version of CIFAR: records of one label byte (CIFAR-100: two) and 3,072 bytes of pixels.

Source: https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from imagebeam.transforms.arrays import found_array

_PIXEL_BYTES = 32 * 32 * 3  # all red, all green, all blue
_LABELS_OF_100 = ("coarse_labels", "fine_labels")
_NAMES_OF_100 = ("train.bin", "test.bin")
_DATA = "data"


def list_arrays(uri: str, version: int) -> list[found_array.FoundArray]:
    """Returns pixels and labels of a file, under the names that the Python version has.

    Raises:
        BrokenContentError: if the file does not consist of whole records.
        OSError: if it cannot be read.
    """
    labels = _labels_of(uri)
    with found_array.open_version(uri, version) as file:
        count, rest = divmod(file.seek(0, 2), len(labels) + _PIXEL_BYTES)
    if rest or not count:
        raise found_array.broken(
            f"does not consist of records of {len(labels) + _PIXEL_BYTES:,} bytes, as CIFAR's binary files do; "
            "fetch it again"
        )
    flat = found_array.FoundArray(_DATA, (count, _PIXEL_BYTES), "|u1")
    return [flat, *(found_array.FoundArray(name, (count,), "|u1") for name in labels)]


def read_values(uri: str, version: int, array: found_array.FoundArray) -> Iterator[bytes]:
    """Yields the values of one array; errors are those of `list_arrays`."""
    labels = _labels_of(uri)
    size = len(labels) + _PIXEL_BYTES
    first, last = len(labels), size
    if array.name != _DATA:
        first = labels.index(array.name)
        last = first + 1
    at_once = found_array.PIECE_BYTES // size
    with found_array.open_version(uri, version) as file:
        for start in range(0, array.shape[0], at_once):
            num_bytes = size * min(at_once, array.shape[0] - start)
            records = b"".join(found_array.read_exactly(file, num_bytes, "is a file of CIFAR that"))
            yield b"".join(records[each + first : each + last] for each in range(0, num_bytes, size))


def _labels_of(uri: str) -> tuple[str, ...]:
    return _LABELS_OF_100 if posixpath.basename(uri) in _NAMES_OF_100 else ("labels",)
