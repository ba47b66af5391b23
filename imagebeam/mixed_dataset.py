"""Several datasets read as one."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from imagebeam import dataset as dataset_lib
from imagebeam import errors
from imagebeam.reader import mixture, normalize, record_reader, schedule
from imagebeam.reader import options as options_lib

if TYPE_CHECKING:
    import tensorflow as tf

_LOGGER = logging.getLogger("imagebeam.dataset")
_ALL = "the mixture"  # in the place of a split's name

Part = tuple[dataset_lib.ImageDataset, str]


def mix(
    datasets: Sequence[Part], weights: Sequence[float], batch_size: int | None, seed: int = 0, **options: Any
) -> tf.data.Dataset:
    """Batches in which the examples of several datasets stand side by side: `Mixture(...).as_tf(...)`.

    Args:
        datasets: each with the split to read.
        weights: how much of the whole each gives; they are made to sum up to 1.
        batch_size: of this process; None gives single examples.
        seed: of the mixture, and of the order in each.
        **options: the fields of `imagebeam.ReadOptions`.

    Raises:
        ConfigError: if weights and datasets do not match, or the examples or classes of the datasets differ.
    """
    return Mixture(datasets, weights).as_tf(batch_size, seed=seed, **options)


class Mixture:
    """Several datasets, of which each batch has examples in a proportion. Read as an `ImageDataset` is, by any feed.

    Without `num_epochs` it never ends: a smaller dataset is read more often. With it, it ends where the first dataset
    was read so often and another of its examples would follow; the log says which, and how far the others came. Every
    dataset is read in its own order, each example once an epoch.
    """

    def __init__(self, datasets: Sequence[Part], weights: Sequence[float]):
        """Checks that the datasets can be mixed; nothing is read.

        Args:
            datasets: each with the split to read.
            weights: how much of the whole each gives, met to 1 in 65,536; they are made to sum up to 1.

        Raises:
            ConfigError: if weights and datasets do not match, or the classes of the datasets differ.
        """
        self._mixed = _MixedDataset(datasets, weights)

    def __repr__(self) -> str:
        return repr(self._mixed)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, the same in all datasets."""
        return self._mixed.labels

    def as_tf(self, batch_size: int | None = None, **options: Any) -> tf.data.Dataset:
        """Batches of one process, as `ImageDataset.as_tf`."""
        return self._mixed.as_tf(_ALL, batch_size, **options)

    def as_numpy(self, batch_size: int, **options: Any) -> dataset_lib.BatchIterator:
        """Batches as NumPy arrays, from an iterator with `state` and `restore`, as `ImageDataset.as_numpy`."""
        return self._mixed.as_numpy(_ALL, batch_size, **options)

    def as_jax(self, sharding: Any, batch_size: int, **options: Any) -> Iterator[dict[str, Any]]:
        """Global jax.Arrays, as `ImageDataset.as_jax`."""
        return self._mixed.as_jax(_ALL, sharding, batch_size, **options)

    def as_distributed(self, strategy: Any, global_batch_size: int, **options: Any) -> Any:
        """Batches for a tf.distribute strategy, as `ImageDataset.as_distributed`."""
        return self._mixed.as_distributed(strategy, _ALL, global_batch_size, **options)


class _MixedDataset(dataset_lib.ImageDataset):
    """What the feeds of a dataset ask for, of several; the name of the split means nothing."""

    def __init__(self, datasets: Sequence[Part], weights: Sequence[float]):
        pairs, numbers = list(datasets), [float(weight) for weight in weights]
        if len(numbers) != len(pairs) or not pairs or not all(math.isfinite(each) and each > 0 for each in numbers):
            raise errors.ConfigError(f"weights are {list(weights)}; give one above 0 for each of {len(pairs)} datasets")
        self._datasets = [dataset for dataset, _ in pairs]
        self._splits = [split for _, split in pairs]
        self._weights = numbers
        catalogs = [dataset.catalog for dataset in self._datasets]
        mixture.check_classes([catalog.labels for catalog in catalogs], self._directories)
        super().__init__(self._datasets[0]._source, catalogs[0], unfiltered=self._datasets[0].unfiltered)

    def __repr__(self) -> str:
        parts = zip(self._datasets, self._splits, self._weights)
        return (
            "Mixture("
            + ", ".join(f"{weight:g} of {split!r} in {dataset.directory!r}" for dataset, split, weight in parts)
            + ")"
        )

    @property
    def _directories(self) -> list[str]:
        return [dataset.directory for dataset in self._datasets]

    @property
    def kept_open(self) -> Any:
        return [dataset.kept_open for dataset in self._datasets]

    def lists_among(self, keys: Sequence[str]) -> list[str]:
        return self._datasets[0].lists_among(keys)

    def check_batch_size(self, split: str, asked: options_lib.ReadOptions, planned: schedule.Schedule) -> None:
        """Does nothing: `records` has looked at the length of the mixture."""

    def mean_and_std(self, asked: options_lib.ReadOptions) -> options_lib.MeanAndStd | None:
        if asked.normalize != "dataset":
            return super().mean_and_std(asked)
        found = [normalize.mean_and_std(dataset, asked) for dataset in self._datasets]
        return mixture.combined([each for each in found if each is not None], self._weights)

    def records(self, split: str, asked: options_lib.ReadOptions, replicas: int = 1) -> record_reader.Records:
        if asked.next_epoch_each_iteration:
            raise errors.ConfigError(
                "next_epoch_each_iteration=True begins each iteration with the next epoch, and a mixture ends in the "
                "middle of an epoch of most of its datasets: give num_epochs=None, and tell the loop how many batches "
                "an iteration has, in Keras by steps_per_epoch"
            )
        alone = mixture.of_part(asked)
        every = [dataset.records(each, alone) for dataset, each in zip(self._datasets, self._splits)]
        by_source = mixture.common_features(every, self._directories)
        source = self._mixed_source(every, asked)
        planned = schedule.plan(source, asked, replicas)
        if asked.num_epochs is not None:
            self._check_end(source, asked, asked.num_epochs, planned)
        formats = [part.formats for part in every]
        shares = [weight / sum(self._weights) for weight in self._weights]
        return dataclasses.replace(
            every[0],
            fetcher=mixture.MixedFetcher([part.fetcher for part in every], [part.num_records for part in source.parts]),
            schedule=planned,
            chosen=None,
            by_source=by_source,
            formats=frozenset().union(*formats) if all(formats) else frozenset(),
            longest_side=max(part.longest_side for part in every) if all(part.longest_side for part in every) else 0,
            mean_record_bytes=max(1, int(sum(s * part.mean_record_bytes for s, part in zip(shares, every)))),
        )

    def _mixed_source(
        self, every: Sequence[record_reader.Records], asked: options_lib.ReadOptions
    ) -> mixture.MixedSource:
        """What the schedule must know of the mixture of `every` dataset's records."""
        parts = []
        for dataset, split, part in zip(self._datasets, self._splits, every, strict=True):
            view = dataset.view(split)
            order, total = part.schedule.order, view.num_records_of_split
            parts.append(mixture.Part(dataset.source(view), order, part.chosen, total))
        return mixture.MixedSource(mixture.Pattern(self._weights, asked.seed), parts)

    def _check_end(
        self,
        source: mixture.MixedSource,
        asked: options_lib.ReadOptions,
        num_epochs: int,
        planned: schedule.Schedule,
    ) -> None:
        """Says where the mixture ends.

        Raises:
            ConfigError: if it ends before one batch is full, and all are to be.
        """
        if asked.state is None and asked.drops_remainder and planned.num_batches == 0:
            shortest = min(schedule.lengths(source, asked, num_epochs))
            each = f" for each of {planned.replicas} replicas" if planned.replicas > 1 else ""
            raise errors.ConfigError(
                f"batch_size is {asked.batch_size:,}, and a process reads {shortest:,} examples until "
                f"num_epochs={num_epochs} of a dataset are read: no batch would be full{each}; give a smaller one, "
                "drop_remainder=False or pad=True"
            )
        row = 0 if asked.shuffle == "global" else asked.process_index
        end, sizes = source.ends(asked, num_epochs)[row], source.epoch_sizes(asked)[row]
        read = source.pattern.count_before(end)
        _LOGGER.info(
            "the mixture ends after %s examples of this order, where num_epochs=%d of a dataset were read: %s",
            f"{end:,}",
            num_epochs,
            ", ".join(
                f"{count / size:.2f} epochs of {split} in {dataset.directory}"
                for count, size, split, dataset in zip(read, sizes, self._splits, self._datasets)
            ),
        )
