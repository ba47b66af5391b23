"""Calls that wait for a network, on a bounded number of threads; those that a reader waits for go first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from concurrent import futures
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Result = TypeVar("_Result")


class Task(Generic[_Key, _Result]):
    """One call. Hashed by identity."""

    def __init__(self, key: _Key):
        self.key = key
        self.is_asked = False  # whether a reader waits for it
        self.is_begun = False
        self.done: futures.Future[_Result] = futures.Future()


class Tasks(Generic[_Key, _Result]):
    """Runs one call for each key at a time, on threads that end when no call is left. Thread-safe.

    The threads are daemons: the end of the program waits for no network. They do not survive a fork: the owner makes
    new Tasks then.
    """

    def __init__(self, run: Callable[[Task[_Key, _Result]], _Result], num_threads: int, name: str):
        self._run = run
        self._num_threads = num_threads
        self._name = name
        self._lock = threading.Lock()
        self._tasks: dict[_Key, Task[_Key, _Result]] = {}  # waiting or running
        self._waiting: dict[Task[_Key, _Result], None] = {}  # in the order of the requests
        self._asked: dict[Task[_Key, _Result], None] = {}
        self._num_started = 0

    def ask(self, key: _Key) -> futures.Future[_Result]:
        """Returns the result of a key's call, which goes before all announced ones."""
        with self._lock:
            task = self._tasks.setdefault(key, Task(key))
            if not task.is_asked:
                task.is_asked = True
                self._waiting.pop(task, None)
                if not task.is_begun:
                    self._asked[task] = None
            self._start_threads()
            return task.done

    def announce(self, keys: Iterable[_Key]) -> None:
        """Begins calls whose results nobody waits for yet."""
        with self._lock:
            for key in keys:
                if key not in self._tasks:
                    task = self._tasks[key] = Task(key)
                    self._waiting[task] = None
            self._start_threads()

    def forget_announced(self) -> None:
        """Drops the calls that nobody waits for and that have not begun."""
        with self._lock:
            for task in self._waiting:
                del self._tasks[task.key]
            self._waiting = {}

    def _start_threads(self) -> None:
        for _ in range(min(len(self._asked) + len(self._waiting), self._num_threads - self._num_started)):
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._num_started += 1

    def _work(self) -> None:
        while (task := self._take()) is not None:
            try:
                result = self._run(task)
            except BaseException as e:  # a reader may wait for the result: every error must reach it
                self._end(task)
                task.done.set_exception(e)
            else:
                self._end(task)
                task.done.set_result(result)

    def _take(self) -> Task[_Key, _Result] | None:
        with self._lock:
            task = next(iter(self._asked or self._waiting), None)
            if task is None:
                self._num_started -= 1
                return None
            self._asked.pop(task, None)
            self._waiting.pop(task, None)
            task.is_begun = True
            return task

    def _end(self, task: Task[_Key, _Result]) -> None:
        with self._lock:
            del self._tasks[task.key]
