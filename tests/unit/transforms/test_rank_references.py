from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

import apache_beam as beam
import pytest
from apache_beam.options import pipeline_options
from apache_beam.runners.portability import fn_api_runner
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.transforms import elements, rank_references, summaries
from imagebeam.transforms.elements import FurtherImage, ImageRef, Mask
from imagebeam.transforms.interval_summaries import PartialRanking, merge_rankings
from imagebeam.transforms.rank_references import HashOrder, ListedOrder, Order
from tests.unit.transforms.small_batches import SetAndRef, in_keyed_batches

BY_HASH = HashOrder(0, b"imagebeam.order")
Ranked = dict[str, list[ImageRef]]  # by set, in the order of ranks
RankedRun = tuple[str, int, list[ImageRef]]  # set, first rank, references


def ref(key: str, position: int = 0, **fields: object) -> ImageRef:
    return ImageRef(key, f"/data/{key}", size=100, position=position, **fields)


def keyed_refs(num_refs: int) -> list[SetAndRef]:
    """References of three sets, every tenth with a name that is no UTF-8."""
    set_names = itertools.cycle(["train", "train", "test", "caf\\xe9"])
    names = (f"{index}\udcff.jpg" if index % 10 == 0 else f"{index}.jpg" for index in range(num_refs))
    return [(set_name, ref(name, position=index // 2)) for index, (name, set_name) in enumerate(zip(names, set_names))]


def rank_plainly(refs: Iterable[SetAndRef], order: Order) -> Ranked:
    """Returns what RankReferences must yield, from a plain sort."""
    ranked: Ranked = {}
    for set_name, each in sorted(refs, key=lambda keyed: (*order.values([keyed[1]]), keyed[1].key)):
        ranked.setdefault(set_name, []).append(each)
    return ranked


def create(refs: Sequence[SetAndRef], reshuffle: bool = False) -> beam.PTransform:
    batches = in_keyed_batches(refs)
    return beam.Create(batches, reshuffle=reshuffle).with_output_types(rank_references.KeyedRefs)


def runs_of(ranked: rank_references.RankedReferences) -> beam.PCollection[RankedRun]:
    """The runs of references, each with its first rank."""

    def rank(run: rank_references.SortedRun, rankings: Iterable[PartialRanking]) -> RankedRun:
        return run[0], rank_references.first_rank(run, merge_rankings(rankings)), elements.unpack_refs(run[-1])

    return ranked.runs | beam.Map(rank, beam.pvalue.AsIter(ranked.rankings)).with_output_types(RankedRun)


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


@pytest.mark.parametrize(
    ("order", "num_refs", "max_pending", "threads"),
    [
        pytest.param(BY_HASH, 500, 50_000, 1, id="hash"),
        pytest.param(BY_HASH, 500, 70, 3, id="hash-many-bundles"),
        pytest.param(BY_HASH, 3000, 1000, 1, id="hash-in-parts"),
        pytest.param(BY_HASH, 0, 50_000, 1, id="hash-of-none"),
        pytest.param(ListedOrder(), 500, 50_000, 1, id="listed"),
        pytest.param(ListedOrder(), 500, 70, 3, id="listed-many-bundles"),
        pytest.param(ListedOrder(), 1, 50_000, 1, id="listed-of-one"),
        pytest.param(ListedOrder(), 0, 50_000, 1, id="listed-of-none"),
    ],
)
def test_rank_references_yields_every_rank_once_whatever_the_order_and_bundles(
    monkeypatch: pytest.MonkeyPatch, order: Order, num_refs: int, max_pending: int, threads: int
) -> None:
    monkeypatch.setattr(rank_references, "_MAX_PENDING", max_pending)
    monkeypatch.setattr(rank_references, "NUM_INTERVALS", 50)
    monkeypatch.setattr(rank_references, "_NUM_QUANTILE_REFS", 100)  # fewer than there are
    monkeypatch.setattr(rank_references, "_MAX_PART_REFS", 20)  # 500 in 50 intervals are 10 in each
    refs = keyed_refs(num_refs)
    expected = rank_plainly(refs, order)
    random.Random(num_refs).shuffle(refs)
    mode = "multi_threading" if threads > 1 else "in_memory"
    options = pipeline_options.PipelineOptions(flags=[], direct_num_workers=threads, direct_running_mode=mode)
    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner(), options=options) as pipeline:
        ranked = pipeline | create(refs, reshuffle=threads > 1) | rank_references.RankReferences(order)
        assert_that(runs_of(ranked), check_runs(expected), label="Runs")
        assert_that(ranked.rankings, check_totals(expected), label="Ranking")


@given(st.sets(st.integers(0, 2000), max_size=100), st.integers(1, 30), st.integers(1, 40))
def test_parts_of_an_interval_are_small_and_follow_each_other_however_rows_are_packed(
    indices: set[int], num_rows: int, max_part_refs: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_references, "NUM_INTERVALS", 2)
        patch.setattr(rank_references, "_MAX_PART_REFS", max_part_refs)
        refs = [ref(f"{index}.jpg") for index in indices]
        refs = [each for each in refs if BY_HASH.intervals(BY_HASH.values([each]), ()) == [1]]
        rows = [("train", value, *each) for value, each in zip(BY_HASH.values(refs), refs)]
        blocks = [rows[start : start + num_rows] for start in range(0, len(rows), num_rows)]
        packed = [(len(block), elements.pack_rows(block)) for block in blocks]
        opened = rank_references.open_interval(packed, BY_HASH)
        parts = [list(elements.rows_of(part["train"])) for part in opened if part]
    assert [each for part in parts for each in part] == sorted(refs, key=lambda each: BY_HASH.values([each]))
    assert len(parts) <= max(1, -(-len(refs) // max_part_refs))
    if len(refs) > 5 * max_part_refs:
        assert len(parts) > 1


def test_references_of_a_bundle_are_packed_whenever_enough_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_references, "_MAX_PENDING", 40)
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


def test_listed_order_ranks_by_row_and_then_by_key() -> None:
    refs = [ref("b", 0), ref("a", 1), ref("c", 0), ref("a\udcff", 1)]
    order = ListedOrder()
    assert [each.key for each in sorted(refs, key=lambda each: order.values([each]))] == ["b", "c", "a", "a\udcff"]


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.tuples(st.integers(0, 9), st.binary(max_size=2)))))
def test_listed_order_puts_the_chosen_values_into_existing_intervals_in_order(
    chosen: list[tuple[int, tuple[int, bytes]]],
) -> None:
    order = ListedOrder()
    boundaries = order.boundaries(chosen)
    intervals = order.intervals(sorted(value for _, value in chosen), boundaries)
    assert intervals == sorted(intervals)
    assert all(0 <= interval < rank_references.NUM_INTERVALS for interval in intervals)


@pytest.mark.parametrize("num_chosen", [0, 1, 2, 1023, 1024, 1025, 5000, 16_384])
def test_listed_order_spreads_any_number_of_chosen_values_evenly(num_chosen: int) -> None:
    order = ListedOrder()
    boundaries = order.boundaries([(0, (row, b"")) for row in range(num_chosen)])
    intervals = order.intervals([(row, b"") for row in range(num_chosen)], boundaries)
    most = max(map(intervals.count, set(intervals)), default=0)
    assert most == -(-num_chosen // rank_references.NUM_INTERVALS)
    assert max(intervals, default=0) < rank_references.NUM_INTERVALS


PETS = [ref("cat/1.jpg", 0, label="cat"), ref("cat/2.jpg", 1, label="cat"), ref("dog/1.jpg", 2, label="dog")]


def digest(sets: Mapping[str, Sequence[ImageRef]], order: Order) -> int:
    return rank_references._digest({name: elements.columns_of(refs) for name, refs in sets.items()}, order)


def digest_of(order: Order, refs: Sequence[SetAndRef]) -> int:
    """The digest of references that are all in one interval."""
    return digest(dict(sorted(rank_plainly(refs, order).items())), order)


@pytest.mark.parametrize("order", [pytest.param(BY_HASH, id="hash"), pytest.param(ListedOrder(), id="listed")])
def test_digest_depends_on_all_but_the_address_and_the_order_of_listing(order: Order) -> None:
    first, *others = PETS
    changed = {
        "size": first._replace(size=101),
        "mtime": first._replace(version=1),
        "label": first._replace(label="lynx"),
        "key": first._replace(key="cat/3.jpg"),
        "group": first._replace(group="litter 1"),
        "columns": first._replace(columns=(1.5,)),
        "range": first._replace(offset=10, length=5),
        "mask": first._replace(mask=Mask("/masks/1.png", 10, 5)),
        "moved mask": first._replace(mask=Mask("/moved/1.png", 10, 5)),
        "mask size": first._replace(mask=Mask("/masks/1.png", 11, 5)),
        "mask mtime": first._replace(mask=Mask("/masks/1.png", 10, 6)),
        "mask name": first._replace(mask=Mask("/masks/2.png", 10, 5)),
        "further": first._replace(further=(FurtherImage("/b/1.png", 10, 5, "b"),)),
        "moved further": first._replace(further=(FurtherImage("/moved/1.png", 10, 5, "other"),)),
        "two further": first._replace(further=(FurtherImage("/b/1.png", 10, 5, "b"),) * 2),
        "further size": first._replace(further=(FurtherImage("/b/1.png", 11, 5, "b"),)),
        "further mtime": first._replace(further=(FurtherImage("/b/1.png", 10, 6, "b"),)),
    }
    variants = {
        "same": [("train", each) for each in PETS],
        "backwards": [("train", each) for each in reversed(PETS)],
        "moved": [("train", each._replace(uri=f"/elsewhere/{each.key}")) for each in PETS],
        "rows": [("train", each._replace(position=each.position + 5)) for each in PETS],
        "split": [("test", first), *(("train", each) for each in others)],
        "fewer": [("train", each) for each in others],
    } | {name: [("train", each) for each in (other, *others)] for name, other in changed.items()}
    digests = {name: digest_of(order, refs) for name, refs in variants.items()}
    alike = {"same", "backwards", "moved"} | ({"rows"} if order == BY_HASH else set())
    assert {name for name, digest in digests.items() if digest == digests["same"]} == alike
    assert digests["mask"] == digests.pop("moved mask")
    assert digests["further"] == digests.pop("moved further")
    assert len(set(digests.values())) == len(digests) - len(alike) + 1


@pytest.mark.parametrize("order", [pytest.param(BY_HASH, id="hash"), pytest.param(ListedOrder(), id="listed")])
@pytest.mark.parametrize("field", ImageRef._fields)
def test_digest_depends_on_every_field_but_those_left_out_on_purpose(order: Order, field: str) -> None:
    # `offset` and `length` imply `inside`; `facts` are a digest of other fields; `frame` is known once the file is read
    left_out = {"inside", "facts", "content", "replaces", "frame"} | ({"position"} if order == BY_HASH else set())
    values = {"mask": Mask("/masks/1.png"), "further": (FurtherImage("/b/1.png"),)}
    other = PETS[0]._replace(**{field: values.get(field, "another value")})
    digests = {digest({"train": [each]}, order) for each in (PETS[0], other)}
    assert (len(digests) == 1) == (field in left_out)


@pytest.mark.parametrize("order", [pytest.param(BY_HASH, id="hash"), pytest.param(ListedOrder(), id="listed")])
def test_digest_of_many_intervals_ignores_the_order_of_listing(monkeypatch: pytest.MonkeyPatch, order: Order) -> None:
    monkeypatch.setattr(rank_references, "NUM_INTERVALS", 50)
    monkeypatch.setattr(rank_references, "_NUM_QUANTILE_REFS", 100)
    monkeypatch.setattr(rank_references, "_MAX_PART_REFS", 5)
    refs = keyed_refs(500)

    def digest_all(_: bytes, rankings: Iterable[PartialRanking]) -> bytes:
        return merge_rankings(rankings).digest.to_bytes(16, "big")

    def check(digests: Sequence[bytes]) -> None:
        assert len(digests) == 2 and digests[0] == digests[1]

    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        digests = []
        for name, listed in {"Forwards": refs, "Backwards": refs[::-1]}.items():
            created = pipeline | f"Create{name}" >> create(listed)
            ranked = created | f"Rank{name}" >> rank_references.RankReferences(order)
            start = pipeline | f"Start{name}" >> beam.Impulse()
            digests.append(start | f"Digest{name}" >> beam.Map(digest_all, beam.pvalue.AsIter(ranked.rankings)))
        assert_that(digests | beam.Flatten(), check)


@pytest.mark.parametrize("order", [pytest.param(BY_HASH, id="hash"), pytest.param(ListedOrder(), id="listed")])
@pytest.mark.parametrize("num_intervals", [1, rank_references.NUM_INTERVALS])
def test_ranking_finds_keys_that_occur_twice_even_in_two_sets(
    monkeypatch: pytest.MonkeyPatch, order: Order, num_intervals: int
) -> None:
    monkeypatch.setattr(rank_references, "NUM_INTERVALS", num_intervals)
    monkeypatch.setattr(rank_references, "_MAX_PART_REFS", 30)
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

    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        ranked = pipeline | create([*unique, *again]) | rank_references.RankReferences(order)
        assert_that(ranked.rankings, check)


def test_ranking_names_the_first_five_duplicates_and_the_labels_of_classes_sorted() -> None:
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
        assert_that((pipeline | create(refs * 3) | rank_references.RankReferences(BY_HASH)).rankings, check)
