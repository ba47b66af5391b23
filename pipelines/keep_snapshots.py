"""Lists the snapshots of a dataset, pins them, and removes old ones with the files that no other needs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import concurrency, errors, snapshots, storage
from imagebeam.pipelines.messages import printed_tables
from imagebeam.transforms.commit import snapshot_report
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.publish import publish_dataset

_PIN_FILE = "PINNED"  # an empty file in the folder of a snapshot that must not be removed


class Snapshot(NamedTuple):
    """One snapshot of a dataset."""

    name: str
    catalog: catalog_lib.Catalog
    is_latest: bool
    is_pinned: bool


class Removal(NamedTuple):
    """Result of removing snapshots."""

    removed: Sequence[str]  # names of snapshots
    pinned: Sequence[str]  # names of older snapshots that stay, because they are pinned
    num_files: int


def list_snapshots(directory: str | os.PathLike[str]) -> list[Snapshot]:
    """Returns the committed snapshots of a dataset, the oldest first.

    Raises:
        ConfigError: if there are none.
        CatalogError: if one is damaged.
    """
    dataset = storage.normalize(directory)
    latest = snapshots.latest_name(dataset)
    if latest is None:
        raise errors.ConfigError(
            "snapshots-none", f"{dataset} holds no snapshots: imagebeam convert --update writes them"
        )
    found = []
    for name in reversed(snapshots.folder_names(dataset)):
        if int(name) > int(latest):
            continue
        folder = snapshots.folder_of(dataset, name)
        names = {entry.name for entry in storage.storage_of(folder).list_directory(folder)}
        if catalog_lib.CATALOG_FILE in names:
            catalog = catalog_lib.load_catalog(folder)
            found.append(Snapshot(name, catalog, name == latest, _PIN_FILE in names))
    return found


def load_report(directory: str | os.PathLike[str], name: str = "") -> Mapping[str, Any]:
    """Returns the report of a snapshot, by default of the latest one: transforms/commit/snapshot_report.

    Raises:
        ConfigError: if there is no such snapshot, or it has no report.
        CatalogError: if a snapshot or the report is damaged.
    """
    dataset = storage.normalize(directory)
    known = [each.name for each in list_snapshots(dataset)]
    name = snapshots.check_name(name) if name else known[-1]
    _require_known(dataset, name, known)
    folder = snapshots.folder_of(dataset, name)
    report = snapshot_report.load_report(folder)
    if not report:
        raise errors.ConfigError(
            "snapshot-without-report",
            f"{folder} has no {snapshot_report.REPORT_FILE}: an earlier imagebeam wrote the snapshot, or the file was "
            "removed; name another snapshot",
        )
    return report


def _require_known(dataset: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise errors.ConfigError("snapshot-unknown", f"{dataset} has no snapshot {name!r}; it has {', '.join(known)}")


def set_pin(directory: str | os.PathLike[str], name: str, is_pinned: bool) -> None:
    """Pins a snapshot, so that it is not removed, or releases it.

    Raises:
        ConfigError: if there is no such snapshot.
    """
    dataset = storage.normalize(directory)
    name = snapshots.check_name(name)
    _require_known(dataset, name, [each.name for each in list_snapshots(dataset)])
    uri = storage.join(snapshots.folder_of(dataset, name), _PIN_FILE)
    if is_pinned:
        storage.storage_of(uri).write_whole(uri, b"")
    else:
        storage.storage_of(uri).remove(uri)


def keep_snapshots(directory: str | os.PathLike[str], num_kept: int) -> Removal:
    """Removes all but the newest snapshots and those that are pinned, and the files that only removed ones need.

    A removal that was cut short is finished by the next one. Readers that hold a removed snapshot open fail.

    Args:
        directory: the dataset.
        num_kept: number of snapshots to keep, at least 1; the latest one always stays.

    Raises:
        ConfigError: if the dataset has no snapshots, or `num_kept` is below 1.
    """
    if num_kept < 1:
        raise errors.ConfigError(
            "keep-snapshots-below-1", f"keep_snapshots is {num_kept}; at least 1 stays, the latest"
        )
    dataset = storage.normalize(directory)
    found = list_snapshots(dataset)
    old = found[:-num_kept]
    pinned = [each.name for each in old if each.is_pinned]
    removed = [each.name for each in old if not each.is_pinned]
    kept = [each for each in found if each.name not in removed]
    store = storage.storage_of(dataset)
    for name in removed:  # first, so that no reader finds a snapshot with a part of its files
        store.remove(storage.join(snapshots.folder_of(dataset, name), catalog_lib.CATALOG_FILE))
    needed = {name for each in kept for name in _files_needed(dataset, each)}
    alive = {each.name for each in kept}
    latest = int(found[-1].name)
    num_files = 0
    for name in reversed(snapshots.folder_names(dataset)):
        if name not in alive and int(name) < latest:  # also those that an earlier removal has left
            num_files += _remove_unneeded(snapshots.folder_of(dataset, name), needed)
    return Removal(removed, pinned, num_files)


def _files_needed(dataset: str, snapshot: Snapshot) -> Iterator[str]:
    """Yields the addresses of the files in other snapshots' folders that a snapshot needs."""
    folder = snapshots.folder_of(dataset, snapshot.name)
    for split in snapshot.catalog.splits.values():
        for shard in split.shards:
            if shard.is_elsewhere:
                for name in output_folder.files_of_shard(shard, snapshot.catalog):
                    yield storage.join_relative(folder, name)


def _remove_unneeded(folder: str, needed: set[str]) -> int:
    """Removes the files below a folder that nothing needs, and folders without files; returns the number of files."""
    store = storage.storage_of(folder)
    unneeded, stays = [], False
    for entry in list(store.list_directory(folder)):
        uri = storage.join(folder, entry.name)
        if entry.kind == storage.DIRECTORY:
            inner = list(store.list_directory(uri))
            gone = [storage.join(uri, each.name) for each in inner if storage.join(uri, each.name) not in needed]
            unneeded += gone
            stays = stays or len(gone) < len(inner)
            if len(gone) == len(inner):
                store.remove_tree(uri)
        elif uri in needed:
            stays = True
        else:
            unneeded.append(uri)
    concurrency.call_each(store.remove, unneeded, 1 if store.is_local else publish_dataset.REQUESTS_AT_ONCE)
    if not stays:
        store.remove_tree(folder)
    return len(unneeded)


def snapshot_rows(found: Sequence[Snapshot]) -> list[tuple[str, str]]:
    """Returns the rows of a table of snapshots."""
    rows = []
    for each in found:
        catalog = each.catalog
        texts = [f"{catalog.counts.written:,} images", printed_tables.describe_changes(catalog.snapshot)]
        texts += [f"written {catalog.created}", *["latest"] * each.is_latest, *["pinned"] * each.is_pinned]
        rows.append((each.name, "; ".join(texts)))
    return rows
