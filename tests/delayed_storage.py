"""A storage in the memory of this process whose requests take time and are counted by kind."""

from __future__ import annotations

import collections
import contextlib
import errno
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from imagebeam import concurrency, records, storage
from imagebeam.storage import DIRECTORY, FILE, Entry, interface, remote

SCHEME = "delayed"
_PAGE_NAMES = 1000
_DELETES_AT_ONCE = 64


class NotKept(NamedTuple):
    """A file of which only size and checksum are kept; it cannot be read."""

    bytes: int
    crc32c: int


class DelayedStorage(remote.RemoteStorage):
    """delayed://HOST/PATH, as gs:// is: pages of 1,000 names, deletions one by one, checksums without reading.

    Attributes:
        requests: their number by kind.
        most_at_once: the highest number under way at once, by kind.
    """

    swaps_atomically = True

    def __init__(self, delay_sec: float = 0.0, moves_at_once: bool = True):
        """Begins empty.

        Args:
            delay_sec: of each request.
            moves_at_once: whether a move is one request; else it is a copy and a deletion.
        """
        self.delay_sec = delay_sec
        self.requests: collections.Counter[str] = collections.Counter()
        self.most_at_once: collections.Counter[str] = collections.Counter()
        self._moves_at_once = moves_at_once
        self._under_way: collections.Counter[str] = collections.Counter()
        self._folders: dict[str, dict[str, bytes | NotKept]] = collections.defaultdict(dict)
        self._lock = threading.Lock()
        super().__init__()

    def add(self, uri: str, content: bytes | NotKept) -> None:
        """Adds a file without a request."""
        folder, _, name = uri.rpartition("/")
        self._folders[folder][name] = content

    @contextlib.contextmanager
    def _request(self, kind: str) -> Iterator[None]:
        """Takes the time of one request, then holds the lock during the block."""
        with self._lock:
            self.requests[kind] += 1
            self._under_way[kind] += 1
            self.most_at_once[kind] = max(self.most_at_once[kind], self._under_way[kind])
        time.sleep(self.delay_sec)
        with self._lock:
            self._under_way[kind] -= 1
            yield

    def rebuild(self) -> None:
        pass

    def lasting_error(self, error: Exception, uri: str) -> Exception | None:
        return error

    def stored_checksum(self, uri: str) -> tuple[int, int] | None:
        return self._retry(uri, lambda: self._checksum(uri))

    def _list(self, uri: str) -> Iterator[list[Entry]]:
        entries = self._entries(uri)
        if not entries:
            raise FileNotFoundError(errno.ENOENT, f"there is no {uri}")
        for start in range(0, len(entries), _PAGE_NAMES):
            with self._request("list"):
                page = entries[start : start + _PAGE_NAMES]
            yield page

    def _entries(self, uri: str) -> list[Entry]:
        files = [Entry(name, FILE, _size(content), 1, (0, 0)) for name, content in sorted(self._folders[uri].items())]
        below = {path[len(uri) + 1 :].split("/")[0] for path in self._filled_folders(uri)}
        return files + [Entry(name, DIRECTORY, 0, 0, interface.identity_of(f"{uri}/{name}")) for name in sorted(below)]

    def _filled_folders(self, uri: str) -> list[str]:
        return [path for path, files in list(self._folders.items()) if files and path.startswith(f"{uri}/")]

    def _stat(self, uri: str) -> Entry:
        with self._request("stat"):
            folder, _, name = uri.rpartition("/")
            if name in self._folders[folder]:
                return Entry(name, FILE, _size(self._folders[folder][name]), 1, (0, 0))
            if self._folders[uri] or self._filled_folders(uri):
                return Entry(name, DIRECTORY, 0, 0, interface.identity_of(uri))
            raise FileNotFoundError(errno.ENOENT, f"there is no {uri}")

    def _found(self, uri: str) -> bytes | NotKept:
        folder, _, name = uri.rpartition("/")
        try:
            return self._folders[folder][name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, f"there is no {uri}") from None

    def _read(self, uri: str, offset: int, length: int, version: int) -> bytes:
        with self._request("read"):
            content = self._found(uri)
        assert isinstance(content, bytes), f"{uri} is read"
        return content[offset : None if length < 0 else offset + length]

    def _put(self, path: str, uri: str, must_be_new: bool) -> None:
        data = pathlib.Path(path).read_bytes()
        with self._request("put"):
            self._require_new(uri, must_be_new)
            self.add(uri, data)

    def _require_new(self, uri: str, must_be_new: bool) -> None:
        folder, _, name = uri.rpartition("/")
        if must_be_new and name in self._folders[folder]:
            raise interface.taken(uri)

    def _checksum(self, uri: str) -> tuple[int, int]:
        with self._request("checksum"):
            content = self._found(uri)
        return content if isinstance(content, NotKept) else (len(content), records.extend_crc(0, content))

    def _move(self, source: str, target: str, must_be_new: bool) -> None:
        with self._request("move" if self._moves_at_once else "copy"):
            content = self._found(source)
            self._require_new(target, must_be_new)
            self.add(target, content)
            if self._moves_at_once:
                self._drop(source)
        if not self._moves_at_once:
            self._remove(source)

    def _drop(self, uri: str) -> None:
        folder, _, name = uri.rpartition("/")
        self._folders[folder].pop(name, None)

    def _remove(self, uri: str) -> None:
        with self._request("delete"):
            self._drop(uri)

    def _remove_tree(self, uri: str) -> None:
        found: list[str] = []
        for folder in [uri, *self._filled_folders(uri)]:
            with contextlib.suppress(FileNotFoundError):
                for page in self._list(folder):
                    found += [f"{folder}/{entry.name}" for entry in page if entry.kind == FILE]
        concurrency.call_each(self.remove, found, _DELETES_AT_ONCE)


def _size(content: bytes | NotKept) -> int:
    return content.bytes if isinstance(content, NotKept) else len(content)


@contextlib.contextmanager
def mounted(store: DelayedStorage) -> Iterator[str]:
    """Makes the addresses of the scheme those of `store` in this process; yields the address of a folder there."""
    key = SCHEME, storage._hashable({})
    assert key not in storage._opened
    storage._opened[key] = store
    try:
        yield f"{SCHEME}://host/out"
    finally:
        del storage._opened[key]
