"""Which catalog is read: that of the folder, of the latest snapshot, or of the snapshot that is named."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import errors, snapshots
from tests import linked_snapshots
from tests.unit.imagebeam.reader import far_dataset

REMOVED = {"../000001/train-00001-of-00004.tfrecord": [0, 2]}


def make(folder: pathlib.Path) -> pathlib.Path:
    """A dataset of two snapshots."""
    linked_snapshots.add(folder / "out", far_dataset.write_dataset(folder / "first"))
    linked_snapshots.add(folder / "out", far_dataset.write_dataset(folder / "second", num_shards=1), REMOVED)
    return folder / "out"


def test_folder_with_a_catalog_is_read_with_one_request(tmp_path: pathlib.Path) -> None:
    folder = str(far_dataset.write_dataset(tmp_path / "set"))
    asked: list[str] = []

    def read(uri: str) -> bytes:
        asked.append(uri)
        return pathlib.Path(uri).read_bytes()

    assert snapshots.find(folder, read=read).folder == folder
    assert asked == [f"{folder}/catalog.json"]


@pytest.mark.parametrize(
    ("snapshot", "name", "num_requests"),
    [(None, "000002", 3), ("000001", "000001", 1), ("2", "000002", 1), (1, "000001", 1), (np.int64(2), "000002", 1)],
)
def test_latest_snapshot_is_read_unless_another_is_named(
    snapshot: Any, name: str, num_requests: int, tmp_path: pathlib.Path
) -> None:
    dataset = str(make(tmp_path))
    asked: list[str] = []

    def read(uri: str) -> bytes:
        asked.append(uri)
        return pathlib.Path(uri).read_bytes()

    found = snapshots.find(dataset, snapshot, read)
    assert (found.folder, snapshots.name_of(found.catalog)) == (f"{dataset}/snapshots/{name}", name)
    assert len(asked) == num_requests
    assert imagebeam.load_catalog(dataset, snapshot) == found.catalog
    assert snapshots.find(found.folder).catalog == found.catalog  # its folder is a dataset by itself


def test_wrong_name_of_a_snapshot_is_refused(tmp_path: pathlib.Path) -> None:
    wrong: list[Any] = ["latest", "", "-1", 0, -1, True, 1.5, "000000", "²", b"000001"]
    for each in wrong:
        with pytest.raises(errors.ConfigError, match=r"^snapshot is .*; give the name of one, such as"):
            snapshots.find(tmp_path, each)


def test_unknown_snapshot_is_refused_with_those_that_there_are(tmp_path: pathlib.Path) -> None:
    dataset = make(tmp_path)
    with pytest.raises(
        errors.ConfigError, match=f"^there is no snapshot 000007 in {dataset}; it has 000001, 000002 .the latest.$"
    ):
        snapshots.find(dataset, 7)
    for number in range(3, 20):
        (dataset / f"snapshots/{number:06d}").mkdir()
        (dataset / f"snapshots/{number:06d}/catalog.json").touch()
    (dataset / "snapshots/000015/catalog.json").unlink()  # a removed snapshot, with shards that later ones name
    with pytest.raises(errors.ConfigError, match=r"it has \.\.\., 000011, 000012, .*, 000014, 000016, .*, 000019$"):
        snapshots.find(dataset, 15)


def test_snapshot_of_an_ordinary_or_no_dataset_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.CatalogError, match=f"^{tmp_path} holds no catalog.json: no dataset was committed there"):
        snapshots.find(tmp_path)
    folder = far_dataset.write_dataset(tmp_path / "set")
    with pytest.raises(errors.ConfigError, match=f"^there is no snapshot 000001 in {folder}, which has no snapshots"):
        snapshots.find(folder, 1)


def test_latest_snapshot_that_was_removed_is_refused(tmp_path: pathlib.Path) -> None:
    dataset = make(tmp_path)
    (dataset / "snapshots/000002/catalog.json").unlink()
    with pytest.raises(
        errors.CatalogError,
        match=f"^{dataset}/LATEST names 000002, and {dataset}/snapshots/000002 holds no catalog.json: it was removed; "
        "restore it, or give one of the snapshots that are there: 000001$",
    ):
        snapshots.find(dataset)


def test_damaged_latest_file_is_refused(tmp_path: pathlib.Path) -> None:
    dataset = make(tmp_path)
    for text in ("", "latest", "2", "../../x", "000002\n000003"):
        (dataset / "LATEST").write_text(text)
        with pytest.raises(errors.CatalogError, match=f"^{dataset}/LATEST holds '.*, and should name a folder in"):
            snapshots.find(dataset)


@pytest.mark.parametrize("name", ["LATEST", "snapshots/000002/catalog.json", "snapshots/000002/removed.bin"])
def test_file_that_cannot_be_read_is_named(name: str, tmp_path: pathlib.Path) -> None:
    dataset = make(tmp_path)

    def read(uri: str) -> bytes:
        if uri.endswith(name):
            raise PermissionError(13, "denied")
        return pathlib.Path(uri).read_bytes()

    with pytest.raises(
        errors.CatalogError, match=f"^{dataset}/{name} cannot be read .denied.; grant read access to it$"
    ):
        snapshots.load_removed(*snapshots.find(dataset, read=read), read)


def test_removed_records_are_read_only_where_the_catalog_says_that_there_are_any(tmp_path: pathlib.Path) -> None:
    dataset = make(tmp_path)
    first, second = (snapshots.find(dataset, number) for number in (1, 2))
    assert snapshots.load_removed(*first, read=lambda uri: pytest.fail(uri)) == {}
    found = snapshots.load_removed(*second)
    assert {name: indexes.tolist() for name, indexes in found.items()} == REMOVED
    assert [shard.num_examples for shard in second.catalog.splits["train"].shards] == [3, 1, 3, 3, 3]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"\0\0\0\0\1\0\0\0", "does not fit the catalog beside it", id="other-indexes"),
        pytest.param(b"\0\0\0\0", "does not fit the catalog beside it", id="cut-short"),
        pytest.param(
            None, "is missing, and the catalog beside it says that records are removed: restore", id="missing"
        ),
    ],
)
def test_damaged_list_of_removed_records_is_refused(data: bytes | None, message: str, tmp_path: pathlib.Path) -> None:
    dataset = make(tmp_path)
    path = dataset / "snapshots/000002/removed.bin"
    path.unlink() if data is None else path.write_bytes(data)
    with pytest.raises(errors.CatalogError, match=f"^{path} {message}"):
        snapshots.load_removed(*snapshots.find(dataset))


def test_catalog_of_shards_elsewhere_is_refused_by_releases_that_do_not_know_them(tmp_path: pathlib.Path) -> None:
    dataset = make(tmp_path)
    texts = [(dataset / f"snapshots/{name}/{catalog_lib.CATALOG_FILE}").read_text() for name in ("000001", "000002")]
    assert ['"format_version": 1' in text for text in texts] == [True, False]
