from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.transforms import elements, sort_intervals
from imagebeam.transforms.elements import ExtraImage, ImageRef, Mask
from imagebeam.transforms.sort_intervals import HashOrder, ListedOrder, Order
from imagebeam.transforms.summaries import merge_rankings
from tests.unit.transforms.small_batches import SetAndRef, rank_plainly

BY_HASH = HashOrder(0, b"imagebeam.order")


def ref(key: str, position: int = 0, **fields: object) -> ImageRef:
    return ImageRef(key, f"/data/{key}", size=100, position=position, **fields)


@given(st.sets(st.integers(0, 2000), max_size=100), st.integers(1, 30), st.integers(1, 40))
def test_parts_of_an_interval_are_small_and_follow_each_other_however_rows_are_packed(
    indices: set[int], num_rows: int, max_part_refs: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sort_intervals, "NUM_INTERVALS", 2)
        patch.setattr(sort_intervals, "_MAX_PART_REFS", max_part_refs)
        refs = [ref(f"{index}.jpg") for index in indices]
        refs = [each for each in refs if BY_HASH.intervals(BY_HASH.values([each]), ()) == [1]]
        rows = [("train", value, *each) for value, each in zip(BY_HASH.values(refs), refs)]
        blocks = [rows[start : start + num_rows] for start in range(0, len(rows), num_rows)]
        packed = [(len(block), elements.pack_rows(block)) for block in blocks]
        opened = sort_intervals.open_interval(packed, BY_HASH)
        parts = [list(elements.rows_of(part["train"])) for part in opened if part]
    assert [each for part in parts for each in part] == sorted(refs, key=lambda each: BY_HASH.values([each]))
    assert len(parts) <= max(1, -(-len(refs) // max_part_refs))
    if len(refs) > 5 * max_part_refs:
        assert len(parts) > 1


splits = st.sampled_from(["train", "test", "caf\udce9"])
labels = st.sampled_from(["cat", "dog", 3, 1.5, None, ("cat", "dog")])
masks = st.sampled_from([None, None, None, Mask("/masks/1.png", 10, 5)])
few_refs = st.builds(
    lambda name, **fields: ref(f"{name}.jpg", **fields),
    st.integers(0, 50).map(str) | st.just("\udcff"),
    split=splits,
    label=labels,
    position=st.integers(0, 3),
    mask=masks,
    group=st.sampled_from(["", "a"]),
    version=st.integers(0, 1),
)


def sort_spread(refs: Sequence[ImageRef]) -> sort_intervals.SortedIntervals:
    """Sorts references as the steps of the pipeline do, an interval at a time, in blocks of one row."""
    intervals: dict[int, list[sort_intervals.PackedRows]] = {}
    for each, value in zip(refs, BY_HASH.values(refs)):
        block = (1, elements.pack_rows([(each.split, value, *each)]))
        intervals.setdefault(BY_HASH.intervals([value], ())[0], []).append(block)
    return sort_intervals.sort_intervals(sort_intervals.SortTask(list(intervals.items()), BY_HASH))


def ranked(sorted_: sort_intervals.SortedIntervals) -> dict[tuple[str, int], ImageRef]:
    """References by split and rank; every rank is taken once."""
    ranking, found = merge_rankings([sorted_.ranking]), {}
    for split, interval, place, num_refs, packed in sorted_.runs:
        refs = elements.unpack_refs(packed)
        assert len(refs) == num_refs
        for rank, each in enumerate(refs, ranking.start(split, interval) + place):
            assert (split, rank) not in found
            found[split, rank] = each
    return found


@given(st.lists(few_refs, max_size=150), st.integers(1, 20), st.sampled_from([2, 1024]))
def test_whole_dataset_is_ranked_as_its_intervals_are(refs: list[ImageRef], run_refs: int, num_intervals: int) -> None:
    refs = [each._replace(label=str(each.label)) if each.split == "test" else each for each in refs]
    refs = sorted(refs, key=lambda each: (each.key, each.uri))  # of equal keys and addresses, the first listed is first
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sort_intervals, "NUM_INTERVALS", num_intervals)
        patch.setattr(sort_intervals, "_RUN_REFS", run_refs)
        whole, spread = sort_intervals.sort_whole(refs, BY_HASH), sort_spread(refs)
        assert merge_rankings([whole.ranking]) == merge_rankings([spread.ranking])
        found = ranked(whole)
        assert found == ranked(spread)
    assert len(found) == len(refs)


def test_references_of_one_key_or_group_are_in_the_order_of_keys_and_addresses() -> None:
    by_group = HashOrder(0, b"imagebeam.split", field="group")
    for order, refs in [
        (BY_HASH, [ref("a")._replace(uri=f"/{number}.jpg") for number in range(9)]),
        (by_group, [ref(f"{number}.jpg", group="litter") for number in range(9)]),
    ]:
        for listed in (refs, refs[::-1]):
            assert [*ranked(sort_intervals.sort_whole(listed, order)).values()] == refs


values = st.sampled_from([0, 1, 784, -1, None, "", "cat", "it's", b"x", (), (1.0,), 1.0, -0.0, ("a", None)])


@given(st.lists(values, max_size=5) | st.builds(lambda value, num: [value] * num, values, st.integers(0, 5)))
def test_text_of_a_column_is_its_repr(column: list[Any]) -> None:
    for each in (column, tuple(column)):
        assert sort_intervals._repr(each) == repr(each)


def test_values_that_are_equal_are_not_taken_for_the_same() -> None:
    for column in list(itertools.permutations([1, 1.0, True])):
        assert sort_intervals._repr(column) == repr(column)


PETS = [ref("cat/1.jpg", 0, label="cat"), ref("cat/2.jpg", 1, label="cat"), ref("dog/1.jpg", 2, label="dog")]


def digest(sets: Mapping[str, Sequence[ImageRef]], order: Order) -> int:
    return sort_intervals._digest({name: elements.columns_of(refs) for name, refs in sets.items()}, order)


def digest_of(order: Order, refs: Sequence[SetAndRef]) -> int:
    """The digest of references that are all in one interval."""
    return digest(dict(sorted(rank_plainly(refs, order).items())), order)


def test_digest_depends_on_all_but_the_address_and_the_order_of_listing() -> None:
    for order in [BY_HASH, ListedOrder()]:
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
            "further": first._replace(extra_images=(ExtraImage("/b/1.png", 10, 5, "b"),)),
            "moved further": first._replace(extra_images=(ExtraImage("/moved/1.png", 10, 5, "other"),)),
            "two further": first._replace(extra_images=(ExtraImage("/b/1.png", 10, 5, "b"),) * 2),
            "further size": first._replace(extra_images=(ExtraImage("/b/1.png", 11, 5, "b"),)),
            "further mtime": first._replace(extra_images=(ExtraImage("/b/1.png", 10, 6, "b"),)),
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


def test_digest_depends_on_every_field_but_those_left_out_on_purpose() -> None:
    for order in [BY_HASH, ListedOrder()]:
        for field in ImageRef._fields:
            # `offset` and `length` imply `inside`; `fingerprint` is a digest of other fields; `frame` is known later
            left_out = {"inside", "fingerprint", "content", "replaces", "frame"} | (
                {"position"} if order == BY_HASH else set()
            )
            values = {"mask": Mask("/masks/1.png"), "extra_images": (ExtraImage("/b/1.png"),)}
            other = PETS[0]._replace(**{field: values.get(field, "another value")})
            digests = {digest({"train": [each]}, order) for each in (PETS[0], other)}
            assert (len(digests) == 1) == (field in left_out)


# ---- reference order


def test_listed_order_ranks_by_row_and_then_by_key() -> None:
    refs = [ref("b", 0), ref("a", 1), ref("c", 0), ref("a\udcff", 1)]
    order = ListedOrder()
    assert [each.key for each in sorted(refs, key=lambda each: order.values([each]))] == ["b", "c", "a", "a\udcff"]


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.tuples(st.integers(0, 9), st.binary(max_size=2)))))
def test_listed_order_puts_chosen_values_into_intervals_in_order(chosen: list[tuple[int, tuple[int, bytes]]]) -> None:
    order = ListedOrder()
    boundaries = order.boundaries(chosen)
    intervals = order.intervals(sorted(value for _, value in chosen), boundaries)
    assert intervals == sorted(intervals)
    assert all(0 <= interval < sort_intervals.NUM_INTERVALS for interval in intervals)


def test_listed_order_spreads_any_number_of_chosen_values_evenly() -> None:
    for num_chosen in [0, 1, 2, 1023, 1024, 1025, 5000, 16_384]:
        order = ListedOrder()
        boundaries = order.boundaries([(0, (row, b"")) for row in range(num_chosen)])
        intervals = order.intervals([(row, b"") for row in range(num_chosen)], boundaries)
        most = max(map(intervals.count, set(intervals)), default=0)
        assert most == -(-num_chosen // sort_intervals.NUM_INTERVALS)
        assert max(intervals, default=0) < sort_intervals.NUM_INTERVALS
