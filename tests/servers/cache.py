"""Where what the servers are made of is kept, once for each user."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator


@contextlib.contextmanager
def hold(lock: str) -> Iterator[pathlib.Path]:
    """Yields the folder; others who ask for the same lock wait until this block has ended."""
    folder = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "imagebeam-tests"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield folder
