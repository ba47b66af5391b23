"""Shows a job on a service in one line, from its state and its counters."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TextIO

from imagebeam import plural
from imagebeam.pipelines.messages import progress
from imagebeam.pipelines.runs import remote_job

_LINE_SEC = 0.25  # between two updates of the line, which cost no request
_WORDS: dict[remote_job.State, str] = {
    "queued": "queued",
    "running": "starting workers",
    "cancelling": "cancelling",
    "done": "done",
    "failed": "failed",
    "cancelled": "cancelled",
}


def describe(state: remote_job.State, counters: Mapping[str, int]) -> str:
    """Returns what a job is doing: queued, starting workers, listing, writing n of m, or committing.

    Args:
        state: of the job.
        counters: `images-listed`, `images-planned`, `images-out`, `images-kept` and `rejects-*`, added up.
    """
    if state != "running" or not counters:
        return _WORDS[state]
    listed, planned = counters.get("images-listed", 0), counters.get("images-planned", 0)
    if not planned:
        return f"listing images, {listed:,} so far"
    rejected = sum(number for name, number in counters.items() if name.startswith("rejects-"))
    early = max(0, listed - planned)  # rejected before the plan was made, which has only the others
    done = counters.get("images-out", 0) + counters.get("images-kept", 0) + max(0, rejected - early)
    if done >= planned:
        return f"committing {plural.count(planned, 'image')}"
    return f"writing images {done:,}/{planned:,}"


class JobProgress(progress.ShownLine):
    """A line on a job, from what the last look at it found."""

    def __init__(self, stream: TextIO | None = None):
        super().__init__(stream, _LINE_SEC)
        self._text = "submitting the job"
        self._since = time.monotonic()

    def update(self, state: remote_job.State, counters: Mapping[str, int]) -> None:
        """Takes what a look at the job has found."""
        self._text = describe(state, counters)
        self._fields = {"stage": state, "counters": dict(counters)}

    def line(self) -> str:
        doing = self._doing or self._text
        return f"{doing}... {time.monotonic() - self._start:.0f} s"
