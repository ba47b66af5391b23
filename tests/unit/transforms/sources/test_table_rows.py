from __future__ import annotations

import dataclasses
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


def test_fill_without_fields_changes_nothing() -> None:
    assert table_rows.NO_FIELDS.fill(REF, {"label": "dog"}) == REF
    assert table_rows.NO_FIELDS.needed == ()


def test_needed_columns_are_each_named_once() -> None:
    fields = RowFields(key="id", label="x", split="set", group="x", label_flags=("a",), columns=(Column("id", BYTES),))
    assert fields.needed == ("id", "x", "set", "a")


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("cat|dog", ("cat", "dog")),
        (" cat | dog |", ("cat", "dog")),
        ("cat|cat", ("cat",)),
        ("", ()),
        (None, ()),
        (["cat", "dog"], ("cat", "dog")),
        ([], ()),
        (3, ("3",)),
    ],
    ids=repr,
)
def test_labels_with_a_separator_are_a_tuple(cell: object, expected: tuple[str, ...]) -> None:
    assert fill({"tags": cell}, label="tags", label_separator="|").label == expected


@pytest.mark.parametrize("yes", [1, "1", True, "TRUE", 1.0, " 1 "], ids=repr)
@pytest.mark.parametrize("no", [0, "0", False, -1, "-1", 0.0], ids=repr)
def test_columns_of_flags_give_the_classes_that_are_set(yes: object, no: object) -> None:
    filled = fill({"smiling": yes, "bald": no, "young": yes}, label_flags=("bald", "smiling", "young"))
    assert filled.label == ("smiling", "young")


@pytest.mark.parametrize("cell", ["", None, "yes", 2, "nan"], ids=repr)
def test_flag_that_is_neither_is_a_bad_row(cell: object) -> None:
    with pytest.raises(table_rows.BadRowError, match=r"column 'bald': .* is neither 1 \(true\) nor 0") as caught:
        fill({"bald": cell}, label_flags=("bald",))
    assert caught.value.reason is Reason.BAD_VALUE


@pytest.mark.parametrize(
    ("column", "cell", "expected"),
    [
        (Column("x", BYTES, many=True), ["a", "b"], (b"a", b"b")),
        (Column("x", BYTES, many=True), "a, b", (b"a, b",)),
        (Column("x", BYTES, many=True, separator=","), "a, b", (b"a", b"b")),
        (Column("x", INT64, many=True), [1, "2", 3.0], (1, 2, 3)),
        (Column("x", FLOAT, many=True, separator=" "), "0.5 1", (0.5, 1.0)),
        (Column("x", FLOAT, many=True), None, ()),
    ],
    ids=str,
)
def test_column_of_many_values_is_a_tuple(column: Column, cell: object, expected: tuple[Any, ...]) -> None:
    assert table_rows.parse_column(column, cell) == expected


def test_list_with_a_value_of_another_kind_is_a_bad_row() -> None:
    with pytest.raises(table_rows.BadRowError, match=r"^column 'x': 'two' is not an integer$"):
        table_rows.parse_column(Column("x", INT64, many=True), [1, "two"])


@pytest.mark.parametrize("cell", [None, "", "nan", "old", "1e99"], ids=repr)
def test_missing_value_is_handled_as_the_column_says(cell: object) -> None:
    with pytest.raises(table_rows.BadRowError) as caught:
        table_rows.parse_column(Column("age", FLOAT), cell)
    assert caught.value.reason is Reason.BAD_VALUE
    assert table_rows.parse_column(Column("age", FLOAT, missing="default", default=-1), cell) == -1.0
    with pytest.raises(
        table_rows.MissingValueError, match=r"^column 'age'.*columns.age.missing is error: correct it, or"
    ):
        table_rows.parse_column(Column("age", FLOAT, missing="error"), cell)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (BYTES, "é", "é".encode()),
        (BYTES, os.fsdecode(b"\xff"), b"\xff"),
        (BYTES, b"\xff\x00", b"\xff\x00"),
        (BYTES, 7, b"7"),
        (INT64, 7, 7),
        (INT64, 7.0, 7),
        (INT64, "7", 7),
        (FLOAT, 7, 7.0),
        (FLOAT, 1e-7, 1e-7),
    ],
)
def test_parse_column_converts_a_cell_to_its_kind(kind: str, value: object, expected: object) -> None:
    parsed = table_rows.parse_column(Column("x", kind), value)
    assert (parsed, type(parsed)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("kind", "value"), [(FLOAT, "0"), (FLOAT, "-1.5"), (FLOAT, "1e-40"), (INT64, "0"), (INT64, "-3")]
)
def test_parse_column_that_must_be_positive_rejects_numbers_without_logarithm(kind: str, value: str) -> None:
    column = Column("x", kind, positive=True)
    with pytest.raises(table_rows.BadRowError, match=f"^column 'x': '{value}' has no logarithm; transform: log needs"):
        table_rows.parse_column(column, value)
    assert table_rows.parse_column(dataclasses.replace(column, missing="default", default=2), value) == 2
    assert table_rows.parse_column(column, "1") == 1


@pytest.mark.parametrize("value", [None, "", float("nan"), b""], ids=repr)
@pytest.mark.parametrize("kind", [BYTES, INT64, FLOAT])
def test_parse_column_of_an_empty_cell_is_an_error(kind: str, value: object) -> None:
    with pytest.raises(table_rows.BadRowError, match=r"^column 'x' is empty$") as caught:
        table_rows.parse_column(Column("x", kind), value)
    assert caught.value.reason is Reason.BAD_VALUE


@pytest.mark.parametrize(
    ("path", "expected"),
    [
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
    ],
)
def test_is_absolute_of_complete_addresses_only(path: str, expected: bool) -> None:
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


def test_is_number_takes_any_notation() -> None:
    for text in ["3", " -3 ", ".5", "1e3", "nan", "-Infinity", "1_000", "\u0663"]:
        assert table_rows.is_number(text)


def test_is_number_takes_no_name_of_a_column() -> None:
    for text in ["", ".", "1,5", "0x10", "1st", "pixel0", "28x28", "True"]:
        assert not table_rows.is_number(text)
