"""Ctrl-C in imports that lose it, or turn it into another error."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn


@contextlib.contextmanager
def found() -> Iterator[None]:
    """Raises KeyboardInterrupt from a block that was interrupted, whatever has become of the exception in it.

    pydantic drops it while it makes the validator of a model, and Python 3.11 makes a RuntimeError of it while it makes
    a dataclass.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came: list[int] = []
    hook = sys.unraisablehook

    def remember(number: int, _: FrameType | None) -> NoReturn:
        came.append(number)
        raise KeyboardInterrupt

    def show(unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)

    signal.signal(signal.SIGINT, remember)
    sys.unraisablehook = show
    try:
        yield
    except Exception:
        if not came:
            raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = hook
    if came:
        raise KeyboardInterrupt
