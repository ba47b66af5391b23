from __future__ import annotations

import array
import itertools
import json
import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam import catalog as catalog_lib
from imagebeam import records, storage
from imagebeam.transforms.html_report import sample_records
from tests import delayed_storage
from tests.unit.imagebeam.reader import written


def shard(name: str, num_records: int, removed: int = 0) -> catalog_lib.Shard:
    return catalog_lib.Shard(name, num_records, 0, 0, removed=removed)


@st.composite
def splits(draw: st.DrawFn) -> tuple[catalog_lib.Split, dict[str, array.array[int]]]:
    """Returns a split with at least one example, and its removed records."""
    removed: dict[str, array.array[int]] = {}
    shards = []
    for number, size in enumerate(draw(st.lists(st.integers(0, 30), min_size=1, max_size=6))):
        gone = sorted(draw(st.sets(st.integers(0, size - 1), max_size=size))) if size else []
        shards.append(shard(f"{number}", size, len(gone)))
        if gone:
            removed[f"{number}"] = array.array("I", gone)
    if not any(each.num_examples for each in shards):
        shards.append(shard("last", 1))
    return catalog_lib.Split(tuple(shards)), removed


@given(splits(), st.integers(6, 24), st.booleans(), st.booleans())
def test_places_are_different_living_records(
    drawn: tuple[catalog_lib.Split, dict[str, array.array[int]]], count: int, is_hashed: bool, has_index: bool
) -> None:
    split, removed = drawn
    places = sample_records.pick_places(split, count, is_hashed, has_index, removed)
    picked = [(place.shard.name, index) for place in places for index in place.indexes]
    assert 1 <= len(picked) == len(set(picked))
    assert all(list(place.indexes) == sorted(place.indexes) for place in places)
    assert len(picked) <= count + 12 and len(places) <= 12
    for place in places:
        assert all(0 <= index < place.shard.records for index in place.indexes)
        assert not set(place.indexes) & set(removed.get(place.shard.name, ()))


def values(number: int) -> dict[str, Any]:
    return written.jpeg_values(number)


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("num_shards", [1, 5])
def test_samples_are_whole_records_in_order(tmp_path: pathlib.Path, compression: str, num_shards: int) -> None:
    dataset = written.write(
        tmp_path / "out", written.IMAGE, [values(n) for n in range(40)], num_shards=num_shards, compression=compression
    )
    stored = []
    for each in dataset.catalog.splits["train"].shards:
        with open(tmp_path / "out" / each.name, "rb") as file:
            stored += [record.data for record in records.read_records(file, compression)]
    files = sample_records.ShardFiles(lambda name: [str(tmp_path / "gone" / name), str(tmp_path / "out" / name)])
    found = sample_records.read_samples(dataset.catalog, files, bytes)["train"]
    assert found.problems == ()
    positions = [stored.index(data) for data in found.found]
    assert positions == sorted(positions) and 20 <= len(set(positions)) == len(positions) <= 25


def test_samples_of_a_huge_dataset_are_some_dozens_of_small_reads(tmp_path: pathlib.Path) -> None:
    written.write(tmp_path / "out", written.IMAGE, [values(n) for n in range(8)], num_shards=1)
    content = (tmp_path / "out" / "train-00000-of-00001.tfrecord").read_bytes()
    index = (tmp_path / "out" / "index" / "train-00000-of-00001.index").read_bytes()
    store = delayed_storage.DelayedStorage()
    shards = tuple(catalog_lib.Shard(f"train-{n:05d}-of-09999.tfrecord", 8, len(content), 0) for n in range(9999))
    catalog = catalog_lib.load_catalog(tmp_path / "out")
    object.__setattr__(catalog, "splits", {name: catalog_lib.Split(shards) for name in ("train", "validation", "test")})
    with delayed_storage.mounted(store) as folder:
        for each in shards:
            store.add(f"{folder}/{each.name}", content)
            store.add(f"{folder}/{each.index_name}", index)
        files = sample_records.ShardFiles(lambda name: [storage.join(folder, name)])
        found = sample_records.read_samples(catalog, files, len)
    assert {split: len(each.found) for split, each in found.items()} == dict.fromkeys(catalog.splits, 24)
    assert set(store.requests) == {"read"} and store.requests["read"] == 36


def test_broken_and_missing_parts_are_problems_and_the_rest_is_shown(tmp_path: pathlib.Path) -> None:
    dataset = written.write(tmp_path / "out", written.IMAGE, [values(n) for n in range(60)], num_shards=4)
    names = [each.name for each in dataset.catalog.splits["train"].shards]
    (tmp_path / "out" / names[0]).unlink()
    path = tmp_path / "out" / names[1]
    path.write_bytes(bytes(path.stat().st_size))
    index = tmp_path / "out" / "index" / names[2].replace(".tfrecord", ".index")
    index.write_bytes(index.read_bytes()[:16])
    files = sample_records.ShardFiles(lambda name: [str(tmp_path / "out" / name)])
    found = sample_records.read_samples(dataset.catalog, files, len)["train"]
    assert len(found.found) >= 4
    told = "\n".join(found.problems)
    assert f"{names[0]}: [Errno 2]" in told and f"{names[1]}: the checksum of a record's length" in told
    assert f"{names[2]}: " in told and names[3] not in told


@pytest.mark.parametrize(("limit", "num_found"), [(100, 0), (2_000, 6), (1 << 20, 24)])
def test_large_records_are_left_out(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, limit: int, num_found: int
) -> None:
    dataset = written.write(tmp_path / "out", written.IMAGE, [values(3)] * 40, num_shards=1)
    monkeypatch.setattr(sample_records, "_MAX_READ_BYTES", limit)
    files = sample_records.ShardFiles(lambda name: [str(tmp_path / "out" / name)])
    found = sample_records.read_samples(dataset.catalog, files, len)["train"]
    assert len(found.found) == num_found
    if not num_found:
        assert "bytes, too many to be shown" in found.problems[0]


@pytest.mark.parametrize(("num_splits", "num_shown", "each"), [(1, 1, 24), (4, 4, 24), (8, 8, 12), (40, 12, 8)])
def test_many_splits_share_the_pictures(
    monkeypatch: pytest.MonkeyPatch, num_splits: int, num_shown: int, each: int
) -> None:
    monkeypatch.setattr(sample_records, "_read_place", lambda files, place, compression: itertools.repeat(b"", 0))
    picked: list[int] = []
    pick = sample_records.pick_places

    def record(split: catalog_lib.Split, count: int, *more: Any) -> list[sample_records.Place]:
        picked.append(count)
        return pick(split, count, *more)

    monkeypatch.setattr(sample_records, "pick_places", record)
    split = catalog_lib.Split((shard("a", 1000),))
    catalog = catalog_lib.Catalog(
        "d", "f", "none", {f"{n}": split for n in range(num_splits)}, (), None, 0, (), {},
        catalog_lib.Counts(0, 0, {}, {}), {}, "",
    )  # fmt: skip
    files = sample_records.ShardFiles(lambda name: [name])
    assert len(sample_records.read_samples(catalog, files, len)) == num_shown
    assert set(picked) == {each}


# --- rejects ---------------------------------------------------------------------------------------------------------


def lines(*rejects: tuple[str, str]) -> str:
    return "".join(
        json.dumps({"key": key, "uri": f"/in/{key}", "stage": "read", "reason": reason, "detail": "d"}) + "\n"
        for key, reason in rejects
    )


def test_three_of_each_reason_are_found(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "rejects.jsonl"
    many = [(f"{number}\udcff", "truncated") for number in range(9)]
    path.write_text(lines(*many, ("x", "corrupt")) + "not json\n[]\n" + '{"reason": "corrupt"}\n')
    found = sample_records.find_reject_examples(str(path))
    assert {reason: [each.key for each in examples] for reason, examples in found.items()} == {
        "corrupt": ["x"],
        "truncated": ["0\udcff", "1\udcff", "2\udcff"],
    }


def test_long_file_is_read_in_a_few_windows(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rejects.jsonl"
    path.write_text(lines(*((f"{n}", "truncated") for n in range(500)), *((f"{n}", "corrupt") for n in range(500))))
    monkeypatch.setattr(sample_records, "_WINDOW_BYTES", 500)
    found = sample_records.find_reject_examples(str(path))
    assert {reason: len(examples) for reason, examples in found.items()} == {"corrupt": 3, "truncated": 3}
    assert all(each.uri == f"/in/{each.key}" for examples in found.values() for each in examples)


def test_missing_file_has_no_rejects(tmp_path: pathlib.Path) -> None:
    assert sample_records.find_reject_examples(str(tmp_path / "none")) == {}
