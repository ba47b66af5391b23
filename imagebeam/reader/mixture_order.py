"""The order of a mixture: how the records of several datasets follow each other, in batches of one size or in buckets.

The dataset at a position is a pure function of the seed and the position, like everything else about an order.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence

import numpy as np

from imagebeam.reader import batch_schedule, bucket_order, mixture_pattern, record_order
from imagebeam.reader import options as options_lib


@dataclasses.dataclass(frozen=True, eq=False)
class MixturePart:
    """The records of one dataset in a mixture.

    Attributes:
        epochs: the records that are selected.
        order: their order in this process with the options of `options_of_part`, from the first position on.
    """

    epochs: batch_schedule.SelectionEpochs
    order: record_order.Order


def options_of_part(asked: options_lib.ReadOptions) -> options_lib.ReadOptions:
    """Returns the options for reading each dataset of a mixture: batches, an end and a state belong to the mixture.

    With "global" the mixture is one common order, dealt to the processes, so each dataset has a common order.
    """
    alone = dataclasses.replace(
        asked,
        batch_size=None,
        pad=False,
        state=None,
        map=None,
        batch_map=None,
        map_id=None,
        map_workers=0,
        repeats=1,
        buckets=None,
        max_pixels=None,
        batch_multiple=None,
        max_enlarge=asked.max_enlarge if asked.pads_small else None,
    )
    return dataclasses.replace(alone, process_index=0, process_count=1) if asked.shuffle == "global" else alone


@dataclasses.dataclass(frozen=True, eq=False)
class MixtureEpochs:
    """The epochs of a mixture, as `batch_schedule.Epochs`. The mixture ends with the first part that ends.

    The pattern is the same in every process, so all processes are at the same position in it, as with one dataset.
    """

    pattern: mixture_pattern.Pattern
    parts: Sequence[MixturePart]

    @property
    def num_records(self) -> int:
        return sum(part.epochs.num_records for part in self.parts)

    def first_state(self, asked: options_lib.ReadOptions) -> record_order.ReaderState:
        """Returns the state before the first epoch. It fits only these datasets in these proportions."""
        starts = [part.epochs.first_state(asked) for part in self.parts]
        counts = self.pattern.counts.tolist()
        named = [[count, each.fingerprint, each.selection] for count, each in zip(counts, starts, strict=True)]
        shares = ", ".join(
            f"{count / mixture_pattern.BLOCK:.4g} of {each.selection}" for count, each in zip(counts, starts)
        )
        ramp = self.pattern.name
        is_stream = asked.shuffle == "stream"
        snapshots = [each.snapshot for each in starts]
        return dataclasses.replace(
            starts[0],
            fingerprint=hashlib.blake2b(json.dumps([*named, *ramp]).encode(), digest_size=16).hexdigest(),
            selection=f"{shares} after {ramp[1][-1][0]} steps of {ramp[0]}" if ramp else shares,
            block_records=" ".join(str(each.block_records) for each in starts) if is_stream else None,
            window_blocks=" ".join(str(each.window_blocks) for each in starts) if is_stream else None,
            snapshot=" ".join(each or "none" for each in snapshots) if any(snapshots) else None,
        )

    def order(self, asked: options_lib.ReadOptions) -> MixedOrder:
        """Returns the order of one process or of all, as `batch_schedule.Epochs.order`."""
        return MixedOrder(self.pattern, self.parts)

    def calendar(self, asked: options_lib.ReadOptions) -> batch_schedule.Calendar:
        """Returns where epochs begin."""
        return batch_schedule.EqualEpochs(self.num_records * asked.repeats)

    def ends(self, asked: options_lib.ReadOptions, num_epochs: int) -> list[int]:
        """Returns where the first part has been read `num_epochs` times: by process, with "global" for all together."""

        @functools.cache  # shares differ by one at most
        def end(sizes: tuple[int, ...]) -> int:
            ends = (self.pattern.position_of(dataset, num_epochs * size) for dataset, size in enumerate(sizes))
            return min(end for end in ends if end is not None)

        return [end(sizes) for sizes in self.epoch_sizes(asked)]

    def epoch_sizes(self, asked: options_lib.ReadOptions) -> list[tuple[int, ...]]:
        """Returns each part's records in an epoch: of the common order with "global", else of each process's share."""
        return list(zip(*(part.epochs.epoch_sizes(asked) for part in self.parts), strict=True))


@dataclasses.dataclass(frozen=True, eq=False)
class MixedOrder:
    """The order of a mixture: of one process's shares, or the common order of all processes.

    Records are numbered over all datasets: the records of the second dataset follow those of the first.

    Attributes:
        pattern: assigns a dataset to each position.
        parts: the datasets, each with the order of its records: of this process, or, if the mixture is dealt to the
            processes, of all processes together.
    """

    pattern: mixture_pattern.Pattern
    parts: Sequence[MixturePart]

    def locate(self, positions: record_order.Positions) -> tuple[np.ndarray, np.ndarray]:
        """Returns the records at positions, which do not descend, and their epochs: int64 [n] each."""
        first_records = np.cumsum([0, *(part.epochs.selection.split_size for part in self.parts)])
        datasets, numbers = self.pattern.locate(positions)
        records, epochs = np.empty_like(positions), np.empty_like(positions)
        for dataset in np.unique(datasets).tolist():
            chosen = datasets == dataset
            found, epochs[chosen] = self.parts[dataset].order.locate(numbers[chosen])
            records[chosen] = found + first_records[dataset]
        return records, epochs


@dataclasses.dataclass(frozen=True, eq=False)
class MixedSteps:
    """The steps of a mixture in buckets, as `bucket_order.Steps`.

    Attributes:
        pattern: assigns a bucket to each step.
        batch_sizes: records in a batch of all processes together, of each bucket: int64 [buckets].
        size: number of steps that are counted as an epoch.
    """

    pattern: mixture_pattern.Pattern
    batch_sizes: np.ndarray
    size: int

    def first_step(self, epoch: int) -> int:
        return epoch * self.size

    def epoch_of(self, step: int) -> int:
        return step // self.size

    def batch_at(self, step: int) -> tuple[int, int, int]:
        [bucket], [number] = self.pattern.locate(np.array([step]))
        size = int(self.batch_sizes[bucket])
        return int(bucket), int(number) * size, (int(number) + 1) * size

    def carried(self, step: int) -> int:
        return 0


@dataclasses.dataclass(frozen=True, eq=False)
class BucketMixtureEpochs(MixtureEpochs):
    """The epochs of a mixture in buckets, which never ends.

    A bucket has as many of the steps, and a dataset as many of the places of a bucket, as the weights and the sizes of
    the images ask for, accurate to 1/65,536: so each image of a bucket is read once before one of the same dataset is
    read again.
    """

    in_buckets: Sequence[batch_schedule.BucketEpochs]  # of each part
    weights: Sequence[float]
    replicas: int = 1

    def calendar(self, asked: options_lib.ReadOptions) -> bucket_order.BucketOrder:
        sizes, num_parts = asked.bucket_batch_sizes, asked.process_count * self.replicas
        counts = np.array([epochs.counts for epochs in self.in_buckets])
        shares = np.array(self.weights)[:, None] * counts / counts.sum(1, keepdims=True)  # [datasets, buckets]
        together = np.array(sizes, np.int64) * num_parts
        pattern = mixture_pattern.Pattern((shares.sum(0) / together).tolist(), asked.seed)
        steps = MixedSteps(pattern, together, max(1, int((-(-counts // together)).sum())))
        orders = zip(*(epochs.records(asked.seed) for epochs in self.in_buckets), strict=True)
        records = []
        for bucket, found in enumerate(orders):
            parts = [dataclasses.replace(part, order=order) for part, order in zip(self.parts, found, strict=True)]
            weights = shares[:, bucket].tolist() if shares[:, bucket].any() else self.weights  # of an empty bucket any
            records.append(MixedOrder(mixture_pattern.Pattern(weights, asked.seed), parts))
        return bucket_order.BucketOrder(steps, sizes, num_parts, records)

    def first_state(self, asked: options_lib.ReadOptions) -> record_order.ReaderState:
        """Returns the state before the first epoch, as of `MixtureEpochs`."""
        name = asked.name_of_buckets(asked.process_count * self.replicas)
        return dataclasses.replace(super().first_state(asked), buckets=name)
