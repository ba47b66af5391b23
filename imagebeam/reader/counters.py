"""Totals of what the threads of a reader did, for the metrics of an iterator."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Iterator, Mapping


class Counters:
    """Totals by name: seconds of all threads together, and how much they read. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, float] = collections.defaultdict(float)

    def add(self, name: str, value: float) -> None:
        """Adds to the total of a name."""
        with self._lock:
            self._totals[name] += value

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Adds the duration of the block to the total of a name."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def totals(self) -> Mapping[str, float]:
        """Returns all totals."""
        with self._lock:
            return dict(self._totals)
