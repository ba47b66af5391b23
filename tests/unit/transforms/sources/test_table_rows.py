from __future__ import annotations

import dataclasses
import itertools
import os
import struct
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.features import BYTES, FLOAT, INT64
from imagebeam.transforms.elements import ImageRef, Reason
from imagebeam.transforms.sources import table_rows
from imagebeam.transforms.sources.table_rows import Column, RowFields

REF = ImageRef("1.jpg", "/data/1.jpg", split="train", label="cat", columns=(7,))


def fill(cells: Mapping[str, Any], **fields: Any) -> ImageRef:
    return RowFields(**fields).fill(REF, cells)


def test_needed_columns_are_each_named_once() -> None:
    fields = RowFields(key="id", label="x", split="set", group="x", label_flags=("a",), columns=(Column("id", BYTES),))
    assert fields.needed == ("id", "x", "set", "a")
    assert table_rows.NO_FIELDS.needed == ()
    assert table_rows.NO_FIELDS.fill(REF, {"label": "dog"}) == REF


def test_labels_with_a_separator_are_a_tuple() -> None:
    for cell, expected in [
        ("cat|dog", ("cat", "dog")),
        (" cat | dog |", ("cat", "dog")),
        ("cat|cat", ("cat",)),
        ("", ()),
        (None, ()),
        (["cat", "dog"], ("cat", "dog")),
        ([], ()),
        (3, ("3",)),
    ]:
        assert fill({"tags": cell}, label="tags", label_separator="|").label == expected


def test_columns_of_flags_give_the_classes_that_are_set() -> None:
    for yes, no in itertools.product([1, "1", True, "TRUE", 1.0, " 1 "], [0, "0", False, -1, "-1", 0.0]):
        filled = fill({"smiling": yes, "bald": no, "young": yes}, label_flags=("bald", "smiling", "young"))
        assert filled.label == ("smiling", "young")
    for cell in ["", None, "yes", 2, "nan"]:
        with pytest.raises(table_rows.BadRowError, match=r"column 'bald': .* is neither 1 \(true\) nor 0") as caught:
            fill({"bald": cell}, label_flags=("bald",))
        assert caught.value.reason is Reason.BAD_VALUE


def test_parse_column_converts_a_cell_to_its_kind() -> None:
    for column, cell, expected in [
        (Column("x", BYTES, many=True), ["a", "b"], (b"a", b"b")),
        (Column("x", BYTES, many=True), "a, b", (b"a, b",)),
        (Column("x", BYTES, many=True, separator=","), "a, b", (b"a", b"b")),
        (Column("x", INT64, many=True), [1, "2", 3.0], (1, 2, 3)),
        (Column("x", FLOAT, many=True, separator=" "), "0.5 1", (0.5, 1.0)),
        (Column("x", FLOAT, many=True), None, ()),
        (Column("x", BYTES), "é", "é".encode()),
        (Column("x", BYTES), os.fsdecode(b"\xff"), b"\xff"),
        (Column("x", BYTES), b"\xff\x00", b"\xff\x00"),
        (Column("x", BYTES), 7, b"7"),
        (Column("x", INT64), 7, 7),
        (Column("x", INT64), 7.0, 7),
        (Column("x", INT64), "7", 7),
        (Column("x", FLOAT), 7, 7.0),
        (Column("x", FLOAT), 1e-7, 1e-7),
        (Column("x", FLOAT, positive=True), "1", 1.0),
    ]:
        parsed = table_rows.parse_column(column, cell)
        assert (parsed, type(parsed)) == (expected, type(expected))


def test_cell_without_a_value_is_handled_as_the_column_says() -> None:
    empty, log = "is empty", "'{}' has no logarithm; transform: log needs"
    for column, cells, detail in [
        (Column("x", BYTES), [None, "", float("nan"), b""], empty),
        (Column("x", INT64), [None, "", float("nan"), b""], empty),
        (Column("x", FLOAT), [None, "", float("nan"), b""], empty),
        (Column("x", FLOAT), ["nan", "old", "1e99"], ""),
        (Column("x", INT64, many=True), [[1, "two"]], "'two' is not an integer"),
        (Column("x", FLOAT, positive=True), ["0", "-1.5", "1e-40"], log),
        (Column("x", INT64, positive=True), ["0", "-3"], log),
    ]:
        for cell in cells:
            with pytest.raises(table_rows.BadRowError, match=f"^column 'x':? {detail.format(cell)}") as caught:
                table_rows.parse_column(column, cell)
            assert caught.value.reason is Reason.BAD_VALUE
            if not column.many and column.kind != BYTES:
                assert table_rows.parse_column(dataclasses.replace(column, missing="default", default=-1), cell) == -1
            strict = dataclasses.replace(column, missing="error")
            with pytest.raises(table_rows.MissingValueError, match=r"'x'.*columns.x.missing is error: correct it, or"):
                table_rows.parse_column(strict, cell)


def test_is_absolute_of_complete_addresses_only() -> None:
    for path, expected in [
        ("/a.jpg", True),
        ("gs://b/a.jpg", True),
        ("HDFS://n/a.jpg", True),
        ("file:///a.jpg", True),
        ("FILE://localhost/a.jpg", True),
        ("a.jpg", False),
        ("../a.jpg", False),
        ("~/a.jpg", False),  # in a table it is a name; a config expands it
        ("c:/a.jpg", False),
        ("", False),
    ]:
        assert table_rows.is_absolute(path) is expected


# ---- parse numbers


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


def test_is_number_takes_any_notation_and_no_name_of_a_column() -> None:
    for text in ["3", " -3 ", ".5", "1e3", "nan", "-Infinity", "1_000", "\u0663"]:
        assert table_rows.is_number(text)
    for text in ["", ".", "1,5", "0x10", "1st", "pixel0", "28x28", "True"]:
        assert not table_rows.is_number(text)
