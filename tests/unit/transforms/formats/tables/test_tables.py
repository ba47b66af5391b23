from __future__ import annotations

import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagebeam.pipelines import open_source
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms.formats import folder
from imagebeam.transforms.sources import files
from tests import error_texts


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("{}", "table-not-named"),
        ("{path: empty.csv}", "table-empty"),
        ("{path: saved.jsonl}", "table-is-listing"),
        ("{path: t.parquet}", "table-holds-images"),
        ("{path: t.parquet, image: x, encoding: latin-1}", "table-option-of-text"),
        ("{path: t.csv, items: rows}", "table-option-of-json"),
        ("{path: saved.jsonl, delimiter: ';'}", "table-option-of-csv"),
        ("{path: /data/*.csv}", "table-absolute-glob"),
        ("{path: '*.csv', image: null, files: '*.png'}", "table-glob-with-files"),
        ("{path: t.csv, image: null, files: a.png}", "table-files-no-glob"),
        ("{path: t.csv, image: null, files: none/*.png}", "folder-unreadable"),
        ("{path: t.csv, image: null, files: t.csv/*.png}", "table-files-not-folder"),
    ],
)
def test_table_that_does_not_fit_its_options_is_an_error(tmp_path: pathlib.Path, options: str, code: str) -> None:
    (tmp_path / "empty.csv").touch()
    (tmp_path / "t.csv").write_text("image\na.png\n")
    pq.write_table(pa.table({"image": [b"\x89PNG"], "x": ["a.png"]}), tmp_path / "t.parquet")
    folder.save_listing(files.FilesSource(str(tmp_path)), None, str(tmp_path / "saved.jsonl"))
    given = [f"source.uri={tmp_path}", f"output.uri={tmp_path}-out", "source.by=manifest", "label.by=none"]
    config = config_lib.load_config(None, [*given, f"source.manifest={options}"])
    with error_texts.raises(code):
        open_source.make_source(config)
