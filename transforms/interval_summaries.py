"""Counts and checksums of intervals of references, merged into the ranking of all of them: see rank_references."""

import array
import collections
import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from imagebeam.transforms import summaries
from imagebeam.transforms.output import recorded_inputs

MAX_DUPLICATES = 5  # named in the ranking
DIGEST_BITS = 128


class IntervalSummary(NamedTuple):
    """Counts and checksums of one interval, or of a part of it."""

    interval: int
    counts: Mapping[str, int]  # references, by set
    num_bytes: Mapping[str, int]  # of the images by set, as far as known
    classes: Mapping[str, frozenset[str]]  # names, by set
    digest: int  # of all references in the interval
    duplicates: tuple[summaries.RepeatedKey, ...]  # the first of them
    num_duplicates: int  # all of them


@dataclasses.dataclass
class PartialRanking:
    """Summaries of some intervals, merged. The result does not depend on the order of merging.

    A class: Beam encodes the strings of a list as UTF-8, which a file name may not be.
    """

    counts: dict[str, collections.Counter[int]] = dataclasses.field(default_factory=dict)  # by set and interval
    num_bytes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    classes: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    digest: int = 0
    duplicates: tuple[summaries.RepeatedKey, ...] = ()
    num_duplicates: int = 0
    checksums: list[recorded_inputs.ImageChecksums] = dataclasses.field(default_factory=list)

    def add(self, summary: IntervalSummary) -> None:
        """Adds the summary of an interval, or of a part of it."""
        for name, count in summary.counts.items():
            self.counts.setdefault(name, collections.Counter())[summary.interval] += count
        self._add_sums(summary)

    def merge(self, other: "PartialRanking") -> None:
        """Adds the summaries of other intervals."""
        for name, by_interval in other.counts.items():
            self.counts.setdefault(name, collections.Counter()).update(by_interval)
        self._add_sums(other)
        self.checksums += other.checksums

    def _add_sums(self, other: "IntervalSummary | PartialRanking") -> None:
        self.num_bytes.update(other.num_bytes)
        for name, classes in other.classes.items():
            self.classes.setdefault(name, set()).update(classes)
        self.digest = (self.digest + other.digest) % (1 << DIGEST_BITS)
        self.duplicates = tuple(sorted((*self.duplicates, *other.duplicates))[:MAX_DUPLICATES])
        self.num_duplicates += other.num_duplicates

    def result(self) -> summaries.Ranking:
        """Returns the ranking of all references."""
        intervals, starts = {}, {}
        for name, by_interval in sorted(self.counts.items()):
            intervals[name] = array.array("H", sorted(by_interval))
            ranks = itertools.accumulate((by_interval[interval] for interval in intervals[name]), initial=0)
            starts[name] = array.array("Q", ranks)
        classes = {name: frozenset(held) for name, held in sorted(self.classes.items())}
        labels = tuple(sorted(frozenset().union(*classes.values())))
        return summaries.Ranking(
            intervals,
            starts,
            dict(self.num_bytes),
            labels,
            self.digest,
            self.duplicates,
            classes,
            self.num_duplicates,
            recorded_inputs.NO_IMAGES.merge(self.checksums),
        )


def merge_rankings(rankings: Iterable[PartialRanking]) -> summaries.Ranking:
    """Returns the ranking of all references."""
    merged = PartialRanking()
    for each in rankings:
        merged.merge(each)
    return merged.result()
