"""The ways to read batches, the same for one dataset and for a mixture: tf.data, NumPy, JAX, tf.distribute."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from imagebeam import errors
from imagebeam.reader import batch_iterator, jax_iterator, option_values, read_plan, reader_state, schedule
from imagebeam.reader import options as options_lib

if TYPE_CHECKING:
    import tensorflow as tf


class Feeds(abc.ABC):
    """Base of what can be read in batches. A subclass makes the plan; all feeds follow from it."""

    is_train: bool  # whether it is read for training unless `shuffle` says otherwise

    @abc.abstractmethod
    def make_schedule(self, asked: options_lib.ReadOptions, replicas: int = 1) -> schedule.Schedule:
        """Returns the schedule of one process, whose batches are shared by `replicas`. Reads no record but labels."""

    @abc.abstractmethod
    def make_plan(self, asked: options_lib.ReadOptions, replicas: int = 1) -> read_plan.ReadPlan:
        """Returns the plan of one process, whose batches are shared by `replicas`."""

    def as_tf(self, batch_size: int | None = None, *, input_context: Any = None, **options: Any) -> tf.data.Dataset:
        """Returns the batches of one process as a tf.data.Dataset; see `ImageDataset.as_tf`."""
        tf = batch_iterator.start_tensorflow()
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
        # Where a tf.function of the user calls this, AutoGraph would translate all that runs from here on: 4 s.
        return tf.autograph.experimental.do_not_convert(self._read)(self._options(batch_size, options), replicas)

    def as_numpy(self, batch_size: int, **options: Any) -> batch_iterator.BatchIterator:
        """Returns an iterator over batches as NumPy arrays; see `ImageDataset.as_numpy`."""
        return self._iterate(batch_size, options)

    def as_jax(self, sharding: Any, batch_size: int, **options: Any) -> jax_iterator.JaxIterator:
        """Returns an iterator over batches as global jax.Arrays; see `ImageDataset.as_jax`."""
        for name in ("process_index", "process_count"):
            if name in options:
                raise errors.ConfigError(f"{name} comes from the sharding in as_jax: leave it out")
        asked = self._options(batch_size, {name: value for name, value in options.items() if name != "state"})
        rows = jax_iterator.rows_of_process(sharding, asked)
        options |= {"process_index": rows.place, "process_count": rows.num_places}
        batches = self._iterate(batch_size // rows.num_places, options, jax_iterator.check_plan)
        return jax_iterator.JaxIterator(batches, sharding, batch_size)

    def as_distributed(
        self, strategy: tf.distribute.Strategy, global_batch_size: int, **options: Any
    ) -> tf.distribute.DistributedDataset:
        """Returns batches for a tf.distribute strategy; see `ImageDataset.as_distributed`."""
        asked = self._options(global_batch_size, {name: value for name, value in options.items() if name != "state"})
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

    def state_at(self, step: int, batch_size: int, **options: Any) -> reader_state.ReaderState:
        """Returns the state of a job after `step` batches; see `ImageDataset.state_at`."""
        asked = self._options(batch_size, options)
        if asked.batch_size is None or asked.next_epoch_each_iteration:
            raise errors.ConfigError(
                "state_at counts batches: give batch_size, and leave next_epoch_each_iteration=True out, whose "
                "iterations begin with whole epochs: continue them with first_epoch"
            )
        planned = self.make_schedule(asked)
        done = option_values.whole(0)("step", step)
        if planned.num_batches is not None and done > planned.num_batches:
            raise errors.ConfigError(
                f"step is {done:,}, and num_epochs={asked.num_epochs} has {planned.num_batches:,} batches of a process"
            )
        return planned.state_after(done)

    def _options(self, batch_size: int | None, options: Mapping[str, Any]) -> options_lib.ReadOptions:
        return options_lib.ReadOptions.of(batch_size, options, self.is_train)

    def _iterate(
        self, batch_size: int, options: Mapping[str, Any], check: Callable[..., None] = lambda plan, asked: None
    ) -> batch_iterator.BatchIterator:
        """Returns an iterator over batches as NumPy arrays. `check` is called with each plan and its options."""

        def begin(state: reader_state.ReaderState | None) -> batch_iterator.Begun:
            batch_iterator.start_tensorflow()
            asked = self._options(batch_size, {**options, "state": state})
            if asked.batch_size is None:
                raise errors.ConfigError("batch_size is None; as_numpy makes batches: give a whole number from 1 on")
            if asked.next_epoch_each_iteration:
                raise errors.ConfigError(
                    "next_epoch_each_iteration=True is for datasets, which can be iterated over again, and as_numpy "
                    "and as_jax give one iterator: leave it out, and give num_epochs"
                )
            plan = self.make_plan(asked)
            check(plan, asked)
            return batch_iterator.NumpyIterator(self._build(plan, asked, keep_empty=True)), plan.schedule

        return batch_iterator.BatchIterator(begin, options.get("state"), bool(options.get("deterministic", True)))

    def _read(self, asked: options_lib.ReadOptions, replicas: int) -> tf.data.Dataset:
        plan = self.make_plan(asked, replicas)
        return self._build(plan, asked)

    def _build(
        self, plan: read_plan.ReadPlan, asked: options_lib.ReadOptions, keep_empty: bool = False
    ) -> tf.data.Dataset:
        """Returns the tf.data pipeline; `keep_empty` keeps batches whose examples were all skipped."""
        from imagebeam.reader import tf_pipeline

        return tf_pipeline.build(plan, asked, keep_empty)
