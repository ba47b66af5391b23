"""Places references in shards: the plan of the dataset, then the references of each shard in their order."""

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.typehints import decorators

from imagebeam import storage
from imagebeam.transforms import elements, kept_features, labels_by_index, list_images, rank_references
from imagebeam.transforms import layout as layout_lib

PURPOSE = b"imagebeam.order"

ShardKey = tuple[str, int]  # split, shard index
PackedRun = tuple[int, bytes]  # first rank, packed references

_MAX_PROBLEMS = 5  # named in the error


class PlacedImages(NamedTuple):
    """What PlaceInShards yields."""

    plan: beam.PCollection[elements.DatasetPlan]  # one element
    shards: beam.PCollection[tuple[ShardKey, Iterable[PackedRun]]]  # every planned shard, also an empty one


class _TakeStockFn(beam.CombineFn):
    """Tallies and rejects, all that was found -> (Tally, RejectSummary). One combine: each costs 30 ms of start-up."""

    def create_accumulator(self) -> "_Stock":
        return _Stock()

    def add_input(self, stock: "_Stock", element: Any) -> "_Stock":
        if isinstance(element, elements.Reject):
            stock.add_reject(element)
        else:
            stock.add_tally(element)
        return stock

    def merge_accumulators(self, stocks: Iterable["_Stock"]) -> "_Stock":
        merged = _Stock()
        for stock in stocks:
            merged.merge(stock)
        return merged

    def extract_output(self, stock: "_Stock") -> tuple[list_images.Tally, layout_lib.RejectSummary]:
        tally = list_images.Tally(
            stock.listed,
            dict(sorted(stock.passed_over.items())),
            tuple(sorted(stock.problems)[:_MAX_PROBLEMS]),
            stock.lists,
            stock.features,
        )
        rejected = dict(sorted(stock.rejected.items()))
        return tally, layout_lib.RejectSummary(rejected, stock.digest, stock.first_unknown_label, stock.first)


@dataclasses.dataclass
class _Stock:
    """What was found so far; the order in which it was found leaves no trace."""

    listed: int = 0
    passed_over: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    problems: set[str] = dataclasses.field(default_factory=set)
    lists: labels_by_index.ListSurvey = labels_by_index.NO_LISTS
    features: kept_features.FeatureSurvey = kept_features.NO_FEATURES
    rejected: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    digest: int = 0
    first_unknown_label: elements.Reject | None = None  # by key
    first: elements.Reject | None = None  # by key

    def add_tally(self, tally: list_images.Tally) -> None:
        self.listed += tally.listed
        self.passed_over.update(tally.passed_over)
        self.problems.update(tally.problems)
        self.lists = self.lists.merge(tally.lists)
        self.features = self.features.merge(tally.features)

    def add_reject(self, reject: elements.Reject) -> None:
        self.rejected[reject.reason.value] += 1
        identity = repr((reject.key, reject.stage, reject.reason.value)).encode("utf-8", "backslashreplace")
        self._add_digest(int.from_bytes(hashlib.blake2b(identity, digest_size=16).digest(), "big"))
        self.first = _first(self.first, reject)
        if reject.reason is elements.Reason.UNKNOWN_LABEL:
            self.first_unknown_label = _first(self.first_unknown_label, reject)

    def merge(self, other: "_Stock") -> None:
        self.listed += other.listed
        self.passed_over.update(other.passed_over)
        self.problems.update(other.problems)
        self.lists = self.lists.merge(other.lists)
        self.features = self.features.merge(other.features)
        self.rejected.update(other.rejected)
        self._add_digest(other.digest)
        self.first = _first(self.first, other.first)
        self.first_unknown_label = _first(self.first_unknown_label, other.first_unknown_label)

    def _add_digest(self, digest: int) -> None:
        self.digest = (self.digest + digest) % (1 << 128)


def _first(one: elements.Reject | None, other: elements.Reject | None) -> elements.Reject | None:
    return min((reject for reject in (one, other) if reject is not None), default=None)


class _PlanFn(beam.DoFn):
    """-> DatasetPlan, and a report of it for whoever watches the run."""

    def __init__(self, layout: layout_lib.DatasetLayout):
        self._layout = layout

    def process(
        self, _: bytes, ranking: rank_references.Ranking, stock: tuple[list_images.Tally, layout_lib.RejectSummary]
    ) -> Iterator[elements.DatasetPlan]:
        plan = self._layout.plan(ranking, *stock)
        if self._layout.report:
            report = layout_lib.encode_report("planned", plan)
            storage.storage_of(self._layout.report).write_whole(self._layout.report, report, durable=False)
        yield plan


class RememberInputsFn(beam.DoFn):
    """Keeps beside the staged shards what they are made of, before the first of them is written."""

    def __init__(self, layout: layout_lib.DatasetLayout):
        self._layout = layout

    def process(self, plan: elements.DatasetPlan) -> Iterator[None]:
        if plan.action == "write":
            layout_lib.write_inputs(self._layout, plan)
        yield from ()


class _CutIntoShardsFn(beam.DoFn):
    """(split, run) -> (shard, part of the run)."""

    def process(
        self, element: tuple[str, elements.ReferenceRun], plan: elements.DatasetPlan
    ) -> Iterator[tuple[ShardKey, PackedRun]]:
        if plan.action != "write":
            return
        split, run = element
        planned = plan.splits[split]
        start, end = run.first_rank, run.first_rank + run.num_refs
        first_shard = planned.shard_of(start)
        if end <= planned.shard_start(first_shard + 1):
            yield (split, first_shard), (start, run.packed)
            return
        refs, rank_ = run.refs, start
        while rank_ < end:
            shard_index = planned.shard_of(rank_)
            stop = min(end, planned.shard_start(shard_index + 1))
            yield (split, shard_index), (rank_, elements.pack_refs(refs[rank_ - start : stop - start]))
            rank_ = stop


def _every_shard(plan: elements.DatasetPlan) -> Iterator[tuple[ShardKey, PackedRun]]:
    """A run of nothing for every planned shard, so that an empty one is written too."""
    if plan.action == "write":
        for split, planned in plan.splits.items():
            for shard_index in range(planned.num_shards):
                yield (split, shard_index), (planned.shard_start(shard_index), b"")


def _key_by_split(ref: elements.ImageRef) -> rank_references.KeyedRef:
    return ref.split, ref


@decorators.with_input_types(elements.ImageRef)
@dataclasses.dataclass
class PlaceInShards(beam.PTransform):
    """Plans the dataset, and yields the references of each shard: equal to within one in every split.

    A shard is a run of consecutive ranks in the order of the keys' hashes, so what it holds depends on the set of keys
    and the number of shards alone.
    """

    layout: layout_lib.DatasetLayout
    order: rank_references.Order
    tallies: Any  # PCollection[Tally]
    rejects: Any  # PCollection[Reject]

    def __post_init__(self) -> None:
        super().__init__()

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, refs: beam.PCollection[elements.ImageRef]) -> PlacedImages:
        ranked = (
            refs
            | "KeyBySplit" >> beam.Map(_key_by_split).with_output_types(rank_references.KeyedRef)
            | "RankInSplits" >> rank_references.RankReferences(self.order)
        )
        found = (self.tallies, self.rejects) | "Found" >> beam.Flatten()  # Tally | Reject
        stock = found | "TakeStock" >> beam.CombineGlobally(_TakeStockFn())
        plan = (
            refs.pipeline
            | "StartPlan" >> beam.Impulse()
            | "Plan"
            >> beam.ParDo(
                _PlanFn(self.layout),
                ranking=beam.pvalue.AsSingleton(ranked.ranking),
                stock=beam.pvalue.AsSingleton(stock),
            ).with_output_types(elements.DatasetPlan)
        )
        placed_type = tuple[ShardKey, PackedRun]
        runs = ranked.runs | "CutIntoShards" >> beam.ParDo(
            _CutIntoShardsFn(), plan=beam.pvalue.AsSingleton(plan)
        ).with_output_types(placed_type)
        every = plan | "EveryShard" >> beam.FlatMap(_every_shard).with_output_types(placed_type)
        shards = (runs, every) | "WithEmptyShards" >> beam.Flatten() | "GroupShards" >> beam.GroupByKey()
        return PlacedImages(plan, shards)
