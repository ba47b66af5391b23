"""The formats of files with arrays, by the ends of their names; arrays of bytes in IDX files."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from imagebeam.transforms.packed import cifar, found_array, hdf5_files, numpy_files, packed_file, pixel_csv

MAX_LOADED_BYTES = 1 << 30  # an array of labels is read whole

# --- IDX files, plain or .gz -----------------------------------------------------------------------------------------
#
# Source: the description of the format at the end of https://yann.lecun.com/exdb/mnist/.

_UINT8 = 0x08
_OTHER_TYPES = {0x09: "int8", 0x0B: "int16", 0x0C: "int32", 0x0D: "float32", 0x0E: "float64"}
_IDX_MAGIC_BYTES = 4  # two zeros, the type, the number of dimensions; then each dimension as 4 bytes, big-endian
_MAX_IDX_DIMENSIONS = 4


def list_idx(uri: str, version: int) -> list[found_array.FoundArray]:
    """Returns the array of a file; a .gz file is unpacked, and its values start in the unpacked content.

    Raises:
        BrokenContentError: if the file is no IDX file of bytes, or not complete.
        OSError: if it cannot be read.
    """
    with _open_idx(uri, version) as file:
        head = file.read(_IDX_MAGIC_BYTES + 4 * _MAX_IDX_DIMENSIONS)
        num_bytes = file.seek(0, 2)
    if head.startswith(packed_file.GZIP_MAGIC):
        raise packed_file.broken(f"is gzip, and its name does not end in {packed_file.GZIP_SUFFIX}; rename it")
    if len(head) >= _IDX_MAGIC_BYTES and head[:2] == b"\0\0" and head[2] in _OTHER_TYPES:
        raise packed_file.broken(f"holds numbers of type {_OTHER_TYPES[head[2]]}; only uint8 can be taken")
    if len(head) < _IDX_MAGIC_BYTES or head[:3] != bytes((0, 0, _UINT8)) or not 1 <= head[3] <= _MAX_IDX_DIMENSIONS:
        begins = f"0x{head[:_IDX_MAGIC_BYTES].hex()}" if head else "nothing"
        raise packed_file.broken(
            f"is not an IDX file of bytes: it begins with {begins}, expected 0x00000801 to 0x00000804"
        )
    start = _IDX_MAGIC_BYTES + 4 * head[3]
    if len(head) < start:
        raise packed_file.cut_short(f"ends in its header, after {len(head)} bytes: it")
    shape = struct.unpack(f">{head[3]}I", head[_IDX_MAGIC_BYTES:start])
    found = found_array.FoundArray(found_array.ONLY, shape, "|u1", "C", start)
    found_array.check_size(found, 1, num_bytes - start, "is an IDX file that")
    return [found]


def read_idx(uri: str, version: int, array: found_array.FoundArray) -> Iterator[bytes]:
    """Yields the values of the array in their order; errors are those of `list_idx`."""
    with _open_idx(uri, version) as file:
        file.seek(array.start)
        yield from packed_file.read_exactly(file, array.num_values, "is an IDX file that")


def _open_idx(uri: str, version: int) -> contextlib.AbstractContextManager[BinaryIO]:
    return (packed_file.open_gzip if uri.endswith(packed_file.GZIP_SUFFIX) else packed_file.open_version)(uri, version)


# --- all formats -----------------------------------------------------------------------------------------------------


class Format(NamedTuple):
    """How a file with arrays is read."""

    list_arrays: Callable[[str, int], list[found_array.FoundArray]]  # takes a file's address and version
    read_values: Callable[
        [str, int, found_array.FoundArray], Iterator[bytes]
    ]  # yields the values of one array in their order
    check: Callable[[str, int, found_array.FoundArray], None] | None = None  # compares the checksum of an array


FORMATS: Mapping[str, Format] = {  # by the end of a file's name
    packed_file.NPY: Format(numpy_files.list_npy, numpy_files.read_npy),
    packed_file.NPZ: Format(numpy_files.list_npz, numpy_files.read_npz, numpy_files.check_npz),
    packed_file.MATLAB: Format(hdf5_files.list_matlab, hdf5_files.read_matlab),
    **dict.fromkeys(packed_file.HDF5, Format(hdf5_files.list_hdf5, hdf5_files.read_hdf5)),
    packed_file.CSV: Format(pixel_csv.list_csv, pixel_csv.read_csv),
    packed_file.BINARY: Format(cifar.list_binary, cifar.read_binary),
    **dict.fromkeys(packed_file.IDX, Format(list_idx, read_idx)),
    **dict.fromkeys(packed_file.PICKLED, Format(cifar.list_pickled, cifar.read_pickled)),
}


def format_of(uri: str) -> Format | None:
    """Returns how a file is read, by its name; None if its name is not that of a file with arrays."""
    return next((each for end, each in FORMATS.items() if uri.endswith(end)), None)


def _format(uri: str) -> Format:
    """Returns how a file is read that was listed: one whose name says nothing is IDX, which can have any name."""
    return format_of(uri) or FORMATS[packed_file.IDX[0]]


def read_images(uri: str, version: int, part: str) -> Iterator[bytes]:
    """Yields the images of an array as rows of pixels, in pieces of some megabytes.

    Args:
        uri: address of the file.
        version: of the file.
        part: as `part_name` writes it.

    Raises:
        BrokenContentError: if the file is broken.
        ChangedError: if the file has another version.
        OSError: if the file cannot be read.
    """
    name, _, axes = part.rpartition(":")
    format = _format(uri)
    array = next((each for each in format.list_arrays(uri, version) if each.name == name), None)
    if array is None:
        raise packed_file.broken(f"has no array {name!r} any more")
    yield from found_array.to_rows(format.read_values(uri, version, array), array, found_array.ImageAxes.parse(axes))


def check(uri: str, version: int, array: found_array.FoundArray) -> None:
    """Compares the checksum of an array in formats that have one: the array is read once, to its end.

    For arrays whose images are read as byte ranges of the file; `read_images` and `load` compare it themselves.

    Raises:
        BrokenContentError: if the values are not those that were written.
        OSError: if the file cannot be read.
    """
    if (compare := _format(uri).check) is not None:
        compare(uri, version, array)


def part_name(array: found_array.FoundArray, axes: found_array.ImageAxes) -> str:
    """Returns the name of the part of a file that is the images of an array."""
    return f"{array.name}:{axes}"


def load(uri: str, version: int, array: found_array.FoundArray) -> Any:
    """Returns the values of an array of labels: `np.ndarray` [count], or a list of texts.

    Raises:
        BrokenContentError: if the file is broken, or the array too large.
        OSError: if the file cannot be read.
    """
    is_text = array.dtype == found_array.TEXT
    if array.num_values * (1 if is_text else np.dtype(array.dtype).itemsize) > MAX_LOADED_BYTES:
        raise packed_file.broken(f"has {array.num_values:,} values in the array {array.name!r}, too many for labels")
    values = b"".join(_format(uri).read_values(uri, version, array))
    if is_text:
        return [text.decode("utf-8", "surrogateescape") for text in values.split(b"\0")[:-1]]
    return np.frombuffer(values, array.dtype).reshape(array.shape, order=array.order)  # type: ignore[call-overload]
