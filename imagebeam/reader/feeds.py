"""The ways to read batches, the same for one dataset and for a mixture: tf.data, NumPy, JAX, tf.distribute."""

from __future__ import annotations

import abc
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from imagebeam import errors
from imagebeam.reader import (
    batch_schedule,
    batch_stream,
    bucket_reader,
    jax_iterator,
    option_values,
    read_plan,
    record_order,
    resumable,
)
from imagebeam.reader import options as options_lib

if TYPE_CHECKING:
    import tensorflow as tf

    from imagebeam.reader import grain_batches, torch_feeds

_started_in: int | None = None  # process in which TensorFlow's threads read


def import_tensorflow() -> Any:
    """Imports TensorFlow.

    Raises:
        ConfigError: if it is not installed.
    """
    with errors.imports_for("as_tf"):
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
            f"process {os.getpid()} was forked from process {started_in}, where this reader began, and its threads do "
            "not exist in a forked process: call as_numpy there, or restore(state), or start it by spawn "
            "(multiprocessing.get_context('spawn'), DataLoader(..., multiprocessing_context='spawn'))",
        )


class BatchIterator(resumable.Resumable, Iterator[Any]):
    """Batches as NumPy arrays. `state` returns the current place in the data, `restore` goes to such a place.

    `next` is thread-safe: several threads take each batch once.

    Attributes:
        has_state: whether the batches come in the order of the schedule.
    """

    def __init__(
        self,
        begin: Callable[[record_order.ReaderState | None], batch_stream.BatchStream],
        state: record_order.ReaderState | None,
        is_deterministic: bool,
    ):
        """Begins at `state`.

        Args:
            begin: returns the batches from a state on, those whose examples were all skipped included.
            state: where to begin; None for the first epoch.
            is_deterministic: whether the batches come in the order of the schedule.
        """
        self._begin = begin
        self.has_state = is_deterministic
        self.restore(state)

    def check_process(self) -> None:
        """Refuses to read on in a forked process, as `check_process`."""
        check_process(self._started_in)

    def __next__(self) -> Any:
        self.check_process()
        with self._lock:
            while True:
                batch = next(self._batches)
                self._num_batches += 1
                rows = batch[0] if isinstance(batch, tuple) else next(iter(batch.values()))
                if len(rows):  # else all examples were skipped
                    return batch

    @property
    def has_begun(self) -> bool:
        """Whether a batch was taken since the iterator began, or was restored."""
        return self._num_batches > 0

    @property
    def is_over(self) -> bool:
        """Whether the last batch was taken."""
        return self._num_batches == self.num_batches

    @property
    def num_batches(self) -> int | None:
        """Number of batches from where the iterator began, or was restored, to its end; None if it never ends.

        It makes fewer if examples are skipped and batches need not be full.
        """
        return self._batches.schedule.num_batches

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
        return self._batches.schedule.state_after(self._num_batches)

    def restore(self, state: record_order.ReaderState | None) -> None:
        """Goes on from `state`, as fast as a start: nothing before it is read."""
        self._batches = self._begin(state)
        self._lock = threading.Lock()  # a new one: after fork() a thread of the parent may hold the other forever
        self._started_in = os.getpid()
        self._num_batches = 0  # since the schedule began

    def metrics(self) -> Mapping[str, float | str]:
        """Returns what the trainer waited for since the iterator began, or was restored.

        Returns:
            "wait_seconds" that the trainer waited for batches, and "step_seconds" between two of them; "bound": "input"
            if it waited for more than a tenth of its steps, else "step"; "batches_ready" now; "examples", "bytes" and
            "skipped" that were read; "read_seconds", "parse_seconds", "decode_seconds" and "map_seconds" (in `map`
            and `batch_map`) of all threads together; "cache_hits", how often records were asked for of a shard that
            the cache had, and "cache_misses", of one that had to be downloaded, or read at its address.
        """
        return self._batches.metrics()


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

    @abc.abstractmethod
    def as_grain(self, *, decode: bool = True, features: Sequence[str] | None = None) -> Any:
        """Returns the examples as a random access source; see `ImageDataset.as_grain`."""

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
            if options.get("max_pixels") is not None:  # a batch of it is shared by replicas as by processes
                parts = {"process_index": 0, "process_count": replicas * input_context.num_input_pipelines}
                asked = self._options(batch_size, {**options, **parts})
                assert asked.max_pixels is not None
                options |= {"max_pixels": asked.max_pixels // replicas, "batch_multiple": asked.multiple // replicas}
        # Where a tf.function of the user calls this, AutoGraph would translate all that runs from here on: 4 s.
        return tf.autograph.experimental.do_not_convert(self._read)(self._options(batch_size, options), replicas)

    def as_numpy(self, batch_size: int | None, **options: Any) -> BatchIterator:
        """Returns an iterator over batches as NumPy arrays; see `ImageDataset.as_numpy`."""
        return self._iterate(batch_size, options)

    def as_jax(self, sharding: Any, batch_size: int | None, **options: Any) -> jax_iterator.JaxIterator:
        """Returns an iterator over batches as global jax.Arrays; see `ImageDataset.as_jax`."""
        _check_process_is_left_out(options, "the sharding in as_jax")
        asked = self._options(batch_size, {name: value for name, value in options.items() if name != "state"})
        rows = jax_iterator.rows_of_process(sharding, asked)
        options |= {"process_index": rows.place, "process_count": rows.num_places}
        if asked.max_pixels is not None:
            options["batch_multiple"] = asked.batch_multiple or rows.num_parts
        batch_size = None if batch_size is None else batch_size // rows.num_places
        batches = self._iterate(batch_size, options, jax_iterator.check_plan)
        return jax_iterator.JaxIterator(batches, sharding, rows.num_places)

    def as_distributed(
        self, strategy: tf.distribute.Strategy, global_batch_size: int | None, **options: Any
    ) -> tf.distribute.DistributedDataset:
        """Returns batches for a tf.distribute strategy; see `ImageDataset.as_distributed`."""
        asked = self._options(global_batch_size, {name: value for name, value in options.items() if name != "state"})
        replicas = strategy.num_replicas_in_sync
        if asked.max_pixels is None and (asked.batch_size is None or asked.batch_size % replicas):
            raise errors.ConfigError(
                "batch-size-indivisible",
                f"global_batch_size is {global_batch_size!r}, and the strategy has {replicas} replicas, which take "
                f"equal parts of it: give a multiple of {replicas}",
            )

        def make(context: Any) -> tf.data.Dataset:
            shared = asked.batch_size if asked.max_pixels is None else None
            batch_size = None if shared is None else context.get_per_replica_batch_size(shared)
            return self.as_tf(batch_size, input_context=context, **options)

        return strategy.distribute_datasets_from_function(make)

    def num_batches(self, batch_size: int | None, **options: Any) -> int:
        """Returns the number of batches that a process makes; see `ImageDataset.num_batches`."""
        asked = self._options(batch_size, {"num_epochs": 1, **options})
        found = self.make_schedule(asked).num_batches
        if found is None:
            raise errors.ConfigError(
                "options-conflict",
                f"batch_size is {asked.batch_size} and num_epochs {asked.num_epochs}, so there is no number of "
                "batches: give whole numbers; num_epochs=1 for the batches of one epoch",
            )
        return found

    def state_at(self, step: int, batch_size: int | None, **options: Any) -> record_order.ReaderState:
        """Returns the state of a job after `step` batches; see `ImageDataset.state_at`."""
        asked = self._options(batch_size, options)
        if asked.batch_size is None or asked.next_epoch_each_iteration:
            raise errors.ConfigError(
                "options-conflict",
                "state_at counts batches: give batch_size, and leave next_epoch_each_iteration=True out, whose "
                "iterations begin with whole epochs: continue them with first_epoch",
            )
        planned = self.make_schedule(asked)
        done = option_values.whole(0)("step", step)
        if planned.num_batches is not None and done > planned.num_batches:
            raise errors.ConfigError(
                "step-out-of-range",
                f"step is {done:,}, and num_epochs={asked.num_epochs} has {planned.num_batches:,} batches of a process",
            )
        return planned.state_after(done)

    def _options(self, batch_size: int | None, options: Mapping[str, Any]) -> options_lib.ReadOptions:
        return options_lib.ReadOptions.of(batch_size, {"dtype": self.stored_dtype, **options}, self.is_train)

    def _iterate(
        self, batch_size: int | None, options: Mapping[str, Any], check: Callable[..., None] = lambda plan, asked: None
    ) -> BatchIterator:
        """Returns an iterator over batches as NumPy arrays. `check` is called with each plan and its options."""

        def begin(state: record_order.ReaderState | None) -> batch_stream.BatchStream:
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
            return batch_stream.BatchStream(bucket_reader.make_reader(plan, asked), asked, plan.fetcher.is_local)

        return BatchIterator(begin, options.get("state"), bool(options.get("deterministic", True)))

    def _read(self, asked: options_lib.ReadOptions, replicas: int) -> tf.data.Dataset:
        from imagebeam.reader import tf_pipeline

        return tf_pipeline.build(self.make_plan(asked, replicas), asked)

    def as_torch(
        self,
        batch_size: int | None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        layout: str = "NCHW",
        pin_memory: bool = False,
        device: Any = None,
        **options: Any,
    ) -> torch_feeds.TorchBatches:
        """Returns batches as tensors of PyTorch; see `ImageDataset.as_torch`."""
        with errors.imports_for("as_torch"):
            from imagebeam.reader import torch_feeds
        _check_process_is_left_out(options, "rank and world_size of as_torch")
        process = torch_feeds.rank_and_world_size(rank, world_size)
        named = {name: str(value).removeprefix("torch.") for name, value in options.items() if name == "dtype"}
        options = {"num_epochs": 1, **options, **named, **process}
        return torch_feeds.TorchBatches(self, self._options(batch_size, options), options, layout, pin_memory, device)

    def as_torch_map(
        self, *, transform: Callable[[dict[str, Any]], Any] | None = None, layout: str = "NCHW", **options: Any
    ) -> torch_feeds.TorchExamples:
        """Returns the examples by index, as tensors; see `ImageDataset.as_torch_map`."""
        with errors.imports_for("as_torch_map"):
            from imagebeam.reader import torch_feeds
        return torch_feeds.TorchExamples(self.as_grain(**options), layout, transform)

    def as_grain_batches(self, batch_size: int | None, **options: Any) -> grain_batches.GrainBatches:
        """Returns batches as a dataset of Grain; see `ImageDataset.as_grain_batches`."""
        with errors.imports_for("as_grain_batches"):
            from imagebeam.reader import grain_batches
        return grain_batches.GrainBatches(lambda: self.as_numpy(batch_size, **options))


def _check_process_is_left_out(options: Mapping[str, Any], origin: str) -> None:
    for name in ("process_index", "process_count"):
        if name in options:
            raise errors.ConfigError("options-conflict", f"{name} comes from {origin}: leave it out")
