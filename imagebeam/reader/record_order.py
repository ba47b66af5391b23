"""The order in which records are read: a pure function of seed and position, so that a reader can resume anywhere.

`ReaderState` is how far a job has read in it, as plain values that fit into a checkpoint.

A position counts the records that a process has read since it began, over all epochs. An order returns the record of
the split at a position without looking at the positions before it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import operator
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from imagebeam import errors, version
from imagebeam.reader import option_values, record_selection

_ROUNDS = 4  # The Feistel network has four; three already make a pseudo-random permutation (Luby and Rackoff, 1988)
# Constants of splitmix64 (Steele, Lea and Flood, 2014). NumPy's arrays wrap around without a warning.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)

_MAX_KEPT = 1 << 20  # records of a window whose permutation is kept: 8 MB, made in 0.1 s

# Raised when the fields of a state mean another place than before. A field that is added does not raise it: a version
# of imagebeam that does not know the field refuses the state.
_STATE_VERSION = 1

# Fields of a state that are left out of its plain values if they are these.
_OPTIONAL = {"snapshot": None, "first_epoch": 0, "map_id": None, "repeats": 1, "buckets": None, "carried": 0}

_MAX_PLACE = (1 << 53) - 1  # JSON of any language holds whole numbers up to it exactly

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


def seeds(records: np.ndarray, rounds: np.ndarray, key: np.uint64) -> np.ndarray:
    """Returns a seed for each record in its round, uint64 [n], which depends on record, round and key alone.

    The round is how often a job reads the record before: epoch * repeats + number of the copy.
    """
    return mix(mix(records.astype(np.uint64) ^ key) + rounds.astype(np.uint64))


def uniforms(records: np.ndarray, rounds: np.ndarray, key: np.uint64, count: int) -> np.ndarray:
    """Returns `count` random numbers in [0, 1) for each record in its round: float32 [n, count].

    They depend on record, round and key alone, not on which process reads the record or when.
    """
    bits = mix(seeds(records, rounds, key)[:, None] + np.arange(count, dtype=np.uint64) * _GOLDEN)
    return ((bits >> np.uint64(40)).astype(np.float32)) * np.float32(2.0**-24)


@dataclasses.dataclass(frozen=True)
class Deal:
    """How a common order is dealt to the processes of a job: each gets the next `rows` places in turn.

    With the size of a batch as `rows`, the batches of all processes one after the other are a run of the common order,
    whatever their number: pairs of examples in a batch of the whole job stay pairs when a job goes on with another
    number of processes.
    """

    process_index: int = 0
    process_count: int = 1
    rows: int = 1

    def places(self, positions: Positions) -> np.ndarray:
        """Returns the places in the common order of positions of this process: int64 [n] both."""
        turns, inside = np.divmod(positions, self.rows)
        return (turns * self.process_count + self.process_index) * self.rows + inside

    def count(self, num_places: int) -> int:
        """Returns how many of the first places this process gets."""
        turns, left = divmod(num_places, self.process_count * self.rows)
        return turns * self.rows + min(max(left - self.process_index * self.rows, 0), self.rows)


class Order(Protocol):
    """Assigns a record of the split to each position."""

    def locate(self, positions: Positions) -> tuple[np.ndarray, np.ndarray]:
        """Returns the records of the split at positions, which do not descend, and their epochs: int64 [n] each."""


@dataclasses.dataclass(frozen=True, eq=False)
class JobOrder:
    """The order of one process: of its own share, or of a common order that is dealt to the processes.

    Each record comes `repeats` times in a row of the order that is dealt. Whatever the number of processes, all
    together have read the beginning of a common order.
    """

    order: Order
    start: int = 0  # place in the common order where this job begins: all before it has been read
    deal: Deal = Deal()
    turn: int | None = None  # begin again with process 0 after this many places; None: never
    repeats: int = 1

    def locate(self, positions: Positions) -> tuple[np.ndarray, np.ndarray]:
        """Returns the records of the split at ascending positions, and their rounds, as of `seeds`: int64 [n] each."""
        places, copies = np.divmod(self.places(positions), self.repeats)
        records, epochs = self.order.locate(places)
        return records, epochs * self.repeats + copies

    def places(self, positions: Positions) -> np.ndarray:
        """Returns the places in the common order of ascending positions: int64 [n] both."""
        start: int | np.ndarray = self.start
        if self.turn is not None:
            turns, positions = np.divmod(positions, self.deal.count(self.turn))
            start = self.start + turns * self.turn
        return start + self.deal.places(positions)


class Records(Protocol):
    """Records that are selected."""

    def __len__(self) -> int: ...

    def records_at(self, indexes: np.ndarray) -> np.ndarray:
        """Returns the records of the split for indexes into these: int64 [n] both."""


@dataclasses.dataclass(frozen=True)
class GlobalOrder:
    """A true permutation of the selection in each epoch, common to all processes."""

    selection: Records
    seed: int

    @property
    def epoch_size(self) -> int:
        return len(self.selection)

    def locate(self, positions: Positions) -> tuple[np.ndarray, np.ndarray]:
        epochs, inside = np.divmod(positions, self.epoch_size)
        indexes = np.empty_like(inside)
        for epoch in np.unique(epochs):
            is_here = epochs == epoch
            key = make_key("global", self.seed, int(epoch))
            indexes[is_here] = permute(inside[is_here], self.epoch_size, key)
        return self.selection.records_at(indexes), epochs


@dataclasses.dataclass(frozen=True)
class ShardOrder:
    """The order of the shards of one process's share, the same in every epoch."""

    share: record_selection.Share

    def locate(self, positions: Positions) -> tuple[np.ndarray, np.ndarray]:
        epochs, inside = np.divmod(positions, len(self.share))
        indexes = record_selection.in_runs(self.share.starts, self.share.stops, inside)
        return self.share.records_at(indexes), epochs


@dataclasses.dataclass(frozen=True)
class _Epoch:
    """The blocks of one epoch in their order."""

    starts: np.ndarray  # int64 [blocks], indexes into the selection
    ends: np.ndarray  # int64 [blocks], positions in the epoch
    window_ends: np.ndarray  # int64 [windows], positions in the epoch
    key: np.uint64


@dataclasses.dataclass(frozen=True, eq=False)
class BlockOrder:
    """Blocks of consecutive records in random order; inside a window of blocks the records are in random order too.

    The records of a window are read with a few long reads, from as many places of the share as the window has blocks. A
    window holds what a shuffle buffer would hold.
    """

    share: record_selection.Share  # of one process
    seed: int
    block_records: int  # records in a block: the length of a read
    window_blocks: int  # number of blocks that are shuffled together
    in_sequence: bool = False  # whether the blocks of a run keep their order: compressed shards are read front to back

    @functools.cached_property
    def _blocks(self) -> record_selection.Blocks:
        return self.share.cut(self.block_records)

    # A cache of each order: in one for all, the orders of a mixture would drop each other's values.

    @functools.cached_property
    def _epochs(self) -> Callable[[int], _Epoch]:
        return functools.lru_cache(3)(self._make_epoch)

    @functools.cached_property
    def _permutations(self) -> Callable[[int, np.uint64], Positions]:
        """Returns permutations of the positions in a window: the batches of a window take no time then."""
        return functools.lru_cache(2)(lambda size, key: permute(np.arange(size), size, key))

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
        epochs, inside = np.divmod(positions, len(self.share))
        indexes = np.empty_like(inside)
        for epoch in np.unique(epochs):
            is_here = epochs == epoch
            indexes[is_here] = self._locate_in(self._epochs(int(epoch)), inside[is_here])
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
                shuffled[is_here] = first + self._permutations(size, key)[inside]
            else:
                shuffled[is_here] = first + permute(inside, size, key)
        blocks = np.searchsorted(epoch.ends, shuffled, side="right")
        before = np.where(blocks > 0, epoch.ends[blocks - 1], 0)
        return epoch.starts[blocks] + shuffled - before


def _blocks(name: str, value: Any) -> int | str | None:
    """Returns a number of records or blocks, or those of the datasets of a mixture."""
    return value if isinstance(value, str) else option_values.whole(1, _MAX_PLACE, may_be_none=True)(name, value)


_FIELDS: Mapping[str, option_values.Convert] = {
    "version": option_values.whole(1),
    "seed": option_values.whole(),
    "epoch": option_values.whole(0),
    "position": option_values.whole(0, _MAX_PLACE),
    "shuffle": option_values.choice(option_values.SHUFFLES),
    "process_count": option_values.whole(1),
    "fingerprint": option_values.text,
    "selection": option_values.text,
    "block_records": _blocks,
    "window_blocks": _blocks,
    "num_epochs": option_values.whole(1, may_be_none=True),
    "snapshot": option_values.text,
    "first_epoch": option_values.whole(0),
    "map_id": option_values.text,
    "repeats": option_values.whole(1),
    "buckets": option_values.text,
    "carried": option_values.whole(0, _MAX_PLACE),
}


def _convert_field(name: str, value: Any) -> Any:
    """Returns the plain value of a field of a state."""
    try:
        return _FIELDS[name](f"{name} of the state", value)
    except errors.ConfigError as e:
        raise errors.ConfigError("state-unreadable", f"{e}: restore a state as state_dict() gave it") from e


@dataclasses.dataclass(frozen=True)
class ReaderState:
    """How far a job has read: the same value in all of its processes.

    Take it from `state()` of an iterator. It names everything that decides which record is at which position, so that a
    reader of other records or of another order refuses it.

    Attributes:
        seed: seed of the order.
        epoch: the epoch that the job is in, from 0.
        position: number of places in batches that all processes together have filled in this epoch. Padding and
            skipped examples count like any other example.
        shuffle: as in `ReadOptions`.
        process_count: number of processes of the job. With `shuffle="global"` a job of any other number can go on from
            the state; with the other orders only one of the same number can.
        fingerprint: fingerprint of the dataset.
        selection: the records that are read, such as "train[0:1000]+validation[0:9]", and the labels that are kept.
        block_records: records in a block of "stream", computed from `shuffle_bytes` or `shuffle_records`; for a mixture
            one number for each dataset, separated by spaces.
        window_blocks: blocks that "stream" shuffles together; for a mixture likewise.
        num_epochs: as in `ReadOptions`. A reader with more epochs can go on from the state, unless a process was
            already past its last record.
        snapshot: name of the snapshot that is read, such as "000002"; None for a dataset without snapshots. It is told
            in errors; `fingerprint` decides whether the records are the same.
        first_epoch: as in `ReadOptions`.
        map_id: as in `ReadOptions`; None without `map` and `batch_map`.
        repeats: as in `ReadOptions`.
        buckets: the buckets, each with the size of a batch of all processes together, and what decides which one an
            image is in; None without buckets. `position` counts as many places for each batch as the largest has.
        carried: records of earlier epochs that are still to come, because they did not fill a batch of their bucket.

    Examples:
        >>> state = imagebeam.open_dataset("shards").state_at("train", step=10, batch_size=32)
        >>> saved = json.dumps(state.to_dict())
        >>> imagebeam.ReaderState.from_dict(json.loads(saved)) == state
        True
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
    snapshot: str | None = None
    first_epoch: int = 0
    map_id: str | None = None
    repeats: int = 1
    buckets: str | None = None
    carried: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _convert_field(field.name, getattr(self, field.name)))

    def to_dict(self) -> dict[str, int | str | None]:
        """Returns plain values, for JSON or a checkpoint, and the versions of their form and of imagebeam.

        Those of what is not used, such as snapshots and buckets, are left out.
        """
        plain = {name: value for name, value in dataclasses.asdict(self).items() if _OPTIONAL.get(name, self) != value}
        return {"version": _STATE_VERSION, "imagebeam": version.__version__, **plain}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ReaderState:
        """Returns the state that `to_dict` was called on.

        Raises:
            ConfigError: if it is no dict, if a field is missing, has a value that it cannot have, or is unknown, as in
                a state of a later version.
        """
        if not isinstance(fields, Mapping):
            raise errors.ConfigError(
                "state-unreadable", f"the state is {reprlib.repr(fields)}; it must be the dict of state_dict()"
            )
        values = {name: value for name, value in fields.items() if name not in ("version", "imagebeam")}
        missing = sorted(_FIELDS.keys() - set(_OPTIONAL) - set(fields))
        unknown = ", ".join(sorted(map(repr, values.keys() - _FIELDS.keys())))
        advice = version.advise_update(fields.get("imagebeam"))
        if _convert_field("version", fields.get("version", _STATE_VERSION)) > _STATE_VERSION:
            what = f"version {fields['version']}, and {_STATE_VERSION} is the last one that is known here; {advice}"
        elif missing:
            what = f"no {', '.join(missing)}: it is damaged, or not the whole dict of state_dict(); restore another"
        elif unknown:
            what = f"{unknown}, unknown here; {advice}"
        else:
            return cls(**values)
        raise errors.ConfigError("state-unreadable", f"the state has {what}, or begin without the state")

    def check(self, reader: ReaderState) -> None:
        """Checks that a reader can go on from this state.

        Args:
            reader: the state of that reader before its first batch.

        Raises:
            ConfigError: if the reader has another order or other records; the text names the fields that differ.
        """
        names = ["seed", "shuffle", "fingerprint", "selection", "block_records", "window_blocks", "map_id"]
        names += ["repeats", "buckets"]
        if self.shuffle != "global":
            names += ["process_count", "first_epoch"]
        different = [name for name in names if getattr(self, name) != getattr(reader, name)]
        if not different:
            return
        is_other_snapshot = "fingerprint" in different and self.snapshot != reader.snapshot
        if is_other_snapshot:
            different.insert(0, "snapshot")
        mine, theirs = (", ".join(f"{name}={getattr(each, name)!r}" for name in different) for each in (self, reader))
        advice = "give the same dataset, split, labels and options, or begin without the state"
        if is_other_snapshot:
            advice = f"{_advice_to_pin(self.snapshot)}to read other images, begin without the state"
        elif different == ["process_count"]:
            advice = 'only shuffle="global" can go on with another number; give the same, or begin without the state'
        elif different == ["map_id"]:
            advice = "give the same map and batch_map, or map_id if only their name is another"
        elif different == ["buckets"]:
            advice = (
                "give the same buckets, pad, max_enlarge and too_small; with another number of processes, the "
                "batch_size or batch_multiple with which batches of all processes together have these sizes"
            )
        elif different[0] in ("block_records", "window_blocks"):
            advice = "they come from shuffle_records, or shuffle_bytes; give the same, or begin without the state"
        raise errors.ConfigError("state-mismatch", f"the state is of {mine}, and the reader has {theirs}: {advice}")


def _advice_to_pin(snapshot: str | None) -> str:
    if snapshot is None:
        return ""
    if " " in snapshot:  # the state is that of a mixture
        return "open each dataset with the snapshot of the state, if it is still there, to go on from it; "
    return f"open_dataset(..., snapshot={snapshot!r}) goes on from it, if that snapshot is still there; "
