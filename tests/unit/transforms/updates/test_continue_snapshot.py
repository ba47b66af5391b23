from __future__ import annotations

import dataclasses
import pathlib

from imagebeam import catalog as catalog_lib
from imagebeam import features
from imagebeam.transforms import dataset_settings
from imagebeam.transforms.commit import commit_dataset
from imagebeam.transforms.plan import compact_snapshot
from imagebeam.transforms.updates import continue_snapshot
from tests import error_texts
from tests.unit.transforms import small_dataset

PLAN = small_dataset.make_plan({}, inputs={"config": {}, "others": {}, "writer": 2})


def commit(folder: pathlib.Path, compression: str) -> catalog_lib.Catalog:
    refs = small_dataset.make_refs(folder / "pets")
    settings = small_dataset.make_settings(folder / "out", compression=compression)
    plan = small_dataset.make_plan({"train": refs})
    written = small_dataset.write_shards(settings, plan, {"train": refs})
    catalog = commit_dataset.Committer(settings, "pets", {}).commit(plan, written, [])
    assert catalog is not None
    return catalog


def test_vocabulary_that_moves_ids_is_refused(tmp_path: pathlib.Path) -> None:
    base = dataclasses.replace(commit(tmp_path, "none"), inputs=PLAN.inputs)
    snapshot = dataset_settings.SnapshotSettings(str(tmp_path), "000002", "000001")
    for labels in (("dog", "cat"), ("cat",)):
        plan = dataclasses.replace(PLAN, labels=labels)
        error_texts.check(continue_snapshot.find_error(snapshot, base, plan, base.features), "vocabulary-moves-ids")
    plan = dataclasses.replace(PLAN, labels=base.labels)
    assert continue_snapshot.find_error(snapshot, base, plan, base.features) is None


def test_feature_of_another_type_or_shape_is_refused(tmp_path: pathlib.Path) -> None:
    committed = commit(tmp_path, "none")
    embedding = features.Feature("image/embedding", "image/embedding", features.FLOAT, True, (512,))
    before = features.in_order((*committed.features, embedding))
    base = dataclasses.replace(committed, inputs=PLAN.inputs, features=before)
    base = type(base).from_json(base.to_json(), "catalog.json")
    snapshot = dataset_settings.SnapshotSettings(str(tmp_path), "000002", "000001")
    plan = dataclasses.replace(PLAN, labels=base.labels)
    assert continue_snapshot.find_error(snapshot, base, plan, before) is None
    for other in (embedding._replace(shape=(2, 256)), embedding._replace(shape=None), None):
        now = features.in_order((*committed.features, *([other] if other else [])))
        error_texts.check(continue_snapshot.find_error(snapshot, base, plan, now), "snapshot-other-features")


def test_records_of_a_shard_that_differs_from_the_catalog_are_not_copied(tmp_path: pathlib.Path) -> None:
    for compression, code in [("none", "index-differs"), ("gzip", "shard-records-differ")]:
        catalog = commit(tmp_path / compression, compression)
        shard = catalog.splits["train"].shards[0]
        folder = str(tmp_path / compression / "out")
        assert len(compact_snapshot.offsets_of(folder, shard, compression)) == shard.records + 1
        other = dataclasses.replace(shard, records=shard.records + 1, index_crc32c=0)
        with error_texts.raises(code):
            compact_snapshot.offsets_of(folder, other, compression)
