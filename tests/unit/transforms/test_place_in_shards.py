from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Sequence

import apache_beam as beam
import pytest
from apache_beam.runners.portability import fn_api_runner
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.typehints import decorators

from imagebeam.transforms import (
    dataset_settings,
    elements,
    rank_references,
    sort_intervals,
    step,
    stratify_splits,
    write_shards,
)
from imagebeam.transforms import write_shards as place_in_shards_lib
from imagebeam.transforms.commit import commit_dataset, commit_step
from imagebeam.transforms.elements import DatasetPlan, ImageRef, Reason, Reject
from imagebeam.transforms.output import run_report
from imagebeam.transforms.plan import plan_dataset
from imagebeam.transforms.sources import reference_rules
from imagebeam.transforms.summaries import Tally
from tests.unit.transforms import small_dataset
from tests.unit.transforms.small_batches import in_batches

ORDER = sort_intervals.HashOrder(0, sort_intervals.PURPOSE)
Placed = place_in_shards_lib.PlacedShard
REFS = [
    ImageRef(f"{index}\udcff.jpg", f"/data/{index}.jpg", 10, label="cat", split="test" if index % 5 == 0 else "train")
    for index in range(100)
]


def place_in_shards(
    dataset: dataset_settings.DatasetSettings,
    tallies: Sequence[Tally],
    rejects: Sequence[Reject],
    check_plan: Callable[[Sequence[DatasetPlan]], None],
    check_shards: Callable[[Sequence[Placed]], None],
    refs: Sequence[ImageRef] = REFS,
) -> None:
    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        tallied = pipeline | "Tallies" >> beam.Create(tallies).with_output_types(Tally)
        rejected = pipeline | "Rejects" >> beam.Create(rejects).with_output_types(Reject)
        images = pipeline | "Refs" >> beam.Create(in_batches(refs)).with_output_types(step.RefBatch)
        ranked = images | rank_references.RankInSplits(ORDER)
        plan, ranking = ranked.rankings | plan_dataset.PlanDataset(dataset, tallied, rejected)
        placed = ranked.runs | place_in_shards_lib.PlaceInShards(plan, ranking)
        assert_that(plan, check_plan, label="CheckPlan")
        assert_that(placed, check_shards, label="CheckShards")


def unpack(runs: Iterable[place_in_shards_lib.PackedRun]) -> list[ImageRef]:
    return [ref for _, packed in sorted(runs) for ref in elements.unpack_refs(packed)]


def test_place_in_shards_cuts_the_order_of_hashes_into_equal_shards(tmp_path: pathlib.Path) -> None:
    num_shards = {"train": 3, "test": 30}  # the latter more than images
    sizes = {"train": [26, 27, 27], "test": [0, 1, 1] * 10}

    def check_shards(shards: Sequence[Placed]) -> None:
        found = {shard: unpack(runs) for shard, runs in shards}
        assert len(found) == len(shards)
        for split, expected in sizes.items():
            placed = [found.pop((split, index)) for index in range(num_shards[split])]
            assert [len(refs) for refs in placed] == expected
            in_order = sorted(
                (ref for ref in REFS if ref.split == split),
                key=lambda ref: elements.hash64(ref.key, 0, sort_intervals.PURPOSE),
            )
            assert [ref for refs in placed for ref in refs] == in_order
        assert not found

    def check_plan(plans: Sequence[DatasetPlan]) -> None:
        (plan,) = plans
        assert (plan.action, plan.listed, plan.rejected) == ("write", 102, {"no_label": 1, "not_found": 1})
        assert plan.skipped == {"hidden": 3, "non_image": 1}
        assert {name: split.num_records for name, split in plan.splits.items()} == {"train": 80, "test": 20}

    tallies = [Tally(100, {"non_image": 1, "hidden": 1}, ()), Tally(2, {"hidden": 2}, ())]
    rejects = [
        Reject("a", "/data/a", "label", Reason.NO_LABEL, "no folder"),
        Reject("b\udcff", "/data/b\udcff", "list", Reason.NOT_FOUND, "gone"),
    ]
    sizing = dataset_settings.Sizing(num_shards=num_shards)
    dataset = small_dataset.make_settings(tmp_path / "out", sizing=sizing, max_reject_fraction=0.5)
    place_in_shards(dataset, tallies, rejects, check_plan, check_shards)


def test_place_in_shards_of_refused_input_yields_the_plan_and_its_report_and_no_shard(tmp_path: pathlib.Path) -> None:
    report = tmp_path / "report.json"

    def check_plan(plans: Sequence[DatasetPlan]) -> None:
        (plan,) = plans
        assert (plan.action, plan.exit_code, plan.message) == ("refuse", 2, "a; b; c; d; e")
        assert run_report.read_report(str(report)) == run_report.RunReport("planned", plan)

    tallies = [Tally(50, {}, (problem,)) for problem in "gfedcba"]
    dataset = small_dataset.make_settings(tmp_path / "out", report=str(report))
    place_in_shards(dataset, tallies, [], check_plan, equal_to([]))


DATASET = small_dataset.make_settings(pathlib.Path("/nowhere"))
COMMITTER = commit_dataset.Committer(DATASET, "pets", {})


@pytest.mark.parametrize(
    "make_transform",
    [
        pytest.param(
            lambda _: stratify_splits.StratifySplits(reference_rules.SplitRule("directory")), id="StratifySplits"
        ),
        pytest.param(lambda _: rank_references.RankReferences(ORDER), id="RankReferences"),
        pytest.param(lambda _: rank_references.RankInSplits(ORDER), id="RankInSplits"),
        pytest.param(lambda other: plan_dataset.PlanDataset(DATASET, other, other), id="PlanDataset"),
        pytest.param(lambda other: place_in_shards_lib.PlaceInShards(other, other), id="PlaceInShards"),
        pytest.param(lambda _: plan_dataset.StageInputs(DATASET), id="StageInputs"),
        pytest.param(lambda other: write_shards.WriteShards(other, DATASET), id="WriteShards"),
        pytest.param(lambda other: commit_step.StoreDeadLetters(DATASET, other), id="StoreDeadLetters"),
        pytest.param(lambda other: commit_step.CommitDataset(COMMITTER, other, other), id="CommitDataset"),
    ],
)
def test_transform_of_other_elements_is_refused_when_the_pipeline_is_built(
    make_transform: Callable[[beam.PCollection[int]], beam.PTransform], request: pytest.FixtureRequest
) -> None:
    pipeline = beam.Pipeline(runner=fn_api_runner.FnApiRunner())
    other = pipeline | beam.Create([1]).with_output_types(int)
    name = request.node.callspec.id
    with pytest.raises(decorators.TypeCheckError, match=rf"^Input type hint violation at {name}: .* got <class 'int'>"):
        _ = other | make_transform(other)
