from __future__ import annotations

import pathlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pydantic
import pytest

from imagebeam.transforms.formats import base_format, folder
from imagebeam.transforms.formats.tables import table_hints, tables
from imagebeam.transforms.formats.tables.table_formats import TableFile
from imagebeam.transforms.sources import files
from tests import error_texts, image_sets


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({}, "table-not-named"),
        ({"path": "empty.csv"}, "table-empty"),
        ({"path": "saved.jsonl"}, "table-is-listing"),
        ({"path": "t.parquet"}, "table-holds-images"),
        ({"path": "t.parquet", "image": "x", "encoding": "latin-1"}, "table-option-of-text"),
        ({"path": "t.csv", "items": "rows"}, "table-option-of-json"),
        ({"path": "saved.jsonl", "delimiter": ";"}, "table-option-of-csv"),
        ({"path": "/data/*.csv"}, "table-absolute-glob"),
        ({"path": "*.csv", "image": None, "files": "*.png"}, "table-glob-with-files"),
        ({"path": "t.csv", "image": None, "files": "a.png"}, "table-files-no-glob"),
        ({"path": "t.csv", "image": None, "files": "none/*.png"}, "table-files-not-folder"),
    ],
)
def test_table_without_named_parts_is_an_error(tmp_path: pathlib.Path, options: dict[str, Any], code: str) -> None:
    (tmp_path / "empty.csv").touch()
    (tmp_path / "t.csv").write_text("image\na.png\n")
    pq.write_table(pa.table({"image": [{"bytes": image_sets.make_image(1)}], "x": ["a.png"]}), tmp_path / "t.parquet")
    folder.save_listing(files.FilesSource(str(tmp_path)), None, str(tmp_path / "saved.jsonl"))
    wanted = pydantic.TypeAdapter(tables.Tables).validate_python(options)
    with error_texts.raises(code):
        wanted.open(base_format.Request(str(tmp_path), f"{tmp_path}-out"))


# --- heads of tables -------------------------------------------------------------------------------------------------


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
    assert table_hints.hint_on_columns(TableFile("/t.csv", "csv"), names, missing, NEEDED) == expected


@pytest.mark.parametrize(
    "table",
    [TableFile("/t.jsonl", "jsonl"), TableFile("/t.csv", "csv", header=("a.jpg", "cat"))],
    ids=["json-lines", "header-is-given"],
)
def test_advice_on_a_table_whose_names_are_no_first_line_is_on_spelling_alone(table: TableFile) -> None:
    assert table_hints.hint_on_columns(table, ["a.jpg", "cat"], list(NEEDED), NEEDED) == SET_THEM
