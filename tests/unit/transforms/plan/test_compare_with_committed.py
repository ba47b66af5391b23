from __future__ import annotations

import dataclasses
import pathlib

import pytest

from imagebeam import catalog as catalog_lib
from imagebeam.transforms import dataset_settings, summaries
from imagebeam.transforms.commit import commit_dataset
from imagebeam.transforms.elements import DatasetPlan, ImageRef
from imagebeam.transforms.plan import decide_plan, plan_dataset
from tests import error_texts
from tests.unit.transforms import small_dataset


def make_plan(dataset: dataset_settings.DatasetSettings) -> DatasetPlan:
    """The plan of 100 images, compared with what the output holds."""
    ranking, rejects = small_dataset.make_ranking({"train": 100}), summaries.RejectSummary({}, 0, None)
    plan = decide_plan.make_plan(dataset, ranking, summaries.Tally(100, {}, ()), rejects)
    assert plan.action == "write"
    return plan_dataset.compare_with_committed(dataset, plan)


@pytest.fixture
def dataset(tmp_path: pathlib.Path) -> dataset_settings.DatasetSettings:
    return small_dataset.make_settings(tmp_path / "out")


@pytest.fixture
def committed(dataset: dataset_settings.DatasetSettings, tmp_path: pathlib.Path) -> catalog_lib.Catalog:
    """The dataset of `make_plan(dataset)`, committed with 10 images."""
    refs = small_dataset.make_refs(tmp_path / "pets")
    return commit_as(make_plan(dataset).fingerprint, dataset, refs)


def commit_as(fingerprint: str, dataset: dataset_settings.DatasetSettings, refs: list[ImageRef]) -> catalog_lib.Catalog:
    plan = small_dataset.make_plan({"train": refs}, fingerprint=fingerprint)
    written = small_dataset.write_shards(dataset, plan, {"train": refs})
    catalog = commit_dataset.Committer(dataset, "pets", {}).commit(plan, written, [])
    assert catalog is not None
    return catalog


def test_plan_beside_another_dataset_is_refused_and_overwrites_on_request(
    dataset: dataset_settings.DatasetSettings, committed: catalog_lib.Catalog
) -> None:
    other = dataclasses.replace(dataset, identity='{"seed": 1}')
    plan = make_plan(other)
    error_texts.check(plan.error, "output-other-dataset")
    assert make_plan(dataclasses.replace(other, overwrite=True)).action == "write"


def test_plan_over_an_index_or_the_snapshot_of_another_run_is_refused(
    dataset: dataset_settings.DatasetSettings, committed: catalog_lib.Catalog
) -> None:
    snapshot = dataset_settings.SnapshotSettings("/pets", "000002")
    other = dataclasses.replace(dataset, identity='{"seed": 1}', snapshot=snapshot)
    error_texts.check(make_plan(other).error, "snapshot-by-another-run")
    indexed = dataclasses.replace(committed, indexed={"complete": True})
    pathlib.Path(dataset.paths.catalog).write_text(indexed.to_json())
    error_texts.check(make_plan(dataset).error, "output-indexed")


def test_plan_of_committed_dataset_with_damage_is_refused_and_writes_again_on_request(
    dataset: dataset_settings.DatasetSettings, committed: catalog_lib.Catalog
) -> None:
    output = pathlib.Path(dataset.output)
    catalog = dataclasses.replace(committed, files={**committed.files, "transform_fn/x": catalog_lib.File(3, None)})
    (output / "catalog.json").write_text(catalog.to_json())
    (output / "transform_fn").mkdir()
    (output / "transform_fn/x").write_bytes(b"123")
    for name, data in [
        ("train-00001-of-00002.tfrecord", None),
        ("train-00000-of-00002.tfrecord", b"123"),
        ("index/train-00001-of-00002.index", None),
        ("index/train-00001-of-00002.sizes", b"12"),
        ("transform_fn/x", None),
        ("transform_fn/x", b"12"),
    ]:
        assert make_plan(dataset).action == "keep"
        whole = (output / name).read_bytes()
        (output / name).unlink()
        if data is not None:
            (output / name).write_bytes(data)
        error_texts.check(make_plan(dataset).error, "dataset-damaged")
        assert make_plan(dataclasses.replace(dataset, overwrite=True)).action == "write"
        (output / name).write_bytes(whole)


def test_plan_beside_unreadable_catalog_is_refused_and_overwrites_on_request(
    dataset: dataset_settings.DatasetSettings,
) -> None:
    output = pathlib.Path(dataset.output)
    output.mkdir()
    (output / "catalog.json").write_text("{}")
    error_texts.check(make_plan(dataset).error, "catalog-unreadable")
    assert make_plan(dataclasses.replace(dataset, overwrite=True)).action == "write"


def test_plan_beside_stray_shard_is_refused_unless_a_commit_of_ours_left_it(
    dataset: dataset_settings.DatasetSettings,
) -> None:
    output = pathlib.Path(dataset.output)
    output.mkdir()
    (output / "README.md").write_text("not a shard")
    (output / "train-00007-of-00004.tfrecord").write_text("nor this: 7 of 4")
    assert make_plan(dataset).action == "write"
    (output / "validation-00000-of-00004").write_bytes(b"")
    for overwrite in (False, True):
        error_texts.check(make_plan(dataclasses.replace(dataset, overwrite=overwrite)).error, "output-unnamed-shards")
    staged = pathlib.Path(dataset.paths.staging("f1"))
    staged.mkdir(parents=True)
    pathlib.Path(dataset.paths.commit_lock).write_text("f1")
    # a commit was cut short, but it did not put this file there
    error_texts.check(make_plan(dataset).error, "output-unnamed-shards")
    shard = catalog_lib.Shard("validation-00000-of-00004", 0, 0, 0)
    catalog = dataclasses.replace(EMPTY, splits={"validation": catalog_lib.Split((shard,))})
    (staged / "catalog.json").write_text(catalog.to_json())
    assert make_plan(dataset).action == "write"


EMPTY = catalog_lib.Catalog(
    name="pets",
    fingerprint="f1",
    compression="none",
    splits={},
    labels=(),
    label_kind=None,
    label_base=0,
    features=(),
    config={},
    counts=catalog_lib.Counts(0, 0, {}, {}),
    versions={},
    created="",
)


@pytest.mark.parametrize(
    "name", ["labels.txt", "statistics.json", "dataset_info.json", "features.json", "croissant.json"]
)
def test_plan_beside_users_file_of_our_name_is_refused_unless_a_commit_of_ours_left_it(
    dataset: dataset_settings.DatasetSettings, name: str
) -> None:
    output = pathlib.Path(dataset.output)
    output.mkdir()
    (output / name).write_text("the user's own")
    error_texts.check(make_plan(dataset).error, "output-not-empty")
    assert make_plan(dataclasses.replace(dataset, overwrite=True)).action == "write"
    staged = pathlib.Path(dataset.paths.staging("f1"))
    staged.mkdir(parents=True)
    named = dataclasses.replace(EMPTY, labels=("cat",), files={name: catalog_lib.File(1, 0)})
    (staged / "catalog.json").write_text(named.to_json())
    assert make_plan(dataset).action == "write"
