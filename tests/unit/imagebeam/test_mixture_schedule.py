"""Mixtures whose proportions change with the step."""

from __future__ import annotations

import collections
import itertools
import pathlib
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import imagebeam
from imagebeam.reader import batch_schedule, mixture_pattern
from tests import case_tables, error_texts
from tests.unit.imagebeam.reader import restarts, sized_sets
from tests.unit.imagebeam.reader.feeding import keys_in
from tests.unit.imagebeam.test_mixed_dataset import OPTIONS, SIZES, Parts, make

POINTS = [(0, [1, 0, 0]), (6, [2, 1, 1]), (7, [0, 1, 1]), (30, [0, 3, 1])]
SPLIT_SIZES = [*SIZES.values()]
Geometry = tuple[int, int]  # number of processes, and size of the batch of each


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder = tmp_path_factory.mktemp("schedule")
    return [(make(folder, name, count), "train") for name, count in SIZES.items()]


def wanted_shares(points: Any, step: int) -> np.ndarray:
    """Returns the proportions of a step, computed with fractions of Python."""
    before = max(index for index, (first, _) in enumerate(points) if first <= step)
    shares = [np.array(weights) / sum(weights) for _, weights in points]
    if before == len(points) - 1:
        return shares[-1]
    (first, _), (last, _) = points[before : before + 2]
    return shares[before] + (shares[before + 1] - shares[before]) * (step - first) / (last - first)


@st.composite
def schedules_of_weights(draw: st.DrawFn) -> list[tuple[int, list[float]]]:
    num_datasets = draw(st.integers(1, 4))
    weights = st.lists(st.one_of(st.just(0.0), st.floats(0.01, 5)), min_size=num_datasets, max_size=num_datasets)
    every = draw(st.lists(weights.filter(any), min_size=2, max_size=4))
    lengths = draw(st.lists(st.integers(1, 60), min_size=len(every) - 1, max_size=len(every) - 1))
    return [*zip(itertools.accumulate([0, *lengths]), every)]


@hypothesis.settings(deadline=None, max_examples=80)
@hypothesis.given(schedules_of_weights(), st.integers(1, 300), st.integers(1, 3), st.integers(0, 9), st.data())
def test_each_step_has_the_proportions_of_its_weights_and_no_example_is_left_out(
    points: list[tuple[int, list[float]]], rows: int, repeats: int, seed: int, data: st.DataObject
) -> None:
    ramp = mixture_pattern.make_ramp(points, rows, repeats)
    pattern = mixture_pattern.Pattern(points[-1][1], seed, ramp)
    ends = [-(-step * rows // repeats) for step in range(points[-1][0] + 1)]
    end = ends[-1]
    datasets, numbers = pattern.locate(np.arange(end + 500))
    num_datasets = len(points[0][1])
    expected = np.zeros(num_datasets)
    for step, (first, stop) in enumerate(itertools.pairwise(ends)):
        shares = wanted_shares(points, step)
        found = np.bincount(datasets[first:stop], minlength=num_datasets)
        assert not found[shares == 0].any()
        expected += shares * (stop - first)
        assert np.abs(np.bincount(datasets[:stop], minlength=num_datasets) - expected).max() <= num_datasets
    for dataset in range(num_datasets):
        mine = numbers[datasets == dataset]
        assert mine.tolist() == [*range(len(mine))]
        if not points[-1][1][dataset]:
            assert pattern.position_of(dataset, int((datasets[:end] == dataset).sum())) is None
    position = data.draw(st.integers(0, end + 499))
    assert pattern.position_of(int(datasets[position]), int(numbers[position])) == position
    assert pattern.count_before(position) == np.bincount(datasets[:position], minlength=num_datasets).tolist()
    place = slice(position, position + 50)
    again = mixture_pattern.Pattern(points[-1][1], seed, ramp).locate(np.arange(end + 500)[place])
    assert (again[0] == datasets[place]).all() and (again[1] == numbers[place]).all()


def schedules(
    mixture: imagebeam.Mixture, process_count: int, state: imagebeam.ReaderState | None, **options: Any
) -> list[batch_schedule.BatchSchedule]:
    given = ({"process_index": index, "process_count": process_count, "state": state} for index in range(process_count))
    return [mixture.make_schedule(imagebeam.ReadOptions(**options, **each)) for each in given]


def sources_of(records: list[int]) -> list[int]:
    """Returns the dataset of each record."""
    return (np.searchsorted(np.cumsum(SPLIT_SIZES), records, side="right")).tolist()


@hypothesis.settings(deadline=None, max_examples=40)
@hypothesis.given(st.data(), restarts.drawn_jobs, st.integers(1, 2))
def test_job_that_is_restarted_reads_each_dataset_in_its_own_order(
    parts: Parts, data: st.DataObject, drawn: restarts.Drawn, repeats: int
) -> None:
    mixture = imagebeam.Mixture(parts, POINTS)
    repeats = repeats if drawn.shuffle is not None else 1
    options = {**drawn.options, "repeats": repeats}
    _, read = drawn.read_with_restarts(data, lambda state: schedules(mixture, drawn.process_count, state, **options))
    orders = [restarts.in_turn(read, drawn.batch_size)] if drawn.shuffle == "global" else read
    rows = drawn.batch_size * (drawn.process_count if drawn.shuffle == "global" else 1)
    for order in orders:
        sources = np.array(sources_of(order))
        for step in range(min(len(order) // rows, POINTS[-1][0])):
            shares = wanted_shares(POINTS, step)
            found = np.bincount(sources[step * rows : (step + 1) * rows], minlength=3) / rows
            assert (np.abs(found - shares) <= 3 * repeats / rows).all()
    for source, size in enumerate(SPLIT_SIZES):  # no record comes again before the others of its dataset
        counts = collections.Counter(
            each for order in orders for each, of in zip(order, sources_of(order)) if of == source
        )
        together = len(orders) == 1 or drawn.process_count == 1
        if together and counts:
            least = min(counts.values()) if len(counts) == size else 0
            assert max(counts.values()) - least <= 2 * repeats - 1


@hypothesis.settings(deadline=None, max_examples=25)
@hypothesis.given(st.data(), st.sampled_from([6, 12]), st.integers(1, 2))
def test_row_of_a_step_is_the_same_on_any_number_of_processes(
    parts: Parts, data: st.DataObject, rows: int, repeats: int
) -> None:
    mixture = imagebeam.Mixture(parts, POINTS)
    options = {"shuffle": "global", "seed": 5, "repeats": repeats}
    counts = st.sampled_from([each for each in range(1, 9) if rows % each == 0])
    jobs = data.draw(st.lists(st.tuples(counts, st.integers(1, 15)), min_size=1, max_size=4))
    read, state, step = [], None, 0
    for process_count, steps in jobs:
        size = rows // process_count
        current = schedules(mixture, process_count, state, batch_size=size, **options)
        read += restarts.in_turn([restarts.records_of(each, steps, size) for each in current], size)
        [state] = {restarts.save(each.state_after(steps)) for each in current}
        step += steps
        assert state == mixture.state_at(step, size, process_count=process_count, **options)
    [alone] = schedules(mixture, 1, None, batch_size=rows, **options)
    assert read == restarts.records_of(alone, step, rows)


def test_batches_follow_the_schedule_in_every_feed(parts: Parts) -> None:
    mixture = imagebeam.Mixture(parts, [(0, [1, 0, 0]), (4, [0, 1, 1])])
    expected = [keys_in([batch]) for batch in itertools.islice(mixture.as_numpy(8, **OPTIONS), 6)]
    counts = [[sum(key.startswith(name) for key in keys) for name in SIZES] for keys in expected]
    assert counts[:4] == [[8, 0, 0], [6, 1, 1], [4, 2, 2], [2, 3, 3]]
    assert [count for count, _, _ in counts[4:]] == [0, 0]
    sized_sets.check_feeds(mixture, 8, has_singles=False, **OPTIONS, num_epochs=1)
    mixed = imagebeam.mix(parts, [(0, [1, 0, 0]), (4, [0, 1, 1])], 8, **OPTIONS)
    assert [keys_in([batch]) for batch in mixed.take(6).as_numpy_iterator()] == expected
    assert str(mixture).startswith("Mixture(1 to 0 of 'train' in ")


def test_mixture_ends_where_a_dataset_was_read_though_another_comes_no_more(parts: Parts) -> None:
    mixture = imagebeam.Mixture(parts, [(0, [1, 1, 1]), (2, [0, 1, 0])])
    keys = keys_in(mixture.as_numpy(6, **OPTIONS, num_epochs=1, drop_remainder=False))
    assert sorted(key for key in keys if key[0] == "b") == sorted(f"b{index}" for index in range(SIZES["b"]))
    assert mixture.num_batches(6, drop_remainder=False) == -(-len(keys) // 6)


def test_state_of_other_points_or_steps_of_another_size_is_refused(parts: Parts) -> None:
    mixture = imagebeam.Mixture(parts, POINTS)
    state = mixture.state_at(3, 8, shuffle="global")
    mixture.state_at(0, 4, shuffle="global", process_count=2, state=state)
    imagebeam.Mixture(parts, [[step, [7 * each for each in weights]] for step, weights in POINTS]).state_at(
        0, 8, shuffle="global", state=state
    )
    for points, size in [(POINTS[:-1], 8), ([*POINTS[:-1], (31, POINTS[-1][1])], 8), (POINTS[-1][1], 8), (POINTS, 4)]:
        with case_tables.named(points, size), error_texts.raises("state-mismatch"):
            given = points if points != POINTS[-1][1] else [1, 3, 1]
            imagebeam.Mixture(parts, given).state_at(0, size, shuffle="global", state=state)


def test_points_that_are_no_schedule_are_refused(parts: Parts, tmp_path: pathlib.Path) -> None:
    for points in [
        [(1, [1, 1])],
        [(0, [1, 1]), (0, [1, 2])],
        [(0, [1, 1]), (5, [1, 2]), (3, [1, 1])],
        [(0, [1, 1]), (5, [1])],
        [(0, [1, 1]), (5, [0, 0])],
        [(0, [1, 1]), (5, [1, -1])],
        [(0, [1, 1]), (5, [1, float("nan")])],
        [(0, [1, 1]), (5, ["a", 1])],
    ]:
        with case_tables.named(points), error_texts.raises("weights-mismatch"):
            imagebeam.Mixture(parts[:2], points)
    with error_texts.raises("option-bad-value"):
        imagebeam.Mixture(parts[:2], [(0, [1, 1]), (0.5, [1, 2])])
    with error_texts.raises("options-conflict"):
        imagebeam.Mixture(parts, POINTS).as_tf(**OPTIONS)
    with error_texts.raises("options-conflict"):
        imagebeam.Mixture(parts, POINTS).as_grain()
