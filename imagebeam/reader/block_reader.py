"""Reads records of shards that cannot be read one by one: remote ones, and compressed ones.

A block of records is read in a few long requests (`Ranges`), or decompressed (`Streams`), when the first of its records
is asked for, and kept until all of them were. So each byte is read once in an epoch, in whatever order and on however
many threads its records are asked for.
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
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import NamedTuple

import numpy as np

from imagebeam import concurrency, errors, plural, records
from imagebeam.reader import selection, shard_reader, tasks
from imagebeam.reader.shard_reader import Found
from imagebeam.storage import remote

_LOGGER = logging.getLogger("imagebeam.dataset")

MAX_KEPT_BYTES = 512 << 20  # of remote shards, in memory
_MAX_RANGE_BYTES = 8 << 20  # of one request
_WINDOW_PART = 5 / 8  # of them may be one window: its last blocks are kept beside the first of the next window
_NUM_REQUESTS = 16  # at once
_MAX_CALLS = 16  # that ask for records at once, and overtake each other
_STREAM_BYTES = 1 << 20  # read at once from a compressed shard
_FEW_BYTES = 16 << 10  # of a record: a request takes longer than reading it


class Ranges:
    """Reads records of uncompressed shards in ranges, each merged from records that follow each other."""

    in_sequence = False

    def __init__(
        self,
        split: shard_reader.SplitShards,
        offsets: shard_reader.Offsets,
        files: shard_reader.ShardFiles,
    ):
        self._split = split
        self._offsets = offsets
        self._files = files

    def prepare(self, shard: int) -> None:
        """Reads the index of a shard."""
        self._offsets.shard(shard)

    def cut(self, shard: int, indexes: Sequence[int]) -> list[list[int]]:
        """Returns the ascending indexes by the request that reads them: a tenth of a request may be other records."""
        offsets = self._offsets.shard(shard)
        parts: list[list[int]] = []
        start = end = num_bytes = 0
        for index in indexes:
            first, last = int(offsets[index]), int(offsets[index + 1])
            if parts and (first - end) * 10 <= num_bytes and last - start <= _MAX_RANGE_BYTES:
                parts[-1].append(index)
            else:
                parts.append([index])
                start, num_bytes = first, 0
            end, num_bytes = last, num_bytes + last - first
        return parts

    def load(self, shard: int, indexes: Sequence[int]) -> list[Found]:
        """Returns the records of a shard with these ascending indexes."""
        offsets, index_name = self._offsets.shard(shard), self._split.shards[shard].index_name
        found: list[Found] = []
        for part in self.cut(shard, indexes):
            start, end = int(offsets[part[0]]), int(offsets[part[-1] + 1])
            spans = [(int(offsets[index]), int(offsets[index + 1])) for index in part]
            try:
                data = memoryview(self._files.open(shard).read(start, end))
            except OSError as e:
                found += [_UnreadError(first, f"{e.strerror or e}") for first, _ in spans]
            else:
                found += [
                    shard_reader.check_record(bytes(data[first - start : last - start]), first, last, index_name)
                    for first, last in spans
                ]
        return found

    def look_at(self, shard: int, index: int) -> tuple[int, bytes]:
        """Returns the offset of a record that may be broken, and its beginning."""
        offset, end = self._offsets.of(shard, index)
        start = offset + records.HEADER_BYTES
        with contextlib.suppress(OSError):
            return offset, self._files.open(shard).read(start, min(start + shard_reader.HEAD_BYTES, end))
        return offset, b""

    def close(self) -> None:
        self._files.close()


class _UnreadError(errors.RecordError):
    """The storage did not give a record; it may the next time."""


class _Stream(NamedTuple):
    """A shard that is being decompressed."""

    shard: int
    position: int  # number of the next record
    found: Iterator[Found]


class Streams:
    """Decompresses shards from front to back. To go back, a shard is decompressed from its start again.

    Picklable: a copy begins without open shards.
    """

    in_sequence = True

    def __init__(self, split: shard_reader.SplitShards, files: shard_reader.ShardFiles, num_open: int):
        """Keeps up to `num_open` shards open, each where it was read last."""
        self._split = split
        self._files = files
        self._num_open = num_open
        self._lock = threading.Lock()
        self._open: list[_Stream] = []  # the one used last at the end

    def load(self, shard: int, indexes: Sequence[int]) -> list[Found]:
        """Returns the records of a shard with these ascending indexes.

        Raises:
            ShardError: if the shard cannot be decompressed up to them, or has another number of records.
        """
        stream, found = self._take(shard, indexes[0]), []
        num_records, wanted = self._split.shards[shard].records, set(indexes)
        uri, position = self._split.uri(shard), stream.position
        try:
            for each in itertools.islice(stream.found, indexes[-1] + 1 - position):
                if position in wanted:
                    found.append(each)
                position += 1
            if position == num_records and next(stream.found, None) is not None:
                raise errors.ShardError(f"shard {uri} holds more than {num_records:,} records, those of the catalog")
        except (OSError, errors.RecordError) as e:
            raise errors.ShardError(f"shard {uri} cannot be read: {e}") from e
        if position <= indexes[-1]:
            raise errors.ShardError(
                f"shard {uri} holds {plural.count(position, 'record')}, the catalog says {num_records:,}"
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
        file = io.BufferedReader(_StreamFile(self._files, shard, self._split.shards[shard].bytes), _STREAM_BYTES)
        return _Stream(shard, 0, records.scan_records(file, "gzip"))

    def look_at(self, shard: int, index: int) -> tuple[int, bytes]:
        """Returns the offset of a record that may be broken, and the record, by another stream from the start."""
        with contextlib.suppress(errors.ShardError):
            [found] = Streams(self._split, self._files, 1).load(shard, [index])
            return found.offset, found.data
        return 0, b""

    def close(self) -> None:
        self._open = []
        self._files.close()

    def __reduce__(self) -> tuple[type[Streams], tuple[object, ...]]:
        return Streams, (self._split, self._files, self._num_open)


class _StreamFile(remote.SeekableReader):
    """A shard as a file with a position. It keeps no descriptor between two reads."""

    def __init__(self, files: shard_reader.ShardFiles, shard: int, size: int):
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


class BlockReader(shard_reader.ShardReader, concurrency.RebuiltAfterFork):
    """Reads blocks of records on threads, and keeps them until all of their records were asked for."""

    def __init__(
        self,
        split: shard_reader.SplitShards,
        loader: Ranges | Streams,
        reads: selection.Reads,
        is_local: bool = False,
        max_bytes: int = MAX_KEPT_BYTES,
    ):
        """Begins without blocks, and logs how it will read.

        Args:
            split: the shards.
            loader: reads them.
            reads: the records that will be asked for.
            is_local: whether no read waits for a network.
            max_bytes: limit for the records of uncompressed shards that are kept.
        """
        shard_reader.ShardReader.__init__(self, split)
        self.is_local = is_local
        self._loader = loader
        self._reads = reads
        self._max_bytes = max_bytes
        self._blocks = reads.share.cut(reads.block_records)
        self._first_records = reads.share.records_at(self._blocks.starts)
        mean_bytes = sum(each.bytes for each in split.shards) / max(1, sum(each.records for each in split.shards))
        self._keeps_all, self._reads_blocks = _choose(reads, mean_bytes, loader.in_sequence, max_bytes)
        concurrency.RebuiltAfterFork.__init__(self)

    def rebuild(self) -> None:
        self._lock = threading.Lock()
        # By epoch and number; the one asked for last at the end.
        self._kept: collections.OrderedDict[tuple[int, int], _Block] = collections.OrderedDict()
        self._waiting: collections.defaultdict[int, list[_Block]] = collections.defaultdict(list)  # heaps, by shard
        self._turns = [threading.Lock() for _ in self.split.shards]  # of compressed shards
        self._reached: dict[tuple[int, int], int] = {}  # by epoch and run: the last block asked for
        self._num_asked = 0
        self._most_at_once = 0
        self._tasks: tasks.Tasks[Callable[[], None], None] = tasks.Tasks(
            lambda task: task.key(), _NUM_REQUESTS, "imagebeam-read"
        )

    def fetch(self, wanted: np.ndarray, epochs: np.ndarray) -> Iterator[bytes | shard_reader.Trouble]:
        blocks = self._ask_blocks(wanted, epochs) if self._reads_blocks else self._ask_ranges(wanted)
        for record, block in zip(wanted.tolist(), blocks):
            found = block.found.result()[record]
            if isinstance(found, records.Record):
                yield found.data
            else:
                [shard], [index] = self.split.locate(np.array([record]))
                yield self.split.trouble(int(shard), int(index), found.offset, found.data, found.detail)

    def close(self) -> None:
        self._loader.close()
        if self._lock.acquire(blocking=False):
            self._kept.clear()
            self._lock.release()

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
        assert isinstance(self._loader, Ranges)
        shards, indexes = self.split.locate(wanted)
        here = np.unique(shards).tolist()
        loaded = [self._tasks.ask(functools.partial(self._loader.prepare, shard)) for shard in here]
        blocks: dict[int, _Block] = {}
        for shard, is_prepared in zip(here, loaded, strict=True):
            is_prepared.result()
            for part in self._loader.cut(shard, np.unique(indexes[shards == shard]).tolist()):
                block = _Block((-1, -1), np.array(part) + self.split.starts[shard])
                blocks.update(dict.fromkeys(block.wanted.tolist(), block))
                self._tasks.ask(functools.partial(self._fill, block, shard))
        return [blocks[record] for record in wanted.tolist()]

    # Single records

    def _look_at(self, shard: int, index: int) -> tuple[int, bytes]:
        return self._loader.look_at(shard, index)

    def _heads(self, shard: int, indexes: np.ndarray) -> Iterator[tuple[bytes, Callable[[int, int], bytes]]]:
        size = self._reads.block_records
        parts = (indexes[at : at + size].tolist() for at in range(0, len(indexes), size))
        load = functools.partial(self._loader.load, shard)
        for found in concurrency.map_ahead(load, parts, 1 if self._loader.in_sequence else _NUM_REQUESTS):
            for each in found:
                if isinstance(each, _UnreadError):
                    raise OSError(each.detail)
                yield each.data, functools.partial(_slice, each.data)

    def __reduce__(self) -> tuple[type[BlockReader], tuple[object, ...]]:
        return BlockReader, (self.split, self._loader, self._reads, self.is_local, self._max_bytes)


def _slice(data: bytes, start: int, stop: int) -> bytes:
    return data[start:stop]


def _choose(reads: selection.Reads, mean_bytes: float, in_sequence: bool, max_bytes: int) -> tuple[bool, bool]:
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
