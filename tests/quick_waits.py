"""Takes out of the tests most of the time between two attempts: a stub answers at once what a service answers later."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import types
from collections.abc import Iterator

import pytest

FACTOR = 1 / 20
TIMED_FACTOR = 1 / 100  # of waits between attempts that a time ends, however many they are
WAITS = {  # in seconds, by the module; an attempt more or less changes no result
    "imagebeam.storage.remote": (TIMED_FACTOR, "_FIRST_WAIT_SEC", "_LONGEST_WAIT_SEC"),
    "imagebeam.pipelines.runs.dataflow_jobs": (TIMED_FACTOR, "_FIRST_WAIT_SEC", "_LONGEST_WAIT_SEC"),
    "imagebeam.pipelines.runs.output_lock": (FACTOR, "_PATIENCE_SEC"),
}
PAUSES = (  # methods that yield waits in seconds, or None
    ("imagebeam.pipelines.runs.run_remotely", "Patience", "pauses", TIMED_FACTOR),
    ("imagebeam.reader.shard_cache.cached_shards", "RemoteShards", "_waits", FACTOR),
)
_POLL_SEC = 0.005


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Shortens waits of modules that are imported already: those in WAITS and PAUSES, and two of Beam's own: before it
    asks a service again, and for the end of Prism.

    How long imagebeam tries at all stays: a command under test gives up no sooner than a user's.
    """
    clock = getattr(sys.modules.get("apache_beam.utils.retry"), "Clock", None)
    subprocess_server = sys.modules.get("apache_beam.utils.subprocess_server")
    with pytest.MonkeyPatch.context() as patch:
        for module, (factor, *names) in WAITS.items():
            for name in names if module in sys.modules else ():
                patch.setattr(sys.modules[module], name, factor * getattr(sys.modules[module], name))
        for module, owner, name, factor in PAUSES:
            if module in sys.modules:
                _shorten_pauses(patch, getattr(sys.modules[module], owner), name, factor)
        if hasattr(clock, "sleep"):
            patch.setattr(clock, "sleep", lambda _, seconds: time.sleep(FACTOR * seconds))
        if subprocess_server is not None:
            patch.setattr(subprocess_server, "time", types.SimpleNamespace(sleep=_sleep_until_a_child_ends))
        yield


def _shorten_pauses(patch: pytest.MonkeyPatch, owner: type, name: str, factor: float) -> None:
    pauses = getattr(owner, name)
    patch.setattr(owner, name, lambda self: (each and factor * each for each in pauses(self)))


def _sleep_until_a_child_ends(seconds: float) -> None:
    """Beam tells Prism to end, and looks a second later whether it has."""
    end = time.monotonic() + seconds
    with contextlib.suppress(ChildProcessError):  # there is none
        while time.monotonic() < end and os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            time.sleep(_POLL_SEC)
