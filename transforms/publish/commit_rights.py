"""The rights of a run: the lock names the run that writes to an output, the commit lock the run that commits to it.

A run signs both with a record. Imports no Beam.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Collection, Iterator
from typing import NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import errors, storage
from imagebeam.transforms import dataset_settings, elements
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.publish import run_records

_FRESH_SEC = 10.0  # a lock that several workers renew is not renewed again within this time


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
    record = run_records.read_record(paths.lock)
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
    record = run_records.read_record(settings.paths.lock) if settings.run_id else None
    if record is None or record.run != settings.run_id or record.job is None:
        return
    store = storage.storage_of(settings.output)
    if record.is_left_to_job or record.is_gone(is_renewed=not store.is_local):
        if settings.report:
            store.remove(settings.report)
        run_records.remove_own_record(settings.paths.lock, lambda found: found == record)
        run_records.remove_if_empty(settings.paths.metadata)


def renewed(plan: elements.DatasetPlan) -> contextlib.AbstractContextManager[None]:
    """Renews the lock of the output during a block, if steps hold it."""
    lock = StepsLock.of(plan)
    return contextlib.nullcontext() if lock is None else lock.renewed()


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

    @classmethod
    def of(cls, plan: elements.DatasetPlan) -> StepsLock | None:
        """Returns the lock of the run that planned; None if a launcher holds it."""
        return cls(output_folder.OutputPaths(plan.held_output), plan.run_id) if plan.held_output else None

    @contextlib.contextmanager
    def renewed(self) -> Iterator[None]:
        """Renews the lock during the block.

        Raises:
            BusyError: if another run took it over.
        """
        self.renew()
        try:
            with run_records.renewing(self.renew):
                yield
        except BaseException:
            with contextlib.suppress(OSError):  # otherwise it expires
                self.release()
            raise

    def end(self) -> None:
        """Removes the temporary files of the run, and the lock."""
        self._store.remove_tree(self._paths.spill(self._run_id))
        self.release()

    def release(self) -> None:
        """Removes the lock, and the metadata folder if it is empty then."""
        run_records.remove_own_record(self._paths.lock, self._is_own)
        run_records.remove_if_empty(self._paths.metadata)

    def renew(self) -> None:
        """Renews the lock; takes it again if another worker of this run has released it.

        Raises:
            BusyError: if another run took it over.
        """
        uri, record = self._paths.lock, run_records.RunRecord.of_this_process(self._run_id, by_steps=True).encode()
        while True:
            try:
                content = self._store.read(uri)
            except FileNotFoundError:
                self._store.make_directories(self._paths.metadata)
                if self._store.create_new(uri, record):
                    return
                continue
            found = run_records.parse_record(content)
            if found is None or not self._is_own(found):
                raise errors.BusyError(
                    "lock-taken-over",
                    f"another run took over the lock {uri}, which was not renewed for {run_records.LEASE_SEC:g} s: run "
                    "this one again once that run has ended",
                )
            if abs(time.time() - found.time) < _FRESH_SEC:  # a bucket takes one write a second, of all workers
                return
            if self._store.replaces_in_place:
                self._store.replace(uri, content, record)
            else:
                self._store.write_whole(uri, record, durable=False)

    def _is_own(self, found: run_records.RunRecord) -> bool:
        return found.run == self._run_id


class CommitLock:
    """The right to change the files of an output: a commit lock in its metadata folder, held by one run at a time.

    It is taken over from a run that is gone, and renewed while it is held. A holder that was stopped for longer than
    the lease notices that before it changes another file.
    """

    def __init__(self, paths: output_folder.OutputPaths, run_id: str, fingerprint: str):
        self._output = paths.output
        self._uri = paths.commit_lock
        self._store = storage.storage_of(paths.output)
        self._record = run_records.RunRecord.of_this_process(run_id, fingerprint=fingerprint)
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
        run_records.remove_own_record(self._uri, self._is_own)

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
            if time.time() - self._record.time >= run_records.RENEW_SEC:
                self.renew()

    def renew(self) -> None:
        """Renews the commit lock now.

        Raises:
            BusyError: if another run took it over.
        """
        self._write(time.time())

    def _take(self, ended: Collection[str]) -> None:
        self._store.make_directories(self._uri.rpartition("/")[0])
        watch = run_records.RecordWatch()
        while not self._store.create_new(self._uri, self._record.encode()):
            try:
                content = self._store.read(self._uri)
            except FileNotFoundError:
                continue
            holder = run_records.parse_record(content)
            if holder is not None and not self._is_void(holder, ended):
                seen = "renewed" if holder.is_dated else watch.look(content)
                if seen == "watching":
                    time.sleep(run_records.WATCH_SEC)
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
                holder = run_records.parse_record(content)
                self.continues = holder is not None and holder.fingerprint == self._record.fingerprint
                if not self._store.swaps_atomically:
                    time.sleep(run_records.SETTLE_SEC)
                    if not self._is_own(found := run_records.read_record(self._uri)):
                        raise self._taken_over(found)
                return

    def _is_void(self, holder: run_records.RunRecord, ended: Collection[str]) -> bool:
        is_same = holder.run == self._record.run  # the bundle that commits runs a second time
        return is_same or not holder.run or holder.run in ended or holder.is_gone(is_renewed=True)

    def _is_own(self, found: run_records.RunRecord | None) -> bool:
        mine = self._record
        return found is not None and (found.run, found.fingerprint) == (mine.run, mine.fingerprint)

    def _taken_over(self, by: run_records.RunRecord | None) -> errors.BusyError:
        who = "" if by is None else f" ({by.describe(True)})"
        return errors.BusyError(
            "commit-taken-over",
            f"another run took over the commit to {self._output}{who}, since this one was stopped for more than "
            f"{run_records.LEASE_SEC:g} s: run the same command again once that run has ended",
        )

    def _write(self, seconds: float) -> None:
        record = dataclasses.replace(self._record, time=seconds)
        if not run_records.replace_own_record(self._uri, self._is_own, record):
            raise self._taken_over(run_records.read_record(self._uri))
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
