"""Where a command starts."""

from __future__ import annotations

from imagebeam.pipelines import early_interrupt

TYPE_CHECKING = False  # as in early_interrupt
if TYPE_CHECKING:
    from typing import NoReturn


def run() -> NoReturn:
    """Runs the command of this process, and ends the process with its exit code."""
    early_interrupt.catch()
    from imagebeam.pipelines import cli  # late: takes 0.1 s

    cli.run()
