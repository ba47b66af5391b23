"""How much each process of a job reads, and from where on: a pure function of the options and the job's state.

All processes of a job take their batches in step, so a position, which counts what one process has read, is the same
number in all of them. The state of the job is that number; every process computes from it how many batches each of the
others still makes, without asking them.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np

from imagebeam import errors
from imagebeam.reader import options as options_lib
from imagebeam.reader import order as order_lib
from imagebeam.reader import selection

_LOGGER = logging.getLogger("imagebeam.dataset")
_BLOCK_BYTES = 4 << 20  # of a read in streaming


@dataclasses.dataclass(frozen=True)
class Source:
    """What a schedule must know of the records.

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


def plan(source: Source, asked: options_lib.ReadOptions, replicas: int = 1) -> Schedule:
    """The schedule of process `asked.process_index`.

    Args:
        source: the records.
        asked: the options; all processes give the same, but for `process_index`.
        replicas: that share the batches of this process: of batches of one size there is a multiple of it.

    Raises:
        ConfigError: if a process would get no record, or the state is of something else.
    """
    count, size = asked.process_count, asked.batch_size
    start = _start(source, asked)
    if asked.state is not None:
        start = _restore(source, asked.state, start)
    order_of = _global_order if asked.shuffle == "global" else _order_of_share
    order, begin, lengths = order_of(source, asked, _done(source, start))
    if lengths is None:
        return Schedule(order, begin, None, None, 0, start, (size or 0) * count, source.num_records, replicas)
    length = lengths[asked.process_index]
    end, num_batches = begin + length, None
    if size is not None and asked.pad:
        num_batches = -(-max(lengths) // (size * replicas)) * replicas
    elif size is not None and asked.drops_remainder:
        num_batches = min(lengths) // (size * replicas) * replicas
        end = begin + num_batches * size
    elif size is not None:
        num_batches = -(-length // size)
    return Schedule(order, begin, end, num_batches, length, start, (size or 0) * count, source.num_records, replicas)


def _start(source: Source, asked: options_lib.ReadOptions) -> order_lib.ReaderState:
    """The state before the first epoch."""
    block, window = None, None
    if asked.shuffle == "stream":
        block, window = _blocks(source, asked)
    return order_lib.ReaderState(
        seed=asked.seed,
        epoch=0,
        position=0,
        shuffle=asked.shuffle,
        process_count=asked.process_count,
        fingerprint=source.fingerprint,
        selection=source.selection,
        block_records=block,
        window_blocks=window,
        num_epochs=asked.num_epochs,
    )


def _restore(source: Source, state: order_lib.ReaderState, start: order_lib.ReaderState) -> order_lib.ReaderState:
    """The state that a reader which would begin at `start` goes on from.

    Raises:
        ConfigError: if it would not go on exactly.
    """
    state.check(start)
    done = _done(source, state)
    shortest = source.num_records
    if state.shuffle != "global":
        shortest = int(selection.share_sizes(source.sizes, state.process_count).min()) * state.process_count
        if done % state.process_count:
            raise errors.ConfigError(
                f"position={state.position} in epoch={state.epoch} of the state is not between two batches of "
                f"{state.process_count} processes: restore a state as state() gave it"
            )
    is_past_end = state.num_epochs is not None and done > state.num_epochs * shortest
    if is_past_end and state.num_epochs != start.num_epochs:
        raise errors.ConfigError(
            f"the state is of num_epochs={state.num_epochs}, and the reader has num_epochs={start.num_epochs}: some "
            "process was past its last record and had padding, which stands for records in further epochs; give the "
            "same, or begin without the state"
        )
    return dataclasses.replace(start, epoch=state.epoch, position=state.position)


def _done(source: Source, state: order_lib.ReaderState) -> int:
    """Places that all processes together have filled since the beginning."""
    return state.epoch * source.num_records + state.position


def _blocks(source: Source, asked: options_lib.ReadOptions) -> tuple[int, int]:
    """Records of a block, and blocks of a window, of BlockOrder."""
    block = max(1, _BLOCK_BYTES // source.mean_record_bytes)
    mixed = asked.shuffle_records or max(1, asked.shuffle_bytes // source.mean_record_bytes)
    window = max(1, -(-mixed // block))
    return max(1, min(block, mixed)), window


def _global_order(
    source: Source, asked: options_lib.ReadOptions, done: int
) -> tuple[order_lib.Order, int, list[int] | None]:
    """The common order from where all processes are, its first position, and how many each has left if it ends."""
    if source.is_compressed:
        raise errors.ConfigError(
            'shuffle="global" needs records that can be read alone, and the shards are compressed: '
            "convert with output.compression=none"
        )
    dealt = asked.num_epochs if asked.next_epoch_each_iteration else None
    mine = order_lib.GlobalOrder(
        selection.Selection("", 0, source.num_records),
        asked.seed,
        done,
        asked.process_index,
        asked.process_count,
        dealt,
    )
    if asked.num_epochs is None:
        return mine, 0, None
    left = max(0, asked.num_epochs * source.num_records - done)
    return mine, 0, [-(-max(0, left - index) // asked.process_count) for index in range(asked.process_count)]


def _order_of_share(
    source: Source, asked: options_lib.ReadOptions, done: int
) -> tuple[order_lib.Order, int, list[int] | None]:
    """The order of the share of this process, its first position, and how many each process has left if it ends."""
    index, count = asked.process_index, asked.process_count
    sizes = selection.share_sizes(source.sizes, count)
    if not sizes.all() and not asked.pad:
        raise errors.ConfigError(
            f"process {int(np.argmin(sizes))} of {count} gets none of {source.num_records:,} examples: "
            "use fewer processes, or more of the split"
        )
    share = selection.share_of(source.sizes, index, count)
    if count > 1:
        _LOGGER.info("process %d of %d reads its share by %s", index, count, share.by)
    mine: order_lib.Order = order_lib.ListedOrder(share)
    if asked.shuffle == "stream":
        block, window = _blocks(source, asked)
        mine = order_lib.BlockOrder(share, asked.seed, block, window, source.is_compressed)
    begin = done // count
    if asked.num_epochs is None:
        return mine, begin, None
    return mine, begin, [max(0, asked.num_epochs * size - begin) for size in sizes.tolist()]
