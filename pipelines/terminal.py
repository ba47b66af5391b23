"""The standard streams of a command: what is written there, and what happens when nobody reads it."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import TextIO

_READER_HAS_GONE = frozenset({errno.EPIPE, errno.EIO, errno.ECONNRESET})  # EIO: a terminal that was closed
# What TensorFlow's libraries print before their log level can be set, and a host without a GPU can do nothing about.
_TENSORFLOW_NOISE = r"WARNING: All log messages before absl::|[IW]\d{4} |E\d{4} .*(cuda_platform|Unable to register cu)"
_SIEVE = """\
import os, re, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
for line in sys.stdin.buffer:
    if not re.match(sys.argv[1].encode(), line):
        try:
            os.write(2, line)
        except OSError:
            pass
"""
_SIEVE_PATIENCE_SEC = 1.0  # a process that a runner leaves behind may hold the sieve's pipe open


def printable(text: str) -> str:
    """`text` for a terminal: line breaks and control characters of file names shown, not obeyed."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class _Output(io.FileIO):
    """A standard stream that outlives its reader: what is written after the reader has gone goes nowhere."""

    def __init__(self, descriptor: int, standard: int):
        """`descriptor` is written to; it is `standard`, 1 or 2, or a copy of it."""
        super().__init__(descriptor, "wb", closefd=descriptor != standard)
        self._standard = standard
        self.reader_has_gone = False
        self.failure: OSError | None = None  # any other, such as a full disk

    def write(self, data, /):  # type: ignore[no-untyped-def]  # the type of FileIO.write differs between Pythons
        try:
            while (written := super().write(data)) is None:  # another process made the pipe non-blocking
                select.select([], [self], [])
            return written
        except OSError as e:
            if e.errno in _READER_HAS_GONE:
                self.reader_has_gone = True
            else:
                self.failure = e
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            for descriptor in {self.fileno(), self._standard}:
                os.dup2(nowhere, descriptor, inheritable=descriptor == self._standard)
            os.close(nowhere)
            return len(data)


class Streams:
    """Standard output and standard error for one command.

    A stream whose reader goes away, or that was closed from the start, changes neither what the command does nor its
    exit code. Standard error has a descriptor of its own, so that `sieve_libraries` leaves it alone. Streams that are
    not the process's own, as those of a test, stay as they are.
    """

    def __enter__(self) -> Streams:
        _open_closed_descriptors()
        self._before = sys.stdout, sys.stderr
        if sys.stdout is sys.__stdout__:
            sys.stdout = _wrap(sys.stdout, _Output(1, 1))
        if sys.stderr is sys.__stderr__:
            sys.stderr = _wrap(sys.stderr, _Output(os.dup(2), 2))
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = self._before


def _open_closed_descriptors() -> None:
    """Opens the null device where a standard stream is closed, or the next file, such as a lock, takes its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one


def _wrap(before: TextIO | None, output: _Output) -> TextIO:
    """A text stream as `before`, which is None for a closed descriptor."""
    encoding = before.encoding if before is not None else "utf-8"
    to_a_person = output.isatty() or output._standard == 2
    return io.TextIOWrapper(io.BufferedWriter(output), encoding, line_buffering=to_a_person)


def _output_of(stream: TextIO) -> _Output | None:
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, _Output) else None


def reader_has_gone() -> bool:
    """Whether nobody reads standard output any more, as far as is known without writing to it."""
    output = _output_of(sys.stdout)
    return output is not None and output.reader_has_gone


def output_failure() -> OSError | None:
    """Why a part of standard output was lost though it has a reader, such as a full disk; None if all is well."""
    sys.stdout.flush()
    output = _output_of(sys.stdout)
    return output.failure if output is not None else None


def ensure_utf8_file_names() -> None:
    """Starts this program again in Python's UTF-8 mode where the locale gives file names another encoding.

    Keys and labels are file names: they must not depend on the locale.
    """
    if sys.getfilesystemencoding() == "utf-8" or not sys.executable:
        return
    os.environ["PYTHONUTF8"] = "1"  # for the processes that this one starts
    if sys.stdout is not None:  # what is printed keeps the encoding of the locale
        os.environ.setdefault("PYTHONIOENCODING", sys.stdout.encoding)
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


@contextlib.contextmanager
def sieve_libraries() -> Iterator[None]:
    """Takes TensorFlow's start-up noise out of what libraries write to descriptor 2, also from C++.

    Another process does it, so that the last message of an import that kills this process is still seen.
    """
    sys.stderr.flush()
    sieve = subprocess.Popen(
        [sys.executable, "-ISc", _SIEVE, _TENSORFLOW_NOISE], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert sieve.stdin is not None
    unsieved = os.dup(2)
    os.dup2(sieve.stdin.fileno(), 2)
    sieve.stdin.close()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(unsieved, 2)  # closes the last copy of the pipe's end: the sieve ends, too
        os.close(unsieved)
        with contextlib.suppress(subprocess.TimeoutExpired):
            sieve.wait(_SIEVE_PATIENCE_SEC)
