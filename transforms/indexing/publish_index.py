"""Commits the catalog and the indexes of another tool's shards, which it neither moves nor removes."""

from __future__ import annotations

import dataclasses
import os
import urllib.parse
from collections.abc import Collection, Mapping

from imagebeam import catalog as catalog_lib
from imagebeam import records, storage
from imagebeam.transforms import dataset_settings, elements
from imagebeam.transforms.publish import commit_rights, metadata_folder, publish_dataset

SCANS_FILE = f"{catalog_lib.INDEX_DIRECTORY}/scans.json.gz"  # scans of all shards, for the next index


def staged_index_name(shard: catalog_lib.Shard) -> str:
    """Returns the name of a shard's index in the staging folder, which has no folders."""
    return urllib.parse.quote(shard.index_name, safe="")


class IndexPublication(publish_dataset.Publication):
    """Publishes indexes and a catalog, by the steps of a dataset's commit, without the shards."""

    @property
    def _files_of_old_readers(self) -> Collection[str]:
        return ()  # dataset_info.json and features.json are those of the user

    @property
    def _folders_of_shards(self) -> list[str]:
        names = {os.path.dirname(each.shard.index_name) for each in self.written} if self._has_indexes else set()
        return sorted({catalog_lib.INDEX_DIRECTORY, *names})

    def _staged_files(self, written: elements.WrittenShard) -> list[publish_dataset.StagedFile]:
        if not self._has_indexes:
            return []
        shard = written.shard
        return [publish_dataset.StagedFile(shard.index_name, staged_index_name(shard), shard.index_file.bytes)]


def publish_index(
    settings: dataset_settings.DatasetSettings,
    plan: elements.DatasetPlan,
    catalog: catalog_lib.Catalog,
    files: Mapping[str, bytes],
) -> catalog_lib.Catalog:
    """Commits the indexes in the staging folder of the plan with their catalog; returns the catalog.

    Args:
        settings: of the output.
        plan: names the staging folder, and the catalog that is replaced.
        catalog: without its files.
        files: other files of the dataset by name.

    Raises:
        BusyError: if another run holds the lock, commits at this moment, or has committed since the plan was made.
        VerificationError: if a staged file is gone.
    """
    staging = settings.paths.staging(plan.fingerprint)
    store = storage.storage_of(staging)
    commit_lock = commit_rights.CommitLock(settings.paths, plan.run_id, plan.fingerprint)
    written = [
        elements.WrittenShard(name, shard, {}, {}) for name, split in catalog.splits.items() for shard in split.shards
    ]
    publication = IndexPublication(settings, plan, written, commit_lock)
    publication.require_committed()
    publication.stage_catalog(catalog)
    lock = commit_rights.look_at_lock(settings.paths, plan.run_id)
    with commit_lock.held(lock.ended):
        publication.require_committed()
        publication.require_staged()
        for name, data in files.items():
            target = storage.join(staging, name)
            store.make_directories(os.path.dirname(target))
            store.write_whole(target, data)
        entries = {name: catalog_lib.File(len(data), records.extend_crc(0, data)) for name, data in files.items()}
        catalog = publication.publish(dataclasses.replace(catalog, files=entries))
        metadata_folder.MetadataFolder(settings).clear(plan, lock)
    return catalog
