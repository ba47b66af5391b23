"""The array in a .npy file: its header is matched, never evaluated, and nothing is unpickled.

Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import math
import re
import struct
from typing import TYPE_CHECKING

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image
from imagebeam.transforms.images.checked_image import BadImageError

if TYPE_CHECKING:
    import numpy as np

SIGNATURE = b"\x93NUMPY"

_VERSION_BYTES = 2
_LENGTHS = {1: struct.Struct("<H"), 2: struct.Struct("<I"), 3: struct.Struct("<I")}  # of the header, by version
_MAX_HEADER_BYTES = 10_000  # NumPy itself reads no longer one
_HEADER = re.compile(
    rb"""\s*\{\s*['"]descr['"]\s*:\s*['"](?P<descr>[^'"]{1,32})['"]\s*,"""
    rb"""\s*['"]fortran_order['"]\s*:\s*(?P<fortran>True|False)\s*,"""
    rb"""\s*['"]shape['"]\s*:\s*\((?P<shape>[\d\s,L]*)\)\s*,?\s*\}\s*"""
)
_PLAIN = re.compile(r"[<>|=]?[biuf]\d{1,2}")
_MAX_AXES = 8
_MAX_DIGITS = 18  # of a side


def read(data: bytes) -> np.ndarray:
    """Returns the array of numbers in a .npy file, without a copy.

    Raises:
        BadImageError: if the file is no plain array of numbers, or has another length than its header says.
    """
    import numpy as np

    start = len(SIGNATURE) + _VERSION_BYTES
    length = _LENGTHS.get(data[len(SIGNATURE)]) if len(data) > start else None
    if length is None or len(data) < start + length.size:
        raise checked_image.corrupt("it begins as .npy, and its version is none of 1, 2 and 3")
    (header_bytes,) = length.unpack_from(data, start)
    start += length.size
    if header_bytes > min(_MAX_HEADER_BYTES, len(data) - start):
        raise checked_image.corrupt(f"its .npy header has {header_bytes:,} bytes, and the file {len(data):,}")
    header = data[start : start + header_bytes]
    match = _HEADER.fullmatch(header)
    if match is None:
        raise checked_image.corrupt(f"its .npy header is not that of a plain array: {header[:60]!r}")
    descr = match["descr"].decode("ascii", "replace")
    if not _PLAIN.fullmatch(descr):
        what = "Python objects, which are never unpickled" if descr.endswith("O") else descr
        raise checked_image.unsupported(f"a .npy file of {what}", "save an array of integers")
    sides = [side.strip().rstrip(b"L") for side in match["shape"].split(b",")]
    if sides[-1] == b"":  # as after "3," of one axis
        sides.pop()
    if not all(side.isdigit() and len(side) <= _MAX_DIGITS for side in sides) or len(sides) > _MAX_AXES:
        raise checked_image.corrupt(f"its .npy header has the shape ({match['shape'].decode('ascii')[:60]})")
    shape = tuple(map(int, sides))
    try:
        dtype = np.dtype(descr)
    except TypeError as e:
        raise checked_image.corrupt(f"its .npy header names the type {descr!r}") from e
    expected = math.prod(shape) * dtype.itemsize
    start += header_bytes
    if len(data) - start != expected:
        found = f"{len(data) - start:,} bytes follow the .npy header, its shape {shape} of {dtype} takes {expected:,}"
        raise BadImageError(Reason.TRUNCATED if len(data) - start < expected else Reason.CORRUPT, found)
    array = np.frombuffer(data, dtype, offset=start)
    return array.reshape(shape, order="F" if match["fortran"] == b"True" else "C")
