"""Iterators over batches: with a state from which another one goes on, and with TensorFlow's arrays and errors."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from imagebeam import errors
from imagebeam.reader import reader_state, schedule

if TYPE_CHECKING:
    import tensorflow as tf

# The batches, those whose examples were all skipped included, and the schedule that they follow.
Begun: TypeAlias = tuple[Iterator[Any], schedule.Schedule]

_started_in: int | None = None  # process in which TensorFlow's threads read


def import_tensorflow() -> Any:
    """Imports TensorFlow.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        import tensorflow as tf
    except ModuleNotFoundError as e:
        raise errors.missing_package(e, "the reader") from e
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
            f"process {os.getpid()} was forked from process {started_in}, which reads with TensorFlow, and its threads "
            "do not exist in a forked process: start workers by spawn (multiprocessing.get_context('spawn'), "
            "DataLoader(..., multiprocessing_context='spawn')), or read in one process only"
        )


class BatchIterator(Iterator[Any]):
    """Batches as NumPy arrays. `state` returns the current place in the data, `restore` goes to such a place.

    Attributes:
        has_state: whether the batches come in the order of the schedule.
    """

    def __init__(
        self,
        begin: Callable[[reader_state.ReaderState | None], Begun],
        state: reader_state.ReaderState | None,
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
        self.started_in = os.getpid()
        self.restore(state)

    def __next__(self) -> Any:
        check_process(self.started_in)
        while True:
            batch = next(self._batches)
            self._num_batches += 1
            if len(batch[0] if isinstance(batch, tuple) else batch["image"]):  # else all examples were skipped
                return batch

    def state(self) -> reader_state.ReaderState:
        """Returns where the next batch begins: plain values, the same in every process of the job.

        Raises:
            ConfigError: with deterministic=False, which leaves open which examples have been read.
        """
        if not self.has_state:
            raise errors.ConfigError(
                "deterministic=False gives examples in the order in which they are decoded, so there is no state from "
                "which another reader could go on exactly: leave it out where you need state()"
            )
        return self._schedule.state_after(self._num_batches)

    def restore(self, state: reader_state.ReaderState | None) -> None:
        """Goes on from `state`, as fast as a start: nothing before it is read."""
        self._batches, self._schedule = self._begin(state)
        self._num_batches = 0  # since the schedule began


# TensorFlow's iterators by the number of the NumpyIterator that uses each, and those that nobody uses any more. To free
# one waits for its running calls, which take locks; and the garbage collector frees on any thread, which may hold one
# of these. So they are freed on a thread of their own.
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

    def __init__(self, dataset: tf.data.Dataset):
        self._tf = import_tensorflow()
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
            raise translate(e) from e.with_traceback(None)  # whose frames hold the iterator


def translate(error: Exception) -> Exception:
    """Returns the error of imagebeam that TensorFlow wrapped, or `error` itself if there is none in it."""
    for kind in (errors.ExampleError, errors.ShardError, errors.ConfigError):
        _, found, text = str(error).partition(f"{kind.__name__}: ")
        if found:
            return kind(text.splitlines()[0])
    return error


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
