"""inspect and verify on datasets whose examples hold lists."""

from __future__ import annotations

import pathlib

import pytest

import imagebeam
from imagebeam import features
from imagebeam.pipelines import inspect_dataset, verify_dataset
from tests import case_tables
from tests.unit.imagebeam.reader import written

WANTED = (
    *written.IMAGE,
    *written.OBJECTS,
    written.MANY_LABELS,
    features.Feature(features.TEXT, features.TEXT, features.BYTES, True),
)


@pytest.fixture
def dataset(tmp_path: pathlib.Path) -> imagebeam.ImageDataset:
    examples = [
        {
            **written.jpeg_values(index),
            **written.object_values(index * 5, index),
            features.LABEL: tuple(range(index)),
            features.TEXT: tuple(b"abc"[number : number + 1] for number in range(index)),
        }
        for index in range(3)
    ]
    return written.write(tmp_path / "out", WANTED, examples, labels=["a", "b", "c"], num_shards=1)


def test_table_says_which_features_are_lists(dataset: imagebeam.ImageDataset) -> None:
    rows = dict(inspect_dataset.feature_rows(dataset.catalog))
    assert rows["  image/object/bbox/xmin"] == "float list"
    assert rows["  image/class/label"] == "int64 list"
    assert rows["  image/encoded"] == "bytes"


def test_examples_are_shown_with_the_beginning_of_their_lists(dataset: imagebeam.ImageDataset) -> None:
    found = inspect_dataset.read_examples(dataset.directory, dataset.catalog, "train")
    none, one, two = map(inspect_dataset.describe_example, found)
    assert "image/class/label=[]  image/class/text=[]" in none
    assert "image/class/label=0  image/class/text=a" in one
    assert "image/object/class/label=[1, 2, 3, 4, 5]  " in one
    assert "image/class/text=[a, b]" in two
    assert "image/object/class/label=[2, 3, 4, 5, 6, 7, 8, 9, ... 10 values]" in two
    assert "image/object/class/text=[thing 0, thing 1, " in two


def test_images_are_saved_under_all_their_classes(dataset: imagebeam.ImageDataset, tmp_path: pathlib.Path) -> None:
    paths = inspect_dataset.save_images(dataset.directory, dataset.catalog, "train", 3, str(tmp_path / "saved"))
    names = [pathlib.Path(path).name for path in paths]
    assert names == ["train-00000-0.jpeg", "train-00001-a-1.jpeg", "train-00002-a+b-2.jpeg"]
    assert pathlib.Path(paths[2]).read_bytes() == written.jpeg_values(2)[features.ENCODED]


@case_tables.each_case(
    "name", {"ascii": "x" * 400, "two-bytes-a-letter": "ж" * 200, "four-bytes-a-letter": "\U0002f81a" * 120}
)
def test_images_are_saved_under_names_as_long_as_file_systems_take(tmp_path: pathlib.Path, name: str) -> None:
    values = {**written.jpeg_values(0), "image/key": name.encode(), "image/format": b"../../" + b"jpeg" * 100}
    dataset = written.write(tmp_path / "out", written.IMAGE, [values, {**values, "image/format": b""}], num_shards=1)
    paths = inspect_dataset.save_images(dataset.directory, dataset.catalog, "train", 2, str(tmp_path / "saved"))
    saved = sorted((tmp_path / "saved").iterdir())
    assert sorted(paths) == [str(path) for path in saved]
    assert all(path.read_bytes() == values[features.ENCODED] for path in saved)
    assert all(150 < len(path.name.encode()) < 256 for path in saved)


def test_verify_takes_lists_of_any_length_but_not_none_at_all(
    dataset: imagebeam.ImageDataset, tmp_path: pathlib.Path
) -> None:
    assert verify_dataset.verify(dataset.directory, decode=True).problems == ()
    lacking = [feature for feature in WANTED if feature.source != features.TEXT]
    examples = [{**written.jpeg_values(0), **written.object_values(2, 0), features.LABEL: ()}]
    other = written.write(tmp_path / "other", lacking, examples, num_shards=1)
    check = verify_dataset._DecodeRecord(dataset.catalog, is_raw=False)
    [record] = written.stored_in(pathlib.Path(other.directory))
    assert check(record) == "the example lacks the list image/class/text"
