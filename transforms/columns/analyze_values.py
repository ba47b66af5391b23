"""Computes statistics of a column on all workers, as analyzers for tf.Transform.

tf.Transform's own mean, variance and quantiles depend on the order in which they are merged. These do not, because they
are exact: see exact_statistics. What one worker gets:

- for mean and variance: a count and two sums from each bundle, some 200 bytes;
- for quantiles: counts of the values of one interval, at most 65,536 from each million values. Then one worker gets the
  total of each interval, at most 65,536 numbers, and one gets the boundaries.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.transforms import window
from apache_beam.utils import windowed_value

from imagebeam.transforms import step
from imagebeam.transforms.columns import exact_statistics
from imagebeam.transforms.columns.exact_statistics import Counts, Moments, Wanted

_MAX_PENDING = 1 << 20  # values that a bundle holds before it counts them: 4 MB, and 30 MB while they are sorted

Batch = tuple[Any, ...]  # one array of float32 or int64 [rows], as tf.Transform passes it


class _SumUpFn(beam.CombineFn):
    """Batches -> float64 [2]: mean and variance."""

    def __init__(self, column: str):
        self._column = column

    def create_accumulator(self) -> Moments:
        return Moments()

    def add_input(self, moments: Moments, batch: Batch) -> Moments:
        exact_statistics.check_finite(batch[0], self._column)
        return moments.merge([exact_statistics.sum_up(batch[0])])

    def merge_accumulators(self, accumulators: Iterable[Moments]) -> Moments:
        return Moments().merge(accumulators)

    def extract_output(self, moments: Moments) -> Any:
        return np.array([moments.mean, moments.variance])


@dataclasses.dataclass(eq=False)
class ComputeMoments(step.Step):
    """Batches of a column -> one array, float64 [2]: mean and variance of the population, zeros without values."""

    column: str

    def expand(self, batches: beam.PCollection[Any]) -> beam.PCollection[Any]:
        return batches | "SumUp" >> beam.CombineGlobally(_SumUpFn(self.column))


class _CountFn(beam.DoFn):
    """Batches -> (interval, Counts), from a bundle's values or `_MAX_PENDING` of them at a time."""

    def __init__(self, column: str):
        self._column = column
        self._pending: list[Any] = []
        self._num_pending = 0

    def start_bundle(self) -> None:
        self._pending, self._num_pending = [], 0

    def process(self, batch: Batch) -> Iterator[tuple[int, Counts]]:
        exact_statistics.check_finite(batch[0], self._column)
        self._pending.append(exact_statistics.to_ordinals(batch[0]))
        self._num_pending += len(batch[0])
        if self._num_pending >= _MAX_PENDING:
            yield from self._take()

    def finish_bundle(self) -> Iterator[windowed_value.WindowedValue]:
        for counted in self._take():
            yield window.GlobalWindows.windowed_value(counted)

    def _take(self) -> Iterable[tuple[int, Counts]]:
        pending, self._pending, self._num_pending = self._pending, [], 0
        return exact_statistics.count_ordinals(np.concatenate(pending)).items() if pending else ()


def _add_up(element: tuple[int, Iterable[Counts]]) -> tuple[int, Counts]:
    interval, counts = element
    return interval, exact_statistics.add_counts(counts)


def _total(element: tuple[int, Counts]) -> tuple[int, int]:
    interval, counts = element
    return interval, exact_statistics.total_of(counts)


def _find_intervals(_: bytes, totals: Iterable[tuple[int, int]], num_quantiles: int) -> Wanted:
    return exact_statistics.find_intervals(dict(totals), num_quantiles)


def _find_boundaries(element: tuple[int, Counts], wanted: Wanted) -> Iterator[tuple[int, float]]:
    interval, counts = element
    if interval in wanted:
        yield from exact_statistics.find_boundaries(interval, counts, wanted[interval])


def _gather(_: bytes, boundaries: Iterable[tuple[int, float]], num_quantiles: int) -> Any:
    gathered = np.zeros([1, num_quantiles - 1], np.float32)
    for index, value in boundaries:
        gathered[0, index] = value
    return gathered


@dataclasses.dataclass(eq=False)
class ComputeQuantiles(step.Step):
    """Batches of a column -> one array of the boundaries between quantiles.

    The array is float32 [1, num_quantiles - 1], ascending: zeros without values. exact_statistics.find_intervals says
    which values the boundaries are.
    """

    column: str
    num_quantiles: int

    def expand(self, batches: beam.PCollection[Any]) -> beam.PCollection[Any]:
        counts = (
            batches
            | "Count" >> beam.ParDo(_CountFn(self.column)).with_output_types(tuple[int, Counts])
            | "GroupInIntervals" >> beam.GroupByKey()  # (interval, [Counts])
            | "AddUp" >> beam.Map(_add_up).with_output_types(tuple[int, Counts])
        )
        totals = counts | "Total" >> beam.Map(_total).with_output_types(tuple[int, int])
        wanted = (
            batches.pipeline
            | "StartFinding" >> beam.Impulse()
            | "FindIntervals"
            >> beam.Map(
                _find_intervals, totals=beam.pvalue.AsIter(totals), num_quantiles=self.num_quantiles
            ).with_output_types(Any)
        )
        boundaries = counts | "FindBoundaries" >> beam.FlatMap(
            _find_boundaries, wanted=beam.pvalue.AsSingleton(wanted)
        ).with_output_types(tuple[int, float])
        return (
            batches.pipeline
            | "StartGathering" >> beam.Impulse()
            | "Gather"
            >> beam.Map(
                _gather, boundaries=beam.pvalue.AsIter(boundaries), num_quantiles=self.num_quantiles
            ).with_output_types(Any)
        )
