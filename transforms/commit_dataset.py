"""Commits a dataset: all of it appears, or none of it. `_publish` shows the order of events."""

import collections
import dataclasses
import datetime
import json
import os
import platform
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam

from imagebeam import catalog as catalog_lib
from imagebeam import errors, records, storage, version
from imagebeam.transforms import (
    dataset_settings,
    elements,
    output_folder,
    output_paths,
    reject_limit,
    run_report,
    tfds_metadata,
)
from imagebeam.transforms.images import pillow_decoder
from imagebeam.transforms.shard import shard_writer, statistics

_LEFT_IN_CONTROL = (  # prefixes of names; the lock has none of them
    output_folder.REPLACED,
    catalog_lib.PUBLISH_MARKER,
    output_paths.REPORT_PREFIX,
    catalog_lib.REJECTS_FILE,
)
_COPY_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Committer:
    """Turns staged shards into a committed dataset."""

    settings: dataset_settings.DatasetSettings
    name: str
    config: Mapping[str, Any]

    def commit(
        self,
        plan: elements.DatasetPlan,
        written: Sequence[elements.WrittenShard],
        early_rejects: Sequence[str],
    ) -> catalog_lib.Catalog | None:
        """Checks that nothing is lost and publishes the dataset. Returns its catalog; None if it is committed already.

        Raises:
            ImagebeamError: if nothing may be committed; the rejects stay in the output.
        """
        if plan.action == "keep":
            self._remove_left(catalog_lib.load_catalog(self.settings.output))
            self._clear_control()
            return None
        if plan.action == "write" and (committed := self._find_committed(plan)) is not None:
            return committed
        written = sorted(written, key=lambda each: each.shard.name)
        staged_rejects = [
            *sorted(early_rejects),
            *(w.shard.name + shard_writer.REJECTS_SUFFIX for w in written if w.rejected),
        ]
        try:
            if plan.action == "refuse":
                raise errors.from_exit_code(plan.exit_code, plan.message)
            catalog = self._catalog(plan, written)
            self._check(plan, written, catalog)
        except errors.TooManyRejectsError as e:
            rejects_file = self._leave_rejects(plan, staged_rejects)
            raise errors.TooManyRejectsError(f"{e}; the rejects are in {rejects_file}") from e
        catalog = dataclasses.replace(catalog, files=self._stage_files(plan, written, catalog, staged_rejects))
        self._publish(plan, written, catalog)
        self._clear_control()
        return catalog

    @property
    def _folder(self) -> output_folder.OutputFolder:
        return output_folder.OutputFolder(self.settings.output)

    def _find_committed(self, plan: elements.DatasetPlan) -> catalog_lib.Catalog | None:
        """Returns the catalog of this very run if the bundle that commits it runs a second time; else None."""
        store = storage.storage_of(self.settings.output)
        if store.exists(self.settings.paths.staging(plan.fingerprint)):
            return None
        try:
            committed = catalog_lib.load_catalog(self.settings.output)
        except errors.CatalogError:
            return None
        return committed if committed.fingerprint == plan.fingerprint else None

    def _catalog(self, plan: elements.DatasetPlan, written: Sequence[elements.WrittenShard]) -> catalog_lib.Catalog:
        by_split: dict[str, list[catalog_lib.Shard]] = {split: [] for split in plan.splits}
        rejected = collections.Counter(plan.rejected)
        for each in written:
            by_split[each.split].append(each.shard)
            rejected.update(each.rejected)
        settings = self.settings
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
                listed=plan.listed,
                written=sum(each.shard.records for each in written),
                rejected=dict(sorted(rejected.items())),
                passed_over=plan.passed_over,
            ),
            versions={
                "imagebeam": version.__version__,
                "apache_beam": beam.__version__,
                "python": platform.python_version(),
                "pillow": pillow_decoder.pillow_version(),
                "zlib": zlib.ZLIB_RUNTIME_VERSION,
            },
            inputs=plan.inputs,
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        )

    def _stage_files(
        self,
        plan: elements.DatasetPlan,
        written: Sequence[elements.WrittenShard],
        catalog: catalog_lib.Catalog,
        staged_rejects: Sequence[str],
    ) -> Mapping[str, catalog_lib.File]:
        """Writes all files but shards, indexes and the catalog into the staging folder.

        Returns sizes and checksums by name, also of tf.Transform's output, which was staged before the first shard.
        """
        staging = self.settings.paths.staging(plan.fingerprint)
        store = storage.storage_of(staging)
        found = {}
        if self.settings.analyze is not None:
            listed = json.loads(store.read(storage.join(staging, output_paths.STAGED_FILES)))
            found = {name: catalog_lib.File(*file) for name, file in listed.items()}
        by_split = {
            split: statistics.merge_statistics(each.statistics for each in written if each.split == split)
            for split in catalog.splits
        }
        formats = {name for split in by_split.values() for name in split["formats"]}
        files = tfds_metadata.tfds_files(catalog, self.settings.suffix, formats)
        described = {split: statistics.describe_statistics(merged) for split, merged in by_split.items()}
        files[catalog_lib.STATISTICS_FILE] = json.dumps(described, indent=1).encode() + b"\n"
        if catalog.labels:
            files[catalog_lib.LABELS_FILE] = tfds_metadata.labels_text(list(catalog.labels))
        for name, data in files.items():
            store.write_whole(storage.join(staging, name), data)
            found[name] = catalog_lib.File(len(data), records.extend_crc(0, data))
        rejects = [storage.join(staging, name) for name in staged_rejects]
        found[catalog_lib.REJECTS_FILE] = _concatenate(rejects, storage.join(staging, catalog_lib.REJECTS_FILE))
        return dict(sorted(found.items()))

    def _check(
        self,
        plan: elements.DatasetPlan,
        written: Sequence[elements.WrittenShard],
        catalog: catalog_lib.Catalog,
    ) -> None:
        planned = {
            self.settings.shard_name(split, shard_index, planned.num_shards)
            for split, planned in plan.splits.items()
            for shard_index in range(planned.num_shards)
        }
        names = [each.shard.name for each in written]
        if planned != set(names) or len(planned) != len(names):
            lost = sorted(planned.symmetric_difference(names))[:3] or sorted(names)[:3]
            raise errors.VerificationError(
                f"{len(names):,} shards were written, {len(planned):,} were planned (first difference: {lost}): "
                "this is a bug of imagebeam or of the runner; nothing was committed"
            )
        counts = catalog.counts
        if counts.listed != counts.written + sum(counts.rejected.values()):
            raise errors.VerificationError(
                f"{counts.listed:,} images were listed, but {counts.written:,} were written and "
                f"{sum(counts.rejected.values()):,} rejected: this is a bug of imagebeam or of the runner; "
                "nothing was committed"
            )
        if unnamed := self._folder.find_unnamed_shards(self.settings.suffix):  # added since the plan was made
            raise errors.ConfigError(output_folder.refuse_unnamed_shards(self.settings.output, unnamed))
        if excess := reject_limit.find_excess(self.settings, counts.listed, counts.rejected):
            raise excess
        if not counts.written:
            raise errors.TooManyRejectsError("every image was rejected: nothing was committed")
        for name, split in catalog.splits.items():  # TFDS loads no split without an example
            if not split.num_examples:
                planned_images = plan.splits[name].num_records
                raise errors.TooManyRejectsError(
                    f"every image of split {name} was rejected, {planned_images:,} in all: nothing was committed; fix "
                    "the images, or leave the split out of the input"
                )

    def notes(self, plan: elements.DatasetPlan, written: Sequence[elements.WrittenShard]) -> list[str]:
        """Returns notes for the user on the dataset as it was written, in addition to those of the plan."""
        rejected: collections.Counter[str] = collections.Counter()
        for each in written:
            rejected.update(each.rejected)
        return [*reject_limit.note_changed(self.settings, rejected), *self._note_absent_classes(plan, written)]

    def _note_absent_classes(self, plan: elements.DatasetPlan, written: Sequence[elements.WrittenShard]) -> list[str]:
        if self.settings.label_kind != "class":
            return []
        counts: dict[str, collections.Counter[str]] = {split: collections.Counter() for split in plan.splits}
        for each in written:
            counts[each.split].update(each.statistics.get("labels", {}))
        found = {label for split in counts.values() for label in split}
        unseen = [label for label in plan.labels if label not in found]
        notes = []
        if len(unseen) > plan.num_unseen_labels:  # the plan notes those that only the vocabulary has
            notes.append(_note_classes(unseen, "no image in the dataset"))
        if "train" in counts:
            absent = [label for label in plan.labels if label in found and label not in counts["train"]]
            notes += [_note_classes(absent, "no image in train")] if absent else []
        return notes

    def _leave_rejects(self, plan: elements.DatasetPlan, staged: Sequence[str]) -> str:
        """Writes the rejects where the user can read them, but never next to another dataset's catalog."""
        output = self.settings.output
        store = storage.storage_of(output)
        committed = store.exists(self.settings.paths.catalog)
        folder = self.settings.paths.control if committed else output
        store.make_directories(folder)
        uri = storage.join(folder, catalog_lib.REJECTS_FILE)
        _concatenate([storage.join(self.settings.paths.staging(plan.fingerprint), name) for name in staged], uri)
        return uri

    def _publish(
        self,
        plan: elements.DatasetPlan,
        written: Sequence[elements.WrittenShard],
        catalog: catalog_lib.Catalog,
    ) -> None:
        settings, output = self.settings, self.settings.output
        staging, store = settings.paths.staging(plan.fingerprint), storage.storage_of(output)
        # staged first, so that the next run knows which files this run has moved if it is killed
        staged_catalog = storage.join(staging, catalog_lib.CATALOG_FILE)
        store.write_whole(staged_catalog, catalog.to_json().encode())
        store.write_whole(settings.paths.publish_marker, plan.fingerprint.encode())
        self._retire(plan)
        if settings.compression == "none":
            store.make_directories(storage.join(output, catalog_lib.INDEX_DIRECTORY))
        for each in written:
            _move(storage.join(staging, each.shard.name), storage.join(output, each.shard.name))
            if settings.compression == "none":
                index = storage.join(output, each.shard.index_name)
                _move(storage.join(staging, os.path.basename(index)), index)
                store.sync(index)
        if settings.compression == "none":
            store.sync(storage.join(output, catalog_lib.INDEX_DIRECTORY))
        self._publish_files(staging, catalog)
        self._remove_left(catalog)  # before the catalog: next to a catalog there is no shard of another dataset
        store.sync(output)
        self._publish_catalog(staged_catalog)
        store.sync(output)

    def _publish_files(self, staging: str, catalog: catalog_lib.Catalog) -> None:
        """Moves the files that are neither shards nor indexes."""
        output, store = self.settings.output, storage.storage_of(self.settings.output)
        folders = sorted({os.path.dirname(name) for name in catalog.files} - {""})
        for folder in folders:
            store.make_directories(storage.join(output, folder))
        for name in catalog.files:
            _move(storage.join(staging, name), storage.join(output, name))
        for folder in folders:
            store.sync(storage.join(output, folder))

    def _publish_catalog(self, staged: str) -> None:
        target = self.settings.paths.catalog
        try:
            storage.storage_of(target).publish(staged, target)
        except FileExistsError as e:
            raise errors.ConfigError(
                f"another run committed to {self.settings.output} at the same time, and its files may be mixed with "
                "those of this one: run one of the two again with --overwrite, and then imagebeam verify"
            ) from e

    def _retire(self, plan: elements.DatasetPlan) -> None:
        """Moves the catalog of an earlier dataset away before the first of its files changes."""
        output, store = self.settings.output, storage.storage_of(self.settings.output)
        catalog = self.settings.paths.catalog
        if store.exists(catalog):
            store.rename(
                catalog, storage.join(self.settings.paths.control, f"{output_folder.REPLACED}{plan.fingerprint}.json")
            )
            store.sync(self.settings.paths.control)
            store.sync(output)
        for name in tfds_metadata.LOADED_BY:  # otherwise TFDS would still load the old dataset
            store.remove(storage.join(output, name))

    def _remove_left(self, catalog: catalog_lib.Catalog) -> None:
        """Removes files of earlier runs that this dataset does not name."""
        output, store = self.settings.output, storage.storage_of(self.settings.output)
        files = output_folder.files_of(catalog)
        left = self._folder.left_files() - files
        for name in sorted(left):
            store.remove(storage.join(output, name))
        for folder in output_folder.TRANSFORM_FOLDERS:
            if any(name.startswith(f"{folder}/") for name in left) and not any(
                name.startswith(f"{folder}/") for name in files
            ):
                store.remove_tree(storage.join(output, folder))

    def _clear_control(self) -> None:
        """Empties the control folder but for the lock and the report of this run."""
        control, store = self.settings.paths.control, storage.storage_of(self.settings.output)
        if not store.exists(control):
            return
        for entry in list(store.list_directory(control)):
            uri = storage.join(control, entry.name)
            if entry.kind == storage.DIRECTORY:
                store.remove_tree(uri)
            elif entry.name.startswith(_LEFT_IN_CONTROL) and uri != self.settings.report:
                store.remove(uri)


def _note_classes(labels: Sequence[str], what: str) -> str:
    has = "1 class has" if len(labels) == 1 else f"{len(labels):,} classes have"
    return f"{has} {what}: {output_folder.name_some([repr(label) for label in labels])}"


def _move(source: str, target: str) -> None:
    """Moves a staged file. A file that a killed commit has moved already stays where it is."""
    store = storage.storage_of(source)
    try:
        store.rename(source, target)
        return
    except FileNotFoundError:
        moved_before = store.exists(target)
    if not moved_before:
        raise errors.VerificationError(
            f"{source} was written and is gone: something else removes files there; run the same convert command again"
        )


def _concatenate(sources: Sequence[str], target: str) -> catalog_lib.File:
    """Concatenates files into `target`; returns its size and checksum."""
    num_bytes = crc = 0
    with storage.storage_of(target).write_file(target) as pending:
        for source in sources:
            with storage.storage_of(source).open_read(source) as part:
                while chunk := part.read(_COPY_BYTES):
                    num_bytes, crc = num_bytes + len(chunk), records.extend_crc(crc, chunk)
                    rest = memoryview(chunk)
                    while rest:  # an unbuffered file may write only a part
                        rest = rest[pending.file.write(rest) :]
        pending.checksum = num_bytes, crc
    return catalog_lib.File(num_bytes, crc)


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
    ) -> Iterator[str]:
        try:
            catalog = self._committer.commit(plan, written, early_rejects)
        except errors.ImagebeamError as e:
            self._report("refused", plan, str(e), e.exit_code)
            raise
        state: run_report.State = "kept" if catalog is None else "committed"
        if catalog is not None:
            plan = dataclasses.replace(plan, notes=(*plan.notes, *self._committer.notes(plan, written)))
        kept = sum(each.is_kept for each in written)
        message = f"{kept:,} of {len(written):,} shards were finished by an earlier run" if kept else ""
        self._report(state, plan, plan.message or message)
        yield state

    def _report(self, state: run_report.State, plan: elements.DatasetPlan, message: str, exit_code: int = 0) -> None:
        run_report.write_report(self._committer.settings.report, state, plan, message, exit_code)


@dataclasses.dataclass
class CommitDataset(beam.PTransform):
    """Commits the shards once all of them are written; yields the state of the run."""

    committer: Committer
    plan: beam.PCollection[elements.DatasetPlan]  # one element
    early_rejects: beam.PCollection[str]  # names of staged files

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, written: beam.PCollection[elements.WrittenShard]) -> beam.PCollection[str]:
        return (
            written.pipeline
            | "StartCommit" >> beam.Impulse()
            | "Commit"
            >> beam.ParDo(
                _CommitFn(self.committer),
                plan=beam.pvalue.AsSingleton(self.plan),
                written=beam.pvalue.AsList(written),
                early_rejects=beam.pvalue.AsList(self.early_rejects),
            ).with_output_types(str)
        )
