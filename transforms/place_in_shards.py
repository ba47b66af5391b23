"""Places ranked references in the shards of the plan."""

import dataclasses
from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.typehints import decorators

from imagebeam.transforms import elements, rank_references, sort_intervals, step, summaries

ShardKey = tuple[str, int]  # split, shard index
PackedRun = tuple[int, bytes]  # first rank, packed references
PlacedShard = tuple[ShardKey, Iterable[PackedRun]]


class _CutIntoShardsFn(beam.DoFn):
    """A sorted run -> (shard, part of the run)."""

    def process(
        self, run: sort_intervals.SortedRun, plan: elements.DatasetPlan, ranking: summaries.Ranking
    ) -> Iterator[tuple[ShardKey, PackedRun]]:
        if plan.action != "write":
            return
        split, _, _, num_refs, packed = run
        planned, start = plan.splits[split], rank_references.first_rank(run, ranking)
        end, first_shard = start + num_refs, planned.shard_of(start)
        if end <= planned.shard_start(first_shard + 1):
            yield (split, first_shard), (start, packed)
            return
        refs, rank = elements.unpack_refs(packed), start
        while rank < end:
            shard_index = planned.shard_of(rank)
            stop = min(end, planned.shard_start(shard_index + 1))
            yield (split, shard_index), (rank, elements.pack_refs(refs[rank - start : stop - start]))
            rank = stop


def _every_shard(plan: elements.DatasetPlan) -> Iterator[tuple[ShardKey, PackedRun]]:
    """Yields an empty run for every planned shard, so that a shard without images is written too."""
    if plan.action == "write":
        for split, planned in plan.splits.items():
            for shard_index in range(planned.num_shards):
                yield (split, shard_index), (planned.shard_start(shard_index), b"")


@decorators.with_input_types(sort_intervals.SortedRun)
@dataclasses.dataclass
class PlaceInShards(step.Step):
    """Sorted runs -> the references of each planned shard: equal to within one in every split.

    A shard is a run of consecutive ranks in the order of the keys' hashes, so its content depends on the set of keys
    and the number of shards alone.
    """

    plan: beam.PCollection[elements.DatasetPlan]  # one element
    ranking: beam.PCollection[summaries.Ranking]  # one element

    def expand(self, runs: beam.PCollection[sort_intervals.SortedRun]) -> beam.PCollection[PlacedShard]:
        part_type = tuple[ShardKey, PackedRun]
        parts = runs | "CutIntoShards" >> beam.ParDo(
            _CutIntoShardsFn(),
            plan=beam.pvalue.AsSingleton(self.plan),
            ranking=beam.pvalue.AsSingleton(self.ranking),
        ).with_output_types(part_type)
        every = self.plan | "EveryShard" >> beam.FlatMap(_every_shard).with_output_types(part_type)
        return (parts, every) | "WithEmptyShards" >> beam.Flatten() | "GroupShards" >> beam.GroupByKey()
