"""Packages that add formats to Pillow, beside the environment of the tests: elsewhere the formats stay unknown."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys

import pytest

from tests import command_line
from tests.servers import cache as cache_lib

VERSIONS = ("1.8.1", "1.3.8")  # of pillow-heif and pillow-jxl-plugin


def install() -> pathlib.Path:
    """Returns a folder for PYTHONPATH with the packages. Skips the test if they cannot be installed."""
    packages = [f"{name}=={version}" for name, version in zip(("pillow-heif", "pillow-jxl-plugin"), VERSIONS)]
    with cache_lib.hold("pillow-plugins-lock") as cache:
        folder = cache / "-".join(("pillow-plugins", *VERSIONS, sys.implementation.cache_tag))
        if not folder.exists():
            new = cache / f"{folder.name}.new"
            shutil.rmtree(new, ignore_errors=True)
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(new), *packages]
            installed = command_line.run_other(*command)
            if installed.returncode:
                pytest.skip(f"{' and '.join(packages)} cannot be installed: {installed.stderr}")
            os.replace(new, folder)
    return folder
