"""Writer processes that are copies of their launcher behave like those that start a new Python."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from imagebeam.transforms.shard import forked_child
from tests import command_line, patience

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")

# Programs of their own: this process has threads, and must not be copied.
BEGIN = """
import logging, os, signal, sys
from imagebeam.transforms.shard import writer_processes
opened = open(os.devnull)
signal.signal(signal.SIGTERM, lambda *_: None)
logging.basicConfig(level=logging.CRITICAL)
def ask(pool, text):
    return pool.submit(eval, text).result()
with writer_processes.start(2, forks=True) as pool:
    assert [type(process._popen).__name__ for process in pool._processes] == ["ForkedChild"] * 2
"""


def run(lines: str) -> subprocess.CompletedProcess[str]:
    return command_line.run_python(BEGIN + "".join(f"    {line}\n" for line in lines.strip().splitlines()))


SEEN_IN_A_COPY = {  # an expression, and what it is there; {pid} is the launcher
    "answers": ("6 * 7", "42"),
    "other-process": ("__import__('os').getppid() == {pid}", "True"),
    "own-session": ("__import__('os').getsid(0) == __import__('os').getpid()", "True"),
    "default-signals": ("__import__('signal').getsignal(15).name", "SIG_DFL"),
    "no-signal-is-blocked": ("__import__('signal').pthread_sigmask(0, [])", "set()"),
    "no-log-of-the-launcher": ("__import__('logging').root.handlers", "[]"),
    "own-names": ("'writer_processes' in globals()", "False"),
    "own-files": ("sum(int(name) > 2 for name in __import__('os').listdir('/proc/self/fd'))", "2"),
    "pages-are-shared": ("__import__('gc').get_freeze_count() > 1000", "True"),
    "no-pool": ("__import__('imagebeam.transforms.shard.writer_processes', fromlist=['x'])._started", "{}"),
}


def test_copy_is_like_a_new_process() -> None:
    asked = {name: expression for name, (expression, _) in SEEN_IN_A_COPY.items()}
    done = run(f"for name, text in {asked}.items(): print(name, ask(pool, text.replace('{{pid}}', str(os.getpid()))))")
    answers = [f"{name} {answer}" for name, (_, answer) in SEEN_IN_A_COPY.items()]
    assert (done.stdout.splitlines(), done.stderr) == (answers, "")


def test_print_and_what_waited_to_be_printed_come_once() -> None:
    done = run(
        """
sys.stdout.write("waits ")
ask(pool, "print('noise', flush=True)")
print(ask(pool, "1"))
"""
    )
    assert (done.stdout, done.stderr) == ("waits 1\n", "noise\n")


@pytest.mark.parametrize(
    ("task", "code"),
    [
        pytest.param("__import__('os').kill(__import__('os').getpid(), 9)", -9, id="killed"),
        pytest.param("__import__('os')._exit(3)", 3, id="exited"),
        pytest.param("__import__('sys').exit(5)", 5, id="exited-by-exception"),
        pytest.param("__import__('sys').exit('why')", 1, id="exited-with-text"),
        pytest.param("lambda: 0", 1, id="answer-that-cannot-be-sent"),
    ],
)
def test_end_of_a_copy_is_an_error_with_its_code(task: str, code: int) -> None:
    done = run(
        f"""
try:
    ask(pool, {task!r})
except writer_processes.WriterDiedError as e:
    print(e)
"""
    )
    assert done.stdout == f"a writer process ended with code {code}; was it out of memory?\n"
    assert ("Traceback" in done.stderr) == (task == "lambda: 0")


def test_copy_that_dies_is_replaced_and_the_others_end_with_the_job() -> None:
    done = run(
        """
die = "__import__('os')._exit(3)"
print(pool.submit(eval, die, lambda task, deaths: "'mended'").result())
busy = pool.submit(eval, "__import__('time').sleep(3600)")
while not busy.running(): pass
pids = [process._popen.pid for process in pool._processes]
pool.close()
print(type(busy.exception()).__name__, [os.path.exists(f"/proc/{pid}") for pid in pids])
"""
    )
    assert done.stdout == "mended\nWriterDiedError [False, False]\n", done.stderr


def test_copies_of_a_killed_launcher_are_gone() -> None:
    ask = "[pool.submit(eval, \"__import__('time').sleep(3600)\") for _ in range(2)]"
    done = run(
        f"print(*[process._popen.pid for process in pool._processes], flush=True); {ask}; os.kill(os.getpid(), 9)"
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    patience.wait_until(lambda: not any(map(patience.is_running, pids)))


def test_settings_of_malloc_are_those_that_the_environment_leaves_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TOP_PAD_", "4096")
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    called = []

    class Library:
        @staticmethod
        def mallopt(option: int, value: int) -> None:
            called.append((option, value))

    monkeypatch.setattr(forked_child.ctypes, "CDLL", lambda name: Library)
    forked_child._set_malloc({"MALLOC_TOP_PAD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "67108864"})
    assert called == [(-1, 67108864)]
    monkeypatch.setattr(forked_child.ctypes, "CDLL", lambda name: object())
    forked_child._set_malloc({"MALLOC_TRIM_THRESHOLD_": "67108864"})


def test_process_with_threads_is_not_copied() -> None:
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    try:
        assert not forked_child.can_fork()
    finally:
        ends.set()
        thread.join()


def test_process_whose_threads_are_not_known_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_child, "_THREADS", "/nowhere")
    assert not forked_child.can_fork()


def test_wait_ends_after_the_time_given_and_kill_after_the_end_does_nothing() -> None:
    code = """
import signal, subprocess, time
from imagebeam.transforms.shard import forked_child
child = forked_child.ForkedChild(lambda: time.sleep(3600), {})
try:
    child.wait(0.01)
except subprocess.TimeoutExpired:
    print("runs")
child.kill()
print(child.wait())
child.kill()
"""
    assert command_line.run_python(code).stdout == f"runs\n{-signal.SIGKILL}\n"


def test_child_that_somebody_else_waited_for_has_ended() -> None:
    code = """
import os
from imagebeam.transforms.shard import forked_child
child = forked_child.ForkedChild(lambda: None, {})
os.waitpid(child.pid, 0)
print(child.wait())
"""
    assert command_line.run_python(code).stdout == "0\n"
