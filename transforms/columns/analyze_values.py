"""Computes mean, variance and quantiles of a column on all workers, as analyzers for tf.Transform.

tf.Transform's own mean, variance and quantiles depend on the order in which they are merged. These do not, because they
are exact: the result depends on the set of values alone. What one worker gets:

- for mean and variance: a count and two sums from each bundle, some 200 bytes;
- for quantiles: counts of the values of one interval, at most 65,536 from each million values. Then one worker gets the
  total of each interval, at most 65,536 numbers, and one gets the boundaries.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.transforms import window
from apache_beam.utils import windowed_value

from imagebeam.transforms import step

INTERVAL_SIZE = 1 << 16  # ordinals in an interval

_UNIT_BITS = 149  # the smallest 32-bit float is 2**-149
_SIGN = np.uint32(1 << 31)

Array = np.ndarray[Any, Any]


class Moments(NamedTuple):
    """Number of values, and their exact sums."""

    num_values: int = 0
    total: int = 0  # in units of 2**-149
    squares: int = 0  # total of the squares, in units of 2**-298

    def merge(self, others: Iterable["Moments"]) -> "Moments":
        """Returns the sums of all values together, the same in any order."""
        return Moments(*(sum(column) for column in zip(self, *others)))

    @property
    def mean(self) -> float:
        """The mean, rounded once; 0 without values."""
        return self.total / (self.num_values << _UNIT_BITS) if self.num_values else 0.0

    @property
    def variance(self) -> float:
        """The variance of the population, rounded once: 0 only if all values are equal; 0 without values."""
        if not self.num_values:
            return 0.0
        return (self.num_values * self.squares - self.total**2) / (self.num_values**2 << 2 * _UNIT_BITS)


def sum_up(values: Array) -> Moments:
    """Returns the exact sums of an array of float32 or int64, finite. An int64 counts as the nearest 64-bit float."""
    multiples = list(map(int, np.ldexp(values.astype(np.float64), _UNIT_BITS).tolist()))
    return Moments(len(multiples), sum(multiples), sum(multiple * multiple for multiple in multiples))


def to_ordinals(values: Array) -> Array:
    """Returns float32 or int64, finite, as uint32 in the same order.

    An int64 is rounded to 64 bits first, then to 32. -0.0 counts as 0.0.
    """
    floats = values.astype(np.float64).astype(np.float32) + np.float32(0)  # -0.0 + 0.0 is 0.0
    bits = floats.view(np.uint32)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)  # the smaller one of two negative floats has the larger bits


def to_floats(ordinals: Array) -> Array:
    """Returns the float32 that `to_ordinals` turned into these uint32."""
    return np.where(ordinals & _SIGN, ordinals ^ _SIGN, ~ordinals).view(np.float32)


def check_finite(values: Array, column: str) -> None:
    """Raises ValueError, which names the column, if a value is NaN or infinite: these have no mean and no order."""
    finite = np.isfinite(values)
    if not finite.all():
        raise ValueError(
            f"column {column!r} holds {values[~finite][0]}; expected finite numbers: correct the value, or remove the "
            f"column's transform"
        )


Counts = tuple[bytes, bytes]
"""Packed counts of the values of one interval: 3 bytes for each value that occurs up to 255 times.

First the places of the values in the interval, ascending: uint16. Then how often each occurs: unsigned integers, as
wide as the largest needs. Both are little-endian.
"""


def _pack(places: Array, numbers: Array) -> Counts:
    narrowest = np.min_scalar_type(int(numbers.max())).newbyteorder("<")
    return places.astype("<u2").tobytes(), numbers.astype(narrowest).tobytes()


def _unpack(counts: Counts) -> tuple[Array, Array]:
    """Returns places and numbers, int64."""
    packed_places, packed_numbers = counts
    places = np.frombuffer(packed_places, "<u2")
    numbers = np.frombuffer(packed_numbers, f"<u{len(packed_numbers) // len(places)}")
    return places.astype(np.int64), numbers.astype(np.int64)


def count_ordinals(ordinals: Array) -> dict[int, Counts]:
    """Returns how often each ordinal of a uint32 array occurs, by interval."""
    distinct, numbers = np.unique(ordinals, return_counts=True)
    intervals, starts = np.unique(distinct // INTERVAL_SIZE, return_index=True)
    ends = [*starts[1:], len(distinct)]
    return {
        int(interval): _pack(distinct[start:end] % INTERVAL_SIZE, numbers[start:end])
        for interval, start, end in zip(intervals, starts, ends)
    }


def add_counts(counts: Iterable[Counts]) -> Counts:
    """Returns the sums of counts of one interval. Takes 0.5 MB and one of the counts at a time."""
    sums = np.zeros(INTERVAL_SIZE, np.int64)
    for each in counts:
        places, numbers = _unpack(each)
        sums[places] += numbers
    (places,) = np.nonzero(sums)
    return _pack(places, sums[places])


def total_of(counts: Counts) -> int:
    """Returns the number of all values."""
    return int(_unpack(counts)[1].sum())


Wanted = Mapping[int, Sequence[tuple[int, int]]]  # by interval: index of each boundary in it, and rank in the interval


def find_intervals(totals: Mapping[int, int], num_quantiles: int) -> Wanted:
    """Returns which interval each boundary between quantiles is in.

    Boundary i, from 1 to `num_quantiles` - 1, is the value of rank floor(n * i / num_quantiles) of n values; the
    smallest value has rank 0. The index of this boundary is i - 1.

    Args:
        totals: number of values in each interval.
        num_quantiles: 2 or more.
    """
    wanted: dict[int, list[tuple[int, int]]] = {}
    if not totals:
        return wanted
    intervals = sorted(totals)
    ends = np.cumsum([totals[interval] for interval in intervals])
    ranks = [int(ends[-1]) * index // num_quantiles for index in range(1, num_quantiles)]
    for index, (rank, found) in enumerate(zip(ranks, np.searchsorted(ends, ranks, side="right").tolist())):
        interval = intervals[found]
        wanted.setdefault(interval, []).append((index, rank - int(ends[found]) + totals[interval]))
    return wanted


def find_boundaries(interval: int, counts: Counts, wanted: Sequence[tuple[int, int]]) -> list[tuple[int, float]]:
    """Returns index and value of the boundaries that are in an interval; `wanted` as in find_intervals."""
    places, numbers = _unpack(counts)
    indexes, ranks = zip(*wanted)
    found = places[np.searchsorted(np.cumsum(numbers), ranks, side="right")]
    values = to_floats((interval * INTERVAL_SIZE + found).astype(np.uint32))
    return list(zip(indexes, values.tolist()))


_MAX_PENDING = 1 << 20  # values that a bundle holds before it counts them: 4 MB, and 30 MB while they are sorted

Batch = tuple[Any, ...]  # one array of float32 or int64 [rows], as tf.Transform passes it


class _SumUpFn(beam.CombineFn):
    """Batches -> float64 [2]: mean and variance."""

    def __init__(self, column: str):
        self._column = column

    def create_accumulator(self) -> Moments:
        return Moments()

    def add_input(self, moments: Moments, batch: Batch) -> Moments:
        check_finite(batch[0], self._column)
        return moments.merge([sum_up(batch[0])])

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
        check_finite(batch[0], self._column)
        self._pending.append(to_ordinals(batch[0]))
        self._num_pending += len(batch[0])
        if self._num_pending >= _MAX_PENDING:
            yield from self._take()

    def finish_bundle(self) -> Iterator[windowed_value.WindowedValue]:
        for counted in self._take():
            yield window.GlobalWindows.windowed_value(counted)

    def _take(self) -> Iterable[tuple[int, Counts]]:
        pending, self._pending, self._num_pending = self._pending, [], 0
        return count_ordinals(np.concatenate(pending)).items() if pending else ()


def _add_up(element: tuple[int, Iterable[Counts]]) -> tuple[int, Counts]:
    interval, counts = element
    return interval, add_counts(counts)


def _total(element: tuple[int, Counts]) -> tuple[int, int]:
    interval, counts = element
    return interval, total_of(counts)


def _find_intervals(_: bytes, totals: Iterable[tuple[int, int]], num_quantiles: int) -> Wanted:
    return find_intervals(dict(totals), num_quantiles)


def _find_boundaries(element: tuple[int, Counts], wanted: Wanted) -> Iterator[tuple[int, float]]:
    interval, counts = element
    if interval in wanted:
        yield from find_boundaries(interval, counts, wanted[interval])


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
        choose = beam.Map(_find_intervals, totals=beam.pvalue.AsIter(totals), num_quantiles=self.num_quantiles)
        start = batches.pipeline | "StartFinding" >> beam.Impulse()
        wanted = start | "FindIntervals" >> choose.with_output_types(Any)
        find = beam.FlatMap(_find_boundaries, wanted=beam.pvalue.AsSingleton(wanted))
        boundaries = counts | "FindBoundaries" >> find.with_output_types(tuple[int, float])
        gather = beam.Map(_gather, boundaries=beam.pvalue.AsIter(boundaries), num_quantiles=self.num_quantiles)
        return batches.pipeline | "StartGathering" >> beam.Impulse() | "Gather" >> gather.with_output_types(Any)
