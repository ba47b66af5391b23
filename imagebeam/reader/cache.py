"""A dataset at any address that fsspec reads, through whole shards that are kept on a local disk.

A shard that is asked for and not there is downloaded, checked against the catalog (size and crc32c), and only then
given its name; so a file under a shard's name is whole, and is taken as it is by other processes and after a restart::

    cache_dir/imagebeam.lock                      held while room is made
    cache_dir/imagebeam-<hash>/<shard>            one folder for an address and the content that its catalog names
    cache_dir/imagebeam-<hash>/<stem>.index       the byte offsets of a shard's records
    cache_dir/imagebeam-<hash>/<shard>~<bytes>~<random>   being downloaded; counts in full from its beginning
    cache_dir/imagebeam-<hash>/<shard>~lock       held by the one thread of this machine that downloads it

What is fetched ahead. A reader does not tell which shards it will read, yet shares are regular: every n-th shard, or a
run of them (`selection.share_of`). So the shards between the first and the last one that were asked for, at their
greatest common distance, are of the share, and so are those that follow at that distance, but for at most four beyond
the end of a run: almost nothing of another machine's share is downloaded. Where these fit into the cache, all of them
are fetched, each once, in the order of their index: blocks in random order touch every shard within minutes. Where they
do not fit, only a walk in the order of the shards is fetched ahead of, by four shards and at most half of the cache:
under a random order that would push out as much as it brings. Shards that a reader waits for go first. Who knows better
can say so with `announce`.

The bound holds for all processes that share the folder. A file's modification time says when it was last used, to the
minute. Files are opened anew after a minute, and those that were removed are let go when room is made; a process that
stands still may hold the space of removed shards until it reads on or ends.

The cache is of one machine and one user: locks are those of flock, which the kernel takes back from a dead process.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import errno
import fcntl
import hashlib
import io
import logging
import math
import os
import posixpath
import re
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import errors, records, storage
from imagebeam.reader import fetch, sources

_LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")

_NUM_DOWNLOADS = 4  # at once
_NUM_AHEAD = 4  # shards beyond those that are surely read
_RETRY_WAITS_SEC = (1.0, 3.0)
_REFRESH_SEC = 60.0  # after which a file is opened anew, and marked as used
_POLL_SEC = 0.05  # while downloads of others take up all room
_MAX_OPEN_SHARDS = 256
_CHECK_BYTES = 1 << 20

_FOLDER_PREFIX = "imagebeam-"
_LOCK_FILE = "imagebeam.lock"
_LOCK_SUFFIX = "~lock"
_TEMPORARY = re.compile(r"(?P<name>[^~]+)~(?P<bytes>\d+)~[0-9a-f]+")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # what becomes a local file's name

_LASTING = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, NotImplementedError)
_OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
_PACKAGES = {
    "gs": "'imagebeam[gcs]'",
    "gcs": "'imagebeam[gcs]'",
    "hdfs": "'imagebeam[hdfs]'",
    "webhdfs": "'imagebeam[hdfs]'",
    "s3": "s3fs",
    "s3a": "s3fs",
}


class CachedSource(sources._Source):
    """A dataset whose shards are read from `cache_dir`, where they are brought when first needed. Thread-safe.

    Pickled, or in a process that was forked, it begins anew on the same folder.
    """

    def __init__(
        self,
        directory: str,
        cache_dir: str,
        cache_bytes: int,
        *,
        storage_options: Mapping[str, Any] | None = None,
        num_downloads: int = _NUM_DOWNLOADS,
        retry_waits_sec: Sequence[float] = _RETRY_WAITS_SEC,
    ):
        """Opens the file system; what stands there is read later.

        Args:
            directory: address of the dataset, of a scheme that fsspec knows.
            cache_dir: a local folder; made if it is not there. Datasets may share it.
            cache_bytes: that all shards in it may take.
            storage_options: what the file system of the address takes beside it, such as credentials.
            num_downloads: shards that are downloaded at once.
            retry_waits_sec: between attempts at what fails, one more than there are waits.

        Raises:
            ConfigError: if the address cannot be read here, or `cache_dir` is not a local folder.
        """
        super().__init__(storage.normalize(directory))
        if storage.scheme_of(cache_dir) != "file":
            raise errors.ConfigError(f"cache_dir is {cache_dir!r}; give a folder on a local disk")
        self._remote = _Remote(self.directory, storage_options or {}, retry_waits_sec)
        self._room = _Room(storage.normalize(cache_dir), cache_bytes)
        with self._room.errors_named():
            os.makedirs(self._room.directory, exist_ok=True)
        self._num_downloads = num_downloads
        self._sizes: Mapping[str, int] = {}
        self._folder: _Folder | None = None
        self._indexed: Mapping[str, catalog_lib.Shard] = {}
        self._places: dict[str, _CachedPlace] = {}  # by the name of a split's first shard

    def load_catalog(self) -> catalog_lib.Catalog:
        catalog = super().load_catalog()
        shards = [shard for split in catalog.splits.values() for shard in split.shards]
        for shard in shards:
            if not _PLAIN_NAME.fullmatch(shard.name):
                raise errors.CatalogError(
                    f"{self.directory} names a shard {shard.name!r}, which is not a plain file name; convert again"
                )
        content = repr((self.directory, catalog.fingerprint, [(each.name, each.bytes, each.crc32c) for each in shards]))
        name = _FOLDER_PREFIX + hashlib.blake2b(content.encode(), digest_size=12).hexdigest()
        self._folder = _Folder(self._remote, self._room, name, self._num_downloads)
        self._places = {}
        if catalog.compression == "none":
            self._indexed = {shard.index_name: shard for shard in shards}
        return catalog

    def check_shards(self, catalog: catalog_lib.Catalog) -> None:
        """As of any source, with one listing for all shards where the file system can list."""
        try:
            self._sizes = self._remote.list_sizes()
        except (OSError, NotImplementedError):
            self._sizes = {}  # each shard is asked for alone
        super().check_shards(catalog)

    def size_of(self, uri: str) -> int:
        size = self._sizes.get(posixpath.basename(uri))
        return self._remote.size_of(uri) if size is None else size

    def read(self, uri: str) -> bytes:
        """All bytes of a small file; those of an index are kept."""
        shard = self._indexed.get(uri.removeprefix(f"{self.directory}/"))
        if shard is None or self._folder is None:
            return self._remote.read(uri)
        return self._folder.read_index(uri, shard)

    def place(self, shards: Sequence[catalog_lib.Shard], offsets: fetch.Offsets) -> fetch.Place:
        return self._place(shards)

    def open_shard(self, shards: Sequence[catalog_lib.Shard], index: int) -> BinaryIO:
        return self._place(shards).open(index)

    def _place(self, shards: Sequence[catalog_lib.Shard]) -> _CachedPlace:
        if self._folder is None:
            self.load_catalog()
        assert self._folder is not None
        known = self._places.get(shards[0].name)
        return known or self._places.setdefault(shards[0].name, _CachedPlace(self._folder, shards))


class _CachedPlace:
    """The shards of one split."""

    def __init__(self, folder: _Folder, shards: Sequence[catalog_lib.Shard]):
        largest = max(shards, key=lambda shard: shard.bytes)
        if largest.bytes > folder.room.max_bytes:
            raise errors.ConfigError(
                f"shard {folder.remote.uri_of(largest.name)} has {largest.bytes:,} bytes, more than "
                f"cache_bytes={folder.room.max_bytes:,}: give at least as many, better those of the whole split, "
                f"{sum(shard.bytes for shard in shards):,}"
            )
        self._folder = folder
        self._shards = shards
        self.begin()
        _FORGETFUL.add(self)

    def begin(self) -> None:
        """Forgets what was asked for: in a new process."""
        self._lock = threading.Lock()
        self._asked: set[int] = set()
        self._known: set[int] = set()  # what was asked for or fetched ahead
        self._previous = -1  # asked for before

    def read(self, shard: int, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of a shard; waits until it is there.

        Raises:
            ShardError: if it cannot be downloaded, or is not what the catalog says.
            ConfigError: if the disk has no room.
        """
        file = self._folder.find_open(self._shards[shard]) or self._open(shard)
        return os.pread(file.descriptor, stop - start, start)

    def announce(self, shard: int, start: int, stop: int) -> None:
        """Begins to download a shard of which something will be read soon."""
        self._folder.announce([self._shards[shard]])

    def open(self, shard: int) -> BinaryIO:
        """A file of its own for a reader that goes through a shard."""
        return io.BufferedReader(_ShardReader(self._open(shard)), _CHECK_BYTES)

    def _open(self, shard: int) -> _File:
        return self._folder.open(self._shards[shard], [self._shards[each] for each in self._following(shard)])

    def _following(self, shard: int) -> list[int]:
        """What to fetch ahead now that `shard` is asked for; the module's docstring says why."""
        with self._lock:
            self._asked.add(shard)
            self._known.add(shard)
            previous, self._previous = self._previous, shard
            first, last = min(self._asked), max(self._asked)
            step = math.gcd(*(each - first for each in self._asked))
            if step == 0:  # of one shard alone nothing follows
                return []
            share = range(first, min(last + _NUM_AHEAD * step + 1, len(self._shards)), step)
            following = [each for each in share if each > shard] + [each for each in share if each < shard]
            max_bytes = self._folder.room.max_bytes
            if sum(self._shards[each].bytes for each in share) <= max_bytes:
                wanted = [each for each in following if each not in self._known]
            elif shard == previous + step:
                wanted = []
                for each in following[:_NUM_AHEAD]:
                    max_bytes -= 2 * self._shards[each].bytes
                    if max_bytes < 0:
                        break
                    wanted.append(each)
            else:
                wanted = []
            self._known.update(wanted)
            return wanted

    def __getstate__(self) -> tuple[_Folder, Sequence[catalog_lib.Shard]]:
        return self._folder, self._shards

    def __setstate__(self, state: tuple[_Folder, Sequence[catalog_lib.Shard]]) -> None:
        self.__init__(*state)  # type: ignore[misc]


class _File:
    """An open file, closed when nobody holds it any more; one that was removed stays readable until then."""

    def __init__(self, path: str):
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.refresh_at = time.monotonic() + _REFRESH_SEC

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.descriptor)


class _ShardReader(io.RawIOBase):
    """Reads a shard from its start, at a position that no other reader moves."""

    def __init__(self, file: _File):
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = os.pread(self._file.descriptor, len(buffer), self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class _Job:
    """The download of one shard."""

    def __init__(self, shard: catalog_lib.Shard):
        self.shard = shard
        self.is_asked = False  # whether a reader waits for it
        self.is_begun = False
        self.done: concurrent.futures.Future[_File | None] = concurrent.futures.Future()  # None: left to others


class _Folder:
    """The local shards of one dataset: opened where they are there, else downloaded. Thread-safe."""

    def __init__(self, remote: _Remote, room: _Room, name: str, num_downloads: int):
        self.remote = remote
        self.room = room
        self._name = name
        self._num_downloads = num_downloads
        self.begin()
        _FORGETFUL.add(self)

    def begin(self) -> None:
        """Forgets what goes on: in a new process, where no thread runs yet."""
        self._lock = threading.Lock()
        self._open: collections.OrderedDict[str, _File] = collections.OrderedDict()
        self._jobs: dict[str, _Job] = {}
        self._num_threads = 0
        self._downloaded: set[str] | None = set()  # None: it was told that the cache is too small

    def find_open(self, shard: catalog_lib.Shard) -> _File | None:
        """The file of a shard that is open, for a minute."""
        with self._lock:
            file = self._open.get(shard.name)
            if file is None or time.monotonic() > file.refresh_at:
                return None
            self._open.move_to_end(shard.name)
            return file

    def open(self, shard: catalog_lib.Shard, following: Sequence[catalog_lib.Shard] = ()) -> _File:
        """Opens a shard, and waits for its download where it is not there; those that follow are announced."""
        with self.room.errors_named():
            file = self._open_whole(shard)
            job = None if file else self._ask(shard)
            self.announce(following)
            while file is None:
                file = (job or self._ask(shard)).done.result() or self._open_whole(shard)
                job = None
        with self._lock:
            self._open[shard.name] = file
            self._open.move_to_end(shard.name)
            if len(self._open) > _MAX_OPEN_SHARDS:
                self._open.popitem(last=False)
        return file

    def announce(self, shards: Sequence[catalog_lib.Shard]) -> None:
        """Begins to download shards that are not there, after all that readers wait for."""
        missing = [shard for shard in shards if not os.path.exists(self._path(shard.name))]
        with self._lock:
            for shard in missing:
                self._jobs.setdefault(shard.name, _Job(shard))
            self._start_threads()

    def read_index(self, uri: str, shard: catalog_lib.Shard) -> bytes:
        """The index of a shard, kept if it is one; else it is the caller's to refuse."""
        name = posixpath.basename(shard.index_name)
        path = self._path(name)
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            data = file.read()
            if _is_index_of(data, shard):
                _mark_used(path)
                return data
        data = self.remote.read(uri)
        if _is_index_of(data, shard):
            with self.room.errors_named(), self.room.hold(path, must_wait=False) as is_held:
                temporary = self.room.reserve(path, len(data), must_wait=False) if is_held else None
                if temporary is not None:
                    with open(temporary, "wb") as file:
                        file.write(data)
                    self.room.publish(temporary, path)
        return data

    def _path(self, name: str) -> str:
        return storage.join(self.room.directory, self._name, name)

    def _open_whole(self, shard: catalog_lib.Shard) -> _File | None:
        """Opens a shard if it is there; one of another size was not left by us, and is downloaded over."""
        path = self._path(shard.name)
        try:
            file = _File(path)
        except FileNotFoundError:
            return None
        if os.fstat(file.descriptor).st_size != shard.bytes:
            return None
        _mark_used(file.descriptor)
        return file

    def _ask(self, shard: catalog_lib.Shard) -> _Job:
        with self._lock:
            job = self._jobs.get(shard.name)
            if job is None or not job.is_asked:
                self._jobs.pop(shard.name, None)
                job = self._jobs[shard.name] = job or _Job(
                    shard
                )  # last, for those asked for go in the order they stand
                job.is_asked = True
            self._start_threads()
            return job

    def _start_threads(self) -> None:
        waiting = sum(not job.is_begun for job in self._jobs.values())
        while waiting and self._num_threads < self._num_downloads:
            # A daemon: the end of the program waits for no download.
            threading.Thread(target=self._work, name="imagebeam-download", daemon=True).start()
            self._num_threads += 1
            waiting -= 1

    def _work(self) -> None:
        """Downloads until there is nothing more to download."""
        while (job := self._take()) is not None:
            try:
                file = self._download(job)
            except BaseException as e:  # a reader waits for it, whatever it is
                self._end(job)
                if not job.is_asked:
                    _LOGGER.warning("fetching ahead stops until the next shard is asked for: %s", e)
                    self._forget_announced()
                job.done.set_exception(e)
            else:
                self._end(job)
                job.done.set_result(file)

    def _take(self) -> _Job | None:
        with self._lock:
            waiting = [job for job in self._jobs.values() if not job.is_begun]
            if not waiting:
                self._num_threads -= 1
                return None
            job = next((job for job in waiting if job.is_asked), waiting[0])
            job.is_begun = True
            return job

    def _end(self, job: _Job) -> None:
        with self._lock:
            del self._jobs[job.shard.name]

    def _forget_announced(self) -> None:
        with self._lock:
            self._jobs = {name: job for name, job in self._jobs.items() if job.is_begun or job.is_asked}

    def _download(self, job: _Job) -> _File | None:
        """Brings a shard; None where nobody waits for it, and another process is at it or there is no room now."""
        shard, path = job.shard, self._path(job.shard.name)
        with self.room.errors_named(), self.room.hold(path, job.is_asked) as is_held:
            if not is_held:
                return None
            if (file := self._open_whole(shard)) is not None:  # brought by who held the lock
                return file
            temporary = self.room.reserve(path, shard.bytes, job.is_asked)
            self._let_go_of_removed()
            if temporary is None:
                return None
            begin = time.monotonic()
            try:
                self.remote.download(shard, temporary)
                file = _File(temporary)  # before it can be removed again
                self.room.publish(temporary, path)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
                raise
        _LOGGER.info("downloaded %s, %s bytes in %.1f s", shard.name, f"{shard.bytes:,}", time.monotonic() - begin)
        self._tell_if_too_small(shard)
        return file

    def _let_go_of_removed(self) -> None:
        """Closes the files that were removed, so that the disk gets their space back."""
        with self._lock:
            for name, file in list(self._open.items()):
                if os.fstat(file.descriptor).st_nlink == 0:
                    del self._open[name]

    def _tell_if_too_small(self, shard: catalog_lib.Shard) -> None:
        with self._lock:
            if self._downloaded is None:
                return
            is_again = shard.name in self._downloaded
            self._downloaded.add(shard.name)
            if is_again:
                self._downloaded = None
        if is_again:
            _LOGGER.warning(
                "%s had to be downloaded again: what is read does not fit into cache_bytes=%s (told once)",
                self.remote.uri_of(shard.name),
                f"{self.room.max_bytes:,}",
            )

    def __getstate__(self) -> tuple[_Remote, _Room, str, int]:
        return self.remote, self.room, self._name, self._num_downloads

    def __setstate__(self, state: tuple[_Remote, _Room, str, int]) -> None:
        self.__init__(*state)  # type: ignore[misc]


_FORGETFUL: weakref.WeakSet[_Folder | _CachedPlace] = weakref.WeakSet()


def _begin_after_fork() -> None:
    for each in _FORGETFUL:  # the threads stayed behind, maybe with a lock held
        each.begin()


os.register_at_fork(after_in_child=_begin_after_fork)


class _Room:
    """The cache's folder as a whole, shared by the datasets and processes of a machine: its bound and its locks."""

    def __init__(self, directory: str, max_bytes: int):
        self.directory = directory
        self.max_bytes = max_bytes

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
        """Holds the right to bring the file at `path`; yields False where another has it and `must_wait` is not set."""
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

    def reserve(self, path: str, num_bytes: int, must_wait: bool) -> str | None:
        """A temporary name for the file at `path`, with room for it. The caller holds `path`.

        Returns:
            None if downloads of others take up the room and `must_wait` is not set.
        """
        while True:
            with self._locked():
                if self._make_room(num_bytes, path):
                    temporary = f"{path}~{num_bytes}~{secrets.token_hex(4)}"
                    open(temporary, "xb").close()
                    return temporary
            if not must_wait:
                return None
            time.sleep(_POLL_SEC)

    def publish(self, temporary: str, path: str) -> None:
        """Gives a file that is whole its name."""
        with self._locked():
            _mark_used(temporary)
            os.replace(temporary, path)

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
        """The files in the folders that this module made: nothing else in `cache_dir` is counted or removed."""
        with os.scandir(self.directory) as folders:
            for folder in folders:
                if folder.name.startswith(_FOLDER_PREFIX) and folder.is_dir():
                    with contextlib.suppress(FileNotFoundError), os.scandir(folder.path) as entries:
                        yield from entries


class _Remote:
    """The files of a dataset at its address. What fails is tried again; errors are OSErrors, whatever fsspec raises."""

    def __init__(self, directory: str, storage_options: Mapping[str, Any], retry_waits_sec: Sequence[float]):
        self._directory = directory
        self._storage_options = dict(storage_options)
        self._retry_waits_sec = tuple(retry_waits_sec)
        self._locate(directory)  # whether it can be read here is told at once

    def uri_of(self, name: str) -> str:
        return storage.join(self._directory, name)

    def read(self, uri: str) -> bytes:
        return self._call(uri, lambda filesystem, path: filesystem.cat_file(path))

    def size_of(self, uri: str) -> int:
        return self._call(uri, lambda filesystem, path: int(filesystem.info(path)["size"]))

    def list_sizes(self) -> dict[str, int]:
        """The sizes of the dataset's files by name, of those whose size a listing tells."""
        entries = self._call(self._directory, lambda filesystem, path: filesystem.ls(path, detail=True))
        return {posixpath.basename(each["name"]): each["size"] for each in entries if each.get("size") is not None}

    def download(self, shard: catalog_lib.Shard, target: str) -> None:
        """Writes a shard to the local file `target`.

        Raises:
            ShardError: if it cannot be had, or is not what the catalog says, each time it was tried.
            OSError: if the local disk fails.
        """
        uri = self.uri_of(shard.name)

        def bring(filesystem: Any, path: str) -> None:
            filesystem.get_file(path, target)
            self._check(shard, target)

        try:
            self._call(uri, bring)
        except OSError as e:
            if e.filename == target or e.errno in _OF_THE_DISK:
                raise
            if isinstance(e, FileNotFoundError):
                raise errors.ShardError(f"shard {uri} is missing ({e}): run imagebeam verify, convert again") from e
            if isinstance(e, PermissionError):
                raise errors.ShardError(f"shard {uri} cannot be read ({e}): grant read access to it") from e
            raise errors.ShardError(
                f"shard {uri} cannot be downloaded in {len(self._retry_waits_sec) + 1} attempts ({e}): see that its "
                "address can be reached from here, and run again; what was downloaded is kept"
            ) from e

    def _check(self, shard: catalog_lib.Shard, path: str) -> None:
        crc = 0
        with open(path, "rb", buffering=0) as file:
            os.fsync(file.fileno())  # after a loss of power, too, what has the shard's name is whole
            while chunk := file.read(_CHECK_BYTES):
                crc = records.extend_crc(crc, chunk)
            num_bytes = file.tell()
        if (num_bytes, crc) != (shard.bytes, shard.crc32c):
            raise errors.ShardError(
                f"shard {self.uri_of(shard.name)} comes as {num_bytes:,} bytes with crc32c {crc:08x}, the catalog says "
                f"{shard.bytes:,} bytes with {shard.crc32c:08x}: it was cut short or replaced; "
                "run imagebeam verify, convert again with --overwrite"
            )

    def _call(self, uri: str, operate: Callable[[Any, str], _T]) -> _T:
        """What `operate` returns of a file system and a path in it."""
        waits = iter(self._retry_waits_sec)
        while True:
            filesystem, path = self._locate(uri)
            try:
                filesystem.invalidate_cache()  # of listings: a dataset may have been written since
                return operate(filesystem, path)
            # Every file system raises its client's own errors: aiohttp's, botocore's, HttpError of gcsfs, RuntimeError
            # of WebHDFS. Nothing but fsspec and the check of what came runs in here.
            except Exception as e:
                if isinstance(e, _LASTING) or (isinstance(e, OSError) and e.errno in _OF_THE_DISK):
                    raise
                wait = next(waits, None)
                if wait is None and isinstance(e, errors.ShardError):
                    raise
                if wait is None:
                    raise OSError(f"{type(e).__name__}: {e}") from e
            time.sleep(wait)

    def _locate(self, uri: str) -> tuple[Any, str]:
        """The file system of an address, which fsspec keeps one of for each process or thread, and the path in it."""
        scheme = storage.scheme_of(uri)
        install = f"pip install {_PACKAGES.get(scheme, 'fsspec')}"
        try:
            import fsspec.core
        except ModuleNotFoundError as e:
            raise errors.ConfigError(f"{uri}: fsspec is not installed, which reads {scheme}://: {install}") from e
        try:
            return fsspec.core.url_to_fs(uri, **self._storage_options)
        except ImportError as e:
            remedy = install if scheme in _PACKAGES else f"install the package that reads {scheme}://"
            raise errors.ConfigError(f"{uri}: a package that reads {scheme}:// is missing ({e}): {remedy}") from e
        except (OSError, RuntimeError, TypeError, ValueError) as e:
            remedy = "check the address and the package that reads it"
            if scheme == "hdfs":
                remedy = "it needs Java and Hadoop's libraries here; webhdfs://NAMENODE:9870/... needs neither"
            reason = str(e).partition("\n")[0]
            raise errors.ConfigError(f"{uri}: fsspec cannot open {scheme}:// here ({reason}): {remedy}") from e


def _is_index_of(data: bytes, shard: catalog_lib.Shard) -> bool:
    if len(data) != 8 * (shard.records + 1):
        return False
    offsets = np.frombuffer(data, "<u8")
    return bool(offsets[0] == 0 and offsets[-1] == shard.bytes and (offsets[1:] > offsets[:-1]).all())


def _mark_used(file: str | int) -> None:
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
