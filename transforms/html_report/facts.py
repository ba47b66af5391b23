"""What the page shows, gathered before any HTML is made."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from imagebeam import catalog as catalog_lib
from imagebeam.transforms.html_report import reject_examples, sample_records


@dataclasses.dataclass(frozen=True)
class Facts:
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

    def by_split(self, name: str) -> dict[str, dict[str, int]]:
        """Returns the counts of one kind, such as "labels", of each split that has them."""
        found = {}
        for split in self.catalog.splits:
            counted = self.statistics.get(split)
            if isinstance(counted, Mapping) and is_counts(counted.get(name)):
                found[split] = dict(counted[name])
        return found

    def total(self, name: str) -> Counter[str]:
        """Returns the counts of one kind in all splits together, in the order in which they are stored."""
        total: Counter[str] = Counter()
        for counts in self.by_split(name).values():
            total.update(counts)
        return total

    def names_of_counts(self) -> list[str]:
        """Returns the kinds of counts that any split has, sorted."""
        names: set[str] = set()
        for split in self.catalog.splits:
            counted = self.statistics.get(split)
            names.update(counted if isinstance(counted, Mapping) else ())
        return sorted(name for name in names if self.by_split(name))

    def range_of(self, name: str) -> tuple[int, float, int] | None:
        """Returns minimum, mean and maximum of "height", "width" or "bytes"; None if they are not known."""
        ranges, num_images = [], 0
        for split in self.catalog.splits:
            counted = self.statistics.get(split)
            each = counted.get(name) if isinstance(counted, Mapping) else None
            if is_counts(each) and {"min", "max", "sum"} <= each.keys():
                ranges.append(each)
                num_images += sum(self.by_split("formats").get(split, {}).values())
        if not ranges or not num_images:
            return None
        total = sum(each["sum"] for each in ranges)
        return min(each["min"] for each in ranges), total / num_images, max(each["max"] for each in ranges)


def is_counts(value: Any) -> TypeGuard[Mapping[str, int]]:
    """Returns whether a value is a mapping of names to integers, not empty."""
    return isinstance(value, Mapping) and bool(value) and all(type(each) is int for each in value.values())
