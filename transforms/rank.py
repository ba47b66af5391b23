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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.transforms import window
from apache_beam.utils import windowed_value

from transforms import hashing, references

NUM_BUCKETS = 1024  # 100 million references are 100,000 a bucket, sorted in 0.2 s and 60 MB
_MAX_PENDING = 50_000  # references held by a bundle before it packs them: 30 MB
_MAX_DUPLICATES = 5  # named in the error
_FINGERPRINT_BITS = 128

KeyedRef = tuple[str, references.ImageRef]  # partition, reference


@dataclasses.dataclass(frozen=True)
class HashOrder:
    """Orders by the hash of a field of the reference, then by key."""

    seed: int
    purpose: bytes
    field: str = "key"

    def value(self, ref: references.ImageRef) -> Any:
        """A hash, 0 to 2**64."""
        return hashing.hash64(getattr(ref, self.field) or ref.key, self.seed, self.purpose)

    def bucket(self, value: Any, boundaries: Sequence[Any]) -> int:
        """Buckets are equal parts of the hashes' range, `boundaries` are not needed."""
        return value * NUM_BUCKETS >> hashing.HASH_BITS


@dataclasses.dataclass(frozen=True)
class ListedOrder:
    """Orders by the row of the manifest, then by key; buckets end at quantiles of what there is."""

    def value(self, ref: references.ImageRef) -> Any:
        """Row and key."""
        return ref.position, ref.key

    def bucket(self, value: Any, boundaries: Sequence[Any]) -> int:
        """Bucket i ends at boundary i."""
        return bisect.bisect_right(boundaries, value)


Order = HashOrder | ListedOrder


class BucketSummary(NamedTuple):
    """What one bucket holds."""

    bucket: int
    counts: Mapping[str, int]  # records by partition
    num_bytes: Mapping[str, int]  # of the images by partition, as far as known
    labels: frozenset[str]
    digest: int  # of all references in the bucket
    duplicates: tuple[tuple[str, str, str], ...]  # key and the two addresses that share it


class Ranking(NamedTuple):
    """All summaries together: at which rank each bucket of each partition starts."""

    starts: Mapping[str, Sequence[int]]  # by partition: NUM_BUCKETS + 1 ranks, the last is the total
    num_bytes: Mapping[str, int]
    labels: tuple[str, ...]  # sorted
    digest: int
    duplicates: tuple[tuple[str, str, str], ...]

    def total(self, partition: str) -> int:
        return self.starts[partition][-1]


class RankedReferences(NamedTuple):
    """What RankReferences yields."""

    runs: beam.PCollection[tuple[str, references.ReferenceRun]]
    ranking: beam.PCollection[Ranking]  # one element


class _SpreadFn(beam.DoFn):
    """(partition, reference) -> (bucket, packed (partition, references))."""

    def __init__(self, order: Order):
        self._order = order
        self._pending: dict[tuple[int, str], list[references.ImageRef]] = {}
        self._num_pending = 0

    def start_bundle(self) -> None:
        self._pending, self._num_pending = collections.defaultdict(list), 0

    def process(self, element: KeyedRef, boundaries: Sequence[Any] = ()) -> Iterator[tuple[int, tuple[str, bytes]]]:
        partition, ref = element
        bucket = self._order.bucket(self._order.value(ref), boundaries)
        self._pending[bucket, partition].append(ref)
        self._num_pending += 1
        if self._num_pending >= _MAX_PENDING:
            yield from self._take()

    def finish_bundle(self) -> Iterator[windowed_value.WindowedValue]:
        for packed in self._take():
            yield window.GlobalWindows.windowed_value(packed)

    def _take(self) -> Iterator[tuple[int, tuple[str, bytes]]]:
        pending, self._pending, self._num_pending = self._pending, collections.defaultdict(list), 0
        for (bucket, partition), refs in pending.items():
            yield bucket, (partition, references.pack_refs(refs))


def _open_bucket(packed: Iterable[tuple[str, bytes]], order: Order) -> dict[str, list[references.ImageRef]]:
    """The references of a bucket by partition, each in its order."""
    partitions: dict[str, list[references.ImageRef]] = {}
    for partition, batch in packed:
        partitions.setdefault(partition, []).extend(references.unpack_refs(batch))
    for refs in partitions.values():
        refs.sort(key=lambda ref: (order.value(ref), ref.key, ref.uri))
    return dict(sorted(partitions.items()))


def _digest(partitions: Mapping[str, Sequence[references.ImageRef]], order: Order) -> int:
    """Of all that the output depends on; addresses are left out, so that a moved input is the same input."""
    digest = hashlib.blake2b(digest_size=_FINGERPRINT_BITS // 8)
    keep_position = isinstance(order, ListedOrder)
    for partition, refs in partitions.items():
        for ref in refs:
            known = ref._replace(uri="", position=ref.position if keep_position else 0)
            digest.update(repr((partition, *known)).encode("utf-8", "backslashreplace"))
    return int.from_bytes(digest.digest(), "big")


def _find_duplicates(partitions: Mapping[str, Sequence[references.ImageRef]]) -> list[tuple[str, str, str]]:
    seen: dict[str, str] = {}
    duplicates = []
    for refs in partitions.values():
        for ref in refs:
            if ref.key in seen:
                duplicates.append((ref.key, seen[ref.key], ref.uri))
            seen[ref.key] = ref.uri
    return duplicates


class _SummarizeFn(beam.DoFn):
    """A bucket -> its summary."""

    def __init__(self, order: Order):
        self._order = order

    def process(self, element: tuple[int, Iterable[tuple[str, bytes]]]) -> Iterator[BucketSummary]:
        bucket, packed = element
        partitions = _open_bucket(packed, self._order)
        yield BucketSummary(
            bucket,
            {name: len(refs) for name, refs in partitions.items()},
            {name: sum(max(ref.size, 0) for ref in refs) for name, refs in partitions.items()},
            frozenset(ref.label for refs in partitions.values() for ref in refs if isinstance(ref.label, str)),
            _digest(partitions, self._order),
            tuple(sorted(_find_duplicates(partitions))[:_MAX_DUPLICATES]),
        )


class _MergeSummariesFn(beam.CombineFn):
    """Bucket summaries -> Ranking."""

    def create_accumulator(self) -> list[Any]:
        return [{}, collections.Counter(), set(), 0, []]

    def add_input(self, accumulator: list[Any], summary: BucketSummary) -> list[Any]:
        counts, num_bytes, labels, digest, duplicates = accumulator
        for partition, count in summary.counts.items():
            counts.setdefault(partition, {})[summary.bucket] = count
        num_bytes.update(summary.num_bytes)
        labels.update(summary.labels)
        digest = (digest + summary.digest) % (1 << _FINGERPRINT_BITS)
        return [counts, num_bytes, labels, digest, sorted((*duplicates, *summary.duplicates))[:_MAX_DUPLICATES]]

    def merge_accumulators(self, accumulators: Iterable[list[Any]]) -> list[Any]:
        merged = self.create_accumulator()
        for counts, num_bytes, labels, digest, duplicates in accumulators:
            for partition, buckets in counts.items():
                merged[0].setdefault(partition, {}).update(buckets)
            merged[1].update(num_bytes)
            merged[2].update(labels)
            merged[3] = (merged[3] + digest) % (1 << _FINGERPRINT_BITS)
            merged[4] = sorted((*merged[4], *duplicates))[:_MAX_DUPLICATES]
        return merged

    def extract_output(self, accumulator: list[Any]) -> Ranking:
        counts, num_bytes, labels, digest, duplicates = accumulator
        starts = {}
        for partition, buckets in sorted(counts.items()):
            starts[partition] = array.array("Q", [0])
            for bucket in range(NUM_BUCKETS):
                starts[partition].append(starts[partition][-1] + buckets.get(bucket, 0))
        return Ranking(starts, dict(num_bytes), tuple(sorted(labels)), digest, tuple(duplicates))


class _RankFn(beam.DoFn):
    """A bucket -> the run of each partition in it."""

    def __init__(self, order: Order):
        self._order = order

    def process(
        self, element: tuple[int, Iterable[tuple[str, bytes]]], ranking: Ranking
    ) -> Iterator[tuple[str, references.ReferenceRun]]:
        bucket, packed = element
        for partition, refs in _open_bucket(packed, self._order).items():
            yield partition, references.ReferenceRun(ranking.starts[partition][bucket], refs)


@dataclasses.dataclass
class RankReferences(beam.PTransform):
    """Yields runs of references, each with the rank of its first one inside its partition.

    References with the same hash stay in one run and follow each other.
    """

    order: Order

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, refs: beam.PCollection[KeyedRef]) -> RankedReferences:
        side_inputs = {}
        if isinstance(self.order, ListedOrder):
            quantiles = (
                refs
                | "OrderValues" >> beam.Map(_order_value, self.order)
                | "Quantiles" >> (beam.transforms.stats.ApproximateQuantiles.Globally(NUM_BUCKETS))
            )
            side_inputs["boundaries"] = beam.pvalue.AsSingleton(quantiles)
        buckets = (
            refs
            | "Spread"
            >> beam.ParDo(_SpreadFn(self.order), **side_inputs).with_output_types(tuple[int, tuple[str, bytes]])
            | "GroupBuckets" >> beam.GroupByKey()  # (bucket, [(partition, packed references)])
        )
        ranking = (
            buckets
            | "SummarizeBuckets" >> beam.ParDo(_SummarizeFn(self.order)).with_output_types(BucketSummary)
            | "MergeSummaries" >> beam.CombineGlobally(_MergeSummariesFn())
        )
        runs = buckets | "RankBuckets" >> beam.ParDo(
            _RankFn(self.order), ranking=beam.pvalue.AsSingleton(ranking)
        ).with_output_types(tuple[str, references.ReferenceRun])
        return RankedReferences(runs, ranking)


def _order_value(element: KeyedRef, order: Order) -> Any:
    return order.value(element[1])
