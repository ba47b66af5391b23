"""Ranks references without a global sort.

References are ranked in sets: all images of a split, or all images of a class. The range of order values is divided
into intervals. Each interval is sorted on its own, and the counts of all intervals, a small side input, say at which
rank each interval starts. So the ranks depend on the set of references alone, never on listing order, bundles or
workers.
"""

import collections
import concurrent.futures
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.transforms import window
from apache_beam.typehints import decorators

from imagebeam.transforms import elements, sort_intervals, step, summaries
from imagebeam.transforms.shard import writer_processes
from imagebeam.transforms.sort_intervals import NUM_INTERVALS, HashOrder, ListedOrder, Order, PackedRows, SortedRun
from imagebeam.transforms.summaries import MAX_DUPLICATES, PartialRanking

_NUM_QUANTILE_REFS = 16 * NUM_INTERVALS  # references whose order values bound the intervals of ListedOrder
_MAX_SENT = 4_000  # references, about, that a writer process sorts at once: 20 ms
_MAX_TASKS = 8  # unfinished, of writer processes

KeyedRefs = tuple[str, step.RefBatch]  # name of the set, references


_BY_KEY = HashOrder(0, b"imagebeam.key")


class RankedReferences(NamedTuple):
    """The outputs of RankReferences. The partial rankings, one or a few from each worker, are merged into one."""

    runs: beam.PCollection[SortedRun]
    rankings: beam.PCollection[PartialRanking]


class _SpreadFn(step.SpreadRowsFn):
    """(set, references) -> (interval, PackedRows)."""

    def __init__(self, order: Order, max_plain_bytes: int):
        self._order = order
        self._max_plain_bytes = max_plain_bytes  # larger blocks are compressed

    def process(self, element: KeyedRefs, boundaries: Sequence[Any] = ()) -> Iterator[tuple[int, PackedRows]]:
        name, refs = element
        pending, values = self.pending, self._order.values(refs)
        for interval, value, ref in zip(self._order.intervals(values, boundaries), values, refs):
            pending[interval].append((name, value, *ref))  # as `add` does, in half of the time
        self.num_pending += len(refs)
        if self.is_full:
            yield from self.take()

    def pack(self, rows: list[tuple[Any, ...]]) -> PackedRows:
        """Returns the number of rows, and the rows."""
        return len(rows), elements.pack_rows(rows, self._max_plain_bytes)


@dataclasses.dataclass
class GroupInIntervals(step.Step):
    """(set, references) -> (interval, [PackedRows])."""

    order: Order
    boundaries: "beam.PCollection[list[Any]] | None" = None  # one element, for ListedOrder

    def expand(self, refs: beam.PCollection[KeyedRefs]) -> beam.PCollection[tuple[int, Iterable[PackedRows]]]:
        side_inputs = {} if self.boundaries is None else {"boundaries": beam.pvalue.AsSingleton(self.boundaries)}
        spread = beam.ParDo(_SpreadFn(self.order, _max_plain_bytes(writer_processes.current_token())), **side_inputs)
        spread = spread.with_output_types(tuple[int, PackedRows])
        return refs | "Spread" >> spread | "Group" >> beam.GroupByKey()


def _max_plain_bytes(writers: str | None) -> int:
    """Returns up to which size blocks stay uncompressed: with writer processes, they stay on this machine."""
    return elements.MAX_PLAIN_BYTES if writers is None else elements.MAX_PLAIN_BYTES_IN_PROCESS


class _MergeSummariesFn(beam.DoFn):
    """Base of what summarizes intervals: yields one PartialRanking for all of a bundle."""

    def start_bundle(self) -> None:
        self._ranking = PartialRanking()

    def finish_bundle(self) -> Iterator[Any]:
        yield beam.pvalue.TaggedOutput("rankings", window.GlobalWindows.windowed_value(self._ranking))


class _SortFn(_MergeSummariesFn):
    """An interval -> the sorted runs of each set in it; PartialRanking.

    Writer processes of the launcher sort many references beside this one: they have nothing else to do before the plan.
    """

    def __init__(self, order: Order, writers: str | None):
        self._order = order
        self._writers = writers  # token of the writer processes that the launcher started

    def start_bundle(self) -> None:
        super().start_bundle()
        self._waiting: list[sort_intervals.PackedInterval] = []
        self._num_waiting = 0
        self._futures: collections.deque[concurrent.futures.Future[sort_intervals.SortedIntervals]] = (
            collections.deque()
        )

    def process(self, element: tuple[int, Iterable[PackedRows]]) -> Iterator[SortedRun]:
        interval, packed = element
        pool = writer_processes.find(self._writers)
        if pool is None:
            yield from self._take(sort_intervals.sort_intervals(self._task([(interval, list(packed))])))
            return
        blocks = list(packed)
        self._waiting.append((interval, blocks))
        self._num_waiting += sum(num_rows for num_rows, _ in blocks)
        if self._num_waiting >= _MAX_SENT:
            task = self._task(self._waiting)
            self._futures.append(pool.submit(sort_intervals.sort_intervals, task, writer_processes.try_again))
            self._waiting, self._num_waiting = [], 0
        while len(self._futures) > _MAX_TASKS:
            yield from self._take(self._futures.popleft().result())

    def finish_bundle(self) -> Iterator[Any]:
        rest = sort_intervals.sort_intervals(self._task(self._waiting))  # while the writer processes sort theirs
        for sorted_ in itertools.chain([rest], (future.result() for future in self._futures)):
            yield from map(window.GlobalWindows.windowed_value, self._take(sorted_))
        yield from super().finish_bundle()

    def _task(self, intervals: Sequence[sort_intervals.PackedInterval]) -> sort_intervals.SortTask:
        return sort_intervals.SortTask(intervals, self._order)

    def _take(self, sorted_: sort_intervals.SortedIntervals) -> Sequence[SortedRun]:
        self._ranking.merge(sorted_.ranking)
        return sorted_.runs


class _FindDuplicatesFn(_MergeSummariesFn):
    """An interval of `_BY_KEY` -> PartialRanking of its duplicates alone."""

    def process(self, element: tuple[int, Iterable[PackedRows]]) -> None:
        for sets in sort_intervals.open_interval(element[1], _BY_KEY):
            found = sort_intervals.find_duplicates(sets)
            self._ranking.merge(PartialRanking(duplicates=tuple(found[:MAX_DUPLICATES]), num_duplicates=len(found)))


def first_rank(run: SortedRun, ranking: summaries.Ranking) -> int:
    """Returns the rank of the first reference of a run inside its set."""
    name, interval, num_before, _, _ = run
    return ranking.start(name, interval) + num_before


def key_by(
    refs: beam.PCollection[step.RefBatch], label: str, set_of: Callable[[elements.ImageRef], str]
) -> beam.PCollection[KeyedRefs]:
    """Divides batches of references into those of each set."""
    divided = refs | label >> beam.FlatMap(_divide, set_of=set_of).with_output_types(KeyedRefs)
    return step.typed(divided, KeyedRefs)


def _divide(refs: step.RefBatch, set_of: Callable[[elements.ImageRef], str]) -> Iterable[KeyedRefs]:
    sets: dict[str, step.RefBatch] = {}
    for ref in refs:
        sets.setdefault(set_of(ref), step.RefBatch()).append(ref)
    return sets.items()


@decorators.with_input_types(KeyedRefs)
@dataclasses.dataclass
class RankReferences(step.Step):
    """Yields sorted runs of references, and from where in its set each interval begins.

    References with the same hash stay in one run, next to each other.
    """

    order: Order

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, refs: beam.PCollection[KeyedRefs]) -> RankedReferences:
        boundaries = None
        if isinstance(self.order, ListedOrder):
            boundaries = (
                refs
                | "ByHash" >> beam.FlatMap(self.order.by_hash)
                | "TakeSmallest" >> beam.combiners.Top.Smallest(_NUM_QUANTILE_REFS)
                | "Boundaries" >> beam.Map(self.order.boundaries)
            )
        intervals = refs | "GroupInIntervals" >> GroupInIntervals(self.order, boundaries)  # (interval, [PackedRows])
        sorted_ = intervals | "SortIntervals" >> beam.ParDo(
            _SortFn(self.order, writer_processes.current_token())
        ).with_output_types(SortedRun, rankings=PartialRanking).with_outputs("rankings", main="runs")
        rankings = sorted_.rankings
        if isinstance(self.order, ListedOrder):  # its intervals do not bring the rows of one key together
            duplicates = (
                refs
                | "GroupByKeyHash" >> GroupInIntervals(_BY_KEY)  # (interval, [PackedRows])
                | "FindDuplicates"
                >> beam.ParDo(_FindDuplicatesFn())
                .with_output_types(Any, rankings=PartialRanking)
                .with_outputs("rankings", main="nothing")
            ).rankings
            rankings = (rankings, duplicates) | "AllRankings" >> beam.Flatten()
        return RankedReferences(sorted_.runs, rankings)


def _split_of(ref: elements.ImageRef) -> str:
    return ref.split


@decorators.with_input_types(step.RefBatch)
@dataclasses.dataclass
class RankInSplits(step.Step):
    """Ranks every reference inside its split."""

    order: Order
    ranked: RankedReferences | None = None  # references that have their ranks already: then these are all of a dataset

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, refs: beam.PCollection[step.RefBatch]) -> RankedReferences:
        keyed = key_by(refs, "KeyBySplit", _split_of)  # (split, RefBatch)
        found = keyed | "RankReferences" >> RankReferences(self.order)
        if self.ranked is None:
            return found
        return RankedReferences(
            (found.runs, self.ranked.runs) | "AllRuns" >> beam.Flatten(),
            (found.rankings, self.ranked.rankings) | "AllRankings" >> beam.Flatten(),
        )
