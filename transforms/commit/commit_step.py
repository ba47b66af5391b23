"""The last steps of a pipeline: store early rejects, merge the statistics of all shards, and commit the dataset.

The number of rejects in the plan decides the number of files with those of the steps before the shards. The commit
joins them in the order of their names.

Statistics name every class. So they are merged on the workers that wrote the shards, and the commit gets one value for
each split, and shards without statistics.
"""

import array
import dataclasses
import logging
import pickle
import time
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.typehints import decorators

from imagebeam import errors, plural
from imagebeam.transforms import dataset_settings, elements, step, summaries
from imagebeam.transforms.commit import commit_dataset
from imagebeam.transforms.output import run_report
from imagebeam.transforms.publish import commit_rights
from imagebeam.transforms.shard import image_hashes, shard_writer, statistics, writer_processes
from imagebeam.transforms.snapshots import image_states
from imagebeam.transforms.updates import compare_with_snapshot, continue_snapshot

_LOGGER = logging.getLogger("imagebeam.transforms.commit.commit_dataset")  # users select lines of logs by this name

_REJECTS_PER_FILE = 20_000  # sorted in 15 MB; more only beyond 80 million rejects


def count_files(plan: elements.DatasetPlan) -> int:
    """Returns the number of files for the rejects of a plan; 0 if they are not stored."""
    if plan.action != "write" and plan.exit_code != errors.TooManyRejectsError.exit_code:
        return 0  # the output must stay as it is
    return step.count_files(sum(plan.rejected.values()), _REJECTS_PER_FILE)


def _store(
    element: tuple[int, Iterable[elements.Reject]],
    settings: dataset_settings.DatasetSettings,
    plan: elements.DatasetPlan,
) -> Iterator[str]:
    """(file index, [Reject]) -> name of the file in the staging folder."""
    content, staging = shard_writer.encode_rejects(sorted(element[1])), settings.paths.staging(plan.fingerprint)
    yield step.stage_file(staging, "early-", element[0], count_files(plan), shard_writer.REJECTS_SUFFIX, content)


@dataclasses.dataclass
class StoreDeadLetters(step.Step):
    """Writes rejects into files in the staging folder and yields the files' names."""

    settings: dataset_settings.DatasetSettings
    plan: beam.PCollection[elements.DatasetPlan]  # one element

    def expand(self, rejects: beam.PCollection[elements.Reject]) -> beam.PCollection[str]:
        plan = beam.pvalue.AsSingleton(self.plan)
        return (
            rejects
            | "KeyByFile"
            >> beam.FlatMap(step.key_by_file, count_files, plan).with_output_types(tuple[int, elements.Reject])
            | "GroupByFile" >> beam.GroupByKey()  # (file index, [Reject])
            | "Store" >> beam.FlatMap(_store, settings=self.settings, plan=plan).with_output_types(str)
        )


SplitStatistics = tuple[str, bytes]  # split, pickled statistics: Beam encodes the strings of a dict as UTF-8


class MergedStatistics(NamedTuple):
    """The outputs of MergeStatistics."""

    written: beam.PCollection[elements.WrittenShard]  # without statistics
    statistics: beam.PCollection[SplitStatistics]  # one for each split


def _take_statistics(written: elements.WrittenShard) -> Iterator[Any]:
    """WrittenShard -> the same without its statistics; its split and statistics."""
    yield written._replace(statistics={})
    yield beam.pvalue.TaggedOutput("statistics", (written.split, pickle.dumps(written.statistics)))


def _merge_pickled(parts: Iterable[bytes]) -> bytes:
    return pickle.dumps(statistics.merge_statistics(map(pickle.loads, parts)))


@decorators.with_input_types(elements.WrittenShard)
@dataclasses.dataclass
class MergeStatistics(step.Step):
    """Takes the statistics out of written shards and merges them by split."""

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, written: beam.PCollection[elements.WrittenShard]) -> MergedStatistics:
        taken = written | "TakeStatistics" >> beam.FlatMap(_take_statistics).with_output_types(
            elements.WrittenShard, statistics=SplitStatistics
        ).with_outputs("statistics", main="written")
        return MergedStatistics(taken.written, taken.statistics | "Merge" >> beam.CombinePerKey(_merge_pickled))


def unpack_by_split(merged: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """Returns the statistics of each split from the output of MergeStatistics."""
    return {split: pickle.loads(packed) for split, packed in merged.items()}


class _CountFn(beam.DoFn):
    """(index of a shard, packed indexes of its removed records) -> split and statistics of these records."""

    def __init__(self, folder: str):
        self._folder = folder
        self._states: image_states.SnapshotStates | None = None

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[SplitStatistics]:
        index, packed = element
        if self._states is None:
            self._states = image_states.SnapshotStates(self._folder)
        read = self._states.read(index)
        counts = statistics.StatisticsBuilder()
        for records in packed:
            for record in array.array("I", records):
                image = read.images[record]
                assert image.measures is not None, "the states are read with measures"
                counts.add(image.labels, image.measures)
        yield read.split, pickle.dumps(counts.build())


class CountRemoved(beam.PTransform):
    """The records that a run removes from the snapshot in a folder -> their statistics, one for each split."""

    def __init__(self, folder: str):
        super().__init__()
        self._folder = folder

    def expand(self, removed: beam.PCollection[elements.RemovedRecords]) -> beam.PCollection[SplitStatistics]:
        return (
            removed
            | "ByShard" >> beam.GroupByKey()  # (index of the shard, [packed indexes])
            | "Count" >> beam.ParDo(_CountFn(self._folder)).with_output_types(SplitStatistics)
            | "Merge" >> beam.CombinePerKey(_merge_pickled)
        )


def _after_reading(
    plan: elements.DatasetPlan, comparison: summaries.Comparison, written: Sequence[elements.WrittenShard]
) -> tuple[elements.DatasetPlan, summaries.Comparison]:
    """Returns the plan and the comparison of a snapshot with what really became of its images."""
    if not plan.snapshot:
        return plan, comparison
    comparison = comparison.after_reading(written)
    entry: dict[str, Any] = {**plan.snapshot, "rejected": sum(comparison.rejected.values())}
    if "compacted" not in entry:  # compares nothing
        entry |= comparison.totals()
    return dataclasses.replace(plan, snapshot=entry), comparison


class _CommitFn(beam.DoFn):
    """Runs the commit once all shards are written, reports its result, and fails the job if it fails."""

    def __init__(self, committer: commit_dataset.Committer):
        self._committer = committer

    def process(
        self,
        _: bytes,
        plan: elements.DatasetPlan,
        written: Sequence[elements.WrittenShard],
        early_rejects: Sequence[str],
        merged: Mapping[str, bytes],
        removed_statistics: Mapping[str, bytes] = types.MappingProxyType({}),
        comparison: summaries.Comparison = summaries.NO_SNAPSHOT,
        removed: Iterable[elements.RemovedRecords] = (),
        reject_states: Iterable[elements.NamedFile] = (),
        duplicates: Sequence[image_hashes.StoredDuplicates] = (),
    ) -> Iterator[str]:
        plan = dataclasses.replace(plan, times={**plan.times, "committing": time.time()})
        by_split = unpack_by_split(merged)
        plan, comparison = _after_reading(plan, comparison, written)
        removed_by_split = unpack_by_split(removed_statistics)
        changes = continue_snapshot.Changes(comparison, removed, removed_by_split, reject_states)
        notes: list[str] = []
        lock = commit_rights.StepsLock.of(plan)
        try:
            with commit_rights.renewed(plan):
                catalog = self._committer.commit(
                    plan, written, early_rejects, by_split, changes, duplicates, notes.append
                )
        except errors.ImagebeamError as e:
            rejected = commit_dataset.count_rejects(plan, written)
            self._report(run_report.RunReport("refused", plan, error=e, rejected=rejected))
            _LOGGER.info("refused %s, exit code %d", self._committer.settings.output, e.exit_code)
            if lock is not None:
                lock.end()
            raise
        state: run_report.State = "kept" if catalog is None else "committed"
        if catalog is not None:
            notes += commit_dataset.notes_on_dataset(self._committer.settings, plan, written, by_split)
            plan = dataclasses.replace(plan, notes=(*plan.notes, *notes))
        kept = sum(each.is_kept for each in written)
        were = "was" if kept == 1 else "were"
        message = f"{kept:,} of {plural.count(len(written), 'shard')} {were} finished by an earlier run" if kept else ""
        if state == "kept" and not plan.message:
            message = f"{self._committer.settings.output} holds this dataset already: same config, same images"
            snapshot = self._committer.settings.snapshot
            if snapshot is not None and snapshot.retry_rejects:
                message = f"no image that snapshot {snapshot.base} rejected is good now"
        self._report(run_report.RunReport(state, plan, plan.message or message))
        _LOGGER.info(
            "%s %s: %d shards; %s", state, self._committer.settings.output, len(written), message or "none kept"
        )
        commit_rights.leave_output(self._committer.settings)
        if lock is not None:
            lock.end()
        yield state

    def _report(self, report: run_report.RunReport) -> None:
        plan = dataclasses.replace(report.plan, times={**report.plan.times, "committed": time.time()})
        dataclasses.replace(report, plan=plan).write(self._committer.settings.report)


@dataclasses.dataclass
class CommitDataset(step.Step):
    """Commits the shards once all of them are written; yields the state of the run."""

    committer: commit_dataset.Committer
    plan: beam.PCollection[elements.DatasetPlan]  # one element
    early_rejects: beam.PCollection[str]  # names of staged files
    compared: compare_with_snapshot.ComparedImages | None = None  # with the snapshot before
    duplicates: "beam.PCollection[image_hashes.StoredDuplicates] | None" = None
    reject_states: "beam.PCollection[elements.NamedFile] | None" = None  # when a snapshot is compacted

    def expand(self, written: beam.PCollection[elements.WrittenShard]) -> beam.PCollection[str]:
        taken = written | "MergeStatistics" >> MergeStatistics()
        changes: dict[str, Any] = {}
        if self.compared is not None and self.compared.comparison is not None:
            changes["comparison"] = self.compared.comparison
            changes["removed"] = beam.pvalue.AsIter(self.compared.removed)
            snapshot = self.committer.settings.snapshot
            if snapshot is not None and snapshot.base:
                counted = self.compared.removed | "CountRemoved" >> CountRemoved(snapshot.base_folder)
                changes["removed_statistics"] = beam.pvalue.AsDict(counted)
        if self.duplicates is not None:
            changes["duplicates"] = beam.pvalue.AsList(self.duplicates)
        if self.reject_states is not None:
            changes["reject_states"] = beam.pvalue.AsIter(self.reject_states)
        committer = dataclasses.replace(self.committer, writers=writer_processes.current_token())
        return (
            written.pipeline
            | "StartCommit" >> beam.Impulse()
            | "Commit"
            >> beam.ParDo(
                _CommitFn(committer),
                plan=beam.pvalue.AsSingleton(self.plan),
                written=beam.pvalue.AsList(taken.written),
                early_rejects=beam.pvalue.AsList(self.early_rejects),
                merged=beam.pvalue.AsDict(taken.statistics),
                **changes,
            ).with_output_types(str)
        )
