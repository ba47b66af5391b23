"""Tests wait until something happens. How long that takes decides no test, because the machine may be busy."""

from __future__ import annotations

import time
from collections.abc import Callable

HANG_SEC = 1200.0  # much longer than anything takes on the busiest machine: it only ends a hang
MOMENT_SEC = 0.2  # time for something that must not happen; long enough to see it often


def wait_until(is_so: Callable[[], object]) -> None:
    """Waits until `is_so()` is true."""
    give_up = time.monotonic() + HANG_SEC
    while not is_so():
        if time.monotonic() > give_up:
            raise AssertionError("the test waited for something that did not happen")
        time.sleep(0.002)
