"""Tells a platform what a command does: by its summary, its metrics and its lineage events."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from imagebeam import errors, storage
from imagebeam.pipelines.messages import json_log, openlineage_events, run_journal, terminal
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
            with errors.imports_for("--metrics-textfile", "convert"):
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
        summary = run_journal.summarize(self._journal)
        document = run_journal.encode(summary)
        path = self._options.summary_json
        if self._options.takes_standard_output:
            with contextlib.redirect_stdout(self._standard_output):
                print(document.decode(), end="")
                if (failure := terminal.output_failure()) is not None:
                    self._warn(f"the summary cannot be written to standard output ({failure.strerror})")
        elif path:
            self._write(path, document, "the summary")
        if path := self._options.metrics_textfile:
            metrics = format_metrics(summary, _read_earlier(path))
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


_PREFIX = "imagebeam_last_run_"
_LAST_SUCCESS = "imagebeam_last_success_timestamp_seconds"
_HELP = {
    "timestamp_seconds": "When the last run ended.",
    "success": "Whether the last run ended well (1) or not (0).",
    "exit_code": "Exit code of the last run.",
    "images_listed": "Images that the last run listed.",
    "images_written": "Images in the dataset that the last run committed or found.",
    "images_rejected": "Images that the last run rejected, by reason.",
    "bytes": "Bytes of the dataset's shards.",
    "seconds": "Seconds of each stage of the last run, and in total.",
}


def format_metrics(summary: Mapping[str, Any], earlier: str = "") -> bytes:
    """Returns the content of the file for the summary of a run.

    Args:
        summary: see `run_summary.summarize`.
        earlier: content of the file that is replaced. The time of the last success is taken from it if this run failed.
    """
    import prometheus_client

    labels = {  # file names can hold lone surrogates
        name: (summary[name] or "").encode("utf-8", "replace").decode() for name in ("command", "output", "name")
    }
    ended = datetime.datetime.fromisoformat(summary["ended"]).timestamp()
    is_success = summary["state"] in run_journal.ENDED_WELL and summary["exit_code"] == 0
    counts = summary["counts"]
    values: dict[str, list[tuple[dict[str, str], float]]] = {
        "timestamp_seconds": [({}, ended)],
        "success": [({}, int(is_success))],
        "exit_code": [({}, summary["exit_code"])],
        "images_listed": [] if counts is None else [({}, counts["listed"])],
        "images_written": [] if counts is None else [({}, counts["written"])],
        "images_rejected": []
        if counts is None
        else [({"reason": reason}, number) for reason, number in counts["rejected"].items()],
        "bytes": [] if summary["bytes"] is None else [({}, summary["bytes"])],
        "seconds": [({"stage": stage}, sec) for stage, sec in summary["durations"].items() if sec is not None],
    }
    registry = prometheus_client.CollectorRegistry()

    def add(name: str, text: str, samples: Sequence[tuple[dict[str, str], float]]) -> None:
        gauge = prometheus_client.Gauge(name, text, [*labels, *(samples[0][0] if samples else ())], registry=registry)
        for more, value in samples:
            gauge.labels(**labels, **more).set(value)

    for name, samples in values.items():
        add(f"{_PREFIX}{name}", _HELP[name], samples)
    success = ended if is_success else _find_success(earlier)
    if success is not None:
        add(_LAST_SUCCESS, "When a run last ended well.", [({}, success)])
    return prometheus_client.generate_latest(registry)


def _find_success(text: str) -> float | None:
    """Returns the time of the last success in the text of metrics; None if there is none."""
    from prometheus_client import parser

    try:
        samples = [each for family in parser.text_string_to_metric_families(text) for each in family.samples]
    except (LookupError, ValueError):  # the file is not of this command
        return None
    return next((each.value for each in samples if each.name == _LAST_SUCCESS), None)
