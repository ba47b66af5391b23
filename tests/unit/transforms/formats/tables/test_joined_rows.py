from __future__ import annotations

import pathlib

import pytest

from imagebeam import errors
from imagebeam.pipelines import open_source
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms import elements
from imagebeam.transforms.sources import image_source
from tests import image_sets, spread_rows

IMAGES = "1 a/1.jpg\n2 a/2.jpg\n3 b/3.jpg\n"


def open_birds(folder: pathlib.Path, images: str, classes: str, splits: str) -> image_source.ImageSource:
    for name in ("a/1.jpg", "a/2.jpg", "b/3.jpg"):
        (folder / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "images" / name).write_bytes(image_sets.make_image(1))
    (folder / "images.txt").write_text(images)
    (folder / "image_class_labels.txt").write_text(classes)
    (folder / "train_test_split.txt").write_text(splits)
    config = config_lib.load_config("cub200", [f"source.uri={folder}", f"output.uri={folder}_out"])
    table = open_source.make_source(config)
    assert table is not None
    return table


def test_lists_of_the_birds_are_joined_by_id(tmp_path: pathlib.Path) -> None:
    table = open_birds(tmp_path, IMAGES, "1 7\n2 7\n3 8 x\n", "1 1\n2 0\n3 1\n")
    assert table.column_names() == ["id", "file", "class", "is_training"]
    found = spread_rows.list_both_ways(table)  # type: ignore[arg-type]
    refs = [(ref.key, ref.label, ref.split) for each in found for ref in elements.unpack_refs(each.packed_refs)]
    assert refs == [("images/a/1.jpg", "7", "1"), ("images/a/2.jpg", "7", "0")]
    (reject,) = (reject for each in found for reject in each.rejects)
    assert reject.reason == elements.Reason.BAD_ROW
    assert "line 3 of" in reject.detail and "image_class_labels.txt: 3 cells, the header has 2" in reject.detail


@pytest.mark.parametrize(
    ("classes", "error"),
    [
        ("1 7\n3 8\n2 7\n", "line 2 has id '2', and line 2 of .*labels.txt' has '3': source.manifest.join needs"),
        ("1 7\n2 7\n", "it has more rows than .*image_class_labels.txt', which source.manifest.join names"),
        ("1 7\n2 7\n3 7\n4 7\n", "it has fewer rows than"),
    ],
)
def test_tables_with_other_ids_are_a_problem(tmp_path: pathlib.Path, classes: str, error: str) -> None:
    table = open_birds(tmp_path, IMAGES, classes, "1 1\n2 0\n3 1\n")
    problems = [problem for each in table.list_all() for problem in each.problems]
    with pytest.raises(ValueError, match=error):
        raise ValueError(problems[0])


def test_join_of_another_format_or_without_its_column_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"image": "a.jpg", "id": 1}\n')
    (tmp_path / "t.csv").write_text("image\na.jpg\n")
    (tmp_path / "u.csv").write_text("id,label\n1,cat\n")
    for name, error in (
        ("t.jsonl", "source.manifest.join is for CSV, and .* is read as jsonl"),
        ("t.csv", "no column 'id'"),
    ):
        overrides = [
            f"source.uri={tmp_path / name}",
            "output.uri=/tmp/no_output",
            "label.by=none",
            "source.by=manifest",
        ]
        config = config_lib.load_config(None, [*overrides, "source.manifest.join={key: id, tables: {u.csv: []}}"])
        with pytest.raises(errors.ConfigError, match=error):
            open_source.make_source(config)
