"""The journal of a command: what it works on, its stages and how it ended. Summaries, metrics and events come from it.

The summary is one JSON document for schedulers, which docs/summary.schema.json describes. Imports no Beam and no
pydantic, so that a command that cannot start still tells how it ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from imagebeam import catalog as catalog_lib
from imagebeam import errors, version
from imagebeam.storage import remote
from imagebeam.transforms import elements, summaries
from imagebeam.transforms.output import run_report

if TYPE_CHECKING:
    from imagebeam.pipelines.runs import remote_job
    from imagebeam.transforms import dataset_settings

State: TypeAlias = Literal[
    "committed",
    "kept",  # the same dataset was committed already
    "nothing_new",  # an update found no change
    "submitted",  # a job or a template, for which nobody waits
    "planned",
    "verified",
    "refused",  # by imagebeam: the config, the input, the rejects or another run do not allow it
    "failed",
    "interrupted",
]
ENDED_WELL: frozenset[State] = frozenset({"committed", "kept", "nothing_new", "submitted", "planned", "verified"})
STAGES = ("starting", "listing", "planning", "writing", "committing")
_STAGE_BEGINS = dict(zip(STAGES, ("started", "launched", "planning", "planned", "committing")))
_REPORT_SEC = 5.0  # to read the report of a run that failed


class Changes(NamedTuple):
    """The difference between a snapshot and the one before it, in images."""

    added: int
    changed: int
    removed: int
    unchanged: int
    read_and_rejected: int | None = None  # None before images are read


@dataclasses.dataclass
class Journal:
    """Everything known of one command so far. Fields that do not apply to it stay None or empty.

    Attributes:
        command: its name.
        state: how it ended.
        exit_code: of the process.
        message: why it failed, or what it found; "" if there is nothing to say.
        error_code: code of the error that it failed with; None if it has none.
        input: address of the images, as given.
        output: address of the dataset, as given.
        name: of the dataset.
        max_reject_fraction: share of images that may be rejected.
        run_id: of the run that held the lock of the output.
        job: on a service.
        template: address of the template that was written.
        plan: of the run.
        rejected: number of all rejects by reason, if the run told it without committing a dataset.
        catalog: of the dataset that is committed, or was verified.
        snapshot: the name of the snapshot that was committed, planned, found or verified.
        changes: of the snapshot, against the one before.
        notes: for the user.
        error: why it failed, with its traceback.
        times: when stages began, in seconds since the epoch: started, launched, and those of `DatasetPlan.times`.
        on_begin: called once the input and the output are known, before any work.
    """

    command: str = ""
    state: State = "failed"
    exit_code: int = 1
    message: str = ""
    error_code: str | None = None
    input: str | None = None
    output: str | None = None
    name: str | None = None
    max_reject_fraction: float | None = None
    run_id: str | None = None
    job: remote_job.RemoteJob | None = None
    template: str | None = None
    plan: elements.DatasetPlan | None = None
    rejected: Mapping[str, int] | None = None
    catalog: catalog_lib.Catalog | None = None
    snapshot: str | None = None
    changes: Changes | None = None
    notes: list[str] = dataclasses.field(default_factory=list)
    error: BaseException | None = None
    times: dict[str, float] = dataclasses.field(default_factory=lambda: {"started": time.time()})
    on_begin: list[Callable[[Journal], None]] = dataclasses.field(default_factory=list)

    def context(self) -> dict[str, Any]:
        """Returns the fields of the run in each line of the log."""
        return {"command": self.command, "output": self.output, "run_id": self.run_id}

    def begin(self, input: str | None, output: str | None, name: str | None, max_reject_fraction: float) -> None:
        """Notes what the command works on, and tells `on_begin`."""
        self.input, self.output, self.name, self.max_reject_fraction = input, output, name, max_reject_fraction
        for tell in self.on_begin:
            tell(self)

    @contextlib.contextmanager
    def following(self, settings: dataset_settings.DatasetSettings, report: str = "") -> Iterator[None]:
        """Notes that the pipeline of a run starts, and how far it came if it fails.

        Args:
            settings: of the dataset.
            report: address of the report; by default that of the settings.
        """
        self.run_id = settings.run_id or None
        self.times["launched"] = time.time()
        try:
            yield
        except BaseException:
            uri = report or settings.report
            with contextlib.suppress(Exception), remote.budget(_REPORT_SEC):  # the failure itself is what counts
                if uri and (found := run_report.read_report(uri)) is not None:
                    self.take_report(found)
            raise

    def take_report(self, report: run_report.RunReport) -> None:
        """Notes what the report of a run says: its plan, with the times of its stages, and its rejects."""
        self.rejected = report.rejected
        self.plan = plan = report.plan
        self.notes = list(plan.notes)
        self._take_snapshot(plan.snapshot)
        self.times.update(plan.times)

    def take_catalog(self, catalog: catalog_lib.Catalog) -> None:
        """Notes the dataset that the command committed, found or verified."""
        self.catalog = catalog
        self.name = catalog.name
        self._take_snapshot(catalog.snapshot)

    def _take_snapshot(self, facts: Mapping[str, Any]) -> None:
        if facts:
            self.snapshot = facts["name"]
            self.changes = Changes(
                **{name: facts[name] for name in summaries.CHANGES}, read_and_rejected=facts.get("rejected")
            )

    def end(self, state: State, exit_code: int, message: str = "", error: BaseException | None = None) -> None:
        """Notes how the command ended."""
        self.state, self.exit_code, self.message = state, exit_code, message
        self.error_code = error.code or None if isinstance(error, errors.ImagebeamError) else None
        if state == "nothing_new" and self.catalog is not None:  # its changes are those of an earlier run
            self.changes = Changes(0, 0, 0, self.catalog.counts.written, 0)
        self.times["ended"] = time.time()

    def fail(self, exit_code: int, message: str, error: BaseException | None = None) -> None:
        """Notes that the command ended with an error."""
        self.end("refused" if exit_code in (2, 3, 4, 5) else "failed", exit_code, message, error)

    def seconds(self) -> dict[str, float | None]:
        """Returns the seconds of each stage, and in total; None for a stage that the command did not reach.

        The stage in which a command failed lasts until its end. On a service, the clocks of workers decide.
        """
        ended = self.times.get("ended", time.time())
        begun = {stage: self.times[key] for stage, key in _STAGE_BEGINS.items() if key in self.times}
        bounds = [*begun.values(), self.times.get("committed", ended)]
        if self.state in ("planned", "kept", "nothing_new") and "planned" in self.times:
            begun.pop("writing", None)  # nothing was
            begun.pop("committing", None)
            bounds = [*begun.values(), self.times["planned"]]
        seconds: dict[str, float | None] = dict.fromkeys(STAGES)
        for stage, begin, end in zip(begun, bounds, bounds[1:]):
            seconds[stage] = round(max(end - begin, 0.0), 3)
        return {**seconds, "total": round(max(ended - self.times["started"], 0.0), 3)}


SCHEMA_VERSION = 1  # raised when a field is removed or changes its meaning; a new field does not raise it
_CONTENT_FILES = (catalog_lib.LABELS_FILE, "removed.bin")  # what readers take from a dataset beside its shards


def summarize(journal: Journal) -> dict[str, Any]:
    """Returns the summary of a command that has ended."""
    catalog = journal.catalog
    splits = _splits(journal)
    return {
        "schema_version": SCHEMA_VERSION,
        "command": journal.command,
        "version": version.__version__,
        "state": journal.state,
        "exit_code": journal.exit_code,
        "message": journal.message,
        "error_code": journal.error_code,
        "input": journal.input,
        "output": journal.output,
        "name": journal.name,
        "run_id": journal.run_id,
        "snapshot": journal.snapshot if catalog is not None or journal.state == "planned" else None,
        "fingerprint": next((each.fingerprint for each in (catalog, journal.plan) if each is not None), None),
        "counts": _counts(journal),
        "duplicates": None if catalog is None else catalog.duplicates,
        "splits": splits,
        "bytes": None if splits is None else sum(split["bytes"] for split in splits.values()),
        "digest": None if catalog is None else digest(catalog),
        "reject_limit": journal.max_reject_fraction,
        "durations": journal.seconds(),
        "job": None if journal.job is None else {**journal.job.to_fields(), "console": journal.job.console},
        "template": journal.template,
        "notes": journal.notes,
        "started": _iso(journal.times["started"]),
        "ended": _iso(journal.times.get("ended", time.time())),
    }


def encode(summary: dict[str, Any]) -> bytes:
    """Returns the document."""
    return json.dumps(summary, indent=1).encode() + b"\n"


def digest(catalog: catalog_lib.Catalog) -> str:
    """Returns a digest of what a dataset holds: equal for equal shards and classes, whenever they were written.

    It is the SHA-256 of a line for each shard and each file that readers use, in the order of the catalog: name, number
    of records (not for files), bytes and crc32c, separated by blanks.
    """
    shards = [shard for split in catalog.splits.values() for shard in split.shards]
    lines = [f"{shard.name} {shard.records} {shard.bytes} {shard.crc32c}\n" for shard in shards]
    for name in _CONTENT_FILES:
        if (file := catalog.files.get(name)) is not None:
            lines.append(f"{name} {file.bytes} {file.crc32c}\n")
    return "sha256:" + hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _counts(journal: Journal) -> dict[str, Any] | None:
    """Returns what became of the images; None before they were listed."""
    if journal.catalog is not None:
        counted = journal.catalog.counts
        listed, written, rejected, skipped = counted.listed, counted.written, counted.rejected, counted.skipped
    elif journal.plan is not None:
        plan = journal.plan
        rejected = plan.rejected if journal.rejected is None else journal.rejected
        listed, written, skipped = plan.listed, 0, plan.skipped
    else:
        return None
    counts = {"listed": listed, "written": written, "rejected": dict(rejected), "skipped": dict(skipped)}
    changes = {} if journal.changes is None else journal.changes._asdict()
    return counts | {name: count for name, count in changes.items() if count is not None}


def _splits(journal: Journal) -> dict[str, dict[str, int]] | None:
    """Returns the size of each split: as committed, or as planned by `plan`, whose bytes are those of the images."""
    sizes: dict[str, tuple[int, int, int]]
    if journal.catalog is not None:
        committed = journal.catalog.splits.items()
        sizes = {name: (each.num_examples, len(each.shards), each.num_bytes) for name, each in committed}
    elif journal.plan is not None and journal.command == "plan":
        planned = journal.plan.splits.items()
        sizes = {name: (each.num_records, each.num_shards, each.num_bytes) for name, each in planned}
    else:
        return None
    return {name: dict(zip(("examples", "shards", "bytes"), size)) for name, size in sizes.items()}


def _iso(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="milliseconds")
