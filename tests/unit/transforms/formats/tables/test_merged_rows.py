from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from imagebeam.features import BYTES
from imagebeam.transforms.formats.tables import row_steps
from imagebeam.transforms.formats.tables.table_formats import RowPlace
from imagebeam.transforms.sources.table_rows import Column, RowFields

FIELDS = RowFields(split="set", columns=(Column("caption", BYTES, many=True),))


def merged(rows: Sequence[Any], fields: RowFields = FIELDS) -> list[tuple[int, Any]]:
    """Merges rows; returns each with its position."""
    placed = [(RowPlace(position, "line", position + 2), row) for position, row in enumerate(rows)]
    return [(place.position, row) for place, row in row_steps.merge_rows(placed, "image", fields)]


def row(image: str, caption: Any, split: Any = "train") -> dict[str, Any]:
    return {"image": image, "caption": caption, "set": split}


def test_consecutive_rows_of_an_image_are_merged() -> None:
    found = merged([row("a", "1"), row("a", ["2", "3"]), row("a", ""), row("b", "4"), row("a", "5")])
    assert found == [(0, row("a", ["1", "2", "3"])), (3, row("b", "4")), (4, row("a", "5"))]


def test_merge_of_no_rows_yields_no_rows() -> None:
    assert merged([]) == []


def test_text_with_a_separator_is_split() -> None:
    fields = RowFields(label="tags", label_separator="|")
    rows = [{"image": "a", "tags": "x|y"}, {"image": "a", "tags": None}, {"image": "a", "tags": "y"}]
    assert merged(rows, fields) == [(0, {"image": "a", "tags": ["x", "y", "y"]})]


def test_unused_columns_may_differ_and_empty_cells_are_equal() -> None:
    rows = [{**row("a", "1", None), "id": 1}, {**row("a", "2", ""), "id": 2}]
    assert merged(rows) == [(0, {**row("a", ["1", "2"], None), "id": 1})]


def test_rows_that_differ_in_a_single_value_are_a_conflict_that_names_the_first_pair() -> None:
    ((number, found),) = merged([row("a", "1"), row("a", "2", "test"), row("a", "3", "x")])
    assert number == 0
    assert isinstance(found, row_steps.Conflict)
    assert found.cells["image"] == "a"
    assert found.detail.startswith(
        "line 2 and line 3 are of one image, and column 'set' is 'train' in one and 'test' in"
    )


def test_row_that_cannot_be_parsed_is_passed_on_and_ends_no_group() -> None:
    assert merged([row("a", "1"), "broken", row("a", "2")]) == [(1, "broken"), (0, row("a", ["1", "2"]))]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.text(min_size=1), max_size=3))))
def test_no_value_is_lost_or_moved(pairs: list[tuple[str, list[str]]]) -> None:
    found = merged([row(image, captions) for image, captions in pairs])
    images = [cells["image"] for _, cells in found]
    assert all(one != other for one, other in itertools.pairwise(images))
    flat = [(cells["image"], caption) for _, cells in found for caption in cells["caption"]]
    assert flat == [(image, caption) for image, captions in pairs for caption in captions]
