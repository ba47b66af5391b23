from __future__ import annotations

import functools
import itertools
import random
import unittest.mock
from collections.abc import Callable, Iterable, Sequence

import apache_beam as beam
import pytest
from apache_beam.options import pipeline_options
from apache_beam.runners.portability import fn_api_runner
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that

from imagebeam.transforms import elements, rank_references, sort_intervals, step, summaries
from imagebeam.transforms.elements import ImageRef
from imagebeam.transforms.shard import writer_processes
from imagebeam.transforms.sort_intervals import HashOrder, ListedOrder, Order
from imagebeam.transforms.summaries import PartialRanking, merge_rankings
from tests.unit.transforms.small_batches import Ranked, SetAndRef, in_keyed_batches, rank_plainly

BY_HASH = HashOrder(0, b"imagebeam.order")
ORDERS: dict[str, Order] = {"Hash": BY_HASH, "Listed": ListedOrder()}
RankedRun = tuple[str, int, list[ImageRef]]  # set, first rank, references


def ref(key: str, position: int = 0, **fields: object) -> ImageRef:
    return ImageRef(key, f"/data/{key}", size=100, position=position, **fields)


def keyed_refs(num_refs: int) -> list[SetAndRef]:
    """References of three sets, every tenth with a name that is no UTF-8."""
    set_names = itertools.cycle(["train", "train", "test", "caf\\xe9"])
    names = (f"{index}\udcff.jpg" if index % 10 == 0 else f"{index}.jpg" for index in range(num_refs))
    return [(set_name, ref(name, position=index // 2)) for index, (name, set_name) in enumerate(zip(names, set_names))]


def create(refs: Sequence[SetAndRef], reshuffle: bool = False) -> beam.PTransform:
    batches = in_keyed_batches(refs)
    return beam.Create(batches, reshuffle=reshuffle).with_output_types(rank_references.KeyedRefs)


def runs_of(ranked: rank_references.RankedReferences, label: str = "Run") -> beam.PCollection[RankedRun]:
    """The runs of references, each with its first rank."""

    def rank(run: sort_intervals.SortedRun, rankings: Iterable[PartialRanking]) -> RankedRun:
        return run[0], rank_references.first_rank(run, merge_rankings(rankings)), elements.unpack_refs(run[-1])

    ranks = beam.Map(rank, beam.pvalue.AsIter(ranked.rankings)).with_output_types(RankedRun)
    return ranked.runs | label >> ranks


def join_runs(runs: Iterable[RankedRun]) -> Ranked:
    """The references of each set by rank, every rank taken once."""
    ranked: Ranked = {}
    for set_name, first_rank, refs in sorted(runs, key=lambda run: run[:2]):
        before = ranked.setdefault(set_name, [])
        assert first_rank == len(before)
        before += refs
    return ranked


def check_runs(expected: Ranked) -> Callable[[Sequence[RankedRun]], None]:
    def check(runs: Sequence[RankedRun]) -> None:
        assert join_runs(runs) == expected

    return check


def check_totals(expected: Ranked) -> Callable[[Sequence[PartialRanking]], None]:
    def check(rankings: Sequence[PartialRanking]) -> None:
        ranking = merge_rankings(rankings)
        assert {name: ranking.total(name) for name in ranking.starts} == {
            name: len(expected[name]) for name in expected
        }
        assert ranking.num_bytes == {name: 100 * len(refs) for name, refs in expected.items()}

    return check


_digests: dict[tuple[str, int], set[int]] = {}  # by _keep_digest, in the threads of the runner


def _keep_digest(key: tuple[str, int], rankings: Iterable[PartialRanking]) -> None:
    _digests.setdefault(key, set()).add(merge_rankings(rankings).digest)


def test_rank_references_yields_every_rank_once_whatever_the_order_and_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sort_intervals, "NUM_INTERVALS", 50)
    monkeypatch.setattr(rank_references, "_NUM_QUANTILE_REFS", 100)  # fewer than there are
    _digests.clear()
    for num_refs, max_pending, max_part_refs, threads in [
        (500, 50_000, 5, 1),  # 10 in each interval, which are cut into parts
        (500, 70, 5, 3),  # many bundles
        (1500, 500, 20, 1),
        (1, 50_000, 20, 1),
        (0, 50_000, 20, 1),
    ]:
        monkeypatch.setattr(step, "MAX_PENDING", max_pending)
        monkeypatch.setattr(sort_intervals, "_MAX_PART_REFS", max_part_refs)
        refs = keyed_refs(num_refs)
        shuffled = random.Random(max_pending).sample(refs, num_refs)
        mode = "multi_threading" if threads > 1 else "in_memory"
        options = pipeline_options.PipelineOptions(flags=[], direct_num_workers=threads, direct_running_mode=mode)
        with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner(), options=options) as pipeline:
            created = pipeline | create(shuffled, reshuffle=threads > 1)
            for name, order in ORDERS.items():
                ranked, expected = created | name >> rank_references.RankReferences(order), rank_plainly(refs, order)
                assert_that(runs_of(ranked, f"Run{name}"), check_runs(expected), label=f"Runs{name}")
                assert_that(ranked.rankings, check_totals(expected), label=f"Ranking{name}")
                assert_that(ranked.rankings, functools.partial(_keep_digest, (name, num_refs)), label=f"Digest{name}")
    assert {len(found) for found in _digests.values()} == {1}  # the order of the listing does not matter
    assert len({*itertools.chain(*_digests.values())}) == 7  # of two orders and four numbers; those of none are alike


def test_references_of_a_bundle_are_packed_whenever_enough_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MAX_PENDING", 40)
    spread = rank_references._SpreadFn(BY_HASH, elements.MAX_PLAIN_BYTES)
    spread.start_bundle()
    given_on = [len(list(spread.process((name, [each])))) for name, each in keyed_refs(100)]
    assert [index for index, num_packs in enumerate(given_on, start=1) if num_packs] == [40, 80]
    assert 1 <= len(list(spread.finish_bundle())) <= 20


def test_hash_order_of_grouped_references_keeps_each_group_in_one_run() -> None:
    refs = [("cat", ref(f"{index}.jpg", group=f"litter {index % 40}")) for index in range(400)]
    order = HashOrder(0, b"imagebeam.split", field="group")

    def check(runs: Sequence[RankedRun]) -> None:
        groups = [each.group for each in join_runs(runs)["cat"]]
        assert [len(list(members)) for _, members in itertools.groupby(groups)] == [10] * 40

    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        assert_that(runs_of(pipeline | create(refs) | rank_references.RankReferences(order)), check)


def test_ranking_finds_keys_that_occur_twice_even_in_two_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sort_intervals, "_MAX_PART_REFS", 30)
    unique = [("train", ref(f"{index}.jpg", position=index)) for index in range(150)]
    again = [
        ("train", ref("7\udcff.jpg", position=160)),
        ("train", ref("7\udcff.jpg", position=161)._replace(uri="/other/7.jpg")),
        ("test", ref("9.jpg", position=150)._replace(uri="/other/9.jpg")),
    ]

    def check(rankings: Sequence[PartialRanking]) -> None:
        ranking = merge_rankings(rankings)
        expected = (
            summaries.RepeatedKey("7\udcff.jpg", ("/data/7\udcff.jpg", "/other/7.jpg"), (160, 161)),
            summaries.RepeatedKey("9.jpg", ("/data/9.jpg", "/other/9.jpg"), (9, 150)),
        )
        assert ranking.duplicates == expected
        assert ranking.num_duplicates == 2

    for num_intervals in (1, sort_intervals.NUM_INTERVALS):
        monkeypatch.setattr(sort_intervals, "NUM_INTERVALS", num_intervals)
        with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
            created = pipeline | create([*unique, *again])
            for name, order in ORDERS.items():
                assert_that((created | name >> rank_references.RankReferences(order)).rankings, check, label=f"C{name}")


def test_ranking_names_the_first_five_duplicates_and_the_labels_of_classes_sorted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sort_intervals, "NUM_INTERVALS", 2)  # several duplicates in each
    labels = ["dog", "caf\udce9", "cat", "dog", 3, 2.5, None]
    listed = enumerate(labels)
    refs = [("test" if label == "dog" else "train", ref(f"{index}.jpg", label=label)) for index, label in listed]

    def check(rankings: Sequence[PartialRanking]) -> None:
        ranking = merge_rankings(rankings)
        assert [repeated.key for repeated in ranking.duplicates] == [f"{index}.jpg" for index in range(5)]
        assert ranking.num_duplicates == len(labels)  # a key counts once, however often it occurs
        assert ranking.labels == ("caf\udce9", "cat", "dog")
        assert ranking.classes == {"test": {"dog"}, "train": {"caf\udce9", "cat"}}

    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        created = pipeline | create(refs * 3)
        for name, order in ORDERS.items():
            assert_that((created | name >> rank_references.RankReferences(order)).rankings, check, label=f"C{name}")


def sort_in_bundle(
    order: Order, intervals: Sequence[sort_intervals.PackedInterval], writers: str | None
) -> tuple[list[sort_intervals.SortedRun], summaries.Ranking]:
    """Returns the sorted runs of intervals, and their ranking, by the step of the pipeline."""
    step = rank_references._SortFn(order, writers)
    step.start_bundle()
    runs = [run for interval in intervals for run in step.process(interval)]
    *last_runs, ranking = step.finish_bundle()
    return sorted([*runs, *(run.value for run in last_runs)]), ranking.value.value.result()


def in_intervals(order: Order, refs: Sequence[SetAndRef]) -> list[sort_intervals.PackedInterval]:
    spread = rank_references._SpreadFn(order, elements.MAX_PLAIN_BYTES)
    spread.start_bundle()
    boundaries, blocks = [(row, b"") for row in range(0, 250, 10)], []
    for keyed in in_keyed_batches(refs):
        blocks += spread.process(keyed, boundaries)
    blocks += [each.value for each in spread.finish_bundle()]
    return [(interval, [rows]) for interval, rows in blocks]


def test_references_sorted_by_writer_processes_are_ranked_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_references, "_MAX_SENT", 40)
    monkeypatch.setattr(rank_references, "_MAX_TASKS", 2)
    with writer_processes.start(2) as pool:
        submit = unittest.mock.Mock(wraps=pool.submit)
        monkeypatch.setattr(pool, "submit", submit)
        for order, num_refs in itertools.product(ORDERS.values(), (0, 1, 30, 500)):
            intervals = in_intervals(order, keyed_refs(num_refs))
            assert sort_in_bundle(order, intervals, pool.token) == sort_in_bundle(order, intervals, None)
    assert submit.call_count >= 2 * (500 // 60)


def test_references_whose_process_dies_are_sorted_in_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_references, "_MAX_SENT", 40)
    intervals = in_intervals(BY_HASH, keyed_refs(100))
    with writer_processes.start(1) as pool:
        pool._processes[0].kill()
        assert sort_in_bundle(BY_HASH, intervals, pool.token) == sort_in_bundle(BY_HASH, intervals, None)
