"""The record by which a run signs what it holds: a file that is created, renewed and removed in single steps.

Imports no Beam.
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
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from imagebeam import errors, storage

RENEW_SEC, LEASE_SEC = 30.0, 150.0  # a record is renewed that often; after so long without it, its run is gone
WATCH_SEC = 2.0  # between two looks at a record that is not dated
SETTLE_SEC = 1.0  # after a takeover on a storage without atomic swaps: wait, then check that nobody else did the same
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
    job_server: str = ""  # in the lock: HOST:PORT of the job server of Beam that runs the job of this process
    job_name: str = ""  # in the lock: of that job
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
    texts = (record.run, record.host, record.fingerprint, record.config, record.job_server, record.job_name)
    others = isinstance(record.job, (dict, type(None))) and {type(record.is_left_to_job), type(record.by_steps)} == {
        bool
    }
    if not (numbers and others and all(isinstance(each, str) for each in (*texts, *record.ended))):
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

    On gs://, s3:// and a local disk that is one step: this process may be stopped at any point, for any time, and
    overwrites no other record. Elsewhere a takeover between the look and the write is lost: `replace` would leave a
    moment without a file, in which a third run could create its own.
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


@contextlib.contextmanager
def renewing(renew: Callable[[], None]) -> Iterator[None]:
    """Renews a record by a thread during the block, until another run has taken it over: the next step sees that."""
    is_over = threading.Event()

    def renew_until_over() -> None:
        while not is_over.wait(RENEW_SEC):
            try:
                renew()
            except OSError:
                continue  # try again at the next renewal
            except errors.BusyError:
                return

    thread = threading.Thread(target=renew_until_over, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def remove_if_empty(folder: str) -> None:
    """Removes a folder that has no entries."""
    store = storage.storage_of(folder)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if next(iter(store.list_directory(folder)), None) is None:
            store.remove_tree(folder)
