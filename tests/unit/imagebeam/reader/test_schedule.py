"""The batches and records of each process of a job, with restarts at any point."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import imagebeam
from imagebeam import errors
from imagebeam.reader import schedule
from imagebeam.reader.reader_state import ReaderState
from imagebeam.reader.schedule import Schedule, SelectionEpochs
from tests import cases
from tests.unit.imagebeam.reader import restarts
from tests.unit.imagebeam.reader.restarts import WAYS, records_of

sizes_of_shards = st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any)
some_removed = st.lists(st.lists(st.booleans(), max_size=12), min_size=1, max_size=6).filter(
    lambda each: any(map(any, each))
)
all_shards = sizes_of_shards.map(restarts.whole) | some_removed


def epochs_of(sizes: list[int]) -> SelectionEpochs:
    return SelectionEpochs(restarts.select_all(sizes))


def epochs_of_remaining(shards: restarts.Shards) -> SelectionEpochs:
    return SelectionEpochs(restarts.select_remaining(shards))


@dataclasses.dataclass(frozen=True)
class Job:
    """A job of several processes, which make their batches in step."""

    epochs: SelectionEpochs
    options: dict[str, Any]
    process_count: int

    def schedules(self, state: ReaderState | None) -> list[Schedule]:
        asked = {**self.options, "state": state, "process_count": self.process_count}
        every = range(self.process_count)
        return [schedule.plan(self.epochs, imagebeam.ReadOptions(process_index=each, **asked)) for each in every]


def has_process_without_records(job: Job) -> bool:
    return job.options["shuffle"] != "global" and job.epochs.num_records < job.process_count


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(
    st.data(),
    all_shards,
    st.sampled_from(["stream", None, "global"]),
    st.sampled_from(sorted(WAYS)),
    st.sampled_from([1, 3, None]),
    st.integers(1, 5),
    st.integers(1, 7),
)
def test_job_that_is_restarted_at_any_points_reads_what_an_uninterrupted_one_reads(
    data: st.DataObject,
    shards: restarts.Shards,
    shuffle: str | None,
    way: str,
    num_epochs: int | None,
    process_count: int,
    batch_size: int,
) -> None:
    if num_epochs is None and way == "pad":
        way = "drop"
    options = {"batch_size": batch_size, "shuffle": shuffle, "num_epochs": num_epochs, "seed": 3, "shuffle_records": 9}
    job = Job(epochs_of_remaining(shards), options | WAYS[way], process_count)
    if has_process_without_records(job) and way != "pad":
        with pytest.raises(errors.ConfigError, match=r"process \d of \d gets none of"):
            job.schedules(None)
        return
    whole = job.schedules(None)
    steps = restarts.num_steps(whole, batch_size)
    uninterrupted = [records_of(each, steps, batch_size) for each in whole]

    stops = [*sorted(data.draw(st.lists(st.integers(0, steps), max_size=4))), steps]
    has_fixed_end = num_epochs is not None and way != "keep"
    read, state = restarts.read_with_restarts(job.schedules, stops, batch_size, has_fixed_end)
    assert read == uninterrupted

    if num_epochs is None:
        return
    counts = collections.Counter(itertools.chain(*read))
    if way == "drop":
        assert {len(each) for each in read} == {steps * batch_size}
        assert max(counts.values(), default=0) <= num_epochs
        lengths = [each.stride for each in whole]
        assert min(lengths) - steps * batch_size < batch_size  # no more than a batch of the shortest share is dropped
        assert max(lengths) - min(lengths) <= num_epochs
    else:
        assert counts == dict.fromkeys(restarts.remaining_of(shards), num_epochs)
    assert {each.num_batches for each in job.schedules(state)} == {0}


@settings(deadline=None)
@given(
    all_shards,
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 7), st.integers(0, 12)), min_size=1, max_size=4),
    st.sampled_from(sorted(WAYS)),
)
def test_global_job_that_goes_on_with_other_processes_and_batch_sizes_reads_the_rest_once(
    shards: restarts.Shards, geometries: list[tuple[int, int, int]], way: str
) -> None:
    epochs = epochs_of_remaining(shards)
    common = schedule.plan(epochs, imagebeam.ReadOptions(shuffle="global")).order

    def schedules(process_count: int, batch_size: int, state: ReaderState | None) -> list[Schedule]:
        options = {"batch_size": batch_size, "shuffle": "global", "num_epochs": 3, **WAYS[way]}
        return Job(epochs, options, process_count).schedules(state)

    read = restarts.read_with_other_processes(schedules, geometries)
    assert read == common.locate(np.arange(len(read)))[0].tolist()


@settings(deadline=None)
@given(
    all_shards,
    st.sampled_from(["stream", None, "global"]),
    st.integers(1, 9),
    st.integers(1, 7),
    st.integers(1, 3),
    st.sampled_from(sorted(WAYS)),
)
def test_each_iteration_reads_the_epochs_after_the_previous_one(
    shards: restarts.Shards, shuffle: str | None, process_count: int, batch_size: int, num_epochs: int, way: str
) -> None:
    options = {
        "batch_size": batch_size,
        "shuffle": shuffle,
        "num_epochs": num_epochs,
        "next_epoch_each_iteration": True,
    }
    job = Job(epochs_of_remaining(shards), options | WAYS[way], process_count)
    if has_process_without_records(job) and way != "pad":
        return
    every = job.schedules(None)
    for iteration in range(3):
        counts: collections.Counter[int] = collections.Counter()
        for each in every:
            first = iteration * each.stride
            records, epochs = each.order.locate(np.arange(first, first + each.stride))
            counts.update(records.tolist())
            assert set(epochs.tolist()) <= set(range(iteration * num_epochs, (iteration + 1) * num_epochs))
        assert counts == dict.fromkeys(restarts.remaining_of(shards), num_epochs)
    if way != "keep":
        assert len({each.num_batches for each in every}) == 1


def test_padded_batches_are_a_multiple_of_the_replicas_in_every_process() -> None:
    for num_batches in [1, 5, 40]:
        epochs = epochs_of([num_batches * 4 - 1])
        for index in range(2):
            asked = imagebeam.ReadOptions(
                batch_size=2, num_epochs=1, pad=True, shuffle=None, process_index=index, process_count=2
            )
            assert schedule.plan(epochs, asked, replicas=3).num_batches == -(-num_batches // 3) * 3


def test_full_batches_are_a_multiple_of_the_replicas_in_every_process() -> None:
    for process_count in [1, 3]:
        options = {"batch_size": 4, "num_epochs": 1, "process_count": process_count}
        for index in range(process_count):
            asked = imagebeam.ReadOptions(process_index=index, **options)
            made = schedule.plan(epochs_of([13 * 4 * process_count]), asked, replicas=2)
            assert (made.num_batches, made.end) == (12, 48)


def state_of(epochs: SelectionEpochs, num_batches: int = 2, **options: Any) -> ReaderState:
    asked = imagebeam.ReadOptions(**{"batch_size": 4, "num_epochs": 1, **options})
    return schedule.plan(epochs, asked).state_after(num_batches)


def test_state_of_another_order_is_refused_with_the_field_that_differs() -> None:
    for saved, restored, message in [
        ({"seed": 1}, {}, "of seed=1, and the reader has seed=0: give the same"),
        ({"shuffle": "global"}, {"shuffle": None}, "of shuffle='global', and the reader has"),
        (
            {"shuffle_records": 8},
            {"shuffle_records": 40},
            "of window_blocks=2, and the reader has window_blocks=10: they come from shuffle_records",
        ),
        (
            {"shuffle_bytes": 1 << 20},
            {"shuffle_bytes": 2 << 20},
            "of block_records=1, and the reader has block_records=2: they come from",
        ),
        (
            {"process_count": 2, "shuffle": None},
            {"process_count": 3, "shuffle": None},
            'process_count=2, and the reader has process_count=3: only shuffle="global"',
        ),
    ]:
        with cases.named(saved, restored, message):
            state = state_of(epochs_of([50]), **saved)
            with pytest.raises(errors.ConfigError, match=f"^the state is .*{message}"):
                state_of(epochs_of([50]), **restored, state=state)


def test_state_of_another_snapshot_is_refused_with_the_way_to_go_on() -> None:
    for saved, read, advice in [
        ("000001", "000002", r"open_dataset\(..., snapshot='000001'\) goes on from it; to read"),
        ("000001", None, r"open_dataset\(..., snapshot='000001'\) goes on from it; to read"),
        (None, "000001", "to read other images, begin without the state"),
    ]:
        with cases.named(saved, read, advice):
            selected = restarts.select_all([50])
            first = SelectionEpochs(dataclasses.replace(selected, snapshot=saved))
            other = SelectionEpochs(dataclasses.replace(selected, snapshot=read, fingerprint="f2"))
            state = state_of(first)
            assert state.snapshot == saved
            other_named = f"snapshot={read!r}, fingerprint='f2'"
            message = (
                f"^the state is of snapshot={saved!r}, fingerprint='f1', and the reader has {other_named}: {advice}"
            )
            with pytest.raises(errors.ConfigError, match=message):
                state_of(other, state=state)


def test_state_of_padding_is_refused_by_a_reader_of_further_epochs() -> None:
    for shuffle in ["stream", "global", None]:
        with cases.named(shuffle):
            epochs = epochs_of([6, 5])
            state = state_of(epochs, 3, shuffle=shuffle, pad=True)  # the third batch has a blank example
            assert (state.epoch, state.position) == (1, 1)
            assert state_of(epochs, 0, shuffle=shuffle, pad=True, state=state) == state
            with pytest.raises(
                errors.ConfigError, match="state is of num_epochs=1, and the reader has num_epochs=2: some"
            ):
                state_of(epochs, shuffle=shuffle, num_epochs=2, state=state)
            before = state_of(epochs, 2, shuffle=shuffle, pad=True)
            assert state_of(epochs, 0, shuffle=shuffle, num_epochs=2, state=before).position == 8


def test_state_between_two_processes_is_refused() -> None:
    options = {"process_count": 2, "shuffle": None}
    state = dataclasses.replace(state_of(epochs_of([50]), **options), position=7)
    with pytest.raises(errors.ConfigError, match=r"position=7 in epoch=0 of the state is not between two batches of 2"):
        state_of(epochs_of([50]), **options, state=state)


def test_first_epoch_begins_each_process_with_its_records_of_that_epoch() -> None:
    for shuffle in ["stream", "global", None]:
        for process_count in [1, 3]:
            epochs = epochs_of([9, 7, 6])
            for index in range(process_count):
                asked: dict[str, Any] = {"shuffle": shuffle, "process_index": index, "process_count": process_count}
                asked |= {"batch_size": 2, "drop_remainder": False}
                every = schedule.plan(epochs, imagebeam.ReadOptions(**asked, num_epochs=5))
                later = schedule.plan(epochs, imagebeam.ReadOptions(**asked, num_epochs=2, first_epoch=3))
                records, found_epochs = later.order.locate(np.arange(later.begin, later.end))
                assert set(found_epochs.tolist()) == {3, 4}
                if shuffle != "global":
                    size = len(records) // 2
                    expected, _ = every.order.locate(np.arange(3 * size, 5 * size))
                    assert records.tolist() == expected.tolist()
                restored = schedule.plan(
                    epochs, imagebeam.ReadOptions(**asked, num_epochs=2, first_epoch=3, state=later.state_after(2))
                )
                assert restored.state_after(1) == later.state_after(3)
                rest, _ = restored.order.locate(np.arange(restored.begin, restored.end))
                assert rest.tolist() == records[4:].tolist()
