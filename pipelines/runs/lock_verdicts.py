"""Decides what a run does about the lock of another one that it finds: take it, wait, refuse, or attach to its job."""

from __future__ import annotations

from typing import Literal, NamedTuple

from imagebeam import errors
from imagebeam.pipelines.runs import remote_job
from imagebeam.transforms.publish import run_record


def job_in(record: run_record.RunRecord) -> remote_job.RemoteJob | None:
    """Returns the job that a lock names; None if it names none.

    Raises:
        BusyError: if this version does not understand the job.
    """
    if record.job is None:
        return None
    try:
        return remote_job.RemoteJob.from_fields(record.job)
    except ValueError as e:
        raise errors.BusyError(
            f"the lock of this output names a job that this imagebeam does not know ({e}): update imagebeam, or choose "
            "another --output"
        ) from e


class Verdict(NamedTuple):
    """What a run does about a lock that it finds."""

    action: Literal["take", "wait", "refuse", "attach"]
    reason: str = ""  # to wait or to refuse
    job: remote_job.RemoteJob | None = None  # the job that holds the lock; of "take", the job that has ended


def judge(lock: str, holder: run_record.RunRecord, config: str, is_gone: bool, is_renewed: bool) -> Verdict:
    """Decides what to do about a lock; asks the service of the job that it names.

    Args:
        lock: address of the lock.
        holder: the record in it.
        config: digest of what this run does; "" if it attaches to no job.
        is_gone: whether the process that wrote the record is gone.
        is_renewed: whether locks on this storage are renewed.
    """
    job = job_in(holder)
    if job is None or not (job.id or is_gone):  # without an id the job is being submitted at this moment
        return Verdict("take") if is_gone else Verdict("wait", _explain_holder(lock, holder, is_renewed))
    try:
        job, state = remote_job.look_up(job)
    except (OSError, errors.ConfigError) as e:
        return Verdict("refuse", _explain_unknown(lock, job, e))
    if state in remote_job.ENDED:
        return Verdict("take", job=job)
    if config and holder.config == config:
        return Verdict("attach", job=job)
    cancel = f", cancel it ({job.cancel_command})," if job.id else ""
    return Verdict(
        "refuse",
        f"another run writes to this output: {remote_job.describe(job)}, which is {state} ({job.console}); wait until "
        f"it has ended{cancel} or choose another --output",
    )


def _explain_unknown(lock: str, job: remote_job.RemoteJob, error: Exception) -> str:
    """Returns why a run is refused whose service does not tell the state of the job that holds the lock."""
    name, why = remote_job.describe(job), getattr(error, "strerror", None) or error
    look = f"look at {job.console}" if job.console else f"look at {job.service}"
    if release := advise_release(lock, job, error):
        return (
            f"the lock of this output names {name}, and its state is not known ({why}): {look}; {release}, otherwise "
            "wait for it or choose another --output"
        )
    return (
        f"{name} may still write to this output, and its state is not known ({why}): {look}, and try again, or choose "
        "another --output"
    )


def advise_release(lock: str, job: remote_job.RemoteJob, error: Exception) -> str:
    """Returns how to release a lock whose job the service has forgotten, or cannot be asked for.

    "" where the service may answer later.
    """
    if not isinstance(error, FileNotFoundError) and job.console:
        return ""
    return f"if the job has ended, remove {lock} and run the same command again"


def _explain_holder(lock: str, holder: run_record.RunRecord, is_renewed: bool) -> str:
    who = holder.describe(is_renewed)
    if holder.is_dated or not is_renewed:
        return explain_process(who, is_renewed)
    return (
        f"another run writes to this output ({who}): wait until it has ended, or choose another --output; if it was "
        f"killed, remove {lock}"
    )


def explain_process(who: str, is_renewed: bool) -> str:
    """Returns why a run waits for the process that holds the lock, or is refused.

    Args:
        who: description of the process.
        is_renewed: whether locks on this storage are renewed.
    """
    if not is_renewed:
        return (
            f"another run writes to this output at this moment ({who}); wait until it has ended, or choose another "
            "--output"
        )
    return (
        f"another run writes to this output ({who}): wait until it has ended, or choose another --output; if it was "
        f"killed, try again in {run_record.LEASE_SEC / 60:g} minutes"
    )
