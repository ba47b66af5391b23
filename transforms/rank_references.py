"""Ranks references inside partitions, without a sort in one place.

References are spread over buckets by their order value; each bucket is sorted alone, and the counts of all buckets, one
small side input, say at which rank each bucket starts. So the ranks depend on the set of references alone, never on
listing order, bundles or workers.
"""

import array
import bisect
import collections
import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.transforms import window
from apache_beam.typehints import decorators
from apache_beam.utils import windowed_value

from imagebeam.transforms import elements, hashing, recorded_inputs

NUM_BUCKETS = 1024  # 100 million references are 100,000 a bucket, sorted in 0.2 s and 60 MB
_NUM_SAMPLED = 16 * NUM_BUCKETS  # references whose order values bound the buckets of ListedOrder
_MAX_PENDING = 50_000  # references held by a bundle before it packs them: 30 MB
_MAX_DUPLICATES = 5  # named in the ranking
_FINGERPRINT_BITS = 128

KeyedRef = tuple[str, elements.ImageRef]  # partition, reference
SortedRun = tuple[str, int, int, bytes]  # partition, bucket, number of references, packed references


@dataclasses.dataclass(frozen=True)
class HashOrder:
    """Orders by the hash of a field of the reference, then by key."""

    seed: int
    purpose: bytes
    field: str = "key"

    def value(self, ref: elements.ImageRef) -> Any:
        """A hash, 0 to 2**64."""
        return hashing.hash64(getattr(ref, self.field) or ref.key, self.seed, self.purpose)

    def bucket(self, value: Any, boundaries: Sequence[Any]) -> int:
        """Buckets are equal parts of the hashes' range, `boundaries` are not needed."""
        return value * NUM_BUCKETS >> hashing.HASH_BITS


@dataclasses.dataclass(frozen=True)
class ListedOrder:
    """Orders by the row of the manifest, then by key; buckets end at quantiles of a sample."""

    def value(self, ref: elements.ImageRef) -> Any:
        """Row and key, the key as bytes: Beam writes a plain tuple's strings as UTF-8, which a file name may not be."""
        return ref.position, hashing.encode_key(ref.key)

    def bucket(self, value: Any, boundaries: Sequence[Any]) -> int:
        """Bucket i ends before boundary i, the last one holds the rest."""
        return bisect.bisect_right(boundaries, value)

    def sample(self, element: KeyedRef) -> tuple[int, Any]:
        """The order value behind a hash: those of the smallest hashes are a sample that the set alone decides."""
        _, ref = element
        return hashing.hash64(ref.key, 0, b"imagebeam.sample") >> 1, self.value(ref)  # Beam's integers are signed

    @staticmethod
    def boundaries(sample: Sequence[tuple[int, Any]]) -> list[Any]:
        """The ends of all buckets but the last, at most NUM_BUCKETS - 1 of them."""
        values = sorted(value for _, value in sample)
        step = max(1, -(-len(values) // NUM_BUCKETS))
        return values[step::step]


Order = HashOrder | ListedOrder

_BY_KEY = HashOrder(0, b"imagebeam.key")


class RepeatedKey(NamedTuple):
    """A key of several references, and where the first two of them come from."""

    key: str
    uris: tuple[str, str]
    positions: tuple[int, int]  # in the table, if there is one


class BucketSummary(NamedTuple):
    """What one bucket holds."""

    bucket: int
    counts: Mapping[str, int]  # records by partition
    num_bytes: Mapping[str, int]  # of the images by partition, as far as known
    classes: Mapping[str, frozenset[str]]  # names by partition
    digest: int  # of all references in the bucket
    duplicates: tuple[RepeatedKey, ...]  # the first of them
    num_duplicates: int  # all of them
    sample: recorded_inputs.ImageSample = recorded_inputs.NO_IMAGES


class Ranking(NamedTuple):
    """All summaries together: at which rank each bucket of each partition starts."""

    buckets: Mapping[str, Sequence[int]]  # by partition: those that hold any of it, ascending
    starts: Mapping[str, Sequence[int]]  # by partition: the rank at which each of those starts, and last the total
    num_bytes: Mapping[str, int]
    labels: tuple[str, ...]  # sorted
    digest: int
    duplicates: tuple[RepeatedKey, ...]  # the first of them
    classes: Mapping[str, frozenset[str]] = {}  # by partition: those of `labels` that it holds
    num_duplicates: int = 0  # keys that occur more than once
    sample: recorded_inputs.ImageSample = recorded_inputs.NO_IMAGES

    def start(self, partition: str, bucket: int) -> int:
        return self.starts[partition][bisect.bisect_left(self.buckets[partition], bucket)]

    def total(self, partition: str) -> int:
        return self.starts[partition][-1]


class RankedReferences(NamedTuple):
    """What RankReferences yields."""

    runs: beam.PCollection[tuple[str, elements.ReferenceRun]]
    ranking: beam.PCollection[Ranking]  # one element


class _SpreadFn(beam.DoFn):
    """(partition, reference) -> (bucket, packed rows of partition, order value and reference)."""

    def __init__(self, order: Order):
        self._order = order
        self._pending: dict[int, list[tuple[Any, ...]]] = {}
        self._num_pending = 0

    def start_bundle(self) -> None:
        self._pending, self._num_pending = collections.defaultdict(list), 0

    def process(self, element: KeyedRef, boundaries: Sequence[Any] = ()) -> Iterator[tuple[int, bytes]]:
        partition, ref = element
        value = self._order.value(ref)
        self._pending[self._order.bucket(value, boundaries)].append((partition, value, *ref))
        self._num_pending += 1
        if self._num_pending >= _MAX_PENDING:
            yield from self._take()

    def finish_bundle(self) -> Iterator[windowed_value.WindowedValue]:
        for packed in self._take():
            yield window.GlobalWindows.windowed_value(packed)

    def _take(self) -> Iterator[tuple[int, bytes]]:
        pending, self._pending, self._num_pending = self._pending, collections.defaultdict(list), 0
        for bucket, rows in pending.items():
            yield bucket, elements.pack_rows(rows)


@dataclasses.dataclass
class _GroupInBuckets(beam.PTransform):
    """(partition, reference) -> (bucket, [packed rows])."""

    order: Order
    boundaries: Any = None  # PCollection of one list, for ListedOrder

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, refs: beam.PCollection[KeyedRef]) -> beam.PCollection[tuple[int, Iterable[bytes]]]:
        side_inputs = {} if self.boundaries is None else {"boundaries": beam.pvalue.AsSingleton(self.boundaries)}
        spread = beam.ParDo(_SpreadFn(self.order), **side_inputs).with_output_types(tuple[int, bytes])
        return refs | "Spread" >> spread | "Group" >> beam.GroupByKey()


def _open_bucket(packed: Iterable[bytes]) -> dict[str, list[elements.ImageRef]]:
    """The references of a bucket by partition, each in its order."""
    partitions: dict[str, list[tuple[Any, elements.ImageRef]]] = {}
    for rows in packed:
        for partition, value, *fields in elements.unpack_rows(rows):
            partitions.setdefault(partition, []).append((value, elements.ImageRef(*fields)))
    for valued in partitions.values():
        valued.sort(key=_by_value_and_key)
    return {partition: [ref for _, ref in valued] for partition, valued in sorted(partitions.items())}


def _by_value_and_key(valued: tuple[Any, elements.ImageRef]) -> tuple[Any, str, str]:
    value, ref = valued
    return value, ref.key, ref.uri


def _digest(partitions: Mapping[str, Sequence[elements.ImageRef]], order: Order) -> int:
    """Of all that the output depends on; folders are left out, so that a moved input is the same input."""
    digest = hashlib.blake2b(digest_size=_FINGERPRINT_BITS // 8)
    keep_position = isinstance(order, ListedOrder)
    for partition, refs in partitions.items():
        keys, uris, sizes, mtimes, offsets, lengths, positions, *known, masks, expected, _ = zip(*refs)
        names = [uri.rpartition("/")[2] for uri in uris]  # the rest of the address is left out
        placed = positions if keep_position else ()
        looks = [mask and (mask.uri.rpartition("/")[2], mask.size, mask.version) for mask in masks]
        facts = (partition, keys, names, sizes, mtimes, offsets, lengths, placed, known, looks, expected)
        digest.update(repr(facts).encode("utf-8", "backslashreplace"))
    return int.from_bytes(digest.digest(), "big")


def _find_duplicates(partitions: Mapping[str, Sequence[elements.ImageRef]]) -> list[RepeatedKey]:
    """The keys that occur more than once, each with the first two places."""
    keys = [ref.key for refs in partitions.values() for ref in refs]
    if len(set(keys)) == len(keys):  # nearly always
        return []
    places: dict[str, list[tuple[int, str]]] = {}
    for refs in partitions.values():
        for ref in refs:
            places.setdefault(ref.key, []).append((ref.position, ref.uri))
    repeated = []
    for key, found in places.items():
        if len(found) > 1:
            (one, uri), (other, other_uri) = sorted(found)[:2]
            repeated.append(RepeatedKey(key, (uri, other_uri), (one, other)))
    return sorted(repeated)


class _SortFn(beam.DoFn):
    """A bucket -> the sorted run of each partition in it; and the bucket's summary."""

    def __init__(self, order: Order):
        self._order = order

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[Any]:
        bucket, packed = element
        partitions = _open_bucket(packed)
        for partition, refs in partitions.items():
            yield partition, bucket, len(refs), elements.pack_refs(refs)
        duplicates = _find_duplicates(partitions) if isinstance(self._order, HashOrder) else []
        summary = BucketSummary(
            bucket,
            {name: len(refs) for name, refs in partitions.items()},
            {name: sum(ref.num_bytes for ref in refs) for name, refs in partitions.items()},
            {name: frozenset(label for ref in refs for label in ref.classes) for name, refs in partitions.items()},
            _digest(partitions, self._order),
            tuple(duplicates[:_MAX_DUPLICATES]),
            len(duplicates),
            recorded_inputs.sample_images(
                [ref for refs in partitions.values() for ref in refs], isinstance(self._order, ListedOrder)
            ),
        )
        yield beam.pvalue.TaggedOutput("summaries", summary)


class _FindDuplicatesFn(beam.DoFn):
    """A bucket of `_BY_KEY` -> the summary of its duplicates alone."""

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[BucketSummary]:
        bucket, packed = element
        duplicates = _find_duplicates(_open_bucket(packed))
        yield BucketSummary(bucket, {}, {}, {}, 0, tuple(duplicates[:_MAX_DUPLICATES]), len(duplicates))


@dataclasses.dataclass
class _Merged:
    """Summaries so far. A class: Beam writes the strings of a plain list as UTF-8, which a file name may not be."""

    counts: dict[str, dict[int, int]] = dataclasses.field(default_factory=dict)  # by partition and bucket
    num_bytes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    classes: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    digest: int = 0
    duplicates: tuple[RepeatedKey, ...] = ()
    num_duplicates: int = 0
    samples: list[recorded_inputs.ImageSample] = dataclasses.field(default_factory=list)

    def add(self, summary: BucketSummary) -> None:
        for partition, count in summary.counts.items():
            self.counts.setdefault(partition, {})[summary.bucket] = count
        self._add_sums(summary)
        self.samples.append(summary.sample)

    def merge(self, other: "_Merged") -> None:
        for partition, by_bucket in other.counts.items():
            self.counts.setdefault(partition, {}).update(by_bucket)
        self._add_sums(other)
        self.samples += other.samples

    def _add_sums(self, other: "BucketSummary | _Merged") -> None:
        self.num_bytes.update(other.num_bytes)
        for partition, names in other.classes.items():
            self.classes.setdefault(partition, set()).update(names)
        self.digest = (self.digest + other.digest) % (1 << _FINGERPRINT_BITS)
        self.duplicates = tuple(sorted((*self.duplicates, *other.duplicates))[:_MAX_DUPLICATES])
        self.num_duplicates += other.num_duplicates


class _MergeSummariesFn(beam.CombineFn):
    """Bucket summaries -> Ranking."""

    def create_accumulator(self) -> _Merged:
        return _Merged()

    def add_input(self, merged: _Merged, summary: BucketSummary) -> _Merged:
        merged.add(summary)
        return merged

    def merge_accumulators(self, accumulators: Iterable[_Merged]) -> _Merged:
        merged = _Merged()
        for each in accumulators:
            merged.merge(each)
        return merged

    def extract_output(self, merged: _Merged) -> Ranking:
        buckets, starts = {}, {}
        for partition, by_bucket in sorted(merged.counts.items()):
            buckets[partition] = array.array("H", sorted(by_bucket))
            ranks = itertools.accumulate((by_bucket[bucket] for bucket in buckets[partition]), initial=0)
            starts[partition] = array.array("Q", ranks)
        classes = {partition: frozenset(names) for partition, names in sorted(merged.classes.items())}
        labels = tuple(sorted(frozenset().union(*classes.values())))
        return Ranking(
            buckets,
            starts,
            dict(merged.num_bytes),
            labels,
            merged.digest,
            merged.duplicates,
            classes,
            merged.num_duplicates,
            recorded_inputs.NO_IMAGES.merge(merged.samples),
        )


class _RankFn(beam.DoFn):
    """A sorted run -> the run with its rank."""

    def process(self, element: SortedRun, ranking: Ranking) -> Iterator[tuple[str, elements.ReferenceRun]]:
        partition, bucket, num_refs, packed = element
        yield partition, elements.ReferenceRun(ranking.start(partition, bucket), num_refs, packed)


@decorators.with_input_types(KeyedRef)
@dataclasses.dataclass
class RankReferences(beam.PTransform):
    """Yields runs of references, each with the rank of its first one inside its partition.

    References with the same hash stay in one run and follow each other.
    """

    order: Order

    def __post_init__(self) -> None:
        super().__init__()

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, refs: beam.PCollection[KeyedRef]) -> RankedReferences:
        boundaries = None
        if isinstance(self.order, ListedOrder):
            boundaries = (
                refs
                | "Sample" >> beam.Map(self.order.sample)
                | "TakeSample" >> beam.combiners.Top.Smallest(_NUM_SAMPLED)
                | "Boundaries" >> beam.Map(self.order.boundaries)
            )
        buckets = refs | "GroupInBuckets" >> _GroupInBuckets(self.order, boundaries)  # (bucket, [packed rows])
        sorted_ = buckets | "SortBuckets" >> beam.ParDo(_SortFn(self.order)).with_output_types(
            SortedRun, summaries=BucketSummary
        ).with_outputs("summaries", main="runs")
        summaries = sorted_.summaries
        if isinstance(self.order, ListedOrder):  # whose buckets do not bring the rows of one key together
            duplicates = (
                refs
                | "GroupByKeyHash" >> _GroupInBuckets(_BY_KEY)  # (bucket, [packed rows])
                | "FindDuplicates" >> beam.ParDo(_FindDuplicatesFn()).with_output_types(BucketSummary)
            )
            summaries = (summaries, duplicates) | "AllSummaries" >> beam.Flatten()
        ranking = summaries | "MergeSummaries" >> beam.CombineGlobally(_MergeSummariesFn())
        runs = sorted_.runs | "RankRuns" >> beam.ParDo(
            _RankFn(), ranking=beam.pvalue.AsSingleton(ranking)
        ).with_output_types(tuple[str, elements.ReferenceRun])
        return RankedReferences(runs, ranking)
