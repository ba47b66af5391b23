"""Ranks references without a global sort.

References are ranked in sets: all images of a split, or all images of a class. The range of order values is divided
into intervals. Each interval is sorted on its own, and the counts of all intervals, a small side input, say at which
rank each interval starts. So the ranks depend on the set of references alone, never on listing order, bundles or
workers.
"""

import bisect
import collections
import dataclasses
import hashlib
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.transforms import window
from apache_beam.typehints import decorators
from apache_beam.utils import windowed_value

from imagebeam.transforms import elements, hashing, recorded_inputs, ref_batches, summaries
from imagebeam.transforms.interval_summaries import DIGEST_BITS, MAX_DUPLICATES, IntervalSummary, PartialRanking
from imagebeam.transforms.shard import writer_processes

NUM_INTERVALS = (
    1024  # 100 million references are 100,000 per interval, sorted in 0.2 s and 60 MB; more are cut in parts
)
_NUM_QUANTILE_REFS = 16 * NUM_INTERVALS  # references whose order values bound the intervals of ListedOrder
_MAX_PENDING = 50_000  # references that a bundle holds before it packs them: 30 MB
_MAX_PART_REFS = 200_000  # of an interval that are objects at the same time: 120 MB

KeyedRefs = tuple[str, ref_batches.RefBatch]  # name of the set, references
PackedRows = tuple[int, bytes]  # number of rows, packed rows of set, order value and reference
SortedRun = tuple[str, int, int, int, bytes]  # set, interval, place in it, number of references, packed references


@dataclasses.dataclass(frozen=True)
class HashOrder:
    """Orders by the hash of a field of the reference, then by key."""

    seed: int
    purpose: bytes
    field: str = "key"

    def values(self, refs: Sequence[elements.ImageRef]) -> Sequence[Any]:
        """Returns hashes, 0 to 2**64."""
        fields = (
            [ref.key for ref in refs] if self.field == "key" else [getattr(ref, self.field) or ref.key for ref in refs]
        )
        return hashing.hash64_all(fields, self.seed, self.purpose)

    def intervals(self, values: Sequence[Any], boundaries: Sequence[Any]) -> list[int]:
        """Returns the intervals of hashes: equal parts of the hashes' range. `boundaries` is not used."""
        return [value * NUM_INTERVALS >> hashing.HASH_BITS for value in values]

    def num_parts(self, num_refs: int) -> int:
        """Returns in how many parts an interval with so many references is sorted."""
        return -(-num_refs // _MAX_PART_REFS) or 1

    def part(self, value: Any, num_parts: int) -> int:
        """Returns the part of its interval that holds a hash. Parts are equal parts of the interval's range."""
        return (value * NUM_INTERVALS % (1 << hashing.HASH_BITS)) * num_parts >> hashing.HASH_BITS


@dataclasses.dataclass(frozen=True)
class ListedOrder:
    """Orders by the row of the manifest, then by key. Intervals end at approximate quantiles."""

    def values(self, refs: Sequence[elements.ImageRef]) -> Sequence[Any]:
        """Returns rows and keys, the keys as bytes: Beam encodes strings as UTF-8, which a file name may not be."""
        return [(ref.position, hashing.encode_key(ref.key)) for ref in refs]

    def intervals(self, values: Sequence[Any], boundaries: Sequence[Any]) -> list[int]:
        """Returns the intervals of values: interval i ends before boundary i, the last one holds the rest."""
        return [bisect.bisect_right(boundaries, value) for value in values]

    def num_parts(self, num_refs: int) -> int:
        """Returns 1: nothing divides an interval whose values are not spread evenly."""
        return 1

    def part(self, value: Any, num_parts: int) -> int:
        return 0

    def by_hash(self, element: KeyedRefs) -> Iterator[tuple[int, Any]]:
        """Yields a hash of each key and the order value. The smallest hashes are a choice that the set alone decides.

        The salt keeps its first name, so that the intervals stay the same from release to release.
        """
        refs = element[1]
        hashes = hashing.hash64_all([ref.key for ref in refs], 0, b"imagebeam.sample")
        for hash_, value in zip(hashes, self.values(refs)):
            yield hash_ >> 1, value  # Beam's integers are signed

    @staticmethod
    def boundaries(chosen: Sequence[tuple[int, Any]]) -> list[Any]:
        """Returns the ends of all intervals but the last, at most NUM_INTERVALS - 1, from the values chosen by hash."""
        values = sorted(value for _, value in chosen)
        step = max(1, -(-len(values) // NUM_INTERVALS))
        return values[step::step]


Order = HashOrder | ListedOrder

_BY_KEY = HashOrder(0, b"imagebeam.key")


class RankedReferences(NamedTuple):
    """The outputs of RankReferences. The partial rankings, one or a few from each worker, are merged into one."""

    runs: beam.PCollection[SortedRun]
    rankings: beam.PCollection[PartialRanking]


class _SpreadFn(beam.DoFn):
    """(set, references) -> (interval, PackedRows)."""

    def __init__(self, order: Order, max_plain_bytes: int):
        self._order = order
        self._max_plain_bytes = max_plain_bytes  # of a block that is not compressed
        self._pending: dict[int, list[tuple[Any, ...]]] = {}
        self._num_pending = 0

    def start_bundle(self) -> None:
        self._pending, self._num_pending = collections.defaultdict(list), 0

    def process(self, element: KeyedRefs, boundaries: Sequence[Any] = ()) -> Iterator[tuple[int, PackedRows]]:
        name, refs = element
        pending, values = self._pending, self._order.values(refs)
        for interval, value, ref in zip(self._order.intervals(values, boundaries), values, refs):
            pending[interval].append((name, value, *ref))
        self._num_pending += len(refs)
        if self._num_pending >= _MAX_PENDING:
            yield from self._take()

    def finish_bundle(self) -> Iterator[windowed_value.WindowedValue]:
        for packed in self._take():
            yield window.GlobalWindows.windowed_value(packed)

    def _take(self) -> Iterator[tuple[int, PackedRows]]:
        pending, self._pending, self._num_pending = self._pending, collections.defaultdict(list), 0
        for interval, rows in pending.items():
            yield interval, (len(rows), elements.pack_rows(rows, self._max_plain_bytes))


@dataclasses.dataclass
class GroupInIntervals(beam.PTransform):
    """(set, references) -> (interval, [PackedRows])."""

    order: Order
    boundaries: "beam.PCollection[list[Any]] | None" = None  # one element, for ListedOrder

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, refs: beam.PCollection[KeyedRefs]) -> beam.PCollection[tuple[int, Iterable[PackedRows]]]:
        side_inputs = {} if self.boundaries is None else {"boundaries": beam.pvalue.AsSingleton(self.boundaries)}
        spread = beam.ParDo(_SpreadFn(self.order, _max_plain_bytes()), **side_inputs)
        spread = spread.with_output_types(tuple[int, PackedRows])
        return refs | "Spread" >> spread | "Group" >> beam.GroupByKey()


def _max_plain_bytes() -> int:
    """Returns up to which size the steps of this graph leave blocks uncompressed."""
    is_in_process = writer_processes.current() is not None
    return elements.MAX_PLAIN_BYTES_IN_PROCESS if is_in_process else elements.MAX_PLAIN_BYTES


# A row is the name of the set, the order value, and the fields of the reference, of which key and uri are the first.
_REF = 2
_value_key_and_uri = operator.itemgetter(1, _REF, _REF + 1)


def open_interval(packed: Iterable[PackedRows], order: Order) -> Iterator[dict[str, elements.RefColumns]]:
    """Yields the references of an interval by set, each set sorted.

    They come in parts that follow each other, if there are so many that they would take too much memory as objects. The
    number of parts depends on the number of references alone.
    """
    blocks = list(packed)
    num_parts = order.num_parts(sum(num_rows for num_rows, _ in blocks))
    if num_parts == 1:
        yield _open_part(rows for _, rows in blocks)
        return
    parts: list[list[bytes]] = [[] for _ in range(num_parts)]
    for _, rows in blocks:
        divided: dict[int, list[tuple[Any, ...]]] = {}
        for row in elements.unpack_rows(rows):
            divided.setdefault(order.part(row[1], num_parts), []).append(row)
        for part, rows_of_part in divided.items():
            parts[part].append(elements.pack_rows(rows_of_part))
    yield from map(_open_part, filter(None, parts))


def _open_part(packed: Iterable[bytes]) -> dict[str, elements.RefColumns]:
    """Returns the references of a part of an interval by set, each set sorted."""
    sets: dict[str, list[tuple[Any, ...]]] = collections.defaultdict(list)
    for rows in packed:
        for row in elements.unpack_rows(rows):
            sets[row[0]].append(row)
    opened = {}
    for name, rows_of_set in sorted(sets.items()):
        rows_of_set.sort(key=_value_key_and_uri)
        opened[name] = elements.new_ref([*zip(*rows_of_set)][_REF:])
    return opened


def _count_bytes(refs: elements.RefColumns) -> int:
    """Returns the number of bytes read for the references of a set."""
    return elements.sum_bytes(refs.size, itertools.chain(refs.mask, itertools.chain.from_iterable(refs.further)))


def _digest(sets: Mapping[str, elements.RefColumns], order: Order) -> int:
    """Returns a digest of everything that the output depends on.

    Folders are left out, so that a moved input is the same input; `inside` is, because offset and length imply it.

    Args:
        sets: the references, in order.
        order: in which they are.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BITS // 8)
    keep_position = isinstance(order, ListedOrder)
    for name, every in sets.items():
        file_names = [uri.rpartition("/")[2] for uri in every.uri]
        masks = list(every.mask)
        if any(masks):
            masks = [mask and (mask.uri.rpartition("/")[2], mask.size, mask.version) for mask in masks]
        facts: tuple[Any, ...] = (
            name,
            every.key,
            file_names,
            every.size,
            every.version,
            every.offset,
            every.length,
            every.position if keep_position else (),
            [every.label, every.split, every.group, every.columns],
            masks,
            every.expected,
        )
        if any(every.blocks):
            facts += (every.blocks,)
        if any(every.further):
            facts += ([[image.facts for image in further] for further in every.further],)
        digest.update(repr(facts).encode("utf-8", "backslashreplace"))
    return int.from_bytes(digest.digest(), "big")


def _find_duplicates(sets: Mapping[str, elements.RefColumns]) -> list[summaries.RepeatedKey]:
    """Returns the keys that occur more than once, each with its first two references."""
    keys = [key for refs in sets.values() for key in refs.key]
    if len(set(keys)) == len(keys):  # nearly always
        return []
    places: dict[str, list[tuple[int, str]]] = {}
    for refs in sets.values():
        for key, position, uri in zip(refs.key, refs.position, refs.uri):
            places.setdefault(key, []).append((position, uri))
    repeated = []
    for key, found in places.items():
        if len(found) > 1:
            (one, uri), (other, other_uri) = sorted(found)[:2]
            repeated.append(summaries.RepeatedKey(key, (uri, other_uri), (one, other)))
    return sorted(repeated)


class _MergeSummariesFn(beam.DoFn):
    """Base of what summarizes intervals: yields one PartialRanking for all of a bundle."""

    def start_bundle(self) -> None:
        self._ranking = PartialRanking()

    def finish_bundle(self) -> Iterator[Any]:
        yield beam.pvalue.TaggedOutput("rankings", window.GlobalWindows.windowed_value(self._ranking))


class _SortFn(_MergeSummariesFn):
    """An interval -> the sorted runs of each set in it; PartialRanking."""

    def __init__(self, order: Order, max_plain_bytes: int):
        self._order = order
        self._max_plain_bytes = max_plain_bytes  # of a run that is not compressed

    def process(self, element: tuple[int, Iterable[PackedRows]]) -> Iterator[Any]:
        interval, packed = element
        num_before: collections.Counter[str] = collections.Counter()
        for sets in open_interval(packed, self._order):
            for name, refs in sets.items():
                num_refs = len(refs.key)
                yield name, interval, num_before[name], num_refs, elements.pack_columns(refs, self._max_plain_bytes)
                num_before[name] += num_refs
            self._ranking.add(self._summarize(interval, sets))

    def _summarize(self, interval: int, sets: Mapping[str, elements.RefColumns]) -> IntervalSummary:
        duplicates = _find_duplicates(sets) if isinstance(self._order, HashOrder) else []
        return IntervalSummary(
            interval,
            {name: len(refs.key) for name, refs in sets.items()},
            {name: _count_bytes(refs) for name, refs in sets.items()},
            {name: frozenset(elements.all_classes(refs.label)) for name, refs in sets.items()},
            _digest(sets, self._order),
            tuple(duplicates[:MAX_DUPLICATES]),
            len(duplicates),
            recorded_inputs.checksum_images(list(sets.values()), isinstance(self._order, ListedOrder)),
        )


class _FindDuplicatesFn(_MergeSummariesFn):
    """An interval of `_BY_KEY` -> PartialRanking of its duplicates alone."""

    def process(self, element: tuple[int, Iterable[PackedRows]]) -> None:
        interval, packed = element
        for sets in open_interval(packed, _BY_KEY):
            found = _find_duplicates(sets)
            self._ranking.add(IntervalSummary(interval, {}, {}, {}, 0, tuple(found[:MAX_DUPLICATES]), len(found)))


def first_rank(run: SortedRun, ranking: summaries.Ranking) -> int:
    """Returns the rank of the first reference of a run inside its set."""
    name, interval, num_before, _, _ = run
    return ranking.start(name, interval) + num_before


def key_by(
    refs: beam.PCollection[ref_batches.RefBatch], label: str, set_of: Callable[[elements.ImageRef], str]
) -> beam.PCollection[KeyedRefs]:
    """Divides batches of references into those of each set."""
    divided = refs | label >> beam.FlatMap(_divide, set_of=set_of).with_output_types(KeyedRefs)
    return ref_batches.typed(divided, KeyedRefs)


def _divide(refs: ref_batches.RefBatch, set_of: Callable[[elements.ImageRef], str]) -> Iterable[KeyedRefs]:
    sets: dict[str, ref_batches.RefBatch] = {}
    for ref in refs:
        sets.setdefault(set_of(ref), ref_batches.RefBatch()).append(ref)
    return sets.items()


@decorators.with_input_types(KeyedRefs)
@dataclasses.dataclass
class RankReferences(beam.PTransform):
    """Yields sorted runs of references, and from where in its set each interval begins.

    References with the same hash stay in one run, next to each other.
    """

    order: Order

    def __post_init__(self) -> None:
        super().__init__()

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
        sorted_ = intervals | "SortIntervals" >> beam.ParDo(_SortFn(self.order, _max_plain_bytes())).with_output_types(
            SortedRun, rankings=PartialRanking
        ).with_outputs("rankings", main="runs")
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


@decorators.with_input_types(ref_batches.RefBatch)
@dataclasses.dataclass
class RankInSplits(beam.PTransform):
    """Ranks every reference inside its split."""

    order: Order

    def __post_init__(self) -> None:
        super().__init__()

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, refs: beam.PCollection[ref_batches.RefBatch]) -> RankedReferences:
        keyed = key_by(refs, "KeyBySplit", _split_of)  # (split, RefBatch)
        return keyed | "RankReferences" >> RankReferences(self.order)
