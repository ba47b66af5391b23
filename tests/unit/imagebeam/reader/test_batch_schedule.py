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

from imagebeam import ReadOptions
from imagebeam.reader import batch_schedule
from imagebeam.reader.batch_schedule import BatchSchedule, SelectionEpochs
from imagebeam.reader.record_order import ReaderState
from tests import case_tables, error_texts
from tests.unit.imagebeam.reader import restarts
from tests.unit.imagebeam.reader.restarts import WAYS

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

    def schedules(self, state: ReaderState | None) -> list[BatchSchedule]:
        asked = {**self.options, "state": state, "process_count": self.process_count}
        every = range(self.process_count)
        return [batch_schedule.make_schedule(self.epochs, ReadOptions(process_index=each, **asked)) for each in every]


def has_process_without_records(job: Job) -> bool:
    return job.options["shuffle"] != "global" and job.epochs.num_records < job.process_count


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(st.data(), all_shards, restarts.drawn_jobs)
def test_job_that_is_restarted_at_any_points_reads_what_an_uninterrupted_one_reads(
    data: st.DataObject, shards: restarts.Shards, drawn: restarts.Drawn
) -> None:
    job = Job(epochs_of_remaining(shards), drawn.options, drawn.process_count)
    if has_process_without_records(job) and drawn.way != "pad":
        restarts.check_refused(job.schedules)
        return
    whole, read = drawn.read_with_restarts(data, job.schedules)
    if drawn.num_epochs is None:
        return
    counts = collections.Counter(itertools.chain(*read))
    if drawn.way == "drop":
        assert max(counts.values(), default=0) <= drawn.num_epochs * drawn.repeats
        lengths = [each.stride for each in whole]
        more = drawn.batch_size if drawn.shuffle == "global" else drawn.num_epochs * drawn.repeats
        assert max(lengths) - min(lengths) <= more
    else:
        assert counts == dict.fromkeys(restarts.remaining_of(shards), drawn.num_epochs * drawn.repeats)


@settings(deadline=None)
@given(
    all_shards,
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 7), st.integers(0, 12)), min_size=1, max_size=4),
    st.sampled_from(sorted(WAYS)),
    st.integers(1, 3),
)
def test_global_job_that_goes_on_with_other_processes_and_batch_sizes_reads_the_rest_once(
    shards: restarts.Shards, geometries: list[tuple[int, int, int]], way: str, repeats: int
) -> None:
    epochs = epochs_of_remaining(shards)
    common = batch_schedule.make_schedule(epochs, ReadOptions(shuffle="global", repeats=repeats)).order

    def schedules(process_count: int, batch_size: int, state: ReaderState | None) -> list[BatchSchedule]:
        options = {"batch_size": batch_size, "shuffle": "global", "num_epochs": 3, "repeats": repeats, **WAYS[way]}
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
    st.integers(1, 3),
)
def test_each_iteration_reads_the_epochs_after_the_previous_one(
    shards: restarts.Shards,
    shuffle: str | None,
    process_count: int,
    batch_size: int,
    num_epochs: int,
    way: str,
    repeats: int,
) -> None:
    repeats = repeats if shuffle else 1
    options = {
        "batch_size": batch_size,
        "shuffle": shuffle,
        "num_epochs": num_epochs,
        "next_epoch_each_iteration": True,
        "repeats": repeats,
    }
    job = Job(epochs_of_remaining(shards), options | WAYS[way], process_count)
    if has_process_without_records(job) and way != "pad":
        return
    every = job.schedules(None)
    for iteration in range(3):
        counts: collections.Counter[int] = collections.Counter()
        for each in every:
            first = iteration * each.stride
            records, rounds = each.order.locate(np.arange(first, first + each.stride))
            counts.update(zip(records.tolist(), rounds.tolist(), strict=True))
        rounds_of_all = range(iteration * num_epochs * repeats, (iteration + 1) * num_epochs * repeats)
        assert counts == dict.fromkeys(itertools.product(restarts.remaining_of(shards), rounds_of_all), 1)
    if way != "keep":
        assert len({each.num_batches for each in every}) == 1


def test_padded_batches_are_a_multiple_of_the_replicas_in_every_process() -> None:
    for num_batches in [1, 5, 40]:
        epochs = epochs_of([num_batches * 4 - 1])
        for index in range(2):
            asked = ReadOptions(
                batch_size=2, num_epochs=1, pad=True, shuffle=None, process_index=index, process_count=2
            )
            assert batch_schedule.make_schedule(epochs, asked, replicas=3).num_batches == -(-num_batches // 3) * 3


def test_full_batches_are_a_multiple_of_the_replicas_in_every_process() -> None:
    for process_count in [1, 3]:
        options = {"batch_size": 4, "num_epochs": 1, "process_count": process_count}
        for index in range(process_count):
            asked = ReadOptions(process_index=index, **options)
            made = batch_schedule.make_schedule(epochs_of([13 * 4 * process_count]), asked, replicas=2)
            assert (made.num_batches, made.end) == (12, 48)


def state_of(epochs: SelectionEpochs, num_batches: int = 2, **options: Any) -> ReaderState:
    asked = ReadOptions(**{"batch_size": 4, "num_epochs": 1, **options})
    return batch_schedule.make_schedule(epochs, asked).state_after(num_batches)


def test_state_of_another_order_is_refused_with_the_field_that_differs() -> None:
    for saved, restored, code in [
        ({"seed": 1}, {}, "state-mismatch"),
        ({"repeats": 2}, {}, "state-mismatch"),
        ({}, {"repeats": 2, "shuffle": "global"}, "state-mismatch"),
        ({"shuffle": "global"}, {"shuffle": None}, "state-mismatch"),
        ({"shuffle_records": 8}, {"shuffle_records": 40}, "state-mismatch"),
        ({"shuffle_bytes": 1 << 20}, {"shuffle_bytes": 2 << 20}, "state-mismatch"),
        ({"process_count": 2, "shuffle": None}, {"process_count": 3, "shuffle": None}, "state-mismatch"),
    ]:
        with case_tables.named(saved, restored, code):
            state = state_of(epochs_of([50]), **saved)
            with error_texts.raises(code):
                state_of(epochs_of([50]), **restored, state=state)


def test_state_of_another_snapshot_is_refused_with_the_way_to_go_on() -> None:
    for saved, read in [("000001", "000002"), ("000001", None), (None, "000001")]:
        with case_tables.named(saved, read):
            selected = restarts.select_all([50])
            first = SelectionEpochs(dataclasses.replace(selected, snapshot=saved))
            other = SelectionEpochs(dataclasses.replace(selected, snapshot=read, fingerprint="f2"))
            state = state_of(first)
            assert state.snapshot == saved
            with error_texts.raises("state-mismatch"):
                state_of(other, state=state)


def test_state_of_padding_is_refused_by_a_reader_of_further_epochs() -> None:
    for shuffle in ["stream", "global", None]:
        with case_tables.named(shuffle):
            epochs = epochs_of([6, 5])
            state = state_of(epochs, 3, shuffle=shuffle, pad=True)  # the third batch has a blank example
            assert (state.epoch, state.position) == (1, 1)
            assert state_of(epochs, 0, shuffle=shuffle, pad=True, state=state) == state
            with error_texts.raises("state-mismatch"):
                state_of(epochs, shuffle=shuffle, num_epochs=2, state=state)
            before = state_of(epochs, 2, shuffle=shuffle, pad=True)
            assert state_of(epochs, 0, shuffle=shuffle, num_epochs=2, state=before).position == 8


def test_global_order_of_compressed_shards_is_refused() -> None:
    with error_texts.raises("shards-compressed"):
        state_of(SelectionEpochs(restarts.select_all([50], is_compressed=True)), shuffle="global")


def test_state_of_a_place_where_no_job_stops_is_refused() -> None:
    for options, place in [
        ({"process_count": 2, "shuffle": None}, {"position": 7}),  # between two processes
        ({"shuffle": "global"}, {"position": 50}),  # beyond the epoch
        ({"shuffle": "global"}, {"carried": 1}),
        ({"shuffle": "global"}, {"first_epoch": 1}),
    ]:
        with case_tables.named(options, place):
            state = dataclasses.replace(state_of(epochs_of([50]), **options), **place)
            with error_texts.raises("state-mismatch"):
                state_of(epochs_of([50]), **options, state=state)


def test_first_epoch_begins_each_process_with_its_records_of_that_epoch() -> None:
    for shuffle in ["stream", "global", None]:
        for process_count in [1, 3]:
            epochs = epochs_of([9, 7, 6])
            for index in range(process_count):
                asked: dict[str, Any] = {"shuffle": shuffle, "process_index": index, "process_count": process_count}
                asked |= {"batch_size": 2, "drop_remainder": False}
                every = batch_schedule.make_schedule(epochs, ReadOptions(**asked, num_epochs=5))
                later = batch_schedule.make_schedule(epochs, ReadOptions(**asked, num_epochs=2, first_epoch=3))
                records, found_epochs = later.order.locate(np.arange(later.begin, later.end))
                assert set(found_epochs.tolist()) == {3, 4}
                if shuffle != "global":
                    size = len(records) // 2
                    expected, _ = every.order.locate(np.arange(3 * size, 5 * size))
                    assert records.tolist() == expected.tolist()
                restored = batch_schedule.make_schedule(
                    epochs, ReadOptions(**asked, num_epochs=2, first_epoch=3, state=later.state_after(2))
                )
                assert restored.state_after(1) == later.state_after(3)
                rest, _ = restored.order.locate(np.arange(restored.begin, restored.end))
                assert rest.tolist() == records[4:].tolist()
