"""Divides every class among the splits by rank, without one place that knows the counts of all classes.

Images are ranked inside their class as in rank_references: by the interval of their order value, and by their place in
it. The counts of each interval go to 16 workers by the hash of the class; each adds up those of its classes. The totals
of all classes, one number each, decide at which ranks the splits of a class begin. The worker that has the counts turns
these ranks into places: interval, and offset in it. So the table that all workers need holds a few numbers for each
class, not one for each class and interval.
"""

import array
import bisect
import collections
import dataclasses
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.typehints import decorators

from imagebeam.transforms import elements, rank_references, ref_batches, reference_order, sort_intervals, step

_NUM_TABLES = 16  # workers that add up counts; with 21,841 classes each has 1.4 million of 8 bytes


class Division(NamedTuple):
    """Division of the images of a class: which split each run of ranks goes to."""

    starts: tuple[int, ...]  # rank at which each split but the first begins, ascending
    splits: tuple[str, ...]


class Cuts(NamedTuple):
    """The same, with places instead of ranks."""

    starts: tuple[tuple[int, int], ...]  # interval, and offset among the class's images in it
    splits: tuple[str, ...]

    def split_in(self, interval: int, num_before: int = 0) -> Callable[[int], str]:
        """Returns the function that finds the split of an image by its offset in an interval, less `num_before`."""
        first = bisect.bisect_left(self.starts, (interval, 0))
        last = bisect.bisect_left(self.starts, (interval + 1, 0))
        offsets, splits = [offset - num_before for _, offset in self.starts[first:last]], self.splits[first:]
        return lambda offset: splits[bisect.bisect_right(offsets, offset)]


Divide = Callable[[Mapping[str, int]], Mapping[str, Division]]  # number of images by class -> how each is divided
Counts = tuple[int, bytes]  # interval, packed rows of class and number of images


class _CountFn(beam.DoFn):
    """An interval -> its counts, for each table."""

    def process(self, element: tuple[int, Iterable[sort_intervals.PackedRows]]) -> Iterator[tuple[int, Counts]]:
        interval, packed = element
        counts: dict[str, int] = {}
        for _, rows in packed:
            for name, *_ in elements.unpack_rows(rows):
                counts[name] = counts.get(name, 0) + 1
        tables: dict[int, list[tuple[str, int]]] = {}
        for name, count in counts.items():
            tables.setdefault(zlib.crc32(name.encode()) % _NUM_TABLES, []).append((name, count))
        for table, rows_of_table in tables.items():
            yield table, (interval, elements.pack_rows(rows_of_table))


def _add_up(counts: Iterable[Counts]) -> "dict[str, array.array[int]]":
    """Returns the counts of each class: interval and number of images in turn, by interval."""
    by_class: dict[str, array.array[int]] = {}
    for interval, packed in sorted(counts):
        for name, count in elements.unpack_rows(packed):
            by_class.setdefault(name, array.array("Q")).extend((interval, count))
    return by_class


def _total(element: tuple[int, Iterable[Counts]]) -> bytes:
    """Returns the packed totals of the classes of a table."""
    return elements.pack_rows([(name, sum(counts[1::2])) for name, counts in _add_up(element[1]).items()])


def find_cuts(counts: Sequence[int], division: Division) -> Cuts:
    """Returns where the splits of a class begin, from its counts: interval and number of images in turn."""
    ends = list(itertools.accumulate(counts[1::2]))
    starts = []
    for rank in division.starts:
        index = bisect.bisect_right(ends, rank)
        if index == len(ends):  # after all images
            starts.append((counts[-2] + 1, 0))
        else:
            starts.append((counts[2 * index], rank - (ends[index - 1] if index else 0)))
    return Cuts(tuple(starts), division.splits)


class _CutFn(beam.DoFn):
    """A table of counts -> packed rows of class and cuts."""

    def process(self, element: tuple[int, Iterable[Counts]], divisions: Mapping[str, Division]) -> Iterator[bytes]:
        yield elements.pack_rows(
            [(name, *find_cuts(counts, divisions[name])) for name, counts in _add_up(element[1]).items()]
        )


class _SplitFn(beam.DoFn):
    """An interval -> its images with their split."""

    def __init__(self, order: reference_order.HashOrder, is_grouped: bool):
        self._order = order
        self._is_grouped = is_grouped
        self._packed: Sequence[bytes] = ()
        self._cuts: dict[str, Cuts] = {}

    def process(
        self, element: tuple[int, Iterable[sort_intervals.PackedRows]], cuts: Sequence[bytes]
    ) -> Iterator[ref_batches.RefBatch]:
        if cuts is not self._packed:  # the same for all elements of a bundle
            rows = itertools.chain.from_iterable(map(elements.unpack_rows, cuts))
            self._packed, self._cuts = cuts, {name: Cuts(starts, splits) for name, starts, splits in rows}
        interval, packed = element
        num_before: collections.Counter[str] = collections.Counter()
        for sets in sort_intervals.open_interval(packed, self._order):
            for name, columns in sets.items():
                refs = list(elements.rows_of(columns))
                split_at = self._cuts[name].split_in(interval, num_before[name])
                divide = _split_groups if self._is_grouped else _split_images
                yield from ref_batches.batch(divide(refs, split_at))
                num_before[name] += len(refs)


def _split_images(refs: Sequence[elements.ImageRef], split_at: Callable[[int], str]) -> Iterator[elements.ImageRef]:
    for offset, ref in enumerate(refs):
        yield ref.with_split(split_at(offset))


def _split_groups(refs: Sequence[elements.ImageRef], split_at: Callable[[int], str]) -> Iterator[elements.ImageRef]:
    """Yields the images; a whole group, which is in one interval, goes where its first image goes."""
    previous, split = None, ""
    for offset, ref in enumerate(refs):
        unit = ref.group or ref.key
        if unit != previous:
            previous, split = unit, split_at(offset)
        yield ref.with_split(split)


def _divide(_: bytes, totals: Iterable[bytes], divide: Divide) -> Mapping[str, Division]:
    return divide(dict(itertools.chain.from_iterable(map(elements.unpack_rows, totals))))  # type: ignore[arg-type]


def _gather(_: bytes, packed: Iterable[bytes]) -> list[bytes]:
    return list(packed)


@decorators.with_input_types(rank_references.KeyedRefs)
@dataclasses.dataclass
class CutClasses(step.Step):
    """(class, references) -> the references, each with the split that its rank in the class gives it."""

    order: reference_order.HashOrder
    divide: Divide
    is_grouped: bool = False  # whether images that follow each other in one group stay together

    def expand(self, refs: beam.PCollection[rank_references.KeyedRefs]) -> beam.PCollection[ref_batches.RefBatch]:
        intervals = refs | "GroupInIntervals" >> rank_references.GroupInIntervals(self.order)  # (interval, [rows])
        counts = (
            intervals
            | "Count" >> beam.ParDo(_CountFn()).with_output_types(tuple[int, Counts])
            | "GroupByTable" >> beam.GroupByKey()  # (table, [Counts])
        )
        totals = counts | "Total" >> beam.Map(_total).with_output_types(bytes)
        divisions = (
            refs.pipeline
            | "StartDividing" >> beam.Impulse()
            | "Divide"
            >> beam.Map(_divide, totals=beam.pvalue.AsIter(totals), divide=self.divide).with_output_types(Any)
        )
        cuts = counts | "Cut" >> beam.ParDo(_CutFn(), divisions=beam.pvalue.AsSingleton(divisions)).with_output_types(
            bytes
        )
        gathered = (
            refs.pipeline
            | "StartGathering" >> beam.Impulse()
            | "Gather" >> beam.Map(_gather, packed=beam.pvalue.AsIter(cuts)).with_output_types(Any)
        )
        split = beam.ParDo(_SplitFn(self.order, self.is_grouped), cuts=beam.pvalue.AsSingleton(gathered))
        return ref_batches.typed(intervals | "Split" >> split.with_output_types(ref_batches.RefBatch))
