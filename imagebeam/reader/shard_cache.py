"""Whole shards of a remote dataset on a local disk: downloaded when they are first needed, checked, and kept.

The folder of the cache contains::

    cache_dir/imagebeam.lock                                    held while room is made
    cache_dir/imagebeam-<hash>/<shard>                          one folder for an address and the content of its catalog
    cache_dir/imagebeam-<hash>/<stem>.index                     the byte offsets of a shard's records
    cache_dir/imagebeam-<hash>/<stem>.sizes                     heights and widths of its images
    cache_dir/imagebeam-<hash>/<stem>.sizes.made                the same where the dataset does not tell them
    cache_dir/imagebeam-<hash>/<file>~<bytes>~<random>          being written; counts with its final size from the start
    cache_dir/imagebeam-<hash>/<file>~lock                      held by the one thread of this machine that writes it

For snapshots, a folder of the cache is for one folder of shards, and the names there begin with the shard's crc32c: so
a shard that several snapshots name is kept once.

The limit of bytes holds for all processes of one user on one machine together. A file's modification time says when it
was last used; the files used longest ago are removed to make room. Locks are flock locks: the kernel releases those of
a dead process.

A shard gets its final name after it was checked against the catalog (size and crc32c). So a file with a shard's name is
whole, and other processes, or the next run, use it as it is. With the first shard that a reader asks for, all that it
will read are downloaded, in their order; those that a reader waits for go first.

Files are reopened after a minute, which marks them as used. Files that were removed are closed when room is made; a
process that pauses may hold the space of removed shards until it reads on or ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import posixpath
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import concurrency, errors, records, storage
from imagebeam.reader import shard_files

_LOGGER = logging.getLogger(__name__)

_POLL_SEC = 0.05  # while files that others write use all the room
_FOLDER_PREFIX = "imagebeam-"
_LOCK_FILE = "imagebeam.lock"
_LOCK_SUFFIX = "~lock"
_TEMPORARY = re.compile(r"(?P<name>[^~]+)~(?P<bytes>\d+)~[0-9a-f]+")
_REFRESH_SEC = 60.0
_NUM_DOWNLOADS = 4  # at once
_DAMAGE_WAITS_SEC = (1.0, 3.0)
# Its last part is safe for a local file.
_PLAIN_NAME = re.compile(r"(\.\./\d{6,}/|([A-Za-z0-9][A-Za-z0-9_. -]*/)*)[A-Za-z0-9][A-Za-z0-9_.-]*")


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
                "cache-unusable",
                f"cache_dir {self.directory} cannot be used ({e}): free space there, lower cache_bytes, "
                "or give a folder on another local disk",
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


class _OpenShard(shard_files.OpenFile):
    """A local shard, to be reopened after a while."""

    def __init__(self, path: str, refresh_sec: float):
        super().__init__(path)
        self.refresh_at = time.monotonic() + refresh_sec


class ShardCache(concurrency.RebuiltAfterFork):
    """The local shards of one dataset. Thread-safe. A pickled copy, or a forked process, starts without open files."""

    def __init__(
        self,
        directory: str,
        storage_options: Mapping[str, Any],
        room: Room,
        catalog: catalog_lib.Catalog,
        num_downloads: int = _NUM_DOWNLOADS,
        damage_waits_sec: Sequence[float] = _DAMAGE_WAITS_SEC,
        refresh_sec: float = _REFRESH_SEC,
    ):
        """Begins without open files and downloads.

        Args:
            directory: address of the catalog's folder.
            storage_options: for `storage.storage_of`.
            room: the folder of the cache.
            catalog: of the dataset.
            num_downloads: number of downloads that run at once.
            damage_waits_sec: waits between attempts at a shard that arrives damaged; one attempt more than waits.
            refresh_sec: time after which a file is reopened, and marked as used.

        Raises:
            CatalogError: if the name of a shard is not safe for a local file.
        """
        shards = [shard for split in catalog.splits.values() for shard in split.shards]
        for shard in shards:
            if not _PLAIN_NAME.fullmatch(shard.name):
                raise errors.CatalogError(
                    "catalog-bad-shard-name",
                    f"{directory} names a shard {shard.name!r}, which is not a plain file name; convert again",
                )
        self.room = room
        self._arguments = directory, storage_options, room, catalog, num_downloads, damage_waits_sec, refresh_sec
        self._directory = directory
        self._storage_options = dict(storage_options)
        self._num_downloads = num_downloads
        self._damage_waits_sec = damage_waits_sec
        self._refresh_sec = refresh_sec
        content = repr((directory, catalog.fingerprint, [(each.name, each.bytes, each.crc32c) for each in shards]))
        shares_names = catalog.snapshot or not catalog.is_self_contained or any("/" in each.name for each in shards)
        # In a snapshot each shard is named by its own address and content, because other snapshots read it too.
        self._dataset = None if shares_names else _short_name(content)
        self._by_name = {shard.name: shard for shard in shards}
        super().__init__()

    def rebuild(self) -> None:
        self._lock = threading.Lock()
        self._files: shard_files.OpenFiles[_OpenShard] = shard_files.OpenFiles()
        self._tasks: concurrency.Tasks[str, _OpenShard | None] = concurrency.Tasks(
            self._download_task, self._num_downloads, "imagebeam-download"
        )
        self._downloaded: set[str] = set()
        self._num_again = 0  # downloads of shards that had been downloaded before
        self._is_too_small = False

    @property
    def store(self) -> storage.Storage:
        """The storage of the address; looked up each time, for a pickled copy has none."""
        return storage.storage_of(self._directory, self._storage_options)

    def open(
        self,
        shard: catalog_lib.Shard,
        following: Sequence[catalog_lib.Shard] = (),
        count: Callable[[str, float], None] = lambda name, number: None,
    ) -> shard_files.ShardFile:
        """Opens a shard, after its download if it is missing, and announces the shards that follow.

        If shards had to be downloaded again, because other readers of this machine need the room, a missing one is
        read at its address. `count` is called with "cache_hits" if it was there, else with "cache_misses", and 1.

        Raises:
            ShardError: if it cannot be downloaded, or differs from the catalog.
            ConfigError: if the local disk fails.
        """
        file = self._files.find(shard.name)
        if file is not None and time.monotonic() <= file.refresh_at:
            count("cache_hits", 1)
            return file
        with self.room.errors_named():
            file = self._open_whole(shard)
            count("cache_hits" if file else "cache_misses", 1)
            if file is None and self._is_too_small:
                return shard_files.RemoteFile(self.store, self._uri_of(shard.name))
            asked = None if file else self._tasks.ask(shard.name)
            if not self._is_too_small:
                self._tasks.announce(each.name for each in following if not os.path.exists(self._path(each)))
            while file is None:
                assert asked is not None
                file = asked.result() or self._open_whole(shard)
                asked = None if file else self._tasks.ask(shard.name)
        self._files.put(shard.name, file)
        return file

    def read_side_file(self, uri: str, shard: catalog_lib.Shard, file: catalog_lib.SideFile) -> bytes:
        """Returns the bytes of a file beside a shard. Keeps them if they are valid; the caller checks them too."""

        def is_valid(data: bytes) -> bool:
            if file.name == shard.index_name:
                return _is_index_of(data, shard)
            return catalog_lib.entry_of(data) == file.entry

        data = self.find(shard, file.name, is_valid)
        if data is None:
            data = self.store.read(uri)
            if is_valid(data):
                self.keep(shard, file.name, data)
        return data

    def find(self, shard: catalog_lib.Shard, name: str, is_valid: Callable[[bytes], bool]) -> bytes | None:
        """Returns the content of a file that is kept beside a shard; None if there is none that is valid."""
        path = self._path(shard, name)
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            data = file.read()
            if is_valid(data):
                mark_used(path)
                return data
        return None

    def keep(self, shard: catalog_lib.Shard, name: str, data: bytes) -> bool:
        """Keeps a file beside a shard; returns False if there is no room now, or another process writes the file."""
        path = self._path(shard, name)
        with self.room.errors_named(), self.room.hold(path, must_wait=False) as is_held:
            if is_held:
                with self.room.create(path, len(data), must_wait=False) as temporary:
                    if temporary is not None:
                        with open(temporary, "wb") as file:
                            file.write(data)
                        return True
        return False

    def _uri_of(self, name: str) -> str:
        return storage.join_relative(self._directory, name)

    def _path(self, shard: catalog_lib.Shard, name: str = "") -> str:
        """Returns the local path of a shard, or of a file beside it, whose `name` is given."""
        stem = posixpath.basename(name or shard.name)
        if self._dataset is not None:
            return self.room.path_of(self._dataset, stem)
        folder = posixpath.dirname(self._uri_of(shard.name))
        return self.room.path_of(_short_name(folder), f"{shard.crc32c:08x}-{stem}")

    def _open_whole(self, shard: catalog_lib.Shard) -> _OpenShard | None:
        """Opens a shard if it is kept. A file of another size is not ours: it is downloaded again, over that file."""
        try:
            file = _OpenShard(self._path(shard), self._refresh_sec)
        except FileNotFoundError:
            return None
        if os.fstat(file.descriptor).st_size != shard.bytes:
            return None
        mark_used(file.descriptor)
        return file

    def _download_task(self, task: concurrency.Task[str, _OpenShard | None]) -> _OpenShard | None:
        """Downloads a shard and opens it.

        Returns None for a shard that no reader waits for, if another process downloads it or there is no room now.
        """
        shard = self._by_name[task.key]
        path = self._path(shard)
        try:
            with self.room.errors_named(), self.room.hold(path, task.is_asked) as is_held:
                if not is_held:
                    return None
                if (file := self._open_whole(shard)) is not None:  # downloaded by the previous holder of the lock
                    return file
                with self.room.create(path, shard.bytes, task.is_asked) as temporary:
                    self._files.remove_unlinked()
                    if temporary is None:
                        return None
                    begin = time.monotonic()
                    self._download(shard, temporary)
                    file = _OpenShard(temporary, self._refresh_sec)  # before another process can remove it to make room
        except BaseException as e:
            if not task.is_asked:
                self._tasks.forget_announced()
                _LOGGER.warning("fetching ahead stops until the next shard is asked for: %s", e)
            raise
        _LOGGER.info("downloaded %s, %s bytes in %.1f s", shard.name, f"{shard.bytes:,}", time.monotonic() - begin)
        self._count(shard)
        return file

    def _download(self, shard: catalog_lib.Shard, path: str) -> None:
        """Writes a shard to the local `path`, synced and checked against the catalog.

        Raises:
            ShardError: if it cannot be downloaded, or differs from the catalog after the last attempt.
            LocalDiskError: if the local disk fails.
        """
        uri = self._uri_of(shard.name)
        for wait in (*self._damage_waits_sec, None):
            try:
                self.store.download(uri, path)
            except storage.LocalDiskError:
                raise
            except FileNotFoundError as e:
                detail = f"is missing ({e.strerror or e}): run imagebeam verify, then convert again"
                raise errors.ShardError("shard-missing", f"shard {uri} {detail}") from e
            except PermissionError as e:
                detail = f"cannot be read ({e.strerror or e}): grant read access to it"
                raise errors.ShardError("shard-unreadable", f"shard {uri} {detail}") from e
            except OSError as e:
                raise errors.ShardError(
                    "shard-unreadable",
                    f"shard {uri} cannot be downloaded ({e.strerror or e}): check that its address can be reached from "
                    "here, and run again; what was downloaded is kept",
                ) from e
            num_bytes, crc = _sync_and_checksum(path)
            if (num_bytes, crc) == (shard.bytes, shard.crc32c):
                return
            if wait is None:
                raise errors.ShardError(
                    "shard-differs",
                    f"shard {uri} comes as {num_bytes:,} bytes with crc32c {crc:08x}, the catalog says "
                    f"{shard.bytes:,} bytes with {shard.crc32c:08x}: it was cut short or replaced; "
                    "run imagebeam verify, then convert again with --overwrite",
                )
            time.sleep(wait)

    def _count(self, shard: catalog_lib.Shard) -> None:
        """Ends the downloads if more than an eighth of the shards came again."""
        with self._lock:
            self._num_again += shard.name in self._downloaded
            self._downloaded.add(shard.name)
            if self._is_too_small or self._num_again <= len(self._downloaded) // 8:
                return
            self._is_too_small = True
        self._tasks.forget_announced()
        _LOGGER.warning(
            "%s had to be downloaded again: what this machine reads does not fit into cache_bytes=%s. From now on "
            "missing shards are read at their address, record by record: give cache_bytes for all readers together",
            self._uri_of(shard.name),
            f"{self.room.max_bytes:,}",
        )

    def __reduce__(self) -> tuple[type[ShardCache], tuple[Any, ...]]:
        return ShardCache, self._arguments


class CachedFiles(shard_files.ShardFiles):
    """The shards of one split in a cache."""

    def __init__(self, cache: ShardCache, split: shard_files.SplitShards, ahead: Sequence[int]):
        """Takes the shards that will be read, in their order."""
        super().__init__(split)
        self._cache = cache
        self._ahead = list(ahead)

    def open(self, shard: int) -> shard_files.ShardFile:
        ahead, self._ahead = self._ahead, []  # announced with the first one
        order = [each for each in ahead if each > shard] + [each for each in ahead if each < shard]
        shards = self._split.shards
        return self._cache.open(shards[shard], [shards[each] for each in order], self.counters.add)

    def __reduce__(self) -> tuple[type[CachedFiles], tuple[Any, ...]]:
        return CachedFiles, (self._cache, self._split, self._ahead)


def _short_name(content: str) -> str:
    """Returns a short name, for a folder of the cache, of what a text describes."""
    return hashlib.blake2b(content.encode(), digest_size=12).hexdigest()


def _sync_and_checksum(path: str) -> tuple[int, int]:
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())  # so that a file with a shard's name is whole after a power failure, too
        return records.checksum_file(file)


def _is_index_of(data: bytes, shard: catalog_lib.Shard) -> bool:
    return len(data) == 8 * (shard.records + 1) and shard_files.are_offsets_of(np.frombuffer(data, "<u8"), shard)
