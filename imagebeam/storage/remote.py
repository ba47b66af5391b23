"""Shared by all storages on a network: retries, whole files, reads in ranges, errors that say what to do."""

from __future__ import annotations

import abc
import contextlib
import contextvars
import errno
import io
import os
import random
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from imagebeam import concurrency, errors, records
from imagebeam.storage import interface

_T = TypeVar("_T")

BUDGET_SEC = 90.0  # for one operation with all its retries; HDFS notices a dead DataNode after 15 s
CHECK_BUDGET_SEC = 3.0  # for the first look at an address, which is more likely to be wrong than down
_FIRST_WAIT_SEC, _LONGEST_WAIT_SEC = 0.2, 8.0
_OUTAGE_SEC = 60.0  # without a failure, after which an outage is over, though nothing has succeeded
_RANGE_BYTES = 8 << 20  # a file that is read from front to back is read in such ranges
_DOWNLOAD_BYTES = 32 << 20  # most that one request holds in memory; the reader runs four downloads at once
_READ_BYTES = 1 << 20

_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})  # errors of the local disk: no storage raises them
_LASTING = (
    interface.ChangedError,
    interface.LocalDiskError,
    interface.RequestError,
    interface.UnavailableError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
)

_budget_sec: contextvars.ContextVar[float] = contextvars.ContextVar("_budget_sec", default=BUDGET_SEC)


@contextlib.contextmanager
def budget(seconds: float) -> Iterator[None]:
    """Limits the time of each operation that this thread begins in the block, with all its retries."""
    token = _budget_sec.set(min(seconds, _budget_sec.get()))  # blocks can be nested
    try:
        yield
    finally:
        _budget_sec.reset(token)


class RemoteStorage(concurrency.RebuiltAfterFork, abc.ABC):
    """A storage without descriptors, locks and atomic renames. Thread-safe; files appear whole or not at all.

    A subclass tries each operation once and raises its client's own errors. This class tries again, with waits that
    double and vary, until the budget is used up or `lasting_error` finds a permanent error. The budget counts from the
    first failure since the last success: where a storage is gone for good, the steps that clean up after its error get
    one attempt each.
    """

    is_local = False
    swaps_atomically = False
    replaces_in_place = False
    budget_sec = BUDGET_SEC
    remembers_outages = True

    def __init__(self) -> None:
        self._outages: dict[str, tuple[float, float]] = {}  # by root: times of the first and the last failure
        super().__init__()

    # Implemented by a subclass.

    @abc.abstractmethod
    def rebuild(self) -> None:
        """Drops the clients, so that the next operation connects again."""

    @abc.abstractmethod
    def lasting_error(self, error: Exception, uri: str) -> Exception | None:
        """Returns the OSError or ConfigError to raise for a permanent error, or None to try again."""

    def final_error(self, error: Exception, uri: str, seconds: float) -> OSError:
        """Returns the error to raise for one that was still there after `seconds` of attempts."""
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if "(Caused by " in reason:  # the text of urllib3, with the whole request
            reason = cause_of(error)
        return interface.UnavailableError(errno.EIO, f"{uri}: {reason} (tried for {seconds:g} s)")

    @abc.abstractmethod
    def _list(self, uri: str) -> Iterator[list[interface.Entry]]:
        """Yields the entries of a directory in pages; the first page raises if there is no such directory."""

    @abc.abstractmethod
    def _stat(self, uri: str) -> interface.Entry: ...

    @abc.abstractmethod
    def _read(self, uri: str, offset: int, length: int, version: int) -> bytes:
        """Reads to the end for `length` -1; raises ChangedError if `version` is given and the file has another one."""

    @abc.abstractmethod
    def _put(self, path: str, uri: str, must_be_new: bool) -> None:
        """Uploads a local file whole or not at all; raises FileExistsError if it must be new and one exists."""

    @abc.abstractmethod
    def _move(self, source: str, target: str, must_be_new: bool) -> None: ...

    @abc.abstractmethod
    def _remove(self, uri: str) -> None: ...

    @abc.abstractmethod
    def _remove_tree(self, uri: str) -> None: ...

    def _checksum(self, uri: str) -> tuple[int, int]:
        """Returns the size in bytes and the crc32c of the stored file, by reading it back."""
        with self.open_read(uri) as file:
            return records.checksum_file(file)

    # The operations of a storage, built on those above.

    def list_directory(self, uri: str) -> Iterator[interface.Entry]:
        """Yields the entries of a directory page by page; a page that fails is requested again."""
        pages = self._retry(uri, lambda: self._list(uri))
        while (page := self._retry(uri, lambda: next(pages, None))) is not None:
            yield from page

    def stat(self, uri: str) -> interface.Entry:
        return self._retry(uri, lambda: self._stat(uri))

    def exists(self, uri: str) -> bool:
        try:
            self.stat(uri)
        except FileNotFoundError:
            return False
        return True

    def read(self, uri: str, offset: int = 0, length: int = -1, size_hint: int = -1, version: int = 0) -> bytes:
        """Reads `length` bytes of a file from `offset`, or all bytes to its end; one request if the client allows it.

        Raises:
            ChangedError: if `version`, from an Entry, is given and the file has another one.
        """
        return self._retry(uri, lambda: self._read(uri, offset, length, version))

    def open_read(self, uri: str) -> BinaryIO:
        entry = self.stat(uri)
        if entry.kind == interface.DIRECTORY:
            raise IsADirectoryError(errno.EISDIR, f"{uri} is a directory")
        if entry.size < 0:
            return io.BytesIO(self.read(uri, version=entry.version))
        return io.BufferedReader(_RangeReader(self, uri, entry), _READ_BYTES)

    def stored_checksum(self, uri: str) -> tuple[int, int] | None:
        """Returns the size in bytes and the crc32c of a file as the storage keeps them, without reading the file.

        None if the storage keeps none: then the file must be read.

        Raises:
            FileNotFoundError: if there is no file; only from a storage that keeps checksums.
        """
        return None

    def download(self, uri: str, path: str) -> None:
        """Copies a file to the local `path`, over any file there. Its size is checked, its content is not.

        All bytes are of one version. A failure loses no received bytes: the download resumes where it stopped, with a
        new budget.

        Raises:
            ChangedError: if the file is replaced meanwhile.
            LocalDiskError: if the local disk fails.
        """
        entry = self.stat(uri)
        with local_disk_errors(path), open(path, "wb") as file:
            while file.tell() < entry.size:
                self._retry(uri, lambda: self._continue(uri, file, entry))

    def _continue(self, uri: str, file: BinaryIO, entry: interface.Entry) -> None:
        """Appends at least one byte of a remote file to a local copy of its beginning."""
        start = file.tell()
        try:
            with local_disk_errors(file.name):
                self._append(uri, file, entry.size - start, entry.version)
                file.flush()
        except interface.LocalDiskError:
            raise
        except Exception:
            if file.tell() == start:
                raise
        if file.tell() == start:
            raise ConnectionError(f"no bytes received after offset {start:,} of {entry.size:,}")

    def _append(self, uri: str, file: BinaryIO, length: int, version: int) -> None:
        """Appends 1 to `length` bytes of a remote file to a local copy of its beginning."""
        file.write(self._read(uri, file.tell(), min(length, _DOWNLOAD_BYTES), version))

    @contextlib.contextmanager
    def write_file(self, uri: str) -> Iterator[interface.PendingFile]:
        """Opens a local file. When the block ends without an error, it is uploaded to `uri` and verified."""
        descriptor, path = tempfile.mkstemp(prefix="imagebeam-")
        try:
            with open(descriptor, "w+b", buffering=0) as file:
                pending = interface.PendingFile(file)
                yield pending
            self._upload(path, uri, pending.checksum)
        finally:
            os.unlink(path)

    def write_whole(self, uri: str, data: bytes, durable: bool = True) -> None:
        """Writes a small file whole or not at all, over any file there."""
        with _temporary_file(data) as path:
            self._upload(path, uri, None)

    def create_new(self, uri: str, data: bytes) -> bool:
        """Creates a small file unless one exists at `uri`; returns whether this call created it."""
        try:
            with _temporary_file(data) as path:
                self._retry(uri, lambda: self._put(path, uri, True))
        except FileExistsError:
            return self._holds(uri, data)  # an earlier attempt may have succeeded, and the response was lost
        return True

    def _holds(self, uri: str, data: bytes) -> bool:
        try:
            return self.read(uri) == data
        except FileNotFoundError:
            return False

    def replace(self, uri: str, old: bytes, new: bytes) -> bool:
        """Replaces a small file if it holds `old`; returns whether this call did it."""
        return swap_by_moving(self, uri, old, new)

    def sync(self, uri: str) -> None:
        """Does nothing: an acknowledged upload is stored."""

    def rename(self, source: str, target: str, version: int = 0) -> None:
        """Moves a file over `target`.

        Args:
            source: address of the file.
            target: its new address.
            version: from an Entry. If given, no other version is moved. A version that is written at this very moment
                may be moved, except on gs://: compare what came.

        Raises:
            ChangedError: if the file has another version.
        """
        attempts = 0

        def move() -> None:
            nonlocal attempts
            attempts += 1
            self._move_version(source, target, version)

        try:
            self._retry(source, move)
        except (FileNotFoundError, interface.ChangedError):
            # If the source is gone after an attempt that failed, that attempt has moved it, and its answer was lost.
            if attempts == 1 or self.exists(source) or not self.exists(target):
                raise

    def _move_version(self, source: str, target: str, version: int) -> None:
        self._require_version(source, version)
        self._move(source, target, False)

    def _remove_version(self, uri: str, version: int) -> None:
        self._require_version(uri, version)
        self._remove(uri)

    def _require_version(self, uri: str, version: int) -> None:
        """Raises ChangedError if `version` is given and the file has another one. For each attempt of an operation."""
        if version and self._stat(uri).version != version:
            raise interface.ChangedError(errno.ESTALE, f"{uri} was replaced")

    def publish(self, source: str, target: str) -> None:
        """Moves a small file to an address where none may exist.

        Raises:
            FileExistsError: if there is one.
        """
        content = self.read(source)
        try:
            self._retry(target, lambda: self._move(source, target, True))
        except (FileExistsError, FileNotFoundError):
            if not self._holds(target, content):
                raise
            self.remove(source)  # an earlier attempt of this call succeeded, but the response was lost

    def make_directories(self, uri: str) -> None:
        """Does nothing: object stores have no directories."""

    def remove(self, uri: str, version: int = 0) -> None:
        """Removes one file, if it exists.

        Args:
            uri: address of the file.
            version: from an Entry. If given, no other version is removed. A version that is written at this very
                moment may be removed, except on gs://.

        Raises:
            ChangedError: if the file has another version.
        """
        with contextlib.suppress(FileNotFoundError):
            self._retry(uri, lambda: self._remove_version(uri, version))

    def remove_tree(self, uri: str) -> None:
        """Removes a directory and everything below it, if it exists."""
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
                    f"{uri}: {stored[0]:,} bytes with crc32c {stored[1]:08x} were stored, but {checksum[0]:,} bytes "
                    f"with {checksum[1]:08x} were written (tried twice): the network or the storage is at fault",
                )

    def _retry(self, uri: str, operate: Callable[[], _T], min_attempts: int = 1) -> _T:
        """Returns the result of `operate`, tried until the budget is used up and at least `min_attempts` times."""
        seconds = min(_budget_sec.get(), self.budget_sec)
        began, root, wait, attempts = time.monotonic(), interface.root_of(uri), _FIRST_WAIT_SEC, 0
        while True:
            attempts += 1
            try:
                result = operate()
                self._outages.pop(root, None)
                return result
            except (errors.ImagebeamError, *_LASTING):
                raise
            except Exception as e:  # each client has errors of its own; `lasting_error` knows which are permanent
                lasting = self.lasting_error(e, uri) or _own_error(e)
                if lasting is not None:
                    self._outages.pop(root, None)
                    raise lasting from e
                give_up = min(began, self._outage_since(root)) + seconds
                if time.monotonic() + wait > give_up and attempts >= min_attempts:
                    raise self.final_error(e, uri, seconds) from e
            time.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, _LONGEST_WAIT_SEC)

    def _outage_since(self, root: str) -> float:
        """Notes a failure; returns the time of the first one since the last success."""
        now = time.monotonic()
        first, last = self._outages.get(root, (now, now))
        if now > last + _OUTAGE_SEC or not self.remembers_outages:
            first = now
        self._outages[root] = first, now
        return first


def cause_of(error: Exception) -> str:
    """Returns what the system says of a connection that failed."""
    each: BaseException | None = error
    while each is not None and not (isinstance(each, OSError) and each.errno is not None):
        each = each.__cause__ or each.__context__
    return "no answer" if each is None else str(each.strerror)


def _own_error(error: Exception) -> Exception | None:
    """Returns an error that comes from imagebeam or the local disk, not from a client; retrying cannot help."""
    is_of_the_disk = isinstance(error, OSError) and error.filename is not None
    return error if is_of_the_disk or isinstance(error, FileNotFoundError) else None


@contextlib.contextmanager
def local_disk_errors(path: str) -> Iterator[None]:
    """Raises LocalDiskError for an error of the block that names the local file `path`, or says that a disk is full."""
    try:
        yield
    except OSError as e:
        if e.filename == path or e.errno in _DISK_ERRORS:
            raise interface.LocalDiskError(e.errno, e.strerror, e.filename) from e
        raise


def swap_by_moving(store: interface.Storage, uri: str, old: bytes, new: bytes) -> bool:
    """Replaces the file at `uri` if it holds `old`; returns whether this call did it.

    Of two calls at once, the one that moves the file away wins, if the storage renames atomically. For an instant
    there is no file at `uri`. A file that somebody creates in that instant stays, and this call returns False. If this
    call fails in that instant, it puts the file back; if its process is killed then, the file stays away.

    Of three at once, two can win: one replaces the file, another that has read the old one moves the new one away, and
    a third creates its own before it is back. The first then finds at its next renewal, and before its commit, that the
    file is not its own any more.
    """
    aside = f"{uri}.tmp-{secrets.token_hex(4)}"
    try:
        if store.read(uri) != old:
            return False
    except FileNotFoundError:
        return False
    try:
        with contextlib.suppress(FileNotFoundError):  # moved by another call, or by this one whose answer was lost
            store.rename(uri, aside)
        try:
            moved = store.read(aside)  # only this call knows the name: what is there shows what it moved
        except FileNotFoundError:
            return False
        if moved == old and store.create_new(uri, new):
            store.remove(aside)
            return True
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            _put_back(store, aside, uri)
        raise
    _put_back(store, aside, uri)  # replaced after the first look, or created in the gap
    return False


def _put_back(store: interface.Storage, aside: str, uri: str) -> None:
    """Moves a file back, or removes it if there is a newer one in its place."""
    try:
        store.publish(aside, uri)
    except FileExistsError:
        store.remove(aside)


@contextlib.contextmanager
def _temporary_file(data: bytes) -> Iterator[str]:
    """Yields the path of a local file that holds `data`."""
    descriptor, path = tempfile.mkstemp(prefix="imagebeam-")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        yield path
    finally:
        os.unlink(path)


class Pages(Iterator[list[interface.Entry]]):
    """Pages of a directory. A page that fails can be requested again."""

    def __init__(self, request: Callable[[str], tuple[list[interface.Entry], str]]):
        """Requests nothing yet.

        Args:
            request: takes the token of a page, "" for the first one; returns its entries, and the token of the next
                page, "" after the last one.
        """
        self._request = request
        self._token = ""
        self._is_over = False

    def __next__(self) -> list[interface.Entry]:
        if self._is_over:
            raise StopIteration
        entries, self._token = self._request(self._token)
        self._is_over = not self._token
        return entries


class SeekableReader(io.RawIOBase, abc.ABC):
    """A read-only file of `size` bytes with a position. Wrap it in `io.BufferedReader`."""

    def __init__(self, size: int):
        self._size = size
        self._position = 0

    @abc.abstractmethod
    def _read_at(self, position: int, length: int) -> bytes:
        """Returns 1 to `length` bytes from `position`, which is before the end."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._position >= self._size:
            return 0
        data = self._read_at(self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class _RangeReader(SeekableReader):
    """A remote file, read in ranges at any position. Keeps the last range."""

    def __init__(self, store: RemoteStorage, uri: str, entry: interface.Entry):
        super().__init__(entry.size)
        self._store = store
        self._uri = uri
        self._version = entry.version
        self._start, self._range = 0, b""

    def _read_at(self, position: int, length: int) -> bytes:
        if not self._start <= position < self._start + len(self._range):
            range_bytes = min(_RANGE_BYTES, self._size - position)
            self._range = self._store.read(self._uri, position, range_bytes, version=self._version)
            self._start = position
        first = position - self._start
        return self._range[first : first + length]
