"""Batches as global arrays on a JAX mesh."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from imagebeam import concurrency, errors
from imagebeam.reader import batch_stream, read_plan, record_order, resumable
from imagebeam.reader import options as options_lib

_INT32 = np.iinfo(np.int32)

Loaded: TypeAlias = tuple[dict[str, Any], record_order.ReaderState | None]  # a batch, and the state after it


class JaxIterator(resumable.Resumable, Iterator[dict[str, Any]]):
    """Global jax.Arrays: each process reads the rows that its devices hold, one batch ahead of the one in use.

    Strings, such as "image/key", for which JAX has no arrays, stay a NumPy array of this process's rows. JAX does not
    see them: the batch is then a dict whose leaves are the arrays alone. `state` returns the current place in the data,
    `restore` goes to such a place. `next` is thread-safe, as that of `feeds.BatchIterator`.
    """

    def __init__(self, batches: Any, sharding: Any, num_places: int):
        """Reads nothing yet.

        Args:
            batches: a `feeds.BatchIterator` over the rows of this process.
            sharding: a jax.sharding.Sharding over devices of all processes; its first axis is that of the examples.
                Further axes apply to the arrays that have them, so one sharding serves images and labels.
            num_places: number of different places of a process's rows in a batch of all processes together.
        """
        self._sharding = sharding
        self._num_places = num_places
        self._batches = batches
        self._state = _state_of(batches)
        self._begin()
        self._clock = batch_stream.StepClock()

    def _begin(self) -> None:
        # One thread, so that its tasks run in order.
        load = _loader(self._batches, self._sharding, self._num_places)
        self._tasks: concurrency.Tasks[int, Loaded] = concurrency.Tasks(lambda task: load(), 1, "imagebeam-as-jax")
        self._ahead: futures.Future[Loaded] | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()

    def __next__(self) -> dict[str, Any]:
        self._batches.check_process()
        with self._lock:
            with self._clock.waiting(), _import_jax().profiler.TraceAnnotation("imagebeam: wait for a batch"):
                ahead, self._ahead = self._ahead or self._tasks.ask(0), None  # after an error the next call asks again
                batch, self._state = ahead.result()
            self._ahead = self._tasks.ask(0)
        return batch

    @property
    def num_batches(self) -> int | None:
        """Number of batches, as `feeds.BatchIterator.num_batches`."""
        return self._batches.num_batches

    def state(self) -> record_order.ReaderState:
        """Returns where the next batch begins, as `BatchIterator.state`; the batch read ahead does not count.

        Raises:
            ConfigError: with deterministic=False.
        """
        return self._batches.state() if self._state is None else self._state

    def restore(self, state: record_order.ReaderState) -> None:
        """Goes on from `state`, as fast as a start: nothing before it is read."""
        if self._ahead is not None and self._process == os.getpid():
            futures.wait([self._ahead])  # of which nobody asks whether it failed
        self._batches.restore(state)
        self._begin()
        self._state = _state_of(self._batches)

    def metrics(self) -> Mapping[str, float | str]:
        """Returns what the trainer waited for, as `feeds.BatchIterator.metrics`."""
        return {**self._batches.metrics(), **self._clock.metrics()}


def _state_of(batches: Any) -> record_order.ReaderState | None:
    return batches.state() if batches.has_state else None


def _loader(batches: Any, sharding: Any, num_places: int) -> Callable[[], Loaded]:
    """Returns a function to the next batch and the state after it. It does not hold the iterator."""
    from imagebeam.reader import jax_batch

    def load() -> Loaded:
        with concurrency.running_calls:
            batch = next(batches)
            arrays = {name: _put(name, value, sharding, num_places) for name, value in batch.items()}
            return jax_batch.as_pytree(arrays), _state_of(batches)

    return load


def _put(name: str, value: np.ndarray, sharding: Any, num_places: int) -> Any:
    """Returns the global array of a value; the copy of this process's rows to its devices goes on meanwhile."""
    from imagebeam.reader import jax_batch

    jax = _import_jax()
    if jax_batch.holds_strings(value):
        return value
    if value.dtype == np.int64 and not jax.config.jax_enable_x64:  # JAX would keep the lower 32 bits
        outside = value[(value < _INT32.min) | (value > _INT32.max)]
        if len(outside):
            raise errors.ConfigError(
                "feature-beyond-int32",
                f"feature {name!r} holds {outside[0]}, beyond int32, and JAX has 64 bits switched off: "
                'call jax.config.update("jax_enable_x64", True), or leave the feature out',
            )
    of_rank = _of_rank(sharding, value.ndim)
    return jax.make_array_from_process_local_data(of_rank, value, (len(value) * num_places, *value.shape[1:]))


def check_plan(plan: read_plan.ReadPlan, asked: options_lib.ReadOptions) -> None:
    """Checks that a plan gives batches that JAX has arrays for.

    Raises:
        ConfigError: if it does not.
    """
    lists = [feature.key for feature in plan.extra if feature.is_list]
    if lists and asked.list_size is None:
        raise errors.ConfigError(
            "list-size-missing",
            f"{', '.join(lists)} has any number of values, and a jax.Array has rows of one length: give list_size, "
            "such as list_size=100, to fill lists up and cut them; KEY/count then says how many values there were",
        )
    if asked.supervised:
        raise errors.ConfigError("options-conflict", "as_jax gives batches by name: leave supervised=True out")
    if not asked.drop_remainder and not asked.pad and (asked.on_error == "skip" or asked.num_epochs is not None):
        raise errors.ConfigError(
            "options-conflict",
            "drop_remainder=False would end in a batch that cannot be cut into equal parts for the devices, and with "
            "on_error='skip' have more of them: give pad=True, which fills it up and marks what counts in a mask",
        )


class Rows(NamedTuple):
    """The rows of a batch that the devices of one process hold."""

    place: int  # place of these rows among those of all processes
    num_places: int  # number of different places; processes that hold the same rows share one
    num_parts: int  # number of equal parts that the sharding cuts a batch of all processes into


def rows_of_process(sharding: Any, asked: options_lib.ReadOptions) -> Rows:
    """Returns the rows that this process reads. `asked` has the size of a batch of all processes together.

    Processes that hold the same rows, as when a model is split over several processes, read the same examples.

    Raises:
        ConfigError: if JAX is not installed, or sharding, processes and batch size do not fit each other.
    """
    jax, batch_size = _import_jax(), asked.batch_size
    if batch_size is None:  # not of max_pixels, whose batches are multiples of the parts
        raise errors.ConfigError(
            "batch-size-missing", "batch_size is None; as_jax makes batches: give a whole number from 1 on"
        )
    if not isinstance(sharding, jax.sharding.Sharding):
        raise errors.ConfigError(
            "option-bad-value",
            f"sharding is {sharding!r}; give a jax.sharding.Sharding, such as "
            'NamedSharding(jax.make_mesh((jax.device_count(),), ("data",)), PartitionSpec("data"))',
        )
    num_rows = len(sharding.device_set)  # any number that all axes of the mesh divide
    parts: dict[int, set[int]] = {}  # first rows, by process
    for device, (rows,) in _of_rank(sharding, 1).devices_indices_map((num_rows,)).items():
        parts.setdefault(device.process_index, set()).add(rows.indices(num_rows)[0])
    if len(parts) < jax.process_count():
        raise errors.ConfigError(
            "sharding-unequal",
            f"the sharding has devices of {len(parts)} of {jax.process_count()} processes: lay it over all of "
            "jax.devices(); for devices of one process, call as_numpy(process_index=..., process_count=...)",
        )
    different = sorted({tuple(sorted(each)) for each in parts.values()})
    num_parts = len(set().union(*different))
    if any(len(each) * len(different) != num_parts for each in different):
        raise errors.ConfigError(
            "sharding-unequal",
            f"the sharding gives processes rows that overlap in part, or unequally many of them, {different} of "
            f"{num_rows}: lay the examples over whole processes",
        )
    count = len(different)
    if (asked.batch_multiple or num_parts) % num_parts:
        raise errors.ConfigError(
            "sharding-unequal",
            f"batch_multiple is {asked.batch_multiple}, and the sharding cuts a batch into {num_parts} equal parts: "
            f"give a multiple of {num_parts}",
        )
    if asked.max_pixels is None and batch_size % num_parts:
        raise errors.ConfigError(
            "sharding-unequal",
            f"batch_size is {batch_size}, of all processes together, and the sharding cuts it into {num_parts} "
            f"equal parts, {num_parts // count} for each of {count} processes: give a multiple of {num_parts}",
        )
    if count < jax.process_count() and not asked.deterministic:
        raise errors.ConfigError(
            "sharding-unequal",
            "the sharding gives several processes the same rows, which deterministic=False would read in different "
            "orders: leave it out",
        )
    return Rows(different.index(tuple(sorted(parts[jax.process_index()]))), count, num_parts)


def _of_rank(sharding: Any, rank: int) -> Any:
    """Returns `sharding` without the axes that an array of `rank` does not have."""
    jax = _import_jax()
    if not isinstance(sharding, jax.sharding.NamedSharding) or len(sharding.spec) <= rank:
        return sharding
    spec = jax.sharding.PartitionSpec(*sharding.spec[:rank])
    return jax.sharding.NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)


def _import_jax() -> Any:
    with errors.imports_for("as_jax"):
        import jax
    return jax
