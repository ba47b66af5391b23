"""Blocks of remote and compressed shards: the right records, and no byte read more often than it must be."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import imagebeam
from imagebeam import storage
from imagebeam.reader import batch_schedule, record_selection, shard_files, shard_reader
from tests.unit.imagebeam.reader import far_dataset

pytestmark = pytest.mark.usefixtures("far")

BATCH_SIZE, AT_ONCE = 5, 8


@dataclasses.dataclass(frozen=True)
class Split:
    folder: pathlib.Path
    sizes: tuple[int, ...]
    stored: list[bytes] = dataclasses.field(repr=False)


class CountedFiles(shard_files.ShardFiles):
    """The shards of a folder, and how many bytes were read of them."""

    num_bytes = 0

    def open(self, shard: int) -> Any:
        files, uri = self, self._split.uri(shard)

        class Counted(shard_files.RemoteFile):
            def read(self, start: int, stop: int) -> bytes:
                data = super().read(start, stop)
                files.num_bytes += len(data)
                return data

        return Counted(storage.storage_of(uri), uri)


class CountedStreams(shard_reader.StreamedRecords):
    """Counts the bytes of all records that are decompressed."""

    num_bytes = 0

    def _take(self, shard: int, index: int) -> shard_reader._Stream:
        stream = super()._take(shard, index)
        return stream if stream.position else stream._replace(found=self._count(stream.found))

    def _count(self, found: Iterator[Any]) -> Iterator[Any]:
        for each in found:
            self.num_bytes += len(each.data)
            yield each


@pytest.fixture(scope="module", params=[(40,), (13, 11, 16), (5,) * 8], ids=["one-shard", "uneven", "eight"])
def sizes(request: pytest.FixtureRequest) -> tuple[int, ...]:
    return request.param


@pytest.fixture(scope="module", params=["none", "gzip"])
def compression(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def split(sizes: tuple[int, ...], compression: str, tmp_path_factory: pytest.TempPathFactory) -> Split:
    folder = far_dataset.write_dataset(
        tmp_path_factory.mktemp("blocks") / "set", num_records=sizes, num_bytes=1000, compression=compression
    )
    return Split(folder, sizes, far_dataset.stored_in(folder))


def selected(split: Split, chosen: Sequence[int] | None, compression: str) -> record_selection.RecordSelection:
    counts = split.sizes
    if chosen is not None:
        counts = np.histogram(chosen, np.cumsum([0, *split.sizes]))[0].tolist()
    return record_selection.RecordSelection(
        splits=("train",),
        name="train",
        shard_sizes=tuple(counts),
        chosen=None if chosen is None else np.array(chosen, np.int64),
        split_size=sum(split.sizes),
        mean_record_bytes=1000,
        is_compressed=compression != "none",
        fingerprint="f",
    )


def open_counted(split: Split, compression: str, reads: record_selection.Reads, max_bytes: int) -> Any:
    """A reader, and a function that returns how many bytes it has read or decompressed."""
    shards = shard_files.SplitShards(str(split.folder), far_dataset.shards_of(split.folder), None)
    files = CountedFiles(shards)
    if compression == "gzip":
        streams = CountedStreams(shards, files, 2 * (reads.window_blocks or 1) + 16)
        return shard_reader.ShardReader(streams, reads), lambda: streams.num_bytes
    offsets = shard_files.Offsets(shards, lambda uri: pathlib.Path(uri).read_bytes())
    loader = shard_reader.IndexedRecords(shards, files, offsets)
    return shard_reader.ShardReader(loader, reads, max_bytes), lambda: files.num_bytes


def check(reader: Any, split: Split, wanted: np.ndarray, epochs: np.ndarray) -> None:
    assert list(reader.fetch(wanted, epochs)) == [split.stored[record] for record in wanted]


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_epoch_reads_each_byte_once_whatever_window_processes_memory_and_restart(
    split: Split, compression: str, data: st.DataObject
) -> None:
    shuffle = data.draw(st.sampled_from(["stream", None] if compression == "gzip" else ["stream", None, "global"]))
    chosen = data.draw(st.sampled_from([None, range(1, 40), [0, 3, 4, 5, 9, 20, 21, 38]])) if shuffle else None
    count = data.draw(st.sampled_from([1, 2, 3]))
    asked = imagebeam.ReadOptions(
        shuffle=shuffle,
        seed=data.draw(st.integers(0, 99)),
        process_count=count,
        shuffle_records=data.draw(st.integers(1, 50)),
    )
    max_bytes = data.draw(st.sampled_from([0, 5000, 1 << 20]))
    num_epochs = data.draw(st.sampled_from([1, 3]))
    first = data.draw(st.integers(0, 3))
    epochs = batch_schedule.SelectionEpochs(selected(split, chosen, compression))
    records_of = np.arange(40) if chosen is None else np.array(chosen)
    for index in range(count):
        mine = imagebeam.ReadOptions(**{**vars(asked), "process_index": index})
        order = batch_schedule.make_schedule(epochs, mine).order
        shared = len(records_of) * num_epochs // count
        size = shared if shuffle == "global" else num_epochs * epochs.epoch_sizes(mine)[index]
        reader, num_read = open_counted(split, compression, epochs.reads(mine), max_bytes)
        batches = [np.arange(at, min(at + BATCH_SIZE, size)) for at in range(first, size, BATCH_SIZE)]
        for at in range(0, len(batches), AT_ONCE):
            group = [order.locate(positions) for positions in batches[at : at + AT_ONCE]]
            random.Random(at).shuffle(group)
            far_dataset.run_threads(*[functools.partial(check, reader, split, *located) for located in group])
        if compression == "none":  # a restart may read its first blocks whole
            assert num_read() <= 1.1 * 1016 * size
        elif count == 1 and chosen is None:
            assert num_read() <= 1.0 * num_epochs * 40 * 1000


@pytest.mark.parametrize("shuffle", ["stream", None])
def test_iterators_of_one_compressed_dataset_do_not_take_each_others_place(
    split: Split, compression: str, shuffle: str | None
) -> None:
    asked = imagebeam.ReadOptions(shuffle=shuffle, shuffle_records=8)
    epochs = batch_schedule.SelectionEpochs(selected(split, None, compression))
    order = epochs.order(asked)
    reader, num_read = open_counted(split, compression, epochs.reads(asked), 0)
    for lag in (0, 1, 7):
        before = num_read()
        turns = [(iterator, at) for at in range(0, 40 + lag, 1) for iterator in (0, lag) if 0 <= at - iterator < 40]
        for iterator, at in turns:
            record, epoch = order.locate(np.array([at - iterator]))
            [content] = reader.fetch(record, epoch + lag)
            assert content == split.stored[int(record[0])]
        assert num_read() - before <= 2.2 * 40 * 1016
