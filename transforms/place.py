"""Places references in shards: the plan of the dataset, then the references of each shard in their order."""


import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam

from imagebeam import storage
from transforms import layout as layout_lib
from transforms import list as list_lib
from transforms import rank, references

PURPOSE = b"imagebeam.order"

ShardKey = tuple[str, int]  # split, shard index
PackedRun = tuple[int, bytes]  # first rank, packed references


class PlacedImages(NamedTuple):
    """What PlaceInShards yields."""

    plan: beam.PCollection[references.DatasetPlan]  # one element
    shards: beam.PCollection[tuple[ShardKey, Iterable[PackedRun]]]  # every planned shard, also an empty one


class _MergeTalliesFn(beam.CombineFn):
    """Tallies -> their sum."""

    def create_accumulator(self) -> list_lib.Tally:
        return list_lib.Tally(0, {}, ())

    def add_input(self, sum_: list_lib.Tally, tally: list_lib.Tally) -> list_lib.Tally:
        passed_over = collections.Counter(sum_.passed_over)
        passed_over.update(tally.passed_over)
        problems = tuple(sorted({*sum_.problems, *tally.problems}))[:5]
        return list_lib.Tally(sum_.listed + tally.listed, dict(sorted(passed_over.items())), problems)

    def merge_accumulators(self, sums: Iterable[list_lib.Tally]) -> list_lib.Tally:
        merged = self.create_accumulator()
        for sum_ in sums:
            merged = self.add_input(merged, sum_)
        return merged

    def extract_output(self, sum_: list_lib.Tally) -> list_lib.Tally:
        return sum_


class _SummarizeRejectsFn(beam.CombineFn):
    """Rejects -> RejectSummary."""

    def create_accumulator(self) -> tuple[dict[str, int], int, references.Reject | None]:
        return {}, 0, None

    def add_input(self, accumulator: Any, reject: references.Reject) -> Any:
        counts, digest, first = accumulator
        identity = repr((reject.key, reject.stage, reject.reason.value)).encode("utf-8", "backslashreplace")
        own = int.from_bytes(hashlib.blake2b(identity, digest_size=16).digest(), "big")
        unknown = reject if reject.reason is references.Reason.UNKNOWN_LABEL else None
        return self.merge_accumulators([({reject.reason.value: 1}, own, unknown), (counts, digest, first)])

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        merged: collections.Counter[str] = collections.Counter()
        total, named = 0, []
        for counts, digest, first in accumulators:
            merged.update(counts)
            total = (total + digest) % (1 << 128)
            named += [first] if first is not None else []
        return dict(sorted(merged.items())), total, min(named, default=None)

    def extract_output(self, accumulator: Any) -> layout_lib.RejectSummary:
        return layout_lib.RejectSummary(*accumulator)


class _PlanFn(beam.DoFn):
    """-> DatasetPlan, and a report of it for whoever watches the run."""

    def __init__(self, layout: layout_lib.DatasetLayout):
        self._layout = layout

    def process(
        self, _: bytes, ranking: rank.Ranking, tally: list_lib.Tally, rejects: layout_lib.RejectSummary
    ) -> Iterator[references.DatasetPlan]:
        plan = self._layout.plan(ranking, tally, rejects)
        if self._layout.report:
            report = layout_lib.encode_report("planned", plan)
            storage.storage_of(self._layout.report).write_whole(self._layout.report, report)
        yield plan


class _CutIntoShardsFn(beam.DoFn):
    """(split, run) -> (shard, part of the run)."""

    def process(
        self, element: tuple[str, references.ReferenceRun], plan: references.DatasetPlan
    ) -> Iterator[tuple[ShardKey, PackedRun]]:
        if plan.action != "write":
            return
        split, run = element
        planned = plan.splits[split]
        rank_, end = run.first_rank, run.first_rank + len(run.refs)
        while rank_ < end:
            shard_index = planned.shard_of(rank_)
            stop = min(end, planned.shard_start(shard_index + 1))
            refs = run.refs[rank_ - run.first_rank : stop - run.first_rank]
            yield (split, shard_index), (rank_, references.pack_refs(refs))
            rank_ = stop


def _every_shard(plan: references.DatasetPlan) -> Iterator[tuple[ShardKey, PackedRun]]:
    """A run of nothing for every planned shard, so that an empty one is written too."""
    if plan.action == "write":
        for split, planned in plan.splits.items():
            for shard_index in range(planned.num_shards):
                yield (split, shard_index), (planned.shard_start(shard_index), b"")


def _key_by_split(ref: references.ImageRef) -> rank.KeyedRef:
    return ref.split, ref


@dataclasses.dataclass
class PlaceInShards(beam.PTransform):
    """Plans the dataset, and yields the references of each shard: equal to within one in every split.

    A shard is a run of consecutive ranks in the order of the keys' hashes, so what it holds depends on the set of keys
    and the number of shards alone.
    """

    layout: layout_lib.DatasetLayout
    order: rank.Order
    tallies: Any  # PCollection[Tally]
    rejects: Any  # PCollection[Reject]

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, refs: beam.PCollection[references.ImageRef]) -> PlacedImages:
        ranked = (
            refs
            | "KeyBySplit" >> beam.Map(_key_by_split).with_output_types(rank.KeyedRef)
            | "RankInSplits" >> rank.RankReferences(self.order)
        )
        tally = self.tallies | "MergeTallies" >> beam.CombineGlobally(_MergeTalliesFn())
        summary = self.rejects | "SummarizeRejects" >> beam.CombineGlobally(_SummarizeRejectsFn())
        plan = (
            refs.pipeline
            | "StartPlan" >> beam.Impulse()
            | "Plan" >> beam.ParDo(
                _PlanFn(self.layout),
                ranking=beam.pvalue.AsSingleton(ranked.ranking),
                tally=beam.pvalue.AsSingleton(tally),
                rejects=beam.pvalue.AsSingleton(summary),
            ).with_output_types(references.DatasetPlan)
        )
        placed_type = tuple[ShardKey, PackedRun]
        runs = ranked.runs | "CutIntoShards" >> beam.ParDo(
            _CutIntoShardsFn(), plan=beam.pvalue.AsSingleton(plan)
        ).with_output_types(placed_type)
        every = plan | "EveryShard" >> beam.FlatMap(_every_shard).with_output_types(placed_type)
        shards = (runs, every) | "WithEmptyShards" >> beam.Flatten() | "GroupShards" >> beam.GroupByKey()
        return PlacedImages(plan, shards)
