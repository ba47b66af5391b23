"""Batches of references keep their coder in the graphs of jobs, which are built without Beam's type checks."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam import coders, pvalue
from apache_beam.runners import pipeline_utils

from imagebeam.transforms import dataset_settings, rank_references, step
from imagebeam.transforms.updates import list_records
from tests import image_sets, job_graphs

GROUPS = {"by": "filename", "pattern": r"(?P<label>[a-z]+)(?P<one>\d+)"}
SHARES = {"by": "hash", "fractions": {"train": 0.5, "test": 0.5}, "stratify": True}
UPDATE = dataset_settings.SnapshotSettings("/nowhere", "2026-01-02", base="2026-01-01")

AddSteps = Callable[[beam.Pipeline], Any]


def add_compaction(pipeline: beam.Pipeline) -> None:
    listed = pipeline | "List" >> list_records.ListRecords("/nowhere", ["train"])
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


def test_graph_of_a_conversion_without_type_checks_packs_batches_by_their_coder(folder: pathlib.Path) -> None:
    for fields in [
        {},  # split-by-hash
        {"split": SHARES},  # stratified
        {"label": GROUPS, "split": SHARES | {"group": "one"}},  # stratified-groups
        {"output": {"uri": "/nowhere", "shuffle": "none"}},  # in-the-order-of-the-listing
        {"duplicates": {"exact": "drop"}},  # drops-duplicates
        {"snapshot": UPDATE},  # update
    ]:
        assert pickled_batches(steps_of(folder, fields)) == []


def test_graph_of_a_compaction_without_type_checks_packs_batches_by_their_coder() -> None:
    assert pickled_batches(add_compaction) == []


def test_batches_without_type_are_found(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "typed", lambda batches, element_type=None: batches)
    found = pickled_batches(steps_of(folder, {}))
    assert "Rank/KeyBySplit" in found
