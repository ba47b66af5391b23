from __future__ import annotations

import dataclasses
import pathlib

import pytest

from imagebeam.transforms import dataset_settings
from imagebeam.transforms.dataset_settings import Sizing
from tests.unit.transforms import small_dataset

MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizing", "num_records", "num_bytes", "expected"),
    [
        pytest.param(Sizing(), 1, 1000, 1, id="default-one"),
        pytest.param(Sizing(), 127, 1000, 1, id="default-next-to-nothing"),
        pytest.param(Sizing(), 128, 1000, 2, id="default-64-records-each"),
        pytest.param(Sizing(), 1024, 1000, 16, id="default-16-shards"),
        pytest.param(Sizing(), 1_000_000, 1000, 16, id="default-many-small-images"),
        pytest.param(Sizing(), 100, 2 * 128 * MIB, 2, id="default-128-MiB-each"),
        pytest.param(Sizing(), 100, 2 * 128 * MIB + 1, 3, id="default-a-byte-more"),
        pytest.param(Sizing(), 1_281_167, 137 * 2**30, 1096, id="default-imagenet"),
        pytest.param(Sizing(num_shards=5), 1, 10**12, 5, id="number"),
        pytest.param(Sizing(num_shards={"train": 7}), 1, 10**12, 7, id="number-by-split"),
        pytest.param(Sizing(num_shards={"test": 7}), 128, 1000, 2, id="number-of-another-split"),
        pytest.param(Sizing(examples_per_shard=10), 20, 10**12, 2, id="examples"),
        pytest.param(Sizing(examples_per_shard=10), 21, 10**12, 3, id="examples-rounded-up"),
        pytest.param(Sizing(target_shard_bytes=1000), 10**6, 1001, 2, id="bytes-rounded-up"),
        pytest.param(Sizing(target_shard_bytes=1000), 10**6, 0, 1, id="bytes-unknown"),
    ],
)
def test_shards_of_split_follow_the_sizing(sizing: Sizing, num_records: int, num_bytes: int, expected: int) -> None:
    assert sizing.shards_of("train", num_records, num_bytes) == expected


@pytest.fixture
def dataset(tmp_path: pathlib.Path) -> dataset_settings.DatasetSettings:
    return small_dataset.make_settings(tmp_path / "out")


@pytest.mark.parametrize(("base", "ids"), [(0, {"cat": 0, "dog": 1}), (1, {"cat": 1, "dog": 2})])
def test_label_ids_count_from_the_base(
    dataset: dataset_settings.DatasetSettings, base: int, ids: dict[str, int]
) -> None:
    assert dataclasses.replace(dataset, label_base=base).label_ids(("cat", "dog")) == ids


def test_shard_name_has_the_suffix(dataset: dataset_settings.DatasetSettings) -> None:
    assert dataset.shard_name("train", 3, 16) == "train-00003-of-00016.tfrecord"
    assert dataclasses.replace(dataset, suffix="").shard_name("train", 3, 16) == "train-00003-of-00016"
