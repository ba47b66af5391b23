"""The shards of a split as files that are read at any place, on a local disk or at their address, and their indexes.

Files on a local disk stay open. One bound applies to those of all datasets of a process: beyond it, the file used
longest ago is closed. A file is closed once no read uses it and its dataset is gone.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import os
import resource
import struct
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import concurrency, errors, example, plural, records, storage
from imagebeam.reader import counters

try:
    from imagebeam import _native
except ImportError:  # installed without a compiler, or without libjpeg-turbo
    _native = None  # type: ignore[assignment]

HEAD_BYTES = 4096  # beginning of a record: small features come before the image's bytes
_MASKED_CRC = struct.Struct("<I").unpack
_MAX_RANGE_BYTES = 8 << 20  # one request
_MAX_OPEN = 256
_MIN_OPEN = 16


@dataclasses.dataclass(frozen=True)
class RecordFault:
    """A fault of one record, and where the record is."""

    shard: str  # its address
    index: int  # number of the record in its shard
    offset: int  # bytes from the start of the shard
    key: str  # "" if it is unknown
    detail: str

    def __str__(self) -> str:
        key = f", key {self.key!r}" if self.key else ""
        return f"record {self.index} of shard {self.shard}{key}, byte offset {self.offset}: {self.detail}"


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

    def fault(self, record: int, offset: int, head: bytes, detail: str) -> RecordFault:
        """Returns a RecordFault; `head` is the beginning of the record, whose rest may be broken."""
        key = ""
        with contextlib.suppress(ValueError):
            key = example.find_bytes(head[:HEAD_BYTES], self.key_feature or "").decode("utf-8", "backslashreplace")
        [shard], [index] = self.locate(np.array([record]))
        return RecordFault(self.uri(int(shard)), int(index), offset, key, detail)


class ShardFile(Protocol):
    """A shard that can be read at any place."""

    def read(self, start: int, stop: int) -> bytes:
        """Returns bytes `start` to `stop`, fewer if the shard ends early."""

    def read_records(self, starts: np.ndarray, ends: np.ndarray) -> list[bytes | None]:
        """Returns the contents of the records whose frames are at bytes `starts` to `ends`, int64 [n] each.

        None stands for each record that was not read, or whose checksum does not match.
        """


class OpenFile:
    """A local file open for reading, closed with its last reference. Readable until then even if it was removed."""

    def __init__(self, path: str):
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, start: int, stop: int) -> bytes:
        return os.pread(self.descriptor, stop - start, start)

    def read_records(self, starts: np.ndarray, ends: np.ndarray) -> list[bytes | None]:
        # Python's lock is not held: reading and checksum, of 100 KB, take 20 us.
        if _native is None:
            return [None] * len(starts)
        return _native.read_records(self.descriptor, starts + records.HEADER_BYTES, ends - records.FOOTER_BYTES)

    # Defaults, because the names of modules are gone when the process ends.
    def __del__(
        self,
        close: Callable[[int], None] = os.close,
        suppress: Callable[..., contextlib.AbstractContextManager[None]] = contextlib.suppress,
    ) -> None:
        with suppress(AttributeError, OSError):
            close(self.descriptor)


class RemoteFile:
    """A shard at its address, read in ranges."""

    def __init__(self, store: storage.Storage, uri: str):
        self._store = store
        self._uri = uri

    def read(self, start: int, stop: int) -> bytes:
        return self._store.read(self._uri, start, stop - start)

    def read_records(self, starts: np.ndarray, ends: np.ndarray) -> list[bytes | None]:
        contents: list[bytes | None] = []
        for rows in cut_ranges(starts, ends):
            first, last = int(starts[rows[0]]), int(ends[rows[-1]])
            data = self.read(first, last)
            for start, end in zip((starts[rows] - first).tolist(), (ends[rows] - first).tolist()):
                content = data[start + records.HEADER_BYTES : end - records.FOOTER_BYTES]
                footer = data[end - records.FOOTER_BYTES : end]
                contents.append(content if footer == checksum_of(content) else None)
        return contents


def cut_ranges(starts: np.ndarray, ends: np.ndarray) -> list[list[int]]:
    """Returns the rows of ascending records by the request that reads them.

    A tenth of a request may be other records between them.
    """
    ranges: list[list[int]] = []
    first = end = num_bytes = 0
    for row, (start, stop) in enumerate(zip(starts.tolist(), ends.tolist())):
        if ranges and (start - end) * 10 <= num_bytes and stop - first <= _MAX_RANGE_BYTES:
            ranges[-1].append(row)
        else:
            ranges.append([row])
            first, num_bytes = start, 0
        end, num_bytes = stop, num_bytes + stop - start
    return ranges


def checksum_of(content: bytes) -> bytes:
    """Returns the four bytes that follow the content of a record in its frame."""
    return records.mask_crc(records.extend_crc(0, content)).to_bytes(records.FOOTER_BYTES, "little")


class ShardFiles:
    """The shards of one split, opened where they are. Of local ones the page cache of the kernel is the only buffer."""

    def __init__(self, split: SplitShards, storage_options: Mapping[str, Any] | None = None):
        self._split = split
        self._storage_options = storage_options
        self.is_local = storage.scheme_of(split.directory) == "file"  # whether no read waits for a network
        self._files: OpenFiles[OpenFile] = OpenFiles()
        self.counters = counters.Counters()  # of a cache

    def open(self, shard: int) -> ShardFile:
        if not self.is_local:
            uri = self._split.uri(shard)
            return RemoteFile(storage.storage_of(uri, self._storage_options), uri)
        file = self._files.find(shard)
        if file is None:
            file = OpenFile(self._split.uri(shard))
            self._files.put(shard, file)
        return file

    def __reduce__(self) -> tuple[type[ShardFiles], tuple[Any, ...]]:
        return ShardFiles, (self._split, self._storage_options)


_File = TypeVar("_File", bound=OpenFile)


class _Uses(concurrency.RebuiltAfterFork):
    """The open files of the process in the order of their last use. After a fork it begins empty, as they are found."""

    def rebuild(self) -> None:
        self.lock = threading.Lock()
        # Weak references, so that files can be garbage collected while they are listed here.
        self.order: collections.OrderedDict[tuple[int, Hashable], weakref.ref[OpenFiles[Any]]]
        self.order = collections.OrderedDict()


_USES = _Uses()
_NUMBERS = itertools.count()


class OpenFiles(Generic[_File]):
    """Open files by name. Thread-safe."""

    def __init__(self) -> None:
        self._number = next(_NUMBERS)
        self._files: dict[Hashable, _File] = {}

    def find(self, name: Hashable) -> _File | None:
        """Returns the open file of a name, or None; counts as a use."""
        with _USES.lock:
            file = self._files.get(name)
            if file is not None:
                self._use(name)
            return file

    def put(self, name: Hashable, file: _File) -> None:
        """Keeps an open file, which replaces one of the same name."""
        removed = []  # closed after the lock is released
        with _USES.lock:
            removed.append(self._files.get(name))
            self._files[name] = file
            self._use(name)
            while len(_USES.order) > max_open():
                (_, oldest), owner = _USES.order.popitem(last=False)
                if (files := owner()) is not None:
                    removed.append(files._files.pop(oldest, None))

    def _use(self, name: Hashable) -> None:
        _USES.order[self._number, name] = weakref.ref(self)
        _USES.order.move_to_end((self._number, name))

    def remove_unlinked(self) -> None:
        """Closes files that were removed from the disk, which frees their space."""
        with _USES.lock:
            unlinked = [name for name, file in self._files.items() if os.fstat(file.descriptor).st_nlink == 0]
            removed = [self._files.pop(name) for name in unlinked]
        del removed  # closes them, without the lock


def max_open() -> int:
    """Returns how many files may be open at once: at most a quarter of the limit of the process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MAX_OPEN if soft == resource.RLIM_INFINITY else min(_MAX_OPEN, max(_MIN_OPEN, soft // 4))


class Offsets:
    """Offsets of the records in the shards of a split. The index of a shard is read when it is first needed."""

    def __init__(self, split: SplitShards, read: Callable[[str], bytes]):
        self._split = split
        self._read = read
        self._loaded: dict[int, np.ndarray] = {}
        self._locks = [threading.Lock() for _ in split.shards]  # one for each shard, held while its index loads

    def of(self, shard: int, indexes: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns where records of a shard begin and end: int64 [n] each.

        Raises:
            ShardError: if the index is missing or belongs to another shard.
        """
        offsets, rows = self.load(shard), np.asarray(indexes)
        return offsets[rows].astype(np.int64), offsets[rows + 1].astype(np.int64)

    def load(self, shard: int) -> np.ndarray:
        """Returns the offsets of all records of a shard and their end: uint64 [records + 1]."""
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
            raise errors.ShardError(
                "index-unreadable", f"index {uri} cannot be read ({detail}): run imagebeam verify {directory}"
            ) from e
        if len(offsets) != shard.records + 1:
            raise errors.ShardError(
                "index-wrong-count",
                f"index {uri} is of {plural.count(max(0, len(offsets) - 1), 'record')}, its shard has "
                f"{shard.records:,}: run imagebeam verify {directory}",
            )
        if not are_offsets_of(offsets, shard):
            raise errors.ShardError(
                "index-damaged",
                f"index {uri} is damaged: its offsets do not ascend from 0 to {shard.bytes:,}, the bytes of its shard; "
                f"run imagebeam verify {directory}",
            )
        return offsets

    def __reduce__(self) -> tuple[type[Offsets], tuple[Any, ...]]:
        return Offsets, (self._split, self._read)


def are_offsets_of(offsets: np.ndarray, shard: catalog_lib.Shard) -> bool:
    """Returns whether these can be the offsets of a shard's records, followed by its size."""
    if len(offsets) != shard.records + 1 or offsets[0] != 0 or offsets[-1] != shard.bytes:
        return False
    ascend = offsets[1:] > offsets[:-1]
    return bool(ascend.all() and (np.diff(offsets) >= records.HEADER_BYTES + records.FOOTER_BYTES).all())
