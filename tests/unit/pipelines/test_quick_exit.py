"""The quick end of a process leaves out nothing but taking its modules apart."""

from __future__ import annotations

import io
import sys

import pytest

from imagebeam.pipelines import quick_exit
from tests import command_line

PROGRAM = """
import atexit, sys, threading, time
from imagebeam.pipelines import quick_exit

class Left:
    def __del__(self):
        print("taken apart")

left = Left()
atexit.register(print, "handler")
threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
sys.stderr.write("warned")
quick_exit.end(3)
"""


def test_end_waits_for_threads_runs_handlers_and_flushes() -> None:
    done = command_line.run_python(PROGRAM)
    assert (done.returncode, done.stdout, done.stderr) == (3, "thread\nhandler\n", "warned")


def test_end_returns_if_a_stream_cannot_be_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError("no space left")

    monkeypatch.setattr(sys, "stdout", Full())
    monkeypatch.setattr(quick_exit.atexit, "_run_exitfuncs", lambda: None)
    monkeypatch.setattr(quick_exit.threading, "_shutdown", lambda: None)
    quick_exit.end(0)
