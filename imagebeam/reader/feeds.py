"""The ways to read batches, the same for one dataset and for a mixture: tf.data, NumPy, JAX, tf.distribute."""

from __future__ import annotations

import abc
import atexit
import functools
import itertools
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from imagebeam import errors
from imagebeam.reader import batch_schedule, jax_iterator, read_plan, record_order
from imagebeam.reader import options as options_lib

if TYPE_CHECKING:
    import tensorflow as tf

# The batches, those whose examples were all skipped included, and the schedule that they follow.
Begun: TypeAlias = tuple[Iterator[Any], batch_schedule.BatchSchedule]

_started_in: int | None = None  # process in which TensorFlow's threads read


def import_tensorflow() -> Any:
    """Imports TensorFlow.

    Raises:
        ConfigError: if it is not installed.
    """
    with errors.imports_for("the reader"):
        import tensorflow as tf
    return tf


def start_tensorflow() -> Any:
    """Returns TensorFlow, whose threads read from now on.

    Raises:
        ConfigError: if it is not installed, or its threads run in the process from which this one was forked.
    """
    global _started_in
    tf = import_tensorflow()
    _started_in = _started_in or os.getpid()
    check_process(_started_in)
    return tf


def check_process(started_in: int) -> None:
    """Refuses to read in a forked process: threads do not survive fork(), and a read would wait for them forever.

    Args:
        started_in: the process in which the reader started its threads.

    Raises:
        ConfigError: if it is not this one.
    """
    if os.getpid() != started_in:
        raise errors.ConfigError(
            "reader-forked",
            f"process {os.getpid()} was forked from process {started_in}, which reads with TensorFlow, and its threads "
            "do not exist in a forked process: start workers by spawn (multiprocessing.get_context('spawn'), "
            "DataLoader(..., multiprocessing_context='spawn')), or read in one process only",
        )


class BatchIterator(Iterator[Any]):
    """Batches as NumPy arrays. `state` returns the current place in the data, `restore` goes to such a place.

    Attributes:
        has_state: whether the batches come in the order of the schedule.
    """

    def __init__(
        self,
        begin: Callable[[record_order.ReaderState | None], Begun],
        state: record_order.ReaderState | None,
        is_deterministic: bool,
    ):
        """Begins at `state`.

        Args:
            begin: returns the batches from a state on.
            state: where to begin; None for the first epoch.
            is_deterministic: whether the batches come in the order of the schedule.
        """
        self._begin = begin
        self.has_state = is_deterministic
        self._started_in = os.getpid()
        self.restore(state)

    def check_process(self) -> None:
        """Refuses to read in a forked process, as `check_process`."""
        check_process(self._started_in)

    def __next__(self) -> Any:
        self.check_process()
        while True:
            batch = next(self._batches)
            self._num_batches += 1
            if len(batch[0] if isinstance(batch, tuple) else batch["image"]):  # else all examples were skipped
                return batch

    def state(self) -> record_order.ReaderState:
        """Returns where the next batch begins: plain values, the same in every process of the job.

        Raises:
            ConfigError: with deterministic=False, which leaves open which examples have been read.
        """
        if not self.has_state:
            raise errors.ConfigError(
                "state-unordered",
                "deterministic=False gives examples in the order in which they are decoded, so there is no state from "
                "which another reader could go on exactly: leave it out where you need state()",
            )
        return self._schedule.state_after(self._num_batches)

    def restore(self, state: record_order.ReaderState | None) -> None:
        """Goes on from `state`, as fast as a start: nothing before it is read."""
        self._batches, self._schedule = self._begin(state)
        self._num_batches = 0  # since the schedule began


# TensorFlow's iterators by the number of the NumpyIterator that uses each, and those that nobody uses any more. To free
# one waits for its running calls, which take locks. The garbage collector frees on any thread, which may hold such a
# lock. So they are freed on a thread of their own.
_used: dict[int, Iterator[Any]] = {}
_unused: queue.SimpleQueue[Iterator[Any]] = queue.SimpleQueue()  # `put` may be called by the garbage collector
_NUMBERS = itertools.count()
atexit.register(_used.clear)


def _stop_using(number: int) -> None:
    if number in _used:
        _unused.put(_used.pop(number))


@functools.cache
def _start_freeing() -> None:
    threading.Thread(target=_free_unused, name="imagebeam-free", daemon=True).start()


def _free_unused() -> None:
    while True:
        _unused.get()


class NumpyIterator(Iterator[Any]):
    """The elements of a dataset as NumPy arrays. Raises errors of imagebeam themselves, not TensorFlow's wrappers.

    A RaggedTensor becomes an object array with one array for each row.
    """

    def __init__(self, dataset: tf.data.Dataset, raised: Iterable[errors.ImagebeamError] = ()):
        """Begins to read. `raised` holds the errors that the functions of the dataset raised."""
        self._tf = import_tensorflow()
        self._raised = raised
        _start_freeing()
        self._number = next(_NUMBERS)
        weakref.finalize(self, _stop_using, self._number).atexit = False
        ragged = self._tf.RaggedTensorSpec
        if any(isinstance(spec, ragged) for spec in self._tf.nest.flatten(dataset.element_spec)):
            parts = dataset.map(_split_ragged, num_parallel_calls=1)
            _used[self._number] = map(_join_ragged, parts.as_numpy_iterator())
        else:
            _used[self._number] = dataset.as_numpy_iterator()

    def __next__(self) -> Any:
        try:
            return next(_used[self._number])
        except self._tf.errors.OpError as e:
            found: Exception = next((each for each in list(self._raised) if str(each) in str(e)), e)
            raise found from e.with_traceback(None)  # whose frames hold the iterator


def _split_ragged(batch: dict[str, Any]) -> dict[str, Any]:
    """Replaces each RaggedTensor by its values and row splits, which TensorFlow converts to NumPy arrays."""
    ragged = import_tensorflow().RaggedTensor
    return {
        name: (value.values, value.row_splits) if isinstance(value, ragged) else value for name, value in batch.items()
    }


def _join_ragged(batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: _rows(*value) if isinstance(value, tuple) else value for name, value in batch.items()}


def _rows(values: np.ndarray, splits: np.ndarray) -> np.ndarray:
    rows = np.empty(len(splits) - 1, object)
    for row, (start, end) in enumerate(itertools.pairwise(splits.tolist())):
        rows[row] = values[start:end]
    return rows


class Feeds(abc.ABC):
    """Base of what can be read in batches. A subclass makes the plan; all feeds follow from it."""

    is_train: bool  # whether it is read for training unless `shuffle` says otherwise
    stored_dtype: str  # type of the stored pixels

    @abc.abstractmethod
    def make_schedule(self, asked: options_lib.ReadOptions, replicas: int = 1) -> batch_schedule.BatchSchedule:
        """Returns the schedule of one process, whose batches are shared by `replicas`. Reads no record but labels."""

    @abc.abstractmethod
    def make_plan(self, asked: options_lib.ReadOptions, replicas: int = 1) -> read_plan.ReadPlan:
        """Returns the plan of one process, whose batches are shared by `replicas`."""

    def as_tf(self, batch_size: int | None = None, *, input_context: Any = None, **options: Any) -> tf.data.Dataset:
        """Returns the batches of one process as a tf.data.Dataset; see `ImageDataset.as_tf`."""
        tf = start_tensorflow()
        replicas = 1
        if input_context is not None:
            replicas = input_context.num_replicas_in_sync // input_context.num_input_pipelines
            _check_process_is_left_out(options, "the input_context")
            options |= {
                "process_index": input_context.input_pipeline_id,
                "process_count": input_context.num_input_pipelines,
            }
        # Where a tf.function of the user calls this, AutoGraph would translate all that runs from here on: 4 s.
        return tf.autograph.experimental.do_not_convert(self._read)(self._options(batch_size, options), replicas)

    def as_numpy(self, batch_size: int, **options: Any) -> BatchIterator:
        """Returns an iterator over batches as NumPy arrays; see `ImageDataset.as_numpy`."""
        return self._iterate(batch_size, options)

    def as_jax(self, sharding: Any, batch_size: int, **options: Any) -> jax_iterator.JaxIterator:
        """Returns an iterator over batches as global jax.Arrays; see `ImageDataset.as_jax`."""
        _check_process_is_left_out(options, "the sharding in as_jax")
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
                "batch-size-indivisible",
                f"global_batch_size is {global_batch_size!r}, and the strategy has {replicas} replicas, which take "
                f"equal parts of it: give a multiple of {replicas}",
            )

        def make(context: Any) -> tf.data.Dataset:
            batch_size = context.get_per_replica_batch_size(asked.batch_size)
            return self.as_tf(batch_size, input_context=context, **options)

        return strategy.distribute_datasets_from_function(make)

    def state_at(self, step: int, batch_size: int, **options: Any) -> record_order.ReaderState:
        """Returns the state of a job after `step` batches; see `ImageDataset.state_at`."""
        asked = self._options(batch_size, options)
        if asked.batch_size is None or asked.next_epoch_each_iteration:
            raise errors.ConfigError(
                "options-conflict",
                "state_at counts batches: give batch_size, and leave next_epoch_each_iteration=True out, whose "
                "iterations begin with whole epochs: continue them with first_epoch",
            )
        planned = self.make_schedule(asked)
        done = options_lib.whole(0)("step", step)
        if planned.num_batches is not None and done > planned.num_batches:
            raise errors.ConfigError(
                "step-out-of-range",
                f"step is {done:,}, and num_epochs={asked.num_epochs} has {planned.num_batches:,} batches of a process",
            )
        return planned.state_after(done)

    def _options(self, batch_size: int | None, options: Mapping[str, Any]) -> options_lib.ReadOptions:
        return options_lib.ReadOptions.of(batch_size, {"dtype": self.stored_dtype, **options}, self.is_train)

    def _iterate(
        self, batch_size: int, options: Mapping[str, Any], check: Callable[..., None] = lambda plan, asked: None
    ) -> BatchIterator:
        """Returns an iterator over batches as NumPy arrays. `check` is called with each plan and its options."""

        def begin(state: record_order.ReaderState | None) -> Begun:
            start_tensorflow()
            asked = self._options(batch_size, {**options, "state": state})
            if asked.batch_size is None:
                raise errors.ConfigError(
                    "batch-size-missing", "batch_size is None; as_numpy makes batches: give a whole number from 1 on"
                )
            if asked.next_epoch_each_iteration:
                raise errors.ConfigError(
                    "options-conflict",
                    "next_epoch_each_iteration=True is for datasets, which can be iterated over again, and as_numpy "
                    "and as_jax give one iterator: leave it out, and give num_epochs",
                )
            plan = self.make_plan(asked)
            check(plan, asked)
            dataset = self._build(plan, asked, keep_empty=True)
            return NumpyIterator(dataset, dataset.imagebeam_reader.raised), plan.schedule

        return BatchIterator(begin, options.get("state"), bool(options.get("deterministic", True)))

    def _read(self, asked: options_lib.ReadOptions, replicas: int) -> tf.data.Dataset:
        return self._build(self.make_plan(asked, replicas), asked)

    def _build(
        self, plan: read_plan.ReadPlan, asked: options_lib.ReadOptions, keep_empty: bool = False
    ) -> tf.data.Dataset:
        """Returns the tf.data pipeline; `keep_empty` keeps batches whose examples were all skipped."""
        from imagebeam.reader import tf_pipeline

        return tf_pipeline.build(plan, asked, keep_empty)


def _check_process_is_left_out(options: Mapping[str, Any], origin: str) -> None:
    for name in ("process_index", "process_count"):
        if name in options:
            raise errors.ConfigError("options-conflict", f"{name} comes from {origin}: leave it out")
