"""Tables as published sets have them: aligned columns, lines above the header, `1.jpg#0`, paths of Windows, x1..y68."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from imagebeam import errors
from imagebeam.pipelines.config import model as config_lib
from tests import datasets, error_texts, image_sets

NAMES = ("1.jpg", "2.jpg")
CELEBA = "2\nSmiling Male\n1.jpg  1 -1\n2.jpg -1  1 \n"
FLICKR = "1.jpg#0\ta dog\n1.jpg#1\ta brown dog\n2.jpg#0\ttwo boats\n"
WINDOWS = 'name,label\n"C:\\photos\\1.jpg",cat\n"D:\\new, photos\\2.jpg",dog\n'
MARKS = "image,x1,y1,x2,y2,age\n1.jpg,1,2,3,4,9\n2.jpg,5,6,7,,9\n"


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    for n, name in enumerate(NAMES):
        (tmp_path / name).write_bytes(image_sets.make_image(n))
    return tmp_path


def convert(folder: pathlib.Path, table: str, manifest: dict[str, Any], **sections: Any) -> list[dict[str, Any]]:
    """Converts the images of a table; returns the examples in the order of their keys."""
    (folder / "table.csv").write_text(table)
    sections = {"label": {"by": "none"}, "split": {"by": "none"}, "rejects": {"max_fraction": 1}, **sections}
    source = {"by": "manifest", "manifest": {"image": "image", **manifest}}
    datasets.make(folder / "table.csv", folder / "out", source=source, **sections)
    return sorted(datasets.read_lists(folder / "out"), key=lambda each: each["image/key"])


def test_aligned_columns_below_a_line_with_a_number_have_the_image_without_a_name(folder: pathlib.Path) -> None:
    columns = {"Smiling": {"type": "int"}, "Male": {"type": "int"}}
    found = convert(folder, CELEBA, {"delimiter": "whitespace", "skip_rows": 1}, columns=columns)
    assert [(each["Smiling"], each["Male"]) for each in found] == [([1], [-1]), ([-1], [1])]


def test_rows_of_one_image_with_numbers_behind_its_name_are_merged(folder: pathlib.Path) -> None:
    manifest = {"delimiter": "\t", "header": ["image", "text"], "image_pattern": r"(.*)#\d", "merge_rows": True}
    found = convert(folder, FLICKR, manifest, columns={"text": {"list": True}})
    assert [each["text"] for each in found] == [[b"a dog", b"a brown dog"], [b"two boats"]]


def test_quotes_of_a_text_stay_where_that_is_asked_for(folder: pathlib.Path) -> None:
    manifest = {"delimiter": "\t", "header": ["image", "text"]}
    table = '1.jpg\t"Well done\n2.jpg\the said"\n'
    with pytest.raises(errors.ConfigError, match=r"set source\.manifest\.quotes: false"):
        convert(folder, table + '1.jpg\t"', manifest, columns={"text": {}})
    found = convert(folder, table, {**manifest, "quotes": False}, columns={"text": {}})
    assert [each["text"] for each in found] == [[b'"Well done'], [b'he said"']]


def test_names_of_foreign_paths_are_looked_for_in_the_folder(folder: pathlib.Path) -> None:
    manifest = {"image": "name", "image_pattern": r"(?:.*[\\/])?([^\\/]+)"}
    found = convert(folder, WINDOWS, manifest, label={"by": "column", "column": "label"})
    assert [each["image/class/text"] for each in found] == [[b"cat"], [b"dog"]]


def test_cell_that_does_not_match_is_a_reject_that_names_its_line(folder: pathlib.Path) -> None:
    convert(folder, "image\n1.jpg#0\n2.jpg\n", {"image_pattern": r"(.*)#\d"})
    (reject,) = (folder / "out" / "rejects.jsonl").read_text().splitlines()
    assert "line 3 of " in reject and "'2.jpg' does not match source.manifest.image_pattern" in reject


def test_consecutive_columns_are_one_list_and_an_empty_one_is_a_reject(folder: pathlib.Path) -> None:
    points = {"first": "x1", "last": "y2", "list": True, "type": "float"}
    (found,) = convert(folder, MARKS, {}, columns={"points": points})
    np.testing.assert_array_equal(found["points"], [1, 2, 3, 4])
    assert datasets.rejects(folder / "out") == {"2.jpg": "bad_value"}


@pytest.mark.parametrize(("first", "last"), [("x1", "z"), ("y2", "x1")])
def test_columns_that_are_not_there_in_this_order_are_an_error(folder: pathlib.Path, first: str, last: str) -> None:
    with error_texts.raises("table-no-such-span"):
        convert(folder, MARKS, {}, columns={"points": {"first": first, "last": last, "list": True}})


def test_lines_are_counted_with_those_that_are_skipped(folder: pathlib.Path) -> None:
    convert(folder, "a\nb\nimage,label\n1.jpg,cat\n2.jpg,cat,odd\n", {"skip_rows": 2})
    assert "line 5 of " in (folder / "out" / "rejects.jsonl").read_text()


def test_options_that_cannot_be_meant_are_refused() -> None:
    for overrides in [
        ["source.manifest.delimiter=ab"],
        ["source.manifest.image_pattern=x"],
        ["source.manifest.image_pattern=(x"],
        ["source.manifest.image={id}.jpg", "source.manifest.image_pattern=(x)"],
        ["columns={a: {first: x}}"],
        ["columns={a: {first: x, last: y}}"],
        ["columns={a: {first: x, last: y, list: true, separator: ' '}}"],
        ["source.by=tar", "columns={a: {first: x, last: y, list: true}}"],
    ]:
        with error_texts.raises("config-invalid"):
            config_lib.load_config(None, ["source.by=manifest", *overrides])
