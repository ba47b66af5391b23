"""The formats of files with arrays, by the ends of their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from imagebeam.transforms.formats.arrays import (
    cifar,
    found_array,
    hdf5_files,
    idx_files,
    layouts,
    matlab_files,
    numpy_files,
)
from imagebeam.transforms.packed import unpacked_content

MAX_LOADED_BYTES = 1 << 30  # of an array of labels, which is read whole


class Format(NamedTuple):
    """How a file with arrays is read."""

    list_arrays: Callable[[str, int], list[found_array.FoundArray]]  # of a file's address and version
    read_values: Callable[[str, int, found_array.FoundArray], Iterator[bytes]]  # of one array, in their order
    check: Callable[[str, int, found_array.FoundArray], None] | None = None  # of the file's checksum of an array


FORMATS: Mapping[str, Format] = {  # by unpacked_content.ARRAYS
    unpacked_content.NPY: Format(numpy_files.list_npy, numpy_files.read_npy),
    unpacked_content.NPZ: Format(numpy_files.list_npz, numpy_files.read_npz, numpy_files.check_npz),
    unpacked_content.MATLAB: Format(matlab_files.list_arrays, matlab_files.read_values),
    **dict.fromkeys(unpacked_content.HDF5, Format(hdf5_files.list_arrays, hdf5_files.read_values)),
    unpacked_content.BINARY: Format(cifar.list_binary, cifar.read_binary),
    **dict.fromkeys(unpacked_content.IDX, Format(idx_files.list_arrays, idx_files.read_values)),
    **dict.fromkeys(unpacked_content.PICKLED, Format(cifar.list_pickled, cifar.read_pickled)),
}


def format_of(uri: str) -> Format | None:
    """Returns how a file is read, by its name; None if its name is not that of a file with arrays."""
    return next((each for end, each in FORMATS.items() if uri.endswith(end)), None)


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
    format = FORMATS[next(end for end in FORMATS if uri.endswith(end))]
    array = next((each for each in format.list_arrays(uri, version) if each.name == name), None)
    if array is None:
        raise found_array.broken(f"has no array {name!r} any more")
    yield from layouts.to_rows(format.read_values(uri, version, array), array, layouts.ImageAxes.parse(axes))


def check(uri: str, version: int, array: found_array.FoundArray) -> None:
    """Compares the checksum of an array in formats that have one: the array is read once, to its end.

    For arrays whose images are read as byte ranges of the file; `read_images` and `load` compare it themselves.

    Raises:
        BrokenContentError: if the values are not those that were written.
        OSError: if the file cannot be read.
    """
    format = format_of(uri)
    assert format is not None
    if format.check is not None:
        format.check(uri, version, array)


def part_name(array: found_array.FoundArray, axes: layouts.ImageAxes) -> str:
    """Returns the name of the part of a file that is the images of an array."""
    return f"{array.name}:{axes}"


def load(uri: str, version: int, array: found_array.FoundArray, read_as: str = "") -> Any:
    """Returns the values of an array of labels: `np.ndarray` [count], or a list of texts.

    `read_as` is the end of the name of such files, if that of this file says no format.

    Raises:
        BrokenContentError: if the file is broken, or the array too large.
        OSError: if the file cannot be read.
    """
    format = format_of(read_as or uri)
    assert format is not None
    is_text = array.dtype == found_array.TEXT
    if array.num_values * (1 if is_text else np.dtype(array.dtype).itemsize) > MAX_LOADED_BYTES:
        raise found_array.broken(f"has {array.num_values:,} values in the array {array.name!r}, too many for labels")
    values = b"".join(format.read_values(uri, version, array))
    if is_text:
        return [text.decode("utf-8", "surrogateescape") for text in values.split(b"\0")[:-1]]
    return np.frombuffer(values, array.dtype).reshape(array.shape, order=array.order)  # type: ignore[call-overload]
