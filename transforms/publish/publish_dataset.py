"""Publishes a staged dataset: all of it appears, or none of it. `Publication.publish` shows the order of events."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from imagebeam import catalog as catalog_lib
from imagebeam import concurrency, errors, storage
from imagebeam.transforms import dataset_settings, elements
from imagebeam.transforms.output import croissant, output_folder
from imagebeam.transforms.publish import commit_rights, run_records

_T = TypeVar("_T")

# Moves and deletions at once, over a network. With 50 ms each that is 1,280 a second, and a bucket takes 1,000 writes a
# second at first. So more workers would be told to wait, and one worker can hold the commit lock and do all of it.
# Source: https://cloud.google.com/storage/docs/request-rate
REQUESTS_AT_ONCE = 64


class StagedFile(NamedTuple):
    """A shard, or a file beside one, that waits for the commit."""

    name: str  # below the output
    staged_name: str  # in the staging folder
    bytes: int


@dataclasses.dataclass(frozen=True)
class Publication:
    """One dataset, from its staging folder to the output, by the run that holds the commit lock."""

    settings: dataset_settings.DatasetSettings
    plan: elements.DatasetPlan
    written: Sequence[elements.WrittenShard]
    commit_lock: commit_rights.CommitLock

    @property
    def staging(self) -> str:
        return self.settings.paths.staging(self.plan.fingerprint)

    @property
    def replaced(self) -> str:
        """The address to which the catalog of an earlier dataset is moved."""
        return self.settings.paths.replaced(self.plan.fingerprint)

    @property
    def _folders_of_side_files(self) -> list[str]:
        """Names of the folders in the output with files beside shards."""
        return sorted({os.path.dirname(file.name) for file in self._all_staged_files()} - {""})

    @property
    def _files_of_old_readers(self) -> Collection[str]:
        """Names of files by which other readers would still load the dataset that is replaced."""
        return (*output_folder.TFDS_FILES, croissant.FILE)

    def require_committed(self) -> output_folder.FoundCatalog | None:
        """Returns the catalog to replace. None if there is none, or an earlier attempt has retired it.

        Raises:
            BusyError: if the output holds another catalog than the plan was compared with.
        """
        recorded = self.plan.committed
        found = output_folder.find_catalog(self.settings.output)
        if found is None:
            if recorded is not None and not output_folder.has_bytes_of(self.replaced, recorded):
                raise self._busy("replaces the dataset there, whose catalog is gone")
        elif found.record != recorded:
            raise self._busy(f"committed to it: {output_folder.describe(found.catalog)}")
        return found

    @property
    def _staged_catalog(self) -> str:
        return storage.join(self.staging, catalog_lib.CATALOG_FILE)

    def stage_catalog(self, catalog: catalog_lib.Catalog) -> None:
        """Stores a catalog in the staging folder: it tells what is committed, if the commit is cut short."""
        storage.storage_of(self.staging).create_new(self._staged_catalog, catalog.to_json().encode())

    def require_staged(self) -> None:
        """Checks that every file to move is there with its size, by one listing of the staging folder.

        A commit of this dataset that was cut short may have moved some: then it lists the output too.

        Raises:
            BusyError: if one is missing and another run holds the lock, which removes what it finds.
            VerificationError: if one is missing or has another size.
        """
        staged = output_folder.sizes_in(self.staging)
        moved: dict[str, int] | None = None
        for written in self.written:
            for name, staged_name, num_bytes in self._staged_files(written):
                found, where = staged.get(staged_name), storage.join(self.staging, staged_name)
                if found is None and (written.is_kept or self.commit_lock.continues):  # moved by a killed commit
                    moved = self._moved_files() if moved is None else moved
                    found, where = moved.get(name), storage.join(self.settings.output, name)
                if found is None:
                    raise self.missing(storage.join(self.staging, staged_name))
                if found not in (-1, num_bytes):
                    raise errors.VerificationError(
                        "staged-file-changed",
                        f"{where} has {found:,} bytes, but {num_bytes:,} were written: something else changes files "
                        "there; run the same convert command again",
                    )

    def publish(self, catalog: catalog_lib.Catalog) -> catalog_lib.Catalog:
        """Replaces the dataset in the output by the staged one; returns the catalog that is committed.

        Readers find no dataset from the time the old catalog is retired to the time the new one is there.

        Raises:
            BusyError: if another run has committed meanwhile, or took over the commit.
            KeyboardInterrupt: if a signal asked this process to stop.
        """
        concurrency.raise_if_stopped()
        output, store = self.settings.output, storage.storage_of(self.settings.output)
        # tells the next run which files this run has moved, if it is killed
        content = catalog.to_json().encode()
        store.write_whole(self._staged_catalog, content)
        moved = self.move_side_files_early()
        self.remove_earlier_catalog()
        self.move_shards(moved)
        self._move_files(catalog)
        self.remove_left(catalog)  # before the catalog: next to a catalog there is no shard of another dataset
        store.sync(output)
        self.commit_lock.renew()
        concurrency.raise_if_stopped()
        catalog = self._publish_catalog(catalog, content)
        store.sync(output)
        return catalog

    def remove_earlier_catalog(self) -> None:
        """Moves the catalog of the earlier dataset away, if it still is the one that the plan was compared with.

        Raises:
            BusyError: if it is not; it stays.
        """
        output, store = self.settings.output, storage.storage_of(self.settings.output)
        found = self.require_committed()
        if found is not None:
            recorded = found.record
            try:
                store.rename(self.settings.paths.catalog, self.replaced, recorded.version)
            except (FileNotFoundError, storage.ChangedError) as e:
                if store.exists(self.settings.paths.catalog) or not output_folder.has_bytes_of(self.replaced, recorded):
                    raise self._busy("committed to it") from e
            if not output_folder.has_bytes_of(self.replaced, recorded):  # replaced while it was moved
                with contextlib.suppress(FileExistsError):
                    store.publish(self.replaced, self.settings.paths.catalog)
                raise self._busy("committed to it")
            self.commit_lock.note_change()
            store.sync(self.settings.paths.metadata)
            store.sync(output)
        self.commit_lock.note_change()
        for name in self._files_of_old_readers:
            store.remove(storage.join(output, name))

    def move_side_files_early(self) -> Collection[str]:
        """Moves the files beside shards while readers still find the earlier dataset; returns their names.

        Only those that take no name from that dataset. No shard: some readers list the folder, so next to a catalog
        there is no shard of another dataset. On a local disk nothing is moved early: all moves take no time there.
        """
        store = storage.storage_of(self.settings.output)
        found = None if store.is_local else self.require_committed()
        if found is None or found.catalog is None:
            return ()
        every = (file for written in self.written for file in written.shard.side_files(self.settings.compression))
        early = {file.name for file in every} - output_folder.files_of(found.catalog)
        self.commit_lock.note_change()
        for name in self._folders_of_side_files:
            store.make_directories(storage.join(self.settings.output, name))
        self._for_each(self._move_staged, (file for file in self._all_staged_files() if file.name in early))
        return early

    def move_shards(self, moved: Collection[str] = ()) -> None:
        """Moves all shards and the files beside them to their final names, but for those in `moved`."""
        store = storage.storage_of(self.settings.output)
        folders = [storage.join(self.settings.output, name) for name in self._folders_of_side_files]
        for folder in folders:
            store.make_directories(folder)
        self._for_each(self._move_staged, (file for file in self._all_staged_files() if file.name not in moved))
        for folder in folders:
            store.sync(folder)

    def _move_staged(self, file: StagedFile) -> None:
        """Moves a file. One that a killed commit has moved already stays where it is."""
        self.commit_lock.check()
        target = storage.join(self.settings.output, file.name)
        _move(storage.join(self.staging, file.staged_name), target)
        if file.name != file.staged_name:
            storage.storage_of(target).sync(target)

    def _all_staged_files(self) -> Iterator[StagedFile]:
        for written in self.written:
            yield from self._staged_files(written)

    def _staged_files(self, written: elements.WrittenShard) -> list[StagedFile]:
        """Returns the shard and the files beside it."""
        shard = written.shard
        beside = shard.side_files(self.settings.compression)
        return [
            StagedFile(shard.name, shard.name, shard.bytes),
            *(StagedFile(file.name, file.staged_name, file.entry.bytes) for file in beside),
        ]

    def _for_each(self, act: Callable[[_T], None], values: Iterable[_T]) -> None:
        """Calls `act` on each value: many at once over a network, one after another on a local disk."""
        is_local = storage.storage_of(self.settings.output).is_local
        concurrency.call_each(act, values, 1 if is_local else REQUESTS_AT_ONCE)

    def _moved_files(self) -> dict[str, int]:
        """Returns the files in the output that a killed commit of this dataset may have moved, with their sizes."""
        output = self.settings.output
        found = output_folder.sizes_in(output)
        for folder in self._folders_of_side_files:
            sizes = output_folder.sizes_in(storage.join(output, folder))
            found |= {f"{folder}/{name}": num_bytes for name, num_bytes in sizes.items()}
        return found

    def _move_files(self, catalog: catalog_lib.Catalog) -> None:
        """Moves the files that are neither shards nor beside one."""
        output, store = self.settings.output, storage.storage_of(self.settings.output)
        folders = sorted({os.path.dirname(name) for name in catalog.files} - {""})
        for folder in folders:
            store.make_directories(storage.join(output, folder))
        self._for_each(self._move_file, catalog.files)
        for folder in folders:
            store.sync(storage.join(output, folder))

    def _move_file(self, name: str) -> None:
        self.commit_lock.check()
        _move(storage.join(self.staging, name), storage.join(self.settings.output, name))

    def remove_left(self, catalog: catalog_lib.Catalog) -> None:
        """Removes files of earlier runs that this dataset does not name."""
        output, store = self.settings.output, storage.storage_of(self.settings.output)
        files = output_folder.files_of(catalog)
        left = output_folder.OutputFolder(output).left_files() - files
        self._for_each(self._remove_file, sorted(left))
        for folder in output_folder.TRANSFORM_FOLDERS:
            if any(name.startswith(f"{folder}/") for name in left) and not any(
                name.startswith(f"{folder}/") for name in files
            ):
                store.remove_tree(storage.join(output, folder))
        folder = catalog_lib.INDEX_DIRECTORY
        if folder not in self._folders_of_side_files and any(name.startswith(f"{folder}/") for name in left):
            run_records.remove_if_empty(storage.join(output, folder))

    def _remove_file(self, name: str) -> None:
        self.commit_lock.check()
        uri = storage.join(self.settings.output, name)
        storage.storage_of(uri).remove(uri)

    def _publish_catalog(self, catalog: catalog_lib.Catalog, content: bytes) -> catalog_lib.Catalog:
        target, store = self.settings.paths.catalog, storage.storage_of(self.settings.output)
        # another run of this dataset shares the staging folder, and its catalog may have another name and config
        own = storage.join(self.staging, f"{self.plan.run_id}.{catalog_lib.CATALOG_FILE}")
        store.write_whole(own, content)
        try:
            store.publish(own, target)
        except (FileExistsError, FileNotFoundError) as e:
            found = output_folder.find_catalog(self.settings.output)
            if found is not None and found.catalog is not None and found.record.fingerprint == self.plan.fingerprint:
                return found.catalog  # the bundle that commits ran twice at the same time
            raise errors.BusyError(
                "output-committed-by-two-runs",
                f"another run committed to {self.settings.output} at the same time, and its files may be mixed with "
                "those of this one: run one of the two again with --overwrite, and then imagebeam verify",
            ) from e
        return catalog

    def missing(self, uri: str | None) -> errors.ImagebeamError:
        """Returns the error for a staged file that is gone, or for the staging folder if none is named.

        Raises:
            BusyError: if another run holds the lock, which removes what it finds.
        """
        if uri is None or ".tmp-" in uri:
            uri = self.staging
        commit_rights.look_at_lock(self.settings.paths, self.plan.run_id)  # raises if it is known who did this
        return _gone(uri)

    def _busy(self, what: str) -> errors.BusyError:
        return errors.BusyError(
            "output-changed",
            f"{self.settings.output} has changed since this run was planned: another run {what}; nothing of this run "
            "was committed; wait until that run has ended, then choose another --output, or run the same command "
            "again with --overwrite to replace its dataset",
        )


def _move(source: str, target: str) -> None:
    """Moves a staged file. A file that a killed commit has moved already stays where it is."""
    store = storage.storage_of(source)
    try:
        store.rename(source, target)
        return
    except FileNotFoundError:
        moved_before = store.exists(target)
    if not moved_before:
        raise _gone(source)


def _gone(uri: str) -> errors.VerificationError:
    return errors.VerificationError(
        "staged-file-gone",
        f"{uri} was written and is gone: something else removes files there; run the same convert command again",
    )
