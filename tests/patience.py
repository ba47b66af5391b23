"""Tests wait until something happens. How long that takes decides no test, because the machine may be busy."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Iterator

HANG_SEC = 1200.0  # much longer than anything takes on the busiest machine: it only ends a hang
MOMENT_SEC = 0.2  # time for something that must not happen; long enough to see it often


def wait_until(is_so: Callable[[], object]) -> None:
    """Waits until `is_so()` is true."""
    for _ in again():
        if is_so():
            return
        time.sleep(0.002)


def is_running(pid: int | str) -> bool:
    """Returns whether a process still runs. A zombie does not: its parent may take a second to look after it."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Clock:
    """In place of the module `time`, for code that waits between attempts: only `sleep` moves it, and at once."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


def again() -> Iterator[None]:
    """Yields for as long as a test may try: a loop over it, instead of `while True`, ends a hang with an error."""
    give_up = time.monotonic() + HANG_SEC
    while time.monotonic() < give_up:
        yield
    raise AssertionError("the test waited for something that did not happen")
