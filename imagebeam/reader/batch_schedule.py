"""How much each process of a job reads, and from which position on: a pure function of options and job state.

All processes of a job take their batches in step. So a position, which counts what one process has read, is the same
number in all of them. The state of the job is that number; every process computes from it how many batches each of the
others still makes, without asking them.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from imagebeam import errors
from imagebeam.reader import bucket_order, record_order, record_selection
from imagebeam.reader import options as options_lib

_LOGGER = logging.getLogger("imagebeam.dataset")
_BLOCK_BYTES = 4 << 20  # one read in streaming


class Epochs(Protocol):
    """The records that a job reads again and again: those of one dataset, or of the datasets of a mixture."""

    @property
    def num_records(self) -> int:
        """Number of records in an epoch of all processes together."""

    def first_state(self, asked: options_lib.ReadOptions) -> record_order.ReaderState:
        """Returns the state before the first epoch."""

    def order(self, asked: options_lib.ReadOptions) -> record_order.Order:
        """Returns the common order of all processes with "global", else that of the share of one.

        Raises:
            ConfigError: if the records cannot be read in this order.
        """

    def ends(self, asked: options_lib.ReadOptions, num_epochs: int) -> list[int]:
        """Returns the positions in `num_epochs` epochs: of the common order with "global", else of each process."""

    def calendar(self, asked: options_lib.ReadOptions) -> Calendar:
        """Returns where epochs begin."""


class Calendar(Protocol):
    """Where epochs begin among the places that all processes fill together."""

    @property
    def step_places(self) -> int:
        """Number of places from one at which a job can go on to the next."""

    def first_place(self, epoch: int) -> int:
        """Returns the number of places before an epoch."""

    def epoch_at(self, place: int) -> int:
        """Returns the epoch that a place is in."""

    def carried_at(self, place: int) -> int:
        """Returns how many records of earlier epochs are still to come at a place."""


@dataclasses.dataclass(frozen=True)
class EqualEpochs:
    """Epochs of one size, as `Calendar`."""

    size: int
    step_places = 1

    def first_place(self, epoch: int) -> int:
        return epoch * self.size

    def epoch_at(self, place: int) -> int:
        return place // self.size

    def carried_at(self, place: int) -> int:
        return 0


@dataclasses.dataclass(frozen=True)
class SelectionEpochs:
    """The epochs of one dataset's selection."""

    selection: record_selection.RecordSelection

    @property
    def num_records(self) -> int:
        return len(self.selection)

    def calendar(self, asked: options_lib.ReadOptions) -> Calendar:
        """Returns where epochs begin."""
        return EqualEpochs(self.num_records * asked.repeats)

    def first_state(self, asked: options_lib.ReadOptions) -> record_order.ReaderState:
        """Returns the state before the first epoch."""
        block, window = None, None
        if asked.shuffle == "stream":
            block, window = self._blocks(asked)
        return record_order.ReaderState(
            seed=asked.seed,
            epoch=asked.first_epoch,
            position=0,
            shuffle=asked.shuffle,
            process_count=asked.process_count,
            fingerprint=self.selection.fingerprint,
            selection=self.selection.name,
            block_records=block,
            window_blocks=window,
            num_epochs=asked.num_epochs,
            snapshot=self.selection.snapshot,
            first_epoch=asked.first_epoch,
            map_id=asked.map_id,
            repeats=asked.repeats,
        )

    def order(self, asked: options_lib.ReadOptions) -> record_order.Order:
        """Returns the order of one process or of all, as `Epochs.order`."""
        index, count = asked.process_index, asked.process_count
        if asked.shuffle == "global":
            if self.selection.is_compressed:
                raise errors.ConfigError(
                    "shards-compressed",
                    'shuffle="global" needs records that can be read alone, and the shards are compressed: '
                    "convert with output.compression=none",
                )
            return record_order.GlobalOrder(self.selection, asked.seed)
        sizes = self.selection.share_sizes(count)
        if not sizes.all() and not asked.pad:
            raise errors.ConfigError(
                "process-no-examples",
                f"process {int(np.argmin(sizes))} of {count} gets none of {self.num_records:,} examples: "
                "use fewer processes, or more of the split",
            )
        share = self.selection.share_of(index, count)
        if count > 1:
            _LOGGER.info("process %d of %d reads its share by %s", index, count, share.by)
        if asked.shuffle == "stream":
            return record_order.BlockOrder(share, asked.seed, *self._blocks(asked), self.selection.is_compressed)
        return record_order.ShardOrder(share)

    def ends(self, asked: options_lib.ReadOptions, num_epochs: int) -> list[int]:
        """Returns the positions in `num_epochs` epochs: of the common order with "global", else of each process."""
        return [num_epochs * size for size in self.epoch_sizes(asked)]

    def epoch_sizes(self, asked: options_lib.ReadOptions) -> list[int]:
        """Returns the records in an epoch: of the common order with "global", else of each process's share."""
        if asked.shuffle == "global":
            return [self.num_records]
        return self.selection.share_sizes(asked.process_count).tolist()

    def reads(self, asked: options_lib.ReadOptions) -> record_selection.Reads:
        """Returns the records that one process reads, for a reader that fetches several at once."""
        index, count = asked.process_index, asked.process_count
        block = max(1, _BLOCK_BYTES // self.selection.mean_record_bytes)
        if asked.shuffle == "global":
            return record_selection.Reads(self.selection.share_of(0, 1), block, None, is_divided=count > 1)
        blocks = self._blocks(asked) if asked.shuffle == "stream" else (block, 1)
        return record_selection.Reads(self.selection.share_of(index, count), *blocks)

    def _blocks(self, asked: options_lib.ReadOptions) -> tuple[int, int]:
        """Returns the records in a block and the blocks in a window, for BlockOrder."""
        mean_bytes = self.selection.mean_record_bytes
        block = max(1, _BLOCK_BYTES // mean_bytes)
        mixed = asked.shuffle_records or max(1, asked.shuffle_bytes // mean_bytes)
        window = max(1, -(-mixed // block))
        return max(1, min(block, mixed)), window


@dataclasses.dataclass(frozen=True)
class BucketEpochs(SelectionEpochs):
    """The epochs of one dataset's selection in buckets, with batches that `replicas` of each process share."""

    members: Sequence[np.ndarray]  # records of each bucket
    replicas: int = 1

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """Number of records of each bucket: int64 [buckets]."""
        return np.array([len(each) for each in self.members], np.int64)

    @property
    def num_records(self) -> int:
        return int(self.counts.sum())

    def records(self, seed: int) -> list[record_order.Order]:
        """Returns the order of the records of each bucket."""
        return [record_order.GlobalOrder(bucket_order.BucketRecords(each), seed) for each in self.members]

    def calendar(self, asked: options_lib.ReadOptions) -> bucket_order.BucketOrder:
        """Returns where epochs begin: those of all buckets, whose batches may lap over into the next epoch."""
        sizes, num_parts = asked.bucket_batch_sizes, asked.process_count * self.replicas
        together = np.array(sizes, np.int64) * num_parts
        steps = bucket_order.EpochSteps(self.counts, together, asked.seed, asked.pad)
        return bucket_order.BucketOrder(steps, sizes, num_parts, self.records(asked.seed))

    def first_state(self, asked: options_lib.ReadOptions) -> record_order.ReaderState:
        """Returns the state before the first epoch."""
        name = asked.name_of_buckets(asked.process_count * self.replicas)
        return dataclasses.replace(super().first_state(asked), buckets=name)

    def ends(self, asked: options_lib.ReadOptions, num_epochs: int) -> list[int]:
        """Returns the positions in `num_epochs` epochs from the first one that is read."""
        calendar = self.calendar(asked)
        return [calendar.first_place(asked.first_epoch + num_epochs) - calendar.first_place(asked.first_epoch)]


@dataclasses.dataclass(frozen=True)
class BatchSchedule:
    """The positions that one process reads, and its batches.

    Attributes:
        order: assigns a record and its round to each position.
        begin: the first position.
        end: the position after the last one; None if the reader never ends.
        num_batches: number of batches that the process makes; with `drop_remainder` or `pad` the same in every process.
            None without a batch size, or if the reader never ends.
        stride: positions from the beginning of one iteration to that of the next, if each reads another epoch.
        start: the state of the job before the first batch.
        records_per_batch: records in a batch of all processes together; 0 without a batch size.
        calendar: where epochs begin in the places of all processes together.
        replicas: number of replicas that share the batches of this process.
    """

    order: record_order.JobOrder
    begin: int
    end: int | None
    num_batches: int | None
    stride: int
    start: record_order.ReaderState
    records_per_batch: int
    calendar: Calendar
    replicas: int

    @property
    def epoch_size(self) -> int:
        """Places in the first epoch of all processes together: its records, each as often as it is repeated."""
        return self.calendar.first_place(self.start.epoch + 1) - self.calendar.first_place(self.start.epoch)

    @property
    def spare(self) -> int:
        """Number of positions within which this process meets each of its records at least once."""
        together = self.records_per_batch or self.start.process_count
        return min(-(-self.epoch_size // together) * (together // self.start.process_count), self.epoch_size)

    def positions_of(self, number: int, size: int) -> tuple[int, int]:
        """Returns the first position of a batch of `size`, and the position after its last one.

        They are equal of a batch that is only padding.
        """
        first, end = self.begin + number * size, self.begin + (number + 1) * size
        return (first, end) if self.end is None else (min(first, self.end), min(end, self.end))

    def place_of(self, first: int) -> int:
        """Returns how many places in batches the job has filled before the batch at `first`: as all processes do.

        Iterations that each read further epochs count as long as these.
        """
        turn, inside = divmod(first - self.begin, self.stride) if self.stride else (0, first - self.begin)
        done = self.calendar.first_place(self.start.epoch) + self.start.position
        return done + turn * (self.start.num_epochs or 0) * self.epoch_size + inside * self.start.process_count

    def state_after(self, num_batches: int) -> record_order.ReaderState:
        """Returns the state of the job after every process has made `num_batches` batches."""
        done = self.calendar.first_place(self.start.epoch) + self.start.position + num_batches * self.records_per_batch
        return _at(self.start, self.calendar, done)


def _at(state: record_order.ReaderState, calendar: Calendar, place: int) -> record_order.ReaderState:
    """Returns a state at another place of the job."""
    epoch = calendar.epoch_at(place)
    position, carried = place - calendar.first_place(epoch), calendar.carried_at(place)
    return dataclasses.replace(state, epoch=epoch, position=position, carried=carried)


def make_schedule(epochs: Epochs, asked: options_lib.ReadOptions, replicas: int = 1) -> BatchSchedule:
    """Returns the schedule of process `asked.process_index`.

    Args:
        epochs: the records.
        asked: the options; the same in all processes, except `process_index`.
        replicas: number of replicas that share the batches of this process. If all batches have one size, their number
            is a multiple of it.

    Raises:
        ConfigError: if a process would get no record, or the state belongs to other records or another order.
    """
    count, size = asked.process_count, asked.batch_size
    calendar = epochs.calendar(asked)
    first = calendar.first_place(asked.first_epoch)
    start = _at(epochs.first_state(asked), calendar, first)
    if asked.state is not None:
        start = _restore(epochs, asked, asked.state, start)
    done = calendar.first_place(start.epoch) + start.position
    since = done - first
    begin, order = 0, record_order.JobOrder(epochs.order(asked), repeats=asked.repeats)
    if asked.shuffle == "global":
        turn = None
        if asked.next_epoch_each_iteration:
            turn = calendar.first_place(asked.first_epoch + (asked.num_epochs or 0)) - first
        order = dataclasses.replace(order, start=done, deal=deal_of(asked), turn=turn)
    else:
        before = _ends(epochs, asked, asked.first_epoch)[asked.process_index] if asked.first_epoch else 0
        begin = before + since // count
    if asked.num_epochs is None:
        return BatchSchedule(order, begin, None, None, 0, start, (size or 0) * count, calendar, replicas)
    left = lengths(epochs, asked, asked.num_epochs, since)
    length = left[asked.process_index]
    end, num_batches = begin + length, None
    if size is not None and asked.pad:
        num_batches = -(-max(left) // (size * replicas)) * replicas
    elif size is not None and asked.drops_remainder:
        num_batches = min(left) // (size * replicas) * replicas
        end = begin + num_batches * size
    elif size is not None:
        num_batches = -(-length // size)
    return BatchSchedule(order, begin, end, num_batches, length, start, (size or 0) * count, calendar, replicas)


def lengths(epochs: Epochs, asked: options_lib.ReadOptions, num_epochs: int, since: int = 0) -> list[int]:
    """Returns how many positions each process has left in `num_epochs` epochs.

    All processes together have filled `since` places since these epochs began.
    """
    ends, count = _ends(epochs, asked, num_epochs), asked.process_count
    if asked.shuffle == "global":
        deal, left = deal_of(asked), max(0, ends[0] - since)
        return [dataclasses.replace(deal, process_index=index).count(left) for index in range(count)]
    return [max(0, end - since // count) for end in ends]


def deal_of(asked: options_lib.ReadOptions) -> record_order.Deal:
    """Returns how the common order of shuffle="global" is dealt to the processes: a batch to each in turn."""
    return record_order.Deal(asked.process_index, asked.process_count, asked.batch_size or 1)


def _restore(
    epochs: Epochs, asked: options_lib.ReadOptions, state: record_order.ReaderState, start: record_order.ReaderState
) -> record_order.ReaderState:
    """Returns the state from which a reader that would begin at `start` goes on.

    Raises:
        ConfigError: if it could not go on exactly there.
    """
    state.check(start)
    calendar = epochs.calendar(asked)
    place = calendar.first_place(state.epoch) + state.position
    since = place - calendar.first_place(state.first_epoch)
    is_shared = state.shuffle != "global"
    is_between = since >= 0 and since % (state.process_count if is_shared else calendar.step_places) == 0
    if not is_between or state != _at(state, calendar, place):
        raise errors.ConfigError(
            "state-mismatch",
            f"the state has position={state.position}, carried={state.carried} in epoch={state.epoch}, which is not "
            f"between two batches of {state.process_count} processes: restore a state as state() gave it",
        )
    read = (start.first_epoch, start.num_epochs)
    if state.num_epochs is not None and (state.first_epoch, state.num_epochs) != read:
        begun = dataclasses.replace(asked, first_epoch=state.first_epoch, state=None)
        shortest = min(_ends(epochs, begun, state.num_epochs))
        if since > shortest * (state.process_count if is_shared else 1):
            raise errors.ConfigError(
                "state-mismatch",
                f"the state is of num_epochs={state.num_epochs}, and the reader has num_epochs={start.num_epochs}: "
                "some process was past its last record and had padding, in whose places further epochs have records; "
                "give the same, or begin without the state",
            )
    return dataclasses.replace(start, epoch=state.epoch, position=state.position, carried=state.carried)


def _ends(epochs: Epochs, asked: options_lib.ReadOptions, num_epochs: int) -> list[int]:
    """Returns the places in `num_epochs` epochs, as `Epochs.ends`, with all copies."""
    return [end * asked.repeats for end in epochs.ends(asked, num_epochs)]
