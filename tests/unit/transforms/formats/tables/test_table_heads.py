from __future__ import annotations

import pytest

from imagebeam.transforms.formats.tables import table_heads
from imagebeam.transforms.formats.tables.table_formats import TableFile

NEEDED = ("image", "label")
SET_THEM = "set source.manifest.image, label.column and the like"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["image;label"], "its first line is split by semicolons: set source.manifest.delimiter: ';'"),
        (["a.jpg", "cat"], "its first line is a row, not a header: set source.manifest.header: [image, label]"),
        (["cat", "a.jpg"], "its first line is a row, not a header: set source.manifest.header: [label, image]"),
        pytest.param(
            ["a.jpg", "cat", "7"],
            "its first line is a row, not a header: set source.manifest.header: [...], a name for each of its 3 "
            "columns, 'image', 'label' among them",
            id="no-header-more-columns",
        ),
        (["Image", "labels"], f"'image' may be 'Image'; 'label' may be 'labels'; {SET_THEM}"),
        pytest.param(["x", "y"], SET_THEM, id="other-names"),
    ],
)
def test_advice_names_the_setting_that_helps(names: list[str], expected: str) -> None:
    missing = [name for name in NEEDED if name not in names]
    assert table_heads.hint_on_columns(TableFile("/t.csv", "csv"), names, missing, NEEDED) == expected


@pytest.mark.parametrize(
    "table",
    [TableFile("/t.jsonl", "jsonl"), TableFile("/t.csv", "csv", header=("a.jpg", "cat"))],
    ids=["json-lines", "header-is-given"],
)
def test_advice_on_a_table_whose_names_are_no_first_line_is_on_spelling_alone(table: TableFile) -> None:
    assert table_heads.hint_on_columns(table, ["a.jpg", "cat"], list(NEEDED), NEEDED) == SET_THEM
