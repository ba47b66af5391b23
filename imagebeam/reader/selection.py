"""Which records of a dataset are read: a split, a part of it, and the share of one process."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import errors

_SELECTION = re.compile(r"(?P<split>[^\[\]]+)(\[(?P<start>-?\d+%?)?:(?P<stop>-?\d+%?)?\])?")


@dataclasses.dataclass(frozen=True)
class Selection:
    """Records `start` to `stop` of a split, in the order of its shards."""

    split: str
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.split}[{self.start}:{self.stop}]"


def listed(labels: Sequence[int | str]) -> Sequence[int | str]:
    """Labels to filter by, in a list.

    Raises:
        ConfigError: if there are none, or a name alone, whose letters would be taken for labels.
    """
    if isinstance(labels, (str, bytes)) or not isinstance(labels, Iterable):
        raise errors.ConfigError(f"labels is {labels!r}; give a list of names or ids, such as [{labels!r}]")
    given = list(labels)
    if not given:
        raise errors.ConfigError("labels is empty; give the names or ids of the classes to keep")
    return given


def parse_selection(text: str, splits: Mapping[str, catalog_lib.Split]) -> Selection:
    """The records that `text` names: `train`, `train[:10%]`, `train[-500:]`, `train[100:200]`, as in TFDS.

    The order of a split is that of a hash, so any part of it is a random one. Parts that meet at the same percentage
    share no record and leave none out.

    Raises:
        ConfigError: if there is no such split, or nothing of it is named.
    """
    match = _SELECTION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise errors.ConfigError(
            f"split {text!r} cannot be read; write for example 'train', 'train[:10%]', 'train[5:]'"
        )
    name = match["split"]
    if name not in splits:
        raise errors.ConfigError(f"there is no split {name!r}; the dataset has {', '.join(splits)}")
    total = splits[name].num_examples
    start = 0 if match["start"] is None else _position(match["start"], total)
    stop = total if match["stop"] is None else _position(match["stop"], total)
    if start >= stop:
        raise errors.ConfigError(f"split {text!r} names none of the {total:,} examples of {name!r}")
    return Selection(name, start, stop)


def _position(text: str, total: int) -> int:
    position = round(int(text[:-1]) * total / 100) if text.endswith("%") else int(text)
    return min(max(position + total if position < 0 else position, 0), total)


@dataclasses.dataclass(frozen=True)
class Share:
    """What one process reads, as runs of consecutive records, and how it was cut."""

    starts: np.ndarray  # int64 [runs], records of the split
    stops: np.ndarray  # int64 [runs]
    by: str  # "shards" or "records"

    def __len__(self) -> int:
        return int((self.stops - self.starts).sum())


def share_sizes(sizes: Sequence[int], process_count: int) -> np.ndarray:
    """Records of the share of each process: int64 [process_count], equal to within one."""
    counts = np.asarray(sizes, dtype=np.int64)
    by_shards = _totals(counts, process_count)
    if (by_shards == by_shards[0]).all():
        return by_shards
    return np.diff(counts.sum() * np.arange(process_count + 1) // process_count)


def share_of(sizes: Sequence[int], process_index: int, process_count: int) -> Share:
    """The share of one process: whole shards where every process gets equally many records by it, else runs of records.

    Whole shards keep each file to one process. Runs of records are equal to within one, and need the index.

    Args:
        sizes: records of each shard.
        process_index: which process.
        process_count: how many there are.
    """
    counts = np.asarray(sizes, dtype=np.int64)
    ends = np.cumsum(counts)
    by_shards = _totals(counts, process_count)
    if (by_shards == by_shards[0]).all():
        mine = np.arange(process_index, len(counts), process_count)
        mine = mine[counts[mine] > 0]
        return Share(ends[mine] - counts[mine], ends[mine], "shards")
    total = int(ends[-1])
    start, stop = total * process_index // process_count, total * (process_index + 1) // process_count
    cuts = np.unique(np.concatenate([[start, stop], ends[(ends > start) & (ends < stop)]])).astype(np.int64)
    return Share(cuts[:-1], cuts[1:], "records")


def _totals(counts: np.ndarray, process_count: int) -> np.ndarray:
    """Records of each process if it reads every `process_count`-th shard: int64 [process_count]."""
    totals = np.zeros(process_count, np.int64)
    np.add.at(totals, np.arange(len(counts)) % process_count, counts)
    return totals
