"""Reads the header of an array in NumPy's .npy format as NumPy does. Nothing is unpickled.

Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import math
import tokenize
import warnings
from typing import BinaryIO, NamedTuple

import numpy as np

_MAX_HEADER_BYTES = 10_000  # NumPy reads no longer one unless it is told to
_BROKEN = (
    ValueError, TypeError, SyntaxError, KeyError, RecursionError, MemoryError, tokenize.TokenError,
)  # fmt: skip
_MAX_DETAIL = 200  # characters of NumPy's error, which may quote the header


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
        ValueError: if it cannot be read, or states an impossible shape.
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
        raise ValueError(str(e)[:_MAX_DETAIL]) from e
    if any(not isinstance(side, int) or side < 0 for side in shape):
        raise ValueError(f"the shape {shape}"[:_MAX_DETAIL])
    return NpyHeader(tuple(shape), is_fortran, dtype)
