"""Standard error as lines of JSON, one object each, for the log collectors of platforms."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

_STANDARD_ERROR = "stderr"  # the logger of lines that are printed, not logged
_OWN = "imagebeam"  # the logger of the command line


class JsonLines(io.TextIOBase):
    """A text stream that writes each line as a JSON object: time, level, logger, message, and fields.

    Lines that are printed get the level INFO; `log` writes others. Thread-safe.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._lock = threading.RLock()
        self._begun = ""  # of a line that is printed in parts
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


def current() -> JsonLines | None:
    """Returns standard error if it is lines of JSON."""
    return sys.stderr if isinstance(sys.stderr, JsonLines) else None
