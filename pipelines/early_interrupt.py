"""Ctrl-C while Python imports the command line, and nothing has begun. Imports next to nothing itself."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # as in typing, whose import takes 3 ms
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn


def catch() -> None:
    """Makes Ctrl-C end the process with one line: KeyboardInterrupt prints a traceback, and in some imports is lost.

    A signal that a shell has told the process to ignore stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def release() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt again, as in any program."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, _: FrameType | None) -> NoReturn:
    try:
        os.write(2, b"imagebeam: interrupted\n")
    finally:  # also if standard error is closed
        os._exit(128 + number)
