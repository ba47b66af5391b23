"""Writer processes are kept from job to job only where the next job cannot tell."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import threading
from collections.abc import Iterator

import pytest

from imagebeam.transforms.shard import writer_processes
from tests import kept_writers, patience

EVALUATE = eval  # tasks are expressions
PID = "__import__('os').getpid()"


@pytest.fixture(autouse=True)
def _own_pool() -> Iterator[None]:
    with kept_writers.patched():
        yield


def pid_of_job() -> int:
    with writer_processes.start(1) as pool:
        return int(pool.submit(EVALUATE, PID).result())


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_next_job_gets_the_process_of_the_last_one_and_two_jobs_at_once_their_own() -> None:
    first = pid_of_job()
    assert pid_of_job() == first
    with writer_processes.start(1) as pool:
        assert pool.submit(EVALUATE, PID).result() == first
        assert pid_of_job() != first


def test_job_in_another_folder_or_environment_gets_another_process(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pid_of_job()
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "another")
    assert pid_of_job() == first
    monkeypatch.setenv("IMAGEBEAM_TEST", "1")
    second = pid_of_job()
    monkeypatch.chdir(tmp_path)
    with writer_processes.start(1) as pool:
        task = "__import__('os').getpid(), __import__('os').getcwd(), __import__('os').environ['IMAGEBEAM_TEST']"
        third, folder, variable = pool.submit(EVALUATE, task).result()
    assert (pathlib.Path(folder), variable) == (tmp_path, "1")
    assert len({first, second, third}) == 3


def test_job_whose_standard_error_goes_elsewhere_gets_another_process(capfd: pytest.CaptureFixture[str]) -> None:
    with capfd.disabled():
        first = pid_of_job()
    with writer_processes.start(1) as pool:
        assert pool.submit(EVALUATE, PID).result() != first
        pool.submit(EVALUATE, "__import__('os').write(2, b'warned')").result()
    assert capfd.readouterr().err == "warned"


@pytest.mark.parametrize("task", ["1 / 0", "__import__('os')._exit(3)"])
def test_process_of_a_failed_task_is_not_kept(task: str) -> None:
    with writer_processes.start(1) as pool:
        first = pool.submit(EVALUATE, PID).result()
        with pytest.raises(writer_processes.WriterError):
            pool.submit(EVALUATE, task).result()
    assert not is_alive(first)
    assert pid_of_job() != first


def test_process_that_is_busy_when_its_job_ends_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_writers, "_GRACE_SEC", 0)
    with writer_processes.start(1) as pool:
        first = pool.submit(EVALUATE, PID).result()
        future = pool.submit(EVALUATE, "__import__('time').sleep(3600)")
        patience.wait_until(lambda: pool._processes[0]._is_busy)
    with pytest.raises(writer_processes.WriterError):
        future.result()
    assert not is_alive(first)
    assert pid_of_job() != first


def test_process_that_answers_soon_after_the_end_of_its_job_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_writers, "_GRACE_SEC", patience.HANG_SEC)
    with writer_processes.start(1) as pool:
        first = pool.submit(EVALUATE, PID).result()
        future = pool.submit(EVALUATE, f"__import__('time').sleep(0.1) or {PID}")
        patience.wait_until(lambda: pool._processes[0]._is_busy)
    assert future.result() == first
    assert pid_of_job() == first


def test_jobs_of_other_threads_keep_nothing() -> None:
    first = pid_of_job()
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        second = threads.submit(pid_of_job).result(patience.HANG_SEC)
    assert second != first
    assert not is_alive(second)
    assert threading.current_thread() is threading.main_thread()
    assert pid_of_job() == first


def test_few_are_kept_and_none_beyond_the_patch() -> None:
    with kept_writers.patched():
        with writer_processes.start(kept_writers._NUM_IDLE + 1) as pool:
            pids = [lent._process._popen.pid for lent in pool._processes]
        assert list(map(is_alive, pids)) == [False] + [True] * kept_writers._NUM_IDLE
    assert not any(map(is_alive, pids))


def test_fresh_processes_end_with_their_job() -> None:
    first = pid_of_job()
    with kept_writers.fresh():
        pids = {pid_of_job() for _ in range(2)}
    assert first not in pids
    assert not any(map(is_alive, pids))
