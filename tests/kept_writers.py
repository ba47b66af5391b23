"""Writer processes that outlive their job, so that the next job of the same tests need not start its own."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from imagebeam.transforms.shard import writer_processes

_NUM_IDLE = 4  # kept at a time: some 50 MB each
_GRACE_SEC = 0.5  # for the task of a job that ends early, mostly a listing that takes less time than a start
_WITHOUT_SYNC = "import os; os.fsync = lambda file: None"

_Key = tuple[object, ...]
_Process = writer_processes._Process


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Makes jobs of the main thread take the writer processes of earlier jobs that were idle when their job ended.

    To start one takes 0.12 s of processor time, and up to a second more when it imports pyarrow or the client of a
    storage: as much as the rest of a small conversion. Only jobs in this process are quicker, not commands. The
    processes that are kept do not wait for the disk. `fresh` is for tests of writer processes themselves.
    """
    pool = _Pool()
    with pytest.MonkeyPatch.context() as patch, contextlib.closing(pool):
        patch.setattr(writer_processes, "_Process", pool.lend)
        yield


@contextlib.contextmanager
def fresh() -> Iterator[None]:
    """Makes each job start its own writer processes, as users' jobs do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_processes, "_Process", _Process)
        yield


class _Pool:
    """Idle writer processes, the one that was used last at the end."""

    def __init__(self) -> None:
        self._idle: list[tuple[_Key, Any]] = []

    def lend(self, forks: bool = False) -> Any:
        """Returns an idle process that started as one would start now, or starts one, which is no copy of this one."""
        if threading.current_thread() is not threading.main_thread():
            return _Process()  # Linux kills it when the thread that started it ends
        key = _key()
        for index, (other, process) in enumerate(self._idle):
            if other == key and process._popen.poll() is None:
                del self._idle[index]
                return _Lent(process, key, self)
        process = _Process()
        process.call(exec, _WITHOUT_SYNC)
        return _Lent(process, key, self)

    def take_back(self, key: _Key, process: Any) -> None:
        self._idle.append((key, process))
        if len(self._idle) > _NUM_IDLE:
            self._end(self._idle.pop(0)[1])

    def close(self) -> None:
        while self._idle:
            self._end(self._idle.pop()[1])

    @staticmethod
    def _end(process: Any) -> None:
        process.kill()
        process.close()


class _Lent:
    """A writer process for one job, with the methods of `writer_processes._Process`."""

    def __init__(self, process: Any, key: _Key, pool: _Pool):
        self._process, self._key, self._pool = process, key, pool
        self._lock = threading.Lock()
        self._is_busy = self._is_over = False
        self._answered = threading.Event()

    @property
    def images(self) -> int:
        return int(self._process.images)

    def call(self, function: Callable[[Any], Any], argument: Any, *further: Any) -> Any:
        with self._lock:
            if self._is_over:
                raise writer_processes.WriterError("the job has ended")
            self._is_busy = True
            self._answered.clear()
        try:
            answer = self._process.call(function, argument, *further)
            self._is_busy = False  # stays if the call raised: the process is not kept
        finally:
            self._answered.set()
        return answer

    def kill(self) -> None:
        with self._lock:
            self._is_over = True
        if self._is_busy:
            self._answered.wait(_GRACE_SEC)
        if self._is_busy:
            self._process.kill()

    def close(self) -> None:
        if self._is_busy or self._process._popen.poll() is not None:
            self._pool._end(self._process)
        else:
            self._pool.take_back(self._key, self._process)


def _key() -> _Key:
    """Returns what a process has from its start: path, folder, environment, and where its standard error goes."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    stderr = os.fstat(2)
    return tuple(sys.path), os.getcwd(), frozenset(environment.items()), stderr.st_dev, stderr.st_ino
