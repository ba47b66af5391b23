"""Several datasets read as one: an order over the records of all of them.

The dataset at a position is a pure function of the seed and the position, like everything else about an order. So a
mixture is read by the same decoders and in every way in which a dataset is read, and can resume from a state.
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
from imagebeam.reader import read_plan, reader_state, schedule, shard_reader

_BLOCK = 1 << 16  # positions; each dataset has the same number of positions in every block
_KEPT_TABLES = 3


class Pattern:
    """Assigns to each position a dataset and the number of one of its examples, counted from 0 in ascending order."""

    def __init__(self, weights: Sequence[float], seed: int):
        """Shares the positions of each block among the datasets.

        Args:
            weights: one positive weight per dataset, accurate to 1/65,536 in each block of 65,536 positions.
            seed: seed of the mixture.
        """
        self._seed = seed
        self.counts = _share_out(np.asarray(weights, np.float64))  # int64 [datasets]: positions in a block
        self._tables: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # by block

    def locate(self, positions: order_lib.Positions) -> tuple[np.ndarray, np.ndarray]:
        """Returns the datasets at ascending positions, and the numbers of their examples: int64 [n] each."""
        blocks, slots = np.divmod(positions, _BLOCK)
        datasets, numbers = np.empty_like(positions), np.empty_like(positions)
        for block in np.unique(blocks).tolist():
            chosen = blocks == block
            members, ranks = self._table(block)
            datasets[chosen] = members[slots[chosen]]
            numbers[chosen] = ranks[slots[chosen]] + block * self.counts[datasets[chosen]]
        return datasets, numbers

    def position_of(self, dataset: int, number: int) -> int:
        """Returns the position of an example of a dataset: the inverse of `locate`."""
        block, rank = divmod(number, int(self.counts[dataset]))
        members, _ = self._table(block)
        return block * _BLOCK + int(np.flatnonzero(members == dataset)[rank])

    def count_before(self, position: int) -> list[int]:
        """Returns the number of examples of each dataset before a position."""
        block, slot = divmod(position, _BLOCK)
        members, _ = self._table(block)
        inside = np.bincount(members[:slot], minlength=len(self.counts))
        return (block * self.counts + inside).tolist()

    def _table(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns for each position in a block its dataset, and the number of its examples before it in the block."""
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
    """Returns the positions in a block for each dataset, at least one: int64 [datasets]."""
    wanted = weights / weights.sum() * _BLOCK
    counts = np.maximum(1, np.floor(wanted)).astype(np.int64)
    while (missing := _BLOCK - int(counts.sum())) > 0:
        counts[np.argsort(counts - wanted, kind="stable")[:missing]] += 1
    while counts.sum() > _BLOCK:  # some datasets weigh less than one position
        counts[np.argmax(counts)] -= 1
    return counts


@dataclasses.dataclass(frozen=True, eq=False)
class MixturePart:
    """The records of one dataset in a mixture.

    Attributes:
        epochs: the records that are selected.
        order: their order in this process with the options of `options_of_part`, from the first position on.
    """

    epochs: schedule.SelectionEpochs
    order: order_lib.Order


def options_of_part(asked: options_lib.ReadOptions) -> options_lib.ReadOptions:
    """Returns the options for reading each dataset of a mixture: batches, an end and a state belong to the mixture.

    With "global" the mixture is one common order, distributed round-robin among the processes, so each dataset has a
    common order.
    """
    alone = dataclasses.replace(asked, batch_size=None, pad=False, state=None)
    return dataclasses.replace(alone, process_index=0, process_count=1) if asked.shuffle == "global" else alone


@dataclasses.dataclass(frozen=True, eq=False)
class MixtureEpochs:
    """The epochs of a mixture, as `schedule.Epochs`. The mixture ends with the first part that ends.

    The pattern is the same in every process, so all processes are at the same position in it, as with one dataset.
    """

    pattern: Pattern
    parts: Sequence[MixturePart]

    @property
    def num_records(self) -> int:
        return sum(part.epochs.num_records for part in self.parts)

    def first_state(self, asked: options_lib.ReadOptions) -> reader_state.ReaderState:
        """Returns the state before the first epoch. It fits only these datasets in these proportions."""
        starts = [part.epochs.first_state(asked) for part in self.parts]
        counts = self.pattern.counts.tolist()
        named = [[count, each.fingerprint, each.selection] for count, each in zip(counts, starts, strict=True)]
        text = ", ".join(f"{count / _BLOCK:.4g} of {each.selection}" for count, each in zip(counts, starts))
        is_stream = asked.shuffle == "stream"
        snapshots = [each.snapshot for each in starts]
        return dataclasses.replace(
            starts[0],
            fingerprint=hashlib.blake2b(json.dumps(named).encode(), digest_size=16).hexdigest(),
            selection=text,
            block_records=" ".join(str(each.block_records) for each in starts) if is_stream else None,
            window_blocks=" ".join(str(each.window_blocks) for each in starts) if is_stream else None,
            snapshot=" ".join(each or "none" for each in snapshots) if any(snapshots) else None,
        )

    def order(self, asked: options_lib.ReadOptions, done: int) -> MixedOrder:
        """Returns the order of one process, as `schedule.Epochs.order`."""
        if asked.shuffle == "global":
            return MixedOrder(self.pattern, self.parts, done, asked.process_index, asked.process_count)
        return MixedOrder(self.pattern, self.parts)

    def ends(self, asked: options_lib.ReadOptions, num_epochs: int) -> list[int]:
        """Returns where the first part has been read `num_epochs` times: by process, with "global" for all together."""
        end = functools.cache(lambda *lengths: end_of(self.pattern, lengths))  # shares differ by one at most
        return [end(*(num_epochs * size for size in sizes)) for sizes in self.epoch_sizes(asked)]

    def epoch_sizes(self, asked: options_lib.ReadOptions) -> list[tuple[int, ...]]:
        """Returns each part's records in an epoch: of the common order with "global", else of each process's share."""
        return list(zip(*(part.epochs.epoch_sizes(asked) for part in self.parts), strict=True))


class MixedOrder:
    """The order of a mixture: of one process's shares, or of a common order shared round-robin among the processes.

    Records are numbered over all datasets: the records of the second dataset follow those of the first.
    """

    def __init__(
        self,
        pattern: Pattern,
        parts: Sequence[MixturePart],
        start: int = 0,
        process_index: int = 0,
        process_count: int = 1,
    ):
        """Begins the order at `start`.

        Args:
            pattern: assigns a dataset to each position.
            parts: the datasets, each with the order of its records: of this process, or, if the mixture is
                distributed round-robin among the processes, of all processes together.
            start: position in the common order where this job begins: all before it has been read.
            process_index: index of the process if the mixture is distributed; else 0.
            process_count: number of processes if the mixture is distributed; else 1.
        """
        self._pattern = pattern
        self._parts = parts
        self._first_records = np.cumsum([0, *(part.epochs.selection.split_size for part in parts)])
        self._start, self._index, self._count = start, process_index, process_count

    def locate(self, positions: order_lib.Positions) -> tuple[np.ndarray, np.ndarray]:
        """Returns the records at ascending positions, and their epochs: int64 [n] each."""
        datasets, numbers = self._pattern.locate(self._start + positions * self._count + self._index)
        records, epochs = np.empty_like(positions), np.empty_like(positions)
        for dataset in np.unique(datasets).tolist():
            chosen = datasets == dataset
            found, epochs[chosen] = self._parts[dataset].order.locate(numbers[chosen])
            records[chosen] = found + self._first_records[dataset]
        return records, epochs


def end_of(pattern: Pattern, lengths: Sequence[int]) -> int:
    """Returns the first position whose dataset has no example left, if the datasets have `lengths` examples."""
    return min(pattern.position_of(dataset, length) for dataset, length in enumerate(lengths))


class MixedFetcher:
    """Reads records of several datasets, numbered as in MixedOrder. Thread-safe."""

    def __init__(self, fetchers: Sequence[shard_reader.Fetcher], num_records: Sequence[int]):
        self._fetchers = fetchers
        self._first_records = np.cumsum([0, *num_records])
        self.is_local = all(fetcher.is_local for fetcher in fetchers)

    def fetch(self, wanted: np.ndarray, epochs: np.ndarray) -> Iterator[bytes | shard_reader.Trouble]:
        """Yields the bytes of each record, or its Trouble, in the order of `wanted`."""
        datasets = np.searchsorted(self._first_records, wanted, side="right") - 1
        records_of = {
            dataset: self._fetchers[dataset].fetch(
                wanted[datasets == dataset] - self._first_records[dataset], epochs[datasets == dataset]
            )
            for dataset in np.unique(datasets).tolist()
        }
        for dataset in datasets.tolist():
            yield next(records_of[dataset])

    def trouble(self, record: int, detail: str) -> shard_reader.Trouble:
        """Returns `detail` with the record that it is about."""
        dataset = int(np.searchsorted(self._first_records, record, side="right")) - 1
        return self._fetchers[dataset].trouble(record - int(self._first_records[dataset]), detail)


def common_features(parts: Sequence[read_plan.ReadPlan], directories: Sequence[str]) -> Mapping[str, features.Feature]:
    """Returns the features that are the same in all parts, by their sources.

    Raises:
        ConfigError: if images, labels or the requested features differ.
    """
    first = parts[0]
    for part, directory in zip(parts, directories):
        needed = {features.ENCODED, features.LABEL} | {
            each.source for each in (*first.extra, *part.extra, *first.columns.values())
        }
        for source in sorted(needed):
            mine, theirs = part.by_source.get(source), first.by_source.get(source)
            if mine != theirs:
                raise errors.ConfigError(
                    f"{directory} stores {_described(source, mine)}, {directories[0]} {_described(source, theirs)}: "
                    "examples in one batch must be alike; convert with the same label and features"
                )
        if part.label_base != first.label_base:
            raise errors.ConfigError(
                f"ids of classes begin at {part.label_base} in {directory} and at {first.label_base} in "
                f"{directories[0]}: convert with the same label.base"
            )
        if part.is_raw != first.is_raw:
            raise errors.ConfigError(
                f"the images of {directory} are {_stored(part)}, those of {directories[0]} {_stored(first)}: "
                "examples in one batch must be alike; convert with the same image.encode"
            )
    return {
        source: feature
        for source, feature in first.by_source.items()
        if all(part.by_source.get(source) == feature for part in parts)
    }


def _described(source: str, feature: features.Feature | None) -> str:
    if feature is None:
        return f"no {source}"
    return f"{source} as {feature.key!r} ({'list of ' if feature.many else ''}{feature.kind})"


def _stored(part: read_plan.ReadPlan) -> str:
    return "bare pixels" if part.is_raw else "encoded"


def check_classes(labels: Sequence[Sequence[str]], directories: Sequence[str]) -> None:
    """Checks that each id means the same class in all datasets.

    Raises:
        ConfigError: if not; the text names the first class that differs.
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
    """Returns mean and standard deviation over a mixture, computed from those of its parts."""
    shares = np.asarray(weights, np.float64)[:, None] / sum(weights)
    means, stds = (np.array([each[which] for each in mean_and_std], np.float64) for which in (0, 1))
    mean = (shares * means).sum(0)
    std = np.sqrt((shares * (stds**2 + means**2)).sum(0) - mean**2)
    return tuple(mean.tolist()), tuple(std.tolist())
