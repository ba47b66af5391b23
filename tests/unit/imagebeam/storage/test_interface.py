from __future__ import annotations

import errno

import pytest

from imagebeam.storage import interface


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (interface.UnavailableError(errno.EIO, "no answer"), True),
        (OSError(errno.EMFILE, "too many open files"), True),
        (OSError(errno.ENFILE, "too many open files"), True),
        (OSError(errno.ENOMEM, "no memory"), True),
        (FileNotFoundError(errno.ENOENT, "missing"), False),
        (PermissionError(errno.EACCES, "denied"), False),
        (interface.ChangedError(errno.ESTALE, "replaced"), False),
        (OSError(errno.EIO, "broken sector"), False),
        (OSError("no number"), False),
    ],
    ids=lambda value: repr(value) if isinstance(value, Exception) else "",
)
def test_fault_is_of_the_storage_or_the_machine_and_not_of_the_file(error: OSError, expected: bool) -> None:
    assert interface.is_fault(error) == expected
