"""Batches made ahead of the trainer on threads, in their order, with a bound on how many are ready."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any

from imagebeam import concurrency
from imagebeam.reader import batch_reader, batch_schedule, bucket_reader
from imagebeam.reader import options as options_lib

# Batches that are read at once: one reads while the other decodes; eight hide the latency of a network. A call reads
# its records one after the other, so many cores need more calls than two: docs/reader-speed.md has a simulation.
_LOCAL_CALLS, _REMOTE_CALLS = 2, 8
_THREADS_FOR_A_CALL = 8


def num_calls(is_local: bool, threads: int) -> int:
    """Returns the number of batches that are read and decoded at once: 2 for up to 23 threads, at most 8."""
    return min(max(threads // _THREADS_FOR_A_CALL, _LOCAL_CALLS), _REMOTE_CALLS) if is_local else _REMOTE_CALLS


class StepClock:
    """How long a trainer waits for batches, and how long its own steps take."""

    def __init__(self) -> None:
        self._waited = self._worked = 0.0  # seconds
        self._answered: float | None = None

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the block, which gets a batch, as waiting, and the time since the last one as a step."""
        asked = time.perf_counter()
        yield
        if self._answered is not None:
            self._worked += asked - self._answered
        self._answered = time.perf_counter()
        self._waited += self._answered - asked

    def metrics(self) -> Mapping[str, float | str]:
        """Returns seconds of both, and which bounds the training."""
        bound = "input" if self._waited > self._worked / 10 else "step"
        return {"wait_seconds": self._waited, "step_seconds": self._worked, "bound": bound}


class BatchStream(Iterator[Any]):
    """The batches of a schedule. Not thread-safe: `feeds.BatchIterator` takes one at a time.

    The threads are daemons: the end of the program waits for batches that are being made, but not long for a storage.
    They end when enough batches are ready, and with the iterator.

    Attributes:
        schedule: the schedule.
    """

    def __init__(self, reader: bucket_reader.AnyReader, options: options_lib.ReadOptions, is_local: bool):
        """Reads nothing yet.

        Args:
            reader: makes the batches; the options have a batch size.
            options: options of the reader.
            is_local: whether no read waits for a network.
        """
        self.schedule = reader.schedule
        self._in_order = options.deterministic
        self._reader = reader
        at_once = num_calls(is_local, batch_reader.num_threads(options))
        self._depth = at_once + options.prefetch
        self._is_closed = threading.Event()
        weakref.finalize(self, self._is_closed.set).atexit = False
        make = _maker(reader, self.schedule, options.batch_size or 1, self._is_closed)
        self._tasks: concurrency.Tasks[int, Any] = concurrency.Tasks(
            lambda task: make(task.key), at_once, "imagebeam-batch"
        )
        self._ahead: collections.deque[tuple[int, futures.Future[Any]]] = collections.deque()
        self._next = 0  # number of the batch that is asked for next
        self._clock = StepClock()

    def __next__(self) -> Any:
        with self._clock.waiting():
            return self._take()

    def _take(self) -> Any:
        while len(self._ahead) < self._depth and self._next != self.schedule.num_batches:
            self._ahead.append((self._next, self._tasks.ask(self._next)))
            self._next += 1
        if not self._ahead:
            raise StopIteration
        if not self._in_order:
            futures.wait([each for _, each in self._ahead], return_when=futures.FIRST_COMPLETED)
            done = next(index for index, (_, each) in enumerate(self._ahead) if each.done())
            self._ahead.rotate(-done)
        number, future = self._ahead[0]
        try:
            batch = future.result()
        except Exception:
            self._ahead[0] = number, self._tasks.ask(number)  # once more, for the next call: no batch is left out
            raise
        self._ahead.popleft()
        return batch

    def metrics(self) -> Mapping[str, float | str]:
        """Returns what was waited for and how long, and what was read: see `BatchIterator.metrics`."""
        ready = sum(each.done() for _, each in self._ahead)
        return {**self._clock.metrics(), "batches_ready": ready, **self._reader.metrics()}


def _maker(
    reader: bucket_reader.AnyReader,
    schedule: batch_schedule.BatchSchedule,
    size: int,
    is_closed: threading.Event,
) -> Callable[[int], Any]:
    """Returns a function from the number of a batch to it. It does not hold the iterator, which may end before it."""

    def make(number: int) -> Any:
        with concurrency.running_calls:
            if is_closed.is_set() or concurrency.running_calls.is_closed:
                return None
            return reader.read_batch(*schedule.positions_of(number, size))

    return make
