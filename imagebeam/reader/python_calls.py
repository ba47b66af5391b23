"""Calls from TensorFlow's threads into Python, which must not be running at interpreter shutdown."""

from __future__ import annotations

import atexit
import threading
import time

_CHECK_SEC, _QUIET_CHECKS, _MAX_WAIT_SEC = 0.005, 6, 5.0


class Calls:
    """Counts calls from TensorFlow's threads, and waits for them at exit. Use it as a context manager in each call.

    A thread that is running Python code at interpreter shutdown dies there, and the interpreter would then wait
    forever for an iterator that waits for the thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = self._ended = 0
        self.is_closed = False  # the interpreter is shutting down: pipelines end at their next call
        atexit.register(self._end)

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


calls = Calls()
