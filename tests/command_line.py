"""`imagebeam` as a user calls it: a process of its own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping

from tests import patience

ROOT = pathlib.Path(__file__).parent.parent
PYTHON = sys.executable
IMAGEBEAM = (PYTHON, "-m", "imagebeam.pipelines.cli")

Completed = subprocess.CompletedProcess[str]


def run(*arguments: object, environment: Mapping[str, str] = {}) -> Completed:
    """Runs `imagebeam` with `arguments` to its end, with `environment` beside that of this process."""
    return subprocess.run(
        [*IMAGEBEAM, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=patience.HANG_SEC,
        check=False,
    )


def succeed(*arguments: object) -> Completed:
    """Runs `imagebeam` and expects exit code 0."""
    completed = run(*arguments)
    assert completed.returncode == 0, completed.stderr
    return completed
