"""Counters and log lines of whole jobs, as runners and workers' logs show them."""

from __future__ import annotations

import logging
import pathlib
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics import MetricsFilter
from apache_beam.options import pipeline_options

from imagebeam import catalog
from imagebeam.pipelines import convert
from imagebeam.pipelines import job as job_lib
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms import elements, step
from tests import image_sets

FN_API = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"


def run(images: pathlib.Path, folder: pathlib.Path, **sections: Any) -> dict[str, int]:
    """Runs a job on Beam alone, without writer processes; returns its counters, added up over the steps."""
    fields = {"source": {"uri": str(images)}, "output": {"uri": str(folder)}, "rejects": {"max_fraction": 1.0}}
    for name, values in sections.items():
        fields[name] = {**fields.get(name, {}), **values}
    job = job_lib.make_job(job_lib.Checked(config_lib.parse_config(fields, where="the test"), 1))
    pipeline = beam.Pipeline(options=pipeline_options.PipelineOptions([f"--runner={FN_API}"]))
    convert.add_steps(pipeline, job)
    result = pipeline.run()
    result.wait_until_finish()
    total: dict[str, int] = {}
    for each in result.metrics().query(MetricsFilter().with_namespace(step.NAMESPACE))["counters"]:
        total[each.key.metric.name] = total.get(each.key.metric.name, 0) + each.committed
    return total


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Six images, one of them broken, and one that has no label by its name."""
    folder = tmp_path_factory.mktemp("images")
    image_sets.write_folder(folder, per_label=3)
    (folder / "cat" / "0.jpg").write_bytes(b"no image")
    return folder


@pytest.mark.parametrize("writer", ["stream", "beam"])
def test_counters_add_up_to_what_was_listed(images: pathlib.Path, tmp_path: pathlib.Path, writer: str) -> None:
    split = {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}}
    found = run(images, tmp_path / "out", output={"num_shards": 1, "writer": writer}, split=split)
    committed = catalog.load_catalog(tmp_path / "out")
    num_bytes = sum(shard.bytes for split in committed.splits.values() for shard in split.shards)
    assert found == {
        "images-listed": 6,
        "images-planned": 6,
        "images-out": 5,
        "bytes-out": num_bytes,
        "rejects-not_an_image": 1,
    }


def test_rejects_of_early_steps_are_counted_and_not_planned(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    label = {"by": "filename", "pattern": r"(?P<label>[12])\.jpg"}
    found = run(images, tmp_path / "out", output={"num_shards": 1}, label=label)
    assert {name: number for name, number in found.items() if name != "bytes-out"} == {
        "images-listed": 6,
        "images-planned": 4,
        "images-out": 4,
        "rejects-no_label": 2,
    }


def test_images_of_shards_that_are_kept_are_counted_apart(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(Exception, match="max_fraction"):  # of Beam's, which quotes a traceback
        run(images, tmp_path / "out", output={"num_shards": 2}, rejects={"max_fraction": 0.0})
    found = run(images, tmp_path / "out", output={"num_shards": 2})
    assert (found["images-kept"], found.get("images-out"), found.get("bytes-out")) == (5, None, None)


def test_log_has_a_line_for_plan_and_summary_and_each_shard_only_for_debugging(
    images: pathlib.Path, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "imagebeam"):
        run(images, tmp_path / "out", output={"num_shards": 2})
    lines = [
        (record.levelname, record.getMessage()) for record in caplog.records if record.name.startswith("imagebeam")
    ]
    told = [text for level, text in lines if level == "INFO"]
    assert len(told) == 2
    assert "write, 6 images listed, 6 to write into 2 shards, rejected {}" in told[0]
    assert told[1] == f"committed {tmp_path / 'out'}: 2 shards; none kept"
    shards = sorted(text for level, text in lines if level == "DEBUG")
    assert [text.split(":")[0] for text in shards] == [
        "wrote train-00000-of-00002.tfrecord",
        "wrote train-00001-of-00002.tfrecord",
    ]


def test_nothing_is_counted_for_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr(step.Metrics, "counter", lambda space, name: _Recorder(seen, f"{space} {name}"))
    step.count("images-out", 0)
    step.count_rejects({"corrupt": 0, "no_label": 2})
    step.count_written(elements.WrittenShard("train", catalog.Shard("s", 3, 40, 1), {"corrupt": 1}, {}))
    step.count_written(elements.WrittenShard("train", catalog.Shard("s", 4, 40, 1), {}, {}, is_kept=True))
    assert seen == [
        ("imagebeam rejects-no_label", 2),
        ("imagebeam images-out", 3),
        ("imagebeam bytes-out", 40),
        ("imagebeam rejects-corrupt", 1),
        ("imagebeam images-kept", 4),
    ]


def test_frames_of_a_file_are_listed_and_planned_when_they_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr(step.Metrics, "counter", lambda _, name: _Recorder(seen, name))
    step.count_written(elements.WrittenShard("train", catalog.Shard("s", 3, 40, 1), {}, {}, further=2))
    assert seen == [("images-out", 3), ("bytes-out", 40), ("images-listed", 2), ("images-planned", 2)]


class _Recorder:
    def __init__(self, seen: list[tuple[str, int]], name: str):
        self._seen, self._name = seen, name

    def inc(self, number: int) -> None:
        self._seen.append((self._name, number))
