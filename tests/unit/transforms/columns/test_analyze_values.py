from __future__ import annotations

import fractions
import pickle
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.runners.portability import fn_api_runner
from apache_beam.testing import test_pipeline, util
from apache_beam.utils import windowed_value
from hypothesis import example, given, settings
from hypothesis import strategies as st

from imagebeam.transforms.columns import analyze_values
from imagebeam.transforms.columns.analyze_values import Moments

NUM_VALUES, NUM_QUANTILES = 3000, 7
COLUMN = np.random.default_rng(5).lognormal(3, 2, NUM_VALUES).astype(np.float32)
RANKS = [NUM_VALUES * index // NUM_QUANTILES for index in range(1, NUM_QUANTILES)]
BOUNDARIES = np.sort(COLUMN)[RANKS].tolist()
MOMENTS = analyze_values.sum_up(COLUMN)


def make_batches(seed: int, num_batches: int) -> list[Any]:
    """Returns the values of COLUMN in another order."""
    shuffled = np.random.default_rng(seed).permutation(COLUMN)
    return [(batch,) for batch in np.array_split(shuffled, num_batches)]


@pytest.mark.parametrize(
    ("batches", "moments", "boundaries"),
    [
        pytest.param(make_batches(2, 300), [MOMENTS.mean, MOMENTS.variance], BOUNDARIES, id="many-batches"),
        pytest.param([], [0.0, 0.0], [0.0] * 6, id="no-batch"),
    ],
)
def test_analyzers_return_one_array_of_the_exact_statistics(
    monkeypatch: pytest.MonkeyPatch, batches: list[Any], moments: list[float], boundaries: list[float]
) -> None:
    def check(arrays: list[Any]) -> None:
        found = sorted((str(array.dtype), array.tolist()) for array in arrays)
        assert found == [("float32", [boundaries]), ("float64", moments)]

    monkeypatch.setattr(analyze_values, "_MAX_PENDING", 700)
    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        created = pipeline | beam.Create(batches, reshuffle=False)
        computed = (
            created | analyze_values.ComputeMoments("age"),
            created | analyze_values.ComputeQuantiles("age", NUM_QUANTILES),
        )
        util.assert_that(computed | beam.Flatten(), check)


def test_counts_leave_a_bundle_whenever_enough_values_are_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyze_values, "_MAX_PENDING", 1000)
    count = analyze_values._CountFn("age")
    count.start_bundle()
    taken = [len(list(count.process(batch))) > 0 for batch in make_batches(3, 10)]
    assert taken == [False, False, False, True, False, False, False, True, False, False]
    rest = list(count.finish_bundle())
    assert all(isinstance(each, windowed_value.WindowedValue) for each in rest)
    assert sum(analyze_values.total_of(each.value[1]) for each in rest) == 600
    count.start_bundle()
    assert list(count.finish_bundle()) == []


def test_sums_of_a_bundle_take_a_few_hundred_bytes() -> None:
    combine = analyze_values._SumUpFn("age")
    moments = combine.create_accumulator()
    for batch in make_batches(4, 5):
        moments = combine.add_input(moments, batch)
    assert combine.merge_accumulators([moments, combine.create_accumulator()]) == MOMENTS
    assert len(pickle.dumps(moments)) < 300


def test_value_that_is_not_finite_is_an_error_that_names_its_column() -> None:
    for transform in [analyze_values._SumUpFn("age"), analyze_values._CountFn("age")]:
        batch = (np.array([1, np.nan], np.float32),)
        with pytest.raises(ValueError, match="column 'age' holds nan; expected finite numbers"):
            if isinstance(transform, beam.DoFn):
                list(transform.process(batch))
            else:
                transform.add_input(analyze_values.Moments(), batch)


# ---- exact statistics


LARGEST = float(np.finfo(np.float32).max)
SMALLEST = 2.0**-149

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
few_floats = st.sampled_from([-2.5, -0.0, 0.0, 1.0, 1.0000001192092896, 3.0, 1e-40, LARGEST])
columns = st.lists(floats, max_size=60).map(lambda values: np.array(values, np.float32))
columns |= st.lists(few_floats, max_size=60).map(lambda values: np.array(values, np.float32))
columns |= st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60).map(lambda values: np.array(values, np.int64))


@st.composite
def bundles(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    """Returns a column, and the same values in another order, cut into parts; some are empty."""
    column = draw(columns)
    shuffled = column[draw(st.permutations(range(len(column))))] if len(column) else column
    cuts = sorted(draw(st.lists(st.integers(0, len(column)), max_size=5)))
    return column, np.split(shuffled, cuts)


def quantiles(parts: Sequence[Any], num_quantiles: int) -> list[float]:
    """Returns the boundaries of values in parts, as analyze_values finds them."""
    by_interval: dict[int, list[analyze_values.Counts]] = {}
    for part in parts:
        for interval, counts in analyze_values.count_ordinals(analyze_values.to_ordinals(part)).items():
            by_interval.setdefault(interval, []).append(counts)
    added = {interval: analyze_values.add_counts(counts) for interval, counts in by_interval.items()}
    totals = {interval: analyze_values.total_of(counts) for interval, counts in added.items()}
    found: dict[int, float] = {}
    for interval, wanted in analyze_values.find_intervals(totals, num_quantiles).items():
        found.update(analyze_values.find_boundaries(interval, added[interval], wanted))
    return [found[index] for index in sorted(found)]


# --- mean and variance -----------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(bundles())
def test_moments_are_the_same_for_any_order_and_parts(drawn: tuple[Any, list[Any]]) -> None:
    column, parts = drawn
    together = analyze_values.sum_up(column)
    assert Moments().merge(map(analyze_values.sum_up, parts)) == together
    nested = Moments()
    for part in reversed(parts):
        nested = analyze_values.sum_up(part).merge([nested])
    assert nested == together


@settings(deadline=None)
@given(columns)
@example(np.array([LARGEST, -LARGEST, SMALLEST], np.float32))
@example(np.array([SMALLEST, 2 * SMALLEST], np.float32))
@example(np.array([2**62 + 1, 2**62 - 1, 2**53 + 1], np.int64))
def test_moments_are_exact_and_rounded_once(column: Any) -> None:
    values = [fractions.Fraction(value) for value in column.astype(np.float64).tolist()]
    moments = analyze_values.sum_up(column)
    mean = sum(values) / fractions.Fraction(max(1, len(values)))
    variance = sum((value - mean) ** 2 for value in values) / fractions.Fraction(max(1, len(values)))
    assert (moments.mean, moments.variance) == (float(mean), float(variance))
    assert (moments.variance == 0) == (len(set(values)) < 2)


# --- quantiles -------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(columns)
def test_ordinals_have_the_order_of_the_values(column: Any) -> None:
    rounded = column.astype(np.float64).astype(np.float32)
    ordinals = analyze_values.to_ordinals(column)
    assert ordinals.dtype == np.uint32
    np.testing.assert_array_equal(analyze_values.to_floats(ordinals), rounded)
    np.testing.assert_array_equal(analyze_values.to_floats(np.sort(ordinals)), np.sort(rounded))
    assert not np.signbit(analyze_values.to_floats(ordinals)[rounded == 0]).any()


@settings(deadline=None)
@given(bundles(), st.integers(2, 80))
def test_boundaries_are_values_of_a_rank_for_any_order_and_parts(
    drawn: tuple[Any, list[Any]], num_quantiles: int
) -> None:
    column, parts = drawn
    ordered = np.sort(column.astype(np.float64).astype(np.float32)).tolist()
    ranks = [len(ordered) * index // num_quantiles for index in range(1, num_quantiles)] if ordered else []
    assert quantiles(parts, num_quantiles) == [ordered[rank] for rank in ranks]


def test_counts_stay_small_and_exact_however_often_a_value_occurs() -> None:
    often = {7: analyze_values.count_ordinals(np.full(300, 7 << 16, np.uint32))[7]}
    assert list(map(len, often[7])) == [2, 2]
    assert analyze_values.total_of(analyze_values.add_counts([often[7]] * 1000)) == 300_000
    rarely = analyze_values.count_ordinals(np.arange(1 << 16, dtype=np.uint32))
    assert list(rarely) == [0] and sum(map(len, rarely[0])) == 3 << 16


# --- values without an order -----------------------------------------------------------------------------------------
