"""Holds back the signals that end a command: until a submitted job can be cancelled, and while Beam is imported."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Calls the handlers of SIGINT, SIGTERM and SIGHUP at the end of the context, not in the middle of it.

    A second signal of a kind ends the process at once. A signal without a handler in Python does what it always does,
    and in another thread than the main one this changes nothing: Python calls handlers in the main thread alone.
    Restores the previous handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {each: handler for each in _ENDING if callable(handler := signal.getsignal(each))}
    came: list[int] = []

    def note(number: int, _: object) -> None:
        came.append(number)
        signal.signal(number, signal.SIG_DFL)

    for each in handlers:
        signal.signal(each, note)
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        for number in came:
            handlers[signal.Signals(number)](number, None)
