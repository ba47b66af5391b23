from __future__ import annotations

import pathlib
import threading
from collections.abc import Iterator

import google_crc32c
import pytest

from imagebeam import errors, storage
from imagebeam.transforms.reports import dead_letters
from imagebeam.transforms.reports.dead_letters import RejectFiles
from tests import delayed_storage, patience

FILES = RejectFiles([f"early-{index}" for index in range(3)], [f"shard-{index}" for index in range(5)])
CONTENT = b"".join(name.encode() * 3 + b"\n" for names in FILES for name in names)


@pytest.fixture(params=["local", "network"])
def folder(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[str]:
    """A folder with files that repeat their names three times."""
    with delayed_storage.mounted(delayed_storage.DelayedStorage()) as network:
        folder = str(tmp_path) if request.param == "local" else network
        for name in (*FILES.early, *FILES.of_shards):
            storage.storage_of(folder).write_whole(f"{folder}/{name}", name.encode() * 3 + b"\n")
        yield folder


def test_files_are_joined_in_their_order(folder: str) -> None:
    checks: list[None] = []
    found = dead_letters.join_rejects(folder, FILES, f"{folder}/all", lambda: checks.append(None))
    assert storage.storage_of(folder).read(f"{folder}/all") == CONTENT
    assert found == (len(CONTENT), google_crc32c.value(CONTENT))
    assert len(checks) == 8


def test_no_files_give_an_empty_one(folder: str) -> None:
    assert dead_letters.join_rejects(folder, RejectFiles([], []), f"{folder}/all") == (0, 0)
    assert storage.storage_of(folder).read(f"{folder}/all") == b""


def test_file_that_is_gone_is_an_error_and_nothing_is_written(folder: str) -> None:
    store = storage.storage_of(folder)
    store.remove(f"{folder}/shard-3")
    with pytest.raises(FileNotFoundError):
        dead_letters.join_rejects(folder, FILES, f"{folder}/all")
    assert not store.exists(f"{folder}/all")


def test_check_that_fails_ends_it(folder: str) -> None:
    def refuse() -> None:
        raise errors.BusyError("another run took over")

    with pytest.raises(errors.BusyError):
        dead_letters.join_rejects(folder, FILES, f"{folder}/all", refuse)
    assert not storage.storage_of(folder).exists(f"{folder}/all")


def test_files_on_a_network_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store, meeting = delayed_storage.DelayedStorage(), threading.Barrier(len(FILES.of_shards))
    with delayed_storage.mounted(store) as folder:
        for name in FILES.of_shards:
            store.add(f"{folder}/{name}", b"1\n")
        read = store._read

        def meet(uri: str, offset: int, length: int, version: int) -> bytes:
            meeting.wait(patience.HANG_SEC)
            return read(uri, offset, length, version)

        monkeypatch.setattr(store, "_read", meet)
        found = dead_letters.join_rejects(folder, RejectFiles([], FILES.of_shards), f"{folder}/all")
        assert found.bytes == 2 * len(FILES.of_shards)
