"""Heights and widths of the images of snapshots, and the buckets that they come in: each living image once."""

from __future__ import annotations

import collections
import dataclasses
import io
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import PIL.Image
import pytest

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import records
from imagebeam.pipelines import compact, verify_dataset
from imagebeam.reader import aspect_buckets, image_sizes
from tests import case_tables, error_texts, image_sets, snapshot_sets
from tests.unit.imagebeam.reader.test_image_sizes import CONFIG, change_catalog, make_images, sides_in

BUCKETS = ((16, 16), (12, 24), (24, 12), (8, 40), (40, 8))


@pytest.fixture(scope="module")
def updated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """A dataset of three snapshots, with images added, changed and removed."""
    root = tmp_path_factory.mktemp("updated")
    images, output = make_images(root / "images"), root / "out"
    sections = {"source": {"include": ["**/*.img"]}, **CONFIG, "update": {"max_removed_fraction": 1.0}}
    for step in range(3):
        snapshot_sets.update(images, output, **sections)
        make_images(images, seed=100 + step, count=4)
        sorted(images.rglob("*.img"))[step].unlink()
        sorted(images.rglob("*.img"))[5 + step].write_bytes(image_sets.make_image(step, size=(50 + step, 9)))
    yield output


def assert_sizes(folder: pathlib.Path, address: str = "") -> None:
    """Checks the sizes of a snapshot, of records that are not removed, with and without the files."""
    dataset = imagebeam.open_dataset(address or folder)
    numbers = np.concatenate([dataset._removed_records("train"), [0] * 0])
    expected, found = sides_in(folder, ("train",)), dataset._read_sizes(("train",)).tolist()
    assert found == expected
    change_catalog(folder, lambda shard: dataclasses.replace(shard, sizes_crc32c=None))
    made = imagebeam.open_dataset(address or folder)._read_sizes(("train",)).tolist()
    assert made == [[0, 0] if index in set(numbers.tolist()) else each for index, each in enumerate(expected)]


@pytest.mark.parametrize("scheme", ["", "far://"])
def test_snapshots_have_the_sizes_of_their_shards(
    updated: pathlib.Path, tmp_path: pathlib.Path, scheme: str, far: object
) -> None:
    output = pathlib.Path(shutil.copytree(updated, tmp_path / "out"))
    latest = snapshot_sets.latest(output)
    assert any(shard.is_elsewhere for shard in catalog_lib.load_catalog(latest).splits["train"].shards)
    assert imagebeam.open_dataset(latest)._removed_records("train").size
    assert verify_dataset.verify(output).problems == ()
    for snapshot in sorted((output / "snapshots").iterdir()):
        assert_sizes(snapshot, f"{scheme}{snapshot}")


@pytest.fixture(scope="module")
def compacted(updated: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The same dataset with its fourth snapshot, which is compacted."""
    output = pathlib.Path(shutil.copytree(updated, tmp_path_factory.mktemp("compacted") / "out"))
    compact.compact(output, workers=1)
    return output


def test_compacted_snapshot_has_sizes(compacted: pathlib.Path, tmp_path: pathlib.Path) -> None:
    latest = snapshot_sets.latest(pathlib.Path(shutil.copytree(compacted, tmp_path / "out")))
    shards = [shard for split in catalog_lib.load_catalog(latest).splits.values() for shard in split.shards]
    assert all(shard.sizes_crc32c is not None and not shard.is_elsewhere for shard in shards)
    assert_sizes(latest)


def unname_all(folder: pathlib.Path) -> None:
    """As a release wrote it that knew no such files; those that lie there now are of another dataset."""
    change_catalog(folder, lambda shard: dataclasses.replace(shard, sizes_crc32c=None))
    for path in folder.parent.rglob("*.sizes"):
        path.write_bytes(bytes(range(1, 5)) * (path.stat().st_size // 4))


def unname_some(folder: pathlib.Path) -> None:
    """As a snapshot that continues one of such a release."""
    change_catalog(
        folder, lambda shard: dataclasses.replace(shard, sizes_crc32c=None) if "-00001-" in shard.name else shard
    )


def tell_none(folder: pathlib.Path) -> None:
    """As of shards that were indexed without their sizes."""
    for path in folder.parent.rglob("*.sizes"):
        path.write_bytes(bytes(path.stat().st_size))
    zeros = {shard.records: records.extend_crc(0, bytes(4 * shard.records)) for shard in shards_of(folder)}
    change_catalog(folder, lambda shard: dataclasses.replace(shard, sizes_crc32c=zeros[shard.records]))


def shards_of(folder: pathlib.Path) -> list[catalog_lib.Shard]:
    return [shard for split in catalog_lib.load_catalog(folder).splits.values() for shard in split.shards]


@pytest.mark.parametrize("snapshot", ["000001", "000002", "000003", "000004"])
@case_tables.each_case(
    "change", {"as written": None, "of no file": unname_all, "of some files": unname_some, "unknown": tell_none}
)
def test_buckets_have_each_living_image_once(
    compacted: pathlib.Path, tmp_path: pathlib.Path, snapshot: str, change: Callable[[pathlib.Path], None] | None
) -> None:
    """In the bucket that fits it, whatever was removed and wherever its size comes from."""
    output = pathlib.Path(shutil.copytree(compacted, tmp_path / "out"))
    if change is not None:
        change(output / "snapshots" / snapshot)
    living = {key: each for key, each in snapshot_sets.living(compacted, snapshot).items() if each.split == "train"}
    sides = [PIL.Image.open(io.BytesIO(each.data)).size[::-1] for each in living.values()]
    best = aspect_buckets.choose(np.array(sides), BUCKETS, None)
    expected = {(key, BUCKETS[bucket]): 2 for key, bucket in zip(living, best.tolist(), strict=True)}
    dataset = imagebeam.open_dataset(output, snapshot=snapshot)
    found: collections.Counter[tuple[str, Any]] = collections.Counter()
    for index in range(2):
        process = {"process_index": index, "process_count": 2, "features": ("image/key",)}
        for batch in dataset.as_numpy("train", 2, buckets=BUCKETS, num_epochs=2, pad=True, **process):
            found.update((key.decode(), batch["image"].shape[1:3]) for key in batch["image/key"][batch["mask"]])
    assert found == expected and len({size for _, size in found}) > 2


@case_tables.each_case(
    "code, damage",
    {
        "missing": ("sizes-unreadable", pathlib.Path.unlink),
        "cut": ("sizes-damaged", lambda path: path.write_bytes(path.read_bytes()[:-4])),
        "of another snapshot": ("sizes-damaged", lambda path: path.write_bytes(path.read_bytes()[::-1])),
    },
)
def test_buckets_of_damaged_sizes_are_refused(
    updated: pathlib.Path, tmp_path: pathlib.Path, code: str, damage: Callable[[pathlib.Path], Any]
) -> None:
    """Also of a shard of an earlier snapshot, but not if none of its records is left."""
    output = pathlib.Path(shutil.copytree(updated, tmp_path / "out"))
    latest = snapshot_sets.latest(output)
    expected = imagebeam.open_dataset(output)._read_sizes(("train",))
    shards = catalog_lib.load_catalog(latest).splits["train"].shards
    assert shards[0].is_elsewhere
    damage(latest / shards[0].sizes_name)
    dataset = imagebeam.open_dataset(output)
    with error_texts.raises(code):
        dataset.as_numpy("train", 2, buckets=BUCKETS)
    gone = shards[0].records
    change_catalog(latest, lambda each: dataclasses.replace(each, removed=gone) if each == shards[0] else each)
    catalog, source = catalog_lib.load_catalog(latest), dataset._source
    found = image_sizes.load(source, catalog, ("train",), np.arange(gone), dataset_without_records)
    np.testing.assert_array_equal(found, np.concatenate([np.zeros((gone, 2)), expected[gone:]]))


def dataset_without_records() -> Any:
    raise AssertionError("a record was read")
