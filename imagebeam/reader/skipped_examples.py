"""The examples that a reader skips because they cannot be read or decoded."""

from __future__ import annotations

import logging
import threading

from imagebeam import errors
from imagebeam.reader import counters as counters_lib
from imagebeam.reader import options as options_lib
from imagebeam.reader import shard_files

_LOGGER = logging.getLogger("imagebeam.dataset")
_MIN_SKIPPED = 10  # skipped examples before max_error_fraction is applied: a fraction of fewer means nothing


class SkippedExamples:
    """Counts the examples that are skipped, or refuses to skip them. Thread-safe."""

    def __init__(self, options: options_lib.ReadOptions, counters: counters_lib.Counters):
        """`counters` count the "examples" that were read."""
        self._options = options
        self._counters = counters
        self._lock = threading.Lock()
        self._skipped: set[tuple[int, int]] = set()
        self._logged: set[str] = set()  # shards

    def __len__(self) -> int:
        return len(self._skipped)

    def add(self, record: int, turn: int, fault: shard_files.RecordFault, cause: Exception | None = None) -> None:
        """Skips an example, a record in one of its rounds, if the options allow it.

        Raises:
            ExampleError: if they do not, or too many examples were skipped.
        """
        if self._options.on_error == "raise":
            raise errors.ExampleError("example-broken", str(fault)) from cause
        with self._lock:
            self._skipped.add((record, turn))
            num_skipped = len(self._skipped)
            is_first = fault.shard not in self._logged
            self._logged.add(fault.shard)
        if is_first:
            _LOGGER.warning("skipped %s (logged once for each shard)", fault)
        num_read = int(self._counters.totals()["examples"])
        if num_skipped > _MIN_SKIPPED and num_skipped > self._options.max_error_fraction * num_read:
            raise errors.ExampleError(
                "examples-too-many-broken",
                f"{num_skipped:,} of {num_read:,} examples could not be read or decoded, more than "
                f"max_error_fraction={self._options.max_error_fraction}; the last: {fault}",
            )
