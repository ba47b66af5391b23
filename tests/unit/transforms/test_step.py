from __future__ import annotations

import functools
import logging
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam import coders, pvalue
from apache_beam.metrics import MetricsFilter
from apache_beam.options import pipeline_options
from apache_beam.runners import pipeline_utils

from imagebeam import catalog
from imagebeam.pipelines import convert
from imagebeam.pipelines import job as job_lib
from imagebeam.pipelines.config import model as config_lib
from imagebeam.transforms import dataset_settings, elements, rank_references, step
from imagebeam.transforms.duplicates import drop_or_report
from imagebeam.transforms.plan import compact_snapshot
from imagebeam.transforms.updates import compare_with_snapshot
from tests import image_sets, job_graphs

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


# ---- ref batches


GROUPS = {"by": "filename", "pattern": r"(?P<label>[a-z]+)(?P<one>\d+)"}
SHARES = {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}, "stratify": True}
UPDATE = dataset_settings.SnapshotSettings("/nowhere", "2026-01-02", base="2026-01-01")

AddSteps = Callable[[beam.Pipeline], Any]


def add_compaction(pipeline: beam.Pipeline) -> None:
    listed = pipeline | "List" >> compact_snapshot.ListRecords("/nowhere", ["train"])
    _ = listed.refs | "Rank" >> rank_references.RankInSplits(rank_references.ListedOrder())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("pets")
    image_sets.write_folder(folder / "in", per_label=1)
    return folder


def steps_of(folder: pathlib.Path, fields: dict[str, Any]) -> AddSteps:
    return functools.partial(job_graphs.add_conversion, folder=folder, source={"uri": str(folder / "in")}, **fields)


def collections_of(pipeline: beam.Pipeline) -> Iterator[tuple[str, beam.PCollection[Any]]]:
    """Yields each collection that a step takes, with the name of the step."""
    found: list[tuple[str, beam.PCollection[Any]]] = []
    pipeline.visit(pipeline_utils.group_by_key_input_visitor())  # as a runner does before it

    class Visitor(beam.pipeline.PipelineVisitor):
        def visit_transform(self, transform_node: Any) -> None:
            found.extend((transform_node.full_label, each) for each in transform_node.inputs)

    pipeline.visit(Visitor())
    return (each for each in found if isinstance(each[1], pvalue.PCollection))


def coder_of(collection: beam.PCollection[Any]) -> coders.Coder:
    return coders.registry.get_coder(collection.element_type)


def pickled_batches(add_steps: AddSteps) -> list[str]:
    """Returns the steps that take batches with another coder than the one that Beam infers with its type checks."""
    checked = list(collections_of(job_graphs.pipeline_of(add_steps)))
    trusted = list(collections_of(job_graphs.pipeline_of(add_steps, "--no_pipeline_type_check")))
    assert [label for label, _ in trusted] == [label for label, _ in checked]
    batches = [pair for pair in zip(checked, trusted) if "RefBatchCoder" in repr(coder_of(pair[0][1]))]
    assert batches
    return [label for (label, one), (_, other) in batches if coder_of(one) != coder_of(other)]


def test_graph_without_type_checks_packs_batches_by_their_coder(folder: pathlib.Path) -> None:
    for fields in [
        {"split": SHARES, "duplicates": {"exact": "drop"}},  # stratified, drops duplicates
        {"label": GROUPS, "split": SHARES | {"group": "one"}},  # stratified groups
        {"output": {"uri": "/nowhere", "shuffle": "none"}},  # in the order of the listing
        {"snapshot": UPDATE},  # update
    ]:
        assert pickled_batches(steps_of(folder, fields)) == []
    assert pickled_batches(add_compaction) == []


def test_batches_without_type_are_found(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "typed", lambda batches, element_type=None: batches)
    found = pickled_batches(steps_of(folder, {}))
    assert any(label.endswith("Rank/KeyBySplit") for label in found)


# ---- spread rows


REFS = [elements.ImageRef(f"{number}.jpg", f"/in/{number}.jpg", 9, number) for number in range(40)]


def blocks_of(fn: step.SpreadRowsFn, batch_refs: int) -> Iterator[tuple[int, Any]]:
    """Yields what a bundle of the references becomes, in batches of `batch_refs`."""
    fn.start_bundle()
    for start in range(0, len(REFS), batch_refs):
        yield from fn.process(step.RefBatch(REFS[start : start + batch_refs]))
    yield from (each.value for each in fn.finish_bundle())


def test_rows_are_in_the_block_of_their_key_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for make_fn, has_count in [
        (drop_or_report._SpreadFn, False),  # drop-duplicates
        (lambda: compare_with_snapshot._SpreadListedFn(False, by_content=False), True),  # compare
    ]:
        for max_pending, batch_refs in [
            (1, 7),  # each-batch
            (10, 4),  # some-batches
            (1000, 7),  # at-the-end-of-the-bundle
        ]:
            monkeypatch.setattr(step, "MAX_PENDING", max_pending)
            found, intervals = [], []
            for interval, block in blocks_of(make_fn(), batch_refs):
                count, packed = block if has_count else (None, block)
                rows = list(elements.unpack_rows(packed))
                assert count in (None, len(rows))
                assert {step.interval_of_key(row[0]) for row in rows} == {interval}
                found += [row[0] for row in rows]
                intervals.append(interval)
            assert sorted(found) == sorted(ref.key for ref in REFS)
            if max_pending > len(REFS):
                assert len(intervals) == len(set(intervals))
