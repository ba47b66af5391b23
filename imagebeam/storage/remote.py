"""What storages that are reached over a network have in common: retries, whole files, reads in ranges."""

from __future__ import annotations

import abc
import contextlib
import contextvars
import errno
import hashlib
import io
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from imagebeam import errors, storage
from imagebeam.storage import ranges

_T = TypeVar("_T")

BUDGET_SEC = 90.0  # for one operation with all its retries; HDFS notices a dead DataNode after 15 s
CHECK_BUDGET_SEC = 3.0  # of the first look at an address, which is more likely wrong than down
_FIRST_WAIT_SEC, _LONGEST_WAIT_SEC = 0.2, 8.0
_RANGE_BYTES = 8 << 20  # of a file that is read from front to back
_READ_BYTES = 1 << 20

_LASTING = (storage.ChangedError, storage.UnavailableError, FileExistsError, IsADirectoryError, NotADirectoryError)

_budget_sec: contextvars.ContextVar[float] = contextvars.ContextVar("_budget_sec", default=BUDGET_SEC)


@contextlib.contextmanager
def budget(seconds: float) -> Iterator[None]:
    """Operations in the block, of this thread, are given up after so many seconds."""
    token = _budget_sec.set(seconds)
    try:
        yield
    finally:
        _budget_sec.reset(token)


class RemoteStorage(abc.ABC):
    """A storage without descriptors, locks and renames in one step. Thread-safe; files appear whole or not at all.

    A subclass does each thing once. What `lasting_error` does not know is tried again, with waits that double and vary,
    until the budget is used up.
    """

    is_local = False

    # What a subclass is asked for. Errors are those of its client.

    @abc.abstractmethod
    def lasting_error(self, error: Exception, uri: str) -> Exception | None:
        """What to raise for an error that trying again will not mend, an OSError or ConfigError; None to try again."""

    @abc.abstractmethod
    def _list(self, uri: str) -> Iterator[list[storage.Entry]]:
        """The entries of a directory in pages; the first one raises where there is no such directory."""

    @abc.abstractmethod
    def _stat(self, uri: str) -> storage.Entry: ...

    @abc.abstractmethod
    def _read(self, uri: str, offset: int, length: int, version: int) -> bytes:
        """`length` -1 reads to the end; with a `version`, that one or ChangedError."""

    @abc.abstractmethod
    def _put(self, path: str, uri: str, must_be_new: bool) -> None:
        """Puts a local file at an address, whole or not at all; FileExistsError if it must be new and is not."""

    @abc.abstractmethod
    def _move(self, source: str, target: str, must_be_new: bool) -> None: ...

    @abc.abstractmethod
    def _remove(self, uri: str) -> None: ...

    @abc.abstractmethod
    def _remove_tree(self, uri: str) -> None: ...

    def _checksum(self, uri: str) -> tuple[int, int]:
        """Size and crc32c of what is stored."""
        from imagebeam import verify_shards

        return verify_shards.checksum_file(uri)

    # What a storage is, on top of it.

    def list_directory(self, uri: str) -> Iterator[storage.Entry]:
        """The entries of a directory, page by page; a page that fails is asked for again."""
        pages = self._retry(uri, lambda: self._list(uri))
        while (page := self._retry(uri, lambda: next(pages, None))) is not None:
            yield from page

    def stat(self, uri: str) -> storage.Entry:
        return self._retry(uri, lambda: self._stat(uri))

    def exists(self, uri: str) -> bool:
        try:
            self.stat(uri)
        except FileNotFoundError:
            return False
        return True

    def read(self, uri: str, offset: int = 0, length: int = -1, size_hint: int = -1, version: int = 0) -> bytes:
        """The bytes of a file from `offset`, `length` of them or to the end: one request where the client allows it.

        Raises:
            ChangedError: if a `version` is given, an Entry's, and it is not there any more.
        """
        return self._retry(uri, lambda: self._read(uri, offset, length, version))

    def open_read(self, uri: str) -> BinaryIO:
        return io.BufferedReader(_RangeReader(self, uri, self.stat(uri)), _READ_BYTES)

    @contextlib.contextmanager
    def write_file(self, uri: str) -> Iterator[storage.PendingFile]:
        """A local file to be written, which is put at `uri` and verified when the block ends well."""
        descriptor, path = tempfile.mkstemp(prefix="imagebeam-")
        try:
            with open(descriptor, "w+b", buffering=0) as file:
                pending = storage.PendingFile(file)
                yield pending
            self._upload(path, uri, pending.checksum)
        finally:
            os.unlink(path)

    def write_whole(self, uri: str, data: bytes, durable: bool = True) -> None:
        """Puts a small file there whole or not at all, replacing what stands there."""
        with _file_of(data) as path:
            self._upload(path, uri, None)

    def create_new(self, uri: str, data: bytes) -> bool:
        """Puts a small file there if there is none; whether it was put there."""
        try:
            with _file_of(data) as path:
                self._retry(uri, lambda: self._put(path, uri, True))
        except FileExistsError:
            return self.read(uri) == data  # the answer to our own attempt may have been lost
        return True

    def sync(self, uri: str) -> None:  # noqa: B027
        """Nothing is left to wait for: what was put there is stored."""

    def rename(self, source: str, target: str) -> None:
        """Moves a file over `target`."""
        self._retry(source, lambda: self._move(source, target, False))

    def publish(self, source: str, target: str) -> None:
        """Moves a small file to where there must be none.

        Raises:
            FileExistsError: if there is one.
        """
        content = self.read(source)
        try:
            self._retry(target, lambda: self._move(source, target, True))
        except (FileExistsError, FileNotFoundError):
            if not self.exists(target) or self.read(target) != content:
                raise
            self.remove(source)  # our own attempt, whose answer was lost

    def make_directories(self, uri: str) -> None:  # noqa: B027
        """Nothing: object stores have none."""

    def remove(self, uri: str) -> None:
        """Removes one file; it may be gone already."""
        with contextlib.suppress(FileNotFoundError):
            self._retry(uri, lambda: self._remove(uri))

    def remove_tree(self, uri: str) -> None:
        """Removes a directory and all below it; it may be gone already."""
        with contextlib.suppress(FileNotFoundError):
            self._retry(uri, lambda: self._remove_tree(uri))

    def _upload(self, path: str, uri: str, checksum: tuple[int, int] | None) -> None:
        for is_last in (False, True):
            self._retry(uri, lambda: self._put(path, uri, False))
            if checksum is None or (stored := self._retry(uri, lambda: self._checksum(uri))) == checksum:
                return
            if is_last:
                self.remove(uri)
                raise OSError(
                    errno.EIO,
                    f"{uri} is stored as {stored[0]:,} bytes with crc32c {stored[1]:08x}, written were "
                    f"{checksum[0]:,} bytes with {checksum[1]:08x}, twice: the network or the storage is at fault",
                )

    def _retry(self, uri: str, operate: Callable[[], _T]) -> _T:
        seconds = _budget_sec.get()
        give_up, wait = time.monotonic() + seconds, _FIRST_WAIT_SEC
        while True:
            try:
                return operate()
            except (errors.ImagebeamError, *_LASTING):
                raise
            except Exception as e:  # each client has its own errors; `lasting_error` knows which of them end it
                lasting = self.lasting_error(e, uri) or _own_error(e)
                if lasting is not None:
                    raise lasting from e
                if time.monotonic() + wait > give_up:
                    reason = f"{type(e).__name__}: {e}" if str(e) else type(e).__name__
                    raise storage.UnavailableError(errno.EIO, f"{uri}: {reason} (tried for {seconds:g} s)") from e
            time.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, _LONGEST_WAIT_SEC)


def _own_error(error: Exception) -> Exception | None:
    """An error that no client raised: a storage's own word that there is no file, or one of the local disk."""
    is_own = isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and error.filename is not None)
    return error if is_own else None


@contextlib.contextmanager
def _file_of(data: bytes) -> Iterator[str]:
    """A local file with these bytes."""
    descriptor, path = tempfile.mkstemp(prefix="imagebeam-")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        yield path
    finally:
        os.unlink(path)


class _RangeReader(ranges.SeekableReader):
    """A remote file, read from front to back or here and there, in ranges that are kept one at a time."""

    def __init__(self, store: RemoteStorage, uri: str, entry: storage.Entry):
        if entry.kind == storage.DIRECTORY:
            raise IsADirectoryError(errno.EISDIR, f"{uri} is a directory")
        super().__init__(entry.size)
        self._store = store
        self._uri = uri
        self._version = entry.mtime_ns
        self._start, self._range = 0, b""

    def _read_at(self, position: int, length: int) -> bytes:
        if not self._start <= position < self._start + len(self._range):
            range_bytes = min(_RANGE_BYTES, self._size - position)
            self._range = self._store.read(self._uri, position, range_bytes, version=self._version)
            self._start = position
        first = position - self._start
        return self._range[first : first + length]


def denied(uri: str, detail: object) -> PermissionError:
    """The error for an address that may not be read, or not written."""
    return PermissionError(errno.EACCES, f"{uri}: access denied ({detail}); docs/storage.md lists what is needed")


def taken(uri: str) -> FileExistsError:
    """The error for a file that must be new and is not."""
    return FileExistsError(errno.EEXIST, f"{uri} was written by another run at this moment")


def identity_of(uri: str) -> tuple[int, int]:
    """What tells two directories apart: there are no links, so the address."""
    return 0, int.from_bytes(hashlib.blake2b(uri.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")
