"""Decides what a run changes in a snapshot: pure functions of the snapshot before and of what was listed."""

from __future__ import annotations

import array
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from imagebeam import catalog as catalog_lib
from imagebeam import errors, snapshots
from imagebeam.transforms import dataset_settings, elements, summaries
from imagebeam.transforms.output import recorded_inputs
from imagebeam.transforms.shard import statistics

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
) -> errors.ImagebeamError | None:
    """Returns why the snapshot before cannot be continued, or None."""
    differences = recorded_inputs.compare_configs(base.inputs, plan.inputs)
    if differences:
        return errors.ConfigError(
            f"snapshot {settings.base} was written with another config ({differences}): change it back, or write a "
            "whole new snapshot with --update --overwrite"
        )
    if moved := [label for label, other in zip(base.labels, plan.labels) if label != other] or list(
        base.labels[len(plan.labels) :]
    ):
        return errors.ConfigError(
            f"label.vocabulary would move the ids of {len(moved):,} classes, the first is {moved[0]!r}: add new "
            "classes at its end, or write a whole new snapshot with --update --overwrite"
        )
    new = plan.labels[len(base.labels) :]
    if new and settings.new_labels == "refuse":
        return errors.ConfigError(
            f"{_count(len(new), 'class is', 'classes are')} new, the first is {new[0]!r}, and update.new_labels is "
            "refuse: remove the images, or set update.new_labels: append"
        )
    return None


def find_excess_removal(
    settings: dataset_settings.SnapshotSettings, comparison: summaries.Comparison
) -> errors.ImagebeamError | None:
    """Returns the error of a run whose input lacks more images than `update.max_removed_fraction` allows, or None."""
    num_removed, num_known = comparison.totals()["removed"], comparison.num_known
    if num_removed > settings.max_removed_fraction * num_known:
        return errors.TooManyRejectsError(
            f"{num_removed:,} of the {num_known:,} images of snapshot {settings.base} are gone from the input "
            f"({num_removed / num_known:.2%}), and update.max_removed_fraction allows "
            f"{settings.max_removed_fraction:.2%}: nothing was written; look whether the input is complete, or allow "
            "more with --set update.max_removed_fraction=1"
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
    return {
        "name": settings.name,
        "base": settings.base or None,
        **totals,
        EARLY_REJECTS: digest,
    }


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


def _count(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
