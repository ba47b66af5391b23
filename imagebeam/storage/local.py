"""Files on the file systems of this machine."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import posixpath
import secrets
import shutil
import stat
from collections.abc import Iterator
from typing import BinaryIO

from imagebeam.storage import interface

_MORE_BYTES = 1 << 20
_LEADS_NOWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


class LocalStorage:
    """The file systems of this machine. Thread-safe."""

    is_local = True
    swaps_atomically = True
    replaces_in_place = True

    def list_directory(self, uri: str) -> Iterator[interface.Entry]:
        """Yields the entries of a directory in no particular order."""
        with os.scandir(uri) as entries:
            for entry in entries:
                try:
                    yield _entry(entry.name, entry.stat())
                except OSError as e:
                    if entry.is_symlink() and e.errno in _LEADS_NOWHERE:
                        yield interface.Entry(entry.name, interface.BROKEN_LINK, 0, 0, (0, 0))
                    elif e.errno != errno.ENOENT:  # removed meanwhile; to skip any other error would lose an entry
                        raise

    def stat(self, uri: str) -> interface.Entry:
        return _entry(posixpath.basename(uri), os.stat(uri))

    def exists(self, uri: str) -> bool:
        return os.path.exists(uri)

    def read(self, uri: str, offset: int = 0, length: int = -1, size_hint: int = -1, version: int = 0) -> bytes:
        """Reads `length` bytes of a file from `offset`, or all bytes to its end. A correct `size_hint` saves a call.

        Raises:
            ChangedError: if `version`, from an Entry, is given and the file has another one.
        """
        descriptor = os.open(uri, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if version and os.fstat(descriptor).st_mtime_ns != version:
                raise interface.ChangedError(errno.ESTALE, f"{uri} was written")
            return read_descriptor(descriptor, offset, length, size_hint)
        finally:
            os.close(descriptor)

    def open_read(self, uri: str) -> BinaryIO:
        return open(uri, "rb", buffering=0)

    def stored_checksum(self, uri: str) -> tuple[int, int] | None:
        """Returns None: a file system keeps no checksum of a file."""
        return None

    def download(self, uri: str, path: str) -> None:
        """Copies a file to `path`, over any file there."""
        shutil.copyfile(uri, path)

    @contextlib.contextmanager
    def write_file(self, uri: str) -> Iterator[interface.PendingFile]:
        """Opens a new file beside `uri`. When the block ends without an error, it is synced and replaces `uri`."""
        with _temporary_name(uri) as temporary:
            with open(temporary, "x+b", buffering=0) as file:
                yield interface.PendingFile(file)
            self.sync(temporary)
            self.rename(temporary, uri)

    def create_new(self, uri: str, data: bytes) -> bool:
        """Creates a small file unless one exists at `uri`; returns whether this call created it.

        The file appears with its content: nobody reads an empty one.
        """
        try:
            with _temporary_name(uri) as temporary:
                with open(temporary, "xb") as file:
                    file.write(data)
                self.publish(temporary, uri)
        except FileExistsError:
            return False
        return True

    def replace(self, uri: str, old: bytes, new: bytes) -> bool:
        """Replaces a small file if it holds `old`; returns whether this call did it.

        A process that is killed here leaves the old file or the new one.
        """
        try:
            descriptor = os.open(uri, os.O_RDWR | os.O_CLOEXEC)  # NFS locks no file that is open for reading only
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), os.stat(uri)) or read_descriptor(descriptor) != old:
                return False
            self.write_whole(uri, new, durable=False)
        except (BlockingIOError, FileNotFoundError):  # another call replaces it at this moment
            return False
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process forked meanwhile would keep it
            os.close(descriptor)
        return True

    def sync(self, uri: str) -> None:
        """Waits until a file's content, or a directory's entries, are on the disk."""
        descriptor = os.open(uri, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def write_whole(self, uri: str, data: bytes, durable: bool = True) -> None:
        """Writes a small file whole or not at all, over any file there.

        Args:
            uri: address of the file.
            data: all of its bytes.
            durable: whether to wait until the file would survive a power failure.
        """
        with _temporary_name(uri) as temporary:
            with open(temporary, "xb") as file:  # buffered: an unbuffered write may stop short on a nearly full disk
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(temporary, uri)
        if durable:
            self.sync(os.path.dirname(uri) or ".")

    def rename(self, source: str, target: str, version: int = 0) -> None:
        """Moves a file over `target` atomically. To make the move durable, `sync` the directory.

        Args:
            source: address of the file.
            target: its new address.
            version: from an Entry. If given, no other version is moved. A version that is written at this very moment
                may be moved: compare what came.

        Raises:
            ChangedError: if the file has another version.
        """
        if version and os.stat(source).st_mtime_ns != version:
            raise interface.ChangedError(errno.ESTALE, f"{source} was written")
        os.replace(source, target)

    def publish(self, source: str, target: str) -> None:
        """Moves a file to a path where none may exist.

        Raises:
            FileExistsError: if there is one.
        """
        try:
            os.link(source, target)
        except FileExistsError:
            # by an earlier call that was killed, or by this one: NFS may lose the answer and ask again
            if not os.path.samestat(os.lstat(source), os.lstat(target)):
                raise
        except FileNotFoundError:
            raise
        except OSError:  # a file system without hard links
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None
            os.replace(source, target)
            return
        os.unlink(source)

    def make_directories(self, uri: str) -> None:
        os.makedirs(uri, exist_ok=True)

    def remove(self, uri: str, version: int = 0) -> None:
        """Removes one file, if it exists.

        Args:
            uri: its path.
            version: from an Entry. If given, no other version is removed, but for one that is written at this very
                moment.

        Raises:
            ChangedError: if the file has another version.
        """
        try:
            if version and os.stat(uri).st_mtime_ns != version:
                raise interface.ChangedError(errno.ESTALE, f"{uri} was written")
            os.unlink(uri)
        except FileNotFoundError:
            return

    def remove_tree(self, uri: str) -> None:
        """Removes a directory and everything below it, if it exists."""
        shutil.rmtree(uri, ignore_errors=True)


def read_descriptor(descriptor: int, offset: int = 0, length: int = -1, size_hint: int = -1) -> bytes:
    """Reads an open local file, with one call if `length` or `size_hint` is the number of bytes left."""
    if length >= 0:
        expected = wanted = length
    else:
        size = size_hint if size_hint >= 0 else os.fstat(descriptor).st_size
        expected = max(size - offset, 0)
        wanted = expected + 1  # one more byte, to see that the file ends where it should
    data = os.pread(descriptor, wanted, offset)
    if len(data) == expected:
        return data
    parts = [data]
    while parts[-1]:  # the file has another size, or the file system returns less at a time
        offset += len(parts[-1])
        missing = _MORE_BYTES if length < 0 else length - sum(map(len, parts))
        parts.append(os.pread(descriptor, missing, offset))
    return b"".join(parts)


@contextlib.contextmanager
def _temporary_name(uri: str) -> Iterator[str]:
    """Yields a new name beside a file: others may write the same file right now. Removes it if the block fails."""
    temporary = f"{uri}.tmp-{secrets.token_hex(4)}"
    try:
        yield temporary
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _entry(name: str, status: os.stat_result) -> interface.Entry:
    if stat.S_ISREG(status.st_mode):
        kind = interface.FILE
    else:
        kind = interface.DIRECTORY if stat.S_ISDIR(status.st_mode) else interface.SPECIAL
    size = status.st_size if kind == interface.FILE else 0
    return interface.Entry(name, kind, size, status.st_mtime_ns, (status.st_dev, status.st_ino))
