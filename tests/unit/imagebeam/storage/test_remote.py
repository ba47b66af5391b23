"""RemoteStorage, on a storage that keeps its files in a dictionary and fails as a test asks.

A storage does what it was asked once, also if an answer is lost: tests/integration does this to real servers.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import io
import itertools
import os
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam import concurrency, records, storage
from imagebeam.storage import FILE, Entry, remote
from tests import lost_answers, patience

LOCAL = storage.LocalStorage()


class StubStorage(remote.RemoteStorage):
    """Files by address. `faults` are errors to raise before an operation is done, by its name."""

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

    def _begin(self, operation: str) -> None:
        self.calls[operation] += 1
        if self.faults[operation]:
            raise self.faults[operation].pop(0)

    def _list(self, uri: str) -> Iterator[list[Entry]]:
        names = sorted(name.removeprefix(f"{uri}/") for name in self.files if name.startswith(f"{uri}/"))
        self._begin("list")

        def request(token: str) -> tuple[list[Entry], str]:
            self._begin("page")
            first = int(token or 0)
            entries = [self._stat(f"{uri}/{name}") for name in names[first : first + 1]]
            return entries, str(first + 1) if first + 1 < len(names) else ""

        return remote.Pages(request)

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
        self._begin("put")
        if must_be_new and uri in self.files:
            raise FileExistsError(uri)
        data = pathlib.Path(path).read_bytes()
        if self.spoiled:
            self.spoiled -= 1
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.files[uri] = data
        self.versions[uri] += 1

    def _move(self, source: str, target: str, must_be_new: bool) -> None:
        self._begin("move")
        if source not in self.files:
            raise FileNotFoundError(source)
        if must_be_new and target in self.files:
            raise FileExistsError(target)
        self.files[target] = self.files.pop(source)
        self.versions[target] += 1

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
    monkeypatch.setattr(remote, "time", patience.Clock())
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
        remote.budget(90),
        pytest.raises(storage.UnavailableError, match=r"x://b/a: ConnectionError: no route \(tried for 90 s\)"),
    ):
        store.read("x://b/a")
    assert 2 < store.calls["read"] < 100


def test_budget_counts_from_the_first_failure_of_an_outage(store: StubStorage) -> None:
    clock = remote.time

    def try_for(*uris: str) -> float:
        """Returns after how many seconds a read of each address has failed."""
        began, store.faults["read"] = clock.monotonic(), [ConnectionError("no route")] * 1000
        for uri in uris:
            with pytest.raises(storage.UnavailableError):
                store.read(uri)
        return clock.monotonic() - began

    store.files["x://b/a"] = b"data"
    assert 60 < try_for(*["x://b/a", "x://b/b"] * 5) <= 90
    assert 60 < try_for(*["x://c/a"] * 5) <= 90
    store.stat("x://b/a")  # it answers again
    assert 60 < try_for(*["x://b/a"] * 5) <= 90
    clock.sleep(100)  # nobody knows how it is now
    assert 60 < try_for(*["x://b/a"] * 5) <= 90
    with pytest.raises(FileNotFoundError):  # an answer, too
        store.stat("x://b/b")
    assert 60 < try_for(*["x://b/a"] * 5) <= 90


def test_pages_that_fail_are_requested_again(store: StubStorage) -> None:
    store.files = {f"x://b/d/{number}": b"" for number in range(4)}
    store.faults["page"] = [ConnectionError(), ConnectionError()]
    assert [entry.name for entry in store.list_directory("x://b/d")] == ["0", "1", "2", "3"]
    assert list(store.list_directory("x://b/nothing")) == []


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


def test_file_of_another_is_not_published_over(store: StubStorage) -> None:
    store.files = {"x://b/staged": b"another", "x://b/catalog": b"catalog"}
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


def test_download_comes_in_ranges(store: StubStorage, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_DOWNLOAD_BYTES", 1000)
    for size in (0, 1, 999, 1000, 1001, 2500):
        store.calls.clear()
        store.write_whole("x://b/a", os.urandom(size))
        (tmp_path / "a").write_bytes(b"an earlier attempt" * 1000)
        store.download("x://b/a", str(tmp_path / "a"))
        assert (tmp_path / "a").read_bytes() == store.files["x://b/a"]
        assert store.calls["read"] == -(-size // 1000)


def test_broken_download_goes_on(store: StubStorage, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_download_that_the_disk_does_not_take_is_its_error_at_once(store: StubStorage, tmp_path: pathlib.Path) -> None:
    store.write_whole("x://b/a", bytes(100_000))
    with pytest.raises(storage.LocalDiskError, match="No such file or directory"):
        store.download("x://b/a", str(tmp_path / "gone" / "a"))
    if os.path.exists("/dev/full"):
        with pytest.raises(storage.LocalDiskError, match="No space left on device"):
            store.download("x://b/a", "/dev/full")
        assert store.calls["read"] == 1
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        with pytest.raises(storage.LocalDiskError, match=os.strerror(number)), remote.local_disk_errors("/path"):
            raise OSError(number, os.strerror(number))


# Lost answers


class LossyStub(StubStorage):
    """Moves in one step."""

    def lasting_error(self, error: Exception, uri: str) -> Exception | None:
        return None if isinstance(error, ConnectionError) else super().lasting_error(error, uri)


for request in ("_stat", "_read", "_put", "_move", "_remove"):
    setattr(LossyStub, request, lost_answers.LOSSES.wrap(getattr(LossyStub, request)))


@pytest.fixture(params=["stub", "lossymemory"])
def place(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[storage.Storage, str]:
    """A storage on a network, and the address of a folder."""
    monkeypatch.setattr(remote, "_FIRST_WAIT_SEC", 0.001)
    lost_answers.LOSSES.lose(-1)
    if request.param == "stub":
        return LossyStub(), "x://b"
    uri = f"{request.param}://{tmp_path.name}"
    return storage.storage_of(uri), uri


@pytest.mark.parametrize("name", lost_answers.OPERATIONS)
def test_operation_is_done_once_whatever_answer_is_lost(place: tuple[storage.Storage, str], name: str) -> None:
    losses = lost_answers.LOSSES
    assert lost_answers.check(*place, lost_answers.OPERATIONS[name], losses.lose, lambda: losses.was_lost) > 0


def test_file_is_never_read_empty_or_in_part(place: tuple[storage.Storage, str]) -> None:
    lost_answers.check_reads(*place, num_writes=300)


class Unreachable(storage.LocalStorage):
    """A local disk whose answer to one call is lost for good."""


for request in ("read", "rename", "create_new", "publish", "remove"):
    setattr(Unreachable, request, lost_answers.LOSSES.wrap(getattr(Unreachable, request)))


@pytest.mark.parametrize("content", [b"old", b"renewed"])
def test_swap_that_fails_anywhere_leaves_a_file(tmp_path: pathlib.Path, content: bytes) -> None:
    path, store = tmp_path / "lock", Unreachable()
    for number in itertools.count():
        path.write_bytes(content)
        lost_answers.LOSSES.lose(number)
        with contextlib.suppress(ConnectionError):
            remote.swap_by_moving(store, str(path), b"old", b"new")
        assert lost_answers.files_in(LOCAL, str(tmp_path)) in ({"lock": content}, {"lock": b"new"})
        if not lost_answers.LOSSES.was_lost:
            break
    assert number == (5 if content == b"old" else 1)


# Swaps of a small file by renames, among others that write the same file


class Interrupted(storage.LocalStorage):
    """A local disk on which something happens just before a file is moved, or before one is created."""

    def __init__(self, moment: str, act: Callable[[], None]):
        self._moment, self._act = moment, act

    def rename(self, source: str, target: str, version: int = 0) -> None:
        if self._moment == "rename":
            self._act()
        super().rename(source, target, version)

    def create_new(self, uri: str, data: bytes) -> bool:
        if self._moment == "create":
            self._act()
        return super().create_new(uri, data)


def names(folder: pathlib.Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_swap_replaces_the_content_that_was_read_and_no_other(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    assert not remote.swap_by_moving(LOCAL, str(path), b"old", b"new")
    assert names(tmp_path) == []
    for content, left in [(b"old", b"new"), (b"other", b"other")]:
        path.write_bytes(content)
        assert remote.swap_by_moving(LOCAL, str(path), b"old", b"new") == (content == b"old")
        assert (names(tmp_path), path.read_bytes()) == (["file"], left)


def test_swap_gives_way_to_what_is_written_after_the_look_or_created_in_the_gap(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    for moment in ("rename", "create"):
        path.write_bytes(b"old")
        store = Interrupted(moment, lambda: LOCAL.write_whole(str(path), b"third"))
        assert not remote.swap_by_moving(store, str(path), b"old", b"new")
        assert (names(tmp_path), path.read_bytes()) == (["file"], b"third")


def test_one_of_many_swaps_at_once_succeeds(tmp_path: pathlib.Path) -> None:
    path, start = tmp_path / "file", threading.Barrier(8)
    path.write_bytes(b"old")

    def replace(number: int) -> bool:
        start.wait()
        return LOCAL.replace(str(path), b"old", b"%d" % number)

    done = list(concurrency.map_ahead(replace, range(8), 8))
    assert [b"%d" % number for number, is_swapped in enumerate(done) if is_swapped] == [path.read_bytes()]
    assert names(tmp_path) == ["file"]


# A file in ranges


CONTENT = bytes(range(100))


class ShortReader(remote.SeekableReader):
    """Returns at most 7 bytes at a time."""

    def _read_at(self, position: int, length: int) -> bytes:
        assert 0 <= position < len(CONTENT)
        return CONTENT[position : position + min(length, 7)]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(-1, 150)),
        st.tuples(st.just("seek"), st.integers(0, 150)),
        st.tuples(st.just("skip"), st.integers(0, 150)),
        st.tuples(st.just("from-end"), st.integers(-100, 50)),
    )
)


@settings(deadline=None)
@given(steps=steps, buffer_bytes=st.integers(1, 64))
def test_reader_behaves_like_a_file_in_memory(steps: list[tuple[str, int]], buffer_bytes: int) -> None:
    expected, found = io.BytesIO(CONTENT), io.BufferedReader(ShortReader(len(CONTENT)), buffer_bytes)
    for step, value in steps:
        if step == "read":
            assert found.read(value) == expected.read(value)
        else:
            whence = {"seek": io.SEEK_SET, "skip": io.SEEK_CUR, "from-end": io.SEEK_END}[step]
            assert found.seek(value, whence) == expected.seek(value, whence)
        assert found.tell() == expected.tell()


def test_seek_before_the_start_goes_to_the_start() -> None:
    reader = ShortReader(len(CONTENT))
    assert reader.seek(-200, io.SEEK_END) == 0
    assert (reader.readable(), reader.seekable()) == (True, True)
