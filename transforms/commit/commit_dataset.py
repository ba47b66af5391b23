"""Commits a dataset once all of its shards are staged: checks that nothing is lost, and publishes it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import logging
import platform
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import apache_beam as beam

from imagebeam import catalog as catalog_lib
from imagebeam import errors, plural, snapshots, storage, version
from imagebeam.reader import bare_pixels
from imagebeam.transforms import dataset_settings, elements
from imagebeam.transforms.classes import class_names
from imagebeam.transforms.commit import dataset_files, snapshot_report
from imagebeam.transforms.images import pillow_decoder, resample
from imagebeam.transforms.output import output_folder, run_report
from imagebeam.transforms.plan import decide_plan
from imagebeam.transforms.publish import commit_rights, publish_dataset
from imagebeam.transforms.shard import image_hashes, shard_writer, statistics
from imagebeam.transforms.updates import continue_snapshot

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
        duplicates: Sequence[image_hashes.StoredDuplicates] = (),
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
        merged = merge_by_split(written) if merged is None else merged
        staged_rejects = dataset_files.RejectFiles(
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
            dataset = self._describe_images(dataset)
            check_dataset(self.settings, plan, written, dataset.catalog)
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
        staged_rejects: dataset_files.RejectFiles,
        lock: commit_rights.LockView,
        duplicates: Sequence[image_hashes.StoredDuplicates],
        note: Callable[[str], None],
    ) -> catalog_lib.Catalog:
        """Publishes the dataset while this run holds the commit lock; returns its catalog."""
        plan, catalog = publication.plan, dataset.catalog
        try:
            rejects = dataset_files.read_lines(self.settings.paths.staging(plan.fingerprint), staged_rejects)
            dataset = snapshot_report.add_report(self.settings, dataset, rejects)
            publication.stage_catalog(catalog)
            with publication.commit_lock.held(lock.ended):  # a second run of this dataset shares the staging folder
                publication.require_committed()
                publication.require_staged()
                lines = dataset_files.StagedLines(staged_rejects, _files_of(duplicates))
                check, staging = publication.commit_lock.check, publication.staging
                files = dataset_files.stage_files(self.settings, staging, dataset, lines, check, note, self.writers)
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
        refusal = image_hashes.find_refusal(self.settings.duplicates, found.catalog.duplicates)
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
        duplicates: Sequence[image_hashes.StoredDuplicates],
    ) -> catalog_lib.Catalog:
        by_split: dict[str, list[catalog_lib.Shard]] = {split: [] for split in plan.splits}
        for each in written:
            by_split[each.split].append(each.shard)
        settings = self.settings
        resizes_in_c = settings.policy.resizes_in_c
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
                rejected=count_rejects(plan, written),
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
            duplicates=image_hashes.count_duplicates(settings.duplicates, duplicates),
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        )

    def _describe_images(self, dataset: continue_snapshot.Continued) -> continue_snapshot.Continued:
        """Returns the dataset with the classes of objects and the form of pixels in the catalog, of all its images."""
        reader = self.settings.policy.objects
        counts = [each.get(class_names.COUNTS, {}) for each in dataset.merged.values()]
        names = class_names.names_by_id(counts, {} if reader is None else reader.classes.texts())
        policy = self.settings.policy
        is_typed = policy.numbers.is_typed(policy.encode)
        pixels = bare_pixels.describe(policy.numbers.dtype, dataset.merged.values()) if is_typed else {}
        extra_pixels = {
            name: {"dtype": each.numbers.dtype, "channels": each.channels}
            for name, each in zip(self.settings.extra_images, policy.extra_types)
            if each is not None
        }
        catalog = dataclasses.replace(dataset.catalog, object_classes=names, pixels=pixels, extra_pixels=extra_pixels)
        return dataset._replace(catalog=catalog)

    def _retries_in_vain(self, written: Sequence[elements.WrittenShard]) -> bool:
        """Returns whether the run has read only images that were rejected before, and none is good now."""
        snapshot = self.settings.snapshot
        return snapshot is not None and snapshot.retry_rejects and not any(each.shard.records for each in written)

    def _require_distinct(
        self,
        plan: elements.DatasetPlan,
        catalog: catalog_lib.Catalog,
        duplicates: Sequence[image_hashes.StoredDuplicates],
    ) -> None:
        """Raises DuplicatesError if there are duplicates that must not be; leaves their file to the user."""
        refusal = image_hashes.find_refusal(self.settings.duplicates, catalog.duplicates, duplicates)
        if refusal is not None:
            left = storage.join(self.settings.paths.metadata, catalog_lib.DUPLICATES_FILE)
            dataset_files.join_rejects(self.settings.paths.staging(plan.fingerprint), _files_of(duplicates), left)
            raise refusal.extended(f"; all of them are in {left}")

    def _leave_rejects(self, plan: elements.DatasetPlan, staged: dataset_files.RejectFiles) -> str:
        """Writes the rejects where the user can read them, but never next to another dataset's catalog."""
        output = self.settings.output
        store = storage.storage_of(output)
        committed = store.exists(self.settings.paths.catalog)
        stays = committed or self.settings.snapshot is not None
        folder = self.settings.paths.metadata if stays else output
        store.make_directories(folder)
        uri = storage.join(folder, catalog_lib.REJECTS_FILE)
        dataset_files.join_rejects(self.settings.paths.staging(plan.fingerprint), staged, uri)
        return uri


def _files_of(duplicates: Sequence[image_hashes.StoredDuplicates]) -> dataset_files.RejectFiles:
    return dataset_files.RejectFiles([each.name for each in duplicates], ())


def count_rejects(plan: elements.DatasetPlan, written: Sequence[elements.WrittenShard]) -> dict[str, int]:
    """Returns the number of all rejects, before and after the plan, by reason."""
    rejected = collections.Counter(plan.rejected)
    for each in written:
        rejected.update(each.rejected)
    return dict(sorted(rejected.items()))


def merge_by_split(written: Iterable[elements.WrittenShard]) -> dict[str, dict[str, Any]]:
    """Returns the merged statistics of each split."""
    mergers: dict[str, statistics.StatisticsMerger] = {}
    for each in written:
        mergers.setdefault(each.split, statistics.StatisticsMerger()).add(each.statistics)
    return {split: merger.result() for split, merger in mergers.items()}


def check_dataset(
    settings: dataset_settings.DatasetSettings,
    plan: elements.DatasetPlan,
    written: Sequence[elements.WrittenShard],
    catalog: catalog_lib.Catalog,
) -> None:
    """Checks that every image is in a shard or in the rejects, and that the dataset may be committed.

    Args:
        settings: of the dataset.
        plan: of the run.
        written: all shards that the run has written.
        catalog: of the dataset, with what it takes over from the snapshot before.

    Raises:
        ImagebeamError: if not.
    """
    planned = {
        settings.shard_name(split, shard_index, planned.num_shards)
        for split, planned in plan.splits.items()
        for shard_index in range(planned.num_shards)
    }
    names = [each.shard.name for each in written]
    if planned != set(names) or len(planned) != len(names):
        lost = sorted(planned.symmetric_difference(names))[:3] or sorted(names)[:3]
        raise errors.VerificationError(
            "commit-shards-lost",
            f"{len(names):,} shards were written, {len(planned):,} were planned (first difference: {lost}): "
            "this is a bug of imagebeam or of the runner; nothing was committed",
        )
    counts = catalog.counts
    if counts.listed != counts.written + sum(counts.rejected.values()):
        raise errors.VerificationError(
            "commit-images-lost",
            f"{counts.listed:,} images were listed, but {counts.written:,} were written and "
            f"{sum(counts.rejected.values()):,} rejected: this is a bug of imagebeam or of the runner; "
            "nothing was committed",
        )
    output_folder.OutputFolder(settings.output).refuse_unnamed_shards(settings.suffix)  # added since the plan was made
    if excess := decide_plan.find_excess(settings, counts.listed, counts.rejected, advises=True):
        raise excess
    for name, split in catalog.splits.items():  # TFDS loads no split without an example
        if not split.num_examples and name in plan.splits:
            planned_images = plan.splits[name].num_records
            raise errors.TooManyRejectsError(
                "rejects-all-of-split",
                f"every image of split {name} was rejected, {planned_images:,} in all: nothing was committed; fix "
                "the images, or leave the split out of the input",
            )


def notes_on_dataset(
    settings: dataset_settings.DatasetSettings,
    plan: elements.DatasetPlan,
    written: Sequence[elements.WrittenShard],
    merged: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[str]:
    """Returns notes for the user on the dataset as it was written, in addition to those of the plan."""
    rejected: collections.Counter[str] = collections.Counter()
    for each in written:
        rejected.update(each.rejected)
    merged = merge_by_split(written) if merged is None else merged
    further = sum(each.further for each in written)
    frames = [f"{plural.count(further, 'image')} came as further frames or pages of files"] if further else []
    drift = snapshot_report.notes_of(settings.snapshot)
    changed = decide_plan.note_changed(settings, rejected)
    return [*frames, *changed, *_note_absent_classes(settings, plan, merged), *drift]


def _note_absent_classes(
    settings: dataset_settings.DatasetSettings, plan: elements.DatasetPlan, merged: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    if settings.label_kind != "class" or (settings.snapshot and settings.snapshot.continues):
        return []
    counts = {split: merged.get(split, {}).get("labels", {}) for split in plan.splits}
    found = {label for split in counts.values() for label in split}
    unseen = [label for label in plan.labels if label not in found]
    notes = []
    if len(unseen) > plan.num_unseen_labels:  # the plan notes those that only the vocabulary has
        notes.append(_note_classes(unseen, "no image in the dataset"))
    if "train" in counts:
        absent = [label for label in plan.labels if label in found and label not in counts["train"]]
        notes += [_note_classes(absent, "no image in train")] if absent else []
    return notes


def _note_classes(labels: Sequence[str], what: str) -> str:
    has = "1 class has" if len(labels) == 1 else f"{len(labels):,} classes have"
    return f"{has} {what}: {plural.name_some([repr(label) for label in labels])}"
