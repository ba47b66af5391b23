"""Prints for people: standard streams that survive when their reader goes away, and lines that fit a terminal."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import io
import logging
import os
import re
import select
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import TextIO

from imagebeam.pipelines.messages import json_log

_READER_HAS_GONE = frozenset({errno.EPIPE, errno.EIO, errno.ECONNRESET})  # EIO: a closed terminal


COLUMNS = 80  # of a terminal of unknown width
_MIN_WIDTH = 20  # of a column of text


def printable(text: str) -> str:
    """Returns `text` for a terminal, with line breaks and control characters of file names escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def columns_of(stream: TextIO) -> int | None:
    """Returns the width of the terminal that a stream writes to; None if it writes elsewhere."""
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or COLUMNS
    except OSError:  # it claims to be a terminal, but the system does not know its size
        return COLUMNS


def wrap(text: str, stream: TextIO, indent: int) -> str:
    """Returns a text broken between words to fit a terminal, its further lines indented; as it is for other streams.

    What a user may copy, such as an option or a quoted path, is not broken, and may be longer than a line.

    Args:
        text: that begins at the column `indent`, or before it.
        stream: that it is written to.
        indent: of the further lines.
    """
    columns = columns_of(stream)
    if columns is None or indent + len(text) <= columns or columns - indent < _MIN_WIDTH:
        return text
    pass  # MERGED  # its patterns take 1 ms, and are rarely needed

    return ("\n" + " " * indent).join(break_lines(text, columns - indent))


class _Output(io.FileIO):
    """A standard stream that survives its reader: after the reader has closed the pipe, output is discarded."""

    def __init__(self, descriptor: int, standard: int):
        """Writes to `descriptor`, which is `standard` (1 or 2) or a copy of it."""
        super().__init__(descriptor, "wb", closefd=descriptor != standard)
        self._standard = standard
        self.reader_has_gone = False
        self.failure: OSError | None = None  # any other error, such as a full disk

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

    A stream that was closed from the start, or whose reader goes away, changes neither the work of the command nor its
    exit code. Standard error gets a descriptor of its own, which `hush_libraries` leaves alone. Streams that are not
    the process's own, like those of a test, stay as they are.
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
    """Opens the null device for closed standard streams, or the next file, such as a lock, takes their number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number: this one


def _wrap(before: TextIO | None, output: _Output) -> TextIO:
    """Returns a text stream like `before`, which is None for a closed descriptor."""
    encoding = before.encoding if before is not None else "utf-8"
    to_a_person = output.isatty() or output._standard == 2
    return io.TextIOWrapper(io.BufferedWriter(output), encoding, line_buffering=to_a_person)


def _output_of(stream: TextIO) -> _Output | None:
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, _Output) else None


def reader_has_gone() -> bool:
    """Returns whether the reader of standard output has closed it, as far as known without writing to it."""
    output = _output_of(sys.stdout)
    return output is not None and output.reader_has_gone


def output_failure() -> OSError | None:
    """Returns why a part of standard output was lost, such as a full disk; None if nothing was lost."""
    sys.stdout.flush()
    output = _output_of(sys.stdout)
    return output.failure if output is not None else None


def ensure_utf8_file_names() -> None:
    """Restarts this program in Python's UTF-8 mode if the locale gives file names another encoding.

    Keys and labels are file names: they must not depend on the locale.
    """
    if sys.getfilesystemencoding() == "utf-8" or not sys.executable:
        return
    os.environ["PYTHONUTF8"] = "1"  # for child processes
    if sys.stdout is not None:  # output keeps the encoding of the locale
        os.environ.setdefault("PYTHONIOENCODING", sys.stdout.encoding)
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


@contextlib.contextmanager
def hush_libraries() -> Iterator[None]:
    """Holds back what libraries write to descriptor 2 while they are imported; shows it if the import fails.

    TensorFlow's libraries write a few lines before any log level applies. If an import kills the process, Python's
    fault handler names the place on the real standard error.
    """
    sys.stderr.flush()
    real = os.dup(2)
    sets_handler = not faulthandler.is_enabled()
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        if sets_handler:
            faulthandler.enable(real)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(real, held.read())
            raise
        finally:
            if sets_handler:
                faulthandler.disable()
            os.dup2(real, 2)
            os.close(real)


_BRACES = r"\{(?:[^{}\n]|\{[^{}\n]*\})*\}|\[[^\[\]\n]*\]"
# A quote after a letter is an apostrophe.
_WORD = rf"""(?:(?<!\w)"[^"\n]*"|(?<!\w)'[^'\n]*'(?!\w)|{_BRACES}|\S)+"""
_OPTION = rf"--[a-z][\w-]*(?:[ =]{_WORD})?"
_OPTIONS = rf"{_OPTION}(?: {_OPTION})*"
_COMMAND = rf"(?:imagebeam|pip install) {_WORD}(?: (?!--){_WORD})?(?: {_OPTIONS})?"
_SETTING = rf"[a-z_]+(?:\.[a-z_]+)+: {_WORD}"  # a key of a config with its value
_WHOLE = re.compile(rf"(?:{_COMMAND}|{_OPTIONS}|{_SETTING}|{_WORD})(?!\S)")


def break_lines(text: str, columns: int) -> list[str]:
    """Returns the lines of a text.

    Lines end at blanks, but not in quotes and braces, nor in a command or its options: a line break in them would run a
    part of a command that is copied from the screen. What is longer than a line gets one of its own.

    Args:
        text: without line breaks.
        columns: that a line may have.
    """
    lines: list[str] = []
    for match in _WHOLE.finditer(text):
        if lines and len(lines[-1]) + 1 + len(match[0]) <= columns:
            lines[-1] += f" {match[0]}"
        else:
            lines.append(match[0])
    return lines


_INDENT = 2  # of the further lines of a message
NOBODY_READS = 128 + signal.SIGPIPE  # exit code of a command whose reader has gone


def quieten(verbose: bool) -> None:
    """Hides log messages of libraries that do not help the user; `-v` shows them."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.CRITICAL, format="%(levelname)s %(name)s: %(message)s"
    )
    if not verbose:
        logging.getLogger("imagebeam.pipelines.output_lock").setLevel(logging.WARNING)  # it says why a run waits
        warnings.simplefilter("ignore")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def tell_failure(text: str) -> None:
    """Prints why the command ends. As JSON, the line of the summary says it, so that an error is one line."""
    if json_log.current() is None:
        _say_in_lines(f"imagebeam: {text}", sys.stderr, _INDENT)


def complain(text: str) -> None:
    """Prints what is wrong."""
    if (log := json_log.current()) is not None:
        log.log(text, "ERROR")
    else:
        _say_in_lines(f"imagebeam: {text}", sys.stderr, _INDENT)


def warn(text: str) -> None:
    """Prints what may be a mistake."""
    if (log := json_log.current()) is not None:
        log.log(text, "WARNING")
    else:
        _say_in_lines(f"imagebeam: {text}", sys.stderr, _INDENT)


def tell(text: str) -> None:
    """Prints one line about the run on standard error."""
    if (log := json_log.current()) is not None:
        log.log(text)
    else:
        _say_in_lines(text, sys.stderr, _INDENT)


def say_in_lines(text: str, indent: int) -> None:
    """Prints one line; on a terminal it is broken between words, with its further lines indented."""
    _say_in_lines(text, sys.stdout, indent)


def _say_in_lines(text: str, stream: TextIO, indent: int) -> None:
    print(wrap(printable(text), stream, indent), file=stream)


def say(text: str, stream: TextIO | None = None) -> None:
    """Prints one line, with control characters in file names escaped."""
    print(printable(text), file=stream or sys.stdout)
