"""One run at a time on one output."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator

from imagebeam import errors, storage

_LOCK_FILE = "lock"
_PATIENCE_SEC = 2.0  # writer processes of a killed run may still hold the lock for a moment


@contextlib.contextmanager
def hold(control: str) -> Iterator[None]:
    """Holds the lock in the control folder of an output; the kernel lets go of it whenever this process ends.

    Raises:
        ConfigError: if another run holds it.
    """
    os.makedirs(control, exist_ok=True)
    path = storage.join(control, _LOCK_FILE)
    file = _acquire(path)
    try:
        os.ftruncate(file, 0)
        os.write(file, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.close(file)
        with contextlib.suppress(OSError):  # not empty: a run that is to be continued
            os.rmdir(control)


def _acquire(path: str) -> int:
    give_up = time.monotonic() + _PATIENCE_SEC
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(path) and os.path.samestat(os.fstat(file), os.stat(path)):
                return file
            os.close(file)  # the run before us has just removed it
        except BlockingIOError:
            holder = os.pread(file, 1000, 0).decode(errors="replace")
            os.close(file)
            if time.monotonic() > give_up:
                raise errors.ConfigError(
                    f"another run writes to this output at this moment ({holder or 'its lock is ' + path}); "
                    "wait until it has ended, or choose another --output"
                ) from None
            time.sleep(0.1)
