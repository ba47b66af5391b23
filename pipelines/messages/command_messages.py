"""What commands print: lines for people on standard error and output, or JSON for log collectors."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from typing import TextIO

from imagebeam.pipelines.messages import json_log, terminal

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
    print(terminal.wrap(terminal.printable(text), stream, indent), file=stream)


def say(text: str, stream: TextIO | None = None) -> None:
    """Prints one line, with control characters in file names escaped."""
    print(terminal.printable(text), file=stream or sys.stdout)
