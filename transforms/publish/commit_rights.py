"""The rights of a run: the lock names the run that writes to an output, the commit lock the run that commits to it.

A run signs both with a record. Imports no Beam.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import errors, storage
from imagebeam.transforms import dataset_settings, elements
from imagebeam.transforms.output import output_folder

RENEW_SEC, LEASE_SEC = 30.0, 150.0  # a record is renewed that often; after so long without it, its run is gone
_FRESH_SEC = 10.0  # a lock that several workers renew is not renewed again within this time
WATCH_SEC = 2.0  # between two looks at a record that is not dated
_MAX_ENDED = 20
_READ_ATTEMPTS, _READ_WAIT_SEC = 10, 0.05


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """The run that holds something, its process, and the time of its last heartbeat."""

    run: str = ""  # id of the run; "" if it is not known
    process: int = 0
    host: str = ""
    time: float = 0.0  # seconds since the epoch
    fingerprint: str = ""  # in the commit lock: of the dataset
    config: str = ""  # in the lock: digest of what the run does; equal for the same command
    job: Mapping[str, Any] | None = None  # in the lock: fields of a RemoteJob that outlives its launcher
    is_left_to_job: bool = False  # in the lock: whether the launcher has left on purpose, and its job goes on
    ended: tuple[str, ...] = ()  # in the lock: ids of runs whose jobs are known to have ended, the latest last
    by_steps: bool = False  # in the lock: whether no launcher holds it, and steps of a pipeline renew it: see StepsLock

    @classmethod
    def of_this_process(cls, run: str, **fields: Any) -> RunRecord:
        return cls(run, os.getpid(), socket.gethostname(), time.time(), **fields)

    def after(self, earlier: RunRecord | None, has_ended: bool) -> RunRecord:
        """Returns this record as the successor of `earlier`, whose run is known to have ended if `has_ended`."""
        if earlier is None:
            return self
        ended = (*earlier.ended, *((earlier.run,) if has_ended and earlier.run else ()))
        return dataclasses.replace(self, ended=tuple(dict.fromkeys(ended))[-_MAX_ENDED:])

    def encode(self) -> bytes:
        """Returns one line of JSON."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

    @property
    def is_dated(self) -> bool:
        """True if the time can be compared with this host's clock. If not, a `Watch` tells whether the run lives.

        A time that is not finite, or lies more than the lease ahead, would never expire.
        """
        return math.isfinite(self.time) and self.time - time.time() <= LEASE_SEC

    def is_gone(self, is_renewed: bool) -> bool:
        """Returns whether the process that signed is gone. Clocks of hosts may differ by a minute.

        Args:
            is_renewed: whether the record is renewed every `RENEW_SEC`, as all are but the lock on a local disk that a
                launcher holds.
        """
        if (is_renewed or self.by_steps) and self.is_dated and time.time() - self.time > LEASE_SEC:
            return True
        if self.host != socket.gethostname() or self.process <= 0:
            return False
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except (PermissionError, OverflowError):
            return False
        return False

    def describe(self, is_renewed: bool) -> str:
        """Returns text such as `process 1 on elsewhere, last renewed 12 s ago`."""
        who = f"process {self.process} on {self.host}"
        is_renewed = is_renewed or self.by_steps
        if self.job is not None:
            return f"{self.job.get('runner')} job {self.job.get('id') or self.job.get('name')}"
        if is_renewed and not self.is_dated:
            return (
                f"{who}, renewed at {self.time:.0f} s by a clock that disagrees with this host's, {time.time():.0f} s"
            )
        return f"{who}, last renewed {max(time.time() - self.time, 0.0):.0f} s ago" if is_renewed else who


class RecordWatch:
    """Tells whether a record that is not dated is renewed: by this host's clock and by what changes."""

    def __init__(self) -> None:
        self._content: bytes | None = None
        self._start_sec = 0.0

    def look(self, content: bytes) -> Literal["watching", "renewed", "expired"]:
        """Returns what the record did since the first look: call it again and again while it is "watching".

        Args:
            content: of the record now. "expired" if it was the same for the whole lease.
        """
        if self._content is None:
            self._content, self._start_sec = content, time.monotonic()
        if content != self._content:
            return "renewed"
        return "expired" if time.monotonic() - self._start_sec > LEASE_SEC else "watching"


def parse_record(data: bytes) -> RunRecord | None:
    """Parses a record; None if the content is not understood.

    Only the first line counts: on a local disk, a shorter record may have been written over a longer one just now.
    """
    try:
        fields = json.loads(data.partition(b"\n")[0])
        names = {field.name for field in dataclasses.fields(RunRecord)}
        known = {name: value for name, value in fields.items() if name in names}
        known["ended"] = tuple(known.get("ended", ()))
        record = RunRecord(**known)
    except (ValueError, TypeError, AttributeError):
        return None
    numbers = isinstance(record.time, (int, float)) and isinstance(record.process, int)
    texts = (record.run, record.host, record.fingerprint, record.config, *record.ended)
    others = isinstance(record.job, (dict, type(None))) and {type(record.is_left_to_job), type(record.by_steps)} == {
        bool
    }
    if not (numbers and others and all(isinstance(each, str) for each in texts)):
        return None
    try:
        return dataclasses.replace(record, time=float(record.time))
    except OverflowError:  # an integer of hundreds of digits
        return dataclasses.replace(record, time=math.inf)


def read_record(uri: str) -> RunRecord | None:
    """Reads the record at `uri`; None if there is none, or none that is understood."""
    store = storage.storage_of(uri)
    for attempt in range(_READ_ATTEMPTS if store.is_local else 1):
        if attempt:
            time.sleep(_READ_WAIT_SEC)  # the lock on a local disk is empty for an instant, before it is signed
        try:
            record = parse_record(store.read(uri))
        except (FileNotFoundError, NotADirectoryError):
            return None
        if record is not None:
            return record
    return None


def replace_own_record(uri: str, is_own: Callable[[RunRecord], bool], record: RunRecord) -> bool:
    """Writes `record` over a record of the same run; returns False if another run has taken over, or removed it.

    On gs:// and a local disk that is one step: this process may be stopped at any point, for any time, and overwrites
    no other record. Elsewhere a takeover between the look and the write is lost: `replace` would leave a moment
    without a file, in which a third run could create its own.
    """
    store = storage.storage_of(uri)
    while True:
        try:
            content = store.read(uri)
        except (FileNotFoundError, NotADirectoryError):
            return False
        found = parse_record(content)
        if found is None or not is_own(found):
            return False
        if not store.replaces_in_place:
            store.write_whole(uri, record.encode(), durable=False)
            return True
        if store.replace(uri, content, record.encode()):
            return True


def remove_own_record(uri: str, is_own: Callable[[RunRecord], bool]) -> None:
    """Removes the record at `uri` if it is that of the same run. On gs:// the look and the removal are one step."""
    store = storage.storage_of(uri)
    try:
        version = store.stat(uri).version
        found = parse_record(store.read(uri, version=version))
        if found is not None and is_own(found):
            store.remove(uri, version)
    except (FileNotFoundError, NotADirectoryError, storage.ChangedError):
        return


SETTLE_SEC = 1.0  # after a takeover on a storage without atomic swaps: wait, then check that nobody else did the same


class LockView(NamedTuple):
    """The lock of an output, as one run sees it."""

    is_held: bool  # by this run: whatever other runs have left behind belongs to runs that have ended
    ended: Collection[str] = ()  # ids of runs that are known to have ended


def look_at_lock(paths: output_folder.OutputPaths, run_id: str) -> LockView:
    """Returns whether a run still holds the lock of its output.

    A job can outlive its launcher, and with it the lock. It may commit as long as no other run holds the lock.

    Args:
        paths: of the output.
        run_id: "" for a caller that keeps other runs away itself.

    Raises:
        BusyError: if another run holds the lock.
    """
    if not run_id:
        return LockView(is_held=True)
    record = read_record(paths.lock)
    if record is None:
        return LockView(is_held=False)
    if record.run == run_id:
        return LockView(is_held=True, ended=record.ended)
    is_renewed = not storage.storage_of(paths.output).is_local
    if record.job is None and record.is_gone(is_renewed):
        return LockView(is_held=False)
    raise errors.BusyError(
        "output-taken-over",
        f"another run took over {paths.output} ({record.describe(is_renewed)}): nothing of this run was committed; "
        "wait until that run has ended, then run the same command again",
    )


def leave_output(settings: dataset_settings.DatasetSettings) -> None:
    """Removes the report and the lock of a run that has committed, if nobody else does: its launcher is gone.

    Only a job that is named in the lock outlives its launcher. See `StepsLock` for a run without a launcher.
    """
    record = read_record(settings.paths.lock) if settings.run_id else None
    if record is None or record.run != settings.run_id or record.job is None:
        return
    store = storage.storage_of(settings.output)
    if record.is_left_to_job or record.is_gone(is_renewed=not store.is_local):
        if settings.report:
            store.remove(settings.report)
        remove_own_record(settings.paths.lock, lambda found: found == record)
        remove_if_empty(settings.paths.metadata)


class StepsLock:
    """The lock of an output in a pipeline without a launcher of imagebeam: no process lives as long as the run.

    Whoever works for the run renews the lock meanwhile. If nobody does for the lease, or the process that was the last
    to renew it is gone from its host, another run may take it over. Each step notices that before it works on, and the
    commit looks again. Whoever fails releases it, and a retry takes it again: a failed pipeline locks out no other.
    """

    def __init__(self, paths: output_folder.OutputPaths, run_id: str):
        self._paths = paths
        self._run_id = run_id
        self._store = storage.storage_of(paths.output)

    @contextlib.contextmanager
    def renewed(self) -> Iterator[None]:
        """Renews the lock during the block.

        Raises:
            BusyError: if another run took it over.
        """
        self._claim()
        is_over = threading.Event()
        renewing = threading.Thread(target=self._renew_until, args=(is_over,), daemon=True)
        renewing.start()
        try:
            yield
        except BaseException:
            is_over.set()
            renewing.join()
            with contextlib.suppress(OSError):  # otherwise it expires
                self.release()
            raise
        finally:
            is_over.set()
            renewing.join()

    def end(self) -> None:
        """Removes the temporary files of the run, and the lock."""
        self._store.remove_tree(self._paths.spill(self._run_id))
        self.release()

    def release(self) -> None:
        """Removes the lock, and the metadata folder if it is empty then."""
        remove_own_record(self._paths.lock, self._is_own)
        remove_if_empty(self._paths.metadata)

    def _claim(self) -> None:
        """Renews the lock; takes it again if another worker of this run has released it."""
        uri, record = self._paths.lock, RunRecord.of_this_process(self._run_id, by_steps=True).encode()
        while True:
            try:
                content = self._store.read(uri)
            except FileNotFoundError:
                self._store.make_directories(self._paths.metadata)
                if self._store.create_new(uri, record):
                    return
                continue
            found = parse_record(content)
            if found is None or not self._is_own(found):
                raise errors.BusyError(
                    "lock-taken-over",
                    f"another run took over the lock {uri}, which was not renewed for {LEASE_SEC:g} s: run this one "
                    "again once that run has ended",
                )
            if (
                abs(time.time() - found.time) < _FRESH_SEC
            ):  # a bucket takes one write of a file a second, of all workers
                return
            if self._store.replaces_in_place:
                self._store.replace(uri, content, record)
            else:
                self._store.write_whole(uri, record, durable=False)

    def _renew_until(self, is_over: threading.Event) -> None:
        while not is_over.wait(RENEW_SEC):
            try:
                self._claim()
            except OSError:
                continue  # try again at the next renewal
            except errors.BusyError:
                return  # the next step, or the commit, sees it

    def _is_own(self, found: RunRecord) -> bool:
        return found.run == self._run_id


def remove_if_empty(folder: str) -> None:
    """Removes a folder that has no entries."""
    store = storage.storage_of(folder)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if next(iter(store.list_directory(folder)), None) is None:
            store.remove_tree(folder)


class CommitLock:
    """The right to change the files of an output: a commit lock in its metadata folder, held by one run at a time.

    It is taken over from a run that is gone, and renewed while it is held. A holder that was stopped for longer than
    the lease notices that before it changes another file.
    """

    def __init__(self, paths: output_folder.OutputPaths, run_id: str, fingerprint: str):
        self._output = paths.output
        self._uri = paths.commit_lock
        self._store = storage.storage_of(paths.output)
        self._record = RunRecord.of_this_process(run_id, fingerprint=fingerprint)
        self._must_stay = False
        self._renewing = threading.Lock()
        self.continues = False  # whether a commit of the same dataset was cut short: files may have been moved

    @contextlib.contextmanager
    def held(self, ended: Collection[str] = ()) -> Iterator[CommitLock]:
        """Holds the commit lock during the block.

        If the block fails after a file was changed, the commit lock stays: the output holds a part of a dataset. It
        then belongs to nobody, so that the next run need not wait until it expires.

        Args:
            ended: ids of runs that are known to have ended.

        Raises:
            BusyError: if another run holds it.
        """
        self._take(ended)
        try:
            yield self
        except BaseException:
            with contextlib.suppress(OSError, errors.BusyError):
                if self._must_stay:
                    self._write(0.0)
                else:
                    self.remove_own()
            raise
        self.remove_own()

    def remove_own(self) -> None:
        """Removes the commit lock if it is that of this run, maybe of an earlier attempt."""
        remove_own_record(self._uri, self._is_own)

    def note_change(self) -> None:
        """Makes the commit lock stay if the block fails. Call it before the first change."""
        self._must_stay = True

    def check(self) -> None:
        """Checks that this run still holds the commit lock, twice a minute by the storage. Call it before each change.

        Thread-safe: while one thread asks, all others wait for the answer.

        Raises:
            BusyError: if another run took it over.
        """
        with self._renewing:
            if time.time() - self._record.time >= RENEW_SEC:
                self.renew()

    def renew(self) -> None:
        """Renews the commit lock now.

        Raises:
            BusyError: if another run took it over.
        """
        self._write(time.time())

    def _take(self, ended: Collection[str]) -> None:
        self._store.make_directories(self._uri.rpartition("/")[0])
        watch = RecordWatch()
        while not self._store.create_new(self._uri, self._record.encode()):
            try:
                content = self._store.read(self._uri)
            except FileNotFoundError:
                continue
            holder = parse_record(content)
            if holder is not None and not self._is_void(holder, ended):
                seen = "renewed" if holder.is_dated else watch.look(content)
                if seen == "watching":
                    time.sleep(WATCH_SEC)
                    continue
                if seen == "renewed":
                    killed = "" if holder.is_dated else f" (if it was killed, remove {self._uri})"
                    raise errors.BusyError(
                        "output-commit-by-another-run",
                        f"another run commits to {self._output} at this moment ({holder.describe(True)}): nothing of "
                        f"this run was committed; wait until that run has ended{killed}, then run the same command "
                        "again",
                    )
            if self._store.replace(self._uri, content, self._record.encode()):
                self._must_stay = True  # that commit may have changed files
                holder = parse_record(content)
                self.continues = holder is not None and holder.fingerprint == self._record.fingerprint
                if not self._store.swaps_atomically:
                    time.sleep(SETTLE_SEC)
                    if not self._is_own(found := read_record(self._uri)):
                        raise self._taken_over(found)
                return

    def _is_void(self, holder: RunRecord, ended: Collection[str]) -> bool:
        is_same = holder.run == self._record.run  # the bundle that commits runs a second time
        return is_same or not holder.run or holder.run in ended or holder.is_gone(is_renewed=True)

    def _is_own(self, found: RunRecord | None) -> bool:
        mine = self._record
        return found is not None and (found.run, found.fingerprint) == (mine.run, mine.fingerprint)

    def _taken_over(self, by: RunRecord | None) -> errors.BusyError:
        who = "" if by is None else f" ({by.describe(True)})"
        return errors.BusyError(
            "commit-taken-over",
            f"another run took over the commit to {self._output}{who}, since this one was stopped for more than "
            f"{LEASE_SEC:g} s: run the same command again once that run has ended",
        )

    def _write(self, seconds: float) -> None:
        record = dataclasses.replace(self._record, time=seconds)
        if not replace_own_record(self._uri, self._is_own, record):
            raise self._taken_over(read_record(self._uri))
        self._record = record


_LEFT_BY_RUNS = (  # prefixes of names; the lock has none of them
    f"{output_folder.LOCK_FILE}.tmp-",
    output_folder.LAST_RUN_FILE,
    output_folder.REPLACED_PREFIX,
    catalog_lib.COMMIT_LOCK_FILE,
    output_folder.REPORT_PREFIX,
    output_folder.NAMES_PREFIX,
    output_folder.DRIFT_REPORT_FILE,
    catalog_lib.REJECTS_FILE,
    catalog_lib.DUPLICATES_FILE,
)


@dataclasses.dataclass(frozen=True)
class MetadataFolder:
    """The folder for the lock, the commit lock, the reports and the staged files of the runs of one dataset."""

    settings: dataset_settings.DatasetSettings

    def clear(self, plan: elements.DatasetPlan, lock: LockView) -> None:
        """Empties it but for the lock, the commit lock and the report of this run.

        Whoever has a staging folder has held the lock, so their runs have ended if this one holds it. A run that has
        lost the lock removes only what is its own.
        """
        if not lock.is_held:
            self.remove_own(plan)
            return
        paths, store = self.settings.paths, storage.storage_of(self.settings.output)
        for entry in self.left_entries():
            uri = storage.join(paths.metadata, entry.name)
            if entry.kind == storage.DIRECTORY:
                store.remove_tree(uri)
            elif uri != paths.commit_lock:
                store.remove(uri)

    def remove_own(self, plan: elements.DatasetPlan) -> None:
        """Removes the staging folder of this dataset, and the catalog that it replaced."""
        paths, store = self.settings.paths, storage.storage_of(self.settings.output)
        store.remove_tree(paths.staging(plan.fingerprint))
        store.remove(paths.replaced(plan.fingerprint))

    def left_entries(self) -> list[storage.Entry]:
        """Returns what runs have left in it, without the lock and the report of this run."""
        folder, store = self.settings.paths.metadata, storage.storage_of(self.settings.output)
        try:
            entries = list(store.list_directory(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [
            entry
            for entry in entries
            if entry.kind == storage.DIRECTORY
            or (entry.name.startswith(_LEFT_BY_RUNS) and storage.join(folder, entry.name) != self.settings.report)
        ]
