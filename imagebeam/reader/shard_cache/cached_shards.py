"""The shards of one dataset in a cache's room: opened where they are there, else downloaded by threads.

A shard gets its name once it was checked against the catalog (size and crc32c), so that a file under a shard's name is
whole: other processes, and those after a restart, take it as it is. Shards that a reader waits for go first.

Files are opened anew after a minute, which marks them as used; those that were removed are let go when room is made. A
process that stands still may hold the space of removed shards until it reads on or ends.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import os
import posixpath
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam.reader import open_files, record_bytes
from imagebeam.reader.shard_cache import cache_room, remote_files

_LOGGER = logging.getLogger(__name__)

_REFRESH_SEC = 60.0  # after which a file is opened anew, and marked as used


class OfOneProcess:
    """What begins anew in a process that was forked: the threads stayed behind, maybe with a lock held."""

    def __init__(self) -> None:
        self.begin()
        _OF_ONE_PROCESS.add(self)

    def begin(self) -> None:
        raise NotImplementedError


_OF_ONE_PROCESS: weakref.WeakSet[OfOneProcess] = weakref.WeakSet()


def _begin_after_fork() -> None:
    for each in _OF_ONE_PROCESS:
        each.begin()


os.register_at_fork(after_in_child=_begin_after_fork)


class OpenFile(open_files.OpenFile):
    """A local shard, which is to be opened anew after a minute."""

    def __init__(self, path: str):
        super().__init__(path)
        self.refresh_at = time.monotonic() + _REFRESH_SEC


class _Download:
    """The download of one shard."""

    def __init__(self, shard: catalog_lib.Shard):
        self.shard = shard
        self.is_asked = False  # whether a reader waits for it
        self.is_begun = False
        self.done: concurrent.futures.Future[OpenFile | None] = concurrent.futures.Future()  # None: left to others


class KeptShards(OfOneProcess):
    """The local shards of one dataset. Thread-safe; pickled, it begins anew."""

    def __init__(self, remote: remote_files.RemoteFiles, room: cache_room.Room, dataset: str, num_downloads: int):
        """`dataset` names the address and the content that its catalog names; `num_downloads` run at once."""
        self.remote = remote
        self.room = room
        self._dataset = dataset
        self._num_downloads = num_downloads
        super().__init__()

    def begin(self) -> None:
        self._lock = threading.Lock()
        self._files: open_files.Shelf[OpenFile] = open_files.Shelf()
        self._downloads: dict[str, _Download] = {}
        self._num_threads = 0
        self._downloaded: set[str] = set()
        self._is_told = False  # that the cache is too small

    def find_open(self, shard: catalog_lib.Shard) -> OpenFile | None:
        """The file of a shard that was opened less than a minute ago."""
        file = self._files.find(shard.name)
        return None if file is None or time.monotonic() > file.refresh_at else file

    def open(self, shard: catalog_lib.Shard, following: Sequence[catalog_lib.Shard] = ()) -> OpenFile:
        """Opens a shard, and waits for its download where it is not there; those that follow are announced.

        Raises:
            ShardError: if it cannot be downloaded, or is not what the catalog says.
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
        """Keeps no files open from now on, and waits for no lock."""
        self._files.close()

    def announce(self, shards: Sequence[catalog_lib.Shard]) -> None:
        """Begins to download shards that are not there, after all that readers wait for."""
        missing = [shard for shard in shards if not os.path.exists(self._path(shard.name))]
        with self._lock:
            for shard in missing:
                self._downloads.setdefault(shard.name, _Download(shard))
            self._start_threads()

    def read_index(self, uri: str, shard: catalog_lib.Shard) -> bytes:
        """The index of a shard, kept if it is one; else it is the caller's to refuse."""
        path = self._path(posixpath.basename(shard.index_name))
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            data = file.read()
            if _is_index_of(data, shard):
                cache_room.mark_used(path)
                return data
        data = self.remote.read(uri)
        if _is_index_of(data, shard):
            with self.room.errors_named(), self.room.hold(path, must_wait=False) as is_held:
                if is_held:
                    with self.room.create(path, len(data), must_wait=False) as temporary:
                        if temporary is not None:
                            with open(temporary, "wb") as file:
                                file.write(data)
        return data

    def _path(self, name: str) -> str:
        return self.room.path_of(self._dataset, name)

    def _open_whole(self, shard: catalog_lib.Shard) -> OpenFile | None:
        """Opens a shard if it is there; one of another size was not left by us, and is downloaded over."""
        try:
            file = OpenFile(self._path(shard.name))
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
                self._downloads[shard.name] = download  # last: those asked for go in the order they stand
            self._start_threads()
            return download

    def _start_threads(self) -> None:
        waiting = sum(not download.is_begun for download in self._downloads.values())
        while waiting and self._num_threads < self._num_downloads:
            # A daemon: the end of the program waits for no download.
            threading.Thread(target=self._work, name="imagebeam-download", daemon=True).start()
            self._num_threads += 1
            waiting -= 1

    def _work(self) -> None:
        """Downloads until there is nothing more to download."""
        while (download := self._take()) is not None:
            try:
                file = self._bring(download)
            except BaseException as e:  # a reader waits for it, whatever it is
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

    def _bring(self, download: _Download) -> OpenFile | None:
        """Downloads a shard; None where nobody waits for it, and another process is at it or there is no room now."""
        shard, path = download.shard, self._path(download.shard.name)
        with self.room.errors_named(), self.room.hold(path, download.is_asked) as is_held:
            if not is_held:
                return None
            if (file := self._open_whole(shard)) is not None:  # brought by who held the lock
                return file
            with self.room.create(path, shard.bytes, download.is_asked) as temporary:
                self._files.remove_unlinked()
                if temporary is None:
                    return None
                begin = time.monotonic()
                self.remote.download(shard, temporary)
                file = OpenFile(temporary)  # before it can be removed again
        _LOGGER.info("downloaded %s, %s bytes in %.1f s", shard.name, f"{shard.bytes:,}", time.monotonic() - begin)
        self._tell_if_too_small(shard)
        return file

    def _tell_if_too_small(self, shard: catalog_lib.Shard) -> None:
        with self._lock:
            is_news = shard.name in self._downloaded and not self._is_told
            self._downloaded.add(shard.name)
            self._is_told |= is_news
        if is_news:
            _LOGGER.warning(
                "%s had to be downloaded again: what is read does not fit into cache_bytes=%s (told once)",
                self.remote.uri_of(shard.name),
                f"{self.room.max_bytes:,}",
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptShards, (self.remote, self.room, self._dataset, self._num_downloads)


def _is_index_of(data: bytes, shard: catalog_lib.Shard) -> bool:
    return len(data) == 8 * (shard.records + 1) and record_bytes.are_offsets_of(np.frombuffer(data, "<u8"), shard)
