"""The ways to read batches, the same for one dataset and for a mixture: tf.data, NumPy, JAX, tf.distribute."""

from __future__ import annotations

import abc
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from imagebeam import errors, features, missing_packages
from imagebeam.reader import batch_iterator, read_plan, reader_state, schedule
from imagebeam.reader import options as options_lib

if TYPE_CHECKING:
    import tensorflow as tf

_LOGGER = logging.getLogger("imagebeam.dataset")
_MASKS = ("image/object/mask", "image/segmentation/class/encoded")
_IN_WHOLE_IMAGES = ("image/object/bbox/", *_MASKS)


class Feeds(abc.ABC):
    """Base of what can be read in batches. A subclass makes the plan; all feeds follow from it."""

    @abc.abstractmethod
    def plan(self, asked: options_lib.ReadOptions, replicas: int = 1) -> read_plan.ReadPlan:
        """Returns the plan of one process, whose batches are shared by `replicas`."""

    @abc.abstractmethod
    def mean_and_std(self, asked: options_lib.ReadOptions) -> options_lib.MeanAndStd | None:
        """Returns mean and standard deviation to normalise pixels from 0 to 255 with; None if they stay as they are."""

    @abc.abstractmethod
    def check_schedule(self, asked: options_lib.ReadOptions, planned: schedule.Schedule) -> None:
        """Checks that at least one batch is full, if all batches must be; raises ConfigError if none is."""

    @abc.abstractmethod
    def lists_among(self, keys: Sequence[str]) -> list[str]:
        """Returns the keys whose features may have any number of values."""

    @property
    @abc.abstractmethod
    def kept_open(self) -> Any:
        """An object that keeps the files open as long as it is held."""

    def as_tf(self, batch_size: int | None = None, *, input_context: Any = None, **options: Any) -> tf.data.Dataset:
        """Returns the batches of one process as a tf.data.Dataset; see `ImageDataset.as_tf`."""
        tf = import_tensorflow()
        # Where a tf.function of the user calls this, AutoGraph would translate all that runs from here on: 4 s.
        return tf.autograph.experimental.do_not_convert(self._as_tf)(batch_size, input_context, options)

    def _as_tf(self, batch_size: int | None, input_context: Any, options: dict[str, Any]) -> tf.data.Dataset:
        replicas = 1
        if input_context is not None:
            replicas = input_context.num_replicas_in_sync // input_context.num_input_pipelines
            for name in ("process_index", "process_count"):
                if name in options:
                    raise errors.ConfigError(f"{name} comes from the input_context: leave it out")
            options |= {
                "process_index": input_context.input_pipeline_id,
                "process_count": input_context.num_input_pipelines,
            }
        asked = options_lib.ReadOptions.of(batch_size, options)
        return self._build(self.plan(asked, replicas), asked)

    def as_numpy(self, batch_size: int, **options: Any) -> batch_iterator.BatchIterator:
        """Returns an iterator over batches as NumPy arrays; see `ImageDataset.as_numpy`."""
        state = options.pop("state", None)
        begin = functools.partial(self._begin_batches, batch_size, options)
        return batch_iterator.BatchIterator(begin, state, bool(options.get("deterministic", True)))

    def as_jax(self, sharding: Any, batch_size: int, **options: Any) -> Iterator[dict[str, Any]]:
        """Returns an iterator over batches as global jax.Arrays; see `ImageDataset.as_jax`."""
        from imagebeam.reader import jax_iterator

        asked = jax_iterator.check_options(batch_size, options, self.lists_among)
        rows = jax_iterator.rows_of_process(sharding, batch_size, asked.deterministic)
        batches = self.as_numpy(
            batch_size // rows.num_places, **options, process_index=rows.place, process_count=rows.num_places
        )
        return jax_iterator.JaxIterator(batches, sharding, batch_size, asked.deterministic)

    def as_distributed(self, strategy: Any, global_batch_size: int, **options: Any) -> Any:
        """Returns batches for a tf.distribute strategy; see `ImageDataset.as_distributed`."""
        asked = options_lib.ReadOptions.of(global_batch_size, {k: v for k, v in options.items() if k != "state"})
        replicas = strategy.num_replicas_in_sync
        if asked.batch_size is None or asked.batch_size % replicas:
            raise errors.ConfigError(
                f"global_batch_size is {global_batch_size!r}, and the strategy has {replicas} replicas, which take "
                f"equal parts of it: give a multiple of {replicas}"
            )

        def make(context: Any) -> tf.data.Dataset:
            batch_size = context.get_per_replica_batch_size(asked.batch_size)
            return self.as_tf(batch_size, input_context=context, **options)

        return strategy.distribute_datasets_from_function(make)

    def _begin_batches(
        self, batch_size: int, options: Mapping[str, Any], state: reader_state.ReaderState | None
    ) -> tuple[Iterator[Any], schedule.Schedule]:
        """Returns the batches from a state on, and their schedule: see `BatchIterator`."""
        import_tensorflow()
        from imagebeam.reader import numpy_iterator

        asked = options_lib.ReadOptions.of(batch_size, {**options, "state": state})
        if asked.batch_size is None:
            raise errors.ConfigError("batch_size is None; as_numpy makes batches: give a whole number from 1 on")
        if asked.next_epoch_each_iteration:
            raise errors.ConfigError(
                "next_epoch_each_iteration=True is for datasets, which can be iterated over again, and as_numpy and "
                "as_jax give one iterator: leave it out, and give num_epochs"
            )
        plan = self.plan(asked)
        return numpy_iterator.NumpyIterator(self._build(plan, asked, keep_empty=True)), plan.schedule

    def _build(
        self, plan: read_plan.ReadPlan, asked: options_lib.ReadOptions, keep_empty: bool = False
    ) -> tf.data.Dataset:
        """Returns the tf.data pipeline; `keep_empty` keeps batches whose examples were all skipped."""
        from imagebeam.reader import tf_pipeline

        _warn_of_places(plan.extra, asked)
        batches = tf_pipeline.build(plan, asked, self.mean_and_std(asked), keep_empty)
        self.check_schedule(asked, plan.schedule)
        batches.imagebeam_lifetime = self.kept_open  # datasets and iterators made of it hold it
        return batches


def _warn_of_places(extra: Sequence[features.Feature], asked: options_lib.ReadOptions) -> None:
    """Logs a warning if boxes, masks or further images will not fit the images: only these are cropped or mirrored."""
    further = {feature.key for feature in extra if (features.further_part(feature.source) or ())[1:] == ("encoded",)}
    misplaced = [each.key for each in extra if each.source.startswith(_IN_WHOLE_IMAGES) or each.key in further]
    to_resize = ["masks"] if any(feature.source.startswith(_MASKS) for feature in extra) else []
    to_resize += ["further images"] if further else []
    if misplaced and (asked.crop in ("random", "center", "resize_shorter") or asked.flips):
        _LOGGER.warning(
            "%s %s to the whole stored image, but crop=%r, flip=%r change only the image; "
            'use crop="squash", flip=False%s',
            ", ".join(misplaced),
            "refers" if len(misplaced) == 1 else "refer",
            asked.crop,
            asked.flips,
            f", and resize {' and '.join(to_resize)} to image_size yourself" if to_resize else "",
        )


def import_tensorflow() -> Any:
    """Imports TensorFlow.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        import tensorflow as tf
    except ModuleNotFoundError as e:
        raise missing_packages.missing_package(e, "the reader") from e
    return tf
