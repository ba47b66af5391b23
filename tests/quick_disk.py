"""Takes out of the tests the waits for the disk: no test cuts the power."""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import pytest

MIN_FREE_BYTES = 4 << 30  # many times what the tests hold at a time
IN_MEMORY = "/dev/shm"  # where Linux keeps files in memory; in a container often 64 MB


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Makes os.fsync return at once; on a disk it takes 4 ms for each file. A closed descriptor is an error still."""
    fsync = os.fsync
    os.fsync = os.fstat  # type: ignore[assignment]  # what it returns is not used
    try:
        yield
    finally:
        os.fsync = fsync


def find_memory(folder: str = IN_MEMORY, min_free_bytes: int = MIN_FREE_BYTES) -> str | None:
    """Returns the folder of files in memory, or None where there is none or little room in it.

    On ext4, to create a file takes ten times as long, and to remove a folder a hundred times and up to 2 ms.
    """
    try:
        room = os.statvfs(folder)
    except OSError:
        return None
    has_room = room.f_bavail * room.f_frsize >= min_free_bytes
    return folder if has_room and os.access(folder, os.W_OK | os.X_OK) else None


def make_folder_in_memory() -> pathlib.Path:
    """Makes a folder for the temporary files of this process, which removes it at its end."""
    folder = tempfile.mkdtemp(prefix="imagebeam-tests-", dir=IN_MEMORY)
    after_those_of_python = -200  # multiprocessing removes its own folder, which may be in this one, at -100
    multiprocessing.util.Finalize(
        None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=after_those_of_python
    )
    return pathlib.Path(folder)


@contextlib.contextmanager
def temporary_files_in(folder: pathlib.Path) -> Iterator[None]:
    """Makes this process, and those that it starts, put temporary files into `folder`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)  # asks TMPDIR again
        yield
