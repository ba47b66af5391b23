"""A copy of this process that runs one function, with the part of `subprocess.Popen` that writer processes use.

A copy is ready after 5 ms, with all modules of its launcher: a new Python takes 0.1 s of processor time to import them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn

_THREADS = "/proc/self/task"
_DESCRIPTORS = "/proc/self/fd"
_FIRST_POLL_SEC, _MAX_POLL_SEC = 0.0005, 0.01
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MALLOPT = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2, "MALLOC_MMAP_THRESHOLD_": -3}  # glibc's malloc.h


def can_fork() -> bool:
    """Returns whether a copy of this process can work: on Linux, without other threads, whose locks may be held."""
    try:
        return sys.platform == "linux" and len(os.listdir(_THREADS)) == 1
    except OSError:
        return False


class ForkedChild:
    """A child process that calls `run`, with pipes as its standard input and output, in a session of its own."""

    def __init__(self, run: Callable[[], None], malloc: Mapping[str, str]):
        """Forks.

        Args:
            run: is called in the child, which ends after it.
            malloc: variables of glibc's malloc, for the child. Those that are set in the environment hold already.
        """
        self.returncode: int | None = None
        self._waiting = threading.Lock()
        child_in, to_child = os.pipe()
        from_child, child_out = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or both processes would print what waits
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # the launcher's handlers must not run in the child
        self.pid = os.fork()
        if self.pid == 0:
            _run_in_child(run, malloc, child_in, child_out)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(child_in)
        os.close(child_out)
        self.stdin, self.stdout = os.fdopen(to_child, "wb"), os.fdopen(from_child, "rb")

    def poll(self) -> int | None:
        """Returns the exit code, or minus the number of the signal that ended the child; None while it runs."""
        with self._waiting:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # the launcher was started with SIGCHLD ignored: nobody knows the code
                    pid, status = self.pid, 0
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end of the child and returns its exit code.

        Raises:
            subprocess.TimeoutExpired: if it still runs after `timeout` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_POLL_SEC
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired("a writer process", timeout or 0.0)
            time.sleep(pause)
            pause = min(2 * pause, _MAX_POLL_SEC)
        return code

    def kill(self) -> None:
        """Kills the child, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _run_in_child(run: Callable[[], None], malloc: Mapping[str, str], child_in: int, child_out: int) -> NoReturn:
    """Makes this copy what a new Python process would be, calls `run` and ends."""
    code = 1
    try:
        os.setsid()
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.dup2(child_in, 0)
        os.dup2(child_out, 1)
        for name in os.listdir(_DESCRIPTORS):
            if int(name) > 2:
                with contextlib.suppress(OSError):  # the one that listed them
                    os.close(int(name))
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
        logging.root.handlers.clear()
        logging.root.setLevel(logging.WARNING)
        gc.freeze()  # the launcher's objects: collecting them would copy their pages
        _set_malloc(malloc)
        run()
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def _set_malloc(variables: Mapping[str, str]) -> None:
    """Sets what glibc reads from the environment only when a program starts."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    for name, value in variables.items():
        if mallopt is not None and name not in os.environ:
            mallopt(_MALLOPT[name], int(value))
