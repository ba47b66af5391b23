"""Gathers what the page shows before any HTML is made."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from imagebeam import catalog as catalog_lib
from imagebeam.transforms.html_report import reject_examples, sample_records


@dataclasses.dataclass(frozen=True)
class DatasetFacts:
    """One dataset. All but the catalog may be missing or have another shape: files are edited and lost."""

    catalog: catalog_lib.Catalog
    statistics: Mapping[str, Any]  # as in statistics.json
    samples: Mapping[str, sample_records.SplitSamples]  # thumbnails by split
    rejects: Mapping[str, Sequence[reject_examples.RejectExample]]  # examples by reason
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # report.json of a snapshot
    duplicates: Sequence[Mapping[str, Any]] = ()  # some lines of duplicates.jsonl
    notes: tuple[str, ...] = ()  # what is missing from the page, and why

    @property
    def num_images(self) -> int:
        return sum(split.num_examples for split in self.catalog.splits.values())

    @property
    def num_removed(self) -> int:
        """Records in the shards that no longer belong to the dataset."""
        return sum(shard.removed for split in self.catalog.splits.values() for shard in split.shards)

    def _counted(self) -> dict[str, Mapping[str, Any]]:
        found = {split: self.statistics.get(split) for split in self.catalog.splits}
        return {split: each for split, each in found.items() if isinstance(each, Mapping)}

    def by_split(self, name: str) -> dict[str, dict[str, int]]:
        """Returns the counts of one kind, such as "labels", of each split that has them."""
        return {split: dict(each[name]) for split, each in self._counted().items() if is_counts(each.get(name))}

    def total(self, name: str) -> Counter[str]:
        """Returns the counts of one kind in all splits together, in the order in which they are stored."""
        total: Counter[str] = Counter()
        for counts in self.by_split(name).values():
            total.update(counts)
        return total

    def names_of_counts(self) -> list[str]:
        """Returns the kinds of counts that any split has, sorted."""
        return sorted({name for each in self._counted().values() for name in each if is_counts(each[name])})

    def range_of(self, name: str) -> tuple[int, float, int] | None:
        """Returns minimum, mean and maximum of "height", "width" or "bytes"; None if they are not known."""
        found = {split: each for split, each in self.by_split(name).items() if {"min", "max", "sum"} <= each.keys()}
        num_images = sum(sum(self.by_split("formats").get(split, {}).values()) for split in found)
        if not num_images:
            return None
        ranges = found.values()
        total = sum(each["sum"] for each in ranges)
        return min(each["min"] for each in ranges), total / num_images, max(each["max"] for each in ranges)


def is_counts(value: Any) -> TypeGuard[Mapping[str, int]]:
    """Returns whether a value is a mapping of names to integers, not empty."""
    return isinstance(value, Mapping) and bool(value) and all(type(each) is int for each in value.values())
