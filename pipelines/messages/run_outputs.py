"""Tells a platform what a command does: by its summary, its metrics and its lineage events.

The events are those of OpenLineage: START, then COMPLETE, FAIL or ABORT, with what was read and what was written. A
service that does not answer never fails the run.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import re
import sys
import urllib.parse
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TextIO, TypeAlias

import imagebeam
from imagebeam import errors, storage
from imagebeam.pipelines.messages import run_journal, terminal
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
        self._events: RunEvents | None = None

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
            self._events = open_events(options.openlineage, self._warn)
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
        if (log := terminal.current_log()) is not None:
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
    remedy = ": give the address of a file in a folder that this user can write to"
    cannot_write = errors.explained("outputs-unwritable", f"{option} {path!r} cannot be written", remedy)
    with cannot_write, remote.budget(remote.CHECK_BUDGET_SEC):
        if store.is_local:
            store.make_directories(os.path.dirname(uri))
            if os.path.isdir(uri):
                raise IsADirectoryError(0, "it is a folder")
            _require_ordinary(uri)
            if not os.access(os.path.dirname(uri), os.W_OK):
                raise PermissionError(0, "its folder is not writable")
        if removes:
            store.remove(uri)


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
    counts = summary["counts"] or {"rejected": {}}
    values: dict[str, list[tuple[dict[str, str], float]]] = {
        "timestamp_seconds": [({}, ended)],
        "success": [({}, int(is_success))],
        "exit_code": [({}, summary["exit_code"])],
        "images_listed": [({}, counts["listed"])] if "listed" in counts else [],
        "images_written": [({}, counts["written"])] if "written" in counts else [],
        "images_rejected": [({"reason": reason}, number) for reason, number in counts["rejected"].items()],
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


_PRODUCER = f"urn:imagebeam:{imagebeam.__version__}"  # a URI that identifies this code
_ENVIRONMENT = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")  # variables of the client, and all with this prefix:
_TRANSPORT_PREFIX = "OPENLINEAGE__TRANSPORT"
_NAMESPACE, _PARENT = "OPENLINEAGE_NAMESPACE", "OPENLINEAGE_PARENT_ID"
_TIMEOUT_SEC = 5.0  # for an event: a run waits for it
_HTTP = re.compile(r"https?://")
_EventType: TypeAlias = Literal["START", "COMPLETE", "FAIL", "ABORT"]


def open_events(where: str | None, warn: Callable[[str], None]) -> RunEvents | None:
    """Returns the events of a run; None if nothing says where they go.

    Args:
        where: URL of a service, or address of a YAML file as the client takes it; None for the client's environment.
        warn: shows a warning to the user.

    Raises:
        ConfigError: if `where` is given, and the client is not installed or cannot be made of it.
    """
    names = [name for name in os.environ if name.startswith(_TRANSPORT_PREFIX) or name in _ENVIRONMENT]
    if where is None and not any(os.environ[name] for name in names):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            from openlineage.client import OpenLineageClient
            from openlineage.client.facet_v2 import set_producer

            set_producer(_PRODUCER)
            client = OpenLineageClient(config=None if where is None else _read_config(where))
        return RunEvents(client, warn)
    except errors.ConfigError:
        raise
    except Exception as e:  # the client raises any type for a config that it does not understand
        if isinstance(e, ModuleNotFoundError) and (e.name or "").partition(".")[0] == "openlineage":
            failure = errors.missing_package(e, "--openlineage", "openlineage")
        else:
            failure = errors.ConfigError(
                "lineage-refused",
                f"{'the variables OPENLINEAGE_...' if where is None else f'--openlineage {where!r}'}: the client of "
                f"OpenLineage does not take them ({type(e).__name__}: {e}); give the URL of a service, or a YAML file "
                "with a section `transport`",
            )
        if where is not None:
            raise failure from e
        warn(f"no lineage events are sent: {failure}")
        return None


def _read_config(where: str) -> dict[str, Any]:
    if _HTTP.match(where):
        transport: dict[str, Any] = {"type": "http", "url": where, "timeout": _TIMEOUT_SEC, "retry": {"total": 1}}
        if key := os.environ.get("OPENLINEAGE_API_KEY"):
            transport["auth"] = {"type": "api_key", "apiKey": key}
        # The working folder is not imagebeam's source: its git repository says nothing about the run.
        return {"transport": transport, "facets": {"source_code_location": {"disabled": True}}}
    import yaml  # comes with the client

    uri = storage.normalize(where)
    remedy = ": give the URL of a service (https://...), or the address of a YAML file"
    with errors.explained("lineage-unreadable", f"--openlineage {where!r} cannot be read", remedy):
        data = storage.storage_of(uri).read(uri)
    try:
        found = yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        text = f"--openlineage {where!r} is no YAML: {' '.join(str(e).split())}"
        raise errors.ConfigError("lineage-config", text) from e
    if not isinstance(found, dict) or not isinstance(found.get("transport"), dict):
        raise errors.ConfigError(
            "lineage-config",
            f"--openlineage {where!r} has no section `transport`, expected one such as "
            "transport: {type: http, url: https://...}",
        )
    return found


class RunEvents:
    """Sends the events of one run."""

    def __init__(self, client: Any, warn: Callable[[str], None]):
        from openlineage.client import uuid

        self._client = client
        self._warn = warn
        self._run = str(uuid.generate_new_uuid())

    def start(self, journal: run_journal.Journal) -> None:
        """Sends START, once the input and the output are known."""
        self._emit("START", journal)

    def end(self, journal: run_journal.Journal) -> None:
        """Sends how the run ended; nothing for a job that goes on without its launcher."""
        if journal.state == "submitted":
            return
        if journal.state == "interrupted":
            self._emit("ABORT", journal)
        else:
            self._emit("COMPLETE" if journal.state in run_journal.ENDED_WELL else "FAIL", journal)
        try:
            self._client.close(timeout=_TIMEOUT_SEC)
        except Exception as e:  # as above
            self._warn(f"lineage events may be lost ({type(e).__name__}: {e})")

    def _emit(self, kind: _EventType, journal: run_journal.Journal) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                self._client.emit(_make_event(kind, journal, self._run))
        except Exception as e:  # any type: the transport is the user's, and the run matters more
            self._warn(f"the lineage event {kind} was not sent ({type(e).__name__}: {' '.join(str(e).split())[:300]})")


def _make_event(kind: _EventType, journal: run_journal.Journal, run: str) -> Any:
    from openlineage.client import event_v2
    from openlineage.client.facet_v2 import error_message_run, job_type_job, parent_run, processing_engine_run

    namespace = os.environ.get(_NAMESPACE) or "default"
    engine = processing_engine_run.ProcessingEngineRunFacet(version=imagebeam.__version__, name="imagebeam")
    run_facets: dict[str, Any] = {"processing_engine": engine}
    if kind in ("FAIL", "ABORT"):
        language = f"Python {platform.python_version()}"
        message = journal.message or journal.state
        run_facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message, language)
    parent = os.environ.get(_PARENT, "").rsplit("/", 2)  # namespace, job and run id
    if len(parent) == 3 and all(parent):
        run_facets["parent"] = parent_run.ParentRunFacet(parent_run.Run(parent[2]), parent_run.Job(*parent[:2]))
    job_type = job_type_job.JobTypeJobFacet("BATCH", "IMAGEBEAM", "JOB")
    return event_v2.RunEvent(
        eventType=event_v2.RunState[kind],
        eventTime=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"),
        run=event_v2.Run(run, run_facets),
        job=event_v2.Job(namespace, f"imagebeam.{journal.command}.{journal.name or 'dataset'}", {"jobType": job_type}),
        inputs=[] if journal.input is None else [_make_input(journal)],
        outputs=[] if journal.output is None else [_make_output(journal)],
        producer=_PRODUCER,
    )


def _make_input(journal: run_journal.Journal) -> Any:
    from openlineage.client import event_v2
    from openlineage.client.facet_v2 import input_statistics_input_dataset

    uri = str(journal.input)
    statistics = {}
    if journal.plan is not None:
        num_bytes = sum(split.num_bytes for split in journal.plan.splits.values())
        statistics["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
            rowCount=journal.plan.listed, size=num_bytes or None
        )
    return event_v2.InputDataset(*_name_of(uri), inputFacets=statistics, facets=_source_of(uri))


def _make_output(journal: run_journal.Journal) -> Any:
    from openlineage.client import event_v2
    from openlineage.client.facet_v2 import dataset_version_dataset, output_statistics_output_dataset, schema_dataset

    uri = str(journal.output)
    facets = _source_of(uri)
    statistics = {}
    if (catalog := journal.catalog) is not None:
        fields = [
            schema_dataset.SchemaDatasetFacetFields(each.key, f"list<{each.kind}>" if each.is_list else each.describe())
            for each in catalog.features
        ]
        version = journal.snapshot or catalog.fingerprint
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields)
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(version)
        summary = run_journal.summarize(journal)
        statistics["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=catalog.counts.written,
            size=summary["bytes"],
            fileCount=sum(split["shards"] for split in summary["splits"].values()),
        )
    return event_v2.OutputDataset(*_name_of(uri), outputFacets=statistics, facets=facets)


def _name_of(uri: str) -> tuple[str, str]:
    """Returns the namespace and the name of a dataset as OpenLineage's conventions want them.

    They are `gs://bucket` and `path/below`, or `file` and the absolute path.
    """
    try:
        uri = storage.normalize(uri)
    except errors.ConfigError:  # the run fails by it, and the event tells why
        return "unknown", uri
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return "file", uri
    host, _, path = rest.partition("/")
    return f"{scheme}://{host}", path.rstrip("/") or "/"


def _source_of(uri: str) -> dict[str, Any]:
    """Returns the facet with the namespace of a dataset and its address as a URI."""
    from openlineage.client.facet_v2 import datasource_dataset

    namespace, name = _name_of(uri)
    address = f"file://{urllib.parse.quote(name)}" if namespace == "file" else uri
    return {"dataSource": datasource_dataset.DatasourceDatasetFacet(namespace, address)}
