"""Reads a dataset's catalog, indexes and records from a local disk, or from gs:// through TensorFlow."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import errors, find_snapshot, missing_packages, storage
from imagebeam.reader import record_bytes

if TYPE_CHECKING:
    import array

_BLOCK_BYTES = 4 << 20


class Source(Protocol):
    """A dataset at an address."""

    @property
    def directory(self) -> str: ...

    def read(self, uri: str) -> bytes:
        """Reads all bytes of a small file."""

    def load_catalog(self, snapshot: str | int | None = None) -> catalog_lib.Catalog:
        """Reads the catalog of the folder, or of a snapshot in it, whose folder becomes `directory`."""

    def load_removed(self, catalog: catalog_lib.Catalog) -> Mapping[str, array.array[int]]:
        """Returns the removed records by the name of their shard: ascending indexes in it."""

    def check_shards(self, catalog: catalog_lib.Catalog) -> None:
        """Raises ShardError if a shard is missing or has another length."""

    def fetcher(self, catalog: catalog_lib.Catalog, split: str) -> record_bytes.RecordFetcher:
        """Returns the fetcher of a split's records, the same object on every call."""

    def close(self) -> None:
        """Closes the open files, and keeps none open from now on. Acquires no lock."""


class DatasetSource:
    """Base of all sources. A subclass says how files are read."""

    def __init__(self, directory: str):
        self.directory = directory
        self._forget()

    def _forget(self) -> None:
        # Kept nowhere else: fetchers hold open files, which are closed with the last dataset of this source.
        self._fetchers: dict[tuple[str, str], record_bytes.RecordFetcher] = {}  # by fingerprint and split

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_fetchers"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def read(self, uri: str) -> bytes:
        raise NotImplementedError

    def list_names(self, uri: str) -> Iterable[str]:
        """Returns the names of the files in a folder."""
        raise NotImplementedError

    def size_of(self, uri: str) -> int:
        raise NotImplementedError

    def files(self, shards: Sequence[catalog_lib.Shard]) -> record_bytes.Shards:
        raise NotImplementedError

    def place(self, shards: Sequence[catalog_lib.Shard], offsets: record_bytes.Offsets) -> record_bytes.ShardBytes:
        raise NotImplementedError

    def load_catalog(self, snapshot: str | int | None = None) -> catalog_lib.Catalog:
        found = find_snapshot.find(self.directory, snapshot, self.read, self.list_names)
        self.directory = found.folder
        return found.catalog

    def load_removed(self, catalog: catalog_lib.Catalog) -> Mapping[str, array.array[int]]:
        return find_snapshot.load_removed(self.directory, catalog, self.read)

    def check_shards(self, catalog: catalog_lib.Catalog) -> None:
        for split in catalog.splits.values():
            for shard in split.shards:
                uri = storage.join_relative(self.directory, shard.name)
                try:
                    size = self.size_of(uri)
                except OSError as e:
                    again = "index" if catalog.indexed else "convert"
                    detail = f"is missing ({e.strerror or e}): run imagebeam verify, then {again} again"
                    raise errors.ShardError(f"shard {uri} {detail}") from e
                if size != shard.bytes:
                    again = f"imagebeam index {self.directory}" if catalog.indexed else "convert again with --overwrite"
                    raise errors.ShardError(
                        f"shard {uri} has {size:,} bytes, the catalog says {shard.bytes:,}: "
                        f"it was cut short or replaced; run imagebeam verify, then {again}"
                    )

    def fetcher(self, catalog: catalog_lib.Catalog, split: str) -> record_bytes.RecordFetcher:
        name = (catalog.fingerprint, split)
        known = self._fetchers.get(name)
        return known or self._fetchers.setdefault(name, self._make_fetcher(catalog, split))

    def close(self) -> None:
        for fetcher in list(self._fetchers.values()):
            fetcher.close()

    def _make_fetcher(self, catalog: catalog_lib.Catalog, split: str) -> record_bytes.RecordFetcher:
        shards = catalog.splits[split].shards
        offsets: record_bytes.Offsets
        if catalog.compression == "none":
            offsets = record_bytes.Offsets(self.directory, shards, self.read)
            place = self.place(shards, offsets)
        else:
            files = self.files(shards)
            offsets = record_bytes.ScannedOffsets(self.directory, shards, files.open)
            loader = record_bytes.GzipLoader(files)
            place = record_bytes.BlockShardBytes(_block_ends(offsets), loader, loader.close)
        key = next((each.key for each in catalog.features if each.source == "image/key"), None)
        return record_bytes.RecordFetcher(self.directory, shards, place, offsets, key)


class LocalSource(DatasetSource):
    """A folder on a local disk."""

    def read(self, uri: str) -> bytes:
        return storage.storage_of(uri).read(uri)

    def list_names(self, uri: str) -> Iterable[str]:
        return [entry.name for entry in storage.storage_of(uri).list_directory(uri)]

    def size_of(self, uri: str) -> int:
        return storage.storage_of(uri).stat(uri).size

    def place(self, shards: Sequence[catalog_lib.Shard], offsets: record_bytes.Offsets) -> record_bytes.ShardBytes:
        return self.files(shards)

    def files(self, shards: Sequence[catalog_lib.Shard]) -> record_bytes.LocalShardBytes:
        return record_bytes.LocalShardBytes([storage.join_relative(self.directory, shard.name) for shard in shards])


class TensorFlowSource(DatasetSource):
    """A dataset at gs://, read in blocks by TensorFlow's own file system.

    Not through `storage`: a trainer that installed the extra `tf` alone reads gs:// this way, with TensorFlow's
    credentials, and its reads release Python's lock.
    """

    def read(self, uri: str) -> bytes:
        return self._read(uri, 0, -1)

    def list_names(self, uri: str) -> Iterable[str]:
        return self._call(uri, lambda gfile: gfile.listdir(uri))

    def size_of(self, uri: str) -> int:
        return self._call(uri, lambda gfile: gfile.stat(uri).length)

    def files(self, shards: Sequence[catalog_lib.Shard]) -> record_bytes.Shards:
        return _WholeShards(self, shards)

    def place(self, shards: Sequence[catalog_lib.Shard], offsets: record_bytes.Offsets) -> record_bytes.ShardBytes:
        def load(shard: int, start: int, stop: int) -> bytes:
            return self._read(storage.join_relative(self.directory, shards[shard].name), start, stop - start)

        return record_bytes.BlockShardBytes(_block_ends(offsets), load)

    def _read(self, uri: str, start: int, length: int) -> bytes:
        def read(gfile: Any) -> bytes:
            with gfile.GFile(uri, "rb") as file:  # sends no request yet: seek and read raise the errors
                file.seek(start)
                return file.read(length)

        return self._call(uri, read)

    def _call(self, uri: str, call: Callable[[Any], Any]) -> Any:
        try:
            import tensorflow as tf
        except ModuleNotFoundError as e:
            raise missing_packages.missing_package(
                e, "reading gs:// in place", otherwise="give cache_dir, which needs 'imagebeam[gcs]' instead"
            ) from e
        try:
            return call(tf.io.gfile)
        except tf.errors.NotFoundError as e:
            raise FileNotFoundError(f"there is no {uri}") from e
        except tf.errors.OpError as e:
            raise OSError(f"{uri}: {e.message}") from e


class _WholeShards:
    """Shards that are read into memory when they are opened."""

    def __init__(self, source: TensorFlowSource, shards: Sequence[catalog_lib.Shard]):
        self._source = source
        self._shards = shards

    def open(self, shard: int) -> BinaryIO:
        return io.BytesIO(self._source.read(storage.join_relative(self._source.directory, self._shards[shard].name)))

    def close(self) -> None:
        """Does nothing: there are no files."""


def _block_ends(offsets: record_bytes.Offsets) -> Callable[[int], np.ndarray]:
    """Returns a function that cuts a shard into blocks of whole records, of about 4 MiB each."""

    @functools.cache
    def ends(shard: int) -> np.ndarray:
        starts = offsets.shard(shard)
        cuts = np.searchsorted(starts, np.arange(_BLOCK_BYTES, int(starts[-1]), _BLOCK_BYTES, dtype=starts.dtype))
        return np.unique(np.append(starts[cuts], starts[-1])).astype(np.int64)

    return ends
