"""The bytes of records by their number in a split, checked; or what is wrong with a record, and where it is."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import io
import itertools
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Protocol

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import errors, example, plural, records, storage
from imagebeam.reader import open_files
from imagebeam.storage import ranges

_MAX_BLOCK_BYTES = 512 << 20  # of blocks that are kept in memory
_BUFFER_BYTES = 128 << 10  # buffer for reading a compressed shard
_HEAD_BYTES = 4096  # read of a broken record, to find its key
_MASKED_CRC = struct.Struct("<I").unpack


class ShardBytes(Protocol):
    """Reads byte ranges of the shards of one split."""

    announces_shards: bool  # whether `announce` is called for the shards of a batch before the first is read

    def read(self, shard: int, start: int, stop: int) -> bytes:
        """Returns bytes `start` to `stop` of a shard, fewer if it ends early."""

    def read_records(self, shard: int, starts: np.ndarray, stops: np.ndarray) -> list[bytes | None]:
        """Returns the contents of records of a shard, at bytes `starts` to `stops`, int64 [n] each.

        None in place of a content has it read and checked with `read`.
        """

    def announce(self, shard: int, start: int, stop: int) -> None:
        """Says that these bytes will be read soon."""

    def close(self) -> None:
        """Keeps no files and no bytes from now on, without waiting for a lock; each later read opens its own file."""


class Shards(Protocol):
    """The shards of one split as files."""

    def open(self, shard: int) -> BinaryIO:
        """Opens a shard from its start."""

    def close(self) -> None:
        """Keeps no files from now on, without waiting for a lock."""


@dataclasses.dataclass(frozen=True)
class Trouble:
    """A fault of one record, and where the record is."""

    shard: str  # its address
    index: int  # number of the record in its shard
    offset: int  # bytes from the start of the shard
    key: str  # "" if it is unknown
    detail: str

    def __str__(self) -> str:
        key = f", key {self.key!r}" if self.key else ""
        return f"record {self.index} of shard {self.shard}{key}, byte offset {self.offset}: {self.detail}"


class Fetcher(Protocol):
    """Reads records by their numbers in the split."""

    is_local: bool  # whether it reads a local disk

    def fetch(self, wanted: np.ndarray) -> Iterator[bytes | Trouble]:
        """Yields the bytes of each record, or its Trouble, in the order of `wanted`."""

    def trouble(self, record: int, detail: str) -> Trouble:
        """Returns `detail` with the record that it is about."""


class LocalShardBytes:
    """Shards on a local disk, read in place. The kernel's page cache is the only buffer."""

    announces_shards = False

    def __init__(self, paths: Sequence[str]):
        self._paths = paths
        self._files: open_files.Shelf[open_files.OpenFile] = open_files.Shelf()

    def read(self, shard: int, start: int, stop: int) -> bytes:
        return self._file(shard).read(start, stop)

    def read_records(self, shard: int, starts: np.ndarray, stops: np.ndarray) -> list[bytes | None]:
        return self._file(shard).read_records(starts, stops)

    def announce(self, shard: int, start: int, stop: int) -> None:
        """Asks the kernel to read ahead."""
        if hasattr(os, "posix_fadvise"):
            file = self._file(shard)
            os.posix_fadvise(file.descriptor, start, stop - start, os.POSIX_FADV_WILLNEED)

    def open(self, shard: int) -> BinaryIO:
        """Opens a shard for reading from its start; the file keeps no descriptor between two reads."""
        return io.BufferedReader(_LocalShard(self, shard, os.path.getsize(self._paths[shard])), _BUFFER_BYTES)

    def close(self) -> None:
        self._files.close()

    def _file(self, shard: int) -> open_files.OpenFile:
        file = self._files.find(shard)
        if file is None:
            file = open_files.OpenFile(self._paths[shard])
            self._files.put(shard, file)
        return file

    def __getstate__(self) -> Sequence[str]:
        return self._paths

    def __setstate__(self, paths: Sequence[str]) -> None:
        self.__init__(paths)  # type: ignore[misc]


class _LocalShard(ranges.SeekableReader):
    """A shard as a file that can be read from any position."""

    def __init__(self, shard_bytes: LocalShardBytes, shard: int, size: int):
        super().__init__(size)
        self._shard_bytes = shard_bytes
        self._shard = shard

    def _read_at(self, position: int, length: int) -> bytes:
        return self._shard_bytes.read(self._shard, position, position + length)


class BlockShardBytes:
    """Shards that are read in blocks, which stay in memory for a while: on a remote storage, or compressed."""

    announces_shards = False

    def __init__(
        self,
        block_ends: Callable[[int], np.ndarray],
        load: Callable[[int, int, int], bytes],
        close: Callable[[], None] | None = None,
    ):
        """Reads nothing yet.

        Args:
            block_ends: returns the ascending byte offsets at which the blocks of a shard end.
            load: returns the bytes of a shard between two of them.
            close: releases what `load` keeps.
        """
        self._block_ends = block_ends
        self._load = load
        self._close = close
        self._max_bytes = _MAX_BLOCK_BYTES
        self._lock = threading.Lock()
        self._blocks: collections.OrderedDict[tuple[int, int], bytes] = collections.OrderedDict()
        self._loading: dict[tuple[int, int], threading.Lock] = {}
        self._num_bytes = 0

    def read(self, shard: int, start: int, stop: int) -> bytes:
        ends = self._block_ends(shard)
        block = int(np.searchsorted(ends, start, side="right"))
        first = int(ends[block - 1]) if block else 0
        data = self._block(shard, block, first, int(ends[block]))
        return data[start - first : stop - first]

    def read_records(self, shard: int, starts: np.ndarray, stops: np.ndarray) -> list[bytes | None]:
        return [None] * len(starts)

    def announce(self, shard: int, start: int, stop: int) -> None:
        """Does nothing: several calls read at the same time anyway."""

    def close(self) -> None:
        self._max_bytes = 0  # takes effect at the next read, if another thread holds the lock now
        if self._close is not None:
            self._close()
        if self._lock.acquire(blocking=False):
            self._blocks.clear()
            self._num_bytes = 0
            self._lock.release()

    def _block(self, shard: int, block: int, first: int, end: int) -> bytes:
        key = shard, block
        with self._lock:
            if key in self._blocks:
                self._blocks.move_to_end(key)
                return self._blocks[key]
            loading = self._loading.setdefault(key, threading.Lock())
        with loading:
            with self._lock:
                if key in self._blocks:
                    return self._blocks[key]
            data = self._load(shard, first, end)
            with self._lock:
                self._blocks[key] = data
                self._num_bytes += len(data)
                self._loading.pop(key, None)
                while self._num_bytes > self._max_bytes and len(self._blocks) > 1:
                    self._num_bytes -= len(self._blocks.popitem(last=False)[1])
            return data


class GzipLoader:
    """Reads blocks of gzip shards from front to back; going back decompresses the shard from its start again."""

    def __init__(self, shards: Shards):
        self._shards = shards
        self._lock = threading.Lock()
        self._streams: collections.OrderedDict[int, tuple[BinaryIO, int]] = collections.OrderedDict()
        self._is_closed = False

    def __call__(self, shard: int, start: int, stop: int) -> bytes:
        import gzip

        with self._lock:
            stream, position = self._streams.pop(shard, (None, 0))
        if stream is None or position > start:
            stream, position = gzip.GzipFile(fileobj=self._shards.open(shard)), 0  # type: ignore[assignment]
        assert stream is not None
        while position < start and (skipped := len(stream.read(min(start - position, 1 << 20)))):
            position += skipped
        data = stream.read(stop - start)
        with self._lock:
            self._streams[shard] = stream, position + len(data)
            while len(self._streams) > (1 if self._is_closed else open_files.max_open()):
                self._streams.popitem(last=False)
        return data

    def close(self) -> None:
        """Keeps at most one stream from now on, without waiting for a lock."""
        self._is_closed = True
        self._shards.close()
        if self._lock.acquire(blocking=False):
            self._streams.clear()
            self._lock.release()


class RecordFetcher:
    """Reads records of one split and compares their checksums. Thread-safe."""

    def __init__(
        self,
        directory: str,
        shards: Sequence[catalog_lib.Shard],
        shard_bytes: ShardBytes,
        offsets: Offsets,
        key_feature: str | None = "image/key",
    ):
        self._directory = directory
        self._shards = shards
        self._shard_bytes = shard_bytes
        self._offsets = offsets
        self._key_feature = key_feature
        self._announces = shard_bytes.announces_shards
        self.is_local = isinstance(shard_bytes, LocalShardBytes)
        self._ends = np.cumsum([shard.records for shard in shards], dtype=np.int64)

    def fetch(self, wanted: np.ndarray) -> Iterator[bytes | Trouble]:
        """Yields the bytes of each record, or its Trouble, in the order of `wanted`.

        Args:
            wanted: int64 [n], numbers of records in the split.
        """
        shards = np.searchsorted(self._ends, wanted, side="right")
        if self._announces:
            for shard in np.unique(shards).tolist():
                self._shard_bytes.announce(shard, 0, self._shards[shard].bytes)
        if len(wanted) == 1:  # to group them would take longer than to read it
            yield self._fetch_one(int(wanted[0]), int(shards[0]))
            return
        places = np.argsort(shards, kind="stable")
        runs = np.split(places, np.flatnonzero(np.diff(shards[places])) + 1) if len(places) else []
        unread = {int(shards[run[0]]): run for run in runs}
        read: dict[int, bytes | None] = {}  # by place in `wanted`
        for place, (shard, record) in enumerate(zip(shards.tolist(), wanted.tolist())):
            if shard in unread:  # all of a shard at once: a call for each record would take longer than a small one
                run = unread.pop(shard)
                read.update(zip(run.tolist(), self._read_all(shard, wanted[run])))
            content = read.pop(place)
            yield self._fetch_one(record, shard) if content is None else content

    def _fetch_one(self, record: int, shard: int) -> bytes | Trouble:
        index = record - int(self._ends[shard]) + self._shards[shard].records
        offset, end = self._offsets.of(shard, index)
        start, stop = offset + records.HEADER_BYTES, end - records.FOOTER_BYTES
        try:
            [content] = self._shard_bytes.read_records(shard, np.array([start]), np.array([stop]))
            # Whatever is wrong is found again by `_read`, and named.
            return self._read(shard, offset, end) if content is None else content
        except (OSError, ValueError, EOFError) as e:
            return self.trouble(record, f"{e.strerror or e}" if isinstance(e, OSError) else str(e))

    def _read_all(self, shard: int, wanted: np.ndarray) -> list[bytes | None]:
        """Returns the contents of records of one shard; None for each that is not found right."""
        offsets = self._offsets.shard(shard)
        indexes = wanted - int(self._ends[shard]) + self._shards[shard].records
        starts = offsets[indexes].astype(np.int64) + records.HEADER_BYTES
        stops = offsets[indexes + 1].astype(np.int64) - records.FOOTER_BYTES
        try:
            return self._shard_bytes.read_records(shard, starts, stops)
        except OSError:
            return [None] * len(wanted)

    def _read(self, shard: int, offset: int, end: int) -> bytes:
        start, stop = offset + records.HEADER_BYTES, end - records.FOOTER_BYTES
        data = self._shard_bytes.read(shard, start, stop)
        footer = self._shard_bytes.read(shard, stop, end)
        if len(data) < stop - start or len(footer) < records.FOOTER_BYTES:
            raise ValueError("the shard ends in the middle of it")
        if records.mask_crc(records.extend_crc(0, data)) != _MASKED_CRC(footer)[0]:
            if self._shard_bytes.read(shard, offset, start) != records.frame_header(stop - start):
                raise ValueError(
                    f"the index {self._shards[shard].index_name} says that a record of {stop - start} bytes begins "
                    "here, and the shard has none: one of the two is damaged"
                )
            raise ValueError(f"the checksum of a record of {len(data)} bytes does not match")
        return data

    def close(self) -> None:
        """Keeps no files and no bytes from now on; later reads open their files again."""
        self._shard_bytes.close()

    def find_ints(self, key: str, removed: np.ndarray | None = None) -> Iterator[list[int]]:
        """Yields the values of an int64 feature of each record in order, without reading the rest of the record.

        Args:
            key: the feature.
            removed: int64 [removed], ascending: numbers of records that are not read, which have no values.

        Raises:
            ExampleError: if a record does not have it or cannot be read. Checksums are not compared.
        """
        ends = self._ends.tolist()
        for shard, (entry, stop) in enumerate(zip(self._shards, ends, strict=True)):
            record = stop - entry.records
            unread = set() if removed is None else _between(removed, record, stop)
            if len(unread) == entry.records:
                yield from itertools.repeat([], entry.records)
                continue
            for offset, end in itertools.pairwise(self._offsets.shard(shard).tolist()):
                if record in unread:
                    yield []
                else:
                    read = functools.partial(
                        self._read_part, shard, offset + records.HEADER_BYTES, end - records.FOOTER_BYTES
                    )
                    try:
                        yield example.find_ints(read(0, _HEAD_BYTES), key, read)
                    except (OSError, ValueError, EOFError) as e:
                        raise errors.ExampleError(str(self.trouble(record, str(e)))) from e
                record += 1

    def _read_part(self, shard: int, start: int, end: int, first: int, stop: int) -> bytes:
        """Returns bytes `first` to `stop` of the record whose content is at bytes `start` to `end` of the shard."""
        if first >= end - start:
            return b""
        return self._shard_bytes.read(shard, start + first, min(start + stop, end))

    def trouble(self, record: int, detail: str) -> Trouble:
        """Returns `detail` with the record of the split that it is about."""
        shard = int(np.searchsorted(self._ends, record, side="right"))
        index = record - int(self._ends[shard]) + self._shards[shard].records
        offset, end = self._offsets.of(shard, index)
        uri = storage.join_relative(self._directory, self._shards[shard].name)
        return Trouble(uri, index, offset, self._key(shard, offset, end), detail)

    def _key(self, shard: int, offset: int, end: int) -> str:
        """Returns the key of a record that may be broken: small features come before the image's bytes."""
        start = offset + records.HEADER_BYTES
        with contextlib.suppress(OSError, ValueError, EOFError):
            head = self._shard_bytes.read(shard, start, min(start + _HEAD_BYTES, end))
            return example.find_bytes(head, self._key_feature or "").decode("utf-8", "backslashreplace")
        return ""


def _between(numbers: np.ndarray, start: int, stop: int) -> set[int]:
    """Returns the ascending `numbers` from `start` to `stop`."""
    first, last = np.searchsorted(numbers, (start, stop))
    return set(numbers[first:last].tolist())


def are_offsets_of(offsets: np.ndarray, shard: catalog_lib.Shard) -> bool:
    """Returns whether these can be the offsets of a shard's records, followed by its size."""
    if len(offsets) != shard.records + 1 or offsets[0] != 0 or offsets[-1] != shard.bytes:
        return False
    ascend = offsets[1:] > offsets[:-1]
    return bool(ascend.all() and (np.diff(offsets) >= records.HEADER_BYTES + records.FOOTER_BYTES).all())


class Offsets:
    """Offsets of the records in the shards of a split. The index of a shard is read when it is first needed."""

    def __init__(self, directory: str, shards: Sequence[catalog_lib.Shard], read: Callable[[str], bytes]):
        self._directory = directory
        self._shards = shards
        self._read = read
        self._begin()

    def _begin(self) -> None:
        self._loaded: dict[int, np.ndarray] = {}
        self._locks = [threading.Lock() for _ in self._shards]  # by shard, held while its index loads

    def of(self, shard: int, index: int) -> tuple[int, int]:
        """Returns the offsets of a record and of its end, in bytes."""
        offsets = self.shard(shard)
        return int(offsets[index]), int(offsets[index + 1])

    def shard(self, shard: int) -> np.ndarray:
        """Returns the offsets of all records of a shard and their end: uint64 [records + 1].

        Raises:
            ShardError: if the index is missing or belongs to another shard.
        """
        if shard not in self._loaded:
            with self._locks[shard]:
                if shard not in self._loaded:
                    self._loaded[shard] = self._load(self._shards[shard])
        return self._loaded[shard]

    def _load(self, shard: catalog_lib.Shard) -> np.ndarray:
        uri = storage.join_relative(self._directory, shard.index_name)
        try:
            offsets = np.frombuffer(self._read(uri), "<u8")
        except (OSError, ValueError) as e:
            raise errors.ShardError(f"index {uri} cannot be read ({e}): run imagebeam verify {self._directory}") from e
        if len(offsets) != shard.records + 1:
            raise errors.ShardError(
                f"index {uri} is of {plural.count(max(0, len(offsets) - 1), 'record')}, its shard has "
                f"{shard.records:,}: run imagebeam verify {self._directory}"
            )
        if not are_offsets_of(offsets, shard):
            raise errors.ShardError(
                f"index {uri} is damaged: its offsets do not ascend from 0 to {shard.bytes:,}, the bytes of its shard; "
                f"run imagebeam verify {self._directory}"
            )
        return offsets

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_loaded", "_locks")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._begin()


class ScannedOffsets(Offsets):
    """Offsets of the records in compressed shards, which have no index: found by reading each shard once."""

    def __init__(self, directory: str, shards: Sequence[catalog_lib.Shard], open_shard: Callable[[int], BinaryIO]):
        super().__init__(directory, shards, lambda uri: b"")
        self._open_shard = open_shard

    def _load(self, shard: catalog_lib.Shard) -> np.ndarray:
        uri = storage.join_relative(self._directory, shard.name)
        offsets, end = [], 0
        try:
            with self._open_shard(self._shards.index(shard)) as file:
                for record in records.read_records(file, "gzip"):
                    offsets.append(record.offset)
                    end = record.offset + len(record.data) + records.HEADER_BYTES + records.FOOTER_BYTES
        except (OSError, errors.RecordError) as e:
            raise errors.ShardError(f"shard {uri} cannot be read: {e}") from e
        if len(offsets) != shard.records:
            found = plural.count(len(offsets), "record")
            raise errors.ShardError(f"shard {uri} holds {found}, the catalog says {shard.records:,}")
        return np.array([*offsets, end], "<u8")
