"""Forked commands are processes as those that a shell starts, but for what they import."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import pytest

from tests import command_line, forked_commands, patience

SHOW = """
import os, signal, sys, tempfile
print(sys.argv[1:], os.environ.get("ONE_THING"), "PATH" in os.environ, os.getcwd(), tempfile.gettempdir())
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
print(os.getpid(), os.getpgid(0), sys.stdin.read() == "", file=sys.stderr)
sys.exit(7)
"""


def start(code: str, *arguments: str, **options: object) -> forked_commands.Process:
    run = {"code": code, "arguments": list(arguments)}
    return forked_commands.start("local", run, {}, **options)  # type: ignore[arg-type]


def test_process_has_its_own_arguments_environment_folder_signals_and_streams(tmp_path: pathlib.Path) -> None:
    environment = {"ONE_THING": "é", "TMPDIR": str(tmp_path)}
    process = forked_commands.start("local", {"code": SHOW, "arguments": ["a b"]}, environment, tmp_path)
    stdout, stderr = process.communicate(timeout=patience.HANG_SEC)
    assert process.returncode == 7
    assert stdout.splitlines() == [f"['a b'] é False {tmp_path} {tmp_path}", "True True"]
    assert stderr == f"{process.pid} {process.pid} True\n"


def test_folders_of_the_python_path_are_found_after_the_working_folder(tmp_path: pathlib.Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "found_where.py").write_text(f"print({name!r})")
    for cwd, expected in ((tmp_path / "here", "here"), (tmp_path, "there")):
        run = {"code": "import found_where", "arguments": []}
        process = forked_commands.start("local", run, {"PYTHONPATH": str(tmp_path / "there")}, cwd)
        assert process.communicate(timeout=patience.HANG_SEC) == (f"{expected}\n", "")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_process_that_has_ended_does_not_run_though_nobody_has_asked_for_its_code() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        assert forked_commands.is_running(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not forked_commands.is_running(child.pid)
    assert not forked_commands.is_running(child.pid)


THREAD = "import os, threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), os._exit(6))).start()"
CLASS = "class Late:\n  def __del__(self): import os; os._exit(4)\nlate = Late()"


@pytest.mark.parametrize(
    ("code", "exit_code", "complaint"),
    [
        pytest.param("", 0, "", id="end"),
        pytest.param("import logging; logging.warning('not so good')", 0, "not so good", id="log"),
        pytest.param("import os; os._exit(3)", 3, "", id="exit-code"),
        pytest.param("1 / 0", 1, "ZeroDivisionError", id="exception"),
        pytest.param("import os; os.abort()", -signal.SIGABRT, "", id="signal"),
        pytest.param("import sys; sys.exit(-1)", 255, "", id="negative"),
        pytest.param("import sys; sys.exit('told')", 1, "told", id="text"),
        pytest.param("import atexit, os; atexit.register(os._exit, 5)", 5, "", id="exit-handler"),
        pytest.param(THREAD, 6, "", id="thread"),
        pytest.param("import os; os.close(1); print()", 120, "Bad file descriptor", id="stream-that-cannot-be-flushed"),
    ],
)
def test_exit_code_and_complaint_are_those_of_the_program(code: str, exit_code: int, complaint: str) -> None:
    process = start(code)
    _, stderr = process.communicate(timeout=patience.HANG_SEC)
    assert (process.returncode, process.poll()) == (exit_code, exit_code)
    assert complaint in stderr


def test_objects_of_modules_are_not_freed_at_the_end() -> None:
    assert start(CLASS).wait(timeout=patience.HANG_SEC) == 0


def test_process_runs_until_it_is_killed_beside_another() -> None:
    one, other = (start("import time; time.sleep(10_000)") for _ in range(2))
    assert one.pid != other.pid
    one.kill()
    assert one.wait(timeout=patience.HANG_SEC) == -signal.SIGKILL
    assert other.poll() is None
    other.send_signal(signal.SIGTERM)
    assert other.wait(timeout=patience.HANG_SEC) == -signal.SIGTERM
    other.kill()  # has no effect, nor an error


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (1, 2), (0, 1, 2)], ids=str)
def test_closed_stream_is_none_and_its_descriptor_free(closed: tuple[int, ...]) -> None:
    code = (
        "import os, sys; "
        "found = [n for n, each in enumerate((sys.stdin, sys.stdout, sys.stderr)) if each is None]; "
        "os._exit(100 + 10 * os.open(os.devnull, os.O_RDONLY) + len(found))"
    )
    with tempfile.TemporaryFile() as file:
        streams = [None if number in closed else file.fileno() for number in range(3)]
        exit_code = start(code, streams=streams).wait(timeout=patience.HANG_SEC)
    assert exit_code == 100 + 10 * min(closed) + len(closed)


def test_command_says_and_returns_what_a_fresh_one_does() -> None:
    for arguments in (("--version",), ("verify", "/nonexistent"), ("convert", "--workers", "x")):
        forked, fresh = command_line.run(*arguments), command_line.run_fresh(*arguments)
        assert (forked.returncode, forked.stdout, forked.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)
    assert os.getpid() != command_line.start("--version").pid


FORK_A_SERVER = """
import atexit, json, os, sys
from tests import command_line, forked_commands
os.dup2(0, 50)
atexit.register(os._exit, 9)  # of the tests, so in none of their forks
forked_commands.FORKED = ("local",)
forked_commands.fork_servers()
found = []
for code in json.loads(sys.argv[1]):
    process = command_line.start_program(code)
    stdout, stderr = process.communicate()
    found.append([process.returncode, stdout, stderr.splitlines()[-1:]])
print(json.dumps(found), flush=True)
"""
ENDS = {  # of a fork of the tests: exit code, standard output, and the last line of standard error
    "print(__name__)": [0, "__main__\n", []],
    "import sys; sys.exit(-1)": [255, "", []],
    "import sys; sys.exit('told')": [1, "", ["told"]],
    "1 / 0": [1, "", ["ZeroDivisionError: division by zero"]],
    "import atexit, os; atexit.register(os._exit, 5)": [5, "", []],
    "import os; os.abort()": [-signal.SIGABRT, "", []],
    "import os; os.close(1); print()": [120, "", []],
    "import os; os.fstat(50)": [1, "", ["OSError: [Errno 9] Bad file descriptor"]],
}


def test_command_of_a_server_that_is_a_fork_of_the_tests_ends_alike_and_has_no_files_of_theirs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK_A_SERVER, json.dumps(list(ENDS))],
        cwd=command_line.ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience.HANG_SEC,
        check=False,
    )
    assert done.returncode == 9, done.stderr
    assert dict(zip(ENDS, json.loads(done.stdout), strict=True)) == ENDS
