"""The records that are read: a split, a part of it, the examples of some labels, and the share of one process."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import errors, snapshots

_PART_OF_SPLIT = re.compile(r"(?P<split>[^\[\]]+)(\[(?P<start>-?\d+%?)?:(?P<stop>-?\d+%?)?\])?")

_HASHED_INDEXES = 1 << 20  # at a time

LabelRows = tuple[np.ndarray, np.ndarray]  # int64 [labels] each: the record of each label, and the label's id


@dataclasses.dataclass(frozen=True, eq=False)
class Remaining:
    """Runs of consecutive records without the removed ones. Takes the memory of the removed ones, not of all."""

    starts: np.ndarray  # int64 [runs], ascending: index of the first one of each among all that are not removed
    stops: np.ndarray  # int64 [runs]
    size_of_all: int  # number of all records that are not removed
    before: np.ndarray  # int64 [removed], ascending: for each removed record the number of remaining ones before it

    def __len__(self) -> int:
        return int((self.stops - self.starts).sum())

    def __getitem__(self, indexes: np.ndarray) -> np.ndarray:
        """Returns the records for indexes into these, int64 [n] both."""
        remaining = in_runs(self.starts, self.stops, indexes)
        return remaining + np.searchsorted(self.before, remaining, side="right")

    def holds(self, records: np.ndarray) -> np.ndarray:
        """Returns whether each record, none of them removed, is among these: bool [n]."""
        remaining = records - np.searchsorted(self.before + np.arange(len(self.before)), records)
        runs = np.searchsorted(self.starts, remaining, side="right") - 1
        return (runs >= 0) & (remaining < self.stops[runs])


def in_runs(starts: np.ndarray, stops: np.ndarray, indexes: np.ndarray) -> np.ndarray:
    """Returns the numbers at these indexes of runs of consecutive numbers, int64 [n] both."""
    ends = np.cumsum(stops - starts)
    runs = np.searchsorted(ends, indexes, side="right")
    return stops[runs] - (ends[runs] - indexes)


@dataclasses.dataclass(frozen=True, eq=False)
class RecordSelection:
    """The records that are read, of one split or several, and the facts about them that decide their order.

    Records are numbered over the splits: those of the second follow those of the first.

    Attributes:
        splits: names of the splits.
        name: the selected records as a `ReaderState` names them, such as "train[0:1000]" or "train[0:9] of labels 1 2".
        shard_sizes: number of selected records in each shard of the splits.
        chosen: by index the selected records' numbers, ascending; None if all records are selected.
        split_size: number of records in the files of the whole splits, removed ones included.
        mean_record_bytes: mean length of the splits' records, at least 1.
        is_compressed: whether the shards are compressed, so that they can only be read from front to back.
        fingerprint: fingerprint of the dataset, or of the snapshot.
        snapshot: name of the snapshot; None for a dataset without snapshots.
    """

    splits: tuple[str, ...]
    name: str
    shard_sizes: tuple[int, ...]
    chosen: np.ndarray | Remaining | None  # int64 [n]
    split_size: int
    mean_record_bytes: int
    is_compressed: bool
    fingerprint: str
    snapshot: str | None = None

    def __len__(self) -> int:
        return sum(self.shard_sizes)

    def records_at(self, indexes: np.ndarray) -> np.ndarray:
        """Returns the records of the split for indexes into the selection, int64 [n] both."""
        return indexes if self.chosen is None else self.chosen[indexes]

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the selected records' numbers; "all" if nothing but removed records is left out."""
        if self.chosen is None or (isinstance(self.chosen, Remaining) and len(self) == self.chosen.size_of_all):
            return "all"
        digest = hashlib.blake2b(digest_size=8)
        for start in range(0, len(self), _HASHED_INDEXES):
            records = self.chosen[np.arange(start, min(start + _HASHED_INDEXES, len(self)))]
            digest.update(records.astype("<i8").tobytes())
        return digest.hexdigest()

    def share_sizes(self, process_count: int) -> np.ndarray:
        """Returns the number of records in the share of each process: int64 [process_count], equal to within one."""
        by_shards = self._totals_by_shards(process_count)
        if (by_shards == by_shards[0]).all():
            return by_shards
        return np.diff(len(self) * np.arange(process_count + 1) // process_count)

    def share_of(self, process_index: int, process_count: int) -> Share:
        """Returns the share of one process: whole shards if all processes then read equally many records, else runs.

        With whole shards each file is read by one process. Runs of records are equal to within one record, and need
        the index of the shards.
        """
        counts = np.array(self.shard_sizes, np.int64)
        ends = np.cumsum(counts)
        by_shards = self._totals_by_shards(process_count)
        if (by_shards == by_shards[0]).all():
            mine = np.arange(process_index, len(counts), process_count)
            mine = mine[counts[mine] > 0]
            return Share(ends[mine] - counts[mine], ends[mine], "shards", self.chosen)
        total = int(ends[-1])
        start, stop = total * process_index // process_count, total * (process_index + 1) // process_count
        cuts = np.unique(np.concatenate([[start, stop], ends[(ends > start) & (ends < stop)]])).astype(np.int64)
        return Share(cuts[:-1], cuts[1:], "records", self.chosen)

    def _totals_by_shards(self, process_count: int) -> np.ndarray:
        """Returns the records of each process if it reads every `process_count`-th shard: int64 [process_count]."""
        processes = np.arange(len(self.shard_sizes)) % process_count
        return np.bincount(processes, self.shard_sizes, process_count).astype(np.int64)


def select(
    catalog: catalog_lib.Catalog,
    text: str,
    filters: Sequence[frozenset[int]] = (),
    read_labels: Callable[[str], LabelRows] | None = None,
    removed_of: Callable[[str], np.ndarray] | None = None,
) -> RecordSelection:
    """Returns the records that `text` names and that have a label in each of `filters`.

    Args:
        catalog: catalog of the dataset.
        text: splits or parts of them: `train`, `train[:10%]`, `train[-500:]`, `train[100:200]+validation`, as in TFDS.
        filters: sets of label ids, as stored in the records.
        read_labels: returns the labels of a split, of records that are not removed; needed only with `filters`.
        removed_of: returns the removed records of a split by their numbers, int64 [removed], ascending; needed only if
            the catalog says that records are removed.

    Raises:
        ConfigError: if there is no such split, or no record is selected, or one twice.
    """
    parts = parse_parts(text, catalog.splits)
    splits = split_names(text, catalog.splits)
    shards = shards_of(catalog, splits)
    records = np.array([shard.records for shard in shards], np.int64)
    removed = np.array([shard.removed for shard in shards], np.int64)
    split_size = int(records.sum())
    firsts = dict(zip(splits, _firsts([catalog.splits[name].num_examples for name in splits])))
    bounds = [(firsts[name] + start, firsts[name] + stop) for name, start, stop in parts]
    starts, stops = np.array(bounds, np.int64).T
    ends = np.clip(np.cumsum(records - removed)[:, None], starts, stops) - starts  # in each part
    counts = np.diff(ends.sum(1), prepend=0)
    first_records = _firsts([sum(shard.records for shard in catalog.splits[name].shards) for name in splits])
    part: Remaining | None = None
    if counts.sum() < split_size:
        numbers = np.zeros(0, np.int64)
        if removed.any():
            assert removed_of is not None, "the catalog says that records are removed"
            numbers = np.concatenate([removed_of(name) + first for name, first in zip(splits, first_records)])
        before = numbers - np.arange(len(numbers))
        part = Remaining(starts, stops, int((records - removed).sum()), before)
    chosen: np.ndarray | Remaining | None = part
    if filters:
        assert read_labels is not None, "filters need labels"
        every = [(rows + first, ids) for first, (rows, ids) in zip(first_records, map(read_labels, splits))]
        chosen = _with_labels(splits, part, filters, *map(np.concatenate, zip(*every, strict=True)))
        counts = np.bincount(np.searchsorted(np.cumsum(records), chosen, side="right"), minlength=len(shards))
    labels = sorted(f" of labels {' '.join(map(str, sorted(ids)))}" for ids in filters)  # in any order the same name
    return RecordSelection(
        splits=splits,
        name="".join(("+".join(f"{name}[{start}:{stop}]" for name, start, stop in parts), *labels)),
        shard_sizes=tuple(counts.tolist()),
        chosen=chosen,
        split_size=split_size,
        mean_record_bytes=max(1, sum(catalog.splits[name].num_bytes for name in splits) // max(1, split_size)),
        is_compressed=catalog.compression != "none",
        fingerprint=fingerprint_of(catalog),
        snapshot=snapshots.name_of(catalog),
    )


def shards_of(catalog: catalog_lib.Catalog, splits: Sequence[str]) -> list[catalog_lib.Shard]:
    """Returns the shards of several splits, one split after the other."""
    return [shard for name in splits for shard in catalog.splits[name].shards]


def _firsts(sizes: Sequence[int]) -> list[int]:
    """Returns the number of the first record of each split."""
    return [sum(sizes[:index]) for index in range(len(sizes))]


def _with_labels(
    splits: Sequence[str],
    part: Remaining | None,
    filters: Sequence[frozenset[int]],
    rows: np.ndarray,
    ids: np.ndarray,
) -> np.ndarray:
    """Returns the records of a part that have a label in each of `filters`: int64 [n], ascending.

    Raises:
        ConfigError: if there is none.
    """
    found = functools.reduce(np.intersect1d, (np.unique(rows[np.isin(ids, list(kept))]) for kept in filters))
    if part is not None:
        found = found[part.holds(found)]
    if not len(found):
        raise errors.ConfigError(
            "split-empty",
            f"{'+'.join(splits)!r} holds no example of the labels that filter keeps: name others, or more of the split",
        )
    return found


def fingerprint_of(catalog: catalog_lib.Catalog) -> str:
    """Returns a name for all records that a catalog names: its fingerprint if they are all in its own shards.

    Several snapshots, and a compacted one, may be of the same images in other shards; so theirs covers the shards too.
    """
    if catalog.is_self_contained:
        return catalog.fingerprint
    splits = {
        name: [(shard.name, shard.crc32c, shard.removed) for shard in split.shards]
        for name, split in catalog.splits.items()
    }
    named = [catalog.fingerprint, splits, catalog.files.get(snapshots.REMOVED_FILE)]
    return hashlib.blake2b(json.dumps(named).encode(), digest_size=16).hexdigest()


class Part(NamedTuple):
    """Consecutive records of a split that are not removed."""

    split: str
    start: int
    stop: int


def split_names(text: str, splits: Mapping[str, catalog_lib.Split]) -> tuple[str, ...]:
    """Returns the splits of which `text` names parts, in its order: see `parse_parts`."""
    return tuple(dict.fromkeys(part.split for part in parse_parts(text, splits)))


def parse_parts(text: str, splits: Mapping[str, catalog_lib.Split]) -> list[Part]:
    """Returns the parts that `text` names, with "+" between them.

    Records are ordered by a hash, so any part of a split is a random one. Parts that meet at the same percentage share
    no record and leave none out. The splits come in the order of `text`, the parts of each in ascending order; parts
    that meet are one.

    Raises:
        ConfigError: if there is no such split, or a part is empty, or two of them share a record.
    """
    named = [_parse_part(text, each, splits) for each in (text.split("+") if isinstance(text, str) else [text])]
    order = list(dict.fromkeys(part.split for part in named))
    parts: list[Part] = []
    for part in sorted(named, key=lambda each: (order.index(each.split), each.start, each.stop)):
        last = parts[-1] if parts and parts[-1].split == part.split else None
        if last is None or last.stop < part.start:
            parts.append(part)
            continue
        if last.stop > part.start:
            raise errors.ConfigError(
                "split-named-twice",
                f"split {text!r} names example {part.start:,} of {part.split!r} twice, and an epoch has each example "
                "once: leave it out of one part; a Mixture reads some examples more often than others",
            )
        parts[-1] = last._replace(stop=part.stop)
    return parts


def _parse_part(whole: str, text: str, splits: Mapping[str, catalog_lib.Split]) -> Part:
    match = _PART_OF_SPLIT.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise errors.ConfigError(
            "split-unreadable",
            f"split {whole!r} cannot be read; write for example 'train', 'train[:10%]', 'train[5:]+validation'",
        )
    name = match["split"]
    if name not in splits:
        raise errors.ConfigError("split-unknown", f"there is no split {name!r}; the dataset has {', '.join(splits)}")
    total = splits[name].num_examples
    if not total:
        raise errors.ConfigError(
            "split-empty",
            f"split {name!r} has no example, the catalog says: read another split, or run imagebeam convert again",
        )
    start = 0 if match["start"] is None else _index_of(match["start"], total)
    stop = total if match["stop"] is None else _index_of(match["stop"], total)
    if start >= stop:
        raise errors.ConfigError("split-empty", f"split {text!r} names none of the {total:,} examples of {name!r}")
    return Part(name, start, stop)


def _index_of(text: str, total: int) -> int:
    """Returns the record that a number or percentage names; negative ones count from the end."""
    index = round(int(text[:-1]) * total / 100) if text.endswith("%") else int(text)
    return min(max(index + total if index < 0 else index, 0), total)


def check_labels(labels: Sequence[int | str]) -> Sequence[int | str]:
    """Returns the labels to filter by as a list.

    Raises:
        ConfigError: if there are none, or `labels` is a single name, whose letters would be taken for labels.
    """
    if isinstance(labels, (str, bytes)) or not isinstance(labels, Iterable):
        raise errors.ConfigError(
            "option-bad-value", f"labels is {labels!r}; give a list of names or ids, such as [{labels!r}]"
        )
    given = list(labels)
    if not given:
        raise errors.ConfigError("option-bad-value", "labels is empty; give the names or ids of the classes to keep")
    return given


class Blocks(NamedTuple):
    """Blocks of consecutive records in a share: int64 [blocks] each."""

    starts: np.ndarray  # index of the first record in the selection
    sizes: np.ndarray
    runs: np.ndarray  # number of the run
    places: np.ndarray  # number of the block in its run


@dataclasses.dataclass(frozen=True, eq=False)
class Reads:
    """The records that a process reads, each once in an epoch, and which of them it reads at the same time.

    Attributes:
        share: the records.
        block_records: number of records in a block.
        window_blocks: number of blocks that are mixed with each other; None if records are read in any order.
        is_divided: whether other processes read records of this share too.
    """

    share: Share
    block_records: int
    window_blocks: int | None
    is_divided: bool = False


@dataclasses.dataclass(frozen=True)
class Share:
    """The records that one process reads, as runs of consecutive indexes into the selection."""

    starts: np.ndarray  # int64 [runs], ascending
    stops: np.ndarray  # int64 [runs]
    by: str  # how the selection was cut: by "shards" or by "records"
    chosen: np.ndarray | Remaining | None = None  # as in RecordSelection

    def __len__(self) -> int:
        return int((self.stops - self.starts).sum())

    def cut(self, block_records: int) -> Blocks:
        """Cuts each run into blocks of `block_records` records; the last one of a run may be smaller."""
        counts = -(-(self.stops - self.starts) // block_records)
        runs = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(len(runs)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = self.starts[runs] + places * block_records
        return Blocks(starts, np.minimum(starts + block_records, self.stops[runs]) - starts, runs, places)

    def records_at(self, indexes: np.ndarray) -> np.ndarray:
        """Returns the records of the split for indexes into the selection, int64 [n] both."""
        return indexes if self.chosen is None else self.chosen[indexes]
