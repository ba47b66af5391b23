from __future__ import annotations

import pickle
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.runners.portability import fn_api_runner
from apache_beam.testing import test_pipeline, util
from apache_beam.utils import windowed_value

from imagebeam.transforms.columns import analyze_values

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
