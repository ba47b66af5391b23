"""Gathers what the page shows before any HTML is made."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from imagebeam import catalog as catalog_lib
from imagebeam.transforms.html_report import sample_records

_MAX_ROWS = 40  # classes that are all listed
_ENDS = 15  # of more classes: how many of the most and of the least frequent ones
_MAX_SPLIT_COLUMNS = 4
_MAX_POINTS = 200
_MIXED = 1.5  # ratio of the largest class to the smallest up to which classes are called balanced
_UNEQUAL = 10

Row = tuple[str, int, list[int]]  # a class, its images, and those in each split


class Balance(NamedTuple):
    """Measures of how equal the numbers of images of classes are. Classes without an image do not count."""

    num_classes: int
    largest: int
    smallest: int
    median: float
    effective: float  # number of equal classes with the same entropy

    @property
    def ratio(self) -> float:
        """Images of the largest class for each one of the smallest."""
        return self.largest / self.smallest

    @property
    def kind(self) -> str:
        """The ratio in words."""
        return "nearly balanced" if self.ratio <= _MIXED else "unequal" if self.ratio < _UNEQUAL else "very unequal"


class Classes(NamedTuple):
    """The classes of a dataset, as the page shows them."""

    balance: Balance
    total: int  # images; an image with several classes counts for each
    columns: list[tuple[str, str]]  # splits with a column of their own, and the class of the column
    tables: list[tuple[str, list[Row]]]  # with captions; all classes, or the most and the least frequent ones
    num_between: int  # classes in no table
    points: list[tuple[float, float]]  # of the curve of many classes, in a box of 400 x 64
    absent: list[str]  # classes without an image


def balance_of(counts: Sequence[int]) -> Balance:
    """Returns the balance of classes with these numbers of images, none of them 0.

    Source: https://www.jstor.org/stable/1934352 (Hill, 1973) for the effective number, of order 1.
    """
    ordered, total = sorted(counts), sum(counts)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    entropy = -math.fsum(count / total * math.log(count / total) for count in ordered)
    return Balance(len(ordered), ordered[-1], ordered[0], median, math.exp(entropy))


def describe(by_split: Mapping[str, Mapping[str, int]], labels: Sequence[str]) -> Classes | None:
    """Returns what the page shows of the classes; None without any.

    Args:
        by_split: images of each class in each split. An image with several classes counts for each.
        labels: all classes.
    """
    totals: Counter[str] = Counter()
    for each in by_split.values():
        totals.update(each)
    present = sorted(((label, count) for label, count in totals.items() if count), key=lambda each: (-each[1], each[0]))
    if not present:
        return None
    counts = [count for _, count in present]
    splits = [name for name, each in by_split.items() if each]
    if not 1 < len(splits) <= _MAX_SPLIT_COLUMNS:
        splits = []
    rows = [(label, count, [by_split[split].get(label, 0) for split in splits]) for label, count in present]
    is_long = len(rows) > _MAX_ROWS
    return Classes(
        balance_of(counts),
        sum(counts),
        [(split, "number minor") for split in splits],
        [
            (f"The {_ENDS} most frequent classes", rows[:_ENDS]),
            (f"The {_ENDS} least frequent classes", rows[-_ENDS:]),
        ]
        if is_long
        else [("", rows)],
        len(rows) - 2 * _ENDS,
        curve(counts) if is_long else [],
        [label for label in labels if label not in totals],
    )


def curve(values: Sequence[int]) -> list[tuple[float, float]]:
    """Returns points of values that fall from left to right, with a logarithmic scale of height.

    Args:
        values: several, descending.
    """
    num_points = min(len(values), _MAX_POINTS)
    picked = [values[index * (len(values) - 1) // (num_points - 1)] for index in range(num_points)]
    scale = 60 / math.log10(1 + max(picked[0], 1))
    step = 400 / (num_points - 1)
    return [(index * step, 62 - scale * math.log10(1 + value)) for index, value in enumerate(picked)]


@dataclasses.dataclass(frozen=True)
class DatasetFacts:
    """One dataset. All but the catalog may be missing or have another shape: files are edited and lost."""

    catalog: catalog_lib.Catalog
    statistics: Mapping[str, Any]  # as in statistics.json
    samples: Mapping[str, sample_records.SplitSamples]  # thumbnails by split
    rejects: Mapping[str, Sequence[sample_records.RejectExample]]  # examples by reason
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
