from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.features import FLOAT, INT64
from imagebeam.transforms.sources import table_rows

NOT_AN_INTEGER, NOT_FINITE = "is not an integer", "is not a finite number"


def test_parse_number_accepts_only_finite_numbers() -> None:
    for text, integer, number in [
        ("3", 3, 3.0),
        (" -3 ", -3, -3.0),
        ("+3", 3, 3.0),
        ("007", 7, 7.0),
        ("3.0", 3, 3.0),
        ("-0", 0, -0.0),
        ("3.", NOT_AN_INTEGER, 3.0),
        (".5", NOT_AN_INTEGER, 0.5),
        ("3.5", NOT_AN_INTEGER, 3.5),
        ("1e3", NOT_AN_INTEGER, 1000.0),
        ("1E-400", NOT_AN_INTEGER, "does not fit into a 32-bit float, which would hold 0 instead"),
        ("7e-46", NOT_AN_INTEGER, "does not fit into a 32-bit float, which would hold 0 instead"),
        ("-0.0007e-42", NOT_AN_INTEGER, "does not fit into a 32-bit float, which would hold 0 instead"),
        ("8e-46", NOT_AN_INTEGER, 8e-46),
        ("0e7", NOT_AN_INTEGER, 0.0),
        ("0.00", 0, 0.0),
        ("9223372036854775807", 2**63 - 1, 2.0**63),
        ("-9223372036854775808", -(2**63), -(2.0**63)),
        ("9223372036854775808", "does not fit into 64 bits", 2.0**63),
        ("9" * 30, "does not fit into 64 bits", 1e30),
        ("9" * 5000, "(limit|does not fit)", "does not fit into a 32-bit float"),
        ("3.4028234e38", NOT_AN_INTEGER, 3.4028234e38),
        ("3.4028236e38", NOT_AN_INTEGER, "does not fit into a 32-bit float"),
        ("-1e39", NOT_AN_INTEGER, "does not fit into a 32-bit float"),
        ("1e999", NOT_AN_INTEGER, "does not fit into a 32-bit float"),
        ("nan", NOT_AN_INTEGER, NOT_FINITE),
        ("inf", NOT_AN_INTEGER, NOT_FINITE),
        ("-Infinity", NOT_AN_INTEGER, NOT_FINITE),
        ("1_000", NOT_AN_INTEGER, NOT_FINITE),
        ("1,5", NOT_AN_INTEGER, NOT_FINITE),
        ("0x10", NOT_AN_INTEGER, NOT_FINITE),
        ("\u0663", NOT_AN_INTEGER, NOT_FINITE),
        ("", NOT_AN_INTEGER, NOT_FINITE),
        (".", NOT_AN_INTEGER, NOT_FINITE),
        ("True", NOT_AN_INTEGER, NOT_FINITE),
    ]:
        for kind, expected in ((INT64, integer), (FLOAT, number)):
            if isinstance(expected, str):
                with pytest.raises(ValueError, match=expected):
                    table_rows.parse_number(kind, text)
            else:
                parsed = table_rows.parse_number(kind, text)
                assert (parsed, type(parsed)) == (expected, type(expected))


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70))
def test_parse_number_returns_a_storable_number_or_raises(value: float | int) -> None:
    for kind, store in ((INT64, struct.Struct("<q")), (FLOAT, struct.Struct("<f"))):
        try:
            number = table_rows.parse_number(kind, str(value))
        except ValueError:
            continue
        assert number == (value if kind == INT64 else float(value))
        (stored,) = store.unpack(store.pack(number))
        assert bool(stored) == bool(value)


def test_is_number_takes_any_notation() -> None:
    for text in ["3", " -3 ", ".5", "1e3", "nan", "-Infinity", "1_000", "\u0663"]:
        assert table_rows.is_number(text)


def test_is_number_takes_no_name_of_a_column() -> None:
    for text in ["", ".", "1,5", "0x10", "1st", "pixel0", "28x28", "True"]:
        assert not table_rows.is_number(text)
