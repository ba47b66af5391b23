"""Summaries of all listed images: counts, rejects, ranks. Small, however large the dataset is. Imports no Beam."""

from __future__ import annotations

import array
import bisect
import collections
import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam.transforms import elements, kept_features
from imagebeam.transforms.classes import label_names

MAX_DUPLICATES = 5  # repeated keys that are named
_MAX_PROBLEMS = 5  # named in the error
DIGEST_BITS = 128
DIGEST_RANGE = 1 << DIGEST_BITS


class Tally(NamedTuple):
    """Counts of one part of the source, to be added up."""

    listed: int
    skipped: Mapping[str, int]
    problems: tuple[str, ...]
    lists: label_names.ListSurvey = label_names.NO_LISTS  # how the images fit label.lists
    features: kept_features.FeatureSurvey = kept_features.NO_FEATURES  # in the records that hold the images

    def merge(self, other: Tally) -> Tally:
        """Returns the counts of both parts; the result does not depend on the order of merging."""
        skipped = collections.Counter(self.skipped)
        skipped.update(other.skipped)
        return Tally(
            self.listed + other.listed,
            dict(sorted(skipped.items())),
            tuple(sorted({*self.problems, *other.problems})[:_MAX_PROBLEMS]),
            self.lists.merge(other.lists),
            self.features.merge(other.features),
        )


NO_TALLY = Tally(0, {}, ())


@dataclasses.dataclass(frozen=True)
class RejectSummary:
    """The images rejected before any was read."""

    counts: Mapping[str, int]  # by reason
    digest: int
    first_unknown_label: elements.Reject | None  # in the order of keys
    first: elements.Reject | None = None  # in the order of keys


def digest(values: Any) -> int:
    """Returns a digest; those of several values are added up modulo `DIGEST_RANGE`, in any order."""
    identity = repr(values).encode("utf-8", "backslashreplace")
    return int.from_bytes(hashlib.blake2b(identity, digest_size=DIGEST_BITS // 8).digest(), "big")


def digest_reject(reject: elements.Reject) -> int:
    """Returns the digest of a reject."""
    return digest((reject.key, reject.stage, reject.reason.value))


class RepeatedKey(NamedTuple):
    """A key that several references share, and where the first two of them are."""

    key: str
    uris: tuple[str, str]
    positions: tuple[int, int]  # in the table, if there is one


class Ranking(NamedTuple):
    """The ranks of all references, set by set, where a set is a split or the images of a class.

    Each set is sorted in parts, by intervals of the order value (see rank_references).
    """

    intervals: Mapping[str, Sequence[int]]  # by set: the intervals that hold any reference of it, ascending
    starts: Mapping[str, Sequence[int]]  # by set: the rank at which each of those intervals starts; last, the total
    num_bytes: Mapping[str, int]
    labels: tuple[str, ...]  # sorted
    digest: int
    duplicates: tuple[RepeatedKey, ...]  # the first of them
    classes: Mapping[str, frozenset[str]] = {}  # by set: which of `labels` it holds
    num_duplicates: int = 0  # keys that occur more than once

    def start(self, name: str, interval: int) -> int:
        """Returns the rank of the first reference of the set `name` in an interval."""
        return self.starts[name][bisect.bisect_left(self.intervals[name], interval)]

    def total(self, name: str) -> int:
        """Returns the number of references in the set `name`."""
        return self.starts[name][-1]


CHANGES = ("added", "changed", "removed", "unchanged")
TURNS = {  # what EXIF orientations ask for
    "2": "mirrored",
    "3": "turned by 180 degrees",
    "4": "turned by 180 degrees and mirrored",
    "5": "turned by 90 degrees clockwise and mirrored",
    "6": "turned by 90 degrees clockwise",
    "7": "turned by 90 degrees counterclockwise and mirrored",
    "8": "turned by 90 degrees counterclockwise",
}
_DIGESTS = ("kept_rejects_digest", "digest")  # fields of Comparison, as are the next ones
_NUMBERS = ("kept_rejects", "num_duplicates", "compared_contents", "same_contents", "moved")


class Comparison(NamedTuple):
    """Differences of listed images from those of the snapshot before. Counts are of images by split."""

    unchanged: Mapping[str, int] = {}
    added: Mapping[str, int] = {}
    changed: Mapping[str, int] = {}
    removed: Mapping[str, int] = {}
    removed_labels: Mapping[str, Mapping[str, int]] = {}  # by split: labels of removed and replaced records
    kept_rejects: int = 0  # images that were rejected before, have not changed, and are not read again
    kept_rejects_digest: int = 0  # as in RejectSummary
    digest: int = 0  # identifies the removed and replaced records
    duplicates: tuple[RepeatedKey, ...] = ()  # keys that are listed twice, the first of them
    num_duplicates: int = 0
    compared_contents: int = 0  # images whose bytes were read to find out whether they are the same
    same_contents: int = 0  # those of them that are: among `unchanged` and `kept_rejects`
    moved: int = 0  # images of `changed` whose record is in another split: a folder, column or list says so now
    rejected: Mapping[str, int] = {}  # images that the run has read and rejected; {} before they are read

    @property
    def num_known(self) -> int:
        """Number of images in the snapshot before."""
        return sum(map(_total, (self.unchanged, self.changed, self.removed)))

    def totals(self) -> dict[str, int]:
        """Returns the number of images by what became of them."""
        return {name: _total(getattr(self, name)) for name in CHANGES}

    def after_reading(self, written: Iterable[elements.WrittenShard]) -> Comparison:
        """Returns what really became of the images: those that were rejected are not added.

        A rejected image that should have replaced a record has removed it.

        Args:
            written: all shards of the run.
        """
        added, changed, removed = map(collections.Counter, (self.added, self.changed, self.removed))
        rejected: collections.Counter[str] = collections.Counter()
        for each in written:
            num_rejected, num_lost = sum(each.rejected.values()), sum(each.lost.values())
            added[each.split] -= num_rejected - num_lost
            changed[each.split] -= num_lost
            removed.update(each.lost)
            rejected[each.split] += num_rejected
        return self._replace(
            added=_without_zeros(added),
            changed=_without_zeros(changed),
            removed=_without_zeros(removed),
            rejected=_without_zeros(rejected),
        )


def _without_zeros(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


NO_SNAPSHOT = Comparison()


def merge_comparisons(parts: Iterable[Comparison]) -> Comparison:
    """Returns the comparison of all images from those of parts, in any order."""
    parts = list(parts)
    counts: dict[str, Any] = {name: collections.Counter() for name in CHANGES}
    labels: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for part in parts:
        for name in CHANGES:
            counts[name].update(getattr(part, name))
        for split, removed in part.removed_labels.items():
            labels[split].update(removed)
    duplicates = sorted(itertools.chain.from_iterable(part.duplicates for part in parts))
    sums = {name: sum(getattr(part, name) for part in parts) for name in (*_DIGESTS, *_NUMBERS)}
    counts = {name: dict(sorted(each.items())) for name, each in counts.items()}
    return Comparison(
        **counts | sums | {name: sums[name] % DIGEST_RANGE for name in _DIGESTS},
        removed_labels={split: dict(sorted(each.items())) for split, each in sorted(labels.items())},
        duplicates=tuple(duplicates[:MAX_DUPLICATES]),
    )


def _total(counts: Mapping[str, int]) -> int:
    return sum(counts.values())


@dataclasses.dataclass
class PartialRanking:
    """Summary of some intervals, or of a part of one. The result does not depend on the order of merging.

    A class: Beam encodes the strings of a list as UTF-8, which a file name may not be.
    """

    counts: dict[str, collections.Counter[int]] = dataclasses.field(default_factory=dict)  # by set and interval
    num_bytes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)  # as far as known
    classes: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    digest: int = 0  # identifies all references in the intervals
    duplicates: tuple[RepeatedKey, ...] = ()  # the first of them
    num_duplicates: int = 0

    def merge(self, other: PartialRanking) -> None:
        """Adds the summary of other intervals."""
        for name, by_interval in other.counts.items():
            self.counts.setdefault(name, collections.Counter()).update(by_interval)
        self.num_bytes.update(other.num_bytes)
        for name, classes in other.classes.items():
            self.classes.setdefault(name, set()).update(classes)
        self.digest = (self.digest + other.digest) % DIGEST_RANGE
        self.duplicates = tuple(sorted((*self.duplicates, *other.duplicates))[:MAX_DUPLICATES])
        self.num_duplicates += other.num_duplicates

    def result(self) -> Ranking:
        """Returns the ranking of all references."""
        intervals, starts = {}, {}
        for name, by_interval in sorted(self.counts.items()):
            intervals[name] = array.array("H", sorted(by_interval))
            ranks = itertools.accumulate((by_interval[interval] for interval in intervals[name]), initial=0)
            starts[name] = array.array("Q", ranks)
        classes = {name: frozenset(held) for name, held in sorted(self.classes.items())}
        labels = tuple(sorted(frozenset().union(*classes.values())))
        return Ranking(
            intervals, starts, dict(self.num_bytes), labels, self.digest, self.duplicates, classes, self.num_duplicates
        )


def merge_rankings(rankings: Iterable[PartialRanking]) -> Ranking:
    """Returns the ranking of all references."""
    merged = PartialRanking()
    for each in rankings:
        merged.merge(each)
    return merged.result()
