"""Runs a function on several values at once: yields the results in order, or only waits for all calls."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Final, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")
_END: Final = object()


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

    Raises:
        ValueError: if `num_ahead` is less than 1.
    """
    if num_ahead < 1:
        raise ValueError(f"num_ahead is {num_ahead}; it must be at least 1")
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

    Raises:
        ValueError: if `num_at_once` is less than 1.
    """
    if num_at_once < 1:
        raise ValueError(f"num_at_once is {num_at_once}; it must be at least 1")
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
