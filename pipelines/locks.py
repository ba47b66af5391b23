"""One run at a time on one output."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator

from imagebeam import errors, storage

_LOCK_FILE = "lock"
_PATIENCE_SEC = 2.0  # the run before may be ending at this moment


@contextlib.contextmanager
def hold(control: str) -> Iterator[None]:
    """Holds the lock in the control folder of an output; the kernel lets go of it whenever this process ends.

    Raises:
        ConfigError: if another run holds it, or the folder cannot be made.
    """
    output = os.path.dirname(control)
    is_new = not os.path.exists(output)
    path = storage.join(control, _LOCK_FILE)
    file = _acquire(path)
    try:
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.close(file)
        with contextlib.suppress(OSError):  # not empty: a run that is to be continued, or a dataset
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
            # The run before us may remove the folder just now: makedirs finds one, or finds none, or both in turn.
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
    """Whether the open file is locked now, and still the one at `path`: the run before us removes it at its end."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False
