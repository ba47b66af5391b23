"""Arrays in HDF5 files, and in MATLAB's .mat files, of which those of version 7.3 are HDF5.

Links to other files, and datasets whose values are in other files, are refused.

Source: https://docs.h5py.org.
"""

from __future__ import annotations

import contextlib
import math
import sys
import traceback
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from imagebeam import errors, storage
from imagebeam.transforms.packed import found_array, packed_file

_MAX_DEPTH = 8  # levels of groups
_MAX_LINKS = 10 * found_array.MAX_ARRAYS  # in all groups together
_MAX_CHUNK_BYTES = 1 << 28  # a chunk is unpacked whole
_MAX_RATIO = 1100  # zlib packs 1,032 bytes into one at most
_CACHE_BYTES = 64 << 20
_BROKEN = (KeyError, RuntimeError, ValueError, TypeError, OverflowError, MemoryError, UnicodeError)


def list_hdf5(uri: str, version: int) -> list[found_array.FoundArray]:
    """Returns the datasets of a file; those in groups as `group/name`.

    Raises:
        BrokenContentError: if the file is no complete HDF5, or refers to other files.
        ConfigError: if h5py is not installed.
        OSError: if the file cannot be read.
    """
    with _open(uri, version) as file:
        return _Walk().list_arrays(file)


def read_hdf5(uri: str, version: int, array: found_array.FoundArray) -> Iterator[bytes]:
    """Yields the values of a dataset in their order; errors are those of `list_hdf5`."""
    with _open(uri, version) as file:
        dataset = file[array.name]
        if dataset.shape is None:
            return
        if not dataset.shape:
            yield dataset[()].tobytes()
            return
        row_bytes = max(1, math.prod(dataset.shape[1:]) * dataset.dtype.itemsize)
        at_once = max(1, packed_file.PIECE_BYTES // row_bytes)
        in_chunk = dataset.chunks[0] if dataset.chunks else 1
        if in_chunk * row_bytes <= _MAX_CHUNK_BYTES:  # no chunk is unpacked twice
            at_once = max(1, at_once // in_chunk) * in_chunk
        for start in range(0, dataset.shape[0], at_once):
            yield dataset[start : start + at_once].tobytes()


@contextlib.contextmanager
def _open(uri: str, version: int) -> Iterator[Any]:
    try:
        import h5py
    except ImportError as e:
        raise errors.missing_package(e, f"reading {uri!r}", "hdf5") from e
    outer = sys.exc_info()[1]
    try:
        with packed_file.open_version(uri, version) as file, h5py.File(file, "r", rdcc_nbytes=_CACHE_BYTES) as opened:
            yield opened
    except BaseException as e:
        _release(e, outer)
        is_own = isinstance(e, (storage.ChangedError, packed_file.BrokenContentError))
        if isinstance(e, _BROKEN) or (isinstance(e, OSError) and e.errno is None and not is_own):
            raise _broken(e) from e
        raise


def _release(error: BaseException | None, outer: BaseException | None) -> None:
    """Frees the objects of h5py in the frames that an error keeps, down to `outer`, which was there before.

    When the process exits, HDF5 frees the properties that are left, and with them the reference to the Python file. The
    interpreter has ended by then: a segmentation fault, after an error that Python did not free before its end.
    """
    while error is not None and error is not outer:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _broken(error: Exception) -> packed_file.BrokenContentError:
    return packed_file.broken(f"is not a complete HDF5 file ({str(error)[:200]}); fetch it again")


class _Walk:
    """One pass through the groups of a file; a group with several names is looked into under the first one."""

    def __init__(self) -> None:
        self._found: list[found_array.FoundArray] = []
        self._groups: set[tuple[int, int]] = set()
        self._num_links = 0

    def list_arrays(self, file: Any) -> list[found_array.FoundArray]:
        self._visit(file, "", 0)
        return self._found

    def _visit(self, group: Any, path: str, depth: int) -> None:
        import h5py

        place_in_file = h5py.h5o.get_info(group.id)
        if (key := (place_in_file.fileno, place_in_file.addr)) in self._groups:
            return
        self._groups.add(key)
        for name in group:
            self._num_links += 1
            if self._num_links > _MAX_LINKS:
                raise packed_file.broken(f"has more than {_MAX_LINKS:,} links to groups and datasets")
            link = group.get(name, getlink=True)
            place = f"{path}{name}"
            if isinstance(link, h5py.ExternalLink):
                raise packed_file.broken(
                    f"has a link {place!r} to the file {link.filename!r}; other files are not opened: copy "
                    "the data into one"
                )
            if not isinstance(link, h5py.HardLink):  # another name of something in this file
                continue
            each = group[name]
            if isinstance(each, h5py.Group) and depth < _MAX_DEPTH:
                self._visit(each, f"{place}/", depth + 1)
            elif isinstance(each, h5py.Dataset):
                self._found.append(_describe(place, each))
            if len(self._found) > found_array.MAX_ARRAYS:
                raise packed_file.broken(f"has more than {found_array.MAX_ARRAYS:,} arrays")


def _describe(name: str, dataset: Any) -> found_array.FoundArray:
    if dataset.is_virtual or dataset.external:
        raise packed_file.broken(
            f"has the dataset {name!r}, whose values are in other files; they are not opened: copy the data "
            "into one file"
        )
    shape = tuple(map(int, dataset.shape)) if dataset.shape is not None else (0,)  # without any value
    if dataset.dtype.hasobject:  # texts of any length: a broken one keeps the library in an endless loop
        return found_array.FoundArray(name, shape, dataset.dtype.str)
    num_bytes, stored = math.prod(shape) * dataset.dtype.itemsize, dataset.id.get_storage_size()
    is_cut = dataset.chunks is None and stored < num_bytes
    if is_cut or num_bytes > stored * _MAX_RATIO + packed_file.PIECE_BYTES:
        raise packed_file.broken(
            f"says that the dataset {name!r} has {num_bytes:,} bytes of values, and stores {stored:,} for them: it was "
            "not written to its end"
        )
    if dataset.chunks and math.prod(dataset.chunks) * dataset.dtype.itemsize > _MAX_CHUNK_BYTES:
        raise packed_file.broken(
            f"has the dataset {name!r} in chunks of more than {_MAX_CHUNK_BYTES:,} bytes; write it in smaller ones"
        )
    if dataset.chunks:
        num_chunks = math.prod(-(-side // length) for side, length in zip(shape, dataset.chunks))
        num_stored = dataset.id.get_num_chunks()
        if num_stored < num_chunks:  # the library would return zeros for the others
            raise packed_file.broken(
                f"says that the dataset {name!r} has {num_chunks:,} chunks, and stores {num_stored:,} of them: it was "
                "not written to its end"
            )
    offset = dataset.id.get_offset() if dataset.chunks is None and stored == num_bytes else None
    return found_array.FoundArray(name, shape, dataset.dtype.str, "C", -1 if offset is None else int(offset))


# --- MATLAB ----------------------------------------------------------------------------------------------------------
#
# Files of versions 4 to 7 are read by SciPy, and an array is loaded whole. Structs, cells, texts and sparse arrays are
# skipped.

_MATLAB_HDF5 = b"MATLAB 7.3"
_INTEGERS = {f"{sign}int{bits}": f"<{sign or 'i'}{bits // 8}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_DTYPES = {"double": "<f8", "single": "<f4", "logical": "|u1", **_INTEGERS}  # by MATLAB's class
_BROKEN_MATLAB = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, NotImplementedError, TypeError, ValueError,
    zlib.error,
)  # fmt: skip


def list_matlab(uri: str, version: int) -> list[found_array.FoundArray]:
    """Returns the arrays of numbers in a file, with shapes as MATLAB shows them.

    Raises:
        BrokenContentError: if the file is not MATLAB's, or not complete.
        ConfigError: if SciPy is not installed; for HDF5, h5py.
        OSError: if it cannot be read.
    """
    if _is_hdf5_inside(uri, version):
        listed = (each for each in list_hdf5(uri, version) if not each.name.startswith("#"))
        return [each._replace(shape=each.shape[::-1], order="F", start=-1) for each in listed]
    with _open_matlab(uri, version) as (matlab, file):
        return [
            found_array.FoundArray(name, shape, np.dtype(_DTYPES[kind]).str, "F")
            for name, shape, kind in matlab.whosmat(file)
            if kind in _DTYPES
        ]


def read_matlab(uri: str, version: int, array: found_array.FoundArray) -> Iterator[bytes]:
    """Yields the values of an array in their order, the first index fastest; errors are those of `list_matlab`."""
    if _is_hdf5_inside(uri, version):
        yield from read_hdf5(uri, version, array._replace(shape=array.shape[::-1]))
        return
    with _open_matlab(uri, version) as (matlab, file):
        found = matlab.loadmat(file, variable_names=[array.name]).get(array.name)
        if not isinstance(found, np.ndarray) or found.shape != array.shape:
            raise packed_file.broken(f"has no array {array.name!r} of the shape {array.shape} any more")
        if found.dtype.kind not in "iuf":
            raise packed_file.broken(f"has values of {found.dtype} in the array {array.name!r}; save real numbers")
    values = found.reshape(-1, order="F")
    at_once = packed_file.PIECE_BYTES // 8
    for start in range(0, len(values), at_once):  # stored in a smaller type if all values fit
        yield values[start : start + at_once].astype(array.dtype).tobytes()


def _is_hdf5_inside(uri: str, version: int) -> bool:
    with packed_file.open_version(uri, version) as file:
        return file.read(len(_MATLAB_HDF5)) == _MATLAB_HDF5


@contextlib.contextmanager
def _open_matlab(uri: str, version: int) -> Iterator[Any]:
    """Opens a file: yields scipy.io.matlab and the file; turns the errors of broken files into BrokenContentError."""
    with errors.imports_for(f"reading {uri!r}", "matlab"):
        from scipy.io import matlab
    try:
        with packed_file.open_version(uri, version) as file:
            yield matlab, file
    except (*_BROKEN_MATLAB, matlab.MatReadError) as e:
        raise _broken_matlab(e) from e
    except OSError as e:
        if e.errno is None and not isinstance(e, (storage.ChangedError, storage.UnavailableError)):
            raise _broken_matlab(e) from e  # SciPy's, of a file that ends too early
        raise


def _broken_matlab(error: Exception) -> OSError:
    return packed_file.broken(
        f"is not a complete .mat file ({' '.join(str(error).split())}); fetch it again, or save it by save('-v7', ...)"
    )
