"""The examples that a reader skips because they cannot be read or decoded."""

from __future__ import annotations

import logging
import threading

from imagebeam import errors
from imagebeam.reader import options as options_lib
from imagebeam.reader import shard_files

_LOGGER = logging.getLogger("imagebeam.dataset")
_MIN_SKIPPED = 10  # skipped examples before max_error_fraction is applied: a fraction of fewer means nothing


class SkippedExamples:
    """Counts the examples that are skipped, or refuses to skip them. Thread-safe."""

    def __init__(self, options: options_lib.ReadOptions, begin: int):
        """Takes the position where the reader begins."""
        self._options = options
        self._begin = begin
        self._lock = threading.Lock()
        self._skipped: set[tuple[int, int]] = set()  # a replacement may be read again at its own position
        self._farthest = begin
        self._logged: set[str] = set()  # shards

    def __len__(self) -> int:
        return len(self._skipped)

    def add(
        self, position: int, example: tuple[int, int], fault: shard_files.RecordFault, cause: Exception | None = None
    ) -> None:
        """Skips an example, a record in one of its rounds, if the options allow it.

        Raises:
            ExampleError: if they do not, or too many examples were skipped.
        """
        if self._options.on_error == "raise":
            raise errors.ExampleError("example-broken", str(fault)) from cause
        with self._lock:
            self._skipped.add(example)
            self._farthest = max(self._farthest, position)
            num_skipped, num_read = len(self._skipped), self._farthest + 1 - self._begin
            is_first = fault.shard not in self._logged
            self._logged.add(fault.shard)
        if is_first:
            _LOGGER.warning("skipped %s (logged once for each shard)", fault)
        if num_skipped > _MIN_SKIPPED and num_skipped > self._options.max_error_fraction * num_read:
            raise errors.ExampleError(
                "examples-too-many-broken",
                f"{num_skipped:,} of {num_read:,} examples could not be read or decoded, more than "
                f"max_error_fraction={self._options.max_error_fraction}; the last: {fault}",
            )
