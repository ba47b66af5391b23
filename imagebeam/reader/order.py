"""The order in which records are read: a pure function of seed and position, so that a reader can resume anywhere.

A position counts the records that a process has read since it began, over all epochs. An order returns the record of
the split at a position without looking at the positions before it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import operator
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import numpy as np

from imagebeam.reader import selection

_ROUNDS = 4  # of the Feistel network; three already make a pseudo-random permutation (Luby and Rackoff, 1988)
# Of splitmix64 (Steele, Lea and Flood, 2014). NumPy's arrays wrap around without a warning.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)

_MAX_KEPT = 1 << 20  # records of a window whose permutation is kept: 8 MB, made in 0.1 s

Positions = np.ndarray  # int64 [n]


def mix(values: np.ndarray) -> np.ndarray:
    """Scrambles an array of uint64 values."""
    values = values + _GOLDEN
    values = (values ^ (values >> _SHIFTS[0])) * _FACTORS[0]
    values = (values ^ (values >> _SHIFTS[1])) * _FACTORS[1]
    return values ^ (values >> _SHIFTS[2])


def make_key(*parts: int | str) -> np.uint64:
    """Returns a key for `mix` made of numbers and strings. Equal numbers give equal keys: np.int64(5) hashes as 5."""
    plain = tuple(part if isinstance(part, str) else int(operator.index(part)) for part in parts)
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def permute(positions: Positions, size: int, key: np.uint64) -> Positions:
    """Returns where each position goes in a pseudo-random permutation of 0 to `size`.

    A Feistel network over the next power of four, applied again until the result is below `size` (at most four times on
    average). Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    keys = mix(key + np.arange(1, _ROUNDS + 1, dtype=np.uint64))
    values = positions.astype(np.uint64)
    outside = np.ones(len(values), bool)
    while outside.any():
        left, right = values[outside] >> shift, values[outside] & mask
        for round_key in keys:
            left, right = right, left ^ (mix(right ^ round_key) & mask)
        values[outside] = (left << shift) | right
        outside = values >= np.uint64(size)
    return values.astype(np.int64)


def uniforms(records: np.ndarray, epochs: np.ndarray, key: np.uint64, count: int) -> np.ndarray:
    """Returns `count` random numbers in [0, 1) for each record in its epoch: float32 [n, count].

    They depend on record, epoch and key alone, not on which process reads the record or when.
    """
    seeds = mix(mix(records.astype(np.uint64) ^ key) + epochs.astype(np.uint64))
    bits = mix(seeds[:, None] + np.arange(count, dtype=np.uint64) * _GOLDEN)
    return ((bits >> np.uint64(40)).astype(np.float32)) * np.float32(2.0**-24)


class Order(Protocol):
    """Assigns a record of the split to each position."""

    def locate(self, positions: Positions) -> tuple[np.ndarray, np.ndarray]:
        """Returns the records of the split at ascending positions, and their epochs: int64 [n] each."""


@dataclasses.dataclass(frozen=True)
class GlobalOrder:
    """A true permutation of the selection in each epoch, distributed round-robin among the processes.

    Whatever their number, all processes together have read the beginning of one common order.
    """

    selection: selection.Selection
    seed: int
    start: int = 0  # position in the common order where this job begins: all before it has been read
    process_index: int = 0
    process_count: int = 1
    epochs_dealt: int | None = None  # begin again with process 0 after this many epochs; None: never

    @property
    def epoch_size(self) -> int:
        return len(self.selection)

    def num_positions(self, num_epochs: int) -> int:
        rest = max(0, num_epochs * len(self.selection) - self.start - self.process_index)
        return -(-rest // self.process_count)

    def locate(self, positions: Positions) -> tuple[np.ndarray, np.ndarray]:
        start: int | np.ndarray = self.start
        if self.epochs_dealt is not None:
            places = self.epochs_dealt * self.epoch_size
            deals, positions = np.divmod(positions, -(-(places - self.process_index) // self.process_count))
            start = self.start + deals * places
        epochs, inside = np.divmod(start + positions * self.process_count + self.process_index, self.epoch_size)
        indexes = np.empty_like(inside)
        for epoch in np.unique(epochs):
            is_here = epochs == epoch
            key = make_key("global", self.seed, int(epoch))
            indexes[is_here] = permute(inside[is_here], self.epoch_size, key)
        return self.selection.records_at(indexes), epochs


@dataclasses.dataclass(frozen=True, eq=False)
class _OrderOfShare:
    """Base of the orders of one process's share, in which an epoch is the whole share."""

    share: selection.Share

    @property
    def epoch_size(self) -> int:
        return len(self.share)

    def num_positions(self, num_epochs: int) -> int:
        return num_epochs * self.epoch_size


@dataclasses.dataclass(frozen=True, eq=False)
class ShardOrder(_OrderOfShare):
    """The order of the shards, the same in every epoch."""

    @functools.cached_property
    def _run_ends(self) -> np.ndarray:
        return np.cumsum(self.share.stops - self.share.starts)

    def locate(self, positions: Positions) -> tuple[np.ndarray, np.ndarray]:
        epochs, inside = np.divmod(positions, self.epoch_size)
        runs = np.searchsorted(self._run_ends, inside, side="right")
        return self.share.records_at(self.share.stops[runs] - (self._run_ends[runs] - inside)), epochs


@dataclasses.dataclass(frozen=True)
class _Epoch:
    """The blocks of one epoch in their order."""

    starts: np.ndarray  # int64 [blocks], indexes into the selection
    ends: np.ndarray  # int64 [blocks], positions in the epoch
    window_ends: np.ndarray  # int64 [windows], positions in the epoch
    key: np.uint64


def _permute_all(size: int, key: np.uint64) -> Positions:
    return permute(np.arange(size), size, key)


_Value = TypeVar("_Value")


class _Latest(Generic[_Value]):
    """The latest few values that were made, by key. Threads may share it; a pickled copy is empty.

    functools.lru_cache on a method is one cache for all orders, and those of a mixture would drop each other's values.
    """

    def __init__(self, num_kept: int):
        self._num_kept = num_kept
        self._values: dict[int, _Value] = {}

    def get(self, key: int, make: Callable[[], _Value]) -> _Value:
        """Returns the value of a key, which is made if it is not kept."""
        value = self._values.get(key)
        if value is None:
            value = make()
            kept = list(self._values.items())[max(0, len(self._values) + 1 - self._num_kept) :]
            self._values = {**dict(kept), key: value}  # another thread may look into the one before
        return value

    def __reduce__(self) -> tuple[type[_Latest[_Value]], tuple[int]]:
        return _Latest, (self._num_kept,)


@dataclasses.dataclass(frozen=True, eq=False)
class BlockOrder(_OrderOfShare):
    """Blocks of consecutive records in random order; inside a window of blocks the records are in random order too.

    The records of a window are read with a few long reads, from as many places of the share as the window has blocks. A
    window holds what a shuffle buffer would hold.
    """

    seed: int
    block_records: int  # records in a block: the length of a read
    window_blocks: int  # number of blocks that are shuffled together
    in_sequence: bool = False  # whether the blocks of a run keep their order: compressed shards are read front to back
    _epochs: _Latest[_Epoch] = dataclasses.field(default_factory=lambda: _Latest(3), init=False, repr=False)
    # Of the positions in a window, by its key: the batches of a window take no time then.
    _permutations: _Latest[np.ndarray] = dataclasses.field(default_factory=lambda: _Latest(2), init=False, repr=False)

    @functools.cached_property
    def _blocks(self) -> selection.Blocks:
        return self.share.cut(self.block_records)

    def _make_epoch(self, epoch: int) -> _Epoch:
        starts, sizes, runs, places = self._blocks
        key = make_key("stream", self.seed, epoch)
        if self.in_sequence:
            num_runs = len(self.share.starts)
            lanes = permute(np.arange(num_runs), num_runs, key)[runs]  # runs in random order, a window of them at once
            order = np.lexsort((lanes, places, lanes // self.window_blocks))
        else:
            order = permute(np.arange(len(starts)), len(starts), key)
        ends = np.cumsum(sizes[order])
        last_blocks = np.arange(self.window_blocks, len(starts) + self.window_blocks, self.window_blocks) - 1
        return _Epoch(starts[order], ends, ends[np.minimum(last_blocks, len(starts) - 1)], key)

    def locate(self, positions: Positions) -> tuple[np.ndarray, np.ndarray]:
        epochs, inside = np.divmod(positions, self.epoch_size)
        indexes = np.empty_like(inside)
        for epoch in np.unique(epochs):
            is_here = epochs == epoch
            blocks = self._epochs.get(int(epoch), functools.partial(self._make_epoch, int(epoch)))
            indexes[is_here] = self._locate_in(blocks, inside[is_here])
        return self.share.records_at(indexes), epochs

    def _locate_in(self, epoch: _Epoch, positions: Positions) -> np.ndarray:
        """Returns the indexes into the selection at positions of an epoch."""
        windows = np.searchsorted(epoch.window_ends, positions, side="right")
        shuffled = np.empty_like(positions)
        for window in np.unique(windows):
            is_here = windows == window
            first = int(epoch.window_ends[window - 1]) if window else 0
            size = int(epoch.window_ends[window]) - first
            key = mix(np.array([epoch.key ^ np.uint64(window)]))[0]
            inside = positions[is_here] - first
            if size <= _MAX_KEPT:
                make = functools.partial(_permute_all, size, key)
                shuffled[is_here] = first + self._permutations.get(int(key), make)[inside]
            else:
                shuffled[is_here] = first + permute(inside, size, key)
        blocks = np.searchsorted(epoch.ends, shuffled, side="right")
        before = np.where(blocks > 0, epoch.ends[blocks - 1], 0)
        return epoch.starts[blocks] + shuffled - before
