"""Reads the header of an array in NumPy's .npy format as NumPy does, and its numbers. Nothing is unpickled.

Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import io
import math
import tokenize
import warnings
from typing import BinaryIO, NamedTuple

import numpy as np

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image
from imagebeam.transforms.images.checked_image import BadImageError

_MAX_HEADER_BYTES = 10_000  # NumPy reads no longer one unless it is told to
_BROKEN = (
    ValueError, TypeError, SyntaxError, KeyError, RecursionError, MemoryError, tokenize.TokenError,
)  # fmt: skip
_MAX_DETAIL = 200  # characters of NumPy's error, which may quote the header


class BrokenHeaderError(ValueError):
    """A header cannot be read, or states an impossible shape."""


class NpyHeader(NamedTuple):
    """Form of the values that follow a header."""

    shape: tuple[int, ...]
    is_fortran: bool  # whether the first index changes fastest
    dtype: np.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of the values."""
        return math.prod(self.shape) * self.dtype.itemsize


def read(file: BinaryIO) -> NpyHeader:
    """Reads a header; afterwards `file` is at the first value.

    Raises:
        BrokenHeaderError: if it is not valid.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # headers that Python 2 wrote
            major = np.lib.format.read_magic(file)[0]
            parse = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}.get(major)
            if parse is None:
                raise ValueError(f"version {major} of the format")
            shape, is_fortran, dtype = parse(file, max_header_size=_MAX_HEADER_BYTES)
    except _BROKEN as e:
        raise BrokenHeaderError(str(e)[:_MAX_DETAIL]) from e
    if any(not isinstance(side, int) or side < 0 for side in shape):
        raise BrokenHeaderError(f"the shape {shape}"[:_MAX_DETAIL])
    return NpyHeader(tuple(shape), is_fortran, dtype)


_NUMBERS = "biuf"  # kinds of types


def read_array(data: bytes) -> np.ndarray:
    """Returns the array of numbers in a .npy file, without a copy.

    Raises:
        BadImageError: if the file is no plain array of numbers, or has another length than its header says.
    """
    file = io.BytesIO(data)
    try:
        header = read(file)
    except BrokenHeaderError as e:
        raise checked_image.corrupt(f"its .npy header cannot be read: {e}") from e
    dtype = header.dtype
    if dtype.kind not in _NUMBERS:
        what = "Python objects, which are never unpickled" if dtype.hasobject else str(dtype)
        raise checked_image.unsupported(f"a .npy file of {what}", "save an array of integers")
    rest = len(data) - file.tell()
    if rest != header.num_bytes:
        found = f"{rest:,} bytes follow the .npy header, its shape {header.shape} of {dtype} takes {header.num_bytes:,}"
        raise BadImageError(Reason.TRUNCATED if rest < header.num_bytes else Reason.CORRUPT, found)
    array = np.frombuffer(data, dtype, offset=file.tell())
    return array.reshape(header.shape, order="F" if header.is_fortran else "C")
