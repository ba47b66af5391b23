"""Shows a run to the user: one line while it runs, a table at the end."""

from __future__ import annotations

import abc
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from imagebeam import plural, storage
from imagebeam.pipelines.beam import job_servers
from imagebeam.pipelines.messages import terminal
from imagebeam.pipelines.runs import remote_job
from imagebeam.transforms import dataset_settings, elements
from imagebeam.transforms.output import output_folder, run_report
from imagebeam.transforms.shard import shard_writer

if TYPE_CHECKING:
    from typing_extensions import Self

_LOGGER = "imagebeam.pipelines.progress"  # in lines of JSON, which users select by this name
_TERMINAL_SEC = 0.25  # between two updates
_PLAIN_SEC = 10.0  # the same, where the output is not a terminal
_JSON_SEC = 30.0  # the same, in a log of JSON
_REMOTE_SEC = 5.0  # between two listings of a staging folder that cost requests
_STATE_SEC = 2.0  # between two questions for the state of a job
_SILENCE_SEC = 45.0  # without a worker of the job, until a note says what may be wrong


class ShownLine(abc.ABC):
    """Keeps one line on a stream up to date; prints plain lines if the stream is not a terminal."""

    def __init__(self, stream: TextIO | None = None, every_sec: float | None = None):
        """Shows a line, looking at it every `every_sec` seconds."""
        self._every_sec = every_sec
        self._stream = stream or sys.stderr  # looked up now: tests and callers replace it after this module is imported
        self._terminal = self._stream.isatty()
        self._stop = threading.Event()
        self._writing = threading.Lock()
        self._start = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="imagebeam-progress", daemon=True)
        self._fields: dict[str, Any] = {}  # numbers in the last line, and its "stage", for a log of JSON

    @abc.abstractmethod
    def line(self) -> str:
        """Returns the line."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        if isinstance(self._stream, terminal.JsonLines):
            self._stream.log(text)
            return
        with self._writing:
            print(("\r\x1b[K" if self._terminal else "") + terminal.printable(text), file=self._stream, flush=True)

    def _watch(self) -> None:
        shown = stage = ""
        last = 0.0
        while not self._stop.wait(_TERMINAL_SEC if self._every_sec is None else self._every_sec):
            try:
                line = self.line()
            except OSError:  # if it persists, the run itself reports it
                continue
            now = time.monotonic()
            if isinstance(self._stream, terminal.JsonLines):
                if self._fields.get("stage", "") != stage or now - last >= _JSON_SEC:
                    self._stream.log(line, "INFO", _LOGGER, **self._fields)
                    last, stage = now, self._fields.get("stage", "")
                continue
            with self._writing:
                if self._terminal:
                    columns = terminal.columns_of(self._stream) or terminal.COLUMNS
                    self._stream.write("\r\x1b[K" + line[: columns - 1])
                    self._stream.flush()
                elif now - last >= _PLAIN_SEC and line != shown and now - self._start >= _PLAIN_SEC / 2:
                    print(line, file=self._stream, flush=True)
                    last, shown = now, line


class Progress(ShownLine):
    """Watches the staging folder of a run.

    It looks only at files, so it works the same for every runner whose output this machine can read.
    """

    def __init__(
        self,
        settings: dataset_settings.DatasetSettings,
        stream: TextIO | None = None,
        count_begun: Callable[[], int] = lambda: 0,
        job: job_servers.ServedJob | None = None,
    ):
        """Watches a run.

        Args:
            settings: of the dataset.
            stream: to write to; by default standard error.
            count_begun: returns the number of images written to shards that are not finished.
            job: of a job server, whose first worker writes `run_report.begun_of`; None if this process does the work.
        """
        is_local = storage.storage_of(settings.output).is_local
        super().__init__(stream, None if is_local else _REMOTE_SEC)
        self._settings = settings
        self._count_begun = count_begun
        self._job = job  # until its first worker has begun
        self._state, self._asked, self._is_noted = "", -_STATE_SEC, False
        self._is_analysed = settings.analyze is None
        self._writing_since = 0.0
        self._images_before = self._images = 0
        self._done: dict[str, int] = {}  # shard -> files in it, also rejected ones
        self._plan: elements.DatasetPlan | None = None

    def line(self) -> str:
        """Returns the state of the run in one line."""
        if self._plan is None and not self._find_plan():
            self._fields = {"stage": "listing"}
            doing = self._find_waiting() or "listing images"
            return f"{doing}... {time.monotonic() - self._start:.0f} s"
        assert self._plan is not None
        self._fields = {"stage": "writing"}
        if not self._is_analysed and not self._find_analysis(self._plan):
            return f"tf.Transform analyses the columns... {time.monotonic() - self._writing_since:.0f} s"
        planned_shards = sum(split.num_shards for split in self._plan.splits.values())
        planned_images = sum(split.num_records for split in self._plan.splits.values())
        self._count()
        # a shard that ends at this moment may be counted as neither begun nor done, or as both
        begun = min(sum(self._done.values()) + self._count_begun(), planned_images)
        images = self._images = max(begun, self._images)
        elapsed = time.monotonic() - self._writing_since
        rate = (images - self._images_before) / elapsed if elapsed > 0 else 0.0
        self._fields |= {
            "shards_done": len(self._done),
            "shards_planned": planned_shards,
            "images_done": images,
            "images_planned": planned_images,
            "images_per_sec": round(rate, 1),
        }
        if len(self._done) == planned_shards:
            self._fields["stage"] = "committing"
        left = f"{(planned_images - images) / rate:,.0f} s left" if rate > 0 else "..."
        return (
            f"shards {len(self._done):,}/{planned_shards:,}  images {images:,}/{planned_images:,}  "
            f"{rate:,.0f} images/s  {left}"
        )

    def _find_waiting(self) -> str:
        """Returns how a job waits for its first worker; "" once that has begun. Notes once if it waits for long."""
        begun = run_report.begun_of(self._settings.report)
        if self._job is None or storage.storage_of(begun).exists(begun):
            self._job = None
            return ""
        now = time.monotonic()
        if now - self._asked >= _STATE_SEC:
            with contextlib.suppress(OSError):  # not yet submitted; if the server is gone, the run itself reports it
                self._state = self._job.state()
            self._asked = now
        if now - self._start >= _SILENCE_SEC and not self._is_noted:
            self._is_noted = True
            self.say(self._job.describe_silence(now - self._start, self._state))
        self._fields = {"stage": "starting", "job_state": self._state}
        return f"job {self._state}, waiting for its first worker" if self._state else "starting the job"

    def _find_plan(self) -> bool:
        report = run_report.read_report(self._settings.report)
        if report is None:
            return False
        self._plan = report.plan
        self._count()
        self._images_before = sum(self._done.values())
        self._writing_since = time.monotonic()
        return True

    def _find_analysis(self, plan: elements.DatasetPlan) -> bool:
        """Returns whether tf.Transform's output is staged, so that shards are being written."""
        staging = self._settings.paths.staging(plan.fingerprint)
        if plan.action != "write" or storage.storage_of(staging).exists(
            storage.join(staging, output_folder.STAGED_FILES)
        ):
            self._is_analysed, self._writing_since = True, time.monotonic()
        return self._is_analysed

    def _count(self) -> None:
        """Reads the description of each finished shard, once."""
        assert self._plan is not None
        staging = self._settings.paths.staging(self._plan.fingerprint)
        store = storage.storage_of(staging)
        try:
            for entry in store.list_directory(staging):
                if entry.name.endswith(shard_writer.DONE_SUFFIX) and entry.name not in self._done:
                    with contextlib.suppress(ValueError, TypeError, KeyError):  # a power failure left it empty
                        written = shard_writer.decode_written(store.read(storage.join(staging, entry.name)))
                        num_images = written.shard.records + sum(written.rejected.values())
                        self._done[entry.name] = num_images - written.further  # the plan counts files
        except OSError:
            return  # does not exist yet, or was moved by the commit


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


class JobProgress(ShownLine):
    """A line on a job, from what the last look at it found."""

    def __init__(self, stream: TextIO | None = None):
        super().__init__(stream, _LINE_SEC)
        self._text = "submitting the job"

    def update(self, state: remote_job.State, counters: Mapping[str, int]) -> None:
        """Takes what a look at the job has found."""
        self._text = describe(state, counters)
        self._fields = {"stage": state, "counters": dict(counters)}

    def line(self) -> str:
        return f"{self._text}... {time.monotonic() - self._start:.0f} s"
