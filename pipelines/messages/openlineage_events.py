"""Events of a run for OpenLineage: START, then COMPLETE, FAIL or ABORT, with what was read and what was written.

A service that does not answer never fails the run. Imports the client of OpenLineage only if events are wanted.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import urllib.parse
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import imagebeam
from imagebeam import errors, storage
from imagebeam.pipelines.messages import run_journal

_PRODUCER = f"urn:imagebeam:{imagebeam.__version__}"  # a URI that identifies this code
_ENVIRONMENT = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")  # variables of the client, and all with this prefix:
_TRANSPORT_PREFIX = "OPENLINEAGE__TRANSPORT"
_NAMESPACE, _PARENT = "OPENLINEAGE_NAMESPACE", "OPENLINEAGE_PARENT_ID"
_TIMEOUT_SEC = 5.0  # for an event: a run waits for it
_HTTP = re.compile(r"https?://")
_EventType: TypeAlias = Literal["START", "COMPLETE", "FAIL", "ABORT"]


def is_in_environment(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether variables of the client say where events go."""
    names = [name for name in environment if name.startswith(_TRANSPORT_PREFIX) or name in _ENVIRONMENT]
    return any(environment[name] for name in names)


def open_events(where: str | None, warn: Callable[[str], None]) -> RunEvents | None:
    """Returns the events of a run; None if nothing says where they go.

    Args:
        where: URL of a service, or address of a YAML file as the client takes it; None for the client's environment.
        warn: shows a warning to the user.

    Raises:
        ConfigError: if `where` is given, and the client is not installed or cannot be made of it.
    """
    if where is None and not is_in_environment():
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            from openlineage.client import OpenLineageClient

            client = OpenLineageClient(config=None if where is None else _read_config(where))
        return RunEvents(client, warn)
    except errors.ConfigError:
        raise
    except Exception as e:  # the client raises any type for a config that it does not understand
        if isinstance(e, ModuleNotFoundError) and (e.name or "").partition(".")[0] == "openlineage":
            failure = errors.missing_package(e, "--openlineage", "openlineage")
        else:
            failure = errors.ConfigError(
                f"{'the variables OPENLINEAGE_...' if where is None else f'--openlineage {where!r}'}: the client of "
                f"OpenLineage does not take them ({type(e).__name__}: {e}); give the URL of a service, or a YAML file "
                "with a section `transport`"
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
    try:
        found = yaml.safe_load(storage.storage_of(uri).read(uri))
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise errors.ConfigError(f"--openlineage {where!r} is no YAML: {' '.join(str(e).split())}") from e
    except OSError as e:
        raise errors.ConfigError(
            f"--openlineage {where!r} cannot be read ({e.strerror or e}): give the URL of a service (https://...), or "
            "the address of a YAML file"
        ) from e
    if not isinstance(found, dict) or not isinstance(found.get("transport"), dict):
        raise errors.ConfigError(
            f"--openlineage {where!r} has no section `transport`, expected one such as "
            "transport: {type: http, url: https://...}"
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
    run_facets: dict[str, Any] = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
            version=imagebeam.__version__, name="imagebeam", producer=_PRODUCER
        )
    }
    if kind in ("FAIL", "ABORT"):
        message = journal.message or journal.state
        run_facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message, f"Python {platform.python_version()}", producer=_PRODUCER
        )
    if (parent := _parse_parent(os.environ.get(_PARENT, ""))) is not None:
        run_facets["parent"] = parent_run.ParentRunFacet(
            parent_run.Run(parent[2]), parent_run.Job(parent[0], parent[1]), producer=_PRODUCER
        )
    job_type = job_type_job.JobTypeJobFacet("BATCH", "IMAGEBEAM", "JOB", producer=_PRODUCER)
    return event_v2.RunEvent(
        eventType=event_v2.RunState[kind],
        eventTime=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"),
        run=event_v2.Run(run, run_facets),
        job=event_v2.Job(namespace, f"imagebeam.{journal.command}.{journal.name or 'dataset'}", {"jobType": job_type}),
        inputs=[] if journal.input is None else [_make_input(kind, journal)],
        outputs=[] if journal.output is None else [_make_output(kind, journal)],
        producer=_PRODUCER,
    )


def _parse_parent(text: str) -> tuple[str, str, str] | None:
    """Returns namespace, job and run id of `OPENLINEAGE_PARENT_ID`, which joins them by slashes; None without it."""
    head, _, run = text.rpartition("/")
    namespace, _, job = head.rpartition("/")
    return (namespace, job, run) if namespace and job and run else None


def _make_input(kind: _EventType, journal: run_journal.Journal) -> Any:
    from openlineage.client import event_v2
    from openlineage.client.facet_v2 import datasource_dataset, input_statistics_input_dataset

    uri = str(journal.input)
    facets = {"dataSource": datasource_dataset.DatasourceDatasetFacet(*_source_of(uri), producer=_PRODUCER)}
    statistics = {}
    if journal.plan is not None:
        num_bytes = sum(split.num_bytes for split in journal.plan.splits.values())
        statistics["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
            rowCount=journal.plan.listed, size=num_bytes or None, producer=_PRODUCER
        )
    return event_v2.InputDataset(*_name_of(uri), inputFacets=statistics, facets=facets)


def _make_output(kind: _EventType, journal: run_journal.Journal) -> Any:
    from openlineage.client import event_v2
    from openlineage.client.facet_v2 import (
        dataset_version_dataset,
        datasource_dataset,
        output_statistics_output_dataset,
        schema_dataset,
    )

    uri = str(journal.output)
    facets: dict[str, Any] = {
        "dataSource": datasource_dataset.DatasourceDatasetFacet(*_source_of(uri), producer=_PRODUCER)
    }
    statistics = {}
    if (catalog := journal.catalog) is not None:
        fields = [
            schema_dataset.SchemaDatasetFacetFields(each.key, f"list<{each.kind}>" if each.many else each.kind)
            for each in catalog.features
        ]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields, producer=_PRODUCER)
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(
            journal.snapshot or catalog.fingerprint, producer=_PRODUCER
        )
        summary = run_journal.summarize(journal)
        statistics["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=catalog.counts.written,
            size=summary["bytes"],
            fileCount=sum(split["shards"] for split in summary["splits"].values()),
            producer=_PRODUCER,
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


def _source_of(uri: str) -> tuple[str, str]:
    """Returns the namespace of a dataset and its address as a URI."""
    namespace, name = _name_of(uri)
    return namespace, f"file://{urllib.parse.quote(name)}" if namespace == "file" else uri
