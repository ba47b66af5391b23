"""The array of numbers in a .npy file. Nothing is unpickled."""

from __future__ import annotations

import io

import numpy as np

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, npy_header
from imagebeam.transforms.images.checked_image import BadImageError

_NUMBERS = "biuf"  # kinds of types


def read(data: bytes) -> np.ndarray:
    """Returns the array of numbers in a .npy file, without a copy.

    Raises:
        BadImageError: if the file is no plain array of numbers, or has another length than its header says.
    """
    file = io.BytesIO(data)
    try:
        header = npy_header.read(file)
    except npy_header.BrokenHeaderError as e:
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
