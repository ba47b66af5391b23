"""Reads the records of one split by their numbers, and compares their checksums.

Records of local files, and of those of a cache, are read alone. Those of remote and of compressed shards are read in
blocks: a block of records is read in a few long requests, or decompressed, when the first of its records is asked for,
and kept until all of them were. So each byte is read once in an epoch, in whatever order and on however many threads
its records are asked for.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import heapq
import io
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from imagebeam import concurrency, errors, example, plural, records
from imagebeam.reader import record_selection, shard_files
from imagebeam.storage import remote

_LOGGER = logging.getLogger("imagebeam.dataset")

MAX_KEPT_BYTES = 512 << 20  # records of remote shards in memory
_WINDOW_PART = (
    5 / 8
)  # largest part of them that one window may take: its last blocks are kept beside the first of the next window
_NUM_REQUESTS = 16  # at once
_MAX_CALLS = 16  # that ask for records at once, and overtake each other
_STREAM_BYTES = 1 << 20  # read at once from a compressed shard
_FEW_BYTES = 16 << 10  # small records: a request takes longer than reading it

Indexes: TypeAlias = Sequence[int] | np.ndarray  # ascending indexes of records in a shard
Found: TypeAlias = bytes | errors.RecordError
# The beginning of a record, unchecked, and a function that reads the record between two offsets.
Head: TypeAlias = tuple[bytes, Callable[[int, int], bytes]]


class _UnreadError(errors.RecordError):
    """The storage did not give a record; it may the next time."""


class Fetcher(Protocol):
    """Reads records by their numbers."""

    is_local: bool  # whether no read waits for a network

    def fetch(self, wanted: np.ndarray, epochs: np.ndarray) -> Iterator[bytes | shard_files.RecordFault]:
        """Yields the bytes of each record, or its RecordFault, in the order of `wanted`.

        Args:
            wanted: int64 [n], numbers of records.
            epochs: int64 [n], the epoch in which each is read.

        Raises:
            ShardError: if a whole shard cannot be read.
        """

    def fault(self, record: int, detail: str) -> shard_files.RecordFault:
        """Returns `detail` with the record that it is about."""

    def cache_totals(self) -> Mapping[str, float]:
        """Returns "cache_hits" and "cache_misses" so far."""


class IndexedRecords:
    """Reads records of uncompressed shards by the offsets in their indexes."""

    in_sequence = False

    def __init__(self, split: shard_files.SplitShards, files: shard_files.ShardFiles, offsets: shard_files.Offsets):
        self.split = split
        self.files = files
        self.offsets = offsets

    def load(self, shard: int, indexes: Indexes) -> list[Found]:
        """Returns the records of a shard with these indexes."""
        starts, ends = self.offsets.of(shard, indexes)
        try:
            contents = self.files.open(shard).read_records(starts, ends)
        except OSError as e:
            return [_UnreadError(start, f"{e.strerror or e}") for start in starts.tolist()]
        spans = zip(contents, starts.tolist(), ends.tolist(), strict=True)
        return [self._read_again(shard, start, end) if each is None else each for each, start, end in spans]

    def _read_again(self, shard: int, start: int, end: int) -> Found:
        """Returns the record in a frame, or what is wrong with it."""
        try:
            framed = self.files.open(shard).read(start, end)
        except OSError as e:
            return _UnreadError(start, f"{e.strerror or e}")
        content = framed[records.HEADER_BYTES : -records.FOOTER_BYTES]
        if len(framed) < end - start:
            return errors.RecordError(start, "the shard ends in the middle of it", framed[records.HEADER_BYTES :])
        if framed.endswith(shard_files.checksum_of(content)):
            return content
        if framed.startswith(records.frame_header(len(content))):
            detail = f"the checksum of a record of {len(content)} bytes does not match"
        else:
            detail = (
                f"the index {self.split.shards[shard].index_name} says that a record of {len(content)} bytes begins "
                "here, and the shard has none: one of the two is damaged"
            )
        return errors.RecordError(start, detail, content)

    def look_at(self, shard: int, index: int) -> tuple[int, bytes]:
        """Returns the offset of a record that may be broken, and its beginning; b"" if that cannot be read."""
        [start], _ = self.offsets.of(shard, [index])
        with contextlib.suppress(OSError):
            head, _ = next(self.heads(shard, [index]))
            return int(start), head
        return int(start), b""

    def heads(self, shard: int, indexes: Indexes) -> Iterator[Head]:
        """Yields the head of each record of a shard with these indexes."""
        starts, ends = self.offsets.of(shard, indexes)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            first, last = start + records.HEADER_BYTES, end - records.FOOTER_BYTES
            read = functools.partial(self._read_part, shard, first, last)
            yield read(0, shard_files.HEAD_BYTES), read

    def _read_part(self, shard: int, first: int, last: int, start: int, stop: int) -> bytes:
        """Returns bytes `start` to `stop` of the content that is at bytes `first` to `last` of the shard."""
        stop = min(first + stop, last)
        return self.files.open(shard).read(first + start, stop) if first + start < stop else b""


class _Stream(NamedTuple):
    """A shard that is being decompressed."""

    shard: int
    position: int  # number of the next record
    found: Iterator[records.Record | errors.RecordError]


class StreamedRecords:
    """Decompresses shards from front to back. To go back, a shard is decompressed from its start again.

    Picklable: a copy begins without open shards.
    """

    in_sequence = True

    def __init__(self, split: shard_files.SplitShards, files: shard_files.ShardFiles, num_open: int):
        """Keeps up to `num_open` shards open, each where it was read last."""
        self.split = split
        self.files = files
        self._num_open = num_open
        self._lock = threading.Lock()
        self._open: list[_Stream] = []  # the one used last at the end

    def load(self, shard: int, indexes: Indexes) -> list[Found]:
        """Returns the records of a shard with these ascending indexes.

        Raises:
            ShardError: if the shard cannot be decompressed up to them, or has another number of records.
        """
        return [each.data if isinstance(each, records.Record) else each for each in self._scan(shard, indexes)]

    def _scan(self, shard: int, indexes: Indexes) -> list[records.Record | errors.RecordError]:
        stream, found = self._take(shard, indexes[0]), []
        num_records, wanted = self.split.shards[shard].records, set(indexes)
        uri, position = self.split.uri(shard), stream.position
        try:
            for each in itertools.islice(stream.found, indexes[-1] + 1 - position):
                if position in wanted:
                    found.append(each)
                position += 1
            if position == num_records and next(stream.found, None) is not None:
                raise errors.ShardError(
                    "shard-wrong-count", f"shard {uri} holds more than {num_records:,} records, those of the catalog"
                )
        except (OSError, errors.RecordError) as e:
            raise errors.ShardError("shard-unreadable", f"shard {uri} cannot be read: {e}") from e
        if position <= indexes[-1]:
            raise errors.ShardError(
                "shard-wrong-count",
                f"shard {uri} holds {plural.count(position, 'record')}, the catalog says {num_records:,}",
            )
        if position < num_records:
            with self._lock:
                self._open = [*self._open, stream._replace(position=position)][-self._num_open :]
        return found

    def _take(self, shard: int, index: int) -> _Stream:
        """Returns the stream that is nearest before a record; nobody else has it."""
        with self._lock:
            streams = [each for each in self._open if each.shard == shard and each.position <= index]
            if streams:
                nearest = max(streams, key=lambda each: each.position)
                self._open = [each for each in self._open if each is not nearest]
                return nearest
        file = io.BufferedReader(_StreamFile(self.files, shard, self.split.shards[shard].bytes), _STREAM_BYTES)
        return _Stream(shard, 0, records.scan_records(file, "gzip"))

    def look_at(self, shard: int, index: int) -> tuple[int, bytes]:
        """Returns the offset of a record that may be broken, and the record, by another stream from the start."""
        with contextlib.suppress(errors.ShardError):
            [found] = StreamedRecords(self.split, self.files, 1)._scan(shard, [index])
            return found.offset, found.data
        return 0, b""

    def __reduce__(self) -> tuple[type[StreamedRecords], tuple[object, ...]]:
        return StreamedRecords, (self.split, self.files, self._num_open)


class _StreamFile(remote.SeekableReader):
    """A shard as a file with a position. It keeps no descriptor between two reads."""

    def __init__(self, files: shard_files.ShardFiles, shard: int, size: int):
        super().__init__(size)
        self._files = files
        self._shard = shard

    def _read_at(self, position: int, length: int) -> bytes:
        return self._files.open(self._shard).read(position, position + length)


class _Block:
    """Records that are read together. The first block of an epoch is the least."""

    def __init__(self, key: tuple[int, int], wanted: np.ndarray):
        self.key = key  # epoch, number of the block
        self.wanted = wanted
        self.left = set(wanted.tolist())  # not asked for yet
        self.asked_at = 0  # count of all records that had been asked for
        self.found: futures.Future[dict[int, Found]] = futures.Future()

    def __lt__(self, other: _Block) -> bool:
        return self.key < other.key


class ShardReader(concurrency.RebuiltAfterFork):
    """Reads the records of one split, alone or in blocks on threads. Thread-safe and picklable.

    A block is kept until all of its records were asked for.
    """

    def __init__(
        self,
        loader: IndexedRecords | StreamedRecords,
        reads: record_selection.Reads | None = None,
        max_bytes: int = MAX_KEPT_BYTES,
    ):
        """Begins without blocks, and logs how it will read.

        Args:
            loader: reads records of the shards.
            reads: the records that will be asked for; None if each is read alone.
            max_bytes: limit for the records of uncompressed shards that are kept.
        """
        self.split = loader.split
        self.is_local = loader.files.is_local
        self._loader = loader
        self._max_bytes = max_bytes
        self._all_reads = reads
        if reads is not None:
            self._reads = reads
            self._blocks = reads.share.cut(reads.block_records)
            self._first_records = reads.share.records_at(self._blocks.starts)
            shards = self.split.shards
            mean_bytes = sum(each.bytes for each in shards) / max(1, sum(each.records for each in shards))
            self._keeps_all, self._reads_blocks = _choose(reads, mean_bytes, loader.in_sequence, max_bytes)
        super().__init__()

    def rebuild(self) -> None:
        self._lock = threading.Lock()
        # By epoch and number; the one asked for last at the end.
        self._kept: collections.OrderedDict[tuple[int, int], _Block] = collections.OrderedDict()
        self._waiting: collections.defaultdict[int, list[_Block]] = collections.defaultdict(list)  # heaps, by shard
        self._turns = [
            threading.Lock() for _ in self.split.shards
        ]  # one for each shard, held while a compressed one is read
        self._reached: dict[tuple[int, int], int] = {}  # the last block asked for, by epoch and run
        self._num_asked = 0
        self._most_at_once = 0
        self._tasks: concurrency.Tasks[Callable[[], object], object] = concurrency.Tasks(
            lambda task: task.key(), _NUM_REQUESTS, "imagebeam-read"
        )

    def __reduce__(self) -> tuple[type[ShardReader], tuple[object, ...]]:
        return ShardReader, (self._loader, self._all_reads, self._max_bytes)

    def fetch(self, wanted: np.ndarray, epochs: np.ndarray) -> Iterator[bytes | shard_files.RecordFault]:
        """Yields the bytes of each record, or its RecordFault: see `Fetcher`."""
        found: Iterator[Found]
        if self._all_reads is None:
            found = self._load_alone(wanted)
        else:
            blocks = self._ask_blocks(wanted, epochs) if self._reads_blocks else self._ask_ranges(wanted)
            found = (block.found.result()[record] for record, block in zip(wanted.tolist(), blocks))
        for record, each in zip(wanted.tolist(), found):
            if isinstance(each, bytes):
                yield each
            else:
                yield self.split.fault(record, each.offset, each.data, each.detail)

    def _load_alone(self, wanted: np.ndarray) -> Iterator[Found]:
        shards, indexes = self.split.locate(wanted)
        rows: dict[int, list[int]] = {}
        for row, shard in enumerate(shards.tolist()):
            rows.setdefault(shard, []).append(row)
        # All of a shard at once: a call for each record would take longer than a small one.
        found = {shard: iter(self._loader.load(shard, indexes[rows[shard]])) for shard in rows}
        return (next(found[shard]) for shard in shards.tolist())

    def fault(self, record: int, detail: str) -> shard_files.RecordFault:
        """Returns `detail` with the record of the split that it is about."""
        [shard], [index] = self.split.locate(np.array([record]))
        return self.split.fault(record, *self._loader.look_at(int(shard), int(index)), detail)

    def cache_totals(self) -> Mapping[str, float]:
        """Returns how often shards were found in the cache, and how often not: see `Fetcher`."""
        return {"cache_hits": 0, "cache_misses": 0, **self._loader.files.counters.totals()}

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
            heads = self.heads(shard, np.flatnonzero(is_read))
            for record, is_here in enumerate(is_read.tolist(), start):
                try:
                    values: list[int] = []
                    if is_here:
                        head, read = next(heads)
                        values = example.find_ints(head, key, read)
                except (OSError, ValueError, EOFError) as e:
                    raise errors.ExampleError("example-broken", str(self.fault(record, str(e)))) from e
                yield values

    def heads(self, shard: int, indexes: np.ndarray) -> Iterator[Head]:
        """Yields the head of each record of a shard with these ascending indexes, int64 [n].

        Raises:
            OSError: if the storage does not give a record. Checksums are not compared.
        """
        if self._all_reads is None and isinstance(self._loader, IndexedRecords):
            yield from self._loader.heads(shard, indexes)
            return
        size = self._reads.block_records
        parts = (indexes[at : at + size].tolist() for at in range(0, len(indexes), size))
        load = functools.partial(self._loader.load, shard)
        for found in concurrency.map_ahead(load, parts, 1 if self._loader.in_sequence else _NUM_REQUESTS):
            for each in found:
                if isinstance(each, _UnreadError):
                    raise OSError(each.detail)
                data = each if isinstance(each, bytes) else each.data
                yield data, functools.partial(_slice, data)

    def _fill(self, block: _Block, shard: int) -> None:
        """Reads the records of a block."""
        _, indexes = self.split.locate(block.wanted)
        is_whole = False
        try:
            found = self._loader.load(shard, indexes.tolist())
            is_whole = not any(isinstance(each, _UnreadError) for each in found)
            block.found.set_result(dict(zip(block.wanted.tolist(), found, strict=True)))
        except BaseException as e:  # every error must reach the readers that wait
            block.found.set_exception(e)
        if not is_whole:  # the next reader tries again
            with self._lock:
                if self._kept.get(block.key) is block:
                    del self._kept[block.key]

    # Blocks

    @property
    def _patience(self) -> int:
        """The number of records within which all records of a block are asked for, after the first one."""
        return 2 * (self._reads.window_blocks or 1) * self._reads.block_records + _MAX_CALLS * self._most_at_once

    def _ask_blocks(self, wanted: np.ndarray, epochs: np.ndarray) -> list[_Block]:
        """Returns the block of each record."""
        numbers = (np.searchsorted(self._first_records, wanted, side="right") - 1).tolist()
        keys = [(0 if self._keeps_all else epoch, number) for epoch, number in zip(epochs.tolist(), numbers)]
        with self._lock:
            self._most_at_once = max(self._most_at_once, len(wanted))
            blocks = [self._ask_block(*key, record) for key, record in zip(keys, wanted.tolist())]
            self._num_asked += len(wanted)
            # Nobody will ask for the other records of some blocks: read before a restart, or by an iterator that ended.
            while self._kept and not self._keeps_all:
                oldest = next(iter(self._kept.values()))
                if self._num_asked - oldest.asked_at <= self._patience:
                    break
                del self._kept[oldest.key]
        return blocks

    def _ask_block(self, epoch: int, number: int, record: int) -> _Block:
        block = self._kept.get((epoch, number))
        if block is None:
            for each in self._skipped(epoch, number) if self._loader.in_sequence else ():
                self._begin(epoch, each)
            block = self._begin(epoch, number)
        block.asked_at = self._num_asked
        block.left.discard(record)
        self._kept.move_to_end(block.key)
        if not block.left and not self._keeps_all:
            del self._kept[block.key]
        return block

    def _skipped(self, epoch: int, number: int) -> range:
        """Returns the blocks before one of a compressed shard that were not asked for yet, and will be soon."""
        run = epoch, int(self._blocks.runs[number])
        first = number - min(int(self._blocks.places[number]), self._patience // self._reads.block_records)
        reached = self._reached.get(run, first - 1)
        self._reached[run] = max(reached, number)
        if len(self._reached) > 4 * len(self._reads.share.starts):
            self._reached = {each: last for each, last in self._reached.items() if each[0] >= epoch - 1}
        return range(max(reached + 1, first), number)

    def _begin(self, epoch: int, number: int) -> _Block:
        start = int(self._blocks.starts[number])
        wanted = self._reads.share.records_at(np.arange(start, start + int(self._blocks.sizes[number])))
        block = self._kept[epoch, number] = _Block((epoch, number), wanted)
        block.asked_at = self._num_asked
        [shard], _ = self.split.locate(wanted[:1])
        # The first block goes first, whichever thread comes first: compressed shards have one direction.
        heapq.heappush(self._waiting[int(shard)], block)
        self._tasks.ask(functools.partial(self._load_next, int(shard)))
        return block

    def _load_next(self, shard: int) -> None:
        with self._turns[shard] if self._loader.in_sequence else contextlib.nullcontext():
            with self._lock:
                block = heapq.heappop(self._waiting[shard])
            self._fill(block, shard)

    # Ranges

    def _ask_ranges(self, wanted: np.ndarray) -> list[_Block]:
        """Returns for each record the block of what is read together with it, and is not kept."""
        assert isinstance(self._loader, IndexedRecords)
        shards, indexes = self.split.locate(wanted)
        here = np.unique(shards).tolist()
        loaded = [self._tasks.ask(functools.partial(self._loader.offsets.load, shard)) for shard in here]
        blocks: dict[int, _Block] = {}
        for shard, is_prepared in zip(here, loaded, strict=True):
            is_prepared.result()
            mine = np.unique(indexes[shards == shard])
            for rows in shard_files.cut_ranges(*self._loader.offsets.of(shard, mine)):
                block = _Block((-1, -1), mine[rows] + self.split.starts[shard])
                blocks.update(dict.fromkeys(block.wanted.tolist(), block))
                self._tasks.ask(functools.partial(self._fill, block, shard))
        return [blocks[record] for record in wanted.tolist()]


def _slice(data: bytes, start: int, stop: int) -> bytes:
    return data[start:stop]


def _choose(reads: record_selection.Reads, mean_bytes: float, in_sequence: bool, max_bytes: int) -> tuple[bool, bool]:
    """Returns whether all records are kept once they were read, and whether they are read in blocks; logs if not."""
    total = len(reads.share) * mean_bytes
    if in_sequence:
        return False, True
    if total <= max_bytes and not reads.is_divided:
        return True, True
    if reads.window_blocks is None:
        _LOGGER.log(
            logging.WARNING if mean_bytes < _FEW_BYTES else logging.INFO,
            "each of %s records, of %s bytes, is a request of its own: cache_dir reads them from a local disk",
            f"{len(reads.share):,}",
            f"{mean_bytes:,.0f}",
        )
        return False, False
    window = min(total, reads.window_blocks * reads.block_records * mean_bytes)
    if window <= max_bytes * _WINDOW_PART:
        return False, True
    _LOGGER.warning(
        "the stream mixes %s of records, and %s of a remote split are kept in memory: each record is a request of its "
        "own; give a smaller shuffle_bytes, or cache_dir",
        plural.format_bytes(window),
        plural.format_bytes(max_bytes * _WINDOW_PART),
    )
    return False, False
