"""The records of one split by their numbers, checked; or the fault of a record, and where the record is."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import errors, example, plural, records, storage
from imagebeam.reader import open_files

HEAD_BYTES = 4096  # of a record: small features come before the image's bytes
_MASKED_CRC = struct.Struct("<I").unpack

Found: TypeAlias = records.Record | errors.RecordError


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
    """Reads records by their numbers."""

    is_local: bool  # whether no read waits for a network

    def fetch(self, wanted: np.ndarray, epochs: np.ndarray) -> Iterator[bytes | Trouble]:
        """Yields the bytes of each record, or its Trouble, in the order of `wanted`.

        Args:
            wanted: int64 [n], numbers of records.
            epochs: int64 [n], the epoch in which each is read.
        """

    def trouble(self, record: int, detail: str) -> Trouble:
        """Returns `detail` with the record that it is about."""


@dataclasses.dataclass(frozen=True, eq=False)
class SplitShards:
    """The shards of one split. Records are numbered over all of them.

    Attributes:
        directory: folder of the catalog.
        shards: the shards in their order.
        key_feature: name of the feature that holds the key of an example, if there is one.
    """

    directory: str
    shards: Sequence[catalog_lib.Shard]
    key_feature: str | None

    @functools.cached_property
    def ends(self) -> np.ndarray:
        """The number after the last record of each shard: int64 [shards]."""
        return np.cumsum([shard.records for shard in self.shards], dtype=np.int64)

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """The number of the first record of each shard: int64 [shards]."""
        return np.concatenate([[0], self.ends[:-1]]).astype(np.int64)

    def locate(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the shard of each record, and its number in the shard: int64 [n] each."""
        shards = np.searchsorted(self.ends, wanted, side="right")
        return shards, wanted - self.starts[shards]

    def uri(self, shard: int) -> str:
        return storage.join_relative(self.directory, self.shards[shard].name)

    def trouble(self, shard: int, index: int, offset: int, head: bytes, detail: str) -> Trouble:
        """Returns a Trouble; `head` is the beginning of the record, whose rest may be broken."""
        key = ""
        with contextlib.suppress(ValueError):
            key = example.find_bytes(head[:HEAD_BYTES], self.key_feature or "").decode("utf-8", "backslashreplace")
        return Trouble(self.uri(shard), index, offset, key, detail)


class ShardReader(abc.ABC):
    """Reads the records of one split and compares their checksums. Thread-safe and picklable."""

    is_local = False

    def __init__(self, split: SplitShards):
        self.split = split

    @abc.abstractmethod
    def fetch(self, wanted: np.ndarray, epochs: np.ndarray) -> Iterator[bytes | Trouble]:
        """Yields the bytes of each record, or its Trouble: see `Fetcher`.

        Raises:
            ShardError: if a whole shard cannot be read.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Keeps no files and no bytes from now on, without waiting for a lock. Later reads open their files again."""

    @abc.abstractmethod
    def _look_at(self, shard: int, index: int) -> tuple[int, bytes]:
        """Returns the offset of a record that may be broken, and the beginning of it; b"" if that cannot be read."""

    @abc.abstractmethod
    def _heads(self, shard: int, indexes: np.ndarray) -> Iterator[tuple[bytes, Callable[[int, int], bytes]]]:
        """Yields the beginning of each record, unchecked, and a function that reads it between two offsets."""

    def trouble(self, record: int, detail: str) -> Trouble:
        """Returns `detail` with the record of the split that it is about."""
        [shard], [index] = self.split.locate(np.array([record]))
        return self.split.trouble(int(shard), int(index), *self._look_at(int(shard), int(index)), detail)

    def find_ints(self, key: str, removed: np.ndarray) -> Iterator[list[int]]:
        """Yields the values of an int64 feature of each record in order.

        Args:
            key: the feature.
            removed: int64 [removed], ascending: numbers of records that are not read, which have no values.

        Raises:
            ExampleError: if a record does not have it or cannot be read. Checksums are not compared.
        """
        for shard, (start, end) in enumerate(zip(self.split.starts.tolist(), self.split.ends.tolist(), strict=True)):
            is_read = ~np.isin(np.arange(start, end), removed)
            heads = self._heads(shard, np.flatnonzero(is_read))
            for record, is_here in enumerate(is_read.tolist(), start):
                try:
                    yield example.find_ints(*_with_key(next(heads), key)) if is_here else []
                except (OSError, ValueError, EOFError) as e:
                    raise errors.ExampleError(str(self.trouble(record, str(e)))) from e


def _with_key(head: tuple[bytes, Callable[[int, int], bytes]], key: str) -> tuple[bytes, str, Callable[..., bytes]]:
    return head[0], key, head[1]


def check_record(framed: bytes, offset: int, end: int, index_name: str) -> Found:
    """Returns the record in its frame, after a comparison of its checksum.

    Args:
        framed: the bytes of the shard from `offset` to `end`, fewer if the shard ends early.
        offset: where the record begins, as the index says.
        end: where it ends.
        index_name: the index, for the error.
    """
    content = framed[records.HEADER_BYTES : -records.FOOTER_BYTES]
    if len(framed) < end - offset:
        return errors.RecordError(offset, "the shard ends in the middle of it", framed[records.HEADER_BYTES :])
    if records.mask_crc(records.extend_crc(0, content)) == _MASKED_CRC(framed[-records.FOOTER_BYTES :])[0]:
        return records.Record(offset, content)
    if framed[: records.HEADER_BYTES] != records.frame_header(len(content)):
        return errors.RecordError(
            offset,
            f"the index {index_name} says that a record of {len(content)} bytes begins here, and the shard has none: "
            "one of the two is damaged",
            content,
        )
    return errors.RecordError(offset, f"the checksum of a record of {len(content)} bytes does not match", content)


class ShardFile(Protocol):
    """A shard that can be read at any place."""

    def read(self, start: int, stop: int) -> bytes:
        """Returns bytes `start` to `stop`, fewer if the shard ends early."""

    def read_records(self, starts: np.ndarray, stops: np.ndarray) -> list[bytes | None]:
        """Returns the contents of records, at bytes `starts` to `stops`; None where no checksum was found right."""


class ShardFiles(Protocol):
    """The shards of one split as files."""

    is_local: bool  # whether no read waits for a network

    def open(self, shard: int) -> ShardFile: ...

    def close(self) -> None:
        """Keeps no files open from now on, without waiting for a lock."""


class LocalFiles:
    """Shards on a local disk. The kernel's page cache is the only buffer."""

    is_local = True

    def __init__(self, split: SplitShards):
        self._split = split
        self._files: open_files.Shelf[open_files.OpenFile] = open_files.Shelf()

    def open(self, shard: int) -> ShardFile:
        file = self._files.find(shard)
        if file is None:
            file = open_files.OpenFile(self._split.uri(shard))
            self._files.put(shard, file)
        return file

    def close(self) -> None:
        self._files.close()

    def __reduce__(self) -> tuple[type[LocalFiles], tuple[SplitShards]]:
        return LocalFiles, (self._split,)


class DirectReader(ShardReader):
    """Reads each record of uncompressed shards by its offset: from local files, or those of a cache."""

    def __init__(self, split: SplitShards, files: ShardFiles, offsets: Offsets):
        super().__init__(split)
        self._files = files
        self._offsets = offsets
        self.is_local = files.is_local

    def fetch(self, wanted: np.ndarray, epochs: np.ndarray) -> Iterator[bytes | Trouble]:
        shards, indexes = self.split.locate(wanted)
        if len(wanted) == 1:  # to group them would take longer than to read it
            yield self._read_one(int(shards[0]), int(indexes[0]))
            return
        places = np.argsort(shards, kind="stable")
        runs = np.split(places, np.flatnonzero(np.diff(shards[places])) + 1) if len(places) else []
        unread = {int(shards[run[0]]): run for run in runs}
        read: dict[int, bytes | None] = {}  # by place in `wanted`
        for place, (shard, index) in enumerate(zip(shards.tolist(), indexes.tolist())):
            if shard in unread:  # all of a shard at once: a call for each record would take longer than a small one
                run = unread.pop(shard)
                read.update(zip(run.tolist(), self._read_all(shard, indexes[run])))
            content = read.pop(place)
            yield self._read_one(shard, index) if content is None else content

    def close(self) -> None:
        self._files.close()

    def _read_all(self, shard: int, indexes: np.ndarray) -> list[bytes | None]:
        """Returns the contents of records of one shard; None for each that is not found right."""
        offsets = self._offsets.shard(shard)
        starts = offsets[indexes].astype(np.int64) + records.HEADER_BYTES
        stops = offsets[indexes + 1].astype(np.int64) - records.FOOTER_BYTES
        try:
            return self._files.open(shard).read_records(starts, stops)
        except OSError:
            return [None] * len(indexes)

    def _read_one(self, shard: int, index: int) -> bytes | Trouble:
        [content] = self._read_all(shard, np.array([index]))
        if content is not None:
            return content
        offset, end = self._offsets.of(shard, index)
        try:  # the fault is found again, and named
            framed = self._files.open(shard).read(offset, end)
            found = check_record(framed, offset, end, self.split.shards[shard].index_name)
        except OSError as e:
            return self.split.trouble(shard, index, offset, b"", f"{e.strerror or e}")
        if isinstance(found, records.Record):
            return found.data
        return self.split.trouble(shard, index, offset, found.data, found.detail)

    def _look_at(self, shard: int, index: int) -> tuple[int, bytes]:
        offset, end = self._offsets.of(shard, index)
        start = offset + records.HEADER_BYTES
        with contextlib.suppress(OSError):
            return offset, self._files.open(shard).read(start, min(start + HEAD_BYTES, end))
        return offset, b""

    def _heads(self, shard: int, indexes: np.ndarray) -> Iterator[tuple[bytes, Callable[[int, int], bytes]]]:
        offsets = self._offsets.shard(shard)
        starts = (offsets[indexes].astype(np.int64) + records.HEADER_BYTES).tolist()
        stops = (offsets[indexes + 1].astype(np.int64) - records.FOOTER_BYTES).tolist()
        for start, stop in zip(starts, stops, strict=True):
            read = functools.partial(self._read_part, shard, start, stop)
            yield read(0, HEAD_BYTES), read

    def _read_part(self, shard: int, start: int, end: int, first: int, stop: int) -> bytes:
        """Returns bytes `first` to `stop` of the record whose content is at bytes `start` to `end` of the shard."""
        return self._files.open(shard).read(start + first, min(start + stop, end)) if first < end - start else b""


def are_offsets_of(offsets: np.ndarray, shard: catalog_lib.Shard) -> bool:
    """Returns whether these can be the offsets of a shard's records, followed by its size."""
    if len(offsets) != shard.records + 1 or offsets[0] != 0 or offsets[-1] != shard.bytes:
        return False
    ascend = offsets[1:] > offsets[:-1]
    return bool(ascend.all() and (np.diff(offsets) >= records.HEADER_BYTES + records.FOOTER_BYTES).all())


class Offsets:
    """Offsets of the records in the shards of a split. The index of a shard is read when it is first needed."""

    def __init__(self, split: SplitShards, read: Callable[[str], bytes]):
        self._split = split
        self._read = read
        self._begin()

    def _begin(self) -> None:
        self._loaded: dict[int, np.ndarray] = {}
        self._locks = [threading.Lock() for _ in self._split.shards]  # by shard, held while its index loads

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
                    self._loaded[shard] = self._load(self._split.shards[shard])
        return self._loaded[shard]

    def _load(self, shard: catalog_lib.Shard) -> np.ndarray:
        directory = self._split.directory
        uri = storage.join_relative(directory, shard.index_name)
        try:
            offsets = np.frombuffer(self._read(uri), "<u8")
        except (OSError, ValueError) as e:
            detail = getattr(e, "strerror", None) or e
            raise errors.ShardError(f"index {uri} cannot be read ({detail}): run imagebeam verify {directory}") from e
        if len(offsets) != shard.records + 1:
            raise errors.ShardError(
                f"index {uri} is of {plural.count(max(0, len(offsets) - 1), 'record')}, its shard has "
                f"{shard.records:,}: run imagebeam verify {directory}"
            )
        if not are_offsets_of(offsets, shard):
            raise errors.ShardError(
                f"index {uri} is damaged: its offsets do not ascend from 0 to {shard.bytes:,}, the bytes of its shard; "
                f"run imagebeam verify {directory}"
            )
        return offsets

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_loaded", "_locks")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._begin()
