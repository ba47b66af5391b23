"""How much each process of a job reads, and from where on: a pure function of the options and the job's state.

All processes of a job take their batches in step, so a position, which counts what one process has read, is the same
number in all of them. The state of the job is that number; every process computes from it how many batches each of the
others still makes, without asking them.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from imagebeam import errors
from imagebeam.reader import options as options_lib
from imagebeam.reader import order as order_lib
from imagebeam.reader import selection

_LOGGER = logging.getLogger("imagebeam.dataset")
_BLOCK_BYTES = 4 << 20  # of a read in streaming


class Scheduled(Protocol):
    """What schedules are made for: the records of a dataset, or of several in a mixture."""

    @property
    def num_records(self) -> int:
        """Of an epoch, of all processes together."""

    def start(self, asked: options_lib.ReadOptions) -> order_lib.ReaderState:
        """The state before the first epoch."""

    def order(self, asked: options_lib.ReadOptions, done: int) -> order_lib.Order:
        """The order of one process.

        Args:
            asked: the options of this process.
            done: places filled before by all processes together, with which the order of "global" begins; the others
                begin with their first record.

        Raises:
            ConfigError: if the records cannot be read so.
        """

    def ends(self, asked: options_lib.ReadOptions, num_epochs: int) -> list[int]:
        """How many positions so many epochs have: of the common order with "global", else of each process."""


@dataclasses.dataclass(frozen=True)
class Source:
    """The records of a dataset.

    Attributes:
        sizes: records of each shard that are read.
        mean_record_bytes: on average.
        is_compressed: whether shards can only be read front to back.
        fingerprint: of the dataset.
        selection: which of its records are read, for the state.
    """

    sizes: Sequence[int]
    mean_record_bytes: int
    is_compressed: bool
    fingerprint: str
    selection: str

    @property
    def num_records(self) -> int:
        return sum(self.sizes)

    def start(self, asked: options_lib.ReadOptions) -> order_lib.ReaderState:
        """The state before the first epoch."""
        block, window = None, None
        if asked.shuffle == "stream":
            block, window = self._blocks(asked)
        return order_lib.ReaderState(
            seed=asked.seed,
            epoch=0,
            position=0,
            shuffle=asked.shuffle,
            process_count=asked.process_count,
            fingerprint=self.fingerprint,
            selection=self.selection,
            block_records=block,
            window_blocks=window,
            num_epochs=asked.num_epochs,
        )

    def order(self, asked: options_lib.ReadOptions, done: int) -> order_lib.Order:
        """The order of one process: see `Scheduled`."""
        index, count = asked.process_index, asked.process_count
        if asked.shuffle == "global":
            if self.is_compressed:
                raise errors.ConfigError(
                    'shuffle="global" needs records that can be read alone, and the shards are compressed: '
                    "convert with output.compression=none"
                )
            every = selection.Selection("", 0, self.num_records)
            dealt = asked.num_epochs if asked.next_epoch_each_iteration else None
            return order_lib.GlobalOrder(every, asked.seed, done, index, count, dealt)
        sizes = selection.share_sizes(self.sizes, count)
        if not sizes.all() and not asked.pad:
            raise errors.ConfigError(
                f"process {int(np.argmin(sizes))} of {count} gets none of {self.num_records:,} examples: "
                "use fewer processes, or more of the split"
            )
        share = selection.share_of(self.sizes, index, count)
        if count > 1:
            _LOGGER.info("process %d of %d reads its share by %s", index, count, share.by)
        if asked.shuffle == "stream":
            return order_lib.BlockOrder(share, asked.seed, *self._blocks(asked), self.is_compressed)
        return order_lib.ListedOrder(share)

    def ends(self, asked: options_lib.ReadOptions, num_epochs: int) -> list[int]:
        """How many positions so many epochs have: of the common order with "global", else of each process."""
        return [num_epochs * size for size in self.epoch_sizes(asked)]

    def epoch_sizes(self, asked: options_lib.ReadOptions) -> list[int]:
        """Records of an epoch: of the common order with "global", else of the share of each process."""
        if asked.shuffle == "global":
            return [self.num_records]
        return selection.share_sizes(self.sizes, asked.process_count).tolist()

    def _blocks(self, asked: options_lib.ReadOptions) -> tuple[int, int]:
        """Records of a block, and blocks of a window, of BlockOrder."""
        block = max(1, _BLOCK_BYTES // self.mean_record_bytes)
        mixed = asked.shuffle_records or max(1, asked.shuffle_bytes // self.mean_record_bytes)
        window = max(1, -(-mixed // block))
        return max(1, min(block, mixed)), window


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What one process reads.

    Attributes:
        order: which record stands at which position.
        begin: the first position.
        end: after the last position; None if it never ends.
        num_batches: that the process makes; with `drop_remainder` or `pad` the same in every process. None without a
            batch size, or if it never ends.
        stride: positions from the beginning of one iteration to that of the next, if each reads another epoch.
        start: the state of the job before the first batch.
        records_per_batch: of all processes together; 0 without a batch size.
        epoch_size: records of an epoch, of all processes together.
        replicas: that share the batches of this process.
    """

    order: order_lib.Order
    begin: int
    end: int | None
    num_batches: int | None
    stride: int
    start: order_lib.ReaderState
    records_per_batch: int
    epoch_size: int
    replicas: int

    @property
    def spare(self) -> int:
        """Positions in which this process comes by every record that it reads."""
        return -(-self.epoch_size // self.start.process_count)

    def state_after(self, num_batches: int) -> order_lib.ReaderState:
        """The state of the job when every process has made so many batches."""
        done = self.start.epoch * self.epoch_size + self.start.position + num_batches * self.records_per_batch
        epoch, position = divmod(done, self.epoch_size)
        return dataclasses.replace(self.start, epoch=epoch, position=position)


def plan(source: Scheduled, asked: options_lib.ReadOptions, replicas: int = 1) -> Schedule:
    """The schedule of process `asked.process_index`.

    Args:
        source: the records.
        asked: the options; all processes give the same, but for `process_index`.
        replicas: that share the batches of this process: of batches of one size there is a multiple of it.

    Raises:
        ConfigError: if a process would get no record, or the state is of something else.
    """
    count, size = asked.process_count, asked.batch_size
    start = source.start(asked)
    if asked.state is not None:
        start = _restore(source, asked, asked.state, start)
    done = _done(source, start)
    order = source.order(asked, done)
    begin = 0 if asked.shuffle == "global" else done // count
    if asked.num_epochs is None:
        return Schedule(order, begin, None, None, 0, start, (size or 0) * count, source.num_records, replicas)
    left = lengths(source, asked, asked.num_epochs, done)
    length = left[asked.process_index]
    end, num_batches = begin + length, None
    if size is not None and asked.pad:
        num_batches = -(-max(left) // (size * replicas)) * replicas
    elif size is not None and asked.drops_remainder:
        num_batches = min(left) // (size * replicas) * replicas
        end = begin + num_batches * size
    elif size is not None:
        num_batches = -(-length // size)
    return Schedule(order, begin, end, num_batches, length, start, (size or 0) * count, source.num_records, replicas)


def lengths(source: Scheduled, asked: options_lib.ReadOptions, num_epochs: int, done: int = 0) -> list[int]:
    """Positions that each process has left of so many epochs, where all together have filled `done` places."""
    ends, count = source.ends(asked, num_epochs), asked.process_count
    if asked.shuffle == "global":
        left = max(0, ends[0] - done)
        return [-(-max(0, left - index) // count) for index in range(count)]
    return [max(0, end - done // count) for end in ends]


def _restore(
    source: Scheduled, asked: options_lib.ReadOptions, state: order_lib.ReaderState, start: order_lib.ReaderState
) -> order_lib.ReaderState:
    """The state that a reader which would begin at `start` goes on from.

    Raises:
        ConfigError: if it would not go on exactly.
    """
    state.check(start)
    done = _done(source, state)
    is_shared = state.shuffle != "global"
    if is_shared and done % state.process_count:
        raise errors.ConfigError(
            f"position={state.position} in epoch={state.epoch} of the state is not between two batches of "
            f"{state.process_count} processes: restore a state as state() gave it"
        )
    if state.num_epochs is not None and state.num_epochs != start.num_epochs:
        shortest = min(source.ends(asked, state.num_epochs))
        if done > shortest * (state.process_count if is_shared else 1):
            raise errors.ConfigError(
                f"the state is of num_epochs={state.num_epochs}, and the reader has num_epochs={start.num_epochs}: "
                "some process was past its last record and had padding, which stands for records in further epochs; "
                "give the same, or begin without the state"
            )
    return dataclasses.replace(start, epoch=state.epoch, position=state.position)


def _done(source: Scheduled, state: order_lib.ReaderState) -> int:
    """Places that all processes together have filled since the beginning."""
    return state.epoch * source.num_records + state.position
