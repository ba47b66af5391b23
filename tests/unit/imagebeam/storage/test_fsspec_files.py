"""FsspecStorage, on fsspec's file system in memory."""

from __future__ import annotations

import os
import pathlib
from typing import Any
from unittest import mock

import fsspec.core
import pytest
from fsspec.implementations import memory

from imagebeam import records, storage
from imagebeam.storage import DIRECTORY, FILE, fsspec_files, remote
from tests import error_texts

NAME = "a b#%20?.bin"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> storage.Storage:
    """An empty memory://."""
    monkeypatch.setattr(remote, "_FIRST_WAIT_SEC", 0.001)
    monkeypatch.setattr(memory.MemoryFileSystem, "store", {})
    monkeypatch.setattr(memory.MemoryFileSystem, "pseudo_dirs", [""])
    found = storage.storage_of("memory://x")
    assert isinstance(found, fsspec_files.FsspecStorage)
    return found


def test_files_are_written_read_listed_moved_and_removed(store: storage.Storage) -> None:
    with store.write_file("memory://d/a b#%20?.bin") as pending:
        pending.file.write(b"data")
        pending.checksum = 4, records.extend_crc(0, b"data")
    assert store.read("memory://d/a b#%20?.bin", 1, 2) == b"at"
    assert [(entry.name, entry.kind, entry.size) for entry in store.list_directory("memory://d")] == [
        ("a b#%20?.bin", FILE, 4)
    ]
    assert store.stat("memory://d").kind == DIRECTORY
    assert [(entry.name, entry.kind) for entry in store.list_directory("memory://")] == [("d", DIRECTORY)]
    store.rename("memory://d/a b#%20?.bin", "memory://d/e")
    assert not store.create_new("memory://d/e", b"other")
    assert store.create_new("memory://d/f", b"new")
    store.remove("memory://d/nothing")
    store.remove_tree("memory://d")
    assert not store.exists("memory://d/e")


def test_download_copies_a_file_over_another(store: storage.Storage, tmp_path: pathlib.Path) -> None:
    data = os.urandom(10_000)
    store.write_whole(f"memory://d/{NAME}", data)
    (tmp_path / "copy").write_bytes(bytes(20_000))
    store.download(f"memory://d/{NAME}", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == data


def test_download_that_comes_short_is_tried_again(
    store: storage.Storage, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, calls = memory.MemoryFileSystem.get_file, []

    def cut_once(self: Any, rpath: str, lpath: str, **options: Any) -> None:
        get(self, rpath, lpath, **options)
        if not calls:
            os.truncate(lpath, 3)
        calls.append(rpath)

    monkeypatch.setattr(memory.MemoryFileSystem, "get_file", cut_once)
    store.write_whole("memory://d/a", b"data")
    store.download("memory://d/a", str(tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == b"data"
    assert len(calls) == 2


def test_options_reach_the_file_system_and_one_is_opened_for_each_root(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, dict[str, Any]]] = []
    url_to_fs = fsspec.core.url_to_fs

    def record(uri: str, **options: Any) -> Any:
        seen.append((uri, {name: value for name, value in options.items() if name in ("token", "use_listings_cache")}))
        return url_to_fs(uri)

    monkeypatch.setattr(fsspec.core, "url_to_fs", record)
    store = fsspec_files.FsspecStorage("memory", {"token": "t"})
    for uri in ("memory://d/a", "memory://d/b", "memory://e/a"):
        assert not store.exists(uri)
    options = {"token": "t", "use_listings_cache": False}
    assert seen == [("memory://d", options), ("memory://e", options)]
    store.rebuild()
    store.exists("memory://d/a")
    assert len(seen) == 3


class DeniedError(Exception):
    """An error as Azure's client raises it."""

    status_code = 403


def test_error_that_lasts_names_the_address(store: storage.Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    for raised, expected in [
        (FileNotFoundError("x"), FileNotFoundError),
        (PermissionError("x"), PermissionError),
        (NotImplementedError(), OSError),
        (DeniedError("wrong key\nRequestId:x"), PermissionError),
    ]:
        monkeypatch.setattr(memory.MemoryFileSystem, "info", mock.Mock(side_effect=raised))
        with pytest.raises(expected, match="memory://d/a") as caught:
            store.stat("memory://d/a")
        assert "RequestId" not in str(caught.value)
    unknown = TypeError("got an unexpected keyword argument 'bogus'")
    monkeypatch.setattr(memory.MemoryFileSystem, "info", mock.Mock(side_effect=unknown))
    with error_texts.raises("storage-cannot-open"):
        store.stat("memory://d/a")


def test_file_of_unknown_size_is_read_whole(store: storage.Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write_whole("memory://d/a", b"data")
    [listed] = store.filesystem("memory://d").ls("/d")  # type: ignore[attr-defined]
    for size, expected in [("4", 4), (None, -1)]:
        monkeypatch.setattr(memory.MemoryFileSystem, "info", mock.Mock(return_value={**listed, "size": size}))
        assert store.stat("memory://d/a").size == expected
        with store.open_read("memory://d/a") as file:
            assert file.read() == b"data"
