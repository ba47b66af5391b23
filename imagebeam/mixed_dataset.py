"""Several datasets read as one."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from imagebeam import dataset as dataset_lib
from imagebeam import errors
from imagebeam.reader import feeds, mixture, read_plan, schedule, selection
from imagebeam.reader import options as options_lib

if TYPE_CHECKING:
    import tensorflow as tf

_LOGGER = logging.getLogger("imagebeam.dataset")

Part = tuple[dataset_lib.ImageDataset, str]  # a dataset, and the split to read


def mix(
    datasets: Sequence[Part], weights: Sequence[float], batch_size: int | None, seed: int = 0, **options: Any
) -> tf.data.Dataset:
    """Returns batches of examples from several datasets: `Mixture(...).as_tf(...)`.

    Args:
        datasets: each with the split to read.
        weights: proportion of each dataset; they need not sum up to 1.
        batch_size: number of examples in a batch of this process; None gives single examples.
        seed: seed of the mixture and of the order in each dataset.
        **options: the fields of `imagebeam.ReadOptions`.

    Raises:
        ConfigError: if weights and datasets do not match, or the examples or classes of the datasets differ.
    """
    return Mixture(datasets, weights).as_tf(batch_size, seed=seed, **options)


class Mixture(feeds.Feeds):
    """Several datasets in fixed proportions in every batch. Read in all ways in which an `ImageDataset` is read.

    Without `num_epochs` it never ends: a smaller dataset is read more often. With `num_epochs` it ends where the first
    dataset has been read `num_epochs` times and another of its examples would follow; the log says which, and how far
    the others came. Every dataset is read in its own order, each example once an epoch.
    """

    def __init__(self, datasets: Sequence[Part], weights: Sequence[float]):
        """Checks that the datasets can be mixed; nothing is read.

        Args:
            datasets: each with the split to read.
            weights: proportion of each dataset, accurate to 1/65,536; they need not sum up to 1.

        Raises:
            ConfigError: if weights and datasets do not match, or the classes of the datasets differ.
        """
        pairs, numbers = list(datasets), [float(weight) for weight in weights]
        if len(numbers) != len(pairs) or not pairs or not all(math.isfinite(each) and each > 0 for each in numbers):
            raise errors.ConfigError(f"weights are {list(weights)}; give one above 0 for each of {len(pairs)} datasets")
        self._datasets = [dataset for dataset, _ in pairs]
        self._splits = [split for _, split in pairs]
        self._weights = numbers
        splits = [selection.parse_part(split, dataset.splits)[0] for dataset, split in pairs]
        self.is_train = "train" in splits
        mixture.check_classes([dataset.labels for dataset in self._datasets], self._directories)

    def __repr__(self) -> str:
        parts = zip(self._datasets, self._splits, self._weights)
        return (
            "Mixture("
            + ", ".join(f"{weight:g} of {split!r} in {dataset.directory!r}" for dataset, split, weight in parts)
            + ")"
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, the same in all datasets."""
        return self._datasets[0].labels

    @property
    def _directories(self) -> list[str]:
        return [dataset.directory for dataset in self._datasets]

    def _make_epochs(self, asked: options_lib.ReadOptions) -> mixture.MixtureEpochs:
        if asked.next_epoch_each_iteration or asked.first_epoch:
            name = "next_epoch_each_iteration" if asked.next_epoch_each_iteration else "first_epoch"
            raise errors.ConfigError(
                f"{name}={getattr(asked, name)} begins with a whole epoch, and a mixture ends in the "
                "middle of an epoch of most of its datasets: give num_epochs=None, and tell the loop how many batches "
                "an iteration has, in Keras by steps_per_epoch; continue with state=mixture.state_at(...)"
            )
        alone = mixture.options_of_part(asked)
        parts = []
        for dataset, split in zip(self._datasets, self._splits):
            epochs = schedule.SelectionEpochs(dataset.select(split))
            parts.append(mixture.MixturePart(epochs, schedule.plan(epochs, alone).order))
        return mixture.MixtureEpochs(mixture.Pattern(self._weights, asked.seed), parts)

    def make_schedule(self, asked: options_lib.ReadOptions, replicas: int = 1) -> schedule.Schedule:
        return schedule.plan(self._make_epochs(asked), asked, replicas)

    def make_plan(self, asked: options_lib.ReadOptions, replicas: int = 1) -> read_plan.ReadPlan:
        """Returns the plan of one process for the records of all datasets."""
        epochs = self._make_epochs(asked)
        alone = mixture.options_of_part(asked)
        every = [dataset.records(split, alone) for dataset, split in zip(self._datasets, self._splits)]
        by_source = mixture.common_features(every, self._directories)
        planned = schedule.plan(epochs, asked, replicas)
        if asked.num_epochs is not None:
            self._check_end(epochs, asked, asked.num_epochs, planned)
        formats = [plan.formats for plan in every]
        shares = [weight / sum(self._weights) for weight in self._weights]
        sizes = [part.epochs.selection.split_size for part in epochs.parts]
        mean_and_std = every[0].mean_and_std
        if asked.normalize == "dataset":
            mean_and_std = mixture.combined([each.mean_and_std for each in every if each.mean_and_std], self._weights)
        return dataclasses.replace(
            every[0],
            fetcher=mixture.MixedFetcher([plan.fetcher for plan in every], sizes),
            schedule=planned,
            by_source=by_source,
            formats=frozenset().union(*formats) if all(formats) else frozenset(),
            longest_side=max(plan.longest_side for plan in every) if all(plan.longest_side for plan in every) else 0,
            mean_record_bytes=max(1, int(sum(s * plan.mean_record_bytes for s, plan in zip(shares, every)))),
            mean_and_std=mean_and_std,
            kept_open=[plan.kept_open for plan in every],
        )

    def _check_end(
        self,
        epochs: mixture.MixtureEpochs,
        asked: options_lib.ReadOptions,
        num_epochs: int,
        planned: schedule.Schedule,
    ) -> None:
        """Logs where the mixture ends.

        Raises:
            ConfigError: if it ends before one batch is full, and all batches must be full.
        """
        if asked.state is None and asked.drops_remainder and planned.num_batches == 0:
            shortest = min(schedule.lengths(epochs, asked, num_epochs))
            each = f" for each of {planned.replicas} replicas" if planned.replicas > 1 else ""
            raise errors.ConfigError(
                f"batch_size is {asked.batch_size:,}, and a process reads {shortest:,} examples until "
                f"num_epochs={num_epochs} of a dataset are read: no batch would be full{each}; give a smaller one, "
                "drop_remainder=False or pad=True"
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
