"""The records that parts of a split, filters by label, and the share of a process select."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import features, records, wire_format
from imagebeam.reader import record_selection
from tests import case_tables, error_texts
from tests.unit.imagebeam.reader import restarts, written

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
        found = record_selection.select(catalog_of([5, 3, 4]), text)
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
    found = record_selection.select(catalog, f"train[{start}:{stop}]", removed_of=lambda _: removed)
    assert found.records_at(np.arange(len(found))).tolist() == remaining[start:stop]
    assert (found.name, found.split_size) == (f"train[{start}:{stop}]", sum(map(len, shards)))
    ends = np.cumsum([len(each) for each in shards])
    of_shards = np.bincount(np.searchsorted(ends, remaining[start:stop], side="right"), minlength=len(shards))
    assert found.shard_sizes == tuple(of_shards.tolist())


def test_few_removed_records_of_many_take_little_memory() -> None:
    gone = np.array([5, 70_000_000, 99_999_999])
    catalog = catalog_of([50_000_000, 50_000_000], removed=[1, 2])
    found = record_selection.select(catalog, "train", removed_of=lambda _: gone)
    assert isinstance(found.chosen, record_selection.Remaining) and found.chosen.before.nbytes == 24
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
    found = record_selection.select(catalog_of([5, 3, 4]), "train[3:9]")
    assert found.digest == hashlib.blake2b(chosen.astype("<i8").tobytes(), digest_size=8).hexdigest()
    assert record_selection.select(catalog_of([5, 3, 4]), "train").digest == "all"
    without = record_selection.select(
        catalog_of([5, 3, 4], removed=[1]), "train[:2]", removed_of=lambda _: np.array([1])
    )
    assert without.digest == hashlib.blake2b(np.array([0, 2], "<i8").tobytes(), digest_size=8).hexdigest()


def test_fingerprint_of_a_snapshot_covers_its_shards_and_its_removed_records() -> None:
    plain, removed = catalog_of([5, 3]), catalog_of([5, 3], removed=[0, 1])
    named = [dataclasses.replace(removed, files={"removed.bin": catalog_lib.File(4, crc)}) for crc in (1, 2)]
    elsewhere = dataclasses.replace(
        plain, splits={"train": catalog_lib.Split((catalog_lib.Shard("../000001/train-0", 5, 1000, 0),))}
    )
    assert record_selection.fingerprint_of(plain) == "f1"
    found = [record_selection.fingerprint_of(each) for each in (plain, removed, *named, elsewhere)]
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
        with error_texts.raises("split-empty"):
            record_selection.select(catalog, f"train[{start}:]", filters, lambda _: read, lambda _: removed)
        return
    found = record_selection.select(catalog, f"train[{start}:]", filters, lambda _: read, lambda _: removed)
    assert found.records_at(np.arange(len(found))).tolist() == expected
    counts = [sum(bool(end - size <= row < end) for row in expected) for end, size in zip(ends, sizes)]
    assert list(found.shard_sizes) == counts
    again = record_selection.select(catalog, f"train[{start}:]", filters[::-1], lambda _: read, lambda _: removed)
    assert again.name == found.name and found.name.count(" of labels ") == len(filters)


def test_part_that_selects_nothing_is_refused() -> None:
    for text, code in [
        ("test", "split-unknown"),
        ("train[5", "split-unreadable"),
        ("train[8:8]", "split-empty"),
        *((split, "split-unreadable") for split in (3, None, ["train"], b"train")),
    ]:
        with case_tables.named(text, code), error_texts.raises(code):
            record_selection.select(catalog_of([5, 3, 4]), text)


@given(sizes_of_shards, st.integers(1, 9))
def test_shares_of_all_processes_hold_every_record_once(sizes: list[int], process_count: int) -> None:
    selected = restarts.select_all(sizes)
    shares = [selected.share_of(index, process_count) for index in range(process_count)]
    read = [record for each in shares for start, stop in zip(each.starts, each.stops) for record in range(start, stop)]
    assert sorted(read) == list(range(sum(sizes)))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert selected.share_sizes(process_count).tolist() == [len(each) for each in shares]


def test_share_is_of_whole_shards_where_that_gives_every_process_equally_many() -> None:
    for sizes, process_count, by in [
        ([5, 5, 5, 5], 2, "shards"),
        ([5, 5, 5], 1, "shards"),
        ([5, 6, 5, 5], 2, "records"),
        ([5, 5, 5], 2, "records"),
        ([20], 8, "records"),
    ]:
        assert {restarts.select_all(sizes).share_of(index, process_count).by for index in range(process_count)} == {by}


def test_split_without_examples_is_refused() -> None:
    for sizes, removed in [([], []), ([0, 0], [0, 0]), ([2, 3], [2, 3])]:
        for text in ["train", "train[:50%]"]:
            with case_tables.named(sizes, removed, text), error_texts.raises("split-empty"):
                record_selection.parse_parts(text, catalog_of(sizes, removed=removed).splits)


LABELS = ("cat", "dog", "owl")
COUNT = 30
CAPTION = features.Feature("a caption", "columns/caption", features.BYTES)  # comes before the label in a record


def caption_of(index: int) -> bytes:
    """Returns up to 20 KB; every second caption contains bytes that look like the key of the label."""
    text = b"x" * (index * 700)
    return text + wire_format.delimited(b"\x0a", b"image/class/label") * (index % 2)


def classes_of(index: int) -> tuple[int, ...]:
    return tuple(number for number in range(3) if index >> number & 1)


def values_of(index: int, many: bool) -> dict[str, Any]:
    label = tuple(each + 1 for each in classes_of(index)) if many else 1 + index % 3
    return {**written.jpeg_values(index), "columns/caption": caption_of(index), features.LABEL: label}


@pytest.fixture(scope="module")
def one_class(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    folder = tmp_path_factory.mktemp("filter") / "out"
    examples = [values_of(index, many=False) for index in range(COUNT)]
    return written.write(folder, (*written.IMAGE, CAPTION, written.LABEL), examples, labels=LABELS, label_base=1)


@pytest.fixture(scope="module")
def many_classes(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    folder = tmp_path_factory.mktemp("filter-many") / "out"
    examples = [values_of(index, many=True) for index in range(COUNT)]
    return written.write(folder, (*written.IMAGE, CAPTION, written.MANY_LABELS), examples, labels=LABELS, label_base=1)


def kept(dataset: imagebeam.ImageDataset, split: str = "train") -> list[int]:
    source = dataset.as_grain(split, decode=False, features=("image/key",))
    return [int(source[index]["image/key"]) for index in range(len(source))]


def test_label_behind_a_long_feature_is_found(one_class: imagebeam.ImageDataset) -> None:
    assert kept(one_class.filter(["dog"])) == [index for index in range(COUNT) if index % 3 == 1]
    assert kept(one_class.filter([0, np.int64(2)]), "train[10:]") == [n for n in range(10, COUNT) if n % 3 != 1]


def test_label_behind_a_long_feature_is_found_in_blocks(
    one_class: imagebeam.ImageDataset, tmp_path: pathlib.Path, far: Any
) -> None:
    shutil.copytree(one_class.directory, tmp_path / "set")
    cached = imagebeam.open_dataset(f"far://{tmp_path}/set", cache_dir=str(tmp_path / "cache"))
    assert kept(cached.filter(["dog"])) == kept(one_class.filter(["dog"]))


@hypothesis.given(st.lists(st.sets(st.sampled_from(LABELS), min_size=1), max_size=3), st.booleans())
@hypothesis.settings(deadline=None, max_examples=40)
def test_filters_keep_what_each_of_them_keeps(
    many_classes: imagebeam.ImageDataset, one_class: imagebeam.ImageDataset, filters: list[set[str]], many: bool
) -> None:
    dataset, stored = (many_classes, classes_of) if many else (one_class, lambda index: (index % 3,))
    expected = [
        index for index in range(COUNT) if all({LABELS[each] for each in stored(index)} & names for names in filters)
    ]
    for names in filters:
        dataset = dataset.filter(sorted(names))
    if expected:
        assert kept(dataset) == expected
        assert dataset.num_examples("train") == len(expected)
    else:
        with error_texts.raises("split-empty"):
            dataset.num_examples("train")


def test_record_whose_label_cannot_be_found_is_named(one_class: imagebeam.ImageDataset, tmp_path: pathlib.Path) -> None:
    folder = pathlib.Path(shutil.copytree(one_class.directory, tmp_path / "out"))
    shard = one_class.splits["train"].shards[0]
    offsets = records.decode_index((folder / shard.index_name).read_bytes())
    content = bytearray((folder / shard.name).read_bytes())
    content[offsets[4] + records.HEADER_BYTES : offsets[4] + records.HEADER_BYTES + 40] = b"\xff" * 40
    (folder / shard.name).write_bytes(content)
    with error_texts.raises("example-broken"):
        imagebeam.open_dataset(str(folder)).filter(["cat"]).num_examples("train")


@pytest.mark.parametrize(
    ("labels", "code"),
    [
        ("cat", "option-bad-value"),
        (1, "option-bad-value"),
        ([], "option-bad-value"),
        (["cta"], "label-unknown"),
        ([3], "label-unknown"),
        ([-1], "label-unknown"),
        ([1.0], "label-unknown"),
        ([True], "label-unknown"),
    ],
)
def test_unknown_labels_are_refused(one_class: imagebeam.ImageDataset, labels: Any, code: str) -> None:
    with error_texts.raises(code):
        one_class.filter(labels)


def test_dataset_without_classes_is_not_filtered(tmp_path: pathlib.Path) -> None:
    plain = written.write(tmp_path / "out", written.IMAGE, [written.jpeg_values(0)], num_shards=1)
    with error_texts.raises("dataset-no-classes"):
        plain.filter(["cat"])
