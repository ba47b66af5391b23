"""Readers of snapshots: every feed reads the examples that remain, each once, and no other record."""

from __future__ import annotations

import collections
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import features
from tests import error_texts, linked_snapshots
from tests.unit.imagebeam.reader import far_dataset, written
from tests.unit.imagebeam.reader.feeding import keys_in

OPTIONS: Mapping[str, Any] = {"image_size": 16, "features": ("image/key",), "shuffle_records": 6}
LABELS = ("cat", "dog", "owl")
FIRST = [f"../000001/train-0000{number}-of-00003.tfrecord" for number in range(3)]
SECOND = [f"../000002/train-0000{number}-of-00002.tfrecord" for number in range(2)]
# By snapshot: its new examples and its shards; what it removes; the examples that remain.
STEPS: Sequence[tuple[range, int, linked_snapshots.Removed, Sequence[int]]] = [
    (range(14), 3, {}, range(14)),
    (range(14, 20), 2, {FIRST[0]: [0, 4], FIRST[1]: range(5)}, [1, 2, 3, *range(10, 20)]),
    (range(20, 21), 1, {SECOND[0]: [1], FIRST[2]: [3]}, [1, 2, 3, 10, 11, 12, 14, *range(16, 21)]),
]


def values_of(index: int) -> dict[str, Any]:
    return written.jpeg_values(index) | {features.LABEL: index % 3}


def make(folder: pathlib.Path, compression: str = "none") -> pathlib.Path:
    for new, num_shards, removed, _ in STEPS:
        examples = [values_of(index) for index in new]
        wanted = (*written.IMAGE, written.LABEL)
        written.write(folder / "new", wanted, examples, labels=LABELS, num_shards=num_shards, compression=compression)
        linked_snapshots.add(folder / "out", folder / "new", removed)
    return folder / "out"


@pytest.fixture(scope="module", params=["none", "gzip"])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A dataset of three snapshots, with compressed shards and without."""
    return make(tmp_path_factory.mktemp("snapshots"), request.param)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The same, without compression."""
    return make(tmp_path_factory.mktemp("snapshots"))


def keys_of(batches: Iterable[Any]) -> list[int]:
    return [int(key) for key in keys_in(batches)]


@pytest.mark.parametrize(("snapshot", "number"), [(None, 3), ("000002", 2), (1, 1)])
def test_snapshot_has_the_examples_that_remain(either: pathlib.Path, snapshot: Any, number: int) -> None:
    dataset = imagebeam.open_dataset(either, snapshot=snapshot)
    remaining = STEPS[number - 1][3]
    assert dataset.snapshot == f"00000{number}"
    assert dataset.directory == str(either / "snapshots" / dataset.snapshot)
    assert dataset.num_examples("train") == dataset.splits["train"].num_examples == len(remaining)
    batches = dataset.as_numpy("train", 4, shuffle=None, num_epochs=1, pad=True, **OPTIONS)
    assert keys_of(batches) == list(remaining)


@pytest.mark.parametrize(
    ("shuffle", "process_count", "decoder"),
    [
        ("stream", 1, "auto"),
        ("stream", 3, "auto"),
        ("global", 3, "auto"),
        (None, 3, "auto"),
        ("stream", 1, "pillow"),
    ],
)
def test_every_process_reads_its_share_of_what_remains(
    either: pathlib.Path, shuffle: str | None, process_count: int, decoder: str
) -> None:
    dataset = imagebeam.open_dataset(either)
    if shuffle == "global" and dataset.catalog.compression != "none":
        shuffle = "stream"
    asked = {**OPTIONS, "shuffle": shuffle, "num_epochs": 2, "drop_remainder": False, "decoder": decoder}
    read: collections.Counter[int] = collections.Counter()
    for index in range(process_count):
        batches = dataset.as_numpy("train", 4, process_index=index, process_count=process_count, **asked)
        read.update(keys_of(batches))
    assert read == dict.fromkeys(STEPS[-1][3], 2)


def test_mixture_reads_what_remains_of_each_snapshot(plain: pathlib.Path) -> None:
    parts = [(imagebeam.open_dataset(plain, snapshot=number), "train") for number in (3, 1)]
    mixed = imagebeam.Mixture(parts, [1.0, 1.0])
    batches = mixed.as_numpy(4, shuffle="global", num_epochs=1, drop_remainder=False, **OPTIONS)
    counts = collections.Counter(keys_of(batches))
    assert batches.state().snapshot == "000003 000001"
    of_third, of_first = set(STEPS[-1][3]), set(range(14))
    assert set(counts) <= of_third | of_first
    assert of_third <= set(counts) or of_first <= set(counts)  # it ends where one of the two ends
    assert all(count <= (key in of_third) + (key in of_first) for key, count in counts.items())


def test_damage_of_removed_records_is_met_by_no_reader(tmp_path: pathlib.Path) -> None:
    dataset = make(tmp_path)
    shard = dataset / "snapshots/000001/train-00001-of-00003.tfrecord"  # all of its records are removed
    shard.write_bytes(bytes(shard.stat().st_size))
    (shard.parent / "index" / "train-00001-of-00003.index").unlink()
    opened = imagebeam.open_dataset(dataset)
    for each in (opened, opened.filter([0, 1, 2])):
        assert keys_of(each.as_numpy("train", 1, shuffle=None, num_epochs=1, **OPTIONS)) == STEPS[-1][3]


@pytest.mark.parametrize("snapshot", [None, 2])
def test_shards_of_all_snapshots_are_read_at_their_address(either: pathlib.Path, snapshot: int | None) -> None:
    local, far_away = (imagebeam.open_dataset(f"{scheme}{either}", snapshot=snapshot) for scheme in ("", "far://"))
    asked = {**OPTIONS, "num_epochs": 1, "drop_remainder": False}
    found, expected = (keys_of(each.as_numpy("train", 4, **asked)) for each in (far_away, local))
    assert (far_away.directory, far_away.catalog, found) == (f"far://{local.directory}", local.catalog, expected)


# Through the cache


def far(dataset: pathlib.Path, cache: pathlib.Path, **options: Any) -> imagebeam.ImageDataset:
    return imagebeam.open_dataset(f"far://{dataset}", cache_dir=cache, **options)


def downloaded(dataset: pathlib.Path) -> list[str]:
    """Returns the shards that were downloaded, as snapshot/name, in a fixed order."""
    far_dataset.wait_for_downloads()
    names = ("000001", "000002", "000003")
    return sorted(
        f"{name}/{each}" for name in names for each in far_dataset.log_of(dataset / "snapshots" / name, "get")
    )


def test_shard_of_several_snapshots_is_cached_once(tmp_path: pathlib.Path) -> None:
    dataset = make(tmp_path)
    asked = {**OPTIONS, "shuffle": None, "num_epochs": 1, "drop_remainder": False}
    for number, (*_, remaining) in enumerate(STEPS, 1):
        opened = far(dataset, tmp_path / "cache", snapshot=number)
        assert keys_of(opened.as_numpy("train", 4, **asked)) == list(remaining)
    assert downloaded(dataset) == [
        *(f"000001/train-0000{number}-of-00003.tfrecord" for number in range(3)),
        *(f"000002/train-0000{number}-of-00002.tfrecord" for number in range(2)),
        "000003/train-00000-of-00001.tfrecord",
    ]
    cached = far_dataset.files_in(tmp_path / "cache")
    assert len(cached) == 12  # six shards and their indexes
    latest = far(dataset, tmp_path / "cache")
    assert keys_of(latest.as_numpy("train", 4, **asked)) == STEPS[-1][3]
    assert far_dataset.files_in(tmp_path / "cache") == cached


def test_shard_without_remaining_records_is_not_downloaded(tmp_path: pathlib.Path) -> None:
    dataset = make(tmp_path)
    opened = far(dataset, tmp_path / "cache")
    keys_of(opened.as_numpy("train", 4, num_epochs=1, **OPTIONS))
    assert "000001/train-00001-of-00003.tfrecord" not in downloaded(dataset)


def test_replaced_shard_of_the_same_name_is_downloaded_again(tmp_path: pathlib.Path) -> None:
    """A snapshot that was written again in a new dataset at the same address."""
    first = make(tmp_path / "first")
    (tmp_path / "out").symlink_to(first)
    asked = {**OPTIONS, "shuffle": None, "num_epochs": 1, "drop_remainder": False}
    keys_of(far(tmp_path / "out", tmp_path / "cache", snapshot=1).as_numpy("train", 4, **asked))
    examples = [values_of(index) for index in range(100, 114)]
    written.write(tmp_path / "new", (*written.IMAGE, written.LABEL), examples, labels=LABELS, num_shards=3)
    linked_snapshots.add(tmp_path / "second", tmp_path / "new")
    (tmp_path / "out").unlink()
    (tmp_path / "out").symlink_to(tmp_path / "second")
    read = keys_of(far(tmp_path / "out", tmp_path / "cache").as_numpy("train", 4, **asked))
    assert read == list(range(100, 114))


@pytest.mark.parametrize("name", ["../../x/train-0", "../out/train-0", "../000001/../x", "../000001/~x", "a/../x"])
def test_shard_whose_name_leaves_the_cache_is_refused(name: str, tmp_path: pathlib.Path) -> None:
    dataset = make(tmp_path)
    path = dataset / "snapshots/000003/catalog.json"
    fields = json.loads(path.read_text().replace("../000002/train-00001-of-00002.tfrecord", name))
    del fields["checksum"]
    path.write_text(json.dumps(catalog_lib.with_checksum(fields)))
    with error_texts.raises("catalog-bad-shard-name"):
        far(dataset, tmp_path / "cache")
