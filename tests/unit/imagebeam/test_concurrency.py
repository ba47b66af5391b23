from __future__ import annotations

import contextlib
import multiprocessing
import os
import pathlib
import queue
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam import concurrency
from tests import patience, written_files

counts = st.integers(1, 5)


class Failed(Exception):
    """The number of the call or the value that fails."""


def threads_of_ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(("imagebeam-ahead", "imagebeam-each"))]


class Calls:
    """Counts calls that are under way, and fails some of them."""

    def __init__(self, failing: frozenset[int] = frozenset()) -> None:
        self.failing = failing
        self.lock = threading.Lock()
        self.running = self.highest = self.begun = 0

    def double(self, value: int) -> int:
        with self.lock:
            self.begun += 1
            self.running += 1
            self.highest = max(self.highest, self.running)
        try:
            if value in self.failing:
                raise Failed(value)
            return 2 * value
        finally:
            with self.lock:
                self.running -= 1


@settings(deadline=None)
@given(length=st.integers(0, 12), num_ahead=counts, failing=st.frozensets(st.integers(0, 20)), ends_badly=st.booleans())
def test_results_come_in_order_up_to_the_first_error_of_a_call_or_of_the_values(
    length: int, num_ahead: int, failing: frozenset[int], ends_badly: bool
) -> None:
    def values() -> Iterator[int]:
        yield from range(length)
        if ends_badly:
            raise Failed(length)

    calls, found = Calls(failing), []
    num_results = min([*failing, length])
    fails = num_results < length or ends_badly
    with pytest.raises(Failed, match=f"^{num_results}$") if fails else contextlib.nullcontext():
        for result in concurrency.map_ahead(calls.double, values(), num_ahead):
            found.append(result)
    assert found == [2 * value for value in range(num_results)]
    assert calls.running == 0
    assert calls.begun <= length
    assert threads_of_ours() == []


@settings(deadline=None)
@given(num_ahead=counts, num_taken=st.integers(0, 12))
def test_at_most_num_ahead_values_run_ahead_and_closing_leaves_no_thread(num_ahead: int, num_taken: int) -> None:
    calls, taken = Calls(), []
    values = (taken.append(value) or value for value in range(10))
    results = concurrency.map_ahead(calls.double, values, num_ahead)
    found = [result for result, _ in zip(results, range(num_taken))]
    assert found == [2 * value for value in range(min(num_taken, 10))]
    assert len(taken) <= min(len(found) + num_ahead, 10)
    if num_ahead > 1:
        results.close()  # type: ignore[attr-defined]
    assert (calls.running, threads_of_ours()) == (0, [])
    assert calls.begun <= len(taken) and calls.highest <= num_ahead


@settings(deadline=None)
@given(length=st.integers(0, 30), num_at_once=counts)
def test_call_each_calls_once_on_each_value(length: int, num_at_once: int) -> None:
    calls: list[int] = []
    concurrency.call_each(calls.append, iter(range(length)), num_at_once)
    assert sorted(calls) == list(range(length))
    assert num_at_once > 1 or calls == sorted(calls)
    assert threads_of_ours() == []


def test_call_each_is_not_held_up_by_a_slow_call() -> None:
    others_are_done, done = threading.Event(), []

    def call(value: int) -> None:
        if value == 0:
            assert others_are_done.wait(patience.HANG_SEC)
        done.append(value)
        if len(done) == 99:
            others_are_done.set()

    concurrency.call_each(call, range(100), 2)
    assert done[-1] == 0


@pytest.mark.parametrize("num_at_once", [1, 4])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_call_each_raises_the_error_of_a_call_and_begins_no_more(num_at_once: int, error: type[BaseException]) -> None:
    begun: list[int] = []

    def call(value: int) -> None:
        begun.append(value)
        if value >= 10:
            raise error(f"of {value}")

    with pytest.raises(error, match=r"of 1\d$"):
        concurrency.call_each(call, range(1000), num_at_once)
    assert len(begun) <= 10 + num_at_once
    assert threads_of_ours() == []


def test_quota_of_a_cgroup_is_read_in_whole_cores(tmp_path: pathlib.Path) -> None:
    quota, period = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"
    for number, (files, expected) in enumerate(
        [
            ({"cpu.max": "400000 100000\n"}, 4),
            ({"cpu.max": "150000 100000\n"}, 2),
            ({"cpu.max": "5000 100000\n"}, 1),
            ({"cpu.max": "max 100000\n"}, None),
            ({"cpu.max": "few 100000\n"}, None),
            ({quota: "300000\n", period: "100000\n"}, 3),
            ({quota: "-1\n", period: "100000\n"}, None),
            ({quota: "300000\n"}, None),
            ({quota: "300000\n", period: "0\n"}, None),
            ({}, None),
        ]
    ):
        assert concurrency.cgroup_cores(str(written_files.write(tmp_path / str(number), files))) == expected


def test_call_in_time_is_made_by_one_thread_until_it_is_given_up() -> None:
    hangs = threading.Event()

    def fail() -> None:
        raise queue.Empty("of the caller")

    first = concurrency.call_in_time(threading.get_ident, None)
    assert first != threading.get_ident()
    assert concurrency.call_in_time(threading.get_ident, patience.HANG_SEC) == first
    with pytest.raises(queue.Empty, match="of the caller"):
        concurrency.call_in_time(fail, patience.HANG_SEC)
    assert concurrency.call_in_time(threading.get_ident, None) == first
    with pytest.raises(concurrency.TooSlowError, match=r"^takes longer than 0\.01 s$"):
        concurrency.call_in_time(hangs.wait, 0.01)
    assert concurrency.call_in_time(threading.get_ident, None) != first
    hangs.set()
    patience.wait_until(lambda: first not in {each.ident for each in threading.enumerate()})


def test_cores_are_limited_by_the_affinity_and_by_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(96)), raising=False)
    for quota, expected in [(4, 4), (96, 96), (200, 96), (None, 96), (0, 1)]:
        monkeypatch.setattr(concurrency, "cgroup_cores", lambda quota=quota: quota)
        assert concurrency.available_cores() == expected


class Counter(concurrency.RebuiltAfterFork):
    """Counts how often its state was built."""

    builds = 0

    def rebuild(self) -> None:
        self.builds += 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_state_is_built_at_first_and_in_each_forked_process() -> None:
    counter = Counter()
    assert counter.builds == 1
    process = multiprocessing.get_context("fork").Process(target=lambda: os._exit(counter.builds))
    process.start()
    process.join(patience.HANG_SEC)
    assert (process.exitcode, counter.builds) == (2, 1)
