from __future__ import annotations

import pathlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pydantic
import pytest

from imagebeam.transforms.formats import base_format, folder
from imagebeam.transforms.formats.tables import tables
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
def test_table_that_does_not_fit_its_options_is_an_error(
    tmp_path: pathlib.Path, options: dict[str, Any], code: str
) -> None:
    (tmp_path / "empty.csv").touch()
    (tmp_path / "t.csv").write_text("image\na.png\n")
    pq.write_table(pa.table({"image": [{"bytes": image_sets.make_image(1)}], "x": ["a.png"]}), tmp_path / "t.parquet")
    folder.save_listing(files.FilesSource(str(tmp_path)), None, str(tmp_path / "saved.jsonl"))
    wanted = pydantic.TypeAdapter(tables.Tables).validate_python(options)
    with error_texts.raises(code):
        wanted.open(base_format.Request(str(tmp_path), f"{tmp_path}-out"))
