"""The splits that the names of TFRecord files say."""

from __future__ import annotations

import re

import pytest

from imagebeam.transforms.sources import tfrecord_names


@pytest.mark.parametrize(
    ("path", "split", "number", "total"),
    [
        ("train-00000-of-01024", "train", 0, 1024),
        ("validation-00127-of-00128", "validation", 127, 128),
        ("train-00000-of-00016.tfrecord", "train", 0, 16),
        ("mnist-test.tfrecord-00000-of-00001", "test", 0, 1),
        ("my_set-extra.tfrecord-00001-of-00002", "extra", 1, 2),
        ("flowers_train_00003-of-00005.tfrecord", "train", 3, 5),
        ("coco_val.record-00000-of-00010", "val", 0, 10),
        ("val2017-00000-of-00032.tfrecord", "val2017", 0, 32),
        ("Train-00000-of-00001.tfrecord.gz", "train", 0, 1),
        ("pets_00000_of_00002.tfrecord", "pets", 0, 2),
        ("train.record", "train", -1, 0),
        ("test.tfrecords", "test", -1, 0),
        ("train_0007.tfrecord", "train", 7, 0),
        ("val12.tfrec", "val12", -1, 0),
        ("validation/00-512x512-798.tfrec", "validation", 798, 0),
        ("tfrecords-jpeg-512x512/test/01-512x512-462.tfrec", "test", 462, 0),
        ("validation_tfrecords/part-00000-of-00004", "validation", 0, 4),
        ("data.tfrecord", "train", -1, 0),
        ("train", "train", -1, 0),
        ("blood cells (1)-00000-of-00001", "blood_cells_1", 0, 1),
    ],
)
def test_split_and_number_of_a_path(path: str, split: str, number: int, total: int) -> None:
    named = tfrecord_names.parse_path(path)
    assert (named.split, named.number, named.total) == (split, number, total)


@pytest.mark.parametrize(
    ("pattern", "path", "split"),
    [
        (r"^(a|b)_", "a_1.tfrecord", "a"),
        (r"^(a|b)_", "c_1.tfrecord", None),
        (r"(x)?(?P<split>ours|theirs)", "theirs.tfrecord", "theirs"),
        (r"^[^/]+", "fold 1/0.tfrecord", "fold_1"),
    ],
)
def test_split_by_the_users_pattern(pattern: str, path: str, split: str | None) -> None:
    assert tfrecord_names.split_by(re.compile(pattern), path) == split
