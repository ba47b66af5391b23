"""Which catalog is read: that of the folder, of the latest snapshot, or of the snapshot that is named."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import snapshots, storage
from tests import case_tables, error_texts, linked_snapshots
from tests.unit.imagebeam.reader import far_dataset

REMOVED = {"../000001/train-00001-of-00004.tfrecord": [0, 2]}


class CountingStorage(storage.LocalStorage):
    """The local disk; notes what is read, and refuses to read one file."""

    def __init__(self, refused: str = "nothing"):
        self.refused = refused
        self.names_read: list[str] = []

    def read(self, uri: str, *args: Any, **options: Any) -> bytes:
        self.names_read.append(uri)
        if uri.endswith(self.refused):
            raise PermissionError(13, "denied")
        return super().read(uri, *args, **options)


@pytest.fixture
def dataset(tmp_path: pathlib.Path) -> pathlib.Path:
    """A dataset of two snapshots."""
    linked_snapshots.add(tmp_path / "out", far_dataset.write_dataset(tmp_path / "first"))
    linked_snapshots.add(tmp_path / "out", far_dataset.write_dataset(tmp_path / "second", num_shards=1), REMOVED)
    return tmp_path / "out"


def test_folder_with_a_catalog_is_read_with_one_request(tmp_path: pathlib.Path) -> None:
    folder = str(far_dataset.write_dataset(tmp_path / "set"))
    store = CountingStorage()
    assert snapshots.find(folder, store=store).folder == folder
    assert store.names_read == [f"{folder}/catalog.json"]


def test_latest_snapshot_is_read_unless_another_is_named(dataset: pathlib.Path) -> None:
    named: list[tuple[Any, str]] = [("000001", "000001"), ("2", "000002"), (1, "000001"), (np.int64(2), "000002")]
    for snapshot, name in [(None, "000002"), *named]:
        store = CountingStorage()
        found = snapshots.find(dataset, snapshot, store)
        assert (found.folder, snapshots.name_of(found.catalog)) == (f"{dataset}/snapshots/{name}", name)
        assert len(store.names_read) == (3 if snapshot is None else 1)
        assert imagebeam.load_catalog(str(dataset), snapshot) == found.catalog
        assert snapshots.find(found.folder).catalog == found.catalog  # its folder is a dataset by itself


def test_wrong_name_of_a_snapshot_is_refused(tmp_path: pathlib.Path) -> None:
    wrong: list[Any] = ["latest", "", "-1", 0, -1, True, 1.5, "000000", "²", b"000001"]
    for each in wrong:
        with case_tables.named(each), error_texts.raises("snapshot-bad-name"):
            snapshots.find(tmp_path, each)


def test_unknown_snapshot_is_refused_with_those_that_there_are(dataset: pathlib.Path) -> None:
    with error_texts.raises("snapshot-unknown"):
        snapshots.find(dataset, 7)
    for number in range(3, 20):
        (dataset / f"snapshots/{number:06d}").mkdir()
        (dataset / f"snapshots/{number:06d}/catalog.json").touch()
    (dataset / "snapshots/000015/catalog.json").unlink()  # a removed snapshot, with shards that later ones name
    with error_texts.raises("snapshot-unknown"):
        snapshots.find(dataset, 15)
    with error_texts.raises("snapshot-unknown"):
        snapshots.find(far_dataset.write_dataset(dataset.parent / "set"), 1)


def test_latest_snapshot_that_was_removed_is_refused(dataset: pathlib.Path) -> None:
    for name in ("000002", "000001"):
        (dataset / f"snapshots/{name}/catalog.json").unlink()
        with error_texts.raises("snapshot-latest-missing"):
            snapshots.find(dataset)
        with error_texts.raises("snapshot-latest-missing"):
            snapshots.require_committed(str(dataset), "000002")


def test_damaged_latest_file_is_refused(dataset: pathlib.Path) -> None:
    for text in ("", "latest", "2", "../../x", "000002\n000003"):
        (dataset / "LATEST").write_text(text)
        with case_tables.named(text), error_texts.raises("snapshot-latest-damaged"):
            snapshots.find(dataset)


def test_file_that_cannot_be_read_is_named(dataset: pathlib.Path) -> None:
    for name in ("LATEST", "snapshots/000002/catalog.json", "snapshots/000002/removed.bin"):
        store = CountingStorage(name)
        with case_tables.named(name), error_texts.raises("dataset-unreadable"):
            snapshots.load_removed(*snapshots.find(dataset, store=store), store)


def test_latest_moves_forward_only_and_over_all_that_is_committed(tmp_path: pathlib.Path) -> None:
    def commit(name: str) -> None:
        (tmp_path / "snapshots" / name).mkdir(parents=True)
        (tmp_path / "snapshots" / name / "catalog.json").write_text("{}")

    dataset = str(tmp_path)
    assert snapshots.find_latest(dataset) is None
    commit("000001")
    assert snapshots.latest_name(dataset) is None
    assert snapshots.find_latest(dataset) == "000001"
    commit("000002")
    snapshots.move_latest(dataset, "000001")
    assert snapshots.latest_name(dataset) == "000001"
    commit("000003")
    for name in ("000002", "000002"):
        snapshots.move_latest(dataset, name)
        assert snapshots.latest_name(dataset) == "000003"
    assert snapshots.find_latest(dataset) == "000003"


# Removed records


def test_removed_records_are_read_only_where_the_catalog_says_that_there_are_any(dataset: pathlib.Path) -> None:
    first, second = (snapshots.find(dataset, number) for number in (1, 2))
    assert snapshots.load_removed(*first, CountingStorage("")) == {}  # which would refuse to read anything
    found = snapshots.load_removed(*second)
    assert {name: indexes.tolist() for name, indexes in found.items()} == REMOVED
    assert [shard.num_examples for shard in second.catalog.splits["train"].shards] == [3, 1, 3, 3, 3]


def test_damaged_list_of_removed_records_is_refused(dataset: pathlib.Path) -> None:
    path = dataset / "snapshots/000002/removed.bin"
    for data in (b"\0\0\0\0\1\0\0\0", b"\0\0\0\0"):
        path.write_bytes(data)
        with case_tables.named(data), error_texts.raises("removed-records-damaged"):
            snapshots.load_removed(*snapshots.find(dataset))
    path.unlink()
    with error_texts.raises("removed-records-missing"):
        snapshots.load_removed(*snapshots.find(dataset))


def catalog_of(*shards: tuple[str, int, int]) -> catalog_lib.Catalog:
    """Returns a catalog with shards of a name, a number of records and a number of removed ones, in two splits."""
    made = [catalog_lib.Shard(name, records, 1, 1, None, removed) for name, records, removed in shards]
    splits = {"train": catalog_lib.Split(tuple(made[:2])), "test": catalog_lib.Split(tuple(made[2:]))}
    counts = catalog_lib.Counts(0, 0, {}, {})
    return catalog_lib.Catalog("x", "f", "none", splits, (), None, 0, (), {}, counts, {}, "")


@given(st.lists(st.sets(st.integers(0, 9)), min_size=1, max_size=5))
def test_removed_records_come_back_by_shard(removed: list[set[int]]) -> None:
    catalog = catalog_of(*((f"s{index}", 10, len(each)) for index, each in enumerate(removed)))
    data = snapshots.encode_removed(sorted(each) for each in removed)
    found = snapshots.decode_removed(data, catalog, "removed.bin")
    assert {name: list(each) for name, each in found.items()} == {
        f"s{index}": sorted(each) for index, each in enumerate(removed) if each
    }


def test_removed_records_that_do_not_fit_are_refused() -> None:
    for removed in ([1], [1, 2, 3], [2, 1], [1, 1], [1, 10]):
        with case_tables.named(removed), error_texts.raises("removed-records-damaged"):
            snapshots.decode_removed(snapshots.encode_removed([removed]), catalog_of(("s", 10, 2)), "removed.bin")
