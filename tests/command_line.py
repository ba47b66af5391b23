"""`imagebeam` as a user calls it: a process of its own."""

from __future__ import annotations

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
PYTHON = sys.executable
IMAGEBEAM = (PYTHON, "-m", "pipelines.cli")

Completed = subprocess.CompletedProcess[str]


def run(*arguments: object) -> Completed:
    """Runs `imagebeam` with `arguments` to its end."""
    command = [*IMAGEBEAM, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)


def succeed(*arguments: object) -> Completed:
    """Runs `imagebeam` and expects exit code 0."""
    completed = run(*arguments)
    assert completed.returncode == 0, completed.stderr
    return completed
