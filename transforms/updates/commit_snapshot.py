"""Continues the snapshot before with what a run has written and removed."""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import find_snapshot, snapshots, storage
from imagebeam.transforms import dataset_settings, elements, summaries
from imagebeam.transforms.shard import shard_writer
from imagebeam.transforms.snapshots import image_states
from imagebeam.transforms.updates import continue_snapshot


def of_base(
    settings: dataset_settings.SnapshotSettings, base: catalog_lib.Catalog | None
) -> Iterator[tuple[str, bytes]]:
    """Yields the files of such states that the snapshot before has."""
    for name in base.files if base is not None else ():
        if image_states.is_rejects_name(name):
            uri = storage.join(settings.base_folder, name)
            yield name, storage.storage_of(uri).read(uri)


def of_shards(
    settings: dataset_settings.SnapshotSettings, staging: str, lost: Iterable[elements.WrittenShard]
) -> Iterator[tuple[str, bytes]]:
    """Yields the file with the states of all images that were rejected while some shards were written.

    Args:
        settings: of the snapshot that is written.
        staging: its staging folder.
        lost: the shards, none of which has a record.
    """
    rejects: list[image_states.RejectState] = []
    for each in lost:
        uri = storage.join(staging, shard_writer.staged_state_name(each.shard))
        state = image_states.decode_state(storage.storage_of(uri).read(uri), each.shard.records, uri)
        rejects.extend(state.rejects)
    if rejects:
        yield (
            image_states.rejects_name(int(settings.name)),
            image_states.encode_state(image_states.ShardState((), rejects)),
        )


Statistics = Mapping[str, Mapping[str, Any]]  # merged, by split


class Changes(NamedTuple):
    """Changes of a run to the snapshot before, besides the shards that it writes."""

    comparison: summaries.Comparison = summaries.NO_SNAPSHOT
    removed: Iterable[elements.RemovedRecords] = ()
    removed_statistics: Statistics = types.MappingProxyType({})  # of these records
    reject_states: Iterable[elements.NamedFile] = ()  # those that no shard keeps, when a snapshot is compacted


NO_CHANGES = Changes()


class Run(NamedTuple):
    """Everything that one run has written and removed, for its report."""

    base: catalog_lib.Catalog | None  # catalog of the snapshot before
    base_statistics: Statistics  # from the snapshot before; {} if there is none, or they are lost
    written: catalog_lib.Catalog  # catalog of the shards that were written
    statistics: Statistics  # of these shards
    comparison: summaries.Comparison


class Continued(NamedTuple):
    """A snapshot before it is published."""

    catalog: catalog_lib.Catalog
    merged: Statistics
    files: Mapping[str, bytes]  # further files by name
    run: Run | None = None  # None without snapshots


def continue_dataset(
    settings: dataset_settings.SnapshotSettings | None,
    staging: str,
    written: catalog_lib.Catalog,
    shards: Iterable[elements.WrittenShard],
    merged: Statistics,
    changes: Changes,
) -> Continued:
    """Returns the dataset that a run publishes: what it has written, and what it takes over from the snapshot before.

    Args:
        settings: of the snapshot; None for a dataset without snapshots.
        staging: the staging folder.
        written: catalog of the shards that were written.
        shards: these shards.
        merged: their statistics.
        changes: to the snapshot before.

    Raises:
        CatalogError: if the snapshot before is damaged.
    """
    if settings is None:
        return Continued(written, merged, {})
    base, removed = settings.load_base(), b""
    known = _load_statistics(settings.base_folder) if settings.base else {}
    run = Run(base, known, written, merged, changes.comparison)
    if base is not None:
        removed_before = find_snapshot.load_removed(settings.base_folder, base)
        written, removed = continue_snapshot.continue_catalog(settings, base, removed_before, written, changes.removed)
        merged = continue_snapshot.continue_statistics(known, merged, changes.removed_statistics)
    if settings.compacted:
        run = run._replace(base_statistics=merged)
    merged = {split: merged[split] for split in written.splits if split in merged}  # in the order of the catalog
    files = dict(changes.reject_states) | dict(of_base(settings, base))
    files |= of_shards(settings, staging, (each for each in shards if each.split not in written.splits))
    files |= {image_states.STATISTICS_FILE: json.dumps(merged).encode()}
    return Continued(written, merged, files | ({snapshots.REMOVED_FILE: removed} if removed else {}), run)


def _load_statistics(folder: str) -> dict[str, dict[str, Any]]:
    """Returns the merged statistics of the snapshot in a folder; {} if they are lost: it is read without them."""
    uri = storage.join(folder, image_states.STATISTICS_FILE)
    try:
        found = json.loads(storage.storage_of(uri).read(uri))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
