"""The order of batches in buckets: which bucket each step of a job has, and which records its batch holds.

A step is a batch of all processes together, of one bucket. The records of a bucket come one after the other, in a
permutation of their own in each epoch, and a batch takes the next ones. So a batch may begin with what the epoch before
left of its bucket, and each record comes once an epoch. All is a pure function of seed and step.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from imagebeam.reader import record_order

_KEPT_EPOCHS = 3


class Steps(Protocol):
    """Assigns a bucket to each step."""

    def first_step(self, epoch: int) -> int:
        """Returns the number of steps before an epoch."""

    def epoch_of(self, step: int) -> int:
        """Returns the epoch that a step is in."""

    def batch_at(self, step: int) -> tuple[int, int, int]:
        """Returns the bucket of a step, and of the records of the bucket the first one of its batch and the last + 1.

        The records of a bucket are numbered in the order in which they come, over all epochs.
        """

    def carried(self, step: int) -> int:
        """Returns how many records of earlier epochs are still to come at a step."""


@dataclasses.dataclass(frozen=True, eq=False)
class EpochSteps:
    """The steps of one dataset. In each epoch the batches of all buckets come in random order.

    Attributes:
        counts: number of records of each bucket: int64 [buckets].
        batch_sizes: records in a batch of all processes together, of each bucket: int64 [buckets].
        seed: seed of the order.
        is_padded: whether the last batch of each bucket in an epoch is filled up; else it takes what is missing from
            the next epoch.
    """

    counts: np.ndarray
    batch_sizes: np.ndarray
    seed: int
    is_padded: bool

    def _batches_before(self, epoch: int) -> np.ndarray:
        """Returns the number of batches of each bucket before an epoch: int64 [buckets]."""
        if self.is_padded:
            return -(-self.counts // self.batch_sizes) * epoch
        return self.counts * epoch // self.batch_sizes

    def first_step(self, epoch: int) -> int:
        return int(self._batches_before(epoch).sum())

    def epoch_of(self, step: int) -> int:
        beyond = 1
        while self.first_step(beyond) <= step:
            beyond *= 2
        return bisect.bisect_right(range(beyond + 1), step, key=self.first_step) - 1

    @functools.cached_property
    def _tables(self) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
        return functools.lru_cache(_KEPT_EPOCHS)(self._make_table)

    def _make_table(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns for each step of an epoch its bucket, and how many batches of the bucket come before it."""
        before = self._batches_before(epoch)
        counts = self._batches_before(epoch + 1) - before
        size = int(counts.sum())
        shuffled = record_order.permute(np.arange(size), size, record_order.make_key("buckets", self.seed, epoch))
        buckets = np.searchsorted(np.cumsum(counts), shuffled, side="right")
        numbers = np.empty(size, np.int64)
        for bucket in np.flatnonzero(counts).tolist():
            numbers[buckets == bucket] = before[bucket] + np.arange(counts[bucket])
        return buckets, numbers

    def batch_at(self, step: int) -> tuple[int, int, int]:
        epoch = self.epoch_of(step)
        buckets, numbers = self._tables(epoch)
        row = step - self.first_step(epoch)
        bucket, number = int(buckets[row]), int(numbers[row])
        size, count = int(self.batch_sizes[bucket]), int(self.counts[bucket])
        if not self.is_padded:
            return bucket, number * size, (number + 1) * size
        inside = number % -(-count // size) * size
        return bucket, epoch * count + inside, epoch * count + min(inside + size, count)

    def carried(self, step: int) -> int:
        if self.is_padded:
            return 0
        epoch = self.epoch_of(step)
        first = self.first_step(epoch)
        done = self._batches_before(epoch)
        if step > first:
            done = done + np.bincount(self._tables(epoch)[0][: step - first], minlength=len(done))
        return int(np.maximum(self.counts * epoch - done * self.batch_sizes, 0).sum())


class BucketBatch(NamedTuple):
    """The part of one process in the batch of a step."""

    bucket: int
    first: int  # numbers of its records in the order of the bucket: `first` to `end`, none of them if they are equal
    end: int


@dataclasses.dataclass(frozen=True, eq=False)
class BucketOrder:
    """The order of all processes together. In the places of a job each step takes as many as its largest batch has.

    Attributes:
        steps: assigns a bucket to each step.
        batch_sizes: records in a batch of one process, of each bucket.
        num_parts: number of batches that make a step: processes times replicas.
        records: order of the records of each bucket.
    """

    steps: Steps
    batch_sizes: Sequence[int]
    num_parts: int
    records: Sequence[record_order.Order]

    @property
    def step_places(self) -> int:
        """Number of places of a step."""
        return max(self.batch_sizes) * self.num_parts

    def first_place(self, epoch: int) -> int:
        """Returns the number of places before an epoch."""
        return self.steps.first_step(epoch) * self.step_places

    def epoch_at(self, place: int) -> int:
        """Returns the epoch that a place is in."""
        return self.steps.epoch_of(place // self.step_places)

    def carried_at(self, place: int) -> int:
        """Returns how many records of earlier epochs are still to come at a place."""
        return self.steps.carried(place // self.step_places)

    def batch_at(self, place: int) -> BucketBatch:
        """Returns the batch of the process that has this place, the first one of a batch."""
        step, inside = divmod(place, self.step_places)
        bucket, first, end = self.steps.batch_at(step)
        size = self.batch_sizes[bucket]
        first = min(first + inside // max(self.batch_sizes) * size, end)
        return BucketBatch(bucket, first, min(first + size, end))


@dataclasses.dataclass(frozen=True, eq=False)
class BucketRecords:
    """The records of one bucket, as the selection of a `record_order.GlobalOrder`."""

    numbers: np.ndarray  # int32 or int64 [n], ascending

    def __len__(self) -> int:
        return len(self.numbers)

    def records_at(self, indexes: np.ndarray) -> np.ndarray:
        """Returns the records of the split for indexes into these: int64 [n] both."""
        return self.numbers[indexes].astype(np.int64)
