from __future__ import annotations

import pickle
import random
from collections.abc import Sequence

import apache_beam as beam
import pytest
from apache_beam.runners.portability import fn_api_runner
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that

from imagebeam import catalog
from imagebeam.transforms.commit import commit_dataset, commit_step
from imagebeam.transforms.elements import WrittenShard
from imagebeam.transforms.shard import statistics


def make_shards(num_shards: int) -> list[WrittenShard]:
    """Shards of two splits; some hold no image, and one class has a name that is no UTF-8."""
    rng = random.Random(num_shards)
    shards = []
    for index in range(num_shards):
        labels = {name: rng.randrange(1, 5) for name in rng.sample(["cat", "dog", "caf\udce9", "eel"], index % 4)}
        counts = statistics.StatisticsBuilder().build() | {"labels": labels, "formats": {"jpeg": 3} if labels else {}}
        if labels:
            counts["height"] = {"min": rng.randrange(9), "max": 9 + index, "sum": index}
            counts["pixels"] = {"images": 1, "num_pixels": 2, "totals": [index, 1, 1], "squares": [1, 2, 2**70]}
        shard = catalog.Shard(f"{index:05d}", index, 10, 1)
        shards.append(WrittenShard("train" if index % 3 else "test", shard, {"corrupt": 1}, counts, index % 2 == 0))
    return shards


@pytest.mark.parametrize("num_shards", [0, 40])
def test_statistics_are_merged_by_split_and_taken_out_of_the_shards(num_shards: int) -> None:
    shards = make_shards(num_shards)

    def check_statistics(found: Sequence[commit_step.SplitStatistics]) -> None:
        assert len(found) == len({split for split, _ in found})
        merged = commit_step.unpack_by_split(dict(found))
        assert merged == commit_dataset.merge_by_split(shards)
        for split, counts in merged.items():
            assert counts == statistics.merge_statistics(each.statistics for each in shards if each.split == split)
            assert list(counts["labels"]) == sorted(counts["labels"])

    def check_written(found: Sequence[WrittenShard]) -> None:
        expected = [each._replace(statistics={}) for each in shards]
        assert sorted(found, key=lambda each: each.shard.name) == expected

    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        created = pipeline | beam.Create(shards).with_output_types(WrittenShard)
        merged = created | commit_step.MergeStatistics()
        assert_that(merged.statistics, check_statistics, label="Statistics")
        assert_that(merged.written, check_written, label="Written")


def test_shard_on_the_way_to_the_commit_is_small_whatever_it_holds() -> None:
    counts = {"labels": {f"class {index}": index for index in range(20_000)}}
    (written, tagged) = commit_step._take_statistics(
        WrittenShard("train", catalog.Shard("train-00000-of-00001.tfrecord", 1, 1, 1), {}, counts)
    )
    assert len(pickle.dumps(written)) < 500
    assert pickle.loads(tagged.value[1]) == counts


def test_merging_in_any_grouping_is_the_same() -> None:
    shards = make_shards(30)
    expected = commit_dataset.merge_by_split(shards)
    rng = random.Random(1)
    merge = beam.CombineFn.from_callable(commit_step._merge_pickled)
    for _ in range(20):
        rng.shuffle(shards)
        parts = [merge.create_accumulator() for _ in range(4)]
        for each in shards:
            if each.split == "train":
                index = rng.randrange(4)
                parts[index] = merge.add_input(parts[index], pickle.dumps(each.statistics))
        assert pickle.loads(merge.extract_output(merge.merge_accumulators(parts))) == expected["train"]
