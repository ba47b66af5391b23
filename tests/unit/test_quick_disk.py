"""A sync of the tests waits for no disk, and knows a closed file."""

from __future__ import annotations

import errno
import os
import pathlib

import pytest

from tests import command_line, quick_disk


def test_sync_of_a_file_returns_and_that_of_a_closed_one_is_an_error(tmp_path: pathlib.Path) -> None:
    with quick_disk.patched(), open(tmp_path / "file", "wb") as file:
        os.fsync(file.fileno())
        descriptor = os.dup(file.fileno())
        os.close(descriptor)
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            os.fsync(descriptor)
    assert caught.value.errno == errno.EBADF


def test_sync_is_the_same_in_this_process_and_in_forked_commands_and_another_in_a_new_one() -> None:
    code = "import os; print(os.fsync is os.fstat)"
    stdout, _ = command_line.start_program(code).communicate()
    assert (os.fsync is os.fstat, stdout) == (True, "True\n")
    assert command_line.run_python(code).stdout == "False\n"
