"""Opens the shards of one dataset in the cache's room, and downloads the missing ones on threads.

A shard gets its final name after it was checked against the catalog (size and crc32c). So a file with a shard's name is
whole, and other processes, or the next run, use it as it is. Shards that a reader waits for are downloaded first.

Files are reopened after a minute, which marks them as used. Files that were removed are closed when room is made; a
process that pauses may hold the space of removed shards until it reads on or ends.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import logging
import os
import posixpath
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from imagebeam import after_fork, errors, records, storage
from imagebeam import catalog as catalog_lib
from imagebeam.reader import open_files, record_bytes
from imagebeam.reader.shard_cache import cache_room

_LOGGER = logging.getLogger(__name__)

_REFRESH_SEC = 60.0  # a file is reopened, and marked as used, after this time


class OpenShard(open_files.OpenFile):
    """A local shard, to be reopened after a minute."""

    def __init__(self, path: str):
        super().__init__(path)
        self.refresh_at = time.monotonic() + _REFRESH_SEC


class _Download:
    """The download of one shard."""

    def __init__(self, shard: catalog_lib.Shard):
        self.shard = shard
        self.is_asked = False  # whether a reader waits for it
        self.is_begun = False
        self.done: concurrent.futures.Future[OpenShard | None] = concurrent.futures.Future()  # None: left to others


class RemoteShards:
    """The shards of a dataset at its address. Picklable: it holds no connection."""

    def __init__(self, directory: str, storage_options: Mapping[str, Any], damage_waits_sec: Sequence[float]):
        """Looks up the storage of the address.

        Args:
            directory: address of the dataset.
            storage_options: for `storage.storage_of`.
            damage_waits_sec: waits between attempts at a shard that arrives damaged; one attempt more than waits.

        Raises:
            ConfigError: if the address cannot be read here.
        """
        self.directory = directory
        self._storage_options = dict(storage_options)
        self._damage_waits_sec = tuple(damage_waits_sec)
        storage.storage_of(directory, self._storage_options)

    @property
    def store(self) -> storage.Storage:
        """The storage of the address; looked up each time, for a pickled copy has none."""
        return storage.storage_of(self.directory, self._storage_options)

    def in_folder(self, directory: str) -> RemoteShards:
        """Returns the shards of another folder of the same storage."""
        return RemoteShards(directory, self._storage_options, self._damage_waits_sec)

    def uri_of(self, name: str) -> str:
        return storage.join_relative(self.directory, name)

    def download(self, shard: catalog_lib.Shard, path: str) -> None:
        """Writes a shard to the local `path`, synced and checked against the catalog.

        Raises:
            ShardError: if it cannot be downloaded, or differs from the catalog after the last attempt.
            LocalDiskError: if the local disk fails.
        """
        uri = self.uri_of(shard.name)
        for wait in self._waits():
            try:
                self.store.download(uri, path)
            except storage.LocalDiskError:
                raise
            except FileNotFoundError as e:
                detail = f"is missing ({e.strerror or e}): run imagebeam verify, then convert again"
                raise errors.ShardError(f"shard {uri} {detail}") from e
            except PermissionError as e:
                detail = f"cannot be read ({e.strerror or e}): grant read access to it"
                raise errors.ShardError(f"shard {uri} {detail}") from e
            except OSError as e:
                raise errors.ShardError(
                    f"shard {uri} cannot be downloaded ({e.strerror or e}): check that its address can be reached from "
                    "here, and run again; what was downloaded is kept"
                ) from e
            num_bytes, crc = _sync_and_checksum(path)
            if (num_bytes, crc) == (shard.bytes, shard.crc32c):
                return
            if wait is None:
                raise errors.ShardError(
                    f"shard {uri} comes as {num_bytes:,} bytes with crc32c {crc:08x}, the catalog says "
                    f"{shard.bytes:,} bytes with {shard.crc32c:08x}: it was cut short or replaced; "
                    "run imagebeam verify, then convert again with --overwrite"
                )
            time.sleep(wait)

    def _waits(self) -> Iterator[float | None]:
        yield from self._damage_waits_sec
        yield None


class KeptShards(after_fork.RebuiltAfterFork):
    """The local shards of one dataset. Thread-safe. A pickled copy, or a forked process, starts without open files."""

    def __init__(self, remote: RemoteShards, room: cache_room.Room, dataset: str | None, num_downloads: int):
        """Begins without open files and downloads.

        Args:
            remote: the shards at their address.
            room: the folder of the cache.
            dataset: a name for the address of the dataset and the content of its catalog, which all of its files share;
                None for a snapshot: each shard is named by its own address and content, because other snapshots read
                it too.
            num_downloads: number of downloads that run at once.
        """
        self.remote = remote
        self.room = room
        self._dataset = dataset
        self._num_downloads = num_downloads
        super().__init__()

    def rebuild(self) -> None:
        self._lock = threading.Lock()
        self._files: open_files.Shelf[OpenShard] = open_files.Shelf()
        self._downloads: dict[str, _Download] = {}
        self._num_threads = 0
        self._downloaded: set[str] = set()
        self._has_warned = False  # that the cache is too small

    def find_open(self, shard: catalog_lib.Shard) -> OpenShard | None:
        """Returns the file of a shard if it was opened less than a minute ago."""
        file = self._files.find(shard.name)
        return None if file is None or time.monotonic() > file.refresh_at else file

    def open(self, shard: catalog_lib.Shard, following: Sequence[catalog_lib.Shard] = ()) -> OpenShard:
        """Opens a shard, after its download if it is missing, and announces the shards that follow.

        Raises:
            ShardError: if it cannot be downloaded, or differs from the catalog.
            ConfigError: if the local disk fails.
        """
        with self.room.errors_named():
            file = self._open_whole(shard)
            download = None if file else self._ask(shard)
            self.announce(following)
            while file is None:
                file = (download or self._ask(shard)).done.result() or self._open_whole(shard)
                download = None
        self._files.put(shard.name, file)
        return file

    def close(self) -> None:
        """Closes the open files, and keeps none open from now on. Waits for no lock."""
        self._files.close()

    def announce(self, shards: Sequence[catalog_lib.Shard]) -> None:
        """Starts to download missing shards, after all shards that readers wait for."""
        missing = [shard for shard in shards if not os.path.exists(self._path(shard))]
        with self._lock:
            for shard in missing:
                self._downloads.setdefault(shard.name, _Download(shard))
            self._start_threads()

    def read_index(self, uri: str, shard: catalog_lib.Shard) -> bytes:
        """Returns the bytes of a shard's index. Keeps them if they are a valid index; the caller checks them too."""
        path = self._path(shard, shard.index_name)
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            data = file.read()
            if _is_index_of(data, shard):
                cache_room.mark_used(path)
                return data
        data = self.remote.store.read(uri)
        if _is_index_of(data, shard):
            with self.room.errors_named(), self.room.hold(path, must_wait=False) as is_held:
                if is_held:
                    with self.room.create(path, len(data), must_wait=False) as temporary:
                        if temporary is not None:
                            with open(temporary, "wb") as file:
                                file.write(data)
        return data

    def _path(self, shard: catalog_lib.Shard, name: str = "") -> str:
        """Returns the local path of a shard, or of its index, whose `name` is given."""
        stem = posixpath.basename(name or shard.name)
        if self._dataset is not None:
            return self.room.path_of(self._dataset, stem)
        folder = posixpath.dirname(self.remote.uri_of(shard.name))
        return self.room.path_of(name_in_cache(folder), f"{shard.crc32c:08x}-{stem}")

    def _open_whole(self, shard: catalog_lib.Shard) -> OpenShard | None:
        """Opens a shard if it is kept. A file of another size is not ours: it is downloaded again, over that file."""
        try:
            file = OpenShard(self._path(shard))
        except FileNotFoundError:
            return None
        if os.fstat(file.descriptor).st_size != shard.bytes:
            return None
        cache_room.mark_used(file.descriptor)
        return file

    def _ask(self, shard: catalog_lib.Shard) -> _Download:
        with self._lock:
            download = self._downloads.get(shard.name) or _Download(shard)
            if not download.is_asked:
                download.is_asked = True
                self._downloads.pop(shard.name, None)
                self._downloads[shard.name] = (
                    download  # at the end: shards that readers wait for go in the order of the requests
                )
            self._start_threads()
            return download

    def _start_threads(self) -> None:
        waiting = sum(not download.is_begun for download in self._downloads.values())
        while waiting and self._num_threads < self._num_downloads:
            # Daemon threads: the end of the program waits for no download.
            threading.Thread(target=self._work, name="imagebeam-download", daemon=True).start()
            self._num_threads += 1
            waiting -= 1

    def _work(self) -> None:
        """Downloads shards until none is left to download."""
        while (download := self._take()) is not None:
            try:
                file = self._bring(download)
            except BaseException as e:  # a reader may wait for the result: every error must reach it
                self._end(download, e)
                download.done.set_exception(e)
            else:
                self._end(download)
                download.done.set_result(file)

    def _take(self) -> _Download | None:
        with self._lock:
            waiting = [download for download in self._downloads.values() if not download.is_begun]
            if not waiting:
                self._num_threads -= 1
                return None
            download = next((download for download in waiting if download.is_asked), waiting[0])
            download.is_begun = True
            return download

    def _end(self, download: _Download, error: BaseException | None = None) -> None:
        with self._lock:
            del self._downloads[download.shard.name]
            if error is None or download.is_asked:
                return
            self._downloads = {name: each for name, each in self._downloads.items() if each.is_begun or each.is_asked}
        _LOGGER.warning("fetching ahead stops until the next shard is asked for: %s", error)

    def _bring(self, download: _Download) -> OpenShard | None:
        """Downloads a shard and opens it.

        Returns None for a shard that no reader waits for, if another process downloads it or there is no room now.
        """
        shard, path = download.shard, self._path(download.shard)
        with self.room.errors_named(), self.room.hold(path, download.is_asked) as is_held:
            if not is_held:
                return None
            if (file := self._open_whole(shard)) is not None:  # downloaded by the previous holder of the lock
                return file
            with self.room.create(path, shard.bytes, download.is_asked) as temporary:
                self._files.remove_unlinked()
                if temporary is None:
                    return None
                begin = time.monotonic()
                self.remote.download(shard, temporary)
                file = OpenShard(temporary)  # before another process can remove it to make room
        _LOGGER.info("downloaded %s, %s bytes in %.1f s", shard.name, f"{shard.bytes:,}", time.monotonic() - begin)
        self._warn_if_too_small(shard)
        return file

    def _warn_if_too_small(self, shard: catalog_lib.Shard) -> None:
        with self._lock:
            must_warn = shard.name in self._downloaded and not self._has_warned
            self._downloaded.add(shard.name)
            self._has_warned |= must_warn
        if must_warn:
            _LOGGER.warning(
                "%s had to be downloaded again: what is read does not fit into cache_bytes=%s (logged once)",
                self.remote.uri_of(shard.name),
                f"{self.room.max_bytes:,}",
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptShards, (self.remote, self.room, self._dataset, self._num_downloads)


def name_in_cache(content: str) -> str:
    """Returns a short name, for a folder of the cache, of what a text describes."""
    return hashlib.blake2b(content.encode(), digest_size=12).hexdigest()


def _sync_and_checksum(path: str) -> tuple[int, int]:
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())  # so that a file with a shard's name is whole after a power failure, too
        return records.checksum_file(file)


def _is_index_of(data: bytes, shard: catalog_lib.Shard) -> bool:
    return len(data) == 8 * (shard.records + 1) and record_bytes.are_offsets_of(np.frombuffer(data, "<u8"), shard)
