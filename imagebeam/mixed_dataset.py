"""Several datasets read as one.

The dataset at a position is a pure function of the seed and the position, like everything else about an order. So a
mixture is read by the same decoders and in every way in which a dataset is read, and can resume from a state.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from imagebeam import dataset as dataset_lib
from imagebeam import errors
from imagebeam.reader import (
    bare_pixels,
    batch_schedule,
    feeds,
    mixture_features,
    mixture_order,
    mixture_pattern,
    option_values,
    read_plan,
    record_selection,
    shard_files,
    shard_reader,
)
from imagebeam.reader import options as options_lib

if TYPE_CHECKING:
    import tensorflow as tf

    from imagebeam.reader import example_source, torch_feeds

_LOGGER = logging.getLogger("imagebeam.dataset")

Part = tuple[dataset_lib.ImageDataset, str]  # a dataset, and the split to read
Weights = Sequence[float] | Sequence[tuple[int, Sequence[float]]]


def mix(
    datasets: Sequence[Part], weights: Weights, batch_size: int | None, seed: int = 0, **options: Any
) -> tf.data.Dataset:
    """Returns batches of examples from several datasets: `Mixture(...).as_tf(...)`.

    Args:
        datasets: each with the split to read.
        weights: proportion of each dataset, also as they change with the step: see `Mixture`.
        batch_size: number of examples in a batch of this process; None gives single examples.
        seed: seed of the mixture and of the order in each dataset.
        **options: the fields of `imagebeam.ReadOptions`.

    Raises:
        ConfigError: if weights and datasets do not match, or the examples or classes of the datasets differ.

    Examples:
        >>> ds = imagebeam.open_dataset("shards")
        >>> mixed = imagebeam.mix([(ds, "train"), (ds, "test")], weights=[3, 1], batch_size=32, image_size=64)
        >>> next(iter(mixed))["image"].shape
        TensorShape([32, 64, 64, 3])
    """
    return Mixture(datasets, weights).as_tf(batch_size, seed=seed, **options)


class Mixture(feeds.Feeds):
    """Several datasets in fixed proportions, or in those of the step of a batch; all feeds of `ImageDataset`.

    Without `num_epochs` it never ends: a smaller dataset is read more often. With `num_epochs` it ends where the first
    dataset has been read `num_epochs` times and another of its examples would follow; the log says which, and how far
    the others came. Every dataset is read in its own order, each example once an epoch.

    Examples:
        >>> ds = imagebeam.open_dataset("shards")
        >>> mixture = imagebeam.Mixture([(ds, "train"), (ds, "test")], weights=[3, 1])
        >>> next(mixture.as_numpy(32, image_size=64))["image"].shape
        (32, 64, 64, 3)
    """

    def __init__(self, datasets: Sequence[Part], weights: Weights):
        """Checks that the datasets can be mixed; nothing is read.

        Args:
            datasets: each with the split to read.
            weights: proportion of each dataset, accurate to 1/65,536; they need not sum up to 1. Or points
                [(step, weights), ...] from step 0 on: between two points proportions are linear in the step, after the
                last they stay. Of points weights may be 0. A step is a batch of all processes together.

        Raises:
            ConfigError: if weights and datasets do not match, or the classes of the datasets differ.
        """
        pairs = list(datasets)
        self._points = _check_points(weights, len(pairs))
        self._datasets = [dataset for dataset, _ in pairs]
        self._splits = [split for _, split in pairs]
        _, self._weights = self._points[-1]
        self.is_train = any("train" in record_selection.split_names(split, each.splits) for each, split in pairs)
        self.stored_dtype = bare_pixels.form_of(self._datasets[0].catalog).dtype
        mixture_features.check_classes([dataset.labels for dataset in self._datasets], self._directories)

    def __repr__(self) -> str:
        shares = zip(*(weights for _, weights in self._points), strict=True)
        parts = zip(shares, self._splits, self._datasets)
        text = ", ".join(
            f"{' to '.join(f'{each:g}' for each in share)} of {split!r} in {dataset.directory!r}"
            for share, split, dataset in parts
        )
        return f"Mixture({text})"

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, the same in all datasets."""
        return self._datasets[0].labels

    @property
    def _directories(self) -> list[str]:
        return [dataset.directory for dataset in self._datasets]

    def _make_epochs(self, asked: options_lib.ReadOptions, replicas: int = 1) -> mixture_order.MixtureEpochs:
        if asked.next_epoch_each_iteration or asked.first_epoch:
            name = "next_epoch_each_iteration" if asked.next_epoch_each_iteration else "first_epoch"
            raise errors.ConfigError(
                "mixture-whole-epochs",
                f"{name}={getattr(asked, name)} begins with a whole epoch, and a mixture ends in the "
                "middle of an epoch of most of its datasets: give num_epochs=None, and tell the loop how many batches "
                "an iteration has, in Keras by steps_per_epoch; continue with state=mixture.state_at(...)",
            )
        alone = mixture_order.options_of_part(asked)
        parts = []
        for dataset, split in zip(self._datasets, self._splits):
            epochs = batch_schedule.SelectionEpochs(dataset.select(split))
            parts.append(mixture_order.MixturePart(epochs, batch_schedule.make_schedule(epochs, alone).order))
        pattern = self._make_pattern(asked, replicas)
        if asked.buckets is None:
            return mixture_order.MixtureEpochs(pattern, parts)
        if asked.num_epochs is not None or len(self._points) > 1:
            name = "weights change with the step" if asked.num_epochs is None else f"num_epochs is {asked.num_epochs}"
            raise errors.ConfigError(
                "options-conflict",
                f"{name}, and a mixture in buckets never ends, in one proportion: give num_epochs=None and fixed "
                "weights; num_batches has no end to count to",
            )
        pairs = zip(self._datasets, self._splits)
        in_buckets = [dataset.bucket_epochs(split, asked, replicas) for dataset, split in pairs]
        return mixture_order.BucketMixtureEpochs(pattern, parts, in_buckets, self._weights, replicas)

    def _make_pattern(self, asked: options_lib.ReadOptions, replicas: int) -> mixture_pattern.Pattern:
        """Returns the pattern of the job's common order with "global", else that of each process."""
        if len(self._points) == 1:
            return mixture_pattern.Pattern(self._weights, asked.seed)
        if asked.batch_size is None:
            raise errors.ConfigError(
                "options-conflict",
                "the weights of the mixture change with the step, a batch: give batch_size; as_grain has no steps",
            )
        rows = asked.batch_size * replicas * (asked.process_count if asked.shuffle == "global" else 1)
        ramp = mixture_pattern.make_ramp(self._points, rows, asked.repeats)
        return mixture_pattern.Pattern(self._weights, asked.seed, ramp)

    def make_schedule(self, asked: options_lib.ReadOptions, replicas: int = 1) -> batch_schedule.BatchSchedule:
        return batch_schedule.make_schedule(self._make_epochs(asked, replicas), asked, replicas)

    def make_plan(self, asked: options_lib.ReadOptions, replicas: int = 1) -> read_plan.ReadPlan:
        """Returns the plan of one process for the records of all datasets."""
        epochs = self._make_epochs(asked, replicas)
        alone = mixture_order.options_of_part(asked)
        every = [dataset.records(split, alone) for dataset, split in zip(self._datasets, self._splits)]
        if asked.objects is not None:
            mixture_features.check_objects([dataset.catalog for dataset in self._datasets], self._directories)
        by_source = mixture_features.common_features(
            [mixture_features.Stored.of_plan(plan) for plan in every],
            set().union(*map(mixture_features.needed_of, every)),
            self._directories,
        )
        planned = batch_schedule.make_schedule(epochs, asked, replicas)
        if asked.num_epochs is not None:
            self._check_end(epochs, asked, asked.num_epochs, planned)
        formats = [plan.formats for plan in every]
        shares = [weight / sum(self._weights) for weight in self._weights]
        sizes = [part.epochs.selection.split_size for part in epochs.parts]
        mean_and_std = every[0].mean_and_std
        if asked.normalize == "dataset":
            mean_and_std = combined([each.mean_and_std for each in every if each.mean_and_std], self._weights)
        return dataclasses.replace(
            every[0],
            fetcher=MixedFetcher([plan.fetcher for plan in every], sizes),
            schedule=planned,
            by_source=by_source,
            formats=frozenset().union(*formats) if all(formats) else frozenset(),
            mean_record_bytes=max(1, int(sum(s * plan.mean_record_bytes for s, plan in zip(shares, every)))),
            mean_and_std=mean_and_std,
        )

    def as_grain(
        self, *, decode: bool = True, features: Sequence[str] | None = None, num_epochs: int = 1
    ) -> example_source.MixedExamples:
        """Returns the examples as a random access source, in the order and to the end of shuffle=None.

        Args:
            decode: as of `ImageDataset.as_grain`.
            features: as of `ImageDataset.as_grain`; None for all that are the same in all datasets.
            num_epochs: where it ends, as in `ReadOptions`.

        Raises:
            ConfigError: as of `ImageDataset.as_grain`, or if images, labels or features differ.
        """
        from imagebeam.reader import example_source

        asked = options_lib.ReadOptions(shuffle=None, num_epochs=num_epochs)
        epochs, catalogs = self._make_epochs(asked), [dataset.catalog for dataset in self._datasets]
        stored = [mixture_features.Stored.of_catalog(each.catalog, each.statistics) for each in self._datasets]
        needed = {each.source for each in read_plan.choose_features(catalogs[0], features or (), {})}
        common = mixture_features.common_features(stored, needed, self._directories)
        if features is None:
            features = [each.key for source, each in common.items() if source not in example_source.OWN]
        parts = zip(self._datasets, self._splits)
        sources = [dataset.as_grain(split, decode=decode, features=features) for dataset, split in parts]
        [end] = epochs.ends(asked, num_epochs)
        return example_source.MixedExamples(sources, self._weights, end)

    def as_torch(self, batch_size: int | None, **options: Any) -> torch_feeds.TorchBatches:
        """Returns batches as tensors of PyTorch; see `ImageDataset.as_torch`. To train, an iteration never ends."""
        num_epochs = 1 if options.get("shuffle", "stream") is None else None
        return super().as_torch(batch_size, **{"num_epochs": num_epochs, **options})

    def _check_end(
        self,
        epochs: mixture_order.MixtureEpochs,
        asked: options_lib.ReadOptions,
        num_epochs: int,
        planned: batch_schedule.BatchSchedule,
    ) -> None:
        """Logs where the mixture ends.

        Raises:
            ConfigError: if it ends before one batch is full, and all batches must be full.
        """
        if asked.state is None and asked.drops_remainder and planned.num_batches == 0:
            shortest = min(batch_schedule.lengths(epochs, asked, num_epochs))
            each = f" for each of {planned.replicas} replicas" if planned.replicas > 1 else ""
            raise errors.ConfigError(
                "batch-never-full",
                f"batch_size is {asked.batch_size:,}, and a process reads {shortest:,} examples until "
                f"num_epochs={num_epochs} of a dataset are read: no batch would be full{each}; give a smaller one, "
                "drop_remainder=False or pad=True",
            )
        row = 0 if asked.shuffle == "global" else asked.process_index
        end, sizes = epochs.ends(asked, num_epochs)[row], epochs.epoch_sizes(asked)[row]
        read = epochs.pattern.count_before(end)
        _LOGGER.info(
            "the mixture ends after %s examples of this order, where num_epochs=%d of a dataset were read: %s",
            f"{end:,}",
            num_epochs,
            ", ".join(
                f"{count / size:.2f} epochs of {split} in {dataset.directory}"
                for count, size, split, dataset in zip(read, sizes, self._splits, self._datasets)
            ),
        )


class MixedFetcher:
    """Reads records of several datasets, numbered as in mixture_order.MixedOrder. Thread-safe."""

    def __init__(self, fetchers: Sequence[shard_reader.Fetcher], num_records: Sequence[int]):
        self._fetchers = fetchers
        self._first_records = np.cumsum([0, *num_records])
        self.is_local = all(fetcher.is_local for fetcher in fetchers)

    def fetch(self, wanted: np.ndarray, epochs: np.ndarray) -> Iterator[bytes | shard_files.RecordFault]:
        """Yields the bytes of each record, or its RecordFault, in the order of `wanted`."""
        datasets = np.searchsorted(self._first_records, wanted, side="right") - 1
        records_of = {
            dataset: self._fetchers[dataset].fetch(
                wanted[datasets == dataset] - self._first_records[dataset], epochs[datasets == dataset]
            )
            for dataset in np.unique(datasets).tolist()
        }
        for dataset in datasets.tolist():
            yield next(records_of[dataset])

    def cache_totals(self) -> Mapping[str, float]:
        """Returns the sums over the datasets: see `Fetcher`."""
        every = [each.cache_totals() for each in self._fetchers]
        return {name: sum(totals[name] for totals in every) for name in every[0]}

    def fault(self, record: int, detail: str) -> shard_files.RecordFault:
        """Returns `detail` with the record that it is about."""
        dataset = int(np.searchsorted(self._first_records, record, side="right")) - 1
        return self._fetchers[dataset].fault(record - int(self._first_records[dataset]), detail)


def _check_points(weights: Weights, num_datasets: int) -> list[tuple[int, list[float]]]:
    """Returns the weights from each step on that is given, from 0 if none is.

    Raises:
        ConfigError: if they are no proportions of the datasets, or the steps do not ascend from 0.
    """
    given: list[Any] = list(weights)
    changes = all(isinstance(each, (tuple, list)) and len(each) == 2 for each in given) and bool(given)
    points = [(option_values.whole(0)("step", step), list(each)) for step, each in (given if changes else [(0, given)])]
    steps = [step for step, _ in points]
    if steps[0] != 0 or any(later <= earlier for earlier, later in itertools.pairwise(steps)):
        raise errors.ConfigError(
            "weights-mismatch", f"weights are given from the steps {steps} on; they must ascend, the first is 0"
        )
    for step, each in points:
        are_numbers = len(each) == num_datasets and all(isinstance(one, numbers.Real) for one in each)
        fits = are_numbers and all(math.isfinite(one) and (one > 0 or (changes and one == 0)) for one in each)
        if not fits or not any(each):
            least = f"from 0 on, not all 0, from step {step} on" if changes else "above 0"
            raise errors.ConfigError(
                "weights-mismatch", f"weights are {each}; give one {least} for each of {num_datasets} datasets"
            )
    return [(step or 0, [float(one) for one in each]) for step, each in points]


def combined(
    mean_and_std: Sequence[tuple[Sequence[float], Sequence[float]]], weights: Sequence[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and standard deviation over a mixture, computed from those of its parts."""
    shares = np.asarray(weights, np.float64)[:, None] / sum(weights)
    means, stds = (np.array([each[which] for each in mean_and_std], np.float64) for which in (0, 1))
    mean = (shares * means).sum(0)
    std = np.sqrt((shares * (stds**2 + means**2)).sum(0) - mean**2)
    return tuple(mean.tolist()), tuple(std.tolist())
