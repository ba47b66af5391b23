from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from imagebeam.features import BYTES, FLOAT, INT64
from imagebeam.transforms.elements import ImageRef, Reason
from imagebeam.transforms.sources import table_rows
from imagebeam.transforms.sources.table_rows import Column, RowFields

REF = ImageRef("1.jpg", "/data/1.jpg", split="train", label="cat", columns=(7,))


def fill(cells: Mapping[str, Any], **fields: Any) -> ImageRef:
    return RowFields(**fields).fill(REF, cells)


def test_without_fields_the_reference_stays_as_it_is() -> None:
    assert table_rows.NO_FIELDS.fill(REF, {"label": "dog"}) == REF
    assert table_rows.NO_FIELDS.needed == ()


def test_cells_give_label_split_and_group() -> None:
    filled = fill({"class": "dog", "set": "test", "patient": 12}, label="class", split="set", group="patient")
    assert (filled.label, filled.split, filled.group) == ("dog", "test", "12")


def test_values_of_columns_follow_those_of_the_source() -> None:
    columns = (Column("age", INT64), Column("dose", FLOAT), Column("note", BYTES))
    filled = fill({"age": "30", "dose": 0.5, "note": "ü"}, columns=columns)
    assert filled.columns == (7, 30, 0.5, "ü".encode())


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
def test_columns_of_flags_are_the_classes_that_are_set(yes: object, no: object) -> None:
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
def test_missing_value_is_what_the_column_says(cell: object) -> None:
    with pytest.raises(table_rows.BadRowError) as caught:
        table_rows.parse_column(Column("age", FLOAT), cell)
    assert caught.value.reason is Reason.BAD_VALUE
    assert table_rows.parse_column(Column("age", FLOAT, missing="default", default=-1), cell) == -1.0
    with pytest.raises(
        table_rows.MissingValueError, match=r"^column 'age'.*columns.age.missing is error: correct it, or"
    ):
        table_rows.parse_column(Column("age", FLOAT, missing="error"), cell)
