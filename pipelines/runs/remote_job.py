"""Jobs that outlive their launcher: where each runs, how to ask its service for its state, how the last one ended."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from imagebeam import errors, storage
from imagebeam.transforms.output import output_folder

State: TypeAlias = Literal["queued", "running", "cancelling", "done", "failed", "cancelled"]
ENDED: frozenset[State] = frozenset({"done", "failed", "cancelled"})

PATIENCE_SEC = 30.0  # for one question with all its repetitions
_TIMEOUT_SEC = 20.0  # for one request
_FIRST_WAIT_SEC, _LONGEST_WAIT_SEC = 0.5, 8.0
_REPEATED = (408, 429, 500, 502, 503, 504)  # status codes of errors that pass
_MAX_ERRORS = 3  # shown of a job that failed
_NAMESPACE = "imagebeam"

_STATES: dict[str, State] = {
    "JOB_STATE_STOPPED": "queued",  # created, not yet started
    "JOB_STATE_PENDING": "queued",
    "JOB_STATE_QUEUED": "queued",
    "JOB_STATE_CANCELLING": "cancelling",
    "JOB_STATE_DONE": "done",
    "JOB_STATE_DRAINED": "cancelled",
    "JOB_STATE_FAILED": "failed",
    "JOB_STATE_CANCELLED": "cancelled",
    "JOB_STATE_UPDATED": "cancelled",  # another job took its place
}


class Seen(NamedTuple):
    """A job as the service describes it."""

    id: str
    name: str
    state: State
    created_sec: float = 0.0  # when it was submitted, in seconds since the epoch; 0 if the service does not tell


class Service:
    """Dataflow in one project and region. Not thread-safe; connects at the first question.

    Every method raises ConfigError without credentials, packages or permission, and OSError if the service does not
    answer.
    """

    def __init__(self, project: str, region: str, endpoint: str = "", patience_sec: float = PATIENCE_SEC):
        """Describes the service; `endpoint` is "" for the public one."""
        self._place = {"project_id": project, "location": region}
        self._endpoint = endpoint
        self._patience_sec = patience_sec
        self._clients: dict[str, Any] = {}

    def get(self, id: str) -> Seen:
        """Returns a job.

        Raises:
            FileNotFoundError: if the service has no job with this id.
        """
        return _seen(self._ask("jobs", "get_job", id, job_id=id))

    def find_active(self, name: str) -> Seen | None:
        """Returns the active job with a name, of which there is at most one; None if there is none."""
        found = map(_seen, self._ask("jobs", "list_jobs", name, filter="ACTIVE"))
        return next((job for job in found if job.name == name and job.state not in ENDED), None)

    def counters(self, id: str) -> dict[str, int]:
        """Returns imagebeam's counters of a job, added up over its steps, with work that is still in progress."""
        return add_up(self._ask("metrics", "get_job_metrics", id, job_id=id).metrics)

    def error_lines(self, id: str) -> list[str]:
        """Returns the causes in the error messages of a job, in the order of time; the last few if there are many."""
        least = "JOB_MESSAGE_ERROR"
        found = self._ask("messages", "list_job_messages", id, job_id=id, minimum_importance=least)
        return choose_lines([message.message_text for message in found])

    def cancel(self, id: str) -> None:
        """Asks for the end of a job, which takes the service a minute or more."""
        self._ask("jobs", "update_job", id, job_id=id, job={"requested_state": "JOB_STATE_CANCELLED"})

    def _ask(self, kind: str, method: str, what: str, **fields: Any) -> Any:
        """Sends a request, again and again for a while if the error is one that passes; returns all pages as a list."""
        try:
            from google.api_core import exceptions, retry
            from google.auth import exceptions as auth_exceptions
        except ModuleNotFoundError as e:
            raise errors.missing_package(e, "asking Dataflow", "dataflow") from e

        def passes(error: BaseException) -> bool:
            if isinstance(error, exceptions.GoogleAPICallError):
                return error.code in _REPEATED
            return isinstance(error, (OSError, auth_exceptions.TransportError))

        def ask() -> Any:
            # A request with pages sends the others outside of the client's own repetition: hence around the whole.
            found = send({**self._place, **fields}, retry=None, timeout=_TIMEOUT_SEC)
            return list(found) if method.startswith("list_") else found

        try:
            send = getattr(self._client(kind), method)
            return retry.Retry(passes, _FIRST_WAIT_SEC, _LONGEST_WAIT_SEC, timeout=self._patience_sec)(ask)()
        except exceptions.RetryError as e:
            raise self._unreachable(e.cause or e) from e
        except exceptions.NotFound as e:
            raise FileNotFoundError(errno.ENOENT, f"Dataflow knows no job {what} {self._where}") from e
        except (exceptions.Forbidden, exceptions.Unauthorized) as e:
            raise errors.ConfigError(
                "dataflow-denied",
                f"Dataflow refuses to tell about jobs {self._where} ({text_of(e)}): these credentials need the role "
                "roles/dataflow.viewer, to submit and cancel roles/dataflow.developer",
            ) from e
        except auth_exceptions.DefaultCredentialsError as e:
            raise errors.ConfigError(
                "credentials-missing",
                "no credentials for Google Cloud: gcloud auth application-default login, or set "
                "GOOGLE_APPLICATION_CREDENTIALS",
            ) from e
        except exceptions.ClientError as e:
            raise OSError(errno.EINVAL, f"Dataflow refuses the question {self._where}: {text_of(e)}") from e
        except (exceptions.GoogleAPICallError, OSError, auth_exceptions.GoogleAuthError) as e:
            raise self._unreachable(e) from e

    @property
    def _where(self) -> str:
        return f"in project {self._place['project_id']!r}, region {self._place['location']!r}"

    def _unreachable(self, error: BaseException) -> OSError:
        return OSError(errno.EIO, f"Dataflow does not answer {self._where}: {text_of(error)}")

    def _client(self, kind: str) -> Any:
        if kind not in self._clients:
            from google.api_core import client_options
            from google.cloud import dataflow

            given: dict[str, Any] = {}
            if self._endpoint:  # as Beam does: REST to a stub, otherwise gRPC, whose addresses have no scheme
                is_stub = "localhost" in self._endpoint
                address = self._endpoint if is_stub else re.sub("^https?://", "", self._endpoint)
                given["client_options"] = client_options.ClientOptions(api_endpoint=address.rstrip("/"))
                given["transport"] = "rest" if is_stub else None
            self._clients[kind] = getattr(dataflow, f"{kind.capitalize()}V1Beta3Client")(**given)
        return self._clients[kind]


def add_up(metrics: Sequence[Any]) -> dict[str, int]:
    """Returns imagebeam's counters in the metrics of a job.

    The service reports a counter of a step twice: as committed, and with bundles in progress. The higher one counts.
    """
    by_step: dict[tuple[str, str], int] = {}
    for metric in metrics:
        context = metric.name.context
        if metric.name.origin != "user" or context.get("namespace") != _NAMESPACE or metric.scalar is None:
            continue
        key = metric.name.name, context.get("step", "")
        by_step[key] = max(by_step.get(key, 0), _number(metric.scalar))
    total: Counter[str] = Counter()
    for (name, _), value in by_step.items():
        total[name] += value
    return dict(total)


def choose_lines(texts: Sequence[str]) -> list[str]:
    """Returns one line for each error message: of a traceback its last line, which has the cause.

    Messages that only count the attempts of a work item are left out where others tell more.
    """
    causes = []
    for text in texts:
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
        attempts = "work item was attempted" in text
        if lines:
            cause = _cause_in(lines) if "Traceback (most recent call last)" in text else lines[0]
            causes.append((attempts, cause))
    useful = [cause for attempts, cause in causes if not attempts] or [cause for _, cause in causes]
    return list(dict.fromkeys(useful))[-_MAX_ERRORS:]


def _cause_in(lines: Sequence[str]) -> str:
    """Returns the error in the text of a traceback, without what Beam appends in brackets."""
    found = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return re.sub(r" \[while running '[^']*'\]$", "", found[-1] if found else lines[-1])


def _seen(job: Any) -> Seen:
    created = getattr(job, "create_time", None)
    created_sec = created.timestamp() if isinstance(created, datetime.datetime) else 0.0
    return Seen(job.id, job.name, _STATES.get(getattr(job.current_state, "name", ""), "running"), created_sec)


def _number(value: Any) -> int:
    """Returns a counter as an integer; google-cloud-dataflow-client has it as a float or as a protobuf value."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        return int(value)
    return int(getattr(value, "number_value", 0))


def text_of(error: BaseException) -> str:
    """Returns the text of an error in one line, without the request that REST puts in front of it."""
    text = " ".join(str(getattr(error, "message", None) or error).split()) or type(error).__name__
    return re.sub(r"^(GET|POST|PUT) \S+: ", "", text)


BadEnd: TypeAlias = Literal["failed", "cancelled", "refused"]
_BAD_ENDS = ("failed", "cancelled", "refused")


@dataclasses.dataclass(frozen=True)
class LastRun:
    """The end of a job.

    Attributes:
        state: "refused" by imagebeam itself, such as for too many rejects; otherwise the state of the job.
        job: with its id.
        causes: its error messages, or the reason of the refusal.
        exit_code: of its launcher.
        ended: when its launcher saw it: ISO 8601, UTC.
    """

    state: BadEnd
    job: RemoteJob
    causes: tuple[str, ...]
    exit_code: int
    ended: str


def record_last_run(output: str, state: BadEnd, job: RemoteJob, causes: Sequence[str], exit_code: int) -> None:
    """Writes the record, in place of an earlier one.

    Raises:
        ConfigError: if the output cannot be written with these credentials.
        OSError: if the storage does not answer.
    """
    ended = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    fields = dataclasses.asdict(LastRun(state, job, tuple(causes), exit_code, ended))
    uri = output_folder.OutputPaths(output).last_run
    storage.storage_of(uri).write_whole(uri, json.dumps(fields).encode(), durable=False)


def read_last_run(output: str) -> LastRun | None:
    """Reads the record of an output; None if there is none, or none that this version understands.

    Raises:
        ConfigError: if the output cannot be read with these credentials.
        OSError: if the storage does not answer.
    """
    uri = output_folder.OutputPaths(output).last_run
    try:
        fields = json.loads(storage.storage_of(uri).read(uri))
        job = RemoteJob.from_fields(fields["job"])
        causes = tuple(str(cause) for cause in fields["causes"])
        found = LastRun(fields["state"], job, causes, int(fields["exit_code"]), str(fields["ended"]))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if found.state in _BAD_ENDS else None


_DATAFLOW = "DataflowRunner"


@dataclasses.dataclass(frozen=True)
class RemoteJob:
    """The identity of a job at the service that runs it, as stored in the lock of its output."""

    runner: str  # Beam's name: "DataflowRunner"
    project: str
    region: str
    name: str
    id: str = ""  # "" until the service has answered the submission
    endpoint: str = ""  # address of the service's API, if it is not the public one

    @property
    def console(self) -> str:
        """Address of the job's page, or of the project's jobs while the id is not known; "" for other runners."""
        if self.runner != _DATAFLOW:
            return ""
        path = f"jobs/{self.region}/{self.id}" if self.id else "jobs"
        return f"https://console.cloud.google.com/dataflow/{path}?project={self.project}"

    @property
    def cancel_command(self) -> str:
        """A command that cancels the job; needs its id. "" for other runners."""
        if self.runner != _DATAFLOW:
            return ""
        place = f"--project={self.project}", f"--region={self.region}"
        return shlex.join(["gcloud", "dataflow", "jobs", "cancel", self.id, *place])

    @property
    def service(self) -> str:
        """The name of the service for messages, such as "Dataflow"."""
        return self.runner.removesuffix("Runner") or self.runner

    def to_fields(self) -> dict[str, str]:
        return dataclasses.asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> RemoteJob:
        """Returns the job of `to_fields`. Fields that this version does not know are left out.

        Raises:
            ValueError: if a field is missing or not a text.
        """
        known = {field.name: fields.get(field.name, field.default) for field in dataclasses.fields(cls)}
        if not all(isinstance(value, str) for value in known.values()):
            raise ValueError(f"{dict(fields)!r} does not describe a job")
        return cls(**known)


def service_of(job: RemoteJob, patience_sec: float = PATIENCE_SEC) -> Service:
    """Returns the service that runs a job.

    Args:
        job: whose service is asked.
        patience_sec: seconds for one question, with all its repetitions.

    Raises:
        ConfigError: if imagebeam cannot ask the runner of the job.
    """
    if job.runner != _DATAFLOW:
        raise errors.ConfigError(
            "runner-cannot-be-asked", f"imagebeam cannot ask {job.runner} for the state of {job.name}"
        )
    return Service(job.project, job.region, job.endpoint, patience_sec)


def look_up(job: RemoteJob, service: Service | None = None) -> tuple[RemoteJob, State]:
    """Asks its service for a job; returns it with its id, and its state.

    A job without an id is looked up by its name among the active ones. If it is not there, it has ended or was never
    submitted: "failed", still without an id.

    Raises:
        ConfigError: if the package that talks to the service is not installed, there are no credentials, or imagebeam
            cannot ask this runner.
        FileNotFoundError: if the service knows no job with this id.
        OSError: if the service does not answer.
    """
    service = service or service_of(job)
    seen = service.get(job.id) if job.id else service.find_active(job.name)
    return (job, "failed") if seen is None else (dataclasses.replace(job, id=seen.id), seen.state)


def describe(job: RemoteJob) -> str:
    """Returns how a job is named in messages."""
    return f"{job.service} job {job.id}" if job.id else f"{job.service} job {job.name!r} (its id is not known)"
