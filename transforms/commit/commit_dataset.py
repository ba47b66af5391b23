"""Commits a dataset once all of its shards are staged: checks that nothing is lost, and publishes it."""

import collections
import contextlib
import dataclasses
import datetime
import json
import logging
import os
import platform
import time
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam

from imagebeam import catalog as catalog_lib
from imagebeam import errors, plural, records, snapshots, storage, version
from imagebeam.transforms import dataset_settings, elements, step, summaries
from imagebeam.transforms.classes import class_names
from imagebeam.transforms.commit import commit_checks
from imagebeam.transforms.duplicates import duplicate_counts
from imagebeam.transforms.images import pillow_decoder, resample
from imagebeam.transforms.output import output_folder, run_report, tfds_metadata
from imagebeam.transforms.publish import commit_rights, publish_dataset
from imagebeam.transforms.reports import dead_letters, merge_statistics, snapshot_report, stage_report
from imagebeam.transforms.shard import shard_writer, statistics, writer_processes
from imagebeam.transforms.updates import compare_with_snapshot, continue_snapshot

_LOGGER = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Committer:
    """Turns staged shards into a committed dataset."""

    settings: dataset_settings.DatasetSettings
    name: str
    config: Mapping[str, Any]
    writers: str | None = None  # token of the launcher's writer processes, which make the page

    def commit(
        self,
        plan: elements.DatasetPlan,
        written: Sequence[elements.WrittenShard],
        early_rejects: Sequence[str],
        merged: Mapping[str, Mapping[str, Any]] | None = None,
        changes: continue_snapshot.Changes = continue_snapshot.NO_CHANGES,
        duplicates: Sequence[duplicate_counts.StoredDuplicates] = (),
        note: Callable[[str], None] = _LOGGER.warning,
    ) -> catalog_lib.Catalog | None:
        """Checks that nothing is lost and publishes the dataset. Returns its catalog; None if another run did it.

        Args:
            plan: of the run.
            written: all shards.
            early_rejects: names of staged files.
            merged: statistics by split; None if the shards still have theirs.
            changes: to the snapshot before, besides the shards.
            duplicates: files of all duplicates.
            note: is called with what the user should know of the commit.

        Raises:
            BusyError: if another run holds the lock, commits at this moment, or has committed since the plan was made.
            ImagebeamError: if nothing may be committed; the rejects stay in the output.
        """
        if plan.action == "keep":
            self._keep(plan)
            return None
        if (committed := self._find_committed(plan)) is not None:
            self._move_latest()
            return committed if self._has_committed(plan) else None
        written = sorted(written, key=lambda each: each.shard.name)
        duplicates = sorted(duplicates, key=lambda each: each.name)
        merged = merge_statistics.merge_by_split(written) if merged is None else merged
        staged_rejects = dead_letters.RejectFiles(
            sorted(early_rejects), [w.shard.name + shard_writer.REJECTS_SUFFIX for w in written if w.rejected]
        )
        publication = publish_dataset.Publication(self.settings, plan, written, self._commit_lock(plan))
        try:
            if plan.error is not None:
                raise plan.error
            lock = commit_rights.look_at_lock(self.settings.paths, plan.run_id)
            if self._retries_in_vain(written):
                self._metadata_folder.clear(plan, lock)
                return None
            publication.require_committed()
            staging = self.settings.paths.staging(plan.fingerprint)
            dataset = continue_snapshot.continue_dataset(
                self.settings.snapshot, staging, self._catalog(plan, written, duplicates), written, merged, changes
            )
            dataset = self._name_object_classes(dataset)
            commit_checks.check_dataset(self.settings, plan, written, dataset.catalog)
            self._require_distinct(plan, dataset.catalog, duplicates)
            named = [each for each in written if each.split in dataset.catalog.splits]
            publication = dataclasses.replace(publication, written=named)
            catalog = self._publish(publication, dataset, staged_rejects, lock, duplicates, note)
            self._move_latest()
            return catalog
        except errors.DuplicatesError:  # its text names the file of duplicates
            raise
        except (errors.TooManyRejectsError, errors.DriftError) as e:
            if not (staged_rejects.early or staged_rejects.of_shards):
                raise
            rejects_file = self._leave_rejects(plan, staged_rejects)
            raise e.extended(f"; the rejects are in {rejects_file}") from e
        except (errors.BusyError, errors.VerificationError):
            if (committed := self._find_committed(plan)) is not None:  # the same command, run twice at once
                self._move_latest()
                return committed if self._has_committed(plan) else None
            raise

    def _move_latest(self) -> None:
        """Makes the snapshot that is committed the latest one."""
        if self.settings.snapshot is not None:
            snapshots.move_latest(self.settings.snapshot.dataset, self.settings.snapshot.name)

    def _publish(
        self,
        publication: publish_dataset.Publication,
        dataset: continue_snapshot.Continued,
        staged_rejects: dead_letters.RejectFiles,
        lock: commit_rights.LockView,
        duplicates: Sequence[duplicate_counts.StoredDuplicates],
        note: Callable[[str], None],
    ) -> catalog_lib.Catalog:
        """Publishes the dataset while this run holds the commit lock; returns its catalog."""
        plan, catalog = publication.plan, dataset.catalog
        try:
            rejects = dead_letters.read_lines(self.settings.paths.staging(plan.fingerprint), staged_rejects)
            dataset = snapshot_report.add_report(self.settings, dataset, rejects)
            publication.stage_catalog(catalog)
            with publication.commit_lock.held(lock.ended):  # a second run of this dataset shares the staging folder
                publication.require_committed()
                publication.require_staged()
                files = self._stage_files(
                    plan, dataset, staged_rejects, publication.commit_lock.check, duplicates, note
                )
                catalog = publication.publish(dataclasses.replace(catalog, files=files))
                self._metadata_folder.clear(plan, lock)
        except FileNotFoundError as e:
            publication.require_committed()  # if another run has committed, it has removed what is missing
            raise publication.missing(e.filename) from e
        return catalog

    @property
    def _metadata_folder(self) -> commit_rights.MetadataFolder:
        return commit_rights.MetadataFolder(self.settings)

    def _commit_lock(self, plan: elements.DatasetPlan) -> commit_rights.CommitLock:
        return commit_rights.CommitLock(self.settings.paths, plan.run_id, plan.fingerprint)

    def _keep(self, plan: elements.DatasetPlan) -> None:
        """Removes what earlier runs have left beside the committed dataset, if no other run may need it.

        Raises:
            BusyError: if another run has replaced the dataset since the plan was made.
        """
        found = output_folder.find_catalog(self.settings.output)
        if found is None and self.settings.snapshot is not None:  # nothing has changed since the snapshot before
            return
        if found is None or found.catalog is None or found.record.fingerprint != plan.fingerprint:
            raise errors.BusyError(
                "output-changed",
                f"{self.settings.output} held this dataset when the run was planned, and another run has replaced it "
                "since: run the same command again once that run has ended",
            )
        refusal = duplicate_counts.find_refusal(self.settings.duplicates, found.catalog.duplicates)
        if refusal is not None:  # committed when duplicates were only reported
            raise refusal
        self._move_latest()
        publication = publish_dataset.Publication(self.settings, plan, (), self._commit_lock(plan))
        with contextlib.suppress(errors.BusyError):  # another run writes or commits: it cleans up
            lock = commit_rights.look_at_lock(self.settings.paths, plan.run_id)
            if lock.is_held and self._metadata_folder.left_entries():
                with publication.commit_lock.held(lock.ended):
                    publication.remove_left(found.catalog)
                    self._metadata_folder.clear(plan, lock)

    def _find_committed(self, plan: elements.DatasetPlan) -> catalog_lib.Catalog | None:
        """Returns the catalog of this dataset if it was committed since the plan was made to write it.

        Another run of the same command has committed it, or the bundle that commits runs a second time.
        """
        if plan.action != "write":
            return None
        found = output_folder.find_catalog(self.settings.output)
        if found is None or found.record == plan.committed or found.record.fingerprint != plan.fingerprint:
            return None
        with contextlib.suppress(errors.BusyError):  # whoever holds the lock then may have the same staging folder
            commit_rights.look_at_lock(self.settings.paths, plan.run_id)
            self._metadata_folder.remove_own(plan)
            self._commit_lock(plan).remove_own()
        return found.catalog

    def _has_committed(self, plan: elements.DatasetPlan) -> bool:
        """Returns whether this run is the one that has committed, as far as its report tells."""
        if not plan.run_id:
            return True
        report = run_report.read_report(self.settings.report) if self.settings.report else None
        return report is not None and report.state == "committed"

    def _catalog(
        self,
        plan: elements.DatasetPlan,
        written: Sequence[elements.WrittenShard],
        duplicates: Sequence[duplicate_counts.StoredDuplicates],
    ) -> catalog_lib.Catalog:
        by_split: dict[str, list[catalog_lib.Shard]] = {split: [] for split in plan.splits}
        for each in written:
            by_split[each.split].append(each.shard)
        settings = self.settings
        resizes_in_c = settings.policy.scaling.is_native
        return catalog_lib.Catalog(
            name=self.name,
            fingerprint=plan.fingerprint,
            compression=settings.compression,
            splits={name: catalog_lib.Split(tuple(shards)) for name, shards in by_split.items()},
            labels=plan.labels,
            label_kind=settings.label_kind,
            label_base=settings.label_base,
            features=settings.features_of(plan),
            config=self.config,
            counts=catalog_lib.Counts(
                listed=plan.listed + sum(each.further for each in written),
                written=sum(each.shard.records for each in written),
                rejected=_count_rejects(plan, written),
                skipped=plan.skipped,
            ),
            versions={
                "imagebeam": version.__version__,
                "apache_beam": beam.__version__,
                "python": platform.python_version(),
                "pillow": pillow_decoder.pillow_version(),
                "zlib": zlib.ZLIB_RUNTIME_VERSION,
                **({"resizer": str(resample.library())} if resizes_in_c else {}),
            },
            inputs=plan.inputs,
            snapshot=plan.snapshot,
            keypoints=settings.keypoints,
            duplicates=duplicate_counts.count(settings.duplicates, duplicates),
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        )

    def _name_object_classes(self, dataset: continue_snapshot.Continued) -> continue_snapshot.Continued:
        """Returns the dataset with the classes of its objects in the catalog, also of those that it took over."""
        reader = self.settings.policy.objects
        counts = [each.get(class_names.COUNTS, {}) for each in dataset.merged.values()]
        names = class_names.names_by_id(counts, {} if reader is None else reader.classes.texts())
        return dataset._replace(catalog=dataclasses.replace(dataset.catalog, object_classes=names))

    def _stage_files(
        self,
        plan: elements.DatasetPlan,
        dataset: continue_snapshot.Continued,
        staged_rejects: dead_letters.RejectFiles,
        check: Callable[[], None],
        duplicates: Sequence[duplicate_counts.StoredDuplicates],
        note: Callable[[str], None],
    ) -> Mapping[str, catalog_lib.File]:
        """Writes all files but shards, indexes and the catalog into the staging folder.

        Returns sizes and checksums by name, also of tf.Transform's output, which was staged before the first shard.
        """
        catalog, staging = dataset.catalog, self.settings.paths.staging(plan.fingerprint)
        store = storage.storage_of(staging)
        found = {}
        if self.settings.analyze is not None:
            listed = json.loads(store.read(storage.join(staging, output_folder.STAGED_FILES)))
            found = {name: catalog_lib.File(*file) for name, file in listed.items()}
        by_split = {split: dataset.merged[split] for split in catalog.splits if split in dataset.merged}
        formats = {name for split in by_split.values() for name in split["formats"]}
        files = dict(dataset.files)
        if catalog.is_self_contained:  # TFDS reads whole shards of one folder
            files |= tfds_metadata.tfds_files(catalog, self.settings.suffix, formats)
        described = {split: statistics.describe_statistics(counts) for split, counts in by_split.items()}
        files[catalog_lib.STATISTICS_FILE] = json.dumps(described, indent=1).encode() + b"\n"
        if catalog.labels:
            files[catalog_lib.LABELS_FILE] = tfds_metadata.labels_text(list(catalog.labels))
        if catalog.object_classes:
            files[class_names.LABEL_MAP_FILE] = class_names.label_map(catalog.object_classes)
        if (colors := self.settings.policy.masks.colors) is not None:
            files[catalog_lib.MASK_LABELS_FILE] = tfds_metadata.labels_text(list(colors.names))
        for folder in {os.path.dirname(name) for name in files} - {""}:
            store.make_directories(storage.join(staging, folder))
        for name, data in files.items():
            store.write_whole(storage.join(staging, name), data)
            found[name] = catalog_lib.File(len(data), records.extend_crc(0, data))
        target = storage.join(staging, catalog_lib.REJECTS_FILE)
        found[catalog_lib.REJECTS_FILE] = dead_letters.join_rejects(staging, staged_rejects, target, check)
        if self.settings.duplicates.is_on:
            target = storage.join(staging, catalog_lib.DUPLICATES_FILE)
            found[catalog_lib.DUPLICATES_FILE] = dead_letters.join_rejects(
                staging, _files_of(duplicates), target, check
            )
        found |= stage_report.stage_report(self.settings, staging, dataset, described, note, self.writers)
        check()
        return dict(sorted(found.items()))

    def _retries_in_vain(self, written: Sequence[elements.WrittenShard]) -> bool:
        """Returns whether the run has read only images that were rejected before, and none is good now."""
        snapshot = self.settings.snapshot
        return snapshot is not None and snapshot.retry_rejects and not any(each.shard.records for each in written)

    def _require_distinct(
        self,
        plan: elements.DatasetPlan,
        catalog: catalog_lib.Catalog,
        duplicates: Sequence[duplicate_counts.StoredDuplicates],
    ) -> None:
        """Raises DuplicatesError if there are duplicates that must not be; leaves their file to the user."""
        refusal = duplicate_counts.find_refusal(self.settings.duplicates, catalog.duplicates, duplicates)
        if refusal is not None:
            left = storage.join(self.settings.paths.metadata, catalog_lib.DUPLICATES_FILE)
            dead_letters.join_rejects(self.settings.paths.staging(plan.fingerprint), _files_of(duplicates), left)
            raise refusal.extended(f"; all of them are in {left}")

    def _leave_rejects(self, plan: elements.DatasetPlan, staged: dead_letters.RejectFiles) -> str:
        """Writes the rejects where the user can read them, but never next to another dataset's catalog."""
        output = self.settings.output
        store = storage.storage_of(output)
        committed = store.exists(self.settings.paths.catalog)
        stays = committed or self.settings.snapshot is not None
        folder = self.settings.paths.metadata if stays else output
        store.make_directories(folder)
        uri = storage.join(folder, catalog_lib.REJECTS_FILE)
        dead_letters.join_rejects(self.settings.paths.staging(plan.fingerprint), staged, uri)
        return uri


def _files_of(duplicates: Sequence[duplicate_counts.StoredDuplicates]) -> dead_letters.RejectFiles:
    return dead_letters.RejectFiles([each.name for each in duplicates], ())


def _count_rejects(plan: elements.DatasetPlan, written: Sequence[elements.WrittenShard]) -> dict[str, int]:
    """Returns the number of all rejects, before and after the plan, by reason."""
    rejected = collections.Counter(plan.rejected)
    for each in written:
        rejected.update(each.rejected)
    return dict(sorted(rejected.items()))


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

    def __init__(self, committer: Committer):
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
        duplicates: Sequence[duplicate_counts.StoredDuplicates] = (),
    ) -> Iterator[str]:
        plan = dataclasses.replace(plan, times={**plan.times, "committing": time.time()})
        by_split = merge_statistics.unpack_by_split(merged)
        plan, comparison = _after_reading(plan, comparison, written)
        removed_by_split = merge_statistics.unpack_by_split(removed_statistics)
        changes = continue_snapshot.Changes(comparison, removed, removed_by_split, reject_states)
        notes: list[str] = []
        try:
            catalog = self._committer.commit(plan, written, early_rejects, by_split, changes, duplicates, notes.append)
        except errors.ImagebeamError as e:
            self._report(run_report.RunReport("refused", plan, error=e, rejected=_count_rejects(plan, written)))
            _LOGGER.info("refused %s, exit code %d", self._committer.settings.output, e.exit_code)
            raise
        state: run_report.State = "kept" if catalog is None else "committed"
        if catalog is not None:
            notes += commit_checks.notes_on_dataset(self._committer.settings, plan, written, by_split)
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
        yield state

    def _report(self, report: run_report.RunReport) -> None:
        plan = dataclasses.replace(report.plan, times={**report.plan.times, "committed": time.time()})
        dataclasses.replace(report, plan=plan).write(self._committer.settings.report)


@dataclasses.dataclass
class CommitDataset(step.Step):
    """Commits the shards once all of them are written; yields the state of the run."""

    committer: Committer
    plan: beam.PCollection[elements.DatasetPlan]  # one element
    early_rejects: beam.PCollection[str]  # names of staged files
    compared: compare_with_snapshot.ComparedImages | None = None  # with the snapshot before
    duplicates: "beam.PCollection[duplicate_counts.StoredDuplicates] | None" = None
    reject_states: "beam.PCollection[elements.NamedFile] | None" = None  # of a snapshot that is compacted

    def expand(self, written: beam.PCollection[elements.WrittenShard]) -> beam.PCollection[str]:
        taken = written | "MergeStatistics" >> merge_statistics.MergeStatistics()
        changes: dict[str, Any] = {}
        if self.compared is not None and self.compared.comparison is not None:
            changes["comparison"] = self.compared.comparison
            changes["removed"] = beam.pvalue.AsIter(self.compared.removed)
            snapshot = self.committer.settings.snapshot
            if snapshot is not None and snapshot.base:
                counted = self.compared.removed | "CountRemoved" >> merge_statistics.CountRemoved(snapshot.base_folder)
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
