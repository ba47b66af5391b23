from __future__ import annotations

import imagebeam
from tests import command_line

RUN_MODULE = """
import runpy, sys
sys.argv[1:] = {arguments}
runpy.run_module("imagebeam", run_name="__main__", alter_sys=True)
"""


def run_module(*arguments: str) -> command_line.Completed:
    return command_line.run_python(RUN_MODULE.format(arguments=list(arguments)))


def test_module_is_the_command() -> None:
    done = run_module("--version")
    assert (done.returncode, done.stdout) == (0, f"imagebeam {imagebeam.__version__}\n")
    done = run_module("inspect", "/nowhere/at/all")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("imagebeam: '/nowhere/at/all' does not exist; give the --output of a convert command")
