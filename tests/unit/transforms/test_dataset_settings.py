from __future__ import annotations

import dataclasses
import pathlib

from imagebeam.transforms.dataset_settings import Sizing
from tests.unit.transforms import small_dataset

MIB = 1 << 20


def test_shards_of_split_follow_the_sizing() -> None:
    for sizing, num_records, num_bytes, expected in [
        (Sizing(), 1, 1000, 1),  # default-one
        (Sizing(), 127, 1000, 1),  # default-next-to-nothing
        (Sizing(), 128, 1000, 2),  # default-64-records-each
        (Sizing(), 1024, 1000, 16),  # default-16-shards
        (Sizing(), 1_000_000, 1000, 16),  # default-many-small-images
        (Sizing(), 100, 2 * 128 * MIB, 2),  # default-128-MiB-each
        (Sizing(), 100, 2 * 128 * MIB + 1, 3),  # default-a-byte-more
        (Sizing(), 1_281_167, 137 * 2**30, 1096),  # default-imagenet
        (Sizing(num_shards=5), 1, 10**12, 5),  # number
        (Sizing(num_shards={"train": 7}), 1, 10**12, 7),  # number-by-split
        (Sizing(num_shards={"test": 7}), 128, 1000, 2),  # number-of-another-split
        (Sizing(examples_per_shard=10), 20, 10**12, 2),  # examples
        (Sizing(examples_per_shard=10), 21, 10**12, 3),  # examples-rounded-up
        (Sizing(target_shard_bytes=1000), 10**6, 1001, 2),  # bytes-rounded-up
        (Sizing(target_shard_bytes=1000), 10**6, 0, 1),  # bytes-unknown
    ]:
        assert sizing.shards_of("train", num_records, num_bytes) == expected


DATASET = small_dataset.make_settings(pathlib.Path("/out"))


def test_label_ids_count_from_the_base() -> None:
    for base, ids in [(0, {"cat": 0, "dog": 1}), (1, {"cat": 1, "dog": 2})]:
        assert dataclasses.replace(DATASET, label_base=base).label_ids(("cat", "dog")) == ids


def test_shard_name_has_the_suffix() -> None:
    assert DATASET.shard_name("train", 3, 16) == "train-00003-of-00016.tfrecord"
    assert dataclasses.replace(DATASET, suffix="").shard_name("train", 3, 16) == "train-00003-of-00016"
