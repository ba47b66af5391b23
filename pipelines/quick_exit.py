"""Ends a process without taking its modules apart, which Python does last, and which takes 0.05 s after a job."""

from __future__ import annotations

import atexit
import os
import sys
import threading


def end(code: int) -> None:
    """Ends this process as `sys.exit` does: waits for its threads, runs its exit handlers and flushes its streams.

    Returns if a stream cannot be flushed: `sys.exit` then says so.

    Args:
        code: the exit code, 0 to 255.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except OSError:
        return
    os._exit(code)
