"""Jobs of several processes that are stopped and go on from their state, for tests of schedules."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import imagebeam
from imagebeam import errors
from imagebeam.reader import batch_schedule, record_selection

WAYS: dict[str, dict[str, Any]] = {
    "pad": {"pad": True},
    "drop": {"drop_remainder": True},
    "keep": {"drop_remainder": False},
}
Shards = Sequence[Sequence[bool]]  # for each record of each shard, whether it remains
Schedules = Callable[
    [imagebeam.ReaderState | None], Sequence[batch_schedule.BatchSchedule]
]  # of all processes, from a state on


def whole(sizes: Sequence[int]) -> Shards:
    """Returns shards of these sizes, from which no record is removed."""
    return [[True] * size for size in sizes]


def remaining_of(shards: Shards) -> list[int]:
    """Returns the records of a split that are not removed."""
    return [record for record, remains in enumerate(itertools.chain(*shards)) if remains]


def select_all(
    sizes: Sequence[int], mean_record_bytes: int = 1 << 20, is_compressed: bool = False, fingerprint: str = "f1"
) -> record_selection.RecordSelection:
    """Returns the selection of a whole split with shards of these sizes."""
    return select_remaining(whole(sizes), mean_record_bytes, is_compressed, fingerprint)


def select_remaining(
    shards: Shards, mean_record_bytes: int = 1 << 20, is_compressed: bool = False, fingerprint: str = "f1"
) -> record_selection.RecordSelection:
    """Returns the selection of all records of a split that are not removed."""
    remains = np.array([*itertools.chain(*shards)], bool)
    split_size = len(remains)
    removed = np.flatnonzero(~remains)
    size = split_size - len(removed)
    chosen = record_selection.Remaining(np.array([0]), np.array([size]), size, removed - np.arange(len(removed)))
    return record_selection.RecordSelection(
        splits=("train",),
        name=f"train[0:{size}]",
        shard_sizes=tuple(map(sum, shards)),
        chosen=chosen if len(removed) else None,
        split_size=split_size,
        mean_record_bytes=mean_record_bytes,
        is_compressed=is_compressed,
        fingerprint=fingerprint,
    )


def records_of(each: batch_schedule.BatchSchedule, num_batches: int, batch_size: int) -> list[int]:
    """Returns the records of the first batches of one process, without padding."""
    stop = each.begin + num_batches * batch_size
    stop = stop if each.end is None else max(each.begin, min(stop, each.end))
    return each.order.locate(np.arange(each.begin, stop))[0].tolist()


def num_steps(schedules: Sequence[batch_schedule.BatchSchedule], batch_size: int) -> int:
    """Returns the steps of a job to its end; of a job without one, those of some four epochs, at most 40."""
    [first, *_] = schedules
    if first.end is not None:
        return max(each.num_batches or 0 for each in schedules)
    return min(40, 1 + 4 * -(-first.epoch_size // (batch_size * len(schedules))))


def in_turn(read: Sequence[Sequence[int]], batch_size: int) -> list[int]:
    """Returns the common order that was dealt to the processes: row after row of the batches of all of them."""
    longest = max(map(len, read))
    batches = (part[first : first + batch_size] for first in range(0, longest, batch_size) for part in read)
    return [record for batch in batches for record in batch]


def save(state: imagebeam.ReaderState) -> imagebeam.ReaderState:
    """Returns the state after a way through JSON."""
    return imagebeam.ReaderState.from_dict(json.loads(json.dumps(state.to_dict())))


def read_with_restarts(
    schedules: Schedules, stops: Sequence[int], batch_size: int, has_fixed_end: bool
) -> tuple[list[list[int]], imagebeam.ReaderState]:
    """Returns the records that each process reads if the job is restarted at these steps, and its last state.

    Args:
        schedules: returns the schedules of all processes from a state on.
        stops: numbers of batches, ascending; the job is stopped after each, and ends after the last.
        batch_size: size of a batch.
        has_fixed_end: whether every process makes exactly `stops[-1]` batches in all.
    """
    read: list[list[int]] = [[] for _ in schedules(None)]
    state, done = None, 0
    for stop in stops:
        current = schedules(state)
        if has_fixed_end:
            assert {each.num_batches for each in current} == {stops[-1] - done}
        for index, each in enumerate(current):
            read[index] += records_of(each, stop - done, batch_size)
        [found] = {each.state_after(stop - done) for each in current}  # any process may save it for all
        state, done = save(found), stop
    assert state is not None
    return read, state


def read_with_other_processes(
    schedules: Callable[[int, int, imagebeam.ReaderState | None], Sequence[batch_schedule.BatchSchedule]],
    geometries: Sequence[tuple[int, int, int]],
) -> list[int]:
    """Returns the common order that jobs of other numbers of processes and batch sizes read one after the other.

    Args:
        schedules: returns the schedules of all processes for their number, a batch size and a state.
        geometries: number of processes, batch size and number of batches of each job.
    """
    read: list[int] = []
    state = None
    for process_count, batch_size, steps in geometries:
        current = schedules(process_count, batch_size, state)
        steps = min(steps, *(each.num_batches or 0 for each in current))
        read += in_turn([records_of(each, steps, batch_size) for each in current], batch_size)
        [state] = {each.state_after(steps) for each in current}
    return read


@dataclasses.dataclass(frozen=True)
class Drawn:
    """The options of a job of several processes."""

    shuffle: str | None
    way: str
    num_epochs: int | None
    process_count: int
    batch_size: int
    repeats: int = 1

    @property
    def options(self) -> dict[str, Any]:
        """The options of each process."""
        asked = {"batch_size": self.batch_size, "shuffle": self.shuffle, "num_epochs": self.num_epochs}
        asked |= {"repeats": self.repeats}
        return {**asked, "seed": 3, "shuffle_records": 9, **WAYS[self.way]}

    def read_with_restarts(
        self, data: st.DataObject, schedules: Schedules
    ) -> tuple[Sequence[batch_schedule.BatchSchedule], list[list[int]]]:
        """Reads a job that is restarted at any points, and checks that it reads what an uninterrupted one reads.

        Returns the schedules of the uninterrupted job, and the records that each process read.
        """
        whole = schedules(None)
        steps = num_steps(whole, self.batch_size)
        stops = [*sorted(data.draw(st.lists(st.integers(0, steps), max_size=4))), steps]
        has_end = self.num_epochs is not None
        read, state = read_with_restarts(schedules, stops, self.batch_size, has_end and self.way != "keep")
        assert read == [records_of(each, steps, self.batch_size) for each in whole]
        assert not has_end or {each.num_batches for each in schedules(state)} == {0}
        if has_end and self.way == "drop":
            assert {len(each) for each in read} == {steps * self.batch_size}
            # No more than a batch of the shortest share is dropped.
            assert min(each.stride for each in whole) - steps * self.batch_size < self.batch_size
        return whole, read


drawn_jobs = st.builds(
    Drawn,
    shuffle=st.sampled_from(["stream", None, "global"]),
    way=st.sampled_from(sorted(WAYS)),
    num_epochs=st.sampled_from([1, 3, None]),
    process_count=st.integers(1, 5),
    batch_size=st.integers(1, 7),
    repeats=st.sampled_from([1, 3]),
).filter(lambda each: (each.num_epochs is not None or each.way != "pad") and (each.shuffle or each.repeats == 1))


def check_refused(schedules: Schedules) -> None:
    """Checks that a job is refused in which a process would get no record."""
    with pytest.raises(errors.ConfigError) as refused:
        schedules(None)
    assert refused.value.code == "process-no-examples"


def values_of(
    batch: Mapping[str, Any], repeats: int = 1, names: Sequence[str] | None = None
) -> dict[tuple[int, int], dict[str, Any]]:
    """Returns the values of each example that is no padding, by its record and how often it was read before.

    Args:
        batch: with metadata.
        repeats: copies of a record in an epoch.
        names: of the values, all by default.
    """
    found = {}
    is_real = batch.get("mask", np.ones(len(batch["record"]), bool))
    wanted = batch.keys() - {"mask"} if names is None else names
    for row in np.flatnonzero(is_real).tolist():
        rounds = int(batch["epoch"][row]) * repeats + int(batch["copy"][row] if repeats > 1 else 0)
        found[int(batch["record"][row]), rounds] = {name: np.asarray(batch[name][row]).tolist() for name in wanted}
    assert len(found) == is_real.sum()
    return found


def values_around_a_restart(
    dataset: imagebeam.ImageDataset,
    data: st.DataObject,
    options: Mapping[str, Any],
    size: int,
    count: int,
    num_places: int,
    values_of: Callable[[Any], Mapping[Any, Any]],
) -> dict[Any, Any]:
    """Returns what a job reads that is stopped after some steps, and goes on, with "global" in other processes.

    Args:
        dataset: its split "train" is read.
        data: draws when it stops, and in how many processes it goes on.
        options: of the reader.
        size: of a batch of one process.
        count: of the processes before the restart.
        num_places: places of all processes together until the job ends.
        values_of: returns what is compared of a batch, by what identifies it.
    """
    readers = [
        dataset.as_numpy("train", size, **options, process_count=count, process_index=index) for index in range(count)
    ]
    seen: dict[Any, Any] = {}
    for _ in range(data.draw(st.integers(0, num_places // (size * count) - 1), "steps before the restart")):
        for reader in readers:
            seen |= values_of(next(reader))
    [state] = {json.dumps(reader.state().to_dict()) for reader in readers}
    is_shared = options["shuffle"] == "global"
    count = data.draw(st.integers(1, 4), "processes after the restart") if is_shared else count
    again = {**options, "state": imagebeam.ReaderState.from_dict(json.loads(state)), "process_count": count}
    for index in range(count):
        for batch in dataset.as_numpy("train", size, **again, process_index=index):
            seen |= values_of(batch)
    return seen
