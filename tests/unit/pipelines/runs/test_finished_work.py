"""Finished shards that runs have left, and the plan that a catalog tells."""

from __future__ import annotations

import pathlib

import pytest

from imagebeam import storage
from imagebeam.pipelines.runs import finished_work
from tests import case_tables, datasets, image_sets

DONE = "train-00000-of-00002.tfrecord.done.json"


@case_tables.each_case(
    "files, number",
    {
        "nothing": ([], None),
        "no-staging-folder": (["last-run.json"], None),
        "without-its-description": (["staging-f00d/train-00000-of-00002.tfrecord"], 0),
        "finished": ([f"staging-f00d/{DONE}"], 1),
        "of-two-configs": ([f"staging-f00d/{DONE}", f"staging-beef/{DONE}", "staging-beef/x"], 2),
    },
)
def test_shards_count_once_their_description_is_written(
    tmp_path: pathlib.Path, files: list[str], number: int | None
) -> None:
    for name in files:
        path = tmp_path / ".imagebeam" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    output = str(tmp_path)
    assert finished_work.count_finished_shards(output) == number
    assert finished_work.has_finished_shards(output) == bool(number)
    kept = "; finished shards are kept, run the same command again to go on"
    assert finished_work.describe_kept(output) == (kept if number else "")


def test_mark_of_a_worker_that_died_is_described(tmp_path: pathlib.Path) -> None:
    output, staging = str(tmp_path), tmp_path / ".imagebeam" / "staging-f00d"
    staging.mkdir(parents=True)
    (staging / DONE).write_text("{}")
    assert finished_work.describe_deaths(output) == ""
    (staging / "train-00001-of-00002.tfrecord.begun.json").write_text("{}")
    expected = "; an image may have killed a worker: the same command finds and rejects it"
    assert finished_work.describe_deaths(output) == expected


def test_storage_that_does_not_answer_holds_up_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(uri: str) -> None:
        raise OSError(5, "no answer")

    monkeypatch.setattr(storage, "storage_of", fail)
    assert finished_work.describe_kept("gs://b/out") == finished_work.describe_deaths("gs://b/out") == ""
    with pytest.raises(OSError, match="no answer"):
        finished_work.count_finished_shards("gs://b/out")


def test_plan_of_a_catalog_has_its_splits_and_labels(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=2)
    catalog = datasets.make(tmp_path / "in", tmp_path / "out").catalog
    plan = finished_work.plan_of(catalog)
    assert (plan.fingerprint, plan.listed, plan.labels) == (catalog.fingerprint, 4, ("cat", "dog"))
    assert {name: split.num_records for name, split in plan.splits.items()} == {"train": 4}
