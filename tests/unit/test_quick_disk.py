"""A sync of the tests waits for no disk, and knows a closed file."""

from __future__ import annotations

import errno
import os
import pathlib
import tempfile

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


def test_memory_is_found_only_where_it_is_and_has_room(tmp_path: pathlib.Path) -> None:
    assert quick_disk.find_memory(str(tmp_path), 1) == str(tmp_path)
    assert quick_disk.find_memory(str(tmp_path), 1 << 60) is None
    assert quick_disk.find_memory(str(tmp_path / "none"), 1) is None


def test_temporary_files_of_this_process_and_of_those_it_starts_are_in_the_folder(tmp_path: pathlib.Path) -> None:
    code = "import tempfile; print(tempfile.gettempdir())"
    before = tempfile.gettempdir()
    with quick_disk.temporary_files_in(tmp_path):
        assert tempfile.gettempdir() == str(tmp_path)
        assert command_line.start_program(code).communicate()[0] == f"{tmp_path}\n"
    assert tempfile.gettempdir() == before


def test_temporary_files_are_in_memory_if_the_folders_of_tests_are(tmp_path: pathlib.Path) -> None:
    are_in_memory = [
        pathlib.Path(each).is_relative_to(quick_disk.IN_MEMORY) for each in (tmp_path, tempfile.gettempdir())
    ]
    assert are_in_memory[0] == are_in_memory[1]
