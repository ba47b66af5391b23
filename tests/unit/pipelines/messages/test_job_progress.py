from __future__ import annotations

import io
import re

from imagebeam.pipelines.messages import progress
from imagebeam.pipelines.runs import remote_job
from tests import case_tables

PLANNED = {"images-listed": 100, "images-planned": 90, "rejects-no_label": 10}


@case_tables.each_case(
    "state, counters, text",
    {
        "queued": ("queued", {}, "queued"),
        "starting": ("running", {}, "starting workers"),
        "listing": ("running", {"images-listed": 12000}, "listing images, 12,000 so far"),
        "rejecting": ("running", {"images-listed": 5, "rejects-empty": 2}, "listing images, 5 so far"),
        "planned": ("running", PLANNED, "writing images 0/90"),
        "writing": ("running", {**PLANNED, "images-out": 40, "images-kept": 9}, "writing images 49/90"),
        "bad": ("running", {**PLANNED, "images-out": 40, "rejects-corrupt": 5}, "writing images 45/90"),
        "committing": ("running", {**PLANNED, "images-out": 90}, "committing 90 images"),
        "counted-twice": ("running", {**PLANNED, "images-out": 95}, "committing 90 images"),
        "cancelling": ("cancelling", PLANNED, "cancelling"),
        "done": ("done", PLANNED, "done"),
        "failed": ("failed", PLANNED, "failed"),
        "cancelled": ("cancelled", {}, "cancelled"),
    },
)
def test_line_says_what_the_job_does(state: remote_job.State, counters: dict[str, int], text: str) -> None:
    assert progress.describe(state, counters) == text


def test_line_follows_what_was_seen_last() -> None:
    shown = progress.JobProgress(io.StringIO())
    assert re.fullmatch(r"submitting the job\.\.\. \d+ s", shown.line())
    shown.update("running", {**PLANNED, "images-out": 1})
    assert re.fullmatch(r"writing images 1/90\.\.\. \d+ s", shown.line())
    assert shown._fields == {"stage": "running", "counters": {**PLANNED, "images-out": 1}}


def test_what_is_said_stays_on_the_terminal() -> None:
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    with progress.JobProgress(stream) as shown:
        shown.say("submitted\x1b[2J")
    assert "\r\x1b[Ksubmitted\\x1b[2J\n" in stream.getvalue()
