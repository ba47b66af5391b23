from __future__ import annotations

import fractions
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from imagebeam.transforms.columns import analyze_values
from imagebeam.transforms.columns.analyze_values import Moments

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
