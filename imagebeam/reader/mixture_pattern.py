"""Which dataset of a mixture each example comes from: a pure function of seed and position.

The positions are cut into blocks. In each block every dataset has a fixed number of positions, in random order. Where
the proportions change with the step, a block is a step of the job; where they stay, it has 65,536 positions. All is
computed with whole numbers, so it is the same on every machine.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from imagebeam.reader import record_order

BLOCK = 1 << 16  # positions
_KEPT_TABLES = 3
_BITS = 24  # of a proportion while it changes: 2**24 is all

Points: TypeAlias = Sequence[tuple[int, Sequence[float]]]  # a step, and the weight of each dataset from there on


@dataclasses.dataclass(frozen=True, eq=False)
class Ramp:
    """The steps in which proportions change.

    Attributes:
        firsts: first position of each step, and the position after the last: int64 [steps + 1].
        before: number of examples of each dataset before each step, and after the last: int64 [datasets, steps + 1].
        name: the points and the positions of a step, as plain values.
    """

    firsts: np.ndarray
    before: np.ndarray
    name: Sequence[Any] = ()


def make_ramp(points: Points, rows: int, repeats: int) -> Ramp:
    """Returns the steps up to the last point. Between two points proportions are linear in the step.

    Args:
        points: ascending steps, the first is 0.
        rows: number of places in the batches of a step.
        repeats: number of places of each position.
    """
    steps, shares = np.array([step for step, _ in points]), np.stack([share_out(weights) for _, weights in points])
    firsts = -(-np.arange(steps[-1] + 1) * rows // repeats)
    each = np.arange(steps[-1])
    last = np.searchsorted(steps, each, side="right") - 1
    since, length = each - steps[last], (steps[1:] - steps[:-1])[last]
    mixed = shares[last] * (length - since)[:, None] + shares[last + 1] * since[:, None]
    weights = ((mixed << (_BITS - 16)) // length[:, None]).T
    # The first dataset takes its part of each step, the second its part of what is left, and so on: what is left over
    # of a fraction goes to the next step, so no dataset ever takes less than nothing or more than is left.
    left, rest = np.diff(firsts), weights.sum(0)
    before = np.zeros((len(weights), len(firsts)), np.int64)
    for dataset, weight in enumerate(weights):
        part = (weight << _BITS) // np.maximum(rest, 1)
        before[dataset, 1:] = (np.cumsum(part * left) + (1 << (_BITS - 1))) >> _BITS
        left, rest = left - np.diff(before[dataset]), rest - weight
    return Ramp(firsts, before, [rows, [[int(step), found.tolist()] for step, found in zip(steps, shares)]])


class Pattern:
    """Assigns to each position a dataset and the number of one of its examples, counted from 0 in ascending order."""

    def __init__(self, weights: Sequence[float], seed: int, ramp: Ramp | None = None):
        """Shares the positions of each block among the datasets.

        Args:
            weights: of each dataset, accurate to 1/65,536 in each block of 65,536 positions; with `ramp` after it.
            seed: seed of the mixture.
            ramp: the steps before that.
        """
        self._seed = seed
        self._ramp = ramp or Ramp(np.zeros(1, np.int64), np.zeros((len(weights), 1), np.int64))
        self._num_steps = len(self._ramp.firsts) - 1
        self.counts = share_out(weights)  # int64 [datasets]: positions in a block after the ramp
        self._table = functools.lru_cache(_KEPT_TABLES)(self._make_table)

    @property
    def name(self) -> Sequence[Any]:
        """The ramp, as plain values; empty if there is none."""
        return self._ramp.name

    def locate(self, positions: record_order.Positions) -> tuple[np.ndarray, np.ndarray]:
        """Returns the datasets at positions, which do not descend, and the numbers of their examples: int64 [n]."""
        blocks = self._blocks_of(positions)
        datasets, numbers = np.empty_like(positions), np.empty_like(positions)
        for block in np.unique(blocks).tolist():
            chosen = blocks == block
            first, _, before = self._block(block)
            members, ranks = self._table(block)
            slots = positions[chosen] - first
            datasets[chosen] = members[slots]
            numbers[chosen] = ranks[slots] + before[members[slots]]
        return datasets, numbers

    def position_of(self, dataset: int, number: int) -> int | None:
        """Returns the position of an example of a dataset, the inverse of `locate`; None if it never comes."""
        in_ramp = self._ramp.before[dataset]
        if number < in_ramp[-1]:
            block = int(np.searchsorted(in_ramp, number, side="right")) - 1
        elif self.counts[dataset]:
            block = self._num_steps + int((number - in_ramp[-1]) // self.counts[dataset])
        else:
            return None
        first, _, before = self._block(block)
        members, _ = self._table(block)
        return first + int(np.flatnonzero(members == dataset)[number - before[dataset]])

    def count_before(self, position: int) -> list[int]:
        """Returns the number of examples of each dataset before a position."""
        [block] = self._blocks_of(np.array([position])).tolist()
        first, counts, before = self._block(block)
        members, _ = self._table(block)
        return (before + np.bincount(members[: position - first], minlength=len(counts))).tolist()

    def _blocks_of(self, positions: np.ndarray) -> np.ndarray:
        """Returns the number of the block of each position: int64 [n] both."""
        steps = np.searchsorted(self._ramp.firsts, positions, side="right") - 1
        return steps + np.maximum(positions - self._ramp.firsts[-1], 0) // BLOCK

    def _block(self, block: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Returns the first position of a block, and of each dataset the examples in it and before it."""
        firsts, before = self._ramp.firsts, self._ramp.before
        if block < self._num_steps:
            return int(firsts[block]), before[:, block + 1] - before[:, block], before[:, block]
        turn = block - self._num_steps
        return int(firsts[-1]) + turn * BLOCK, self.counts, before[:, -1] + turn * self.counts

    def _make_table(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns for each position in a block its dataset, and the number of its examples before it in the block."""
        _, counts, _ = self._block(block)
        size = int(counts.sum())
        key = record_order.make_key("mix", self._seed, block)
        shuffled = record_order.permute(np.arange(size, dtype=np.int64), size, key)
        members = np.searchsorted(np.cumsum(counts), shuffled, side="right")
        ranks = np.empty(size, np.int64)
        for dataset, count in enumerate(counts.tolist()):
            ranks[members == dataset] = np.arange(count)
        return members, ranks


def share_out(weights: Sequence[float]) -> np.ndarray:
    """Returns the positions in a block for each dataset, at least one if it has any weight: int64 [datasets]."""
    given = np.asarray(weights, np.float64)
    wanted = given / given.sum() * BLOCK
    counts = np.maximum(given > 0, np.floor(wanted)).astype(np.int64)
    while (missing := BLOCK - int(counts.sum())) > 0:
        counts[np.argsort(counts - wanted, kind="stable")[:missing]] += 1
    while counts.sum() > BLOCK:  # some datasets weigh less than one position
        counts[np.argmax(counts)] -= 1
    return counts
