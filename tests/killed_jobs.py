"""The training programs of examples/, which are killed, and the losses that they print."""

from __future__ import annotations

import itertools
import os
import pathlib
import re
import signal
from collections.abc import Sequence

from tests import command_line

EXAMPLES = command_line.ROOT / "examples"
SEARCHED = f"{EXAMPLES}:{command_line.ROOT}"
RUN = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"

Losses = dict[int, float]  # by step or epoch


def make_shapes(folder: pathlib.Path) -> pathlib.Path:
    """Returns the folder of the dataset of three shapes, made below `folder`."""
    code = "import pathlib, shapes, sys; shapes.make(pathlib.Path(sys.argv[1]))"
    command_line.finish(command_line.start_program(code, folder, environment={"PYTHONPATH": SEARCHED}), 0)
    return folder / "shapes"


def run(job: Sequence[command_line.Process], num_losses: int | None = None) -> tuple[Losses, str]:
    """Waits for the processes of a job; returns the losses and all that the first of them printed.

    They are killed, with the processes that they started, when so many losses are printed.
    """
    printed, losses = [], {}
    try:
        assert job[0].stdout is not None
        for line in job[0].stdout:
            printed.append(line)
            if found := re.fullmatch(r"(?:step|epoch) (\d+): loss (\S+)\n", line):
                losses[int(found[1])] = float(found[2])
                if len(losses) == num_losses:
                    _kill(job)
        for process in job:
            command_line.finish(process, 0 if num_losses is None else -signal.SIGKILL)
    finally:
        for process in job:
            process.kill()
    return losses, "".join(printed)


def _kill(job: Sequence[command_line.Process]) -> None:
    pids = [process.pid for process in job]
    started = [pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split() for pid in pids]
    for pid in [*pids, *map(int, itertools.chain(*started))]:
        os.kill(pid, signal.SIGKILL)
