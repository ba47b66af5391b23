"""Arrays in MATLAB's .mat files: of versions 4 to 7 by SciPy, and of version 7.3, which are HDF5.

An array is loaded whole. Structs, cells, texts and sparse arrays are skipped.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from imagebeam import errors, storage
from imagebeam.transforms.formats.arrays import found_array, hdf5_files

_HDF5 = b"MATLAB 7.3"
_INTEGERS = {f"{sign}int{bits}": f"<{sign or 'i'}{bits // 8}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_DTYPES = {"double": "<f8", "single": "<f4", "logical": "|u1", **_INTEGERS}  # by MATLAB's class
_BROKEN = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, NotImplementedError, TypeError, ValueError,
    zlib.error,
)  # fmt: skip


def list_arrays(uri: str, version: int) -> list[found_array.FoundArray]:
    """Returns the arrays of numbers in a file, with shapes as MATLAB shows them.

    Raises:
        BrokenContentError: if the file is not MATLAB's, or not complete.
        ConfigError: if SciPy is not installed; for HDF5, h5py.
        OSError: if it cannot be read.
    """
    if _is_hdf5(uri, version):
        listed = (each for each in hdf5_files.list_arrays(uri, version) if not each.name.startswith("#"))
        return [each._replace(shape=each.shape[::-1], order="F", start=-1) for each in listed]
    with _open(uri, version) as (matlab, file):
        return [
            found_array.FoundArray(name, shape, np.dtype(_DTYPES[kind]).str, "F")
            for name, shape, kind in matlab.whosmat(file)
            if kind in _DTYPES
        ]


def read_values(uri: str, version: int, array: found_array.FoundArray) -> Iterator[bytes]:
    """Yields the values of an array in their order, the first index fastest; errors are those of `list_arrays`."""
    if _is_hdf5(uri, version):
        yield from hdf5_files.read_values(uri, version, array._replace(shape=array.shape[::-1]))
        return
    with _open(uri, version) as (matlab, file):
        found = matlab.loadmat(file, variable_names=[array.name]).get(array.name)
        if not isinstance(found, np.ndarray) or found.shape != array.shape:
            raise found_array.broken(f"has no array {array.name!r} of the shape {array.shape} any more")
        if found.dtype.kind not in "iuf":
            raise found_array.broken(f"has values of {found.dtype} in the array {array.name!r}; save real numbers")
    values = found.reshape(-1, order="F")
    at_once = found_array.PIECE_BYTES // 8
    for start in range(0, len(values), at_once):  # stored in a smaller type if all values fit
        yield values[start : start + at_once].astype(array.dtype).tobytes()


def _is_hdf5(uri: str, version: int) -> bool:
    with found_array.open_version(uri, version) as file:
        return file.read(len(_HDF5)) == _HDF5


@contextlib.contextmanager
def _open(uri: str, version: int) -> Iterator[Any]:
    """Opens a file: yields scipy.io.matlab and the file; turns the errors of broken files into BrokenContentError."""
    with errors.imports_for(f"reading {uri!r}", "matlab"):
        from scipy.io import matlab
    try:
        with found_array.open_version(uri, version) as file:
            yield matlab, file
    except (*_BROKEN, matlab.MatReadError) as e:
        raise _broken(e) from e
    except OSError as e:
        if e.errno is None and not isinstance(e, (storage.ChangedError, storage.UnavailableError)):
            raise _broken(e) from e  # SciPy's, of a file that ends too early
        raise


def _broken(error: Exception) -> OSError:
    return found_array.broken(
        f"is not a complete .mat file ({' '.join(str(error).split())}); fetch it again, or save it by save('-v7', ...)"
    )
