"""A stub of Dataflow's REST API on this machine: it records jobs, runs none, and answers as the test has scripted.

Beam's real client submits to it with `--dataflow_endpoint`, and stages its files in the GCS emulator. Tests script
states, messages, counters and errors of jobs; nothing of the client is replaced.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import http.server
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

CLOSED = 0  # in place of a status code: the connection is closed without an answer
PAGE_JOBS = 2  # small, so that listings have pages

_ENDED = frozenset({"JOB_STATE_DONE", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED"})
_PATH = re.compile(
    r"/v1b3/projects/(?P<project>[^/]+)/locations/(?P<region>[^/]+)/jobs(/(?P<id>[^/]+)(/(?P<part>messages|metrics))?)?"
)
_STATUS = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}
_ANSWER_SEC = 0.002  # of each answer, so that questions at the same time are seen
_ORDER = ("JOB_MESSAGE_DEBUG", "JOB_MESSAGE_DETAILED", "JOB_MESSAGE_BASIC", "JOB_MESSAGE_WARNING", "JOB_MESSAGE_ERROR")
_IMPORTANCE_BY_NUMBER = {1: _ORDER[0], 2: _ORDER[1], 5: _ORDER[2], 3: _ORDER[3], 4: _ORDER[4]}


@dataclasses.dataclass(frozen=True)
class Step:
    """One state of a job, until it is asked for the next time."""

    state: str = "JOB_STATE_RUNNING"
    counters: Mapping[str, int] = dataclasses.field(default_factory=dict)
    messages: Sequence[tuple[str, str]] = ()  # (importance, text)
    action: Callable[[Job], object] | None = None  # called as the job enters this state


QUEUED, RUNNING, DONE = Step("JOB_STATE_QUEUED"), Step(), Step("JOB_STATE_DONE")
CANCELLED = Step("JOB_STATE_CANCELLED")


def failed(*texts: str) -> Step:
    """Returns the end of a job with these error messages."""
    return Step("JOB_STATE_FAILED", messages=[("JOB_MESSAGE_ERROR", text) for text in texts])


class Job:
    """A job that was submitted."""

    def __init__(self, number: int, project: str, region: str, fields: dict[str, Any], steps: Sequence[Step]):
        self.id = f"2026-11-22_00_00_00-{number:019d}"
        self.project, self.region, self.fields = project, region, fields
        self.counters: dict[str, int] = {}
        self.messages: list[tuple[str, str]] = []
        self.created = datetime.datetime.now(datetime.timezone.utc)
        self._coming = collections.deque(steps)
        self.state = ""
        self.go_on()

    @property
    def name(self) -> str:
        return str(self.fields["name"])

    @property
    def options(self) -> Mapping[str, Any]:
        """The pipeline options as the client sent them for the workers."""
        options: dict[str, Any] = self.fields["environment"]["sdkPipelineOptions"]["options"]
        return options

    @property
    def pool(self) -> Mapping[str, Any]:
        """The worker pool that was asked for."""
        pool: dict[str, Any] = self.fields["environment"]["workerPools"][0]
        return pool

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDED

    def go_on(self) -> None:
        """Enters the next scripted state; stays in the last one."""
        if not self._coming:
            return
        step = self._coming.popleft()
        self.counters.update(step.counters)
        self.messages += step.messages
        if step.action is not None:
            step.action(self)
        self.state = step.state

    def set(self, *steps: Step) -> None:
        """Enters the first of these states now; the others follow."""
        self._coming = collections.deque(steps)
        self.go_on()

    def to_json(self) -> dict[str, Any]:
        known = {"id": self.id, "projectId": self.project, "location": self.region, "currentState": self.state}
        known["createTime"] = self.created.isoformat().replace("+00:00", "Z")
        return {**known, "name": self.name, "clientRequestId": self.fields.get("clientRequestId", "")}


class Service:
    """The stub.

    Attributes:
        url: of the server, for `--dataflow_endpoint`.
        steps: of the jobs that are submitted from now on.
        jobs: all that were submitted.
        requests: kind of each request, in order: create, get, update, list, messages, metrics.
        most_at_once: the highest number of requests that were answered at the same time.
    """

    def __init__(self, url: str):
        self.url = url
        self.steps: Sequence[Step] = (RUNNING,)
        self.jobs: list[Job] = []
        self.requests: list[str] = []
        self.most_at_once = 0
        self.lock = threading.Lock()
        self._at_once = 0
        self._faults: dict[str, collections.deque[int | tuple[int, bytes]]] = collections.defaultdict(collections.deque)
        self._always: dict[str, int] = {}

    def fail(self, kind: str, *codes: int) -> None:
        """Answers the next requests of a kind with these status codes."""
        self._faults[kind].extend(codes)

    def fail_always(self, kind: str, code: int | None) -> None:
        """Answers all requests of a kind with a status code; None ends this."""
        if code is None:
            self._always.pop(kind, None)
        else:
            self._always[kind] = code

    def arguments(self, **more: str) -> list[str]:
        """Returns Beam's options for a job on this service."""
        named = {"runner": "DataflowRunner", "project": "test", "region": "europe-west1", **more}
        return [*(f"--{name}={value}" for name, value in named.items()), f"--dataflow_endpoint={self.url}"]

    def say(self, kind: str, *bodies: bytes, code: int = 200) -> None:
        """Answers the next requests of a kind with these bodies, as something else than Dataflow would."""
        self._faults[kind].extend((code, body) for body in bodies)

    @contextlib.contextmanager
    def counted(self, kind: str) -> Iterator[int | tuple[int, bytes] | None]:
        """Records a request; yields the status code that it is to fail with, if any, maybe with its body."""
        with self.lock:
            self.requests.append(kind)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            waiting = self._faults[kind]
            code = waiting.popleft() if waiting else self._always.get(kind)
        try:
            yield code
        finally:
            with self.lock:
                self._at_once -= 1

    def add(self, name: str, *steps: Step, project: str = "test", region: str = "europe-west1") -> Job:
        """Adds a job that a launcher submitted earlier."""
        job = Job(len(self.jobs), project, region, {"name": name}, steps or self.steps)
        self.jobs.append(job)
        return job


@contextlib.contextmanager
def run() -> Iterator[Service]:
    """Runs a stub on a free port of the loopback interface."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        # Beam's client speaks REST only to an endpoint with "localhost" in it
        service = Service(f"http://localhost:{server.server_address[1]}")
        server.service = service  # type: ignore[attr-defined]
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        serving.start()
        try:
            yield service
        finally:
            server.shutdown()
            serving.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._serve({"": "list", "job": "get", "messages": "messages", "metrics": "metrics"})

    def do_POST(self) -> None:
        self._serve({"": "create"})

    def do_PUT(self) -> None:
        self._serve({"job": "update"})

    def _serve(self, kinds: Mapping[str, str]) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length)) if length else {}
        address = urllib.parse.urlsplit(self.path)
        path = _PATH.fullmatch(address.path)
        kind = kinds.get((path["part"] or ("job" if path["id"] else "")) if path else "?")
        if path is None or kind is None:
            self._fail(404, f"the stub does not know {self.command} {address.path}")
            return
        query = dict(urllib.parse.parse_qsl(address.query))
        service: Service = self.server.service  # type: ignore[attr-defined]
        with service.counted(kind) as code:  # until the answer is sent: then the client may ask its next question
            time.sleep(_ANSWER_SEC)
            if code is None:
                with service.lock:
                    status, answer = self._answer(service, kind, path, query, body)
        if code == CLOSED:
            self.close_connection = True
            self.connection.close()
        elif isinstance(code, tuple):
            self._send_bytes(*code)
        elif code is not None:
            self._fail(code, f"scripted answer {code}")
        else:
            self._send(status, answer)

    def _answer(
        self, service: Service, kind: str, path: re.Match[str], query: Mapping[str, str], body: dict[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        here = [job for job in service.jobs if (job.project, job.region) == (path["project"], path["region"])]
        if kind == "create":
            return self._create(service, here, path, body)
        if kind == "list":
            return 200, _page_of([job for job in here if not job.has_ended or query.get("filter") not in ("3",)], query)
        job = next((each for each in here if each.id == path["id"]), None)
        if job is None:
            return 404, _error(404, f"(0a1b2c): Information about job {path['id']} could not be found in our system.")
        if kind == "metrics":
            return 200, {"metrics": [metric for name in job.counters for metric in _metrics_of(job, name)]}
        if kind == "messages":
            least = _ORDER.index(_IMPORTANCE_BY_NUMBER[int(query.get("minimumImportance", 1))])
            found = [
                {"id": str(index), "time": "2026-11-22T00:00:00Z", "messageImportance": importance, "messageText": text}
                for index, (importance, text) in enumerate(job.messages)
                if _ORDER.index(importance) >= least
            ]
            return 200, {"jobMessages": found}
        if kind == "update":
            job.set(Step("JOB_STATE_CANCELLING"), CANCELLED)
            return 200, job.to_json()
        answer = job.to_json()
        job.go_on()
        return 200, answer

    @staticmethod
    def _create(
        service: Service, here: Sequence[Job], path: re.Match[str], fields: dict[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        for job in here:
            if job.name == fields["name"] and not job.has_ended:
                return 409, _error(409, f"(0a1b2c): There is already an active job named {job.name}, {job.id}.")
        job = Job(len(service.jobs), path["project"], path["region"], fields, service.steps)
        service.jobs.append(job)
        return 200, job.to_json()

    def _fail(self, code: int, text: str) -> None:
        self._send(code, _error(code, text))

    def _send(self, status: int, answer: Mapping[str, Any]) -> None:
        self._send_bytes(status, json.dumps(answer).encode())

    def _send_bytes(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _error(code: int, text: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": text, "status": _STATUS.get(code, "INTERNAL")}}


def _page_of(jobs: Sequence[Job], query: Mapping[str, str]) -> dict[str, Any]:
    start = int(query.get("pageToken") or 0)
    page: dict[str, Any] = {"jobs": [job.to_json() for job in jobs[start : start + PAGE_JOBS]]}
    if start + PAGE_JOBS < len(jobs):
        page["nextPageToken"] = str(start + PAGE_JOBS)
    return page


def _metrics_of(job: Job, name: str) -> Iterator[dict[str, Any]]:
    """Yields a counter as Dataflow reports it: committed, and once more with work in progress."""
    for tentative in ({}, {"tentative": "true"}):
        context = {"namespace": "imagebeam", "step": "s5", **tentative}
        named = {"origin": "user", "name": name, "context": context}
        yield {"name": named, "scalar": job.counters[name], "updateTime": "2026-11-22T00:00:00Z"}
    service = {"origin": "dataflow/v1b3", "name": "ElementCount", "context": {"original_name": "s5-out0"}}
    yield {"name": service, "scalar": 7, "updateTime": "2026-11-22T00:00:00Z"}
