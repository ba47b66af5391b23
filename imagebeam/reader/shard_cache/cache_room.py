"""The bounded folder of a cache, shared by the datasets and processes of one machine and one user.

What is in it::

    cache_dir/imagebeam.lock                                    held while room is made
    cache_dir/imagebeam-<hash>/<file>                           whole
    cache_dir/imagebeam-<hash>/<file>~<bytes>~<random>          being written; counts in full from its beginning
    cache_dir/imagebeam-<hash>/<file>~lock                      held by the one thread of this machine that writes it

The bound holds for all processes together. A file's modification time says when it was last used; those used longest
ago make room. Locks are those of flock, which the kernel takes back from a dead process.
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

_POLL_SEC = 0.05  # while files that others write take up all room
_FOLDER_PREFIX = "imagebeam-"
_LOCK_FILE = "imagebeam.lock"
_LOCK_SUFFIX = "~lock"
_TEMPORARY = re.compile(r"(?P<name>[^~]+)~(?P<bytes>\d+)~[0-9a-f]+")


class Room:
    """The cache's folder as a whole: its bound and its locks."""

    def __init__(self, directory: str, max_bytes: int):
        """Makes the folder if it is not there.

        Raises:
            ConfigError: if it cannot be made.
        """
        self.directory = directory
        self.max_bytes = max_bytes
        with self.errors_named():
            os.makedirs(directory, exist_ok=True)

    def path_of(self, dataset: str, name: str) -> str:
        """Where a dataset's file is kept; `dataset` is a plain name."""
        return storage.join(self.directory, _FOLDER_PREFIX + dataset, name)

    @contextlib.contextmanager
    def errors_named(self) -> Iterator[None]:
        """Raises ConfigError where the local disk fails; what the network does comes as another error."""
        try:
            yield
        except OSError as e:
            raise errors.ConfigError(
                f"cache_dir {self.directory} cannot be used ({e}): free space there, lower cache_bytes, "
                "or give a folder on another local disk"
            ) from e

    @contextlib.contextmanager
    def hold(self, path: str, must_wait: bool) -> Iterator[bool]:
        """Holds the right to write the file at `path`; yields False if another has it and `must_wait` is not set."""
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
        """Yields a temporary file with room for it, which becomes that at `path` if all goes well.

        The caller holds `path`. Yields None if what others write takes up the room and `must_wait` is not set.
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
        """Removes what was used longest ago until `num_bytes` fit; nothing, and False, where that is not enough."""
        kept, num_reserved = [], 0
        for entry in self._entries():
            with contextlib.suppress(FileNotFoundError):  # the user may clear the folder at any time
                if match := _TEMPORARY.fullmatch(entry.name):
                    owner = storage.join(os.path.dirname(entry.path), match["name"])
                    if owner != held and _is_held(owner + _LOCK_SUFFIX):
                        num_reserved += int(match["bytes"])
                    else:
                        os.unlink(entry.path)  # of a process that died
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
        """The files in the folders that were made here: nothing else in `cache_dir` is counted or removed."""
        with os.scandir(self.directory) as folders:
            for folder in folders:
                if folder.name.startswith(_FOLDER_PREFIX) and folder.is_dir():
                    with contextlib.suppress(FileNotFoundError), os.scandir(folder.path) as entries:
                        yield from entries


def mark_used(file: str | int) -> None:
    """Puts a file, by its path or descriptor, last among those that make room."""
    now = time.time_ns()
    os.utime(file, ns=(now, now))


def _acquire(lock: str, must_wait: bool) -> int | None:
    """The lock file, open and held; None where another has it and `must_wait` is not set."""
    while True:
        os.makedirs(os.path.dirname(lock), exist_ok=True)
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # who makes room removes folders that are empty
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
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough: a process forked meanwhile has a copy
    os.close(descriptor)


def _is_held(lock: str) -> bool:
    """Whether a live process holds the lock file."""
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
