"""Measures how far a snapshot drifts from the one before: labels, sizes of images, rejects. Pure functions, no Beam.

A difference is compared with its threshold only after what chance explains is taken off: `Figure.by_chance` is how far
as many images may differ that were drawn from the snapshot before. It is the expected difference and three standard
deviations for labels, and three standard deviations for sizes and rejects.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

MIN_IMAGES = 30  # on either side; below, the normal approximation does not hold, and nothing is compared
ALL_REASONS = "all"

_DEVIATIONS = 3.0
_MEAN_OF_NORMAL = math.sqrt(2 / math.pi)  # mean of the absolute value of a standard normal variable
_VARIANCE_OF_NORMAL = 1 - 2 / math.pi
_MAX_MOVED = 5  # labels that are named
_DIGITS = 6  # figures in a report are rounded to so many

Kind: TypeAlias = Literal["labels", "sizes", "rejects"]
Counts: TypeAlias = Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """The differences, beyond what chance explains, that are too large, by kind of figure. None: never."""

    labels: float | None = 0.1  # total variation distance of the shares of labels in a split
    sizes: float | None = 0.5  # relative difference of the means
    rejects: float | None = 0.05  # rise of the share of rejects


DEFAULT = Thresholds()


class Move(NamedTuple):
    """The share of one label in a split, before and after."""

    label: str
    before: float
    after: float


class Figure(NamedTuple):
    """One difference between a snapshot and the one before."""

    kind: Kind
    name: str  # name of the split; bytes, height or width; the reason or ALL_REASONS
    difference: float
    by_chance: float | None  # None: too few images to compare
    before: float | None = None  # the mean, or the share of rejects
    after: float | None = None  # the same of the images that were read
    moved: tuple[Move, ...] = ()  # the labels whose shares changed most

    def exceeds(self, threshold: float | None) -> bool:
        """Returns whether the difference is above the threshold by more than chance explains.

        Fewer rejects are not too large a difference.
        """
        if threshold is None or self.by_chance is None:
            return False
        size = self.difference if self.kind == "rejects" else abs(self.difference)
        return size - self.by_chance > threshold


def compare_labels(split: str, before: Counts, written: Counts, removed: Counts) -> Figure | None:
    """Returns the total variation distance of the shares of labels in a split, before and after.

    It is half the sum of the absolute differences of all shares, from 0 to 1. Chance is computed as if the written
    labels and the removed ones were drawn from all of them.

    Args:
        split: its name.
        before: labels in the snapshot before.
        written: labels of the images that were written, new and changed.
        removed: labels of the records that were removed, or replaced by those of changed images.

    Returns:
        None if there are no labels before or after.
    """
    after = {
        label: before.get(label, 0) + written.get(label, 0) - removed.get(label, 0) for label in {**before, **written}
    }
    num_before, num_after = sum(before.values()), sum(after.values())
    num_written, num_removed = sum(written.values()), sum(removed.values())
    if num_before <= 0 or num_after <= 0:
        return None
    moves, deviations = [], []
    draws = num_written * (1 + num_written / num_before) + num_removed * (1 - num_removed / num_before)
    for label, count in after.items():
        moves.append(Move(label, before.get(label, 0) / num_before, count / num_after))
        share = (before.get(label, 0) + written.get(label, 0)) / (num_before + num_written)
        deviations.append(math.sqrt(max(0.0, share * (1 - share) * draws)) / num_after)
    moves.sort(key=lambda move: (-round(abs(move.after - move.before), _DIGITS), move.label))
    by_chance = None
    if num_before >= MIN_IMAGES and num_written + num_removed >= MIN_IMAGES:
        # Of two labels, one moves as far as the other: then the deviation of the sum is exact, and of more it is less.
        spread = math.sqrt(_VARIANCE_OF_NORMAL * sum(deviation**2 for deviation in deviations) / 2)
        by_chance = _MEAN_OF_NORMAL * sum(deviations) / 2 + _DEVIATIONS * spread
    distance = sum(abs(move.after - move.before) for move in moves) / 2
    moved = tuple(move for move in moves[:_MAX_MOVED] if move.before != move.after)
    return Figure("labels", split, distance, by_chance, moved=moved)


class Sizes(NamedTuple):
    """One measure of some images: all heights in pixels, for example."""

    num_images: int
    total: int
    smallest: int
    largest: int

    @property
    def mean(self) -> float:
        return self.total / self.num_images


def sizes_of(counted: Mapping[str, Any], name: str) -> Sizes | None:
    """Returns the heights, widths or bytes in the statistics of shard.statistics; None without an image."""
    values, num_images = counted.get(name), sum(counted.get("formats", {}).values())
    return Sizes(num_images, values["sum"], values["min"], values["max"]) if values and num_images else None


def compare_sizes(name: str, before: Sizes, added: Sizes) -> Figure | None:
    """Returns the relative difference of two means: 1.0 if what was added is twice as large.

    The statistics hold no deviation. So it is taken as large as it can be between the smallest and the largest value
    (Bhatia and Davis, https://doi.org/10.2307/2589180), but at most as the mean.

    Returns:
        None if the mean before is 0.
    """
    if before.mean <= 0:
        return None
    by_chance = None
    if min(before.num_images, added.num_images) >= MIN_IMAGES:
        mean = (before.total + added.total) / (before.num_images + added.num_images)
        smallest, largest = min(before.smallest, added.smallest), max(before.largest, added.largest)
        deviation = min(math.sqrt(max(0.0, (largest - mean) * (mean - smallest))), mean)
        by_chance = _DEVIATIONS * _error_of_means(deviation, before.num_images, added.num_images) / before.mean
    difference = (added.mean - before.mean) / before.mean
    return Figure("sizes", name, difference, by_chance, before.mean, added.mean)


def compare_rejects(before: Counts, num_listed: int, new: Counts, num_read: int) -> list[Figure]:
    """Returns how far the share of rejects has risen: over all reasons, and by reason.

    Args:
        before: rejects of the snapshot before, by reason.
        num_listed: number of its images, rejected or not.
        new: images that are rejected now and were not before, by reason.
        num_read: number of images that were read: written or in `new`.
    """
    if not num_listed or not num_read:
        return []
    figures = []
    for reason in (ALL_REASONS, *sorted(before.keys() | new.keys())):
        num_before, num_new = (
            sum(counts.values()) if reason == ALL_REASONS else counts.get(reason, 0) for counts in (before, new)
        )
        by_chance = None
        if min(num_listed, num_read) >= MIN_IMAGES:
            share = (num_before + num_new) / (num_listed + num_read)
            by_chance = _DEVIATIONS * _error_of_means(math.sqrt(share * (1 - share)), num_listed, num_read)
        shares = num_before / num_listed, num_new / num_read
        figures.append(Figure("rejects", reason, shares[1] - shares[0], by_chance, *shares))
    return figures


def _error_of_means(deviation: float, *numbers: int) -> float:
    """Returns the standard error of the difference of the means of several numbers of values."""
    return deviation * math.sqrt(sum(1 / number for number in numbers))


def to_json(figures: Iterable[Figure], thresholds: Thresholds) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns figures by kind and name, for a report."""
    found: dict[str, dict[str, dict[str, Any]]] = {"labels": {}, "sizes": {}, "rejects": {}}
    for figure in figures:
        threshold: float | None = getattr(thresholds, figure.kind)
        fields: dict[str, Any] = {
            "difference": _round(figure.difference),
            "by_chance": _round(figure.by_chance),
            "threshold": threshold,
            "exceeds": figure.exceeds(threshold),
        }
        if figure.kind == "labels":
            fields["moved"] = [[move.label, _round(move.before), _round(move.after)] for move in figure.moved]
        else:
            fields |= {"before": _round(figure.before), "after": _round(figure.after)}
        found[figure.kind][figure.name] = fields
    return found


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


def describe_excess(drift: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Returns a text for each figure above its threshold, with the key of the threshold and what moved most.

    Args:
        drift: a result of `to_json`.
    """
    return [
        f"{describe(kind, name, fields)}; update.drift.{kind} allows {fields['threshold']:g}, and chance explains "
        f"{fields['by_chance']:.3f}"
        for kind, by_name in drift.items()
        for name, fields in by_name.items()
        if fields["exceeds"]
    ]


def describe(kind: str, name: str, fields: Mapping[str, Any]) -> str:
    """Returns a text such as `labels of train moved by 0.212 (cat 50.0% -> 71.2%)`.

    Args:
        kind: of the figure.
        name: of the figure.
        fields: of the figure in a result of `to_json`.
    """
    if kind == "labels":
        moved = describe_moves(fields["moved"])
        return f"labels of {name} moved by {fields['difference']:.3f}" + (f" ({moved})" if moved else "")
    before, after = fields["before"], fields["after"]
    if kind == "sizes":
        unit = "bytes" if name == "bytes" else "px"
        what = "images" if name == "bytes" else f"{name}s"
        return f"new {what} differ in their mean by {fields['difference']:+.1%} ({before:,.0f} -> {after:,.0f} {unit})"
    reason = "" if name == ALL_REASONS else f" for {name}"
    shares = f"{before:.1%} -> {after:.1%} of the images that were read"
    return f"share of rejects{reason} differs by {fields['difference']:+.3f} ({shares})"


def describe_moves(moved: Sequence[Sequence[Any]]) -> str:
    """Returns a text such as `cat 50.0% -> 71.2%, dog 50.0% -> 28.8%`."""
    return ", ".join(f"{label} {before:.1%} -> {after:.1%}" for label, before, after in moved)
