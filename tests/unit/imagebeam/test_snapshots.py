from __future__ import annotations

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam import catalog as catalog_lib
from imagebeam import errors, snapshots


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
        with pytest.raises(errors.CatalogError, match=r"^removed\.bin does not fit the catalog"):
            snapshots.decode_removed(snapshots.encode_removed([removed]), catalog_of(("s", 10, 2)), "removed.bin")


def commit(dataset: pathlib.Path, name: str) -> None:
    folder = dataset / "snapshots" / name
    folder.mkdir(parents=True)
    (folder / "catalog.json").write_text("{}")


def test_latest_moves_forward_only_and_over_all_that_is_committed(tmp_path: pathlib.Path) -> None:
    dataset = str(tmp_path)
    assert snapshots.find_latest(dataset) is None
    commit(tmp_path, "000001")
    assert snapshots.latest_name(dataset) is None
    assert snapshots.find_latest(dataset) == "000001"
    commit(tmp_path, "000002")
    snapshots.move_latest(dataset, "000001")
    assert snapshots.latest_name(dataset) == "000001"
    commit(tmp_path, "000003")
    snapshots.move_latest(dataset, "000002")
    assert snapshots.latest_name(dataset) == "000003"
    snapshots.move_latest(dataset, "000002")
    assert snapshots.latest_name(dataset) == "000003"


def test_catalog_of_other_folders_or_removed_records_is_not_read_by_older_versions() -> None:
    alone = catalog_of(("a", 3, 0))
    for other in (catalog_of(("../000001/a", 3, 0)), catalog_of(("a", 3, 1))):
        assert '"format_version": 2' in other.to_json()
        assert catalog_lib.Catalog.from_json(other.to_json(), "x") == other
    assert '"format_version": 1' in alone.to_json()
