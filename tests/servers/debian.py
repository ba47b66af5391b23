"""Debian's files for tests of images and wheels, made by mmdebstrap once for each user."""

from __future__ import annotations

import os
import pathlib

from tests import command_line
from tests.servers import cache as cache_lib


def make_root(suite: str, *packages: str) -> pathlib.Path:
    """Returns a tar archive of the root folder of a Debian with only these packages and what it cannot be without."""
    with cache_lib.hold("images-lock") as cache:
        archive = cache / f"{suite}-{'-'.join(packages)}.tar"
        if not archive.exists():
            options = ("--mode=root", "--format=tar", "--variant=minbase", f"--include={','.join(packages)}")
            made = command_line.run_other("mmdebstrap", *options, suite, f"{archive}.new")
            assert made.returncode == 0, made.stderr
            os.replace(f"{archive}.new", archive)
    return archive
