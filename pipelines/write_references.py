"""The steps from references to a committed dataset. `convert` runs them, and so does a pipeline of the user.

A command holds the lock of the output while its pipeline runs. In a pipeline of the user nothing of imagebeam lives as
long as the run: the steps themselves take the lock, renew it and release it. They take it when all references are
there, so that a pipeline that fails before that has locked nothing.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.typehints import decorators

from imagebeam import errors
from imagebeam.pipelines import job as job_lib
from imagebeam.pipelines.runs import output_lock
from imagebeam.transforms import (
    dataset_settings,
    elements,
    list_images,
    rank_references,
    sort_intervals,
    step,
    stratify_splits,
    summaries,
    write_shards,
    write_shards_with_beam,
)
from imagebeam.transforms.columns import infer_features, transform_columns
from imagebeam.transforms.commit import commit_dataset, commit_step
from imagebeam.transforms.duplicates import drop_or_report
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.plan import plan_dataset
from imagebeam.transforms.publish import commit_rights
from imagebeam.transforms.updates import compare_with_snapshot


def _new_run_id(_: bytes) -> str:
    return output_folder.new_run_id()


class StartRun(beam.PTransform):
    """The pipeline -> the id of its run. Each run of the pipeline has another one, and a retried bundle the same."""

    def expand(self, pbegin: beam.pvalue.PBegin) -> beam.PCollection[str]:
        return (
            pbegin
            | "Start" >> beam.Impulse()
            | "NewId" >> beam.Map(_new_run_id).with_output_types(str)
            | "Keep" >> beam.Reshuffle()
        )


Spilled = tuple[str, int]  # name of a file with bytes of images in the spill folder of the run, and its size


def _hold(
    run_id: str, settings: dataset_settings.DatasetSettings, rankings: Iterable[Any], spilled: Iterable[Spilled]
) -> Iterator[str]:
    output_lock.hold_for_steps(settings.paths.metadata, run_id)
    expected = dict(spilled)
    found = output_folder.sizes_in(settings.paths.spill(run_id)) if expected else {}
    for name, num_bytes in expected.items():
        if found.get(name) not in (-1, num_bytes):  # without the lock, anybody who commits clears the folder
            commit_rights.StepsLock(settings.paths, run_id).end()
            raise errors.BusyError(
                "spill-removed",
                f"another run has committed to {settings.output} while this one received its images, and has removed "
                "them: run the pipeline again once no other run writes there",
            )
    yield run_id


class PipelineRun(NamedTuple):
    """A run without a launcher."""

    run_id: beam.PCollection[str]  # one element
    spilled: beam.PCollection[Spilled]  # all files with bytes of images


@decorators.with_input_types(str)
@dataclasses.dataclass
class HoldOutput(step.Step):
    """The id of a run -> the same, once the run holds the lock of the output. Waits for all rankings.

    Raises, when the pipeline runs:
        BusyError: if another run holds it, or has removed what this one received.
    """

    settings: dataset_settings.DatasetSettings
    rankings: beam.PCollection[summaries.PartialRanking]
    spilled: beam.PCollection[Spilled]  # all files that must be there

    def expand(self, run_id: beam.PCollection[str]) -> beam.PCollection[str]:
        waits = {"rankings": beam.pvalue.AsIter(self.rankings), "spilled": beam.pvalue.AsIter(self.spilled)}
        hold = beam.FlatMap(_hold, settings=self.settings, **waits)
        return run_id | "Hold" >> hold.with_output_types(str)


class PlannedReferences(NamedTuple):
    """The outputs of PlanReferences."""

    plan: beam.PCollection[elements.DatasetPlan]  # one element
    ranking: beam.PCollection[summaries.Ranking]  # one element
    runs: beam.PCollection[sort_intervals.SortedRun]  # all references to write
    rejects: beam.PCollection[elements.Reject]  # of images that are not read, or not written
    duplicates: "beam.PCollection[elements.Duplicate] | None"
    compared: compare_with_snapshot.ComparedImages


@decorators.with_input_types(step.RefBatch)
@dataclasses.dataclass
class PlanReferences(step.Step):
    """Batches of references with labels, and with splits unless these are stratified -> the plan, sorted references."""

    job: job_lib.Job
    listed: list_images.ListedImages  # what came with the references: rejects, tallies, and references with ranks
    run: "PipelineRun | None" = None  # if its steps hold the lock; None if its launcher does

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, refs: beam.PCollection[step.RefBatch]) -> PlannedReferences:
        job, settings, listed = self.job, self.job.settings, self.listed
        split = refs | "Stratify" >> stratify_splits.StratifySplits(job.split)  # the same, all with splits
        compare = compare_with_snapshot.CompareWithSnapshot(
            settings.snapshot, listed.rejects, job.keeps_position, settings.read_ahead
        )
        compared = split | "Compare" >> compare  # ImageRef of new images, Reject; what has changed
        drop = drop_or_report.DropDuplicates(
            settings.duplicates, settings.policy, settings.read_ahead, compared.rejects
        )
        distinct = compared.images | "DropDuplicates" >> drop  # ImageRef of the images that stay, Reject, Duplicate
        rank = rank_references.RankInSplits(job.order, listed.ranked)
        ranked = distinct.images | "Rank" >> rank  # SortedRun; PartialRanking
        held = None
        if self.run is not None:
            hold = HoldOutput(settings, ranked.rankings, self.run.spilled)
            held = self.run.run_id | "HoldOutput" >> hold  # the same, once it holds the lock
        plan_of = plan_dataset.PlanDataset(
            settings, listed.tallies, distinct.rejects, job.table, compared.comparison, job.hints, held
        )
        plan, ranking = ranked.rankings | "Plan" >> plan_of  # DatasetPlan; Ranking
        return PlannedReferences(plan, ranking, ranked.runs, distinct.rejects, distinct.duplicates, compared)


@decorators.with_input_types(write_shards.PlacedShard)
@dataclasses.dataclass
class WritePlaced(step.Step):
    """Placed shards -> WrittenShard, as files in the staging folder."""

    job: job_lib.Job
    planned: PlannedReferences

    def expand(self, placed: beam.PCollection[write_shards.PlacedShard]) -> beam.PCollection[elements.WrittenShard]:
        job, plan, settings = self.job, self.planned.plan, self.job.settings
        _ = plan | "StageInputs" >> plan_dataset.StageInputs(settings)
        transform = transform_columns.TransformColumns(job.transforms, plan, settings, job.scratch)
        transformed = placed | "Transform" >> transform  # the same, with transformed columns
        infer = infer_features.InferFeatures(plan, settings)
        inferred = transformed | "Infer" >> infer  # the same, with features of images
        writer = (
            write_shards_with_beam.WriteShardsWithBeam(plan, settings)
            if job.with_beam
            else write_shards.WriteShards(plan, settings)
        )
        return inferred | "Write" >> writer


@decorators.with_input_types(elements.WrittenShard)
@dataclasses.dataclass
class CommitWritten(step.Step):
    """All written shards -> the state of the run, once the dataset is committed."""

    job: job_lib.Job
    planned: PlannedReferences

    def expand(self, written: beam.PCollection[elements.WrittenShard]) -> beam.PCollection[str]:
        job, planned, settings = self.job, self.planned, self.job.settings
        store = commit_step.StoreDeadLetters(settings, planned.plan)
        early_rejects = planned.rejects | "StoreDeadLetters" >> store  # file name
        report = drop_or_report.ReportDuplicates(settings.duplicates, settings.paths, planned.plan, planned.duplicates)
        duplicates = written | "ReportDuplicates" >> report  # StoredDuplicates
        committer = commit_dataset.Committer(settings, job.name, job.config)
        commit = commit_step.CommitDataset(committer, planned.plan, early_rejects, planned.compared, duplicates)
        return written | "Commit" >> commit


@decorators.with_input_types(step.RefBatch)
@dataclasses.dataclass
class WriteReferences(step.Step):
    """Batches of references, as PlanReferences takes them -> the state of the run, once the dataset is committed."""

    job: job_lib.Job
    listed: list_images.ListedImages
    run: "PipelineRun | None" = None

    def expand(self, refs: beam.PCollection[step.RefBatch]) -> beam.PCollection[str]:
        planned = refs | "PlanReferences" >> PlanReferences(self.job, self.listed, self.run)
        place = write_shards.PlaceInShards(planned.plan, planned.ranking)
        placed = planned.runs | "Place" >> place  # (shard, [packed references])
        written = placed | "WriteShards" >> WritePlaced(self.job, planned)  # WrittenShard
        return written | "CommitDataset" >> CommitWritten(self.job, planned)
