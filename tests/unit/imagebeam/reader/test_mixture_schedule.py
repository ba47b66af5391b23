"""The batches and records of each process of a job that reads a mixture, with restarts at any point."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import imagebeam
from imagebeam import errors
from imagebeam.reader import mixture, schedule
from tests import cases
from tests.unit.imagebeam.reader import restarts
from tests.unit.imagebeam.reader.restarts import WAYS, in_turn, records_of

Drawn = list[tuple[list[int], float]]  # sizes of the shards, and weight, of each dataset

mixtures = st.lists(
    st.tuples(st.lists(st.integers(0, 12), min_size=1, max_size=4).filter(any), st.floats(0.05, 4)),
    min_size=1,
    max_size=3,
)


@dataclasses.dataclass(frozen=True)
class Job:
    """A job of several processes, which make their batches of a mixture in step."""

    every_epochs: list[schedule.SelectionEpochs]
    pattern: mixture.Pattern
    options: dict[str, Any]
    process_count: int

    def schedules(self, state: imagebeam.ReaderState | None = None, replicas: int = 1) -> list[schedule.Schedule]:
        every = range(self.process_count)
        return [
            schedule.plan(mixture.MixtureEpochs(self.pattern, self.parts(index)), self.asked(index, state), replicas)
            for index in every
        ]

    def asked(self, process_index: int, state: imagebeam.ReaderState | None = None) -> imagebeam.ReadOptions:
        process = {"process_index": process_index, "process_count": self.process_count}
        return imagebeam.ReadOptions(**self.options, **process, state=state)

    def parts(self, process_index: int) -> list[mixture.MixturePart]:
        alone = mixture.options_of_part(self.asked(process_index))
        return [mixture.MixturePart(each, schedule.plan(each, alone).order) for each in self.every_epochs]

    def has_process_without_records(self) -> bool:
        is_shared = self.options["shuffle"] != "global"
        return is_shared and any(each.num_records < self.process_count for each in self.every_epochs)

    def part_of(self, part: int, records: list[int]) -> list[int]:
        """Returns the records of one dataset, by their numbers in it."""
        sizes = [each.selection.split_size for each in self.every_epochs]
        first = sum(sizes[:part])
        return [record - first for record in records if first <= record < first + sizes[part]]


def shards_of(sizes: list[int], index: int) -> restarts.Shards:
    """Returns shards of these sizes; from those of every second dataset another record is removed, at their start."""
    return [[*[False] * (index % 2), *[True] * size] for size in sizes]


def job_of(drawn: Drawn, process_count: int = 1, **options: Any) -> Job:
    every_epochs = [
        schedule.SelectionEpochs(
            restarts.select_remaining(shards_of(sizes, index), 1 << (19 + index), fingerprint=f"f{index}")
        )
        for index, (sizes, _) in enumerate(drawn)
    ]
    given = {"batch_size": 4, "num_epochs": 1, "shuffle": "stream", "shuffle_records": 9, "seed": 3, **options}
    return Job(every_epochs, mixture.Pattern([weight for _, weight in drawn], given["seed"]), given, process_count)


@pytest.mark.slow
@hypothesis.settings(deadline=None, max_examples=50)
@hypothesis.given(
    st.data(),
    mixtures,
    st.sampled_from(["stream", None, "global"]),
    st.sampled_from(sorted(WAYS)),
    st.sampled_from([1, 3, None]),
    st.integers(1, 5),
    st.integers(1, 7),
)
def test_job_that_is_restarted_at_any_points_reads_what_an_uninterrupted_one_reads(
    data: st.DataObject,
    drawn: Drawn,
    shuffle: str | None,
    way: str,
    num_epochs: int | None,
    process_count: int,
    batch_size: int,
) -> None:
    if num_epochs is None and way == "pad":
        way = "drop"
    options = {"batch_size": batch_size, "shuffle": shuffle, "num_epochs": num_epochs, **WAYS[way]}
    job = job_of(drawn, process_count, **options)
    if job.has_process_without_records():
        with pytest.raises(errors.ConfigError, match=r"process \d of \d gets none of"):
            job.schedules()
        return
    whole = job.schedules()
    steps = restarts.num_steps(whole, batch_size)
    uninterrupted = [records_of(each, steps, batch_size) for each in whole]

    stops = [*sorted(data.draw(st.lists(st.integers(0, steps), max_size=3))), steps]
    has_fixed_end = num_epochs is not None and way != "keep"
    read, state = restarts.read_with_restarts(job.schedules, stops, batch_size, has_fixed_end)
    assert read == uninterrupted
    orders = [in_turn(read)] if shuffle == "global" else read
    for part, epochs in enumerate(job.every_epochs):
        for index, records in enumerate(orders):
            mine = job.part_of(part, records)
            alone = schedule.plan(epochs, mixture.options_of_part(job.asked(index))).order
            assert mine == alone.locate(np.arange(len(mine)))[0].tolist()

    if num_epochs is None:
        return
    assert {each.num_batches for each in job.schedules(state)} == {0}
    assert max(collections.Counter(itertools.chain(*read)).values(), default=0) <= num_epochs
    if way == "drop":
        assert {len(each) for each in read} == {steps * batch_size}
        assert min(each.stride for each in whole) - steps * batch_size < batch_size
        return
    for index, records in enumerate(orders):  # each ends where one part has no further record
        sizes = [
            epochs.num_records if shuffle == "global" else epochs.selection.share_sizes(process_count)[index]
            for epochs in job.every_epochs
        ]
        counts = [len(job.part_of(part, records)) for part in range(len(sizes))]
        assert any(count == num_epochs * size for count, size in zip(counts, sizes))


@hypothesis.settings(deadline=None, max_examples=20)
@hypothesis.given(
    mixtures,
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(0, 8)), min_size=1, max_size=4),
    st.sampled_from(sorted(WAYS)),
)
def test_global_job_that_goes_on_with_other_processes_and_batch_sizes_reads_the_rest_once(
    drawn: Drawn, geometries: list[tuple[int, int, int]], way: str
) -> None:
    [common] = job_of(drawn, shuffle="global", num_epochs=3, drop_remainder=False).schedules()

    def schedules(process_count: int, batch_size: int, state: imagebeam.ReaderState | None) -> list[schedule.Schedule]:
        options = {"batch_size": batch_size, "shuffle": "global", "num_epochs": 3, **WAYS[way]}
        return job_of(drawn, process_count, **options).schedules(state)

    read = restarts.read_with_other_processes(schedules, geometries)
    assert len(read) <= common.stride
    assert read == common.order.locate(np.arange(len(read)))[0].tolist()


TWO: Drawn = [([20, 21], 1.0), ([30], 1.0)]


def test_state_of_another_mixture_is_refused_with_what_differs() -> None:
    for drawn, options, message in [
        ([TWO[0], ([30], 1.5)], {}, r"selection='0.5 of train\[0:41\], .* selection='0.4 of"),
        (TWO[::-1], {}, r"selection='0.5 of train\[0:41\], 0.5 of train\[0:30\]'"),
        ([TWO[0], ([29], 1.0)], {}, r"has fingerprint=.*, 0.5 of train\[0:29\]'"),
        ([*TWO, ([30], 1.0)], {}, r"has fingerprint=.*, 0.3333 of train\[0:30\]'"),
        (TWO, {"seed": 4}, "seed=3, and the reader has seed=4"),
        (TWO, {"shuffle": None}, "shuffle='stream'"),
        (
            TWO,
            {"shuffle_records": 40},
            "window_blocks='2 3', and the reader has window_blocks='5 10': they come from shuffle_records",
        ),
    ]:
        with cases.named(drawn, options, message):
            [planned] = job_of(TWO).schedules()
            state = planned.state_after(2)
            job_of(TWO).schedules(state)
            job_of([(sizes, 7.0) for sizes, _ in TWO]).schedules(state)  # the same proportion in other numbers
            with pytest.raises(errors.ConfigError, match=f"the state is of .*{message}"):
                job_of(drawn, **options).schedules(state)
