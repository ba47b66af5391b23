"""Which records a part of a split, filters by label, and the share of a process select."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam import catalog as catalog_lib
from imagebeam import errors
from imagebeam.reader import selection
from imagebeam.reader.selection import share_of, share_sizes
from tests import cases
from tests.unit.imagebeam.reader import restarts

sizes_of_shards = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)


def catalog_of(
    sizes: list[int], num_bytes: int = 1000, compression: str = "none", removed: Sequence[int] = ()
) -> catalog_lib.Catalog:
    removed_of = [*removed, *[0] * (len(sizes) - len(removed))]
    shards = tuple(
        catalog_lib.Shard(f"train-{n}", size, num_bytes, n, removed=gone)
        for n, (size, gone) in enumerate(zip(sizes, removed_of))
    )
    return catalog_lib.Catalog(
        name="pets",
        fingerprint="f1",
        compression=compression,
        splits={"train": catalog_lib.Split(shards)},
        labels=("cat", "dog"),
        label_kind="class",
        label_base=1,
        features=(),
        config={},
        counts=catalog_lib.Counts(sum(sizes), sum(sizes), {}, {}),
        versions={},
        created="",
    )


def test_part_of_a_split_selects_its_records() -> None:
    for text, name, chosen, shard_sizes in [
        ("train", "train[0:12]", None, (5, 3, 4)),
        ("train[:]", "train[0:12]", None, (5, 3, 4)),
        ("train[:50%]", "train[0:6]", range(6), (5, 1, 0)),
        ("train[4:9]", "train[4:9]", range(4, 9), (1, 3, 1)),
        ("train[-2:]", "train[10:12]", range(10, 12), (0, 0, 2)),
        ("train[:99]", "train[0:12]", None, (5, 3, 4)),
    ]:
        found = selection.select(catalog_of([5, 3, 4]), text)
        assert (found.name, found.shard_sizes, len(found), found.split_size) == (
            name,
            shard_sizes,
            sum(shard_sizes),
            12,
        )
        assert (found.chosen is None) == (chosen is None)
        assert found.records_at(np.arange(len(found))).tolist() == list(chosen or range(12))


@given(
    st.lists(st.lists(st.booleans(), max_size=40), min_size=1, max_size=12).filter(lambda each: any(map(any, each))),
    st.data(),
)
def test_removed_records_are_selected_by_no_part_of_a_split(shards: restarts.Shards, data: st.DataObject) -> None:
    remaining = restarts.remaining_of(shards)
    removed = np.setdiff1d(np.arange(sum(map(len, shards))), remaining)
    counts = [len(each) - sum(each) for each in shards]
    catalog = catalog_of([len(each) for each in shards], removed=counts)
    start = data.draw(st.integers(0, len(remaining) - 1))
    stop = data.draw(st.integers(start + 1, len(remaining)))
    found = selection.select(catalog, f"train[{start}:{stop}]", removed_of=lambda _: removed)
    assert found.records_at(np.arange(len(found))).tolist() == remaining[start:stop]
    assert (found.name, found.split_size) == (f"train[{start}:{stop}]", sum(map(len, shards)))
    ends = np.cumsum([len(each) for each in shards])
    of_shards = np.bincount(np.searchsorted(ends, remaining[start:stop], side="right"), minlength=len(shards))
    assert found.shard_sizes == tuple(of_shards.tolist())


def test_few_removed_records_of_many_take_little_memory() -> None:
    gone = np.array([5, 70_000_000, 99_999_999])
    catalog = catalog_of([50_000_000, 50_000_000], removed=[1, 2])
    found = selection.select(catalog, "train", removed_of=lambda _: gone)
    assert isinstance(found.chosen, selection.Remaining) and found.chosen.before.nbytes == 24
    assert len(found) == 99_999_997 and found.digest == "all"
    assert found.records_at(np.array([4, 5, 69_999_998, 69_999_999, 99_999_996])).tolist() == [
        4,
        6,
        69_999_999,
        70_000_001,
        99_999_998,
    ]


def test_part_of_a_split_is_named_by_its_records_in_every_release() -> None:
    """Grain compares the name of a source when it restores one that an earlier release saved."""
    chosen = np.arange(3, 9)
    found = selection.select(catalog_of([5, 3, 4]), "train[3:9]")
    assert found.digest == hashlib.blake2b(chosen.astype("<i8").tobytes(), digest_size=8).hexdigest()
    assert selection.select(catalog_of([5, 3, 4]), "train").digest == "all"
    without = selection.select(catalog_of([5, 3, 4], removed=[1]), "train[:2]", removed_of=lambda _: np.array([1]))
    assert without.digest == hashlib.blake2b(np.array([0, 2], "<i8").tobytes(), digest_size=8).hexdigest()


def test_fingerprint_of_a_snapshot_covers_its_shards_and_its_removed_records() -> None:
    plain, removed = catalog_of([5, 3]), catalog_of([5, 3], removed=[0, 1])
    named = [dataclasses.replace(removed, files={"removed.bin": catalog_lib.File(4, crc)}) for crc in (1, 2)]
    elsewhere = dataclasses.replace(
        plain,
        splits={"train": catalog_lib.Split((catalog_lib.Shard("../000001/train-0", 5, 1000, 0),))},
    )
    assert selection.fingerprint_of(plain) == "f1"
    found = [selection.fingerprint_of(each) for each in (plain, removed, *named, elsewhere)]
    assert len(set(found)) == len(found)


@given(sizes_of_shards, st.data())
def test_filters_select_the_records_that_have_a_label_in_each(sizes: list[int], data: st.DataObject) -> None:
    total = sum(sizes)
    gone = data.draw(st.lists(st.booleans(), min_size=total, max_size=total))
    remaining = [row for row in range(total) if not gone[row]]
    if not remaining:
        return
    removed = np.flatnonzero(gone)
    ends = np.cumsum(sizes)
    removed_counts = np.bincount(np.searchsorted(ends, removed, side="right"), minlength=len(sizes)).tolist()
    catalog = catalog_of(sizes, removed=removed_counts)
    labels = data.draw(st.lists(st.sets(st.integers(1, 3)), min_size=total, max_size=total))
    filters = data.draw(st.lists(st.frozensets(st.integers(1, 3), min_size=1), min_size=1, max_size=2))
    start = data.draw(st.integers(0, len(remaining) - 1))
    rows = [(row, each) for row in remaining for each in sorted(labels[row])]
    read = np.array([row for row, _ in rows], np.int64), np.array([each for _, each in rows], np.int64)
    expected = [row for row in remaining[start:] if all(labels[row] & kept for kept in filters)]
    if not expected:
        with pytest.raises(errors.ConfigError, match="'train' holds no example of the labels that filter keeps"):
            selection.select(catalog, f"train[{start}:]", filters, lambda _: read, lambda _: removed)
        return
    found = selection.select(catalog, f"train[{start}:]", filters, lambda _: read, lambda _: removed)
    assert found.records_at(np.arange(len(found))).tolist() == expected
    counts = [sum(bool(end - size <= row < end) for row in expected) for end, size in zip(ends, sizes)]
    assert list(found.shard_sizes) == counts
    again = selection.select(catalog, f"train[{start}:]", filters[::-1], lambda _: read, lambda _: removed)
    assert again.name == found.name and found.name.count(" of labels ") == len(filters)


def test_part_that_selects_nothing_is_refused() -> None:
    for text, message in [
        ("test", "there is no split 'test'; the dataset has train"),
        ("train[5", r"split 'train\[5' cannot be read; write for example 'train'"),
        ("train[8:8]", r"split 'train\[8:8\]' names none of the 12 examples of 'train'"),
        (3, "split 3 cannot be read"),
    ]:
        with cases.named(text, message), pytest.raises(errors.ConfigError, match=message):
            selection.select(catalog_of([5, 3, 4]), text)


@given(sizes_of_shards, st.integers(1, 9))
def test_shares_of_all_processes_hold_every_record_once(sizes: list[int], process_count: int) -> None:
    shares = [share_of(sizes, index, process_count) for index in range(process_count)]
    read = [record for each in shares for start, stop in zip(each.starts, each.stops) for record in range(start, stop)]
    assert sorted(read) == list(range(sum(sizes)))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert share_sizes(sizes, process_count).tolist() == [len(each) for each in shares]


def test_share_is_of_whole_shards_where_that_gives_every_process_equally_many() -> None:
    for sizes, process_count, by in [
        ([5, 5, 5, 5], 2, "shards"),
        ([5, 5, 5], 1, "shards"),
        ([5, 6, 5, 5], 2, "records"),
        ([5, 5, 5], 2, "records"),
        ([20], 8, "records"),
    ]:
        assert {share_of(sizes, index, process_count).by for index in range(process_count)} == {by}


def test_split_without_examples_is_refused() -> None:
    for sizes, removed in [([], []), ([0, 0], [0, 0]), ([2, 3], [2, 3])]:
        for text in ["train", "train[:50%]"]:
            with (
                cases.named(sizes, removed, text),
                pytest.raises(errors.ConfigError, match=r"^split 'train' has no example, the catalog says"),
            ):
                selection.parse_part(text, catalog_of(sizes, removed=removed).splits)
