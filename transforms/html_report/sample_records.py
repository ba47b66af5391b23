"""Reads a few records of each split through the indexes of its shards: some dozens of small reads, whatever its size.

Which records are read depends on the catalog alone, so each run of the same dataset shows the same pictures.
"""

from __future__ import annotations

import array
import bisect
import dataclasses
import io
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import concurrency, errors, records, storage

_READS_AT_ONCE = 8  # over a network
_OFFSET_BYTES = 8
_MAX_READ_BYTES = 16 << 20  # bytes of one read: larger images are not shown
_MAX_SPLITS = 12
_MAX_RECORDS, _MIN_RECORDS = 24, 6  # records of a split
_MAX_ALL_RECORDS = 96
_RUN = 4  # neighbours that one read returns; in the order of hashes they are as random as any
_RUN_IN_ORDER = 2  # where neighbours resemble each other


class Place(NamedTuple):
    """Records of one shard that are read together."""

    shard: catalog_lib.Shard
    indexes: tuple[int, ...]  # in the file, ascending


class SplitSamples(NamedTuple):
    """Records that were read from one split."""

    found: tuple[Any, ...]  # what was made of each record
    problems: tuple[str, ...]  # why some are missing


@dataclasses.dataclass(frozen=True)
class ShardFiles:
    """Addresses of the files of a dataset."""

    addresses: Callable[[str], Sequence[str]]  # from the name of a shard or an index to the addresses to try

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Returns a part of a file.

        Raises:
            OSError: if it is at none of its addresses, or cannot be read.
        """
        uri = self.find(name)
        return storage.storage_of(uri).read(uri, offset, length)

    def find(self, name: str) -> str:
        """Returns the first address of a file that exists, else the last one."""
        *others, last = self.addresses(name)
        return next((uri for uri in others if storage.storage_of(uri).exists(uri)), last)

    @property
    def num_at_once(self) -> int:
        """Number of reads to start at once."""
        return 1 if storage.storage_of(self.addresses("x")[-1]).is_local else _READS_AT_ONCE


def read_samples(
    catalog: catalog_lib.Catalog,
    files: ShardFiles,
    make: Callable[[bytes], Any],
    removed: Mapping[str, array.array[int]] | None = None,
) -> dict[str, SplitSamples]:
    """Returns what `make` returns for some records of each split, of the first twelve where there are more.

    A record that cannot be read is left out, with the reason in `SplitSamples.problems`.

    Args:
        catalog: of the dataset.
        files: where its files are.
        make: from a serialized Example to what is kept of it, so that no image is kept; runs on several threads.
        removed: indexes of removed records by the name of their shard.
    """

    def read(place: Place) -> tuple[list[Any], str]:
        try:
            return [make(data) for data in _read_place(files, place, catalog.compression)], ""
        except (OSError, ValueError, errors.RecordError) as e:
            return [], f"{place.shard.name}: {e}"

    places = _places_of(catalog, removed or {})
    results = concurrency.map_ahead(read, itertools.chain.from_iterable(places.values()), files.num_at_once)
    found = {}
    for name, of_split in places.items():
        parts, problems = zip(*itertools.islice(results, len(of_split)))
        found[name] = SplitSamples(tuple(itertools.chain(*parts)), tuple(filter(None, problems)))
    return found


def _places_of(catalog: catalog_lib.Catalog, removed: Mapping[str, array.array[int]]) -> dict[str, list[Place]]:
    names = [name for name, split in catalog.splits.items() if split.num_examples][:_MAX_SPLITS]
    count = max(_MIN_RECORDS, min(_MAX_RECORDS, _MAX_ALL_RECORDS // max(1, len(names))))
    output = catalog.config.get("output")
    is_hashed = not isinstance(output, Mapping) or output.get("shuffle", "hash") == "hash"
    has_index = catalog.compression == "none"
    return {name: pick_places(catalog.splits[name], count, is_hashed, has_index, removed) for name in names}


def pick_places(
    split: catalog_lib.Split, count: int, is_hashed: bool, has_index: bool, removed: Mapping[str, array.array[int]]
) -> list[Place]:
    """Returns places spread evenly over a split, with about `count` records in all.

    Args:
        split: with at least one example.
        count: of records.
        is_hashed: whether its records are in the order of hashes.
        has_index: whether a record is found without reading those before it; else each place begins a shard.
        removed: as for `read_samples`.
    """
    shards = [shard for shard in split.shards if shard.num_examples]
    run = _RUN if is_hashed else _RUN_IN_ORDER
    if not has_index:
        num_shards = min(len(shards), count // run)
        run = -(-count // num_shards)
        picked = [shards[index * len(shards) // num_shards] for index in range(num_shards)]
        return [Place(shard, _living(shard, 0, run, removed)) for shard in picked]
    starts = list(itertools.accumulate((shard.num_examples for shard in shards), initial=0))
    num_places = min(count // run, starts[-1])
    found = []
    for number in range(num_places):
        rank, following = (each * starts[-1] // num_places for each in (number, number + 1))
        index = bisect.bisect_right(starts, rank) - 1
        first = rank - starts[index]
        found.append(Place(shards[index], _living(shards[index], first, min(run, following - rank), removed)))
    return found


def _living(
    shard: catalog_lib.Shard, first: int, count: int, removed: Mapping[str, array.array[int]]
) -> tuple[int, ...]:
    """Returns the indexes in the file of `count` records of a shard from `first` on; removed ones do not count."""
    gone = frozenset(removed.get(shard.name, ())) if shard.removed else frozenset()
    living = (index for index in range(shard.records) if index not in gone) if gone else range(shard.records)
    return tuple(itertools.islice(living, first, first + count))


def _read_place(files: ShardFiles, place: Place, compression: str) -> Iterator[bytes]:
    """Yields the records of a place after checking their checksums."""
    if compression != "none":
        yield from _read_from_start(files, place, compression)
        return
    first, last = place.indexes[0], place.indexes[-1]
    index_bytes = (last - first + 2) * _OFFSET_BYTES
    offsets = records.decode_index(files.read(place.shard.index_name, first * _OFFSET_BYTES, index_bytes))
    if len(offsets) != last - first + 2:
        raise ValueError(f"its index ends before record {last}")
    ends = offsets[1:]
    start = offsets[0]
    end = ends[bisect.bisect_right(ends, start + _MAX_READ_BYTES) - 1] if ends[0] - start <= _MAX_READ_BYTES else start
    if end == start:
        raise ValueError(f"record {first} has {ends[0] - start:,} bytes, too many to be shown")
    data = files.read(place.shard.name, start, end - start)
    for index, record in enumerate(records.read_records(io.BytesIO(data)), start=first):
        if index in place.indexes:
            yield record.data


def _read_from_start(files: ShardFiles, place: Place, compression: str) -> Iterator[bytes]:
    uri = files.find(place.shard.name)
    num_bytes = 0
    with storage.storage_of(uri).open_read(uri) as file:
        for index, record in enumerate(records.read_records(file, compression)):
            num_bytes += len(record.data)
            if index > place.indexes[-1] or num_bytes > _MAX_READ_BYTES:
                return
            if index in place.indexes:
                yield record.data


_PER_REASON = 3
_WINDOW_BYTES = 64 << 10
_MAX_WINDOWS = 8
_MAX_DUPLICATES = 10


class RejectExample(NamedTuple):
    """One image that was turned away."""

    key: str
    uri: str
    detail: str


def find_reject_examples(uri: str) -> dict[str, list[RejectExample]]:
    """Returns up to three rejects of each reason. A rare reason in a long file may not be among them.

    Args:
        uri: address of the file.

    Raises:
        OSError: if it cannot be read; a missing file has no rejects.
    """
    found: dict[str, list[RejectExample]] = {}
    for line in _some_lines(uri):
        try:
            fields = json.loads(line)
            reason, example = fields["reason"], RejectExample(fields["key"], fields["uri"], fields["detail"])
        except (ValueError, KeyError, TypeError, RecursionError):  # edited by hand
            continue
        of_reason = found.setdefault(str(reason), [])
        if len(of_reason) < _PER_REASON:
            of_reason.append(example)
    return dict(sorted(found.items()))


def find_duplicates(uri: str) -> list[dict[str, Any]]:
    """Returns the first lines of `duplicates.jsonl`, those that repeat an image of another split before the others.

    Raises:
        OSError: if the file cannot be read.
    """
    found = []
    for line in _some_lines(uri):
        try:
            fields = json.loads(line)
            crosses = fields["split"] != fields["first_split"]
        except (ValueError, KeyError, TypeError, RecursionError):  # edited by hand
            continue
        found.append((not crosses, fields))
    found.sort(key=lambda each: each[0])
    return [fields for _, fields in found[:_MAX_DUPLICATES]]


def _some_lines(uri: str) -> Iterator[bytes]:
    """Yields the whole lines in windows spread evenly over a file: all lines of a file of up to 512 kiB."""
    store = storage.storage_of(uri)
    try:
        size = store.stat(uri).size
    except FileNotFoundError:
        return
    if size <= _WINDOW_BYTES * _MAX_WINDOWS:
        yield from store.read(uri).splitlines()
        return
    for number in range(_MAX_WINDOWS):
        offset = number * (size - _WINDOW_BYTES) // (_MAX_WINDOWS - 1)
        lines = store.read(uri, offset, _WINDOW_BYTES).split(b"\n")
        yield from lines[1 if number else 0 : -1]
