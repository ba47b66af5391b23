"""The order in which records are read: a pure function of seed and position, so that any state can be resumed.

A position counts the records that a process has read since it began, over all epochs. An order says which record of the
split stands at a position, without looking at those before it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import operator
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from imagebeam import errors
from imagebeam.reader import selection

_ROUNDS = 4  # of the Feistel network; three already make a pseudo-random permutation (Luby and Rackoff, 1988)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

Positions = np.ndarray  # int64 [n]


def mix(values: np.ndarray) -> np.ndarray:
    """Scrambles uint64 values. Source: splitmix64, Steele, Lea and Flood, 2014."""
    with np.errstate(over="ignore"):
        values = values + _GOLDEN
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


def make_key(*parts: int | str) -> np.uint64:
    """A key for `mix` from numbers and words. Equal numbers give equal keys: np.int64(5) is hashed as 5."""
    plain = tuple(part if isinstance(part, str) else int(operator.index(part)) for part in parts)
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def permute(positions: Positions, size: int, key: np.uint64) -> Positions:
    """Where each position goes in a pseudo-random permutation of 0 to `size`.

    A Feistel network over the next power of four, walked on until it leads back below `size` (at most four times on
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
    """`count` numbers in [0, 1) for each record of an epoch, whoever reads it and when: float32 [n, count]."""
    with np.errstate(over="ignore"):
        seeds = mix(mix(records.astype(np.uint64) ^ key) + epochs.astype(np.uint64))
        bits = mix(seeds[:, None] + np.arange(count, dtype=np.uint64) * _GOLDEN)
    return ((bits >> np.uint64(40)).astype(np.float32)) * np.float32(2.0**-24)


class Order(Protocol):
    """Which record stands at which position."""

    def locate(self, positions: Positions) -> tuple[np.ndarray, np.ndarray]:
        """The records of the split that stand at ascending positions, and their epochs: int64 [n] each."""


@dataclasses.dataclass(frozen=True)
class GlobalOrder:
    """A true permutation of the selection in each epoch, dealt out to the processes one record at a time.

    So what all processes together have read is the beginning of one common order, whatever their number.
    """

    selection: selection.Selection
    seed: int
    start: int = 0  # of the common order: what was read before
    process_index: int = 0
    process_count: int = 1
    epochs_dealt: int | None = None  # after so many epochs dealing begins again with process 0; None: never

    @property
    def epoch_size(self) -> int:
        return len(self.selection)

    def num_positions(self, num_epochs: int) -> int:
        rest = max(0, num_epochs * len(self.selection) - self.start - self.process_index)
        return -(-rest // self.process_count)

    def locate(self, positions: Positions) -> tuple[np.ndarray, np.ndarray]:
        start: int | np.ndarray = self.start
        if self.epochs_dealt is not None:
            deals, positions = np.divmod(positions, self.num_positions(self.epochs_dealt))
            start = deals * self.epochs_dealt * self.epoch_size
        epochs, inside = np.divmod(start + positions * self.process_count + self.process_index, self.epoch_size)
        records = np.empty_like(inside)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            key = make_key("global", self.seed, int(epoch))
            records[chosen] = permute(inside[chosen], self.epoch_size, key)
        return self.selection.start + records, epochs


@dataclasses.dataclass(frozen=True, eq=False)
class _OrderOfShare:
    """What orders of one process' share have in common: an epoch is all of it."""

    share: selection.Share

    @property
    def epoch_size(self) -> int:
        return len(self.share)

    def num_positions(self, num_epochs: int) -> int:
        return num_epochs * self.epoch_size


@dataclasses.dataclass(frozen=True, eq=False)
class ListedOrder(_OrderOfShare):
    """The order of the shards, the same in every epoch."""

    @functools.cached_property
    def _run_ends(self) -> np.ndarray:
        return np.cumsum(self.share.stops - self.share.starts)

    def locate(self, positions: Positions) -> tuple[np.ndarray, np.ndarray]:
        epochs, inside = np.divmod(positions, self.epoch_size)
        runs = np.searchsorted(self._run_ends, inside, side="right")
        return self.share.stops[runs] - (self._run_ends[runs] - inside), epochs


@dataclasses.dataclass(frozen=True)
class _Epoch:
    """The blocks of one epoch in their order."""

    starts: np.ndarray  # int64 [blocks], records of the split
    ends: np.ndarray  # int64 [blocks], positions of the epoch
    window_ends: np.ndarray  # int64 [windows], positions of the epoch
    key: np.uint64


@dataclasses.dataclass(frozen=True, eq=False)
class BlockOrder(_OrderOfShare):
    """Blocks of consecutive records in random order, and inside a window of blocks the records in random order.

    What stands together in a window is read with few, long reads, from as many places of the share as the window has
    blocks; it is what a shuffle buffer would hold.
    """

    seed: int
    block_records: int  # of a block: the length of a read
    window_blocks: int  # shuffled together
    in_sequence: bool = False  # whether the blocks of a run keep their order: compressed shards are read front to back

    @functools.cached_property
    def _blocks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of each block its first record, its size, its run and its place in the run."""
        counts = -(-(self.share.stops - self.share.starts) // self.block_records)
        runs = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(len(runs)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = self.share.starts[runs] + places * self.block_records
        sizes = np.minimum(starts + self.block_records, self.share.stops[runs]) - starts
        return starts, sizes, runs, places

    @functools.lru_cache(maxsize=3)  # noqa: B019  # an order lives as long as its dataset
    def _epoch(self, epoch: int) -> _Epoch:
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
        records = np.empty_like(inside)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            records[chosen] = self._locate_in(self._epoch(int(epoch)), inside[chosen])
        return records, epochs

    def _locate_in(self, epoch: _Epoch, positions: Positions) -> np.ndarray:
        windows = np.searchsorted(epoch.window_ends, positions, side="right")
        shuffled = np.empty_like(positions)
        for window in np.unique(windows):
            chosen = windows == window
            first = int(epoch.window_ends[window - 1]) if window else 0
            size = int(epoch.window_ends[window]) - first
            key = mix(np.array([epoch.key ^ np.uint64(window)]))[0]
            shuffled[chosen] = first + permute(positions[chosen] - first, size, key)
        blocks = np.searchsorted(epoch.ends, shuffled, side="right")
        before = np.where(blocks > 0, epoch.ends[blocks - 1], 0)
        return epoch.starts[blocks] + shuffled - before


@dataclasses.dataclass(frozen=True)
class ReaderState:
    """How far a job has come: the same value in all of its processes.

    Take it from `state()` of an iterator. It names everything that decides which record stands at which position, so
    that a reader of something else refuses it.

    Attributes:
        seed: of the order.
        epoch: that the job is in.
        position: places in the batches of this epoch that all processes have filled together. Padding and skipped
            examples count like any other.
        shuffle: as in `ReadOptions`.
        process_count: of the job. Any other goes on with `shuffle="global"`; the other orders need the same.
        fingerprint: of the dataset.
        selection: the records of the split that are read, such as "train[0:1000]", and the labels that are kept.
        block_records: of a block in "stream", from `shuffle_bytes` or `shuffle_records`; of a mixture one for each
            dataset, with spaces between.
        window_blocks: mixed together in "stream"; of a mixture likewise.
        num_epochs: of the reader. Another reader may have more, unless a process was past its last record already.
    """

    seed: int
    epoch: int
    position: int
    shuffle: str | None = "global"
    process_count: int = 1
    fingerprint: str | None = None
    selection: str | None = None
    block_records: int | str | None = None
    window_blocks: int | str | None = None
    num_epochs: int | None = None

    def __post_init__(self) -> None:
        for name in ("epoch", "position"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
                raise errors.ConfigError(f"{name} of the state is {value!r}; it must be a whole number from 0 on")

    def to_dict(self) -> dict[str, int | str | None]:
        """Plain values, for JSON or a checkpoint."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ReaderState:
        """The state that `to_dict` gave.

        Raises:
            ConfigError: if the fields are not those of a state of this release.
        """
        expected = {field.name for field in dataclasses.fields(cls)}
        missing, unknown = sorted(expected - set(fields)), sorted(set(fields) - expected)
        if unknown:
            raise errors.ConfigError(
                f"the state has {', '.join(map(repr, unknown))}, which this release does not know; it reads states "
                f"with {', '.join(sorted(expected))}: update imagebeam, or begin without the state"
            )
        if missing:
            raise errors.ConfigError(
                f"the state has no {', '.join(missing)}: an earlier release wrote it, whose states do not say what "
                "they belong to and cannot be restored exactly; begin without the state"
            )
        return cls(**fields)

    def check(self, reader: ReaderState) -> None:
        """Checks that a reader can go on from here.

        Args:
            reader: the state of that reader before its first batch.

        Raises:
            ConfigError: if the reader has another order or other records; the text names the fields that differ.
        """
        names = ["seed", "shuffle", "fingerprint", "selection", "block_records", "window_blocks"]
        if self.shuffle != "global":
            names.append("process_count")
        different = [name for name in names if getattr(self, name) != getattr(reader, name)]
        if not different:
            return
        mine, theirs = (", ".join(f"{name}={getattr(each, name)!r}" for name in different) for each in (self, reader))
        advice = "give the same dataset, split, labels and options, or begin without the state"
        if different == ["process_count"]:
            advice = 'only shuffle="global" can go on with another number; give the same, or begin without the state'
        elif different[0] in ("block_records", "window_blocks"):
            advice = "they come from shuffle_records, or shuffle_bytes; give the same, or begin without the state"
        raise errors.ConfigError(f"the state is of {mine}, and the reader has {theirs}: {advice}")
