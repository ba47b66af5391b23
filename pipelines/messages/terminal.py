"""Prints for people and for log collectors.

For people: standard streams that survive when their reader goes away, and lines that fit a terminal. For the log
collectors of platforms: standard error as lines of JSON, one object each.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import faulthandler
import io
import json
import logging
import os
import re
import select
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, TextIO

_READER_HAS_GONE = frozenset({errno.EPIPE, errno.EIO, errno.ECONNRESET})  # EIO: a closed terminal


COLUMNS = 80  # width of a terminal that does not tell its own
_MIN_WIDTH = 20  # a narrower column of text is not wrapped


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


_INDENT = 2  # blanks before the second line of a message and those after it
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
    if current_log() is None:
        complain(text)


def complain(text: str) -> None:
    """Prints what is wrong."""
    _tell(f"imagebeam: {text}", text, "ERROR")


def warn(text: str) -> None:
    """Prints what may be a mistake."""
    _tell(f"imagebeam: {text}", text, "WARNING")


def tell(text: str) -> None:
    """Prints one line about the run on standard error."""
    _tell(text, text, "INFO")


def _tell(text: str, message: str, level: str) -> None:
    if (log := current_log()) is not None:
        log.log(message, level)
    else:
        print(wrap(printable(text), sys.stderr, _INDENT), file=sys.stderr)


def say_in_lines(text: str) -> None:
    """Prints one line; on a terminal it is broken between words, with its further lines indented."""
    print(wrap(printable(text), sys.stdout, _INDENT))


def say(text: str) -> None:
    """Prints one line, with control characters in file names escaped."""
    print(printable(text))


_STANDARD_ERROR = "stderr"  # the logger of lines that are printed, not logged
_OWN = "imagebeam"  # the logger of the command line


class JsonLines(io.TextIOBase):
    """A text stream that writes each line as a JSON object: time, level, logger, message, and fields.

    Lines that are printed get the level INFO; `log` writes others. Thread-safe.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._lock = threading.RLock()
        self._begun = ""  # the first parts of a line that is not complete
        self.context: Callable[[], Mapping[str, Any]] = dict  # returns the fields of every line

    def log(
        self,
        message: str,
        level: str = "INFO",
        logger: str = _OWN,
        /,
        error: BaseException | None = None,
        **fields: Any,
    ) -> None:
        """Writes one object. Fields that are None are left out.

        Args:
            message: for people.
            level: DEBUG, INFO, WARNING, ERROR or CRITICAL.
            logger: name of the logger.
            error: whose traceback becomes the field `exception`.
            **fields: further fields.
        """
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        given: Mapping[str, Any] = {"time": now, "level": level, "logger": logger, "message": message}
        exception = None if error is None else "".join(traceback.format_exception(error)).rstrip()
        line = {**given, **self.context(), **fields, "exception": exception}
        text = json.dumps({name: value for name, value in line.items() if value is not None}, default=str)
        with self._lock:
            self._stream.write(text + "\n")
            self._stream.flush()

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
            for line in lines:
                if line.strip():
                    self.log(line.rstrip("\r"), "INFO", _STANDARD_ERROR)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def finish(self) -> None:
        """Writes the last line if it has no end."""
        with self._lock:
            if self._begun.strip():
                self.write("\n")

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return False


class _Handler(logging.Handler):
    """Writes log records as lines of JSON."""

    def __init__(self, lines: JsonLines, shows_libraries: bool):
        super().__init__()
        self._lines = lines
        self._shows_libraries = shows_libraries

    def filter(self, record: logging.LogRecord) -> bool:
        is_own = record.name.partition(".")[0] == _OWN
        return is_own or self._shows_libraries or record.levelno >= logging.CRITICAL

    def emit(self, record: logging.LogRecord) -> None:
        try:
            error = record.exc_info[1] if record.exc_info else None
            self._lines.log(record.getMessage(), record.levelname, record.name, error=error)
        except Exception:  # as every handler of logging does
            self.handleError(record)


@contextlib.contextmanager
def standard_error_as_json(verbose: bool) -> Iterator[JsonLines]:
    """Makes standard error lines of JSON, and logs to it what imagebeam's loggers say, from INFO on.

    Text that libraries in C write to descriptor 2 stays as it is.

    Args:
        verbose: whether the logs of libraries are shown, too.
    """
    before = sys.stderr
    lines = JsonLines(before)
    handler = _Handler(lines, verbose)
    root, own = logging.getLogger(), logging.getLogger(_OWN)
    levels = root.level, own.level
    root.addHandler(handler)
    root.setLevel(logging.INFO if verbose else logging.CRITICAL)  # Beam's tracebacks are shown by this level
    own.setLevel(logging.INFO)
    sys.stderr = lines  # type: ignore[assignment]
    try:
        yield lines
    finally:
        lines.finish()
        sys.stderr = before
        root.removeHandler(handler)
        root.setLevel(levels[0])
        own.setLevel(levels[1])


def current_log() -> JsonLines | None:
    """Returns standard error if it is lines of JSON."""
    return sys.stderr if isinstance(sys.stderr, JsonLines) else None
