"""Threads, forks, cores, and signals that ask this process to stop."""

from __future__ import annotations

import atexit
import collections
import os
import queue
import signal
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent import futures
from typing import Any, Final, Generic, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")
_K = TypeVar("_K", bound=Hashable)
_END: Final = object()
_CGROUP_ROOT = "/sys/fs/cgroup"
_CHECK_SEC, _QUIET_CHECKS, _MAX_WAIT_SEC = 0.005, 6, 5.0  # the wait at exit for calls

# Signals that asked this process to stop, since the command began. Handlers append them here, and the steps that take
# long, or that cannot be undone, call `raise_if_stopped`. A KeyboardInterrupt of the handler is not enough: where the
# signal arrives in a `__del__`, a weak reference's callback or an extension in C, Python prints it and goes on.
stop_signals: list[signal.Signals] = []


def raise_if_stopped() -> None:
    """Raises KeyboardInterrupt if a signal asked this process to stop. Callable in any thread."""
    if stop_signals:
        raise KeyboardInterrupt


def map_ahead(function: Callable[[_T], _R], values: Iterable[_T], num_ahead: int) -> Iterator[_R]:
    """Yields `function(value)` for each value, in order, with up to `num_ahead` calls started ahead of the reader.

    The calls run on threads. `num_ahead=1` starts no thread: each call runs when its result is asked for, which is the
    fastest way for anything that waits for no network.

    An error, of a call or of `values`, is raised after the results of all values before it. When the iterator ends, is
    closed or raises, the calls that have not begun are cancelled, those under way are waited for, and no thread stays.

    Args:
        function: is called on one value; must be thread-safe if `num_ahead` is more than 1.
        values: are taken by the thread that iterates, at most `num_ahead` beyond the results yielded so far.
        num_ahead: at least 1.
    """
    return map(function, values) if num_ahead == 1 else _map_on_threads(function, values, num_ahead)


def _map_on_threads(function: Callable[[_T], _R], values: Iterable[_T], num_ahead: int) -> Iterator[_R]:
    ahead: collections.deque[futures.Future[_R]] = collections.deque()
    with futures.ThreadPoolExecutor(num_ahead, "imagebeam-ahead") as threads:
        try:
            for future in _submit_all(threads, function, values):
                ahead.append(future)
                if len(ahead) == num_ahead:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def _submit_all(
    threads: futures.Executor, function: Callable[[_T], _R], values: Iterable[_T]
) -> Iterator[futures.Future[_R]]:
    """Yields the future of each value. An error of `values` becomes the last future, to be raised at its place."""
    try:
        for value in values:
            yield threads.submit(function, value)
    except Exception as e:
        failed: futures.Future[_R] = futures.Future()
        failed.set_exception(e)
        yield failed


def call_each(function: Callable[[_T], object], values: Iterable[_T], num_at_once: int) -> None:
    """Calls `function` on each value, on up to `num_at_once` threads, and returns when all calls have ended.

    A slow call holds up no other. So the calls run in any order; with `num_at_once=1` no thread is started, and they
    run in the order of the values.

    After the first error, of a call or of `values`, no call begins. It is raised when the calls under way have ended.

    Args:
        function: must be thread-safe if `num_at_once` is more than 1.
        values: are taken one by one, by the threads that make the calls.
        num_at_once: at least 1.
    """
    if num_at_once == 1:
        for value in values:
            function(value)
        return
    waiting, taking, is_over = iter(values), threading.Lock(), threading.Event()

    def work() -> None:
        try:
            while not is_over.is_set():
                with taking:
                    value = next(waiting, _END)
                if value is _END:
                    return
                function(value)  # type: ignore[arg-type]  # not _END
        except BaseException:
            is_over.set()
            raise

    with futures.ThreadPoolExecutor(num_at_once, "imagebeam-each") as threads:
        try:
            for working in [threads.submit(work) for _ in range(num_at_once)]:
                working.result()
        finally:
            is_over.set()


class TooSlowError(Exception):
    """A call took longer than it may."""


class _Partner:
    """A thread that makes calls for another one, which can give it up."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self.results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        queues = self.calls, self.results  # not self, so that the thread ends when nobody needs it
        threading.Thread(target=_serve, args=queues, name="imagebeam-limited", daemon=True).start()

    def __del__(self) -> None:
        self.calls.put(None)


def _serve(
    calls: queue.SimpleQueue[Callable[[], Any] | None], results: queue.SimpleQueue[tuple[Any, BaseException | None]]
) -> None:
    while (function := calls.get()) is not None:
        try:
            results.put((function(), None))
        except BaseException as e:  # who waits gets every error
            results.put((None, e))


_partners = threading.local()  # `idle`: the partner of a thread


def call_in_time(function: Callable[[], _R], max_seconds: float | None) -> _R:
    """Returns `function()`, called on a thread that makes all such calls of the calling thread. Adds 12 us.

    Args:
        function: to call.
        max_seconds: time that it may take; None for no limit.

    Raises:
        TooSlowError: if it takes longer. Nothing ends it: its thread is left behind, and the next call has another one.
    """
    begin = time.monotonic()
    partner: _Partner = _partners.__dict__.pop("idle", None) or _Partner()
    partner.calls.put(function)
    try:
        result, error = partner.results.get(timeout=max_seconds)
    except queue.Empty:
        partner.calls.put(None)
        raise TooSlowError(f"takes longer than {max_seconds:g} s") from None
    _partners.idle = partner
    # A call that had ended when the queue was first looked at waited for nothing, but may have taken too long.
    if max_seconds is not None and time.monotonic() - begin > max_seconds:
        raise TooSlowError(f"takes longer than {max_seconds:g} s")
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]


def available_cores() -> int:
    """Returns the number of cores for this process, at least 1.

    The kernel's affinity mask counts the cores of the whole machine even in a container that may use only a few of
    them: a pod with a limit of 4 CPUs on a machine of 96 sees 96. So the CPU quota of the cgroup, rounded up to whole
    cores, limits the number too.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cores()
    return cores if quota is None else min(cores, max(1, quota))


def cgroup_cores(root: str = _CGROUP_ROOT) -> int | None:
    """Returns the CPU quota of the container in cores, rounded up; None if there is no quota.

    Reads the files of cgroup v2 (`cpu.max`), and where they do not exist those of v1 (`cpu/cpu.cfs_quota_us`). Both
    hold microseconds of CPU time per period; "max" and -1 mean no limit.

    Args:
        root: folder where the cgroups are mounted.
    """
    values = _read_words(f"{root}/cpu.max")
    if not values:
        values = _read_words(f"{root}/cpu/cpu.cfs_quota_us") + _read_words(f"{root}/cpu/cpu.cfs_period_us")
    try:
        quota, period = (int(value) for value in values)
    except ValueError:  # "max", or a file is missing
        return None
    return -(-quota // period) if quota > 0 and period > 0 else None


def _read_words(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().split()
    except (OSError, ValueError):
        return []


class Task(Generic[_K, _R]):
    """One call. Hashed by identity."""

    def __init__(self, key: _K):
        self.key = key
        self.is_asked = False  # whether a reader waits for it
        self.done: futures.Future[_R] = futures.Future()


class Tasks(Generic[_K, _R]):
    """Runs one call for each key at a time, on threads that end when no call is left. Thread-safe.

    The calls wait for a network, or make batches. Those that a reader waits for go first. The threads are daemons, so
    the end of the program waits only for calls in `running_calls`. They do not survive a fork: the owner makes new
    Tasks then.
    """

    def __init__(self, run: Callable[[Task[_K, _R]], _R], num_threads: int, name: str):
        self._run = run
        self._num_threads = num_threads
        self._name = name
        self._lock = threading.Lock()
        self._tasks: dict[_K, Task[_K, _R]] = {}  # waiting or running
        self._waiting: dict[Task[_K, _R], None] = {}  # in the order of the requests
        self._num_started = 0

    def ask(self, key: _K) -> futures.Future[_R]:
        """Returns the result of a key's call, which goes before all announced ones."""
        with self._lock:
            task = self._add(key)
            task.is_asked = True
            self._start_threads()
            return task.done

    def announce(self, keys: Iterable[_K]) -> None:
        """Begins calls whose results nobody waits for yet."""
        with self._lock:
            for key in keys:
                self._add(key)
            self._start_threads()

    def forget_announced(self) -> None:
        """Drops the calls that nobody waits for and that have not begun."""
        with self._lock:
            for task in [each for each in self._waiting if not each.is_asked]:
                del self._waiting[task], self._tasks[task.key]

    def _add(self, key: _K) -> Task[_K, _R]:
        if key not in self._tasks:
            self._tasks[key] = Task(key)
            self._waiting[self._tasks[key]] = None
        return self._tasks[key]

    def _start_threads(self) -> None:
        for _ in range(min(len(self._waiting), self._num_threads - self._num_started)):
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

    def _take(self) -> Task[_K, _R] | None:
        with self._lock:
            task = next((each for each in self._waiting if each.is_asked), next(iter(self._waiting), None))
            if task is None:
                self._num_started -= 1
            else:
                del self._waiting[task]
            return task

    def _end(self, task: Task[_K, _R]) -> None:
        with self._lock:
            del self._tasks[task.key]


class RebuiltAfterFork:
    """Base for state that must be rebuilt after fork(): threads do not survive it, and locks may be held.

    Connections are rebuilt too: two processes must not share one.
    """

    def __init__(self) -> None:
        self.rebuild()
        _instances.add(self)

    def rebuild(self) -> None:
        """Sets all such state to its beginning. Called by the constructor, and in the child after a fork."""
        raise NotImplementedError


_instances: weakref.WeakSet[RebuiltAfterFork] = weakref.WeakSet()


def _rebuild_all() -> None:
    for each in list(_instances):
        each.rebuild()


os.register_at_fork(after_in_child=_rebuild_all)


class RunningCalls(RebuiltAfterFork):
    """Counts the calls of Python on threads that do not end before the program, and waits for them at exit.

    A thread that runs Python code while the interpreter shuts down dies there: the interpreter may then wait forever
    for TensorFlow, which waits for the thread, or end by SIGABRT where a library in C++ was on its stack. Use it as a
    context manager in each call, which gives up at once if `is_closed`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False  # the interpreter is shutting down
        atexit.register(self._end)

    def rebuild(self) -> None:
        self._lock = threading.Lock()
        self._begun = self._ended = 0

    def __enter__(self) -> None:
        with self._lock:
            self._begun += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended += 1

    def _end(self) -> None:
        self.is_closed = True
        seen, quiet, deadline = -1, 0, time.monotonic() + _MAX_WAIT_SEC
        while quiet < _QUIET_CHECKS and time.monotonic() < deadline:
            time.sleep(_CHECK_SEC)
            quiet = quiet + 1 if seen == self._begun == self._ended else 0
            seen = self._begun


running_calls = RunningCalls()
