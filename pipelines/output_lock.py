"""Locks an output, so that only one run at a time writes to it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from imagebeam import errors, storage

_LOCK_FILE = "lock"
_PATIENCE_SEC = 2.0  # how long to wait for a run that is just ending
_RENEW_SEC, _LEASE_SEC = 30.0, 150.0  # lease for storages without file locks: how often renewed, when expired
_SETTLE_SEC = 1.0  # after taking over an expired lease: wait, then check that nobody else took it too


@contextlib.contextmanager
def hold(control: str) -> Iterator[None]:
    """Holds the lock in the control folder of an output.

    On the local disk the kernel releases it when this process ends. Elsewhere it is a file, renewed every 30 s, which
    expires after two and a half minutes, or at once if its process was on this host and no longer exists.

    Raises:
        ConfigError: if another run holds it, or the folder cannot be made.
    """
    path = storage.join(control, _LOCK_FILE)
    if not storage.storage_of(control).is_local:
        with _Lease(path).held():
            yield
        return
    output = os.path.dirname(control)
    is_new = not os.path.exists(output)
    file = _acquire(path)
    try:
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.close(file)
        with contextlib.suppress(OSError):  # not empty: staged shards to continue with, or a dataset
            os.rmdir(control)
            if is_new:
                os.rmdir(output)


def _acquire(path: str) -> int:
    give_up = time.monotonic() + _PATIENCE_SEC
    while True:
        is_late = time.monotonic() > give_up
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as e:
            # The previous run may be removing the folder: makedirs then fails because it exists or does not.
            if is_late or not isinstance(e, (FileNotFoundError, FileExistsError)):
                raise errors.ConfigError(f"--output cannot be written: {e.strerror}, {e.filename!r}") from e
        else:
            if _lock(file, path):
                return file
            holder = os.pread(file, 1000, 0).decode(errors="replace")
            os.close(file)
            if is_late:
                raise errors.ConfigError(
                    f"another run writes to this output at this moment ({holder or 'its lock is ' + path}); "
                    "wait until it has ended, or choose another --output"
                )
        time.sleep(0.05)


def _lock(file: int, path: str) -> bool:
    """Locks the open file; returns whether that worked and it is still at `path`, from which each run removes it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


class _Lease:
    """A lock for storages without file locks: a file that only one run can create."""

    def __init__(self, uri: str):
        self._uri = uri
        self._store = storage.storage_of(uri)
        self._token = secrets.token_hex(8)
        self._is_over = threading.Event()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        try:
            self._acquire()
        except OSError as e:
            raise errors.ConfigError(f"--output cannot be written: {e.strerror or e}") from e
        renewing = threading.Thread(target=self._renew, daemon=True)
        renewing.start()
        try:
            yield
        finally:
            self._is_over.set()
            renewing.join()
            with contextlib.suppress(OSError):  # if it stays, it expires
                if (self._read() or {}).get("token") == self._token:
                    self._store.remove(self._uri)
                control = os.path.dirname(self._uri)
                if next(self._store.list_directory(control), None) is None:  # empty, as after a commit
                    self._store.remove_tree(control)

    def _acquire(self) -> None:
        give_up = time.monotonic() + _PATIENCE_SEC
        self._store.make_directories(os.path.dirname(self._uri))
        while not self._store.create_new(self._uri, self._content()):
            holder = self._read()
            if holder is None:
                continue
            if _has_expired(holder):
                self._store.write_whole(self._uri, self._content())
                time.sleep(_SETTLE_SEC)
                if (self._read() or {}).get("token") == self._token:
                    return
            elif time.monotonic() > give_up:
                raise errors.ConfigError(
                    f"another run writes to this output (process {holder.get('process')} on {holder.get('host')}, "
                    f"last renewed {time.time() - holder.get('time', 0):.0f} s ago): wait until it has ended, or "
                    f"choose another --output; if it was killed, try again in {_LEASE_SEC / 60:g} minutes"
                )
            time.sleep(0.2)

    def _renew(self) -> None:
        while not self._is_over.wait(_RENEW_SEC):
            with contextlib.suppress(OSError):  # try again at the next renewal
                if (self._read() or {}).get("token", self._token) != self._token:
                    return  # another run took over: the commit sees it
                self._store.write_whole(self._uri, self._content())

    def _content(self) -> bytes:
        content = {"process": os.getpid(), "host": socket.gethostname(), "token": self._token, "time": time.time()}
        return json.dumps(content).encode()

    def _read(self) -> dict[str, Any] | None:
        """Returns the content of the lock; {} if it is not understood, None if there is no lock."""
        try:
            content = json.loads(self._store.read(self._uri))
            understood = isinstance(content, dict) and isinstance(content.get("time", 0.0), (int, float))
            return content if understood else {}
        except FileNotFoundError:
            return None
        except ValueError:
            return {}


def _has_expired(holder: dict[str, Any]) -> bool:
    """Returns whether the run that holds a lock is gone. Clocks of hosts may differ by a minute."""
    if time.time() - holder.get("time", 0.0) > _LEASE_SEC:
        return True
    if holder.get("host") != socket.gethostname():
        return False
    try:
        os.kill(int(holder["process"]), 0)
    except ProcessLookupError:
        return True
    except (KeyError, ValueError, PermissionError):
        return False
    return False
