"""Locks an output, so that only one run at a time writes to it, and tells what an unfinished run has left there.

The lock is a file that names the run, its process and, if it was submitted to a service, its job. A job can outlive its
launcher: its lock is void only when the service says that the job has ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

from imagebeam import errors, storage
from imagebeam.pipelines.runs import remote_job
from imagebeam.storage import remote
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.publish import run_records
from imagebeam.transforms.shard import shard_writer


def job_in(record: run_records.RunRecord) -> remote_job.RemoteJob | None:
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
            "lock-unknown-job",
            f"the lock of this output names a job that this imagebeam does not know ({e}): update imagebeam, or choose "
            "another --output",
        ) from e


class Verdict(NamedTuple):
    """The reaction of a run to a lock that it finds."""

    action: Literal["take", "wait", "refuse", "attach"]
    reason: str = ""  # to wait or to refuse
    job: remote_job.RemoteJob | None = None  # the job that holds the lock; of "take", the job that has ended


def judge(lock: str, holder: run_records.RunRecord, config: str, is_gone: bool, is_renewed: bool) -> Verdict:
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
        return Verdict("take") if is_gone else Verdict("wait", _explain(lock, holder, is_renewed))
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


def _explain(lock: str, holder: run_records.RunRecord, is_renewed: bool) -> str:
    return explain_process(holder.describe(is_renewed), is_renewed, "" if holder.is_dated else f"remove {lock}")


def explain_process(who: str, is_renewed: bool, remedy: str = "") -> str:
    """Returns why a run waits for the process that holds the lock, or is refused.

    Args:
        who: description of the process.
        is_renewed: whether locks on this storage are renewed.
        remedy: what to do if the process was killed, on a storage where locks are renewed; by default to wait.
    """
    moment = "" if is_renewed else " at this moment"
    text = f"another run writes to this output{moment} ({who}): wait until it has ended, or choose another --output"
    remedy = remedy or f"try again in {run_records.LEASE_SEC / 60:g} minutes"
    return f"{text}; if it was killed, {remedy}" if is_renewed else text


_LOGGER = logging.getLogger("imagebeam.pipelines.output_lock")  # users select lines of logs by this name

_PATIENCE_SEC = 2.0  # how long to wait for a run that is just ending
_LOOK_SEC, _LOOK_AT_LEASE_SEC = 0.05, 0.2  # between two looks at its lock


class Lock:
    """The lock of an output, as its holder sees it. Thread-safe.

    Attributes:
        running: the job that holds the lock, if it does the same as this run; then nothing was locked.
        running_run: id of the run that submitted that job.
        is_kept: whether the lock stays when this run leaves.
        own_config: digest by which this run knows the job to attach to; "" if it attaches to none.
    """

    def __init__(self, record: run_records.RunRecord, attaches: bool = False):
        self.record = record
        self.own_config = record.config if attaches else ""
        self.running: remote_job.RemoteJob | None = None
        self.running_run = ""
        self.is_kept = False
        self.write: Callable[[run_records.RunRecord], None] | None = None  # stores the record after each change
        self._changing = threading.Lock()

    def name_job(self, job: remote_job.RemoteJob) -> None:
        """Stores the job for which the lock is held: before it is submitted, and again when its id is known.

        Raises:
            BusyError: if another run took over the lock.
        """
        self._update(job=job.to_fields())

    def name_served_job(self, server: str, name: str) -> None:
        """Stores the job at a job server of Beam, for those who ask for it. The lock stays that of this process.

        Args:
            server: HOST:PORT.
            name: of the job.

        Raises:
            BusyError: if another run took over the lock.
        """
        self._update(job_server=server, job_name=name)

    def forget_job(self) -> None:
        """Removes the job that was named: it was never submitted, or has ended. Then this run may release the lock."""
        with contextlib.suppress(OSError, errors.BusyError):  # then the next run asks for the state of the job
            self._update(job=None)

    @property
    def stays(self) -> bool:
        """True if the lock is not released when this run leaves, however it leaves: a job that it names may run."""
        return self.is_kept or self.record.job is not None

    def keep(self) -> None:
        """Leaves the lock to the job that was named. This process may end."""
        self.is_kept = True
        with contextlib.suppress(OSError, errors.BusyError):  # without it, the lease tells the same later
            self._update(is_left_to_job=True)

    def attach(self, job: remote_job.RemoteJob, run: str) -> None:
        self.running, self.running_run = job, run

    def renew(self) -> None:
        self._update(time=time.time())

    def _update(self, **fields: Any) -> None:
        with self._changing:
            record = dataclasses.replace(self.record, **fields)
            if self.write is not None:  # otherwise nothing was locked
                self.write(record)
            self.record = record


class NoLock(Lock):
    """Lock of jobs that write nothing to an output."""

    def __init__(self) -> None:
        super().__init__(run_records.RunRecord.of_this_process(""))


def hold_for_steps(control: str, run: str) -> None:
    """Takes the lock of an output for a pipeline without a launcher, whose steps renew it: see StepsLock.

    A bundle that runs twice takes it twice.

    Args:
        control: the metadata folder of the output.
        run: id of the run.

    Raises:
        BusyError: if another run holds it.
        ConfigError: if the folder cannot be made.
    """
    with _hold(control, Lock(run_records.RunRecord.of_this_process(run, by_steps=True))) as lock:
        lock.is_kept = True


@contextlib.contextmanager
def hold(control: str, run: str = "", config: str = "", attaches: bool = False) -> Iterator[Lock]:
    """Holds the lock in the metadata folder of an output.

    On the local disk the kernel releases it when this process ends. Elsewhere it is a file, renewed every 30 s, which
    expires after two and a half minutes, or at once if its process was on this host and no longer exists. If it names
    a job, it is void only when the service says that the job has ended.

    If a job holds it that does the same as this run, and this run attaches to it, nothing is locked: see
    `Lock.running`.

    Args:
        control: the folder.
        run: id of this run.
        config: digest of what this run does: equal for the same command.
        attaches: whether the caller then waits for the job that does the same.

    Raises:
        BusyError: if another run holds it.
        ConfigError: if the folder cannot be made.
    """
    record = run_records.RunRecord.of_this_process(run or output_folder.new_run_id(), config=config)
    with _hold(control, Lock(record, attaches)) as lock:
        yield lock


@contextlib.contextmanager
def _hold(control: str, lock: Lock) -> Iterator[Lock]:
    path = storage.join(control, output_folder.LOCK_FILE)
    with (_LocalLock if storage.storage_of(control).is_local else _Lease)(path, lock).held():
        yield lock


class _LocalLock:
    """A lock of the kernel on a file, which holds the record of the run."""

    def __init__(self, path: str, lock: Lock):
        self._path = path
        self._lock = lock
        self._file = -1

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        control = os.path.dirname(self._path)
        output = os.path.dirname(control)
        is_new = not os.path.exists(output)
        if not self._acquire():
            yield
            return
        try:
            self._write(self._lock.record)
            self._lock.write = self._write
            yield
        finally:
            if not self._lock.stays:
                with contextlib.suppress(FileNotFoundError):
                    if _is_at(self._file, self._path):
                        os.unlink(self._path)
            os.close(self._file)
            with contextlib.suppress(OSError):  # not empty: staged shards to continue with, or a dataset
                os.rmdir(control)
                if is_new:
                    os.rmdir(output)

    def _acquire(self) -> bool:
        """Returns True once the file is locked, False if a job holds it to which this run can attach."""
        give_up = time.monotonic() + _PATIENCE_SEC
        while True:
            is_late = time.monotonic() > give_up
            try:
                os.makedirs(os.path.dirname(self._path), exist_ok=True)
                file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as e:
                # The previous run may be removing the folder: makedirs then fails because it exists or does not.
                if is_late or not isinstance(e, (FileNotFoundError, FileExistsError)):
                    raise errors.ConfigError(
                        "output-unwritable", f"--output cannot be written: {e.strerror}, {e.filename!r}"
                    ) from e
            else:
                try:
                    verdict = self._take(file)
                except BaseException:
                    os.close(file)  # which releases it
                    raise
                if verdict.action == "take":
                    self._file = file
                    return True
                os.close(file)
                if verdict.action == "attach" and verdict.job is not None:
                    return False
                if is_late or verdict.action == "refuse":
                    raise errors.BusyError("output-busy", verdict.reason)
            time.sleep(_LOOK_SEC)

    def _take(self, file: int) -> Verdict:
        """Locks the open file, if no other process has locked it and no job holds it."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = _is_at(file, self._path)  # each run removes it
        except (BlockingIOError, FileNotFoundError):
            is_free = False
        holder = run_records.parse_record(os.pread(file, 1 << 16, 0))
        if holder is None:
            waits = Verdict("wait", explain_process(f"its lock is {self._path}", is_renewed=False))
            return Verdict("take") if is_free else waits
        is_gone = is_free and (not holder.by_steps or holder.is_gone(True) or holder.run == self._lock.record.run)
        verdict = judge(self._path, holder, self._lock.own_config, is_gone, is_renewed=holder.by_steps)
        if verdict.action == "attach" and verdict.job is not None:
            self._lock.attach(verdict.job, holder.run)
        elif verdict.action == "take" and not is_free:  # its launcher is just ending
            return Verdict("wait", explain_process(holder.describe(False), is_renewed=False))
        elif verdict.action == "take":
            self._lock.record = self._lock.record.after(holder, has_ended=verdict.job is not None)
        return verdict

    def _write(self, record: run_records.RunRecord) -> None:
        data = record.encode()
        os.pwrite(self._file, data, 0)  # before the file is cut: a reader takes the first line
        os.ftruncate(self._file, len(data))


def _is_at(file: int, path: str) -> bool:
    return os.path.samestat(os.fstat(file), os.stat(path))


class _Lease:
    """A lock for storages without file locks: a file that only one run can create, renewed while the run lives."""

    def __init__(self, uri: str, lock: Lock):
        self._uri = uri
        self._lock = lock
        self._store = storage.storage_of(uri)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        may_be_held = True  # also if a signal ends this process while it locks
        try:
            try:
                may_be_held = self._acquire()
            except OSError as e:
                may_be_held = False
                raise errors.ConfigError("output-unwritable", f"--output cannot be written: {e.strerror or e}") from e
            if may_be_held:
                self._lock.write = self._write
            with run_records.renewing(self._lock.renew) if may_be_held else contextlib.nullcontext():
                yield
        finally:
            if may_be_held and not self._lock.stays:
                with contextlib.suppress(OSError):  # if it stays, it expires
                    run_records.remove_own_record(self._uri, self._is_own)
                    run_records.remove_if_empty(os.path.dirname(self._uri))

    def _acquire(self) -> bool:
        """Returns True once the lock is this run's, False if a job holds it to which this run can attach."""
        give_up = time.monotonic() + _PATIENCE_SEC
        self._store.make_directories(os.path.dirname(self._uri))
        watch, has_warned = run_records.RecordWatch(), False
        while not self._store.create_new(self._uri, self._lock.record.encode()):
            try:
                content = self._store.read(self._uri)
            except FileNotFoundError:
                continue
            holder = run_records.parse_record(content)
            verdict = Verdict("take")  # nobody can tell who wrote something else
            seen = "renewed" if holder is None or holder.is_dated else watch.look(content)
            if holder is not None:
                is_left = holder.is_left_to_job or holder.run == self._lock.record.run
                is_gone = is_left or holder.is_gone(is_renewed=True) or seen == "expired"
                verdict = judge(self._uri, holder, self._lock.own_config, is_gone, is_renewed=True)
            if verdict.action == "attach" and verdict.job is not None and holder is not None:
                self._lock.attach(verdict.job, holder.run)
                return False
            if verdict.action == "take":
                record = self._lock.record.after(holder, has_ended=verdict.job is not None)
                self._lock.record = dataclasses.replace(record, time=time.time())
                if self._store.replace(self._uri, content, self._lock.record.encode()):
                    if self._store.swaps_atomically:
                        return True
                    time.sleep(run_records.SETTLE_SEC)
                    found = run_records.read_record(self._uri)
                    if found is not None and self._is_own(found):
                        return True
            elif verdict.action == "refuse" or (time.monotonic() > give_up and seen == "renewed"):
                raise errors.BusyError("output-busy", verdict.reason)
            elif time.monotonic() > give_up:
                if not has_warned:
                    text = "%s; looking for %g s whether the lock changes, and taking it over if not"
                    _LOGGER.warning(text, verdict.reason, run_records.LEASE_SEC)
                has_warned = True
                time.sleep(run_records.WATCH_SEC)
            time.sleep(_LOOK_AT_LEASE_SEC)
        return True

    def _write(self, record: run_records.RunRecord) -> None:
        if not run_records.replace_own_record(self._uri, self._is_own, record):
            raise errors.BusyError(
                "lock-taken-over",
                f"another run took over the lock {self._uri}, which was not renewed for {run_records.LEASE_SEC:g} s: "
                "run the same command again once that run has ended",
            )

    def _is_own(self, found: run_records.RunRecord) -> bool:
        return found.run == self._lock.record.run


def count_finished_shards(output: str) -> int | None:
    """Returns the number of finished shards in the staging folders of an output; None if it has no such folder.

    Raises:
        ConfigError: if the output cannot be listed with these credentials.
        OSError: if the storage does not answer.
    """
    folders = output_folder.OutputFolder(output).staging_folders()
    return sum(1 for _ in _staged_in(folders, shard_writer.DONE_SUFFIX)) if folders else None


def _has_staged(output: str, suffix: str) -> bool:
    """Returns whether a staging folder holds a file whose name ends with `suffix`; False if it cannot be listed."""
    try:
        with remote.budget(remote.CHECK_BUDGET_SEC):  # no reason to keep the user waiting
            return any(_staged_in(output_folder.OutputFolder(output).staging_folders(), suffix))
    except (OSError, errors.ConfigError):
        return False


def _staged_in(folders: Iterable[str], suffix: str) -> Iterator[str]:
    """Yields the names of the files beside shards that end with `suffix`."""
    for folder in folders:
        for entry in storage.storage_of(folder).list_directory(folder):
            if entry.name.endswith(suffix):
                yield entry.name


def describe_kept(output: str) -> str:
    """Returns the end of a message on a run that failed: what of its work is kept; "" if nothing is."""
    if not _has_staged(output, shard_writer.DONE_SUFFIX):
        return ""
    is_local = storage.storage_of(output).is_local
    where = "" if is_local else f" in {output_folder.OutputPaths(output).metadata}"  # not obvious for a bucket
    return f"; finished shards are kept{where}, run the same command again to go on"


def describe_deaths(output: str) -> str:
    """Returns the end of a message on a run that failed: whether a worker ended in the middle of a shard; else ""."""
    if not _has_staged(output, shard_writer.MARK_SUFFIX):
        return ""
    return "; an image may have killed a worker: the same command finds and rejects it"
