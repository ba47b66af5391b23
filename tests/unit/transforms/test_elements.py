from __future__ import annotations

import collections
import itertools
import pickle

from hypothesis import given
from hypothesis import strategies as st

from imagebeam.transforms import elements
from imagebeam.transforms.elements import ExtraImage, ImageRef, Mask, SnappyBlocks, SplitPlan

names = st.text(st.characters(exclude_categories=()))  # surrogates, too: file names of undecodable bytes
int64 = st.integers(-(2**63), 2**63 - 1)
refs = st.builds(
    ImageRef,
    key=names,
    uri=names,
    size=int64,
    version=int64,
    offset=int64,
    length=int64,
    position=int64,
    label=st.none() | names | int64 | st.floats(allow_nan=False),
    split=names,
    group=names,
    columns=st.tuples() | st.tuples(st.binary(), int64, st.floats(allow_nan=False)),
)
plans = st.builds(SplitPlan, num_records=st.integers(1, 10**12), num_bytes=st.just(0), num_shards=st.integers(1, 10**6))


@given(st.lists(refs, max_size=5), st.sampled_from([1, 100]))
def test_unpack_refs_is_the_inverse_of_pack_refs(batch: list[ImageRef], times: int) -> None:
    assert elements.unpack_refs(elements.pack_refs(batch * times)) == batch * times


def test_slice_of_columns_holds_the_slice_of_the_references() -> None:
    batch = [ImageRef(str(number), f"/{number}", position=number) for number in range(4)]
    for start, end in itertools.product(range(5), range(7)):
        assert (
            list(elements.rows_of(elements.slice_columns(elements.columns_of(batch), start, end))) == batch[start:end]
        )


def test_pack_refs_compresses_many_references_alone() -> None:
    for count, is_compressed in [(1, False), (10, False), (100, True)]:
        batch = [ImageRef(f"cat/{i:06d}.jpg", f"/data/pets/cat/{i:06d}.jpg", 100_000 + i, i) for i in range(count)]
        packed = elements.pack_refs(batch)
        assert packed.startswith(pickle.PROTO) != is_compressed
        assert elements.unpack_refs(packed) == batch


def test_pack_refs_of_neighbours_takes_less_than_60_bytes_each() -> None:
    batch = [ImageRef(f"cat/{i:06d}.jpg", f"/data/pets/cat/{i:06d}.jpg", 100_000 + 7 * i, i) for i in range(1000)]
    assert len(elements.pack_refs(batch)) < 60 * len(batch)


@given(plans, st.data())
def test_shard_of_is_the_inverse_of_shard_start(plan: SplitPlan, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, plan.num_records - 1))
    shard_index = plan.shard_of(rank)
    assert 0 <= shard_index < plan.num_shards
    assert plan.shard_start(shard_index) <= rank < plan.shard_start(shard_index + 1)


@given(plans, st.data())
def test_shards_of_a_split_differ_by_at_most_one_record(plan: SplitPlan, data: st.DataObject) -> None:
    shard_index = data.draw(st.integers(0, plan.num_shards - 1))
    size = plan.shard_start(shard_index + 1) - plan.shard_start(shard_index)
    assert size in (plan.num_records // plan.num_shards, -(-plan.num_records // plan.num_shards))
    assert (plan.shard_start(0), plan.shard_start(plan.num_shards)) == (0, plan.num_records)


def test_shard_of_every_rank_of_small_splits_goes_through_the_shards_in_order() -> None:
    for num_records in range(1, 40):
        for num_shards in range(1, 50):
            plan = SplitPlan(num_records, 0, num_shards)
            sizes = [plan.shard_start(i + 1) - plan.shard_start(i) for i in range(num_shards)]
            expected = [shard_index for shard_index, size in enumerate(sizes) for _ in range(size)]
            assert [plan.shard_of(rank) for rank in range(num_records)] == expected


FULL = ImageRef(
    key="k", uri="u", size=1, version=2, offset=3, length=4, position=5, label="l", split="s", group="g",
    columns=(b"c", 6), mask=Mask("m", 7, 8), expected=(9, 10), inside=(11, 12), content=b"d", replaces="r",
    blocks=SnappyBlocks(13, 14), extra_images=(ExtraImage("f", 15, 16, "a"),),
)  # fmt: skip


def test_full_reference_has_a_value_of_its_own_in_every_field() -> None:
    assert len(set(FULL)) == len(ImageRef._fields)  # so that the tests below see every field that is lost or moved


def test_with_label_changes_label_and_group_alone() -> None:
    changed = FULL.with_label(("a", "b"), "other")
    assert changed == FULL._replace(label=("a", "b"), group="other")
    assert type(changed) is ImageRef
    assert (changed.mask, changed.expected, changed.inside) == (Mask("m", 7, 8), (9, 10), (11, 12))


def test_with_split_changes_the_split_alone() -> None:
    changed = FULL.with_split("test")
    assert changed == FULL._replace(split="test")
    assert type(changed) is ImageRef
    assert (changed.mask, changed.expected, changed.inside) == (Mask("m", 7, 8), (9, 10), (11, 12))


def test_pack_refs_keeps_every_field() -> None:
    assert elements.unpack_refs(elements.pack_refs([FULL, FULL.with_split("test")])) == [FULL, FULL.with_split("test")]


def test_unpack_refs_of_nothing_is_nothing() -> None:
    assert elements.unpack_refs(b"") == elements.unpack_refs(elements.pack_refs([])) == []


# ---- hashing


ORDER, SPLIT = b"imagebeam.order", b"imagebeam.split"


def test_hash64_is_the_same_in_every_release() -> None:
    for key, seed, purpose, value in [
        ("cat/1.jpg", 0, ORDER, 0x3F0237DDEF44AC86),  # order
        ("cat/1.jpg", 0, SPLIT, 0x311556096947DCAC),  # split
        ("cat/1.jpg", 1, ORDER, 0xD8D6CA93A677B289),  # other-seed
        ("cat/1.jpg", -(2**63), ORDER, 0x8EE1E433372E8C17),  # least-seed
        ("caf\u00e9/\u732b.jpg", 0, ORDER, 0xB0900621F2749F1F),  # beyond-ascii
        ("caf\udce9.jpg", 0, ORDER, 0x6815CAB929974036),  # undecodable-byte
        ("\ud83d.jpg", 0, ORDER, 0x5B216E5A40019B8C),  # half-a-surrogate-pair
        ("", 0, b"", 0xE4A6A0577479B2B4),  # nothing
    ]:
        assert elements.hash64(key, seed, purpose) == value  # another value would move images between splits and shards


def test_encode_key_of_odd_names_gives_bytes() -> None:
    for key, encoded in [
        ("cat/1.jpg", b"cat/1.jpg"),  # ascii
        ("\u732b", b"\xe7\x8c\xab"),  # beyond-ascii
        ("a\udcff\udc80b", b"a\xff\x80b"),  # undecodable-bytes
        ("\ud83d", b"\xed\xa0\xbd"),  # half-a-surrogate-pair
        ("\ud83d\udcff", b"\xed\xa0\xbd\xed\xb3\xbf"),  # two-halves
    ]:
        assert elements.encode_key(key) == encoded


@given(st.binary())
def test_encode_key_returns_the_bytes_of_any_file_name(name: bytes) -> None:
    assert elements.encode_key(name.decode("utf-8", "surrogateescape")) == name


def test_hash64_of_many_keys_is_uniform_and_unlike_under_another_purpose() -> None:
    keys = [f"cat/{index}.jpg" for index in range(8000)]
    eighths = [(elements.hash64(key, 0, ORDER) >> 61, elements.hash64(key, 0, SPLIT) >> 61) for key in keys]
    counts = collections.Counter(eighths)
    assert len(counts) == 64
    assert all(80 < count < 175 for count in counts.values())  # 125 expected, five standard deviations
