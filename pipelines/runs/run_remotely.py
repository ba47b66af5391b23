"""Submits a pipeline as a job that outlives its launcher, and waits for its end: two steps, with a lock around both.

`submit` and `wait` are the steps, and `Run` is what they share. A launcher that leaves while the job runs leaves the
lock to the job. One that sees its job end badly records that end in the output, before the lock is released.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from imagebeam import catalog as catalog_lib
from imagebeam import errors
from imagebeam.pipelines.runs import output_lock, remote_job
from imagebeam.storage import remote
from imagebeam.transforms import elements
from imagebeam.transforms.output import output_folder, run_report

_SILENCE = ""  # the key of the note that the service is silent
_RECORD_SEC = 10.0  # limit for each request that records a bad end
_CLOCKS_SEC = 60.0  # the clocks of a worker and of the service may differ by this
_QUESTION_SEC = 10.0  # limit for one question while waiting, with its repetitions


class Shown(Protocol):
    """Shows a job to the user while it runs."""

    def update(self, state: remote_job.State, counters: Mapping[str, int]) -> None: ...
    def say(self, text: str) -> None: ...


@dataclasses.dataclass(frozen=True)
class Patience:
    """Intervals between looks at a job, and limits on the silence of its service."""

    first_sec: float = 0.5  # between the first two looks
    longest_sec: float = 10.0
    growth: float = 1.5
    silence_sec: float = 60.0  # without an answer, until a note says so
    unreachable_sec: float = 900.0  # without an answer, until the launcher leaves
    messages_sec: float = 50.0  # after a failure, until its messages have arrived: 30 s are usual

    def pauses(self) -> Iterator[float]:
        pause = self.first_sec
        while True:
            yield pause
            pause = min(pause * self.growth, self.longest_sec)


class Interrupted(KeyboardInterrupt):
    """The launcher was interrupted; the text says whether its job goes on, and how to look at it and cancel it."""


class Run(NamedTuple):
    """A run as a job: where its traces are, and how it is shown."""

    job: remote_job.RemoteJob
    output: str
    report: str
    lock: output_lock.Lock
    shown: Shown | None
    cancel_on_interrupt: bool = False
    patience: Patience = Patience()
    identity: str = ""  # identity of the config, see `DatasetSettings.identity`; "" if it is not known
    is_template: bool = False  # whether only a template is written, so that there is no job to look for

    def named(self, id: str) -> Run:
        return self._replace(job=dataclasses.replace(self.job, id=id))

    def say(self, text: str) -> None:
        if self.shown is not None:
            self.shown.say(text)

    @property
    def kept(self) -> str:
        """The end of a message on a run that failed: what of its work is kept."""
        return "" if isinstance(self.lock, output_lock.NoLock) else output_lock.describe_kept(self.output)

    @property
    def advice(self) -> str:
        """Commands that show the job and cancel it."""
        job = self.job
        cancel = f"; to cancel it: {job.cancel_command}" if job.id else ""
        status = (
            f"; to ask for it: imagebeam status {self.output}" if not isinstance(self.lock, output_lock.NoLock) else ""
        )
        return f"{job.console}{status}{cancel}"


def submit(run: Run, start: Callable[[], str | None]) -> Run | None:
    """Submits a job; returns the run with the id of the job, or None if `start` only wrote a template.

    Args:
        run: whose job has no id yet.
        start: submits the pipeline and returns the job's id, or None for a template.

    Raises:
        BusyError: if a job of this name is active already, or another run took over the lock.
        ConfigError: if the service refuses the job.
        ImagebeamError: if it could not be submitted.
        Interrupted: if it was interrupted and the job may exist.
    """
    run.lock.name_job(run.job)
    verb = "submitted"
    try:
        id = start()
    except KeyboardInterrupt as e:
        found = _find_submitted(run)
        if found is None:
            run.lock.forget_job()
            raise
        _stop(found, e)
        raise
    except Exception as e:  # Beam raises any type
        failure = explain_submission(e, run.job)
        is_refused = 400 <= (_code_of(e) or 0) < 500 or isinstance(failure, errors.BusyError)
        if isinstance(failure, errors.BusyError):
            found, verb = _find_committed(run), "waiting for the end of"
        else:
            found = None if is_refused else _find_submitted(run)
        if found is None:
            run.lock.forget_job()
            raise failure from e
        if not found.job.id:
            run.lock.keep()
            raise failure.extended(f"; it may run nevertheless: {run.advice}") from e
        id = found.job.id  # only the answer was lost, or the job of an earlier run is about to end
    if id is None:
        return None
    run = run.named(id)
    try:
        run.lock.name_job(run.job)
    except OSError as e:  # the lock has the name of the job, by which it is found
        run.say(f"the id of the job could not be stored in the lock: {e.strerror or e}")
    except errors.BusyError as e:
        job = remote_job.describe(run.job)
        raise e.extended(f"; {job} was submitted before that, and will not commit: {run.advice}") from e
    run.say(f"{verb} {remote_job.describe(run.job)}: {run.job.console}")
    return run


def _find_submitted(run: Run) -> Run | None:
    """Returns the run if its job exists, with its id; without an id if nobody can tell; None if it does not exist."""
    if run.is_template:
        return None
    try:
        found = remote_job.service_of(run.job, _QUESTION_SEC).find_active(run.job.name)
    except (OSError, errors.ConfigError):
        return run
    return None if found is None else run.named(found.id)


def _find_committed(run: Run) -> Run | None:
    """Returns the run with the id of the active job of its name, if that job has committed the dataset of this run.

    For a job without a launcher: it removes its lock when it has committed, and is active for some seconds more.
    """
    if run.is_template or isinstance(run.lock, output_lock.NoLock):
        return None
    try:
        catalog = _dataset_of(run.output, run.identity)
        found = remote_job.service_of(run.job, _QUESTION_SEC).find_active(run.job.name)
    except (OSError, errors.ConfigError, _NotOfThisRunError):
        return None
    if found is None or not 0 < found.created_sec <= _created_sec(catalog):
        return None
    run.say(f"{run.output} is committed by an earlier run of this command, whose job has not quite ended")
    return run.named(found.id)


def _code_of(error: Exception) -> int | None:
    """Returns the status code of an error of Google's clients; None for any other error."""
    code = getattr(error, "code", None)  # google.api_core.exceptions.GoogleAPICallError
    return code if isinstance(code, int) else None


def explain_submission(error: Exception, job: remote_job.RemoteJob) -> errors.ImagebeamError:
    """Returns the error for a submission that failed."""
    code = _code_of(error)
    text = remote_job.text_of(error)
    if code == 409 or type(error).__name__ == "DataflowJobAlreadyExistsError":
        return errors.BusyError(
            "job-runs-already",
            f"Dataflow runs a job named {job.name} already ({text}): wait until it has ended, or cancel it",
        )
    if code in (401, 403):
        return errors.ConfigError(
            "job-refused",
            f"Dataflow refuses the job ({text}): the credentials need the role roles/dataflow.developer, and the "
            "workers' service account roles/dataflow.worker; docs/dataflow.md lists them",
        )
    if code in (400, 404):
        return errors.ConfigError(
            "job-refused",
            f"Dataflow refuses the job: {text}; check that there is a region {job.region!r}, that the project "
            f"{job.project!r} exists and has the API (gcloud services enable dataflow.googleapis.com "
            f"--project={job.project}), and that these credentials have the role roles/dataflow.developer there",
        )
    if code == 429:
        return errors.ImagebeamError(
            "dataflow-quota", f"Dataflow takes no more jobs at this moment ({text}): run the command again later"
        )
    return errors.ImagebeamError("job-not-submitted", f"the job could not be submitted: {text}")


def wait(run: Run) -> run_report.RunReport:
    """Waits for the end of a job and returns the report of its run.

    Raises:
        ImagebeamError: if the job failed or was cancelled, or the service is silent for long; then the lock is kept.
        Interrupted: if it was interrupted; the lock is kept.
    """
    try:
        state = _poll(run)
    except KeyboardInterrupt as e:
        state = _stop(run, e)
    try:
        return _settle(run, state)
    finally:
        run.lock.forget_job()  # it has ended; before that, no error of this process may release the lock


def _stop(run: Run, cause: KeyboardInterrupt) -> remote_job.State:
    """Leaves a job and its lock, or cancels it; returns the state of a job that ended before it was cancelled."""
    job = remote_job.describe(run.job)
    if not run.cancel_on_interrupt or not run.job.id:
        run.lock.keep()
        raise Interrupted(f"{job} {'goes' if run.job.id else 'may go'} on: {run.advice}") from cause
    state = _cancel(run)
    if state == "cancelled":
        _record_end(run, "cancelled")
        run.lock.forget_job()
        raise Interrupted(f"{job} was cancelled{run.kept}") from cause
    return state


def _poll(run: Run) -> remote_job.State:
    """Looks at a job, with one request at a time, until it has ended; shows what it does and its errors."""
    service = remote_job.service_of(run.job, min(_QUESTION_SEC, run.patience.unreachable_sec))
    answered = time.monotonic()
    shown: set[str] = set()
    for pause in run.patience.pauses():
        try:
            state = service.get(run.job.id).state
            if state in remote_job.ENDED:
                return state
            _show(run, service, state, shown)
            answered = time.monotonic()
            shown.discard(_SILENCE)
        except (OSError, errors.ConfigError) as e:  # also "no such job", for a moment after the submission
            silent_sec = time.monotonic() - answered
            if silent_sec >= run.patience.silence_sec and _SILENCE not in shown:
                run.say(f"no answer, asking on: {getattr(e, 'strerror', None) or e}")
                shown.add(_SILENCE)
            if silent_sec >= run.patience.unreachable_sec:
                run.lock.keep()
                why = getattr(e, "strerror", None) or e
                raise errors.ImagebeamError(
                    "dataflow-silent",
                    f"no answer on {remote_job.describe(run.job)} for {silent_sec:.0f} s ({why}); it may go on: "
                    f"{run.advice}",
                ) from e
        time.sleep(pause)
    raise AssertionError


def _show(run: Run, service: remote_job.Service, state: remote_job.State, shown: set[str]) -> None:
    if run.shown is None:
        return
    try:
        run.shown.update(state, service.counters(run.job.id) if state == "running" else {})
        for line in service.error_lines(run.job.id) if state == "running" else ():
            if line not in shown:
                run.say(f"error on a worker: {line}")
                shown.add(line)
    except (OSError, errors.ConfigError):  # the state is what counts
        return


def _cancel(run: Run) -> remote_job.State:
    """Cancels a job and waits for its end. A second interruption leaves the job and its lock."""
    run.say(f"cancelling {remote_job.describe(run.job)}; to leave it, interrupt once more")
    try:
        remote_job.service_of(run.job).cancel(run.job.id)
        return _poll(run)
    except (KeyboardInterrupt, OSError, errors.ConfigError) as e:
        run.lock.keep()
        raise Interrupted(f"{remote_job.describe(run.job)} may go on: {run.advice}") from e


def _settle(run: Run, state: remote_job.State) -> run_report.RunReport:
    """Returns the report of a job that has ended, or raises how it failed."""
    report = run_report.read_report(run.report) if run.report else None
    if report is not None and report.error is not None:
        _record_end(run, "refused", [str(report.error)], report.error.exit_code)
        return report
    job = remote_job.describe(run.job)
    if state == "done":
        if report is not None:
            return report
        try:
            return _report_of_committed(run)
        except errors.ImagebeamError as e:
            _record_end(run, "failed", [str(e)])
            raise
    if state == "cancelled":
        _record_end(run, "cancelled")
        raise errors.ImagebeamError("job-cancelled", f"{job} was cancelled{run.kept}")
    _record_end(run, "failed")  # its messages may be long in coming, and the user may leave
    lines = error_lines(run)
    if lines:
        _record_end(run, "failed", lines)
    causes = "; ".join(lines) if lines else "Dataflow tells no error; its logs may"
    raise errors.ImagebeamError("job-failed", f"{job} failed: {causes} ({run.job.console}){run.kept}")


def _record_end(run: Run, state: remote_job.BadEnd, causes: Sequence[str] = (), exit_code: int = 1) -> None:
    """Records in the output how the job of this run ended, if this run holds the lock; gives up on a silent storage.

    A job to which this run is attached has the lock of another launcher, which records its end or has left the lock.
    """
    if isinstance(run.lock, output_lock.NoLock) or run.lock.running is not None:
        return
    with contextlib.suppress(OSError, errors.ImagebeamError), remote.budget(_RECORD_SEC):
        run.lock.name_job(run.job)  # BusyError if another run took over the lock: the record is not ours to write
        remote_job.record_last_run(run.output, state, run.job, causes, exit_code)


def error_lines(run: Run) -> list[str]:
    """Returns the error messages of a job that failed; waits for them, as they arrive after its end."""
    service = remote_job.service_of(run.job)
    give_up = time.monotonic() + run.patience.messages_sec
    for pause in run.patience.pauses():
        try:
            if lines := service.error_lines(run.job.id):
                return lines
        except (OSError, errors.ConfigError) as e:
            return [f"its messages cannot be read: {getattr(e, 'strerror', None) or e}"]
        if time.monotonic() >= give_up:
            break
        time.sleep(pause)
    return []


def _report_of_committed(run: Run) -> run_report.RunReport:
    """Returns a report on a job that is done and has removed its own report, from the catalog.

    Such a job has committed, or has found this dataset in the output: then the catalog is older than the job. A dataset
    of another config was committed by somebody else.

    Raises:
        ImagebeamError: if the output holds no dataset that the job can have committed or found.
    """
    ended = f"{remote_job.describe(run.job)} ended without its report, {run.report}"
    if isinstance(run.lock, output_lock.NoLock):  # a plan: a dataset in the output is not its result
        raise errors.ImagebeamError("job-without-report", f"{ended}; run the command again")
    try:
        catalog = _dataset_of(run.output, run.identity)
    except _NotOfThisRunError as e:
        raise errors.ImagebeamError("job-without-report", f"{ended}, {e}; run the command again") from e
    created_sec = 0.0
    with contextlib.suppress(OSError, errors.ConfigError):  # then the job counts as the one that has committed
        created_sec = remote_job.service_of(run.job, _QUESTION_SEC).get(run.job.id).created_sec
    plan = _plan_of(catalog)
    if 0 < _created_sec(catalog) < created_sec - _CLOCKS_SEC:
        message = f"{run.output} held this dataset already, written {catalog.created}"
        return run_report.RunReport("kept", plan, message)
    return run_report.RunReport("committed", plan)


def _plan_of(catalog: catalog_lib.Catalog) -> elements.DatasetPlan:
    """Returns the plan that a committed dataset must have had, as far as its catalog tells."""
    splits = {
        name: elements.SplitPlan(split.num_examples, split.num_bytes, len(split.shards))
        for name, split in catalog.splits.items()
    }
    counts = catalog.counts
    return elements.DatasetPlan(
        "write", "", catalog.fingerprint, splits, catalog.labels, counts.listed, {}, counts.skipped
    )


class _NotOfThisRunError(Exception):
    """An output holds no dataset that a run can have committed."""


def _dataset_of(output: str, identity: str) -> catalog_lib.Catalog:
    """Returns the catalog of the dataset in an output, if it is of this config.

    Args:
        output: address of the folder.
        identity: of the config: `DatasetSettings.identity`.

    Raises:
        _NotOfThisRunError: if there is no dataset, or one of another config.
    """
    try:
        catalog = catalog_lib.load_catalog(output)
    except errors.CatalogError as e:
        raise _NotOfThisRunError("without a dataset") from e
    if not run_report.are_of(catalog.inputs, identity):
        raise _NotOfThisRunError(f"and {output} holds a dataset of another config ({output_folder.describe(catalog)})")
    return catalog


def _created_sec(catalog: catalog_lib.Catalog) -> float:
    """Returns when a dataset was committed, in seconds since the epoch; 0 if its catalog does not tell."""
    try:
        return datetime.datetime.fromisoformat(catalog.created).timestamp()
    except ValueError:
        return 0.0
