"""Filters by class: labels are found anywhere in a record, and several filters apply together."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import imagebeam
from imagebeam import errors, example, features, records
from tests.unit.imagebeam.reader import written

LABELS = ("cat", "dog", "owl")
COUNT = 30
CAPTION = features.Feature("a caption", "columns/caption", features.BYTES)  # comes before the label in a record


def caption_of(index: int) -> bytes:
    """Returns up to 20 KB; every second caption contains bytes that look like the key of the label."""
    text = b"x" * (index * 700)
    return text + example.delimited(b"\x0a", b"image/class/label") * (index % 2)


def classes_of(index: int) -> tuple[int, ...]:
    return tuple(number for number in range(3) if index >> number & 1)


def values_of(index: int, many: bool) -> dict[str, Any]:
    label = tuple(each + 1 for each in classes_of(index)) if many else 1 + index % 3
    return {**written.jpeg_values(index), "columns/caption": caption_of(index), features.LABEL: label}


@pytest.fixture(scope="module")
def one_class(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    folder = tmp_path_factory.mktemp("filter") / "out"
    examples = [values_of(index, many=False) for index in range(COUNT)]
    return written.write(folder, (*written.IMAGE, CAPTION, written.LABEL), examples, labels=LABELS, label_base=1)


@pytest.fixture(scope="module")
def many_classes(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    folder = tmp_path_factory.mktemp("filter-many") / "out"
    examples = [values_of(index, many=True) for index in range(COUNT)]
    return written.write(folder, (*written.IMAGE, CAPTION, written.MANY_LABELS), examples, labels=LABELS, label_base=1)


def kept(dataset: imagebeam.ImageDataset, split: str = "train") -> list[int]:
    source = dataset.as_grain(split, decode=False, features=("image/key",))
    return [int(source[index]["image/key"]) for index in range(len(source))]


def test_label_behind_a_long_feature_is_found(one_class: imagebeam.ImageDataset) -> None:
    assert kept(one_class.filter(["dog"])) == [index for index in range(COUNT) if index % 3 == 1]
    assert kept(one_class.filter([0, np.int64(2)]), "train[10:]") == [n for n in range(10, COUNT) if n % 3 != 1]


def test_label_behind_a_long_feature_is_found_in_blocks(
    one_class: imagebeam.ImageDataset, tmp_path: pathlib.Path, far: Any
) -> None:
    shutil.copytree(one_class.directory, tmp_path / "set")
    cached = imagebeam.open_dataset(f"far://{tmp_path}/set", cache_dir=str(tmp_path / "cache"))
    assert kept(cached.filter(["dog"])) == kept(one_class.filter(["dog"]))


@hypothesis.given(st.lists(st.sets(st.sampled_from(LABELS), min_size=1), max_size=3), st.booleans())
@hypothesis.settings(deadline=None, max_examples=40)
def test_filters_keep_what_each_of_them_keeps(
    many_classes: imagebeam.ImageDataset, one_class: imagebeam.ImageDataset, filters: list[set[str]], many: bool
) -> None:
    dataset, stored = (many_classes, classes_of) if many else (one_class, lambda index: (index % 3,))
    expected = [
        index for index in range(COUNT) if all({LABELS[each] for each in stored(index)} & names for names in filters)
    ]
    for names in filters:
        dataset = dataset.filter(sorted(names))
    if expected:
        assert kept(dataset) == expected
        assert dataset.num_examples("train") == len(expected)
    else:
        with pytest.raises(errors.ConfigError, match="'train' holds no example of the labels that filter keeps"):
            dataset.num_examples("train")


def test_record_whose_label_cannot_be_found_is_named(one_class: imagebeam.ImageDataset, tmp_path: pathlib.Path) -> None:
    folder = pathlib.Path(shutil.copytree(one_class.directory, tmp_path / "out"))
    shard = one_class.splits["train"].shards[0]
    offsets = records.decode_index((folder / shard.index_name).read_bytes())
    content = bytearray((folder / shard.name).read_bytes())
    content[offsets[4] + records.HEADER_BYTES : offsets[4] + records.HEADER_BYTES + 40] = b"\xff" * 40
    (folder / shard.name).write_bytes(content)
    with pytest.raises(
        errors.ExampleError,
        match=r"record 4 of shard .*train-00000-of-00002.tfrecord, .*: no feature 'image/class/label'",
    ):
        imagebeam.open_dataset(str(folder)).filter(["cat"]).num_examples("train")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("cat", r"labels is 'cat'; give a list of names or ids, such as \['cat'\]"),
        (1, r"labels is 1; give a list of names or ids, such as \[1\]"),
        ([], "labels is empty; give the names or ids of the classes to keep"),
        (["cta"], "label 'cta' is none of the 3 of the dataset; did you mean 'cat'"),
        ([3], "label 3 is none of the 3 of the dataset: give a name, or an id from 0 to 2"),
        ([-1], "label -1 is none of the 3"),
        ([1.0], "label 1.0 is none of the 3"),
        ([True], "label True is none of the 3"),
    ],
)
def test_unknown_labels_are_refused(one_class: imagebeam.ImageDataset, labels: Any, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        one_class.filter(labels)


def test_dataset_without_classes_is_not_filtered(tmp_path: pathlib.Path) -> None:
    plain = written.write(tmp_path / "out", written.IMAGE, [written.jpeg_values(0)], num_shards=1)
    with pytest.raises(errors.ConfigError, match="out has no classes to filter by"):
        plain.filter(["cat"])
