"""A dataset at an address: reads its catalog and indexes, and chooses how the records of a split are read.

| place of the shards | uncompressed records | compressed records |
| --- | --- | --- |
| on a local disk, or in a cache with room for all that is read | alone | in blocks |
| at its address | in blocks | in blocks |
"""

from __future__ import annotations

import concurrent.futures
import itertools
import logging
import posixpath
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import errors, snapshots, storage
from imagebeam.reader import record_selection, shard_cache, shard_files, shard_reader
from imagebeam.storage import given_options, remote

if TYPE_CHECKING:
    import array

_LOGGER = logging.getLogger("imagebeam.dataset")

_OPEN_BUDGET_SEC = 5.0  # with all retries, for the first look at an address, which is more likely wrong than down
_NUM_LISTINGS = 8  # at once
_MAX_EXTRA = 1.1  # times the records that are read may be decompressed without a warning


class DatasetSource:
    """A dataset at an address. Thread-safe. A pickled copy, or a forked process, starts without open files."""

    def __init__(
        self,
        directory: str,
        cache_dir: str | None = None,
        cache_bytes: int = 64 << 30,
        storage_options: Mapping[str, Any] | None = None,
    ):
        """Looks up the storage of the address. Files are read later.

        Args:
            directory: a path or an address.
            cache_dir: a local folder for whole shards, created if it does not exist; datasets may share it. It keeps
                no shards of a dataset on a local disk.
            cache_bytes: limit for all shards in it together.
            storage_options: credentials and other options of the storage; see docs/storage.md.

        Raises:
            ConfigError: if the address or an option is not known, the package of the storage is not installed, or
                `cache_dir` is not a local folder.
        """
        self.directory = storage.normalize(directory)
        # those of the process too: other processes that read for this one have no table
        self._storage_options = {**given_options.options_of(self.directory), **(storage_options or {})}
        self._is_local = storage.scheme_of(self.directory) == "file"
        if self._is_local and self._storage_options:
            raise errors.ConfigError(
                "storage-options-unknown",
                f"storage_options has {next(iter(self._storage_options))!r}, and {directory!r} is a local folder, "
                "which takes none: leave storage_options out",
            )
        storage.storage_of(self.directory, self._storage_options)
        if cache_dir is not None and storage.scheme_of(cache_dir) != "file":
            raise errors.ConfigError("option-bad-value", f"cache_dir is {cache_dir!r}; give a folder on a local disk")
        self._cache_dir, self._cache_bytes = cache_dir, cache_bytes
        self._room = None if self._is_local else self._make_room()
        self._cache: shard_cache.ShardCache | None = None  # holds the content that the catalog names
        self._beside: Mapping[str, tuple[catalog_lib.Shard, catalog_lib.SideFile]] = {}  # files of shards by address
        self._offsets: dict[tuple[str, tuple[str, ...]], shard_files.Offsets] = {}  # keys: fingerprint and splits

    @property
    def store(self) -> storage.Storage:
        """The storage of the address, with its options."""
        return storage.storage_of(self.directory, self._storage_options)

    def load_catalog(self, snapshot: str | int | None = None) -> catalog_lib.Catalog:
        """Reads the catalog of the folder, or of a snapshot in it, whose folder becomes `directory`."""
        with remote.budget(_OPEN_BUDGET_SEC):
            found = snapshots.find(self.directory, snapshot, self.store)
        self.directory, catalog = found.folder, found.catalog
        if self._room is not None:
            self._cache = shard_cache.ShardCache(self.directory, self._storage_options, self._room, catalog)
            self._beside = {
                storage.join_relative(self.directory, file.name): (shard, file)
                for split in catalog.splits.values()
                for shard in split.shards
                for file in shard.side_files(catalog.compression)
            }
        return catalog

    def _make_room(self) -> shard_cache.Room | None:
        if self._cache_dir is None:
            return None
        return shard_cache.Room(storage.normalize(self._cache_dir), self._cache_bytes)

    def cache_of_made(self, catalog: catalog_lib.Catalog) -> shard_cache.ShardCache | None:
        """Returns the cache for what is made of the shards, those on a local disk too; None without a folder for it."""
        if self._cache is None and (room := self._make_room()) is not None:
            return shard_cache.ShardCache(self.directory, self._storage_options, room, catalog)
        return self._cache

    def load_removed(self, catalog: catalog_lib.Catalog) -> Mapping[str, array.array[int]]:
        """Returns the removed records by the name of their shard: ascending indexes in it."""
        return snapshots.load_removed(self.directory, catalog, self.store)

    def read(self, uri: str) -> bytes:
        """Reads all bytes of a small file. The cache keeps those beside shards."""
        found = self._beside.get(uri)
        return self.store.read(uri) if found is None or self._cache is None else self._cache.read_side_file(uri, *found)

    def check_shards(self, catalog: catalog_lib.Catalog) -> None:
        """Compares the sizes of all shards with the catalog, with one listing for each remote folder if it can list.

        Raises:
            ShardError: if a shard is missing or has another length, or the storage does not answer.
        """
        uris = {
            storage.join_relative(self.directory, shard.name): shard
            for split in catalog.splits.values()
            for shard in split.shards
        }
        sizes: dict[str, int] = {}
        if not self._is_local:
            folders = sorted({self.directory, *map(posixpath.dirname, uris)})
            with concurrent.futures.ThreadPoolExecutor(min(_NUM_LISTINGS, len(folders))) as pool:
                sizes = dict(itertools.chain(*pool.map(self._list_sizes, folders)))
        for uri, shard in uris.items():
            try:
                size = sizes[uri] if uri in sizes else self.store.stat(uri).size
            except OSError as e:
                again = "index" if catalog.indexed else "convert"
                detail = f"is missing ({e.strerror or e}): run imagebeam verify, then {again} again"
                raise errors.ShardError("shard-missing", f"shard {uri} {detail}") from e
            if size != shard.bytes:
                again = f"imagebeam index {self.directory}" if catalog.indexed else "convert again with --overwrite"
                raise errors.ShardError(
                    "shard-differs",
                    f"shard {uri} has {size:,} bytes, the catalog says {shard.bytes:,}: "
                    f"it was cut short or replaced; run imagebeam verify, then {again}",
                )

    def _list_sizes(self, folder: str) -> list[tuple[str, int]]:
        """Returns the address and the size of each file in a folder; [] if the storage cannot list it.

        Raises:
            ShardError: if the storage does not answer.
        """
        try:
            entries = self.store.list_directory(folder)
            return [(storage.join(folder, entry.name), entry.size) for entry in entries if entry.size >= 0]
        except OSError as e:
            if storage.is_fault(e):
                raise errors.ShardError(
                    "shard-unreadable",
                    f"the shards of {folder} cannot be listed ({e.strerror or e}): check that the address can "
                    "be reached from here, and run again",
                ) from e
            return []  # the size of each shard is requested alone

    def open_reader(
        self, catalog: catalog_lib.Catalog, splits: tuple[str, ...], reads: record_selection.Reads
    ) -> shard_reader.ShardReader:
        """Returns a reader for these records of some splits. Logs what will be read more than once."""
        key = next((each.key for each in catalog.features if each.source == "image/key"), None)
        shards = shard_files.SplitShards(self.directory, record_selection.shards_of(catalog, splits), key)
        files = self._files(shards, reads)
        if catalog.compression != "none":
            _warn_of_extra(shards, reads)
            num_open = 2 * (reads.window_blocks or 1) + 16
            return shard_reader.ShardReader(shard_reader.StreamedRecords(shards, files, num_open), reads)
        offsets = self._offsets.setdefault((catalog.fingerprint, splits), shard_files.Offsets(shards, self.read))
        is_alone = self._is_local or isinstance(files, shard_cache.CachedFiles)
        loader = shard_reader.IndexedRecords(shards, files, offsets)
        return shard_reader.ShardReader(loader, None if is_alone else reads)

    def _files(self, shards: shard_files.SplitShards, reads: record_selection.Reads) -> shard_files.ShardFiles:
        if self._cache is not None:
            firsts = reads.share.records_at(reads.share.starts)
            lasts = reads.share.records_at(reads.share.stops - 1)
            is_read = np.zeros(len(shards.shards), bool)
            for first, last in zip(shards.locate(firsts)[0].tolist(), shards.locate(lasts)[0].tolist()):
                is_read[first : last + 1] = True
            ahead = np.flatnonzero(is_read).tolist()
            num_bytes, max_bytes = sum(shards.shards[each].bytes for each in ahead), self._cache.room.max_bytes
            if num_bytes <= max_bytes:
                return shard_cache.CachedFiles(self._cache, shards, ahead)
            _LOGGER.warning(
                "the %s shards that are read have %s bytes, and cache_bytes is %s: they are read at their address in "
                "every epoch, and not kept; give cache_bytes=%d, or more if other readers share cache_dir",
                f"{len(ahead):,}",
                f"{num_bytes:,}",
                f"{max_bytes:,}",
                num_bytes,
            )
        return shard_files.ShardFiles(shards, self._storage_options)


def _warn_of_extra(shards: shard_files.SplitShards, reads: record_selection.Reads) -> None:
    """Warns if much more of compressed shards is decompressed than read: each is decompressed up to its last record."""
    share = reads.share
    [where, ends] = shards.locate(share.records_at(share.stops - 1))
    num_decompressed = sum(max(ends[where == each]) + 1 for each in np.unique(where))
    factor = num_decompressed / max(1, len(share))
    if factor > _MAX_EXTRA:
        _LOGGER.warning(
            "%.1f times the records that this process reads are decompressed in an epoch, because its part of a shard "
            "does not begin at the start of the shard, or only some records are kept: convert with "
            "output.compression=none, or with num_shards a multiple of process_count",
            factor,
        )
