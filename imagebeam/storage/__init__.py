"""Files at any address, behind one interface: a new scheme is added here."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import io
import os
import posixpath
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, Protocol

from imagebeam import errors

_MORE_BYTES = 1 << 20
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")

_FILE_SCHEME = re.compile(r"^file://(localhost)?(?=/)", re.IGNORECASE)
_LEADS_NOWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_AT_ITS_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # of the machine: open files, memory

FILE, DIRECTORY, SPECIAL, BROKEN_LINK = "file", "directory", "special", "broken link"


class Entry(NamedTuple):
    """One entry of a directory, links followed."""

    name: str
    kind: str  # FILE, DIRECTORY, SPECIAL (a pipe, a device, a socket) or BROKEN_LINK
    size: int  # bytes; 0 for what is not a file
    mtime_ns: int
    identity: tuple[int, int]  # device and inode, to see loops of links


class ChangedError(OSError):
    """A file is not the version that was asked for."""


class UnavailableError(OSError):
    """A storage did not answer, however often it was asked."""


def is_fault(error: OSError) -> bool:
    """Whether the storage or this machine failed, and says nothing of the file: another run may find it readable."""
    return isinstance(error, UnavailableError) or error.errno in _AT_ITS_LIMITS


@dataclasses.dataclass
class PendingFile:
    """A file that is being written, and appears at its address when all of it is there."""

    file: io.FileIO  # on the local disk, open for writing and reading, without a buffer
    checksum: tuple[int, int] | None = None  # size and crc32c, where the writer knows them: then they are compared


class Storage(Protocol):
    """What imagebeam needs of a file system. Paths are whole addresses; errors are OSErrors."""

    is_local: bool  # whether it has descriptors and locks

    def list_directory(self, uri: str) -> Iterator[Entry]: ...
    def stat(self, uri: str) -> Entry: ...
    def exists(self, uri: str) -> bool: ...
    def read(self, uri: str, offset: int = 0, length: int = -1, size_hint: int = -1, version: int = 0) -> bytes: ...
    def open_read(self, uri: str) -> BinaryIO: ...
    def write_file(self, uri: str) -> contextlib.AbstractContextManager[PendingFile]: ...
    def write_whole(self, uri: str, data: bytes, durable: bool = True) -> None: ...
    def create_new(self, uri: str, data: bytes) -> bool: ...
    def sync(self, uri: str) -> None: ...
    def rename(self, source: str, target: str) -> None: ...
    def publish(self, source: str, target: str) -> None: ...
    def make_directories(self, uri: str) -> None: ...
    def remove(self, uri: str) -> None: ...
    def remove_tree(self, uri: str) -> None: ...


class LocalStorage:
    """The machine's own file system."""

    is_local = True

    def list_directory(self, uri: str) -> Iterator[Entry]:
        """The entries of a directory in no particular order."""
        with os.scandir(uri) as entries:
            for entry in entries:
                try:
                    yield _entry(entry.name, entry.stat())
                except OSError as e:
                    if entry.is_symlink() and e.errno in _LEADS_NOWHERE:
                        yield Entry(entry.name, BROKEN_LINK, 0, 0, (0, 0))
                    elif e.errno != errno.ENOENT:  # removed since; anything else would lose what is there
                        raise

    def stat(self, uri: str) -> Entry:
        return _entry(posixpath.basename(uri), os.stat(uri))

    def exists(self, uri: str) -> bool:
        return os.path.exists(uri)

    def read(self, uri: str, offset: int = 0, length: int = -1, size_hint: int = -1, version: int = 0) -> bytes:
        """The bytes of a file from `offset`, `length` of them or to the end. A right `size_hint` saves a call.

        Raises:
            ChangedError: if a `version` is given, the mtime_ns of an Entry, and the file has another.
        """
        descriptor = os.open(uri, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if version and os.fstat(descriptor).st_mtime_ns != version:
                raise ChangedError(errno.ESTALE, f"{uri} was written")
            return read_descriptor(descriptor, offset, length, size_hint)
        finally:
            os.close(descriptor)

    def open_read(self, uri: str) -> BinaryIO:
        return open(uri, "rb", buffering=0)

    @contextlib.contextmanager
    def write_file(self, uri: str) -> Iterator[PendingFile]:
        """A new file beside `uri`, which takes its place when the block ends well, and is on the disk then."""
        temporary = f"{uri}.tmp-{secrets.token_hex(4)}"  # another process may write the same file at this moment
        try:
            with open(temporary, "x+b", buffering=0) as file:
                yield PendingFile(file)
            self.sync(temporary)
            self.rename(temporary, uri)
        except BaseException:
            self.remove(temporary)
            raise

    def create_new(self, uri: str, data: bytes) -> bool:
        """Puts a small file there if there is none; whether it was put there."""
        try:
            with open(uri, "xb") as file:
                file.write(data)
        except FileExistsError:
            return False
        return True

    def sync(self, uri: str) -> None:
        """Waits until a file's data, or a directory's names, are on the disk."""
        descriptor = os.open(uri, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def write_whole(self, uri: str, data: bytes, durable: bool = True) -> None:
        """Puts a small file there whole or not at all, replacing what stands there.

        Args:
            uri: of the file.
            data: all of its bytes.
            durable: whether to wait until it would survive a loss of power.
        """
        temporary = f"{uri}.tmp-{secrets.token_hex(4)}"  # another thread or machine may write the same file
        try:
            with open(temporary, "xb") as file:  # buffered: without, a nearly full disk may take a part and say nothing
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(temporary, uri)
        except BaseException:
            self.remove(temporary)
            raise
        if durable:
            self.sync(os.path.dirname(uri) or ".")

    def rename(self, source: str, target: str) -> None:
        """Moves a file over `target` in one step; `sync` its directory to make the move last."""
        os.replace(source, target)

    def publish(self, source: str, target: str) -> None:
        """As `rename`: a lock keeps other runs away."""
        self.rename(source, target)

    def make_directories(self, uri: str) -> None:
        os.makedirs(uri, exist_ok=True)

    def remove(self, uri: str) -> None:
        """Removes one file; it may be gone already."""
        try:
            os.unlink(uri)
        except FileNotFoundError:
            return

    def remove_tree(self, uri: str) -> None:
        """Removes a directory and all below it; it may be gone already."""
        shutil.rmtree(uri, ignore_errors=True)


def read_descriptor(descriptor: int, offset: int = 0, length: int = -1, size_hint: int = -1) -> bytes:
    """Reads an open local file: in one call where `length` or `size_hint` says how much there is."""
    if length >= 0:
        expected = wanted = length
    else:
        size = size_hint if size_hint >= 0 else os.fstat(descriptor).st_size
        expected = max(size - offset, 0)
        wanted = expected + 1  # one more, to see that the file ends where it should
    data = os.pread(descriptor, wanted, offset)
    if len(data) == expected:
        return data
    parts = [data]
    while parts[-1]:  # the file is of another size, or the file system gives less at a time
        offset += len(parts[-1])
        missing = _MORE_BYTES if length < 0 else length - sum(map(len, parts))
        parts.append(os.pread(descriptor, missing, offset))
    return b"".join(parts)


def _entry(name: str, status: os.stat_result) -> Entry:
    if stat.S_ISREG(status.st_mode):
        kind = FILE
    else:
        kind = DIRECTORY if stat.S_ISDIR(status.st_mode) else SPECIAL
    return Entry(name, kind, status.st_size if kind == FILE else 0, status.st_mtime_ns, (status.st_dev, status.st_ino))


_LOCAL = LocalStorage()


def scheme_of(uri: str) -> str:
    """`gs` of `gs://bucket/x`; `file` of a path."""
    match = _SCHEME.match(uri)
    return match[1].lower() if match else "file"


def root_of(uri: str) -> str:
    """What an address on a network begins with: the bucket, or the host and its port."""
    scheme, _, rest = uri.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def normalize(uri: str | os.PathLike[str]) -> str:
    """A local path made absolute, links kept; another address as it is, without a slash at the end.

    Raises:
        ConfigError: if a `file://` address names a host.
    """
    uri = os.fspath(uri)
    if scheme_of(uri) != "file":
        return uri.rstrip("/")
    path = _FILE_SCHEME.sub("", uri)
    if _SCHEME.match(path):
        raise errors.ConfigError(f"address {uri!r} names a host after file://; write file:///path, or the path alone")
    return os.path.abspath(os.path.expanduser(path))


def join(directory: str, *names: str) -> str:
    """An address below `directory`; no name of it starts with a slash."""
    return "/".join((directory.rstrip("/"), *names))  # four times as fast as posixpath.join, once for each image


def storage_of(uri: str) -> Storage:
    """The storage that holds `uri`.

    Raises:
        ConfigError: if no storage is known for its scheme, or its package is not installed.
    """
    scheme = scheme_of(uri)
    if scheme == "file":
        return _LOCAL
    try:
        return _remote(scheme)
    except errors.ConfigError as e:
        raise errors.ConfigError(f"address {uri!r}: {e}") from e


@functools.cache
def _remote(scheme: str) -> Storage:
    if scheme == "gs":
        from imagebeam.storage import gcs

        return gcs.GcsStorage()
    from imagebeam.storage import fsspec_files

    return fsspec_files.WebHdfsStorage() if scheme == "hdfs" else fsspec_files.FsspecStorage(scheme)
