"""The folder of a cache: its limit of bytes and its locks, shared by all processes of one user on one machine.

It contains::

    cache_dir/imagebeam.lock                                    held while room is made
    cache_dir/imagebeam-<hash>/<file>                           a whole file
    cache_dir/imagebeam-<hash>/<file>~<bytes>~<random>          being written; counts with its final size from the start
    cache_dir/imagebeam-<hash>/<file>~lock                      held by the one thread of this machine that writes it

The limit holds for all processes together. A file's modification time says when it was last used; the files used
longest ago are removed to make room. Locks are flock locks: the kernel releases those of a dead process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator

from imagebeam import errors, storage

_POLL_SEC = 0.05  # while files that others write use all the room
_FOLDER_PREFIX = "imagebeam-"
_LOCK_FILE = "imagebeam.lock"
_LOCK_SUFFIX = "~lock"
_TEMPORARY = re.compile(r"(?P<name>[^~]+)~(?P<bytes>\d+)~[0-9a-f]+")


class Room:
    """The cache's folder as a whole: its limit and its locks."""

    def __init__(self, directory: str, max_bytes: int):
        """Creates the folder if it does not exist.

        Raises:
            ConfigError: if it cannot be created.
        """
        self.directory = directory
        self.max_bytes = max_bytes
        with self.errors_named():
            os.makedirs(directory, exist_ok=True)

    def path_of(self, dataset: str, name: str) -> str:
        """Returns the local path of a dataset's file; `dataset` is a plain name."""
        return storage.join(self.directory, _FOLDER_PREFIX + dataset, name)

    @contextlib.contextmanager
    def errors_named(self) -> Iterator[None]:
        """Raises ConfigError if the local disk fails. Errors of the network are not OSErrors here."""
        try:
            yield
        except OSError as e:
            raise errors.ConfigError(
                f"cache_dir {self.directory} cannot be used ({e}): free space there, lower cache_bytes, "
                "or give a folder on another local disk"
            ) from e

    @contextlib.contextmanager
    def hold(self, path: str, must_wait: bool) -> Iterator[bool]:
        """Locks the file at `path` for writing; yields False if it is locked and `must_wait` is false."""
        lock = path + _LOCK_SUFFIX
        descriptor = _acquire(lock, must_wait)
        if descriptor is None:
            yield False
            return
        try:
            yield True
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(lock)
            _release(descriptor)

    @contextlib.contextmanager
    def create(self, path: str, num_bytes: int, must_wait: bool) -> Iterator[str | None]:
        """Makes room and yields a temporary file. When the block ends without an error, it becomes the file at `path`.

        The caller holds `path`. Yields None if files that others write use the room and `must_wait` is false.
        """
        temporary = self._reserve(path, num_bytes, must_wait)
        if temporary is None:
            yield None
            return
        try:
            yield temporary
            with self._locked():
                mark_used(temporary)
                os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise

    def _reserve(self, path: str, num_bytes: int, must_wait: bool) -> str | None:
        while True:
            with self._locked():
                if self._make_room(num_bytes, path):
                    temporary = f"{path}~{num_bytes}~{secrets.token_hex(4)}"
                    open(temporary, "xb").close()
                    return temporary
            if not must_wait:
                return None
            time.sleep(_POLL_SEC)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(storage.join(self.directory, _LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            _release(descriptor)

    def _make_room(self, num_bytes: int, held: str) -> bool:
        """Removes the files used longest ago until `num_bytes` fit.

        Returns False, and removes no whole file, if `num_bytes` cannot fit beside the files being written.
        """
        kept, num_reserved = [], 0
        for entry in self._entries():
            with contextlib.suppress(FileNotFoundError):  # the user may clear the folder at any time
                if match := _TEMPORARY.fullmatch(entry.name):
                    owner = storage.join(os.path.dirname(entry.path), match["name"])
                    if owner != held and _is_held(owner + _LOCK_SUFFIX):
                        num_reserved += int(match["bytes"])
                    else:
                        os.unlink(entry.path)  # its process has died
                elif not entry.name.endswith(_LOCK_SUFFIX):
                    status = entry.stat()
                    kept.append((status.st_mtime_ns, entry.path, status.st_size))
        if num_reserved + num_bytes > self.max_bytes:
            return False
        excess = sum(size for _, _, size in kept) + num_reserved + num_bytes - self.max_bytes
        for _, path, size in sorted(kept):
            if excess <= 0:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            with contextlib.suppress(OSError):  # not empty
                os.rmdir(os.path.dirname(path))
            excess -= size
        return True

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        """Yields the files of the cache's own folders: nothing else in `cache_dir` is counted or removed."""
        with os.scandir(self.directory) as folders:
            for folder in folders:
                if folder.name.startswith(_FOLDER_PREFIX) and folder.is_dir():
                    with contextlib.suppress(FileNotFoundError), os.scandir(folder.path) as entries:
                        yield from entries


def mark_used(file: str | int) -> None:
    """Marks a file, given by path or descriptor, as just used: it is the last to be removed."""
    now = time.time_ns()
    os.utime(file, ns=(now, now))


def _acquire(lock: str, must_wait: bool) -> int | None:
    """Returns the descriptor of the locked lock file; None if it is locked and `must_wait` is false."""
    while True:
        os.makedirs(os.path.dirname(lock), exist_ok=True)
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # a process that makes room removes empty folders
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if must_wait else fcntl.LOCK_NB))
            if os.path.samestat(os.fstat(descriptor), os.stat(lock)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass  # its holder removed it at the end
        os.close(descriptor)


def _release(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough: a process forked meanwhile holds a copy
    os.close(descriptor)


def _is_held(lock: str) -> bool:
    """Returns whether a live process holds the lock file."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        _release(descriptor)
