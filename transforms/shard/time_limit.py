"""Limits the seconds that one image may take.

A decoder in C cannot be interrupted. In a writer process, an image that takes too long ends the process, and the next
one goes on without it (`writer_processes.end_as_slow`). Elsewhere the image is rejected when its decoder returns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image
from imagebeam.transforms.shard import writer_processes

_T = TypeVar("_T")
_LOOKS = 8  # at the clock, within the limit


class Watch:
    """Times the images of one shard. To be closed, so that its thread ends."""

    def __init__(self, max_seconds: float):
        self._max_seconds = max_seconds
        self._begun: tuple[int, float] | None = None  # number and start of the image that is being prepared
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look, name="imagebeam-time-limit", daemon=True)
        self._thread.start()

    def run(self, number: int, prepare: Callable[[], _T]) -> _T:
        """Returns `prepare()`, the work on image `number` of the shard.

        Raises:
            BadImageError: if it took too long.
        """
        begin = time.monotonic()
        self._begun = number, begin
        try:
            done = prepare()
        finally:
            self._begun = None
        if time.monotonic() - begin > self._max_seconds:
            raise too_slow(self._max_seconds)
        return done

    def close(self) -> None:
        """Ends the thread."""
        self._ends.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ends.wait(self._max_seconds / _LOOKS):
            begun = self._begun
            if begun is not None and time.monotonic() - begun[1] > self._max_seconds:
                writer_processes.end_as_slow(begun[0])


def too_slow(max_seconds: float | None) -> checked_image.BadImageError:
    """Returns the error for an image that takes too long."""
    limit = "" if max_seconds is None else f" of {max_seconds:g} s"
    return checked_image.BadImageError(
        Reason.TOO_SLOW, f"takes longer than image.limits.max_seconds{limit} to decode and encode"
    )
