"""Parses numbers in the cells of tables, and knows which texts are numbers."""

from __future__ import annotations

import re

from imagebeam import features

_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
# pandas writes the integer 3 as 3.0 in a column with missing values.
_INTEGER = re.compile(r"[+-]?\d+(\.0+)?", re.ASCII)
_FLOAT32_LIMIT = 2.0**128 - 2.0**103  # this and all above round to infinity in 32 bits
_FLOAT32_NOTHING = 2.0**-150  # this and all below round to zero in 32 bits


def is_number(text: str) -> bool:
    """Returns whether a text is a number in any notation, also `nan`."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def parse_number(kind: str, text: str) -> int | float:
    """Parses an int64, or a float that is finite in 32 bits.

    Raises:
        ValueError: if `text` is not such a number.
    """
    text = text.strip()
    if kind == features.FLOAT:
        if not _FLOAT.fullmatch(text):  # float() would also take nan, inf and 1_000
            raise ValueError(f"{text!r} is not a finite number")
        number = float(text)
        if abs(number) >= _FLOAT32_LIMIT:
            raise ValueError(f"{text!r} does not fit into a 32-bit float")
        if abs(number) <= _FLOAT32_NOTHING and text.lower().partition("e")[0].strip("+-0."):
            raise ValueError(f"{text!r} does not fit into a 32-bit float, which would hold 0 instead")
        return number
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{text!r} is not an integer")
    integer = int(text.partition(".")[0])
    if not features.check_value(features.INT64, integer):
        raise ValueError(f"{text!r} does not fit into 64 bits")
    return integer
