"""Summaries of all listed images: counts, rejects, ranks. Small, however large the dataset is. Imports no Beam."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from imagebeam.transforms import elements, kept_features, labels_by_index, recorded_inputs


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
