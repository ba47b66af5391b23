"""This version reads the datasets and states of every released one, and continues them: docs/format-promise.md."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import pytest

import imagebeam
from imagebeam import errors
from imagebeam.pipelines import compact, index_dataset, keep_snapshots, verify_dataset
from tests import datasets, error_texts, snapshot_sets
from tests.golden import kept_datasets

VERSIONS = list(kept_datasets.versions())
CASES = [
    pytest.param(folder, case, id=f"{folder.name}-{name}")
    for folder in VERSIONS
    for name, case in json.loads((folder / kept_datasets.CASES).read_text()).items()
]
of_each_version = pytest.mark.parametrize("version", VERSIONS, ids=lambda folder: folder.name)


@pytest.fixture
def nights(version: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the dataset of snapshots."""
    return shutil.copytree(version / "nights", tmp_path / "nights")


def assert_like(found: Any, expected: Any) -> None:
    """Compares two descriptions of batches: floats by 3 levels of 255, all else exactly."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_like(found[name], expected[name])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_like(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=3 if abs(expected) > 2 else 1e-3)
    else:
        assert found == expected


@of_each_version
@pytest.mark.parametrize("name", kept_datasets.DATASETS)
def test_kept_dataset_verifies(version: pathlib.Path, name: str) -> None:
    assert verify_dataset.verify(str(version / name), decode=True).problems == ()


@pytest.mark.parametrize(("version", "case"), CASES)
def test_kept_dataset_gives_the_same_batches_and_goes_on_from_its_state(
    version: pathlib.Path, case: Mapping[str, Any]
) -> None:
    reader, options = kept_datasets.open_reader(version, case)
    batches = reader.as_numpy(4, **options)
    for _ in range(kept_datasets.BEFORE):
        next(batches)
    for expected in case["after"]:
        assert_like(json.loads(json.dumps(kept_datasets.describe(next(batches)))), expected)
    state = imagebeam.ReaderState.from_dict(case["state"])
    resumed = reader.as_numpy(4, **options, state=state)
    for expected in case["after"]:
        assert_like(json.loads(json.dumps(kept_datasets.describe(next(resumed)))), expected)


@of_each_version
@pytest.mark.parametrize("feed", ["as_tf", "as_jax", "as_grain_batches"])
def test_kept_state_is_restored_in_every_feed(version: pathlib.Path, feed: str) -> None:
    case = json.loads((version / kept_datasets.CASES).read_text())["global"]
    reader, options = kept_datasets.open_reader(version, case)
    if feed == "as_tf":
        batches: Any = reader.as_tf(4, **options, state=imagebeam.ReaderState.from_dict(case["state"]))
        batches = batches.as_numpy_iterator()
    elif feed == "as_jax":
        import jax

        batches = reader.as_jax(jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0]), 4, **options)
        batches.load_state_dict(case["state"])
    else:
        batches = iter(reader.as_grain_batches(4, **options))
        batches.set_state(case["state"])
    for expected in case["after"]:
        assert_like(json.loads(json.dumps(kept_datasets.describe(next(batches)))), expected)


@of_each_version
def test_update_compares_with_kept_snapshots_and_compact_rewrites_them(
    version: pathlib.Path, nights: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    images = tmp_path / "images"
    living = {key: stored.data for key, stored in snapshot_sets.living(nights).items()}
    kept_datasets.write_images(images, living | dict([kept_datasets.BROKEN]))
    assert snapshot_sets.update(images, nights, **kept_datasets.NIGHTS).state == "kept"
    removed, *_, changed = sorted(living)
    (images / removed).unlink()
    kept_datasets.write_images(images, {changed: living[removed], "dog/new.png": living[changed]})
    result = snapshot_sets.update(images, nights, **kept_datasets.NIGHTS)
    names = ("added", "changed", "removed", "unchanged", "rejected")
    assert [result.catalog.snapshot[name] for name in names] == [1, 1, 1, len(living) - 2, 0]
    assert verify_dataset.verify(str(nights), decode=True).problems == ()
    before = snapshot_sets.living(nights)
    assert compact.compact(str(nights)).state == "committed"
    assert snapshot_sets.living(nights) == before
    case = json.loads((version / kept_datasets.CASES).read_text())["snapshot with removed records"]
    reader, options = kept_datasets.open_reader(nights.parent, {**case, "parts": [["nights@3", "train"]]})
    resumed = reader.as_numpy(4, **options, state=imagebeam.ReaderState.from_dict(case["state"]))
    assert_like(json.loads(json.dumps(kept_datasets.describe(next(resumed)))), case["after"][0])
    assert list(keep_snapshots.keep_snapshots(nights, 1).removed) == ["000001", "000002", "000003", "000004"]
    assert snapshot_sets.living(nights) == before


@of_each_version
def test_compact_takes_kept_snapshots_as_they_are(version: pathlib.Path, nights: pathlib.Path) -> None:
    before = snapshot_sets.living(nights)
    assert compact.compact(str(nights)).state == "committed"
    assert snapshot_sets.living(nights) == before
    assert verify_dataset.verify(str(nights), decode=True).problems == ()


@of_each_version
def test_convert_replaces_a_kept_dataset_with_nothing_left_of_it(version: pathlib.Path, tmp_path: pathlib.Path) -> None:
    photos = shutil.copytree(version / "photos", tmp_path / "photos")
    result = datasets.make(kept_datasets.IMAGES, photos, overwrite=True, output={"num_shards": 1})
    assert result.state == "committed"
    assert set(datasets.shard_digests(photos)) == {"train-00000-of-00001.tfrecord"}


@of_each_version
def test_index_finds_the_same_in_kept_shards_of_another_tool(version: pathlib.Path, tmp_path: pathlib.Path) -> None:
    foreign = shutil.copytree(version / "foreign", tmp_path / "foreign")
    before = imagebeam.load_catalog(foreign)
    index_dataset.index(foreign)  # reads them again: they have other times of change
    after = imagebeam.load_catalog(foreign)
    assert (after.fingerprint, after.features, after.labels) == (before.fingerprint, before.features, before.labels)


@of_each_version
def test_tfds_loads_a_kept_dataset(version: pathlib.Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    builder = tfds.builder_from_directory(str(version / "photos"))
    loaded = {each["image/key"] for each in builder.as_dataset(split="train+test").as_numpy_iterator()}
    assert {key.decode() for key in loaded} == kept_datasets.photos().keys()


def test_newer_catalog_state_of_images_and_state_of_a_reader_are_refused(tmp_path: pathlib.Path) -> None:
    version = VERSIONS[-1]
    photos = shutil.copytree(version / "photos", tmp_path / "photos")
    fields = json.loads((photos / "catalog.json").read_text())
    fields |= {"format_version": 99, "versions": {"imagebeam": "9.1.0"}}
    (photos / "catalog.json").write_text(json.dumps(fields))
    with error_texts.raises("catalog-other-format"):
        imagebeam.open_dataset(photos)
    case = json.loads((version / kept_datasets.CASES).read_text())["global"]
    for newer in ({"version": 2}, {"lanes": 3}):
        with error_texts.raises("state-unreadable"):
            imagebeam.ReaderState.from_dict({**case["state"], "imagebeam": "9.1.0", **newer})
    with pytest.raises(errors.ConfigError, match=r"this is imagebeam .*: update it"):
        imagebeam.ReaderState.from_dict({**case["state"], "version": 2, "imagebeam": None})
