"""Sidecars: files beside the images as their columns, by whole conversions."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from imagebeam.pipelines import convert
from imagebeam.pipelines.config import model as config_lib
from tests import case_tables, datasets, error_texts, image_sets

NUMBERS = range(3)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "in").mkdir()
    for n in NUMBERS:
        (tmp_path / "in" / f"{n}.jpg").write_bytes(image_sets.make_image(n))
        (tmp_path / "in" / f"{n}.txt").write_text(f"picture {n}\r\n")
        (tmp_path / "in" / f"{n}.json").write_text(json.dumps({"class": f"c{n % 2}", "size": {"width": n}}))
    return tmp_path


def make(folder: pathlib.Path, columns: dict[str, Any], sidecars: dict[str, str] | None = None, **sections: Any) -> Any:
    """Converts the images; returns the examples by key."""
    source = {"by": "sidecars", "sidecars": sidecars or {}}
    sections = {"label": {"by": "none"}, "split": {"by": "none"}, "rejects": {"max_fraction": 0.9}, **sections}
    datasets.make(folder / "in", folder / "out", source=source, columns=columns, **sections)
    return {each["image/key"].decode(): each for each in datasets.read(folder / "out")}


def test_text_and_keys_of_json_are_columns_and_may_be_the_label(folder: pathlib.Path) -> None:
    label = {"by": "column", "column": "json.class"}
    found = make(folder, {"txt": {}, "json.size.width": {"type": "int"}}, label=label)
    assert {key: (each["txt"], each["json.size.width"], each["image/class/text"]) for key, each in found.items()} == {
        f"{n}.jpg": (f"picture {n}".encode(), n, f"c{n % 2}".encode()) for n in NUMBERS
    }


def test_mark_of_the_byte_order_is_no_text_and_an_empty_file_is_an_empty_cell(folder: pathlib.Path) -> None:
    (folder / "in" / "0.txt").write_bytes("\ufeffä\n\n".encode())
    (folder / "in" / "1.txt").write_bytes(b"\n")
    found = make(folder, {"txt": {}})
    assert found["0.jpg"]["txt"] == "ä".encode()
    assert datasets.rejects(folder / "out") == {"1.jpg": "bad_value"}


def test_missing_file_is_a_reject_that_names_it_or_the_default(folder: pathlib.Path) -> None:
    (folder / "in" / "1.txt").unlink()
    make(folder, {"txt": {}})
    assert datasets.rejects(folder / "out") == {"1.jpg": "not_found"}
    assert "there is no '1.txt'" in (folder / "out" / "rejects.jsonl").read_text()
    (folder / "again").mkdir()
    (folder / "in").rename(folder / "again" / "in")
    found = make(folder / "again", {"txt": {"missing": "default", "default": "none"}})
    assert found["1.jpg"]["txt"] == b"none"


def test_missing_file_ends_the_run_if_the_column_says_so(folder: pathlib.Path) -> None:
    (folder / "in" / "1.txt").unlink()
    with error_texts.raises("input-broken"):
        make(folder, {"txt": {"missing": "error"}})


def test_json_that_is_none_or_has_no_such_value_is_a_reject_that_names_the_file(folder: pathlib.Path) -> None:
    (folder / "in" / "3.jpg").write_bytes(image_sets.make_image(3))
    for n, content in enumerate(("{", "[1]", '{"class": {"a": 1}}', '{"class": "c"}')):
        (folder / "in" / f"{n}.json").write_text(content)
    assert [*make(folder, {"json.class": {}})] == ["3.jpg"]
    assert sorted(datasets.rejects(folder / "out")) == ["0.jpg", "1.jpg", "2.jpg"]


def test_other_names_and_folders_are_found_by_patterns(tmp_path: pathlib.Path) -> None:
    for image, text, options in [
        ("{}.bin.png", "{}.gt.txt", {"image": r"(.*)\.bin\.png"}),
        ("images/{}.png", "captions/{}.gt.txt", {"image": r"images/(.*)\.png", "path": r"captions/\1.{}"}),
    ]:
        folder = case_tables.new_folder(tmp_path)
        for n in NUMBERS:
            for name, data in ((image, image_sets.make_image(n, "PNG")), (text, f"line {n}".encode())):
                path = folder / "in" / name.format(n)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        found = make(folder, {"gt.txt": {}}, options)
        assert {key: each["gt.txt"] for key, each in found.items()} == {
            image.format(n): f"line {n}".encode() for n in NUMBERS
        }


def test_update_writes_an_image_again_whose_text_has_changed(folder: pathlib.Path) -> None:
    places = [f"source.uri={folder / 'in'}", f"output.uri={folder / 'out'}", "split={by: none}", "columns={txt: {}}"]
    config = config_lib.load_config("sidecars", places)
    convert.convert(config, workers=1, update=True)
    (folder / "in" / "1.txt").write_text("another text")
    result = convert.convert(config, workers=1, update=True)
    assert (result.catalog.counts.written, datasets.rejects(folder / "out" / "snapshots" / "000002")) == (3, {})
    texts = {each["image/key"]: each["image/caption"] for each in datasets.read(folder / "out/snapshots/000002")}
    assert texts == {b"0.jpg": b"picture 0", b"1.jpg": b"another text", b"2.jpg": b"picture 2"}


@pytest.mark.parametrize("sidecars", ["{image: '('}", "{path: x}", "{path: '{}{}'}", r"{path: '\2.{}'}"])
def test_patterns_that_cannot_be_meant_are_refused(sidecars: str) -> None:
    with error_texts.raises("config-invalid"):
        config_lib.load_config("sidecars", [f"source.sidecars={sidecars}"])
