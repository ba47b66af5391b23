"""The steps of WriteDataset one by one, for pipelines that need another step between them. See docs/beam.md.

Each is made from the job that `make_job` returns.
"""

import dataclasses

import apache_beam as beam
from apache_beam.typehints import decorators

from imagebeam.beam import pipeline_job, write_dataset
from imagebeam.pipelines import job as job_lib
from imagebeam.pipelines import write_references
from imagebeam.transforms import elements, list_images, step, stratify_splits, write_shards
from imagebeam.transforms.sources import reference_rules


class ListImages(beam.PTransform):
    """The pipeline -> the images at `source.uri`: `images` of RefBatch, `rejects` of Reject, and `tallies`.

    A `RefBatch` is a list of `ImageRef`, at most 10,000, without the labels and splits that the config finds in paths.
    """

    def __init__(self, job: job_lib.Job):
        super().__init__()
        self._job = job

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, pbegin: beam.pvalue.PBegin) -> list_images.ListedImages:
        rules = reference_rules.ReferenceRules(self._job.rules.listing)
        return pbegin | "List" >> list_images.ListImages(self._job.source, rules)


class LabelImages(beam.PTransform):
    """RefBatch -> `images` of RefBatch with labels, `rejects` of Reject, and `tallies`."""

    def __init__(self, job: job_lib.Job):
        super().__init__()
        self._rules = dataclasses.replace(pipeline_job.rules_after_listing(job), split=None)

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, refs: beam.PCollection[step.RefBatch]) -> list_images.ListedImages:
        return refs | "Label" >> list_images.ApplyRules(self._rules)


class AssignSplits(beam.PTransform):
    """RefBatch with labels -> `images` of RefBatch with splits, `rejects` of Reject, and `tallies`."""

    def __init__(self, job: job_lib.Job):
        super().__init__()
        self._job = job

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, refs: beam.PCollection[step.RefBatch]) -> list_images.ListedImages:
        split = refs | "Split" >> list_images.ApplyRules(reference_rules.ReferenceRules(split=self._job.rules.split))
        stratified = split.images | "Stratify" >> stratify_splits.StratifySplits(self._job.split)
        return split._replace(images=stratified)


class PlanDataset(beam.PTransform):
    """RefBatch with labels and splits -> the plan, and what the next steps need of it.

    Ranks all references, takes the lock of the output, and decides the shards. The plan is `plan`, one `DatasetPlan`;
    `runs` are the references in order. It takes all `rejects` and `tallies` of the steps before, flattened: every image
    that one of these counts must be among the references or the rejects.
    """

    def __init__(self, job: job_lib.Job, listed: list_images.ListedImages):
        super().__init__()
        self._job = job
        self._listed = listed

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, refs: beam.PCollection[step.RefBatch]) -> write_references.PlannedReferences:
        run_id = refs.pipeline | "StartRun" >> write_references.StartRun()
        nothing = refs.pipeline | "NoBytes" >> beam.Create([]).with_output_types(write_references.Spilled)
        run = write_references.PipelineRun(run_id, nothing)
        return refs | "Plan" >> write_references.PlanReferences(self._job, self._listed, run)


class PlaceInShards(beam.PTransform):
    """What PlanDataset returns, `planned.runs` -> `((split, shard index), [(first rank, packed references)])`."""

    def __init__(self, planned: write_references.PlannedReferences):
        super().__init__()
        self._place = write_shards.PlaceInShards(planned.plan, planned.ranking)

    @decorators.no_annotations  # the type of its output is long
    def expand(self, runs: beam.PCollection) -> beam.PCollection:
        return runs | "Place" >> self._place


class WriteShards(beam.PTransform):
    """What PlaceInShards yields -> `WrittenShard`, one for each file that waits for the commit."""

    def __init__(self, job: job_lib.Job, planned: write_references.PlannedReferences):
        super().__init__()
        self._write = write_references.WritePlaced(job, planned)

    @decorators.no_annotations
    def expand(self, placed: beam.PCollection) -> beam.PCollection[elements.WrittenShard]:
        return placed | "Write" >> self._write


class CommitDataset(beam.PTransform):
    """All `WrittenShard` -> one `CommittedDataset`. Releases the lock of the output, also if it refuses to commit."""

    def __init__(self, job: job_lib.Job, planned: write_references.PlannedReferences):
        super().__init__()
        self._output = job.settings.output
        self._commit = write_references.CommitWritten(job, planned)

    @decorators.no_annotations
    def expand(
        self, written: beam.PCollection[elements.WrittenShard]
    ) -> beam.PCollection[write_dataset.CommittedDataset]:
        return written | "Commit" >> self._commit | "Describe" >> write_dataset.describe(self._output)
