"""Several datasets as one: an order over the records of all of them, which everything that reads can follow.

Which dataset stands at a position is a pure function of the seed and the position, like everything else of an order: so
a mixture is read by the same decoders, in every feed, and goes on from a state.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from imagebeam import errors, features
from imagebeam.reader import options as options_lib
from imagebeam.reader import order as order_lib
from imagebeam.reader import record_bytes, record_reader, schedule

_BLOCK = 1 << 16  # positions, of which each dataset has a fixed number
_KEPT_TABLES = 3


class Pattern:
    """Which dataset stands at a position, and which of its examples: counted from 0, each once, in their order."""

    def __init__(self, weights: Sequence[float], seed: int):
        """`weights` are above 0; they are met to 1 in 65,536 in each block of so many positions."""
        self._seed = seed
        self.counts = _share_out(np.asarray(weights, np.float64))  # positions of a block, by dataset
        self._tables: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # by block

    def locate(self, positions: order_lib.Positions) -> tuple[np.ndarray, np.ndarray]:
        """The datasets at ascending positions, and the numbers of their examples: int64 [n] each."""
        blocks, slots = np.divmod(positions, _BLOCK)
        datasets, numbers = np.empty_like(positions), np.empty_like(positions)
        for block in np.unique(blocks).tolist():
            chosen = blocks == block
            members, ranks = self._table(block)
            datasets[chosen] = members[slots[chosen]]
            numbers[chosen] = ranks[slots[chosen]] + block * self.counts[datasets[chosen]]
        return datasets, numbers

    def position_of(self, dataset: int, number: int) -> int:
        """Where an example of a dataset stands: the inverse of `locate`."""
        block, rank = divmod(number, int(self.counts[dataset]))
        members, _ = self._table(block)
        return block * _BLOCK + int(np.flatnonzero(members == dataset)[rank])

    def count_before(self, position: int) -> list[int]:
        """How many examples of each dataset stand before a position."""
        block, slot = divmod(position, _BLOCK)
        members, _ = self._table(block)
        inside = np.bincount(members[:slot], minlength=len(self.counts))
        return (block * self.counts + inside).tolist()

    def _table(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Of each position in a block its dataset, and how many of that stand before it in the block."""
        table = self._tables.get(block)
        if table is None:
            key = order_lib.make_key("mix", self._seed, block)
            shuffled = order_lib.permute(np.arange(_BLOCK, dtype=np.int64), _BLOCK, key)
            members = np.searchsorted(np.cumsum(self.counts), shuffled, side="right")
            ranks = np.empty(_BLOCK, np.int64)
            for dataset, count in enumerate(self.counts.tolist()):
                ranks[members == dataset] = np.arange(count)
            kept = dict(list(self._tables.items())[1 - _KEPT_TABLES :])
            table = kept[block] = members, ranks
            self._tables = kept
        return table


def _share_out(weights: np.ndarray) -> np.ndarray:
    """Positions of a block for each dataset, at least one: int64 [datasets]."""
    wanted = weights / weights.sum() * _BLOCK
    counts = np.maximum(1, np.floor(wanted)).astype(np.int64)
    while (missing := _BLOCK - int(counts.sum())) > 0:
        counts[np.argsort(counts - wanted, kind="stable")[:missing]] += 1
    while counts.sum() > _BLOCK:  # where some weigh less than one position
        counts[np.argmax(counts)] -= 1
    return counts


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """The records of one dataset in a mixture.

    Attributes:
        source: what schedules must know of them.
        order: of this process with the options of `of_part`, from the first position on.
        chosen: the records of the split that the order counts; None for all.
        num_records: of the whole split.
    """

    source: schedule.Source
    order: order_lib.Order
    chosen: np.ndarray | None
    num_records: int

    def locate(self, positions: order_lib.Positions) -> tuple[np.ndarray, np.ndarray]:
        """Records of the split, and epochs, of ascending positions."""
        records, epochs = self.order.locate(positions)
        return (records if self.chosen is None else self.chosen[records]), epochs


def of_part(asked: options_lib.ReadOptions) -> options_lib.ReadOptions:
    """The options by which each dataset of a mixture is read: the mixture alone has batches, an end and a state.

    With "global" the mixture is one common order that is dealt out to the processes, so each dataset has one too.
    """
    alone = dataclasses.replace(asked, batch_size=None, pad=False, state=None)
    return dataclasses.replace(alone, process_index=0, process_count=1) if asked.shuffle == "global" else alone


@dataclasses.dataclass(frozen=True, eq=False)
class MixedSource:
    """The records of a mixture, for its schedule: see `schedule.Scheduled`. It ends with the first part that does.

    The pattern is the same in every process, so all of them are at the same position of it, as with one dataset.
    """

    pattern: Pattern
    parts: Sequence[Part]

    @property
    def num_records(self) -> int:
        return sum(part.source.num_records for part in self.parts)

    def start(self, asked: options_lib.ReadOptions) -> order_lib.ReaderState:
        """The state before the first epoch. It belongs to these datasets in these proportions and no others."""
        starts = [part.source.start(asked) for part in self.parts]
        counts = self.pattern.counts.tolist()
        named = [[count, each.fingerprint, each.selection] for count, each in zip(counts, starts, strict=True)]
        text = ", ".join(f"{count / _BLOCK:.4g} of {each.selection}" for count, each in zip(counts, starts))
        is_stream = asked.shuffle == "stream"
        return dataclasses.replace(
            starts[0],
            fingerprint=hashlib.blake2b(json.dumps(named).encode(), digest_size=16).hexdigest(),
            selection=text,
            block_records=" ".join(str(each.block_records) for each in starts) if is_stream else None,
            window_blocks=" ".join(str(each.window_blocks) for each in starts) if is_stream else None,
        )

    def order(self, asked: options_lib.ReadOptions, done: int) -> MixedOrder:
        """The order of one process: see `schedule.Scheduled`."""
        if asked.shuffle == "global":
            return MixedOrder(self.pattern, self.parts, done, asked.process_index, asked.process_count)
        return MixedOrder(self.pattern, self.parts)

    def ends(self, asked: options_lib.ReadOptions, num_epochs: int) -> list[int]:
        """Where the first part was read so often: in the common order with "global", else in that of each process."""
        end = functools.cache(lambda *lengths: end_of(self.pattern, lengths))  # shares differ by one at most
        return [end(*(num_epochs * size for size in sizes)) for sizes in self.epoch_sizes(asked)]

    def epoch_sizes(self, asked: options_lib.ReadOptions) -> list[tuple[int, ...]]:
        """Records of each part in an epoch: of the common order with "global", else of the share of each process."""
        return list(zip(*(part.source.epoch_sizes(asked) for part in self.parts), strict=True))


class MixedOrder:
    """The order of a mixture: of one process' shares, or dealt out to the processes one example at a time.

    Records are numbered over all datasets: those of the second begin after those of the first.
    """

    def __init__(
        self,
        pattern: Pattern,
        parts: Sequence[Part],
        start: int = 0,
        process_index: int = 0,
        process_count: int = 1,
    ):
        """The order begins at `start`.

        Args:
            pattern: of the datasets.
            parts: each with the order of its records, of this process; where the mixture is dealt out, of all of them.
            start: of the common order: what was read before.
            process_index: which process, where the mixture is dealt out; else 0.
            process_count: how many there are, where the mixture is dealt out; else 1.
        """
        self._pattern = pattern
        self._parts = parts
        self._first_records = np.cumsum([0, *(part.num_records for part in parts)])
        self._start, self._index, self._count = start, process_index, process_count

    def locate(self, positions: order_lib.Positions) -> tuple[np.ndarray, np.ndarray]:
        """The records that stand at ascending positions, and their epochs: int64 [n] each."""
        datasets, numbers = self._pattern.locate(self._start + positions * self._count + self._index)
        records, epochs = np.empty_like(positions), np.empty_like(positions)
        for dataset in np.unique(datasets).tolist():
            chosen = datasets == dataset
            found, epochs[chosen] = self._parts[dataset].locate(numbers[chosen])
            records[chosen] = found + self._first_records[dataset]
        return records, epochs


def end_of(pattern: Pattern, lengths: Sequence[int]) -> int:
    """The first position whose dataset has no example left, where each has so many."""
    return min(pattern.position_of(dataset, length) for dataset, length in enumerate(lengths))


class MixedFetcher:
    """Reads records of several datasets, numbered as by MixedOrder. Thread-safe."""

    def __init__(self, fetchers: Sequence[record_bytes.Fetcher], num_records: Sequence[int]):
        self._fetchers = fetchers
        self._first_records = np.cumsum([0, *num_records])
        self.is_local = all(fetcher.is_local for fetcher in fetchers)

    def fetch(self, wanted: np.ndarray) -> Iterator[bytes | record_bytes.Trouble]:
        """Yields each record's bytes, or what is wrong with it, in the order asked for."""
        datasets = np.searchsorted(self._first_records, wanted, side="right") - 1
        each = {
            dataset: self._fetchers[dataset].fetch(wanted[datasets == dataset] - self._first_records[dataset])
            for dataset in np.unique(datasets).tolist()
        }
        for dataset in datasets.tolist():
            yield next(each[dataset])

    def trouble(self, record: int, detail: str) -> record_bytes.Trouble:
        """`detail` with the name of a record."""
        dataset = int(np.searchsorted(self._first_records, record, side="right")) - 1
        return self._fetchers[dataset].trouble(record - int(self._first_records[dataset]), detail)


def common_features(
    parts: Sequence[record_reader.Records], directories: Sequence[str]
) -> Mapping[str, features.Feature]:
    """The features that all parts have alike, by their sources.

    Raises:
        ConfigError: if images, labels or the features asked for differ.
    """
    first = parts[0]
    for part, directory in zip(parts, directories):
        needed = {features.ENCODED, features.LABEL} | {each.source for each in (*first.extra, *part.extra)}
        for source in sorted(needed):
            mine, theirs = part.by_source.get(source), first.by_source.get(source)
            if mine != theirs:
                raise errors.ConfigError(
                    f"the examples of {directory} are {_described(source, mine)}, those of {directories[0]} "
                    f"{_described(source, theirs)}: only alike ones stand in one batch; convert with the same label "
                    "and features"
                )
        if part.label_base != first.label_base:
            raise errors.ConfigError(
                f"ids of classes begin at {part.label_base} in {directory} and at {first.label_base} in "
                f"{directories[0]}: convert with the same label.base"
            )
        if part.is_raw != first.is_raw:
            raise errors.ConfigError(
                f"the images of {directory} are {_stored(part)}, those of {directories[0]} {_stored(first)}: only "
                "alike ones stand in one batch; convert with the same image.encode"
            )
    return {
        source: feature
        for source, feature in first.by_source.items()
        if all(part.by_source.get(source) == feature for part in parts)
    }


def _described(source: str, feature: features.Feature | None) -> str:
    if feature is None:
        return f"without {source}"
    return f"with {feature.key!r} ({'list of ' if feature.many else ''}{feature.kind}) for {source}"


def _stored(part: record_reader.Records) -> str:
    return "bare pixels" if part.is_raw else "encoded"


def check_classes(labels: Sequence[Sequence[str]], directories: Sequence[str]) -> None:
    """Refuses datasets in which one id means different classes.

    Raises:
        ConfigError: with the first difference.
    """
    for mine, directory in zip(labels, directories):
        if list(mine) != list(labels[0]):
            shorter = min(len(mine), len(labels[0]))
            index = next((n for n in range(shorter) if mine[n] != labels[0][n]), shorter)
            raise errors.ConfigError(
                f"class {index} is {_class(mine, index)} in {directory} and {_class(labels[0], index)} in "
                f"{directories[0]}: an id would mean two classes in one batch; convert both with the same "
                "label.vocabulary"
            )


def _class(labels: Sequence[str], index: int) -> str:
    return repr(labels[index]) if index < len(labels) else "none"


def combined(
    mean_and_std: Sequence[tuple[Sequence[float], Sequence[float]]], weights: Sequence[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation over a mixture, from those of its parts."""
    shares = np.asarray(weights, np.float64)[:, None] / sum(weights)
    means, stds = (np.array([each[which] for each in mean_and_std], np.float64) for which in (0, 1))
    mean = (shares * means).sum(0)
    std = np.sqrt((shares * (stds**2 + means**2)).sum(0) - mean**2)
    return tuple(mean.tolist()), tuple(std.tolist())
