"""Processes that call the user's `map`, which get and return pixels in shared memory."""

from __future__ import annotations

import contextlib
import math
import mmap
import multiprocessing
import os
import pickle
import queue
import shutil
import tempfile
import traceback
import weakref
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import Any

import numpy as np

from imagebeam import errors
from imagebeam.reader import map_call

_ALIGNMENT = 64  # bytes
# Where files stay in memory. multiprocessing.shared_memory would do the same, and complains of arrays in it at exit.
_FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()


class MapWorkers:
    """Processes that call a function on examples. Thread-safe.

    They start when they are first needed, by spawn: the threads of this process do not survive a fork. They end with
    this object, and with the program, however it ends.
    """

    def __init__(
        self, function: map_call.Function, before: map_call.Specs, after: map_call.Specs, count: int, rows: int
    ):
        """Starts no process yet.

        Args:
            function: to call; importable, or picklable.
            before: specs of its examples.
            after: specs of its results.
            count: number of processes.
            rows: most examples in a call.

        Raises:
            ConfigError: if the function cannot be sent to another process, or there is too little shared memory.
        """
        try:
            self._pickled = pickle.dumps(function)
        except Exception as e:  # pickle raises any
            raise _not_picklable(e) from e
        num_bytes = count * _arrays_in(None, before, after, rows)[2]
        # Memory that cannot be had ends the process when it is written, with SIGBUS.
        if num_bytes > shutil.disk_usage(_FOLDER).free:
            raise errors.ConfigError(
                "map-workers-no-memory",
                f"{count} processes of map_workers need {num_bytes:,} bytes of shared memory, and {_FOLDER} has less: "
                "give fewer, or more memory (docker run --shm-size)",
            )
        self._specs, self._rows = (dict(before), dict(after)), rows
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        for _ in range(count):
            self._idle.put(None)  # its process is started by the thread that needs it
        self._started: list[_Worker] = []  # also those that died: to end one twice does nothing
        weakref.finalize(self, _end, self._started)

    def call(self, examples: Sequence[Mapping[str, Any]], seeds: np.ndarray) -> Iterator[map_call.Arrays | Exception]:
        """Yields what the function makes of each example, or why it failed. Arrays are valid until the next step.

        Raises:
            ConfigError: if the process cannot load the function.
            ExampleError: if the process dies.
        """
        worker = self._idle.get()
        try:
            if worker is None:
                worker = _Worker(self._pickled, *self._specs, self._rows)
                self._started.append(worker)  # before it is asked for anything: the program may end
            yield from worker.call(examples, seeds)
        except (ConnectionError, EOFError) as e:
            assert worker is not None
            code, worker = worker.end(), None
            raise errors.ExampleError(
                "map-worker-died",
                f"a process of map_workers ended with exit code {code} while it called map: it may have run out of "
                "memory, or the program lacks `if __name__ == '__main__':`, which processes that are spawned need",
            ) from e
        finally:
            self._idle.put(worker)


class _Worker:
    """A process, and the memory that it shares with this one."""

    def __init__(self, pickled: bytes, before: map_call.Specs, after: map_call.Specs, rows: int):
        spawning = multiprocessing.get_context("spawn")
        self._pipe, other = spawning.Pipe()
        descriptor, self._path = tempfile.mkstemp(prefix="imagebeam-map-", dir=_FOLDER)
        os.truncate(descriptor, max(1, _arrays_in(None, before, after, rows)[2]))
        os.close(descriptor)
        self._given, self._made, _ = _arrays_in(_map(self._path), before, after, rows)
        arguments = (other, self._path, pickled, before, after, rows)
        self._process = spawning.Process(target=_serve, args=arguments, name="imagebeam-map", daemon=True)
        self._process.start()
        other.close()
        self._is_new = True

    def call(self, examples: Sequence[Mapping[str, Any]], seeds: np.ndarray) -> Iterator[map_call.Arrays | Exception]:
        """Yields the results, as `MapWorkers.call`."""
        if self._is_new and (failure := self._pipe.recv()) is not None:
            raise _not_picklable(failure)
        self._is_new = False
        others = []
        for row, example in enumerate(examples):
            for name, array in self._given.items():
                array[row] = example[name]
            others.append({name: value for name, value in example.items() if name not in self._given})
        self._pipe.send((others, seeds))
        for row, (made, failure) in enumerate(self._pipe.recv()):
            if failure is None:
                yield {**{name: array[row, ...] for name, array in self._made.items()}, **made}
            else:
                text, trace = failure
                error = map_call.ResultError(text)
                error.__cause__ = RuntimeError(f"in a process of map_workers:\n{trace}")
                yield error

    def end(self) -> int | None:
        """Ends the process; returns its exit code."""
        self._pipe.close()
        self._process.terminate()
        self._process.join()
        with contextlib.suppress(FileNotFoundError):  # the process removes it as soon as it has it
            os.unlink(self._path)
        return self._process.exitcode


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.end()


def _serve(
    pipe: connection.Connection,
    path: str,
    pickled: bytes,
    before: map_call.Specs,
    after: map_call.Specs,
    rows: int,
) -> None:
    """Calls the function on examples until the other process is gone."""
    memory = _map(path)
    os.unlink(path)
    try:
        function = pickle.loads(pickled)
    except Exception as e:
        pipe.send(f"{type(e).__name__}: {e}")
        return
    given, made, _ = _arrays_in(memory, before, after, rows)
    pipe.send(None)

    def call(row: int, others: Mapping[str, Any], seed: np.uint64) -> tuple[map_call.Arrays, Any]:
        example = {key: given[key][row] if key in given else others[key] for key in before}
        try:
            result = map_call.call(function, example, seed, after)
        except Exception as e:
            return {}, (map_call.describe(e), traceback.format_exc())
        for key, array in made.items():
            array[row] = result.pop(key)
        return result, None

    with contextlib.suppress(EOFError, ConnectionError, KeyboardInterrupt):
        while True:
            examples, seeds = pipe.recv()
            pipe.send([call(row, others, seed) for row, (others, seed) in enumerate(zip(examples, seeds))])


def _map(path: str) -> mmap.mmap:
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def _arrays_in(
    memory: Any, before: map_call.Specs, after: map_call.Specs, rows: int
) -> tuple[map_call.Arrays, map_call.Arrays, int]:
    """Returns the columns of examples and of results that are in shared memory, and the bytes that they take."""
    found: list[map_call.Arrays] = [{}, {}]
    size = 0
    for columns, specs in zip(found, (before, after), strict=True):
        for name, spec in specs.items():
            if spec.dtype == object or spec.is_ragged:
                continue  # goes through the pipe
            num_bytes = rows * math.prod(each or 0 for each in spec.shape) * spec.dtype.itemsize
            if memory is not None:
                values = np.frombuffer(memory, np.uint8, num_bytes, size).view(spec.dtype)
                columns[name] = values.reshape(rows, *(each or 0 for each in spec.shape))
            size += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
    return found[0], found[1], size


def _not_picklable(reason: object) -> errors.ConfigError:
    return errors.ConfigError(
        "map-not-picklable",
        f"map cannot be sent to the processes of map_workers ({reason}): define it at the top of a module, "
        "or leave map_workers out",
    )
