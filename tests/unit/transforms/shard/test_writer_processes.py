from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

import imagebeam
from imagebeam.transforms.shard import writer_processes
from tests import command_line, patience

EVALUATE = eval  # tasks are expressions
OPEN_FILES = (  # apart from the three standard streams
    "[int(name) for name in __import__('os').listdir('/proc/self/fd') if int(name) > 2]"
)
NOTE_PROGRESS = "__import__('importlib').import_module('imagebeam.transforms.shard.writer_processes').note_progress"
KILL_ITSELF = "__import__('os').kill(__import__('os').getpid(), 9)"

# The program of a user who does not write `if __name__ == "__main__"`.
WITHOUT_GUARD = """
from imagebeam.transforms.shard import writer_processes
with writer_processes.start(2) as pool:
    print(sum(pool.submit(eval, f"{number} * 7").result() for number in range(3)), flush=True)
"""
LAUNCHER = """
import time
from imagebeam.transforms.shard import writer_processes
with writer_processes.start(3) as pool:
    print(*(process._popen.pid for process in pool._processes), flush=True)
    {meanwhile}
    time.sleep(3600)
"""


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves a process that ends by itself the time for it."""
    monkeypatch.setattr(writer_processes, "_PATIENCE_SEC", patience.HANG_SEC)


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")


def test_tasks_run_in_other_processes_and_answer_in_the_order_of_submission() -> None:
    with writer_processes.start(2) as pool:
        assert writer_processes.current() is pool
        tasks = [f"__import__('time').sleep(0.05) or ({index}, __import__('os').getpid())" for index in range(8)]
        answers = [future.result() for future in [pool.submit(EVALUATE, task) for task in tasks]]
    assert writer_processes.current() is None
    assert [index for index, _ in answers] == list(range(8))
    pids = {pid for _, pid in answers}
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_processes_of_two_threads_are_independent_of_each_other() -> None:
    both_started, first_closed = threading.Barrier(2), threading.Event()
    found: dict[str, object] = {}

    def run(name: str) -> None:
        with writer_processes.start(1) as pool:
            both_started.wait(timeout=patience.HANG_SEC)
            found[name] = writer_processes.current() is pool
            if name == "second":
                first_closed.wait(timeout=patience.HANG_SEC)
                found["answer"] = pool.submit(EVALUATE, "6 * 7").result()
                found["is found"] = writer_processes.current() is pool and writer_processes.find(pool.token) is pool
        if name == "first":
            found["is closed"] = writer_processes.current() is None and writer_processes.find(pool.token) is None
            first_closed.set()

    threads = [threading.Thread(target=run, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"first": True, "second": True, "is closed": True, "answer": 42, "is found": True}


def test_images_of_a_task_are_counted_until_it_ends(tmp_path: pathlib.Path) -> None:
    note, wait = (f"{NOTE_PROGRESS}({count})" for count in (7, 8))
    go_on = f"[None for _ in iter(lambda: __import__('os').path.exists({str(tmp_path / 'go')!r}), True)]"
    with writer_processes.start(2) as pool:
        futures = [pool.submit(EVALUATE, f"({note}, {wait}, {go_on}, {index})[-1]") for index in range(2)]
        patience.wait_until(lambda: pool.count_images() == 14)  # the second note came too soon after the first
        (tmp_path / "go").touch()
        assert [future.result() for future in futures] == [0, 1]
        assert pool.count_images() == 0
        assert pool.submit(EVALUATE, "1 + 1").result() == 2


def test_task_that_prints_does_not_disturb_the_answers(capfd: pytest.CaptureFixture[str]) -> None:
    with writer_processes.start(1) as pool:
        assert (
            pool.submit(EVALUATE, "print('noise', flush=True) or __import__('os').system('echo more') or 7").result()
            == 7
        )
        assert pool.submit(EVALUATE, "8").result(patience.HANG_SEC) == 8
    assert capfd.readouterr().err.split() == ["noise", "more"]


def test_task_that_raises_gives_writer_error_with_the_traceback_and_the_process_goes_on() -> None:
    for task, message in [
        ("1 // 0", r"(?s)^Traceback .*ZeroDivisionError: integer division or modulo by zero"),  # error
        ("bytes(1 << 60)", r"(?s)^Traceback .*(MemoryError|OverflowError)"),  # too-little-memory
    ]:
        with writer_processes.start(1) as pool:
            with pytest.raises(writer_processes.WriterError, match=message):
                pool.submit(EVALUATE, task).result()
            assert pool.submit(EVALUATE, "7").result() == 7


@pytest.mark.parametrize(
    ("task", "code"),
    [
        pytest.param(KILL_ITSELF, -9, id="killed"),
        pytest.param("__import__('os')._exit(3)", 3, id="exited"),
        pytest.param("__import__('sys').exit(5)", 5, id="exited-by-exception"),
        pytest.param("lambda: 0", 1, id="answer-that-cannot-be-sent"),
    ],
)
def test_task_whose_process_ends_gives_its_exit_code(task: str, code: int, capfd: pytest.CaptureFixture[str]) -> None:
    with writer_processes.start(1) as pool:
        for _ in range(2):  # the second task finds the process gone
            with pytest.raises(writer_processes.WriterError, match=f"^a writer process ended with code {code}(;|$)"):
                pool.submit(EVALUATE, task).result(timeout=patience.HANG_SEC)


@needs_proc
def test_task_whose_process_is_killed_while_it_answers_gives_writer_error() -> None:
    with writer_processes.start(1) as pool:
        answers = min(pool.submit(EVALUATE, OPEN_FILES).result())
        begin = f"__import__('os').write({answers}, b'\\x80\\x05C\\x64half')"  # "100 bytes follow", and 4 do
        with pytest.raises(writer_processes.WriterError, match=r"^a writer process ended with code -9"):
            pool.submit(EVALUATE, f"{begin} and {KILL_ITSELF}").result(timeout=patience.HANG_SEC)


@needs_proc
def test_process_that_closes_its_answers_and_goes_on_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_processes, "_PATIENCE_SEC", 0.1)
    with writer_processes.start(1) as pool:
        answers = min(pool.submit(EVALUATE, OPEN_FILES).result())
        with pytest.raises(writer_processes.WriterError, match=r"^a writer process ended with code -9"):
            pool.submit(EVALUATE, f"__import__('os').close({answers}) or __import__('time').sleep(3600)").result(
                patience.HANG_SEC
            )


@needs_proc
@pytest.mark.parametrize("pause_sec", [0, 0.01, 0.3])
def test_close_kills_processes_in_the_middle_of_a_task(pause_sec: float) -> None:
    with writer_processes.start(2) as pool:
        pids = [process._popen.pid for process in pool._processes]
        futures = [pool.submit(EVALUATE, "__import__('time').sleep(3600)") for _ in range(4)]
        time.sleep(pause_sec)
    assert not any(map(patience.is_running, pids))
    assert [future.cancelled() for future in futures[2:]] == [True] * 2
    for future in futures[:2]:
        assert future.cancelled() or isinstance(future.exception(timeout=0), writer_processes.WriterError)


def launch(meanwhile: str = "") -> tuple[subprocess.Popen[str], list[int]]:
    """Starts a launcher in its own process; returns it and the ids of its writer processes."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER.format(meanwhile=meanwhile)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=command_line.ROOT,
    )
    assert launcher.stdout is not None
    return launcher, [int(pid) for pid in launcher.stdout.readline().split()]


@needs_proc
@pytest.mark.parametrize(
    "meanwhile",
    [pytest.param("", id="idle"), pytest.param("pool.submit(eval, '__import__(\"time\").sleep(3600)')", id="busy")],
)
def test_processes_of_a_killed_launcher_are_gone(meanwhile: str) -> None:
    launcher, pids = launch(meanwhile)
    try:
        time.sleep(0.5)
        assert [patience.is_running(pid) for pid in pids] == [True] * 3
    finally:
        launcher.send_signal(signal.SIGKILL)
        launcher.communicate()
    patience.wait_until(lambda: not any(map(patience.is_running, pids)))


@needs_proc
def test_processes_whose_launcher_dies_while_they_start_are_gone() -> None:
    sleep = "[pool.submit(eval, '__import__(\"time\").sleep(3600)') for _ in range(3)]"
    launcher, pids = launch(f"{sleep}; import os; os.kill(os.getpid(), 9)")
    launcher.communicate()
    assert len(pids) == 3
    patience.wait_until(lambda: not any(map(patience.is_running, pids)))


def test_processes_beside_a_users_modules_import_ours(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imagebeam.py").write_text("raise ImportError('the wrong module')")
    monkeypatch.chdir(tmp_path)
    with writer_processes.start(1) as pool:
        assert pool.submit(EVALUATE, "__import__('imagebeam').__path__[0]").result() == imagebeam.__path__[0]


@pytest.mark.parametrize("way", ["script", "code", "stdin"])
def test_processes_start_from_a_program_without_a_main_guard(way: str, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "convert_mine.py"
    script.write_text(WITHOUT_GUARD)
    arguments = {"script": [str(script)], "code": ["-c", WITHOUT_GUARD], "stdin": ["-"]}[way]
    done = subprocess.run(
        [sys.executable, *arguments],
        input=WITHOUT_GUARD if way == "stdin" else "",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patience.HANG_SEC,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("21\n", "", 0)


def test_death_of_one_process_fails_its_own_task_only(tmp_path: pathlib.Path) -> None:
    marks = str(tmp_path / "started"), str(tmp_path / "go")
    waits = f"[None for _ in iter(lambda: __import__('os').path.exists({marks[1]!r}), True)]"
    with writer_processes.start(2) as pool:
        other = pool.submit(EVALUATE, f"(open({marks[0]!r}, 'w').close(), {waits}, 42)[-1]")
        patience.wait_until((tmp_path / "started").exists)
        with pytest.raises(writer_processes.WriterError, match="ended with code -9"):
            pool.submit(EVALUATE, KILL_ITSELF).result(timeout=patience.HANG_SEC)
        (tmp_path / "go").touch()
        assert other.result(timeout=patience.HANG_SEC) == 42


def test_processes_get_settings_of_malloc_unless_the_user_sets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TOP_PAD_", "4096")
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    with writer_processes.start(1) as pool:
        found = pool.submit(EVALUATE, "{**__import__('os').environ}").result()
    assert {name: value for name, value in found.items() if name.startswith("MALLOC_")} == {
        "MALLOC_TRIM_THRESHOLD_": "67108864",
        "MALLOC_MMAP_THRESHOLD_": "33554432",
        "MALLOC_TOP_PAD_": "4096",
    }
    assert "MALLOC_TRIM_THRESHOLD_" not in os.environ
