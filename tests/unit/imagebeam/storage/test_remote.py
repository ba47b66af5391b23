"""What storages on a network share, on one that keeps its files in a dictionary and fails as it is told."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Iterator

import pytest

from imagebeam import errors, storage
from imagebeam.storage import DIRECTORY, FILE, Entry, fsspec_files, remote


class LostAnswer(Exception):
    """The storage did as it was told, and nobody heard of it."""


class StubStorage(remote.RemoteStorage):
    """Files by address. `faults` are errors to raise, by operation: before it is done, or a LostAnswer after."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.versions: collections.Counter[str] = collections.Counter()
        self.faults: dict[str, list[Exception]] = collections.defaultdict(list)
        self.calls: collections.Counter[str] = collections.Counter()
        self.spoiled = 0  # uploads that arrive with another byte

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
        return self.files[uri][offset:][: length if length >= 0 else None]

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
        from imagebeam import records

        return len(self.files[uri]), records.extend_crc(0, self.files[uri])


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> StubStorage:
    monkeypatch.setattr(remote, "_FIRST_WAIT_SEC", 0.001)
    return StubStorage()


def checksum(data: bytes) -> tuple[int, int]:
    from imagebeam import records

    return len(data), records.extend_crc(0, data)


def test_what_fails_is_tried_again(store: StubStorage) -> None:
    store.faults["put"] = [ConnectionError("reset"), TimeoutError()]
    store.faults["read"] = [ConnectionError()] * 5
    store.write_whole("x://b/a", b"data")
    assert store.read("x://b/a") == b"data"
    assert (store.calls["put"], store.calls["read"]) == (3, 6)


def test_what_lasts_is_told_at_once(store: StubStorage) -> None:
    store.faults["stat"] = [PermissionError("denied")]
    with pytest.raises(PermissionError):
        store.stat("x://b/a")
    with pytest.raises(FileNotFoundError):
        store.read("x://b/a")
    assert not store.exists("x://b/a")
    assert (store.calls["stat"], store.calls["read"]) == (2, 1)


def test_storage_that_does_not_answer_is_given_up_within_the_budget(store: StubStorage) -> None:
    store.faults["read"] = [ConnectionError("nobody there")] * 1000
    with (
        remote.budget(0.05),
        pytest.raises(storage.UnavailableError, match=r"x://b/a: ConnectionError: nobody there \(tried for 0.05 s\)"),
    ):
        store.read("x://b/a")
    assert 2 < store.calls["read"] < 100


def test_pages_that_fail_are_asked_for_again(store: StubStorage) -> None:
    store.files = {f"x://b/d/{number}": b"" for number in range(4)}
    store.faults["page"] = [ConnectionError(), ConnectionError()]
    assert [entry.name for entry in store.list_directory("x://b/d")] == ["0", "1", "2", "3"]


def test_file_appears_when_it_is_whole_and_is_compared(store: StubStorage) -> None:
    store.spoiled = 1
    with store.write_file("x://b/a") as pending:
        pending.file.write(b"data")
        pending.checksum = checksum(b"data")
        assert store.files == {}
        path = pending.file.name
    assert store.files == {"x://b/a": b"data"}  # put there a second time
    assert store.calls["put"] == 2
    assert not pathlib.Path(str(path)).exists()


def test_file_that_arrives_spoiled_again_is_removed_and_told(store: StubStorage) -> None:
    store.spoiled = 2
    message = r"x://b/a is stored as 4 bytes with crc32c .*, written were 4 bytes with .*, twice"
    with pytest.raises(OSError, match=message), store.write_file("x://b/a") as pending:
        pending.file.write(b"data")
        pending.checksum = checksum(b"data")
    assert store.files == {}


def test_file_whose_writing_fails_is_not_put_there(store: StubStorage) -> None:
    with pytest.raises(RuntimeError), store.write_file("x://b/a") as pending:
        pending.file.write(b"da")
        raise RuntimeError
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


def test_storage_of_fsspec_does_what_a_storage_does() -> None:
    store = storage.storage_of("memory://x")
    assert isinstance(store, fsspec_files.FsspecStorage)
    with store.write_file("memory://d/a b#%20?.bin") as pending:
        pending.file.write(b"data")
        pending.checksum = checksum(b"data")
    assert store.read("memory://d/a b#%20?.bin", 1, 2) == b"at"
    assert [(entry.name, entry.kind, entry.size) for entry in store.list_directory("memory://d")] == [
        ("a b#%20?.bin", FILE, 4)
    ]
    assert store.stat("memory://d").kind == DIRECTORY
    store.rename("memory://d/a b#%20?.bin", "memory://d/e")
    assert not store.create_new("memory://d/e", b"other")
    assert store.create_new("memory://d/f", b"new")
    store.remove("memory://d/nothing")
    store.remove_tree("memory://d")
    assert not store.exists("memory://d/e")


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("hdfs://me@host:9870/a/b", ("host", 9870, "me", "/a/b")),
        ("hdfs://you%40corp@10.0.0.1:1/", ("10.0.0.1", 1, "you@corp", "/")),
        ("hdfs://host:9870", ("host", 9870, "login", "/")),
    ],
)
def test_address_of_hdfs_is_taken_apart(
    uri: str, expected: tuple[str, int, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "login")
    assert fsspec_files.parse_hdfs(uri) == expected


@pytest.mark.parametrize("uri", ["hdfs:///a", "hdfs://folder/file", "hdfs://host:x/a", "hdfs://:9870/a"])
def test_address_of_hdfs_without_a_port_is_refused(uri: str) -> None:
    with pytest.raises(errors.ConfigError, match=r"write hdfs://NAMENODE:9870/FOLDER"):
        fsspec_files.parse_hdfs(uri)
