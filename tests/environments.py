"""Virtual environments apart from the one of the tests, and what is installed into them."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests import command_line, patience

_LOCK = command_line.ROOT / "requirements.lock"


def copy_sources(folder: pathlib.Path) -> pathlib.Path:
    """Copies the checkout without what builds leave behind, so that neither is in the other's way; returns the copy."""
    folder.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "LICENSE-libraries.txt", "MANIFEST.in"):
        if (command_line.ROOT / name).exists():
            shutil.copy(command_line.ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("imagebeam", "beam", "pipelines", "transforms", "configs"):
        shutil.copytree(command_line.ROOT / name, folder / name, symlinks=True, ignore=ignored)
    return folder


def make(folder: pathlib.Path, *requirements: str) -> pathlib.Path:
    """Makes an environment with only these packages, in the versions of the lock; returns its Python.

    Its files are links to those that uv keeps. Skips the test if the packages cannot be installed.
    """
    command = [sys.executable, "-m", "venv", "--without-pip", folder]  # `venv` takes 3 s to put pip there
    subprocess.run(command, check=True, timeout=patience.HANG_SEC)
    python = folder / "bin" / "python"
    install(python, *requirements, "setuptools", environment={"UV_LINK_MODE": "symlink"})  # in memory a copy takes room
    return python


def install(python: pathlib.Path, *requirements: str, environment: Mapping[str, str] = {}) -> None:
    """Installs packages, and what they require, into an environment, in the versions of the lock.

    `environment` is added to that of this process, also where a package is built.
    """
    _install(python, "--quiet", "--constraint", str(_LOCK), *requirements, environment=environment)


def install_locked(python: pathlib.Path, lock: pathlib.Path) -> None:
    """Installs the packages of a lock file into an environment."""
    _install(python, "--quiet", "--requirement", str(lock))


def _install(python: pathlib.Path, *given: str, environment: Mapping[str, str] = {}) -> None:
    """Installs by uv, which keeps packages, otherwise by pip. Skips the test if neither can."""
    uv = [sys.executable, "-m", "uv", "pip", "install", "--python", str(python), *given]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--disable-pip-version-check", *given]
    for command in (uv, pip):
        done = command_line.run_other(*command, **environment)
        if done.returncode == 0:
            return
    pytest.skip(f"{' '.join(given)} cannot be installed: {done.stderr[-1000:]}")
