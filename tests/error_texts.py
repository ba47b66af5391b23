"""Expects errors by their code, and compares their texts with those in error_texts.txt, which a reviewer reads.

A line there is `code (Class): text`. One code has a line for each text that the tests see. `TMP` stands for the folder
of a test, `…` for anything. `IMAGEBEAM_UPDATE_ERROR_TEXTS=1 make test` adds lines that are missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import re
from collections.abc import Iterator

import pytest

from imagebeam import errors

FILE = pathlib.Path(__file__).parent / "error_texts.txt"
_TEMPORARY = re.compile(  # the folder of a test or of a session, or one of `tempfile`
    r"(?:/[\w.+-]+)*/(?:pytest-of-[\w.-]+/pytest-\d+/(?:popen-gw\d+/)?[\w.+-]+|tmp\w{8}(?=[/' ]))"
)


@contextlib.contextmanager
def raises(code: str) -> Iterator[pytest.ExceptionInfo[errors.ImagebeamError]]:
    """Expects an error with this code, and a text that is known."""
    with pytest.raises(errors.ImagebeamError) as caught:
        yield caught
    check(caught.value, code)


@contextlib.contextmanager
def raises_in_pipeline(code: str) -> Iterator[None]:
    """Expects that a step of a pipeline raises an error with this code, as Beam raises it again."""
    with pytest.raises(Exception) as caught:  # runners raise any type
        yield
    last = [line for line in str(caught.value).splitlines() if line.strip()][-1]
    check(errors.find_in(last, caught.value), code)


def check(error: BaseException | None, code: str) -> None:
    """Checks the code of an error, and that its text is known."""
    assert isinstance(error, errors.ImagebeamError), repr(error)
    assert error.code == code, f"{error.code!r}, not {code!r}: {error}"
    line = f"{code} ({type(error).__name__}): {_without_folders(str(error))}"
    if not _is_known(line) and os.environ.get("IMAGEBEAM_UPDATE_ERROR_TEXTS"):
        _add(line)
    assert _is_known(line), f"this text is not in {FILE.name}, see {pathlib.Path(__file__).name}:\n{line}"


def read_lines() -> list[str]:
    """Returns the lines of the file."""
    return FILE.read_text(encoding="utf-8").splitlines()


def _without_folders(text: str) -> str:
    return _TEMPORARY.sub("TMP", text).replace("\n", "\\n")


def _is_known(line: str) -> bool:
    head = line[: line.index("(")]
    return any(
        known == line or ("…" in known and re.fullmatch(re.escape(known).replace("…", ".*"), line) is not None)
        for known in read_lines()
        if known.startswith(head)
    )


def _add(line: str) -> None:
    folder = os.open(FILE.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # other workers of the tests add lines too
        copy = FILE.with_suffix(".new")
        copy.write_text("\n".join(sorted({*read_lines(), line})) + "\n", encoding="utf-8")
        copy.replace(FILE)
    finally:
        os.close(folder)
