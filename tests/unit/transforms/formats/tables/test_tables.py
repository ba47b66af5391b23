from __future__ import annotations

import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pydantic

from imagebeam.transforms.formats import base_format, folder
from imagebeam.transforms.formats.tables import table_hints, tables
from imagebeam.transforms.formats.tables.table_formats import TableFile
from imagebeam.transforms.sources import files
from tests import case_tables, error_texts, image_sets


def test_table_without_named_parts_is_an_error(tmp_path: pathlib.Path) -> None:
    for options, code in [
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
    ]:
        root = case_tables.new_folder(tmp_path)
        (root / "empty.csv").touch()
        (root / "t.csv").write_text("image\na.png\n")
        pq.write_table(pa.table({"image": [{"bytes": image_sets.make_image(1)}], "x": ["a.png"]}), root / "t.parquet")
        folder.save_listing(files.FilesSource(str(root)), None, str(root / "saved.jsonl"))
        wanted = pydantic.TypeAdapter(tables.Tables).validate_python(options)
        with error_texts.raises(code):
            wanted.open(base_format.Request(str(root), f"{root}-out"))


# --- heads of tables -------------------------------------------------------------------------------------------------


NEEDED = ("image", "label")
SET_THEM = "set source.manifest.image, label.column and the like"


def test_advice_names_the_setting_that_helps() -> None:
    for names, expected in [
        (["image;label"], "its first line is split by semicolons: set source.manifest.delimiter: ';'"),
        (["a.jpg", "cat"], "its first line is a row, not a header: set source.manifest.header: [image, label]"),
        (["cat", "a.jpg"], "its first line is a row, not a header: set source.manifest.header: [label, image]"),
        (
            ["a.jpg", "cat", "7"],
            "its first line is a row, not a header: set source.manifest.header: [...], a name for each of its 3 "
            "columns, 'image', 'label' among them",
        ),  # no-header-more-columns
        (["Image", "labels"], f"'image' may be 'Image'; 'label' may be 'labels'; {SET_THEM}"),
        (["x", "y"], SET_THEM),  # other-names
    ]:
        missing = [name for name in NEEDED if name not in names]
        assert table_hints.hint_on_columns(TableFile("/t.csv", "csv"), names, missing, NEEDED) == expected


def test_advice_on_a_table_whose_names_are_no_first_line_is_on_spelling_alone() -> None:
    for table in [TableFile("/t.jsonl", "jsonl"), TableFile("/t.csv", "csv", header=("a.jpg", "cat"))]:
        assert table_hints.hint_on_columns(table, ["a.jpg", "cat"], list(NEEDED), NEEDED) == SET_THEM
