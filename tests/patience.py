"""How long tests wait: until something happens. How fast that is decides no test, for the machine may be busy."""

from __future__ import annotations

import time
from collections.abc import Callable

HANG_SEC = 1200.0  # far longer than anything takes on the busiest machine: it ends only what hangs
MOMENT_SEC = 0.2  # in which something that must not happen would often have happened


def wait_until(is_so: Callable[[], object]) -> None:
    """Waits until `is_so()` is true."""
    give_up = time.monotonic() + HANG_SEC
    while not is_so():
        if time.monotonic() > give_up:
            raise AssertionError("what the test waits for did not happen")
        time.sleep(0.002)
