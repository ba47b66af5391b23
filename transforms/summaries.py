"""Summaries of all listed images: counts, rejects, ranks. Small, however large the dataset is. Imports no Beam."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from imagebeam.transforms import elements, kept_features
from imagebeam.transforms.classes import labels_by_index
from imagebeam.transforms.output import recorded_inputs


class Tally(NamedTuple):
    """Counts of one part of the source, to be added up."""

    listed: int
    passed_over: Mapping[str, int]
    problems: tuple[str, ...]
    lists: labels_by_index.ListSurvey = labels_by_index.NO_LISTS  # how the images fit label.lists
    features: kept_features.FeatureSurvey = kept_features.NO_FEATURES  # of the records that hold the images


@dataclasses.dataclass(frozen=True)
class RejectSummary:
    """The images rejected before any was read."""

    counts: Mapping[str, int]  # by reason
    digest: int
    first_unknown_label: elements.Reject | None  # in the order of keys
    first: elements.Reject | None = None  # in the order of keys


def digest_reject(reject: elements.Reject) -> int:
    """Returns a digest of a reject; those of several are added up modulo 2**128."""
    identity = repr((reject.key, reject.stage, reject.reason.value)).encode("utf-8", "backslashreplace")
    return int.from_bytes(hashlib.blake2b(identity, digest_size=16).digest(), "big")


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
    checksums: recorded_inputs.ImageChecksums = recorded_inputs.NO_IMAGES

    def start(self, name: str, interval: int) -> int:
        """Returns the rank of the first reference of the set `name` in an interval."""
        return self.starts[name][bisect.bisect_left(self.intervals[name], interval)]

    def total(self, name: str) -> int:
        """Returns the number of references in the set `name`."""
        return self.starts[name][-1]


CHANGES = ("added", "changed", "removed", "unchanged")


class Comparison(NamedTuple):
    """How listed images differ from those of the snapshot before. Counts are of images by split."""

    unchanged: Mapping[str, int] = {}
    added: Mapping[str, int] = {}
    changed: Mapping[str, int] = {}
    removed: Mapping[str, int] = {}
    removed_labels: Mapping[str, Mapping[str, int]] = {}  # by split: labels of removed and replaced records
    kept_rejects: int = 0  # images that were rejected before, have not changed, and are not read again
    kept_rejects_digest: int = 0  # as in RejectSummary
    digest: int = 0  # of the removed and replaced records
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


def _total(counts: Mapping[str, int]) -> int:
    return sum(counts.values())
