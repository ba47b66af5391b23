"""A dataset at a remote address, read through whole shards that are kept on a local disk.

A missing shard is downloaded and checked (`cached_shards`), and kept within a limit that all processes of the machine
share (`cache_room`)::

    cache_dir/imagebeam-<hash>/<shard>            one folder for an address and the content of its catalog
    cache_dir/imagebeam-<hash>/<stem>.index       the byte offsets of a shard's records

Of a snapshot, a folder of the cache is for one folder of shards, and the names there begin with the shard's crc32c: so
a shard that several snapshots name is kept once.

Which shards are fetched ahead: a fetch announces the shards of all its records before it waits for the first one. The
reader does not say which shards follow, but shares are regular: every n-th shard, or a run of them
(`selection.share_of`). So the share contains the shards between the first and the last one requested, at their greatest
common distance, and the following ones at the same distance; at most four of those lie beyond the end of a run. Almost
nothing of another machine's share is downloaded.

If these shards fit into the cache, all of them are fetched, each once, in the order of their index: blocks in random
order touch every shard within minutes. If they do not fit, only a walk in shard order is fetched ahead, by four shards
and at most half of the cache: in random order that would evict as much as it brings. Shards that a reader waits for are
downloaded first.
"""

from __future__ import annotations

import concurrent.futures
import io
import itertools
import math
import os
import posixpath
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from imagebeam import after_fork, errors, storage
from imagebeam import catalog as catalog_lib
from imagebeam.reader import dataset_source, record_bytes
from imagebeam.reader.shard_cache import cache_room, cached_shards
from imagebeam.storage import remote

if TYPE_CHECKING:
    import numpy as np

_NUM_DOWNLOADS = 4  # at once
_OPEN_BUDGET_SEC = 5.0  # with all retries, for the first look at an address, which is more likely wrong than down
_NUM_LISTINGS = 8  # at once
_NUM_AHEAD = 4  # shards beyond those that are certainly read
_DAMAGE_WAITS_SEC = (1.0, 3.0)
_BUFFER_BYTES = 1 << 20
# Its last part is safe for a local file.
_PLAIN_NAME = re.compile(r"(\.\./\d{6,}/|([A-Za-z0-9][A-Za-z0-9_. -]*/)*)[A-Za-z0-9][A-Za-z0-9_.-]*")


class CachedSource(dataset_source.DatasetSource):
    """A dataset whose shards are read from `cache_dir`, where each is downloaded when it is first needed. Thread-safe.

    A pickled copy, or a forked process, starts without open files on the same folder.
    """

    def __init__(
        self,
        directory: str,
        cache_dir: str,
        cache_bytes: int,
        storage_options: Mapping[str, Any] | None = None,
        *,
        num_downloads: int = _NUM_DOWNLOADS,
        damage_waits_sec: Sequence[float] = _DAMAGE_WAITS_SEC,
    ):
        """Looks up the storage of the address. Files are read later.

        Args:
            directory: address of the dataset.
            cache_dir: a local folder; created if it does not exist. Datasets may share it.
            cache_bytes: limit for all shards in it together.
            storage_options: credentials and other options of the storage; see docs/storage.md.
            num_downloads: shards that are downloaded at once.
            damage_waits_sec: waits between attempts at a shard that arrives damaged; one attempt more than waits.

        Raises:
            ConfigError: if the address cannot be read here, or `cache_dir` is not a local folder.
        """
        super().__init__(storage.normalize(directory))
        if storage.scheme_of(cache_dir) != "file":
            raise errors.ConfigError(f"cache_dir is {cache_dir!r}; give a folder on a local disk")
        self._remote = cached_shards.RemoteShards(self.directory, storage_options or {}, damage_waits_sec)
        self._room = cache_room.Room(storage.normalize(cache_dir), cache_bytes)
        self._num_downloads = num_downloads
        self._sizes: Mapping[str, int] = {}  # by address
        self._kept: cached_shards.KeptShards | None = None  # of the content that the catalog names
        self._indexed: Mapping[str, catalog_lib.Shard] = {}  # by the address of the index
        self._places: dict[str, _CachedPlace] = {}  # by the name of a split's first shard

    def load_catalog(self, snapshot: str | int | None = None) -> catalog_lib.Catalog:
        with remote.budget(_OPEN_BUDGET_SEC):
            catalog = super().load_catalog(snapshot)
        self._remote = self._remote.in_folder(self.directory)
        shards = [shard for split in catalog.splits.values() for shard in split.shards]
        for shard in shards:
            if not _PLAIN_NAME.fullmatch(shard.name):
                raise errors.CatalogError(
                    f"{self.directory} names a shard {shard.name!r}, which is not a plain file name; convert again"
                )
        content = repr((self.directory, catalog.fingerprint, [(each.name, each.bytes, each.crc32c) for each in shards]))
        shares_names = catalog.snapshot or not catalog.is_self_contained or any("/" in each.name for each in shards)
        name = None if shares_names else cached_shards.name_in_cache(content)
        self._kept = cached_shards.KeptShards(self._remote, self._room, name, self._num_downloads)
        self._places = {}
        if catalog.compression == "none":
            self._indexed = {self._remote.uri_of(shard.index_name): shard for shard in shards}
        return catalog

    def check_shards(self, catalog: catalog_lib.Catalog) -> None:
        """Checks the shards of any source, with one listing for all of a folder if the storage can list."""
        shards = (shard for split in catalog.splits.values() for shard in split.shards)
        folders = {self.directory, *(posixpath.dirname(self._remote.uri_of(each.name)) for each in shards)}
        with concurrent.futures.ThreadPoolExecutor(min(_NUM_LISTINGS, len(folders))) as pool:
            self._sizes = dict(itertools.chain(*pool.map(self._list_sizes, sorted(folders))))
        super().check_shards(catalog)

    def _list_sizes(self, folder: str) -> list[tuple[str, int]]:
        """Returns the address and the size of each file in a folder; [] if the storage cannot list it.

        Raises:
            ShardError: if the storage does not answer.
        """
        try:
            entries = self._remote.store.list_directory(folder)
            return [(storage.join(folder, entry.name), entry.size) for entry in entries if entry.size >= 0]
        except OSError as e:
            if storage.is_fault(e):
                raise errors.ShardError(
                    f"the shards of {folder} cannot be listed ({e.strerror or e}): check that the address can "
                    "be reached from here, and run again"
                ) from e
            return []  # the size of each shard is requested alone

    def list_names(self, uri: str) -> Iterable[str]:
        return [entry.name for entry in self._remote.store.list_directory(uri)]

    def size_of(self, uri: str) -> int:
        size = self._sizes.get(uri)
        return self._remote.store.stat(uri).size if size is None else size

    def read(self, uri: str) -> bytes:
        """Reads all bytes of a small file. Indexes are kept."""
        shard = self._indexed.get(uri)
        if shard is None or self._kept is None:
            return self._remote.store.read(uri)
        return self._kept.read_index(uri, shard)

    def place(self, shards: Sequence[catalog_lib.Shard], offsets: record_bytes.Offsets) -> record_bytes.ShardBytes:
        return self._place(shards)

    def files(self, shards: Sequence[catalog_lib.Shard]) -> record_bytes.Shards:
        return self._place(shards)

    def _place(self, shards: Sequence[catalog_lib.Shard]) -> _CachedPlace:
        assert self._kept is not None, "the catalog is loaded before its shards are read"
        known = self._places.get(shards[0].name)
        return known or self._places.setdefault(shards[0].name, _CachedPlace(self._kept, shards))


class _CachedPlace(after_fork.RebuiltAfterFork):
    """The shards of one split."""

    announces_shards = True

    def __init__(self, kept: cached_shards.KeptShards, shards: Sequence[catalog_lib.Shard]):
        largest = max(shards, key=lambda shard: shard.bytes)
        if largest.bytes > kept.room.max_bytes:
            raise errors.ConfigError(
                f"shard {kept.remote.uri_of(largest.name)} has {largest.bytes:,} bytes, more than "
                f"cache_bytes={kept.room.max_bytes:,}: give at least as many, better those of the whole split, "
                f"{sum(shard.bytes for shard in shards):,}"
            )
        self._kept = kept
        self._shards = shards
        super().__init__()

    def rebuild(self) -> None:
        self._lock = threading.Lock()
        self._asked: set[int] = set()
        self._known: set[int] = set()  # shards requested or fetched ahead
        self._previous = -1  # the shard requested last

    def read(self, shard: int, start: int, stop: int) -> bytes:
        """Returns bytes `start` to `stop` of a shard, after its download.

        Raises:
            ShardError: if it cannot be downloaded, or differs from the catalog.
            ConfigError: if the disk has no room.
        """
        return self._file(shard).read(start, stop)

    def read_records(self, shard: int, starts: np.ndarray, stops: np.ndarray) -> list[bytes | None]:
        return self._file(shard).read_records(starts, stops)

    def _file(self, shard: int) -> cached_shards.OpenShard:
        return self._kept.find_open(self._shards[shard]) or self._open(shard)

    def announce(self, shard: int, start: int, stop: int) -> None:
        """Starts to download a shard that will be read soon."""
        if self._kept.find_open(self._shards[shard]) is None:
            self._kept.announce([self._shards[shard]])

    def open(self, shard: int) -> BinaryIO:
        """Opens a file with its own position, for a reader that walks through a shard."""
        return io.BufferedReader(_ShardReader(self._open(shard)), _BUFFER_BYTES)

    def close(self) -> None:
        self._kept.close()

    def _open(self, shard: int) -> cached_shards.OpenShard:
        return self._kept.open(self._shards[shard], [self._shards[each] for each in self._following(shard)])

    def _following(self, shard: int) -> list[int]:
        """Returns the shards to fetch ahead now that `shard` is requested; the module's docstring says why."""
        with self._lock:
            self._asked.add(shard)
            self._known.add(shard)
            previous, self._previous = self._previous, shard
            first, last = min(self._asked), max(self._asked)
            step = math.gcd(*(each - first for each in self._asked))
            if step == 0:  # one shard alone shows no distance
                return []
            share = range(first, min(last + _NUM_AHEAD * step + 1, len(self._shards)), step)
            read = [each for each in share if self._shards[each].num_examples]  # the others' records are all removed
            following = [each for each in read if each > shard] + [each for each in read if each < shard]
            max_bytes = self._kept.room.max_bytes
            wanted = []
            if sum(self._shards[each].bytes for each in read) <= max_bytes:
                wanted = [each for each in following if each not in self._known]
            elif shard == previous + step:
                for each in following[:_NUM_AHEAD]:
                    max_bytes -= 2 * self._shards[each].bytes
                    if max_bytes < 0:
                        break
                    wanted.append(each)
            self._known.update(wanted)
            return wanted

    def __reduce__(self) -> tuple[Any, ...]:
        return _CachedPlace, (self._kept, self._shards)


class _ShardReader(io.RawIOBase):
    """Reads a shard from its start, at its own position."""

    def __init__(self, file: cached_shards.OpenShard):
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = os.pread(self._file.descriptor, len(buffer), self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
