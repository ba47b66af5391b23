from __future__ import annotations

import subprocess
import sys

import imagebeam
from tests import command_line, patience


def run_module(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "imagebeam", *arguments],
        cwd=command_line.ROOT,
        capture_output=True,
        text=True,
        timeout=patience.HANG_SEC,
        check=False,
    )


def test_module_is_the_command() -> None:
    done = run_module("--version")
    assert (done.returncode, done.stdout) == (0, f"imagebeam {imagebeam.__version__}\n")
    done = run_module("inspect", "/nowhere/at/all")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("imagebeam: '/nowhere/at/all' does not exist; give the --output of a convert command")
