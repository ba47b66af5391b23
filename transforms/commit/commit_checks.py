"""Checks a dataset before it is committed, and notes what the user should know of it."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from imagebeam import catalog as catalog_lib
from imagebeam import errors, plural
from imagebeam.transforms import dataset_settings, elements
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.plan import decide_plan
from imagebeam.transforms.reports import merge_statistics, snapshot_report


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
    merged = merge_statistics.merge_by_split(written) if merged is None else merged
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
