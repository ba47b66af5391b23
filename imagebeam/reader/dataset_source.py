"""Where a dataset is read from: a local disk, gs:// through TensorFlow, or anything else through a cache."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO, Protocol

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import errors, storage
from imagebeam.reader import record_bytes

_BLOCK_BYTES = 4 << 20


class Source(Protocol):
    """A dataset at an address."""

    @property
    def directory(self) -> str: ...

    def read(self, uri: str) -> bytes:
        """All bytes of a small file."""

    def load_catalog(self) -> catalog_lib.Catalog: ...

    def check_shards(self, catalog: catalog_lib.Catalog) -> None:
        """Raises ShardError where a shard is missing or has another length."""

    def fetcher(self, catalog: catalog_lib.Catalog, split: str) -> record_bytes.RecordFetcher:
        """Returns what reads the records of a split: the same object in each call."""

    def close(self) -> None:
        """Keeps no files open from now on, and waits for no lock."""


class _Source:
    """What all sources share; they differ in how bytes are had."""

    def __init__(self, directory: str):
        self.directory = directory
        self._begin()

    def _begin(self) -> None:
        # Kept here and nowhere else: fetchers hold open files, which are closed with the last dataset of this source.
        self._fetchers: dict[tuple[str, str], record_bytes.RecordFetcher] = {}  # by fingerprint and split

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_fetchers"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def read(self, uri: str) -> bytes:
        raise NotImplementedError

    def list_names(self, uri: str) -> Iterable[str]:
        """The names of the files in a folder."""
        raise NotImplementedError

    def size_of(self, uri: str) -> int:
        raise NotImplementedError

    def files(self, shards: Sequence[catalog_lib.Shard]) -> record_bytes.Shards:
        raise NotImplementedError

    def place(self, shards: Sequence[catalog_lib.Shard], offsets: record_bytes.Offsets) -> record_bytes.ShardBytes:
        raise NotImplementedError

    def load_catalog(self) -> catalog_lib.Catalog:
        return catalog_lib.load_catalog(self.directory, self.read, self.list_names)

    def check_shards(self, catalog: catalog_lib.Catalog) -> None:
        for split in catalog.splits.values():
            for shard in split.shards:
                uri = storage.join(self.directory, shard.name)
                try:
                    size = self.size_of(uri)
                except OSError as e:
                    raise errors.ShardError(f"shard {uri} is missing ({e}): run imagebeam verify, convert again") from e
                if size != shard.bytes:
                    raise errors.ShardError(
                        f"shard {uri} has {size:,} bytes, the catalog says {shard.bytes:,}: "
                        "it was cut short or replaced; run imagebeam verify, convert again with --overwrite"
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


class LocalSource(_Source):
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
        return record_bytes.LocalShardBytes([storage.join(self.directory, shard.name) for shard in shards])


class TensorFlowSource(_Source):
    """An address that TensorFlow's own file systems read (gs://), in blocks."""

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
            return self._read(storage.join(self.directory, shards[shard].name), start, stop - start)

        return record_bytes.BlockShardBytes(_block_ends(offsets), load)

    def _read(self, uri: str, start: int, length: int) -> bytes:
        def read(gfile: Any) -> bytes:
            with gfile.GFile(uri, "rb") as file:  # asks for nothing yet: errors come from seek and read
                file.seek(start)
                return file.read(length)

        return self._call(uri, read)

    def _call(self, uri: str, call: Callable[[Any], Any]) -> Any:
        import tensorflow as tf

        try:
            return call(tf.io.gfile)
        except tf.errors.NotFoundError as e:
            raise FileNotFoundError(f"there is no {uri}") from e
        except tf.errors.OpError as e:
            raise OSError(f"{uri}: {e.message}") from e


class _WholeShards:
    """Shards that are read into memory to be opened."""

    def __init__(self, source: TensorFlowSource, shards: Sequence[catalog_lib.Shard]):
        self._source = source
        self._shards = shards

    def open(self, shard: int) -> BinaryIO:
        return io.BytesIO(self._source.read(storage.join(self._source.directory, self._shards[shard].name)))

    def close(self) -> None:
        """Does nothing: there are no files."""


def _block_ends(offsets: record_bytes.Offsets) -> Callable[[int], np.ndarray]:
    """Cuts shards into blocks of whole records, some 4 MB each."""

    @functools.cache
    def ends(shard: int) -> np.ndarray:
        starts = offsets.shard(shard)
        cuts = np.searchsorted(starts, np.arange(_BLOCK_BYTES, int(starts[-1]), _BLOCK_BYTES, dtype=starts.dtype))
        return np.unique(np.append(starts[cuts], starts[-1])).astype(np.int64)

    return ends


def open_source(
    directory: str, cache_dir: str | None, cache_bytes: int, storage_options: Mapping[str, Any] | None = None
) -> Source:
    """The source of a dataset's address.

    Raises:
        ConfigError: if the address needs a cache and none is given, or its file system is not installed.
    """
    uri = storage.normalize(directory)
    scheme = storage.scheme_of(uri)
    if scheme == "file":
        return LocalSource(uri)
    if cache_dir is not None:
        from imagebeam.reader.shard_cache import cached_source

        return cached_source.CachedSource(uri, cache_dir, cache_bytes, storage_options=storage_options)
    if scheme == "gs":
        return TensorFlowSource(uri)
    raise errors.ConfigError(
        f"{directory!r}: TensorFlow reads no {scheme}:// by itself; give cache_dir, a local folder for its shards"
    )
