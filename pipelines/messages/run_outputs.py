"""Where a command tells a platform what it does: its summary, its metrics and its lineage events."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import NamedTuple, TextIO

from imagebeam import errors, missing_packages, storage
from imagebeam.pipelines.messages import (
    json_log,
    metrics_textfile,
    openlineage_events,
    run_journal,
    run_summary,
    terminal,
)
from imagebeam.storage import remote

_STANDARD_OUTPUT = "-"
_SAID = ("command", "output", "run_id", "message")  # fields of the summary that a line of the log has anyway
_WRITE_SEC = 20.0  # for each file; a container that is stopped is killed 30 s later


class Options(NamedTuple):
    """The options of a command that say where it tells what it does."""

    command: str = ""
    summary_json: str | None = None
    metrics_textfile: str | None = None
    log_format: str = "text"
    openlineage: str | None = None
    verbose: bool = False

    @property
    def takes_standard_output(self) -> bool:
        """Whether the summary is all that goes to standard output; text for people goes to standard error."""
        return self.summary_json == _STANDARD_OUTPUT


class RunOutputs:
    """The summary, the metrics and the lineage events of one command.

    Nothing here changes how the command ends: what cannot be written or sent when it ends is a warning.
    """

    def __init__(self, options: Options, journal: run_journal.Journal, warn: Callable[[str], None]):
        """Takes the options of the command, its journal, and what shows a warning to the user."""
        self._options = options
        self._journal = journal
        self._warn = warn
        self._standard_output: TextIO = sys.stdout
        self._events: openlineage_events.RunEvents | None = None

    def open(self) -> None:
        """Checks that the outputs can be written, and removes the summary of an earlier run.

        Raises:
            ConfigError: if one cannot be written, or its package is not installed.
        """
        options = self._options
        if options.summary_json and not options.takes_standard_output:
            _prepare(options.summary_json, "--summary-json", removes=True)
        if options.metrics_textfile:
            with missing_packages.needed("--metrics-textfile", "convert"):
                import prometheus_client  # noqa: F401
            _prepare(options.metrics_textfile, "--metrics-textfile")
        if options.command == "convert":
            self._events = openlineage_events.open_events(options.openlineage, self._warn)
            if self._events is not None:
                self._journal.on_begin.append(self._events.start)

    def close(self) -> None:
        """Writes the summary and the metrics of the command, which has ended, and sends the last event."""
        if not self._options.command:
            return
        summary = run_summary.summarize(self._journal)
        document = run_summary.encode(summary)
        path = self._options.summary_json
        if self._options.takes_standard_output:
            with contextlib.redirect_stdout(self._standard_output):
                print(document.decode(), end="")
                if (failure := terminal.output_failure()) is not None:
                    self._warn(f"the summary cannot be written to standard output ({failure.strerror})")
        elif path:
            self._write(path, document, "the summary")
        if path := self._options.metrics_textfile:
            metrics = metrics_textfile.format_metrics(summary, _read_earlier(path))
            self._write(path, metrics, "the metrics")
        if self._events is not None:
            self._events.end(self._journal)
        if (log := json_log.current()) is not None:
            text = f"{summary['command']} {summary['state']}" + (summary["message"] and f": {summary['message']}")
            fields = {name: value for name, value in summary.items() if name not in _SAID}
            log.log(text, "ERROR" if summary["exit_code"] else "INFO", error=self._journal.error, **fields)

    def _write(self, path: str, data: bytes, what: str) -> None:
        try:
            with remote.budget(_WRITE_SEC):
                uri = storage.normalize(path)
                _require_ordinary(uri)
                storage.storage_of(uri).write_whole(uri, data)
        except (OSError, errors.ImagebeamError) as e:
            self._warn(f"{what} cannot be written to {path!r} ({getattr(e, 'strerror', None) or e})")


def _prepare(path: str, option: str, removes: bool = False) -> None:
    uri = storage.normalize(path)
    store = storage.storage_of(uri)
    try:
        with remote.budget(remote.CHECK_BUDGET_SEC):
            if store.is_local:
                store.make_directories(os.path.dirname(uri))
                if os.path.isdir(uri):
                    raise IsADirectoryError(0, "it is a folder")
                _require_ordinary(uri)
                if not os.access(os.path.dirname(uri), os.W_OK):
                    raise PermissionError(0, "its folder is not writable")
            if removes:
                store.remove(uri)
    except OSError as e:
        raise errors.ConfigError(
            f"{option} {path!r} cannot be written ({e.strerror or e}): give the address of a file in a folder that "
            "this user can write to"
        ) from e


def _require_ordinary(uri: str) -> None:
    """Raises OSError for a device, a pipe or a socket: it may be read without end, and a new file would replace it."""
    if os.path.exists(uri) and not os.path.isfile(uri) and not os.path.isdir(uri):
        raise OSError(0, "it is a device, a pipe or a socket")


def _read_earlier(path: str) -> str:
    try:
        uri = storage.normalize(path)
        _require_ordinary(uri)
        with remote.budget(_WRITE_SEC):
            return storage.storage_of(uri).read(uri).decode("utf-8", "replace")
    except (OSError, errors.ImagebeamError):
        return ""
