"""Signals that ask this process to stop.

A signal handler that raises KeyboardInterrupt is not enough: where the signal arrives in a `__del__`, a weak
reference's callback or an extension in C, Python prints the exception and goes on. So the handler notes the signal
too, and the steps that take long, or that cannot be undone, call `check`.
"""

from __future__ import annotations

import signal

came: list[signal.Signals] = []  # since the command began; signal handlers append to it


def check() -> None:
    """Raises KeyboardInterrupt if a signal asked this process to stop. Callable in any thread."""
    if came:
        raise KeyboardInterrupt
