"""RemoteStorage, on a storage that keeps its files in a dictionary and fails as a test asks."""

from __future__ import annotations

import collections
import errno
import os
import pathlib
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from imagebeam import records, storage
from imagebeam.storage import FILE, Entry, remote


class LostAnswer(Exception):
    """The storage did the operation, and its answer was lost."""


class StubStorage(remote.RemoteStorage):
    """Files by address. `faults` are errors to raise, by operation: before it is done, a LostAnswer after it."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.versions: collections.Counter[str] = collections.Counter()
        self.faults: dict[str, list[Exception]] = collections.defaultdict(list)
        self.calls: collections.Counter[str] = collections.Counter()
        self.spoiled = 0  # uploads that arrive with another byte
        self.cut = 0  # reads whose answer lacks its last byte
        super().__init__()

    def rebuild(self) -> None:
        pass

    def lasting_error(self, error: Exception, uri: str) -> Exception | None:
        return error if isinstance(error, (FileNotFoundError, PermissionError)) else None

    def _begin(self, operation: str) -> Exception | None:
        self.calls[operation] += 1
        fault = self.faults[operation].pop(0) if self.faults[operation] else None
        if fault is not None and not isinstance(fault, LostAnswer):
            raise fault
        return fault

    def _list(self, uri: str) -> Iterator[list[Entry]]:
        names = sorted(name.removeprefix(f"{uri}/") for name in self.files if name.startswith(f"{uri}/"))
        self._begin("list")

        class Pages(Iterator[list[Entry]]):
            def __next__(_) -> list[Entry]:
                self._begin("page")
                if not names:
                    raise StopIteration
                return [self._stat(f"{uri}/{names.pop(0)}")]

        return Pages()

    def _stat(self, uri: str) -> Entry:
        self._begin("stat")
        if uri not in self.files:
            raise FileNotFoundError(uri)
        return Entry(uri.rpartition("/")[2], FILE, len(self.files[uri]), self.versions[uri], (0, 0))

    def _read(self, uri: str, offset: int, length: int, version: int) -> bytes:
        self._begin("read")
        if uri not in self.files:
            raise FileNotFoundError(uri)
        if version not in (0, self.versions[uri]):
            raise storage.ChangedError(uri)
        data = self.files[uri][offset:][: length if length >= 0 else None]
        if self.cut:
            self.cut -= 1
            return data[:-1]
        return data

    def _put(self, path: str, uri: str, must_be_new: bool) -> None:
        lost = self._begin("put")
        if must_be_new and uri in self.files:
            raise FileExistsError(uri)
        data = pathlib.Path(path).read_bytes()
        if self.spoiled:
            self.spoiled -= 1
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.files[uri] = data
        self.versions[uri] += 1
        if lost is not None:
            raise lost

    def _move(self, source: str, target: str, must_be_new: bool) -> None:
        lost = self._begin("move")
        if source not in self.files:
            raise FileNotFoundError(source)
        if must_be_new and target in self.files:
            raise FileExistsError(target)
        self.files[target] = self.files.pop(source)
        self.versions[target] += 1
        if lost is not None:
            raise lost

    def _remove(self, uri: str) -> None:
        self._begin("remove")
        self.files.pop(uri, None)

    def _remove_tree(self, uri: str) -> None:
        self._begin("remove_tree")
        self.files = {name: data for name, data in self.files.items() if not name.startswith(f"{uri}/")}

    def _checksum(self, uri: str) -> tuple[int, int]:
        return len(self.files[uri]), records.extend_crc(0, self.files[uri])


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> StubStorage:
    monkeypatch.setattr(remote, "_FIRST_WAIT_SEC", 0.001)
    return StubStorage()


def checksum(data: bytes) -> tuple[int, int]:
    return len(data), records.extend_crc(0, data)


def test_operation_that_fails_is_tried_again(store: StubStorage) -> None:
    store.faults["put"] = [ConnectionError("reset"), TimeoutError()]
    store.faults["read"] = [ConnectionError()] * 5
    store.write_whole("x://b/a", b"data")
    assert store.read("x://b/a") == b"data"
    assert (store.calls["put"], store.calls["read"]) == (3, 6)


def test_lasting_error_is_raised_at_once(store: StubStorage) -> None:
    store.faults["stat"] = [PermissionError("denied")]
    with pytest.raises(PermissionError):
        store.stat("x://b/a")
    with pytest.raises(FileNotFoundError):
        store.read("x://b/a")
    assert not store.exists("x://b/a")
    assert (store.calls["stat"], store.calls["read"]) == (2, 1)


def test_storage_that_does_not_answer_is_given_up_within_the_budget(store: StubStorage) -> None:
    store.faults["read"] = [ConnectionError("no route")] * 1000
    with (
        remote.budget(0.05),
        pytest.raises(storage.UnavailableError, match=r"x://b/a: ConnectionError: no route \(tried for 0.05 s\)"),
    ):
        store.read("x://b/a")
    assert 2 < store.calls["read"] < 100


def test_pages_that_fail_are_requested_again(store: StubStorage) -> None:
    store.files = {f"x://b/d/{number}": b"" for number in range(4)}
    store.faults["page"] = [ConnectionError(), ConnectionError()]
    assert [entry.name for entry in store.list_directory("x://b/d")] == ["0", "1", "2", "3"]


def test_file_appears_when_it_is_complete_and_is_compared(store: StubStorage) -> None:
    store.spoiled = 1
    with store.write_file("x://b/a") as pending:
        pending.file.write(b"data")
        pending.checksum = checksum(b"data")
        assert store.files == {}
        path = pending.file.name
    assert store.files == {"x://b/a": b"data"}  # uploaded a second time
    assert store.calls["put"] == 2
    assert not pathlib.Path(str(path)).exists()


def test_file_that_arrives_spoiled_twice_is_removed_and_is_an_error(store: StubStorage) -> None:
    store.spoiled = 2
    message = r"x://b/a: 4 bytes with crc32c .* were stored, but 4 bytes with .* were written \(tried twice\)"
    with pytest.raises(OSError, match=message), store.write_file("x://b/a") as pending:
        pending.file.write(b"data")
        pending.checksum = checksum(b"data")
    assert store.files == {}


def test_new_file_is_created_once_even_if_the_answer_is_lost(store: StubStorage) -> None:
    store.faults["put"] = [LostAnswer()]
    assert store.create_new("x://b/lock", b"mine")
    assert not store.create_new("x://b/lock", b"another's")
    assert store.files == {"x://b/lock": b"mine"}


def test_file_is_published_once_even_if_the_answer_is_lost(store: StubStorage) -> None:
    store.files = {"x://b/staged": b"catalog"}
    store.faults["move"] = [LostAnswer()]
    store.publish("x://b/staged", "x://b/catalog")
    assert store.files == {"x://b/catalog": b"catalog"}
    store.files["x://b/staged"] = b"another"
    with pytest.raises(FileExistsError):
        store.publish("x://b/staged", "x://b/catalog")
    assert store.files["x://b/catalog"] == b"catalog"


def test_file_is_read_in_ranges_of_one_version(store: StubStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_RANGE_BYTES", 1000)
    monkeypatch.setattr(remote, "_READ_BYTES", 100)
    content = bytes(range(256)) * 10
    store.write_whole("x://b/a", content)
    with store.open_read("x://b/a") as file:
        assert file.read() == content
        assert store.calls["read"] == 3
        file.seek(2000)
        assert file.read(10) == content[2000:2010]
        file.seek(-5, 2)
        assert file.read() == content[-5:]
        file.seek(0)
        store.write_whole("x://b/a", content[::-1])
        with pytest.raises(storage.ChangedError):
            file.read()


# Downloads


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 2500])
def test_download_is_the_file_in_ranges(
    store: StubStorage, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(remote, "_DOWNLOAD_BYTES", 1000)
    store.write_whole("x://b/a", os.urandom(size))
    (tmp_path / "a").write_bytes(b"an earlier attempt" * 1000)
    store.download("x://b/a", str(tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == store.files["x://b/a"]
    assert store.calls["read"] == -(-size // 1000)


def test_download_goes_on_where_it_broke(
    store: StubStorage, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_DOWNLOAD_BYTES", 1000)
    store.write_whole("x://b/a", os.urandom(2500))
    store.faults["read"] = [ConnectionError("reset")]
    store.cut = 1
    store.download("x://b/a", str(tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == store.files["x://b/a"]
    assert store.calls["read"] == 3 + 1  # 1 of no byte, 999, 1000, 501


def test_download_that_breaks_in_the_middle_of_a_stream_goes_on_with_a_new_budget(
    store: StubStorage, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write_whole("x://b/a", os.urandom(2500))

    def append_and_break(uri: str, file: BinaryIO, length: int, version: int) -> None:
        file.write(store._read(uri, file.tell(), 100, version))
        raise ConnectionError("reset")

    monkeypatch.setattr(store, "_append", append_and_break)
    with remote.budget(0.0):  # no attempt without progress is repeated
        store.download("x://b/a", str(tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == store.files["x://b/a"]
    assert store.calls["read"] == 25


def test_download_without_progress_is_given_up(store: StubStorage, tmp_path: pathlib.Path) -> None:
    store.write_whole("x://b/a", b"data")
    store.cut = 1000
    store.files["x://b/a"] = b"d"  # cut to no byte
    message = "x://b/a: ConnectionError: no bytes received after offset 0 of 1 "
    with remote.budget(0.01), pytest.raises(storage.UnavailableError, match=message):
        store.download("x://b/a", str(tmp_path / "a"))


def test_download_of_a_file_that_is_replaced_meanwhile_is_refused(
    store: StubStorage, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_DOWNLOAD_BYTES", 1000)
    store.write_whole("x://b/a", bytes(2500))
    read = store._read

    def read_and_replace(uri: str, offset: int, length: int, version: int) -> bytes:
        data = read(uri, offset, length, version)
        store.versions[uri] += 1
        return data

    monkeypatch.setattr(store, "_read", read_and_replace)
    with pytest.raises(storage.ChangedError):
        store.download("x://b/a", str(tmp_path / "a"))


def test_download_to_a_folder_that_is_gone_is_an_error_of_the_local_disk(
    store: StubStorage, tmp_path: pathlib.Path
) -> None:
    store.write_whole("x://b/a", b"data")
    with pytest.raises(storage.LocalDiskError, match="No such file or directory"):
        store.download("x://b/a", str(tmp_path / "gone" / "a"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux")
def test_download_to_a_full_disk_is_an_error_of_the_local_disk_at_once(store: StubStorage) -> None:
    store.write_whole("x://b/a", bytes(100_000))
    with pytest.raises(storage.LocalDiskError, match="No space left on device"):
        store.download("x://b/a", "/dev/full")
    assert store.calls["read"] == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS], ids=errno.errorcode.get)
def test_error_of_a_full_disk_is_one_of_the_local_disk(number: int) -> None:
    with pytest.raises(storage.LocalDiskError, match=os.strerror(number)), remote.local_disk_errors("/path"):
        raise OSError(number, os.strerror(number))
