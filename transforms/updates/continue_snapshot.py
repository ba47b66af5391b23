"""Continues a dataset of snapshots: what a run plans from the snapshot before, and what it has written and removed."""

from __future__ import annotations

import array
import dataclasses
import hashlib
import json
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import errors, plural, snapshots, storage
from imagebeam import features as features_lib
from imagebeam.transforms import dataset_settings, elements, summaries
from imagebeam.transforms.output import run_report
from imagebeam.transforms.shard import statistics
from imagebeam.transforms.snapshots import image_states

EARLY_REJECTS = "early_rejects"  # in Catalog.snapshot: digest of the images rejected before any was read


def labels_after(base: catalog_lib.Catalog, found: Sequence[str], vocabulary: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the classes in the order of their ids: those of the snapshot before keep theirs.

    Args:
        base: catalog of the snapshot before.
        found: classes of the images that are written, sorted.
        vocabulary: of the config; None if there is none.
    """
    if vocabulary is not None:
        return tuple(vocabulary)
    return (*base.labels, *(label for label in found if label not in frozenset(base.labels)))


def find_error(
    settings: dataset_settings.SnapshotSettings,
    base: catalog_lib.Catalog,
    plan: elements.DatasetPlan,
    features: Sequence[features_lib.Feature],
) -> errors.ImagebeamError | None:
    """Returns why the snapshot before cannot be continued with examples of these features, or None."""
    differences = run_report.compare_configs(base.inputs, plan.inputs)
    if differences:
        return errors.ConfigError(
            "snapshot-other-config",
            f"snapshot {settings.base} was written with another config ({differences}): change it back, or write a "
            "whole new snapshot with --update --overwrite",
        )
    was, is_ = ({each.key: each for each in several} for several in (base.features, features))
    if changed := sorted(key for key in was.keys() | is_.keys() if was.get(key) != is_.get(key)):
        before, now = (each[changed[0]].describe() if changed[0] in each else "absent" for each in (was, is_))
        return errors.ConfigError(
            "snapshot-other-features",
            f"feature {changed[0]!r} is {before} in snapshot {settings.base}, and {now} in the new images: examples of "
            "one dataset must be alike; write a whole new snapshot with --update --overwrite",
        )
    if moved := [label for label, other in zip(base.labels, plan.labels) if label != other] or list(
        base.labels[len(plan.labels) :]
    ):
        return errors.ConfigError(
            "vocabulary-moves-ids",
            f"label.vocabulary would move the ids of {len(moved):,} classes, the first is {moved[0]!r}: add new "
            "classes at its end, or write a whole new snapshot with --update --overwrite",
        )
    new = plan.labels[len(base.labels) :]
    if new and settings.new_labels == "refuse":
        number, verb = plural.count(len(new), "class"), "is" if len(new) == 1 else "are"
        return errors.ConfigError(
            "snapshot-new-classes",
            f"{number} {verb} new, the first is {new[0]!r}, and update.new_labels is refuse: remove the images, or set "
            "update.new_labels: append",
        )
    return None


def find_excess_removal(
    settings: dataset_settings.SnapshotSettings, comparison: summaries.Comparison
) -> errors.ImagebeamError | None:
    """Returns the error of a run whose input lacks more images than `update.max_removed_fraction` allows, or None."""
    num_removed, num_known = comparison.totals()["removed"], comparison.num_known
    if num_removed > settings.max_removed_fraction * num_known:
        return errors.TooManyRejectsError(
            "snapshot-removes-too-many",
            f"{num_removed:,} of the {num_known:,} images of snapshot {settings.base} are gone from the input "
            f"({num_removed / num_known:.2%}), and update.max_removed_fraction allows "
            f"{settings.max_removed_fraction:.2%}: nothing was written; look whether the input is complete, or allow "
            "more with --set update.max_removed_fraction=1",
        )
    return None


def is_unchanged(base: catalog_lib.Catalog, plan: elements.DatasetPlan, comparison: summaries.Comparison) -> bool:
    """Returns whether the input is that of the snapshot before."""
    totals = comparison.totals()
    return (
        not (totals["added"] or totals["changed"] or totals["removed"])
        and plan.listed == base.counts.listed
        and plan.rejected == base.counts.rejected
        and plan.labels == base.labels
        and plan.snapshot[EARLY_REJECTS] == base.snapshot.get(EARLY_REJECTS)
    )


def describe(
    settings: dataset_settings.SnapshotSettings,
    base: catalog_lib.Catalog | None,
    rejects: summaries.RejectSummary,
    plan: elements.DatasetPlan,
    comparison: summaries.Comparison | None,
) -> dict[str, Any]:
    """Returns what the catalog says of a snapshot."""
    digest = f"{(rejects.digest - (comparison.kept_rejects_digest if comparison else 0)) % (1 << 128):032x}"
    if base is not None and settings.retry_rejects:  # images that were not rejected before are not looked at
        digest = base.snapshot.get(EARLY_REJECTS, "")
    num_images = sum(split.num_records for split in plan.splits.values())
    totals = comparison.totals() if comparison else {"added": num_images, "changed": 0, "removed": 0, "unchanged": 0}
    return {"name": settings.name, "base": settings.base or None, **totals, EARLY_REJECTS: digest}


def fingerprint(base: catalog_lib.Catalog, of_delta: str, comparison: summaries.Comparison) -> str:
    """Returns the fingerprint of a snapshot: of the one before, of what is written, and of what is removed."""
    parts = (base.fingerprint, of_delta, comparison.digest)
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()


def continue_catalog(
    settings: dataset_settings.SnapshotSettings,
    base: catalog_lib.Catalog,
    removed_before: Mapping[str, Sequence[int]],
    written: catalog_lib.Catalog,
    removed: Iterable[elements.RemovedRecords],
) -> tuple[catalog_lib.Catalog, bytes]:
    """Returns the catalog of a snapshot, and the content of its file of removed records.

    Shards of earlier snapshots come first in each split. A split without living examples is left out.

    Args:
        settings: of the snapshot.
        base: catalog of the snapshot before.
        removed_before: its removed records, by the names of its shards.
        written: catalog of the shards that this run has written.
        removed: the records that this run removes, by the index of their shard in `base`.
    """
    every = [shard for split in base.splits.values() for shard in split.shards]
    gone = {name: array.array("I", records) for name, records in removed_before.items()}
    for index, packed in removed:
        gone.setdefault(every[index].name, array.array("I")).frombytes(packed)
    splits: dict[str, list[catalog_lib.Shard]] = {}
    indexes: dict[str, list[Sequence[int]]] = {}
    for name, split in base.splits.items():
        for shard in split.shards:
            records = sorted(gone.get(shard.name, ()))
            moved = shard.name if shard.is_elsewhere else f"../{settings.base}/{shard.name}"
            splits.setdefault(name, []).append(dataclasses.replace(shard, name=moved, removed=len(records)))
            indexes.setdefault(name, []).append(records)
    for name, split in written.splits.items():
        splits.setdefault(name, []).extend(split.shards)
        indexes.setdefault(name, []).extend([()] * len(split.shards))
    living = {
        name: catalog_lib.Split(tuple(shards))
        for name, shards in splits.items()
        if any(shard.num_examples for shard in shards)
    }
    counts = dataclasses.replace(written.counts, written=sum(split.num_examples for split in living.values()))
    content = snapshots.encode_removed(records for name in living for records in indexes[name])
    return dataclasses.replace(written, splits=living, counts=counts), content


def continue_statistics(
    base: Mapping[str, Mapping[str, Any]],
    written: Mapping[str, Mapping[str, Any]],
    removed: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Returns the merged statistics of all splits of a snapshot.

    Args:
        base: merged statistics of the snapshot before, by split.
        written: of the shards that this run has written.
        removed: of the records of the snapshot before that this run removes.
    """
    remaining = {split: statistics.subtract_statistics(each, removed.get(split, {})) for split, each in base.items()}
    every = {**remaining, **written}
    return {
        split: statistics.merge_statistics(each[split] for each in (remaining, written) if split in each)
        for split in every
    }


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
        uri = storage.join(staging, each.shard.state_name.rpartition("/")[2])
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
    removed_statistics: Statistics = types.MappingProxyType({})  # those of the removed records
    reject_states: Iterable[elements.NamedFile] = ()  # those that no shard keeps, when a snapshot is compacted


NO_CHANGES = Changes()


class Run(NamedTuple):
    """Everything that one run has written and removed, for its report."""

    base: catalog_lib.Catalog | None  # catalog of the snapshot before
    base_statistics: Statistics  # from the snapshot before; {} if there is none, or they are lost
    written: catalog_lib.Catalog  # catalog of the shards that were written
    statistics: Statistics  # those of the written shards
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
        removed_before = snapshots.load_removed(settings.base_folder, base)
        written, removed = continue_catalog(settings, base, removed_before, written, changes.removed)
        merged = continue_statistics(known, merged, changes.removed_statistics)
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
