"""The state of an output: what a run does there, or how the last one ended."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from imagebeam import catalog as catalog_lib
from imagebeam import errors, plural, snapshots, storage
from imagebeam.pipelines.beam import job_servers
from imagebeam.pipelines.messages import progress
from imagebeam.pipelines.runs import output_lock, remote_job
from imagebeam.storage import remote
from imagebeam.transforms.output import output_folder, run_report
from imagebeam.transforms.publish import run_records

Summary: TypeAlias = Literal["running", "committed", "failed", "cancelled", "stopped", "unknown", "nothing"]
_ENDED = ("DONE", "FAILED", "CANCELLED", "DRAINED", "STOPPED")  # states at a job server of Beam
_EXIT_CODES: dict[Summary, int] = {"running": 0, "committed": 0, "nothing": 2}  # 1 for all others


@dataclasses.dataclass(frozen=True)
class Status:
    """The state of an output.

    Attributes:
        output: its address.
        state: "running" a job or a process writes there; "committed" it holds a dataset, and nothing writes;
            "failed", "cancelled" or "stopped" (killed, or its lock expired) the last run has ended so;
            "unknown" the service does not answer, or the dataset cannot be read; "nothing" there is neither a run nor a
            dataset.
        doing: what a running job does, or the process that runs.
        job: the job of the last run, if it left one.
        counters: of the job, added up.
        causes: how the run ended: the text of its report, or the error messages of its job; and why a dataset that is
            there cannot be read.
        run_exit_code: that of a launcher that would have waited for the run, such as 3 for too many rejects; None if it
            is not known.
        release: how to release the lock of a job that its service has forgotten, or that cannot be asked for.
        ended: when a launcher saw the job end, if it did: ISO 8601, UTC.
        catalog: of the committed dataset, also while another run writes.
        keeps_shards: whether finished shards are kept for the next run.
    """

    output: str
    state: Summary
    doing: str = ""
    job: remote_job.RemoteJob | None = None
    counters: Mapping[str, int] = dataclasses.field(default_factory=dict)
    causes: Sequence[str] = ()
    run_exit_code: int | None = None
    release: str = ""
    ended: str = ""
    catalog: catalog_lib.Catalog | None = None
    keeps_shards: bool = False

    @property
    def exit_code(self) -> int:
        """Exit code of `imagebeam status`: 0 committed or running, 1 failed or not known, 2 nothing."""
        return _EXIT_CODES.get(self.state, 1)

    def to_json(self) -> dict[str, Any]:
        """Returns the status as JSON, without the whole catalog."""
        job = None if self.job is None else {**self.job.to_fields(), "console": self.job.console}
        catalog = self.catalog
        dataset = catalog and {
            "name": catalog.name,
            "fingerprint": catalog.fingerprint,
            "created": catalog.created,
            "snapshot": snapshots.name_of(catalog),
            "written": catalog.counts.written,
            "rejected": sum(catalog.counts.rejected.values()),
        }
        fields = {name: value for name, value in vars(self).items() if name != "catalog"}
        fields |= {"job": job, "counters": dict(self.counters), "causes": list(self.causes)}
        return fields | {"release": self.release or None, "ended": self.ended or None, "dataset": dataset}


def status(output: str) -> Status:
    """Returns the state of an output: what writes there, or how the last run ended, and the committed dataset.

    Args:
        output: the folder that `convert` was given as --output.

    Raises:
        ConfigError: if there is no such bucket, or there are no credentials for it.
        ImagebeamError: if the storage does not answer within a few seconds, or denies access.
    """
    output = storage.normalize(output)
    try:
        with remote.budget(remote.CHECK_BUDGET_SEC):  # an address is more likely to be wrong than down
            found = _look(output)
            if found.catalog is None and (problem := _find_problem(output)):
                state: Summary = "unknown" if found.state == "nothing" else found.state
                found = dataclasses.replace(found, state=state, causes=[*found.causes, problem])
            if found.state == "nothing":
                _require_bucket(output)
            return found
    except storage.UnavailableError as e:
        raise errors.ImagebeamError(
            "output-unreachable",
            f"{output} does not answer: check the network and the address, and run the command again "
            f"({e.strerror or e})",
        ) from e
    except OSError as e:
        where = f", {e.filename!r}" if e.filename else ""
        raise errors.ImagebeamError("output-unreadable", f"{output} cannot be read: {e.strerror or e}{where}") from e


def _look(output: str) -> Status:
    paths = _paths_of_runs(output)
    record = run_records.read_record(paths.lock)
    known = Status(output, "nothing", catalog=_find_catalog(output))
    if record is not None:
        job = output_lock.job_in(record)
        known = _of_process(known, record) if job is None else _of_job(known, job, paths)
    if known.state in ("running", "unknown"):
        return known
    shards: int | None = None
    with contextlib.suppress(storage.UnavailableError):  # how the run ended is what counts
        shards = output_lock.count_finished_shards(paths.output)
    known = dataclasses.replace(known, keeps_shards=bool(shards))
    last = remote_job.read_last_run(paths.output) if record is None else None
    if last is not None:
        ended: Summary = "cancelled" if last.state == "cancelled" else "failed"
        return dataclasses.replace(
            known, state=ended, job=last.job, causes=last.causes, run_exit_code=last.exit_code, ended=last.ended
        )
    refusal = _find_refusal(paths.metadata)
    if refusal is not None:
        return dataclasses.replace(known, state="failed", causes=[str(refusal)], run_exit_code=refusal.exit_code)
    if known.state == "nothing" and known.catalog is not None:
        return dataclasses.replace(known, state="committed")
    if known.state == "nothing" and shards is not None:
        left = plural.count(shards, "finished shard")
        return dataclasses.replace(known, state="stopped", causes=[f"an unfinished run left {left}"])
    return known


def _paths_of_runs(output: str) -> output_folder.OutputPaths:
    """Returns where runs write: to the folder of the next snapshot, if the output has snapshots."""
    latest: str | None = None
    with contextlib.suppress(errors.CatalogError):
        latest = snapshots.latest_name(output)
    next_one = output_folder.OutputPaths(snapshots.folder_of(output, snapshots.name_after(latest)))
    if latest is None and run_records.read_record(next_one.lock) is None:  # no first snapshot is being written either
        return output_folder.OutputPaths(output)
    return next_one


def _find_catalog(output: str) -> catalog_lib.Catalog | None:
    try:
        return snapshots.load_catalog(output)
    except errors.CatalogError as e:
        if isinstance(e.__cause__, storage.UnavailableError):  # there may be one
            raise e.__cause__ from e
        return None


def _find_problem(output: str) -> str:
    """Returns why the dataset in a folder cannot be read; "" if it can, or there is none."""
    try:
        if catalog_lib.find_catalog(output) is None and snapshots.latest_name(output) is not None:
            snapshots.load_catalog(output)
    except errors.CatalogError as e:
        return str(e)
    return ""


def _require_bucket(output: str) -> None:
    """Refuses an address in a bucket that does not exist, where nothing was found."""
    store = storage.storage_of(output)
    if store.is_local:
        return
    try:
        store.stat(storage.root_of(output))
    except FileNotFoundError as e:
        raise errors.ConfigError("address-not-found", f"{output}: {e.strerror or e}; check the address") from e
    except PermissionError:  # some may read a part of a bucket only
        return


def _of_job(known: Status, job: remote_job.RemoteJob, paths: output_folder.OutputPaths) -> Status:
    """Returns the status of an output whose lock names a job."""
    try:
        service = remote_job.service_of(job)
        job, state = remote_job.look_up(job, service)
        counters: Mapping[str, int] = {}
        with contextlib.suppress(OSError, errors.ConfigError):  # the state is what counts
            counters = service.counters(job.id) if job.id else {}
        known = dataclasses.replace(known, job=job, counters=counters)
        if state not in remote_job.ENDED:
            return dataclasses.replace(known, state="running", doing=progress.describe(state, counters))
        if state == "done":
            catalog = _find_catalog(known.output)  # newer than at the first look
            if catalog is not None:
                return dataclasses.replace(known, state="committed", catalog=catalog)
            causes = ["the job is done, and there is no dataset: something else has removed it"]
            return dataclasses.replace(known, state="failed", causes=causes, catalog=None)
        causes = service.error_lines(job.id) if job.id else ["it was never submitted, or has ended"]
        ended: Summary = "failed" if state == "failed" else "cancelled"
        return dataclasses.replace(known, state=ended, causes=causes)
    except (OSError, errors.ConfigError) as e:
        cause = str(getattr(e, "strerror", None) or e)
        release = output_lock.advise_release(paths.lock, job, e)
        return dataclasses.replace(known, state="unknown", job=job, causes=[cause], release=release)


def _of_process(known: Status, record: run_records.RunRecord) -> Status:
    """Returns the status of an output that a process writes, or wrote until it was killed."""
    is_renewed = not storage.storage_of(known.output).is_local
    who, is_gone = record.describe(is_renewed), record.is_gone(is_renewed)
    state, seen = _ask_job_server(record) if record.job_server else ("", "")
    if not is_gone:
        return dataclasses.replace(known, state="running", doing=f"{who}; {seen}" if seen else who)
    if state and state not in _ENDED:
        return dataclasses.replace(known, state="running", doing=f"{seen}; its launcher, {who}, is gone")
    if state == "DONE" and known.catalog is not None:
        return known
    return dataclasses.replace(known, state="stopped", causes=[f"{who}, is gone", *filter(None, [seen])])


def _ask_job_server(record: run_records.RunRecord) -> tuple[str, str]:
    """Returns the state of the job that a lock names at a job server, "" if it is not known; and a text on it."""
    name = record.job_name
    try:
        state = job_servers.ServedJob(record.job_server, name).state()
    except (OSError, ModuleNotFoundError) as e:  # ModuleNotFoundError: without Beam
        why = getattr(e, "strerror", None) or e
        return "", f"{why}: ask the cluster for the job {name} (`flink list`, or the page of Spark's master)"
    return state, f"job {name} is {state} at the job server {record.job_server}"


def _find_refusal(control: str) -> errors.ImagebeamError | None:
    """Returns why a run was refused, from the report that its job left; None if there is none."""
    try:
        names = [entry.name for entry in storage.storage_of(control).list_directory(control)]
    except (FileNotFoundError, NotADirectoryError):
        return None
    for name in sorted(names):
        if name.startswith(output_folder.REPORT_PREFIX) and name.endswith(".json"):
            report = run_report.read_report(storage.join(control, name))
            if report is not None and report.error is not None:
                return report.error
    return None


def status_rows(found: Status) -> list[tuple[str, str]]:
    """Returns a status as rows of a table."""
    rows = [("state", found.state + (f": {found.doing}" if found.doing else ""))]
    if found.job is not None:
        rows.append(("job", found.job.id or f"{found.job.name} (its id is not known)"))
        if found.job.console:
            rows.append(("console", found.job.console))
        if found.state in ("running", "unknown") and found.job.id and found.job.cancel_command:
            rows.append(("to cancel", found.job.cancel_command))
    rows += [("counter", f"{name} {value:,}") for name, value in sorted(found.counters.items())]
    if found.ended:
        rows.append(("ended", found.ended))
    rows += [("cause", cause) for cause in found.causes]
    if found.release:
        rows.append(("to release", found.release))
    if found.keeps_shards:
        rows.append(("kept", "finished shards; run the same command again to go on"))
    if found.catalog is not None:
        counts = found.catalog.counts
        images = plural.count(counts.written, "image")
        snapshot = snapshots.name_of(found.catalog)
        which = f", snapshot {snapshot}" if snapshot else ""
        rows.append(("dataset", f"{found.catalog.name}{which}, {images}, written {found.catalog.created}"))
    rows.append(("output", found.output))
    return rows
