"""Questions to Dataflow, asked with its real client of a stub."""

from __future__ import annotations

import pytest

from imagebeam import errors
from imagebeam.pipelines.runs import remote_job
from tests import case_tables
from tests.servers import dataflow


@pytest.fixture
def client(service: dataflow.Service) -> remote_job.Service:
    return remote_job.Service("test", "europe-west1", service.url, patience_sec=20)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("JOB_STATE_UNKNOWN", "running"),
        ("JOB_STATE_STOPPED", "queued"),
        ("JOB_STATE_PENDING", "queued"),
        ("JOB_STATE_QUEUED", "queued"),
        ("JOB_STATE_RUNNING", "running"),
        ("JOB_STATE_DRAINING", "running"),
        ("JOB_STATE_RESOURCE_CLEANING_UP", "running"),
        ("JOB_STATE_CANCELLING", "cancelling"),
        ("JOB_STATE_DONE", "done"),
        ("JOB_STATE_FAILED", "failed"),
        ("JOB_STATE_CANCELLED", "cancelled"),
        ("JOB_STATE_DRAINED", "cancelled"),
        ("JOB_STATE_UPDATED", "cancelled"),
    ],
)
def test_every_state_has_a_word(service: dataflow.Service, client: remote_job.Service, theirs: str, ours: str) -> None:
    job = service.add("cats", dataflow.Step(theirs))
    assert client.get(job.id)[:3] == (job.id, "cats", ours)


def test_active_job_is_found_by_its_name_on_any_page(service: dataflow.Service, client: remote_job.Service) -> None:
    ended = [service.add("cats", step) for step in (dataflow.DONE, dataflow.CANCELLED, dataflow.failed("x"))]
    others = [service.add(f"dogs-{number}") for number in range(2 * dataflow.PAGE_JOBS)]
    elsewhere = service.add("cats", region="us-east1")
    assert client.find_active("cats") is None
    job = service.add("cats", dataflow.QUEUED)
    found = client.find_active("cats")
    assert found is not None and found[:3] == (job.id, "cats", "queued")
    assert found.created_sec == job.created.timestamp()
    assert len({each.id for each in (*ended, *others, elsewhere, job)}) == len(service.jobs)
    assert service.requests == ["list"] * (2 + 3)  # pages of four active jobs, then of five
    assert service.most_at_once == 1


@pytest.mark.parametrize(
    ("name", "steps", "state"),
    [
        ("cats", [dataflow.RUNNING], "running"),
        ("cats", [dataflow.DONE], "failed"),
        ("dogs", [dataflow.RUNNING], "failed"),
    ],
    ids=["active", "ended", "never-submitted"],
)
def test_job_without_an_id_is_looked_up_by_its_name(
    service: dataflow.Service, client: remote_job.Service, name: str, steps: list[dataflow.Step], state: str
) -> None:
    job = service.add("cats", *steps)
    assert remote_job.look_up_on_dataflow(client, "", name)[:3] == ("" if state == "failed" else job.id, name, state)


def test_counters_are_those_of_imagebeam_each_once(service: dataflow.Service, client: remote_job.Service) -> None:
    job = service.add("cats", dataflow.Step(counters={"images-out": 12, "bytes-out": 1 << 40}))
    assert client.counters(job.id) == {"images-out": 12, "bytes-out": 1 << 40}


def test_only_errors_are_asked_for(service: dataflow.Service, client: remote_job.Service) -> None:
    messages = [(f"JOB_MESSAGE_{kind}", kind) for kind in ("DEBUG", "DETAILED", "BASIC", "WARNING", "ERROR")]
    job = service.add("cats", dataflow.Step(messages=messages))
    assert client.error_lines(job.id) == ["ERROR"]


def test_cancelled_job_ends(service: dataflow.Service, client: remote_job.Service) -> None:
    job = service.add("cats")
    client.cancel(job.id)
    assert [client.get(job.id).state for _ in range(3)] == ["cancelling", "cancelled", "cancelled"]


# --- errors ----------------------------------------------------------------------------------------------------------


def test_errors_that_pass_are_repeated(service: dataflow.Service, client: remote_job.Service) -> None:
    job = service.add("cats")
    service.fail("get", 503, 429, dataflow.CLOSED)
    assert client.get(job.id).state == "running"
    assert service.requests == ["get"] * 4
    assert service.most_at_once == 1


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        pytest.param(400, OSError, "Dataflow refuses the question in project 'test', region 'europe-w.*400", id="400"),
        pytest.param(403, errors.ConfigError, "need the role roles/dataflow.viewer", id="403"),
        pytest.param(404, FileNotFoundError, "Dataflow knows no job j1 in project 'test'", id="404"),
    ],
)
def test_lasting_error_is_raised_at_once(
    service: dataflow.Service, client: remote_job.Service, code: int, kind: type[Exception], message: str
) -> None:
    service.fail("get", code)
    with pytest.raises(kind, match=message):
        client.get("j1")
    assert service.requests == ["get"]


@pytest.mark.parametrize("code", [429, 503, dataflow.CLOSED])
def test_service_that_stays_silent_is_given_up(service: dataflow.Service, code: int) -> None:
    service.fail_always("get", code)
    with pytest.raises(OSError, match="Dataflow does not answer in project 'test', region 'europe-west1': "):
        remote_job.Service("test", "europe-west1", service.url, patience_sec=0.01).get("j1")


UNREADABLE = {
    "page-of-a-proxy": (b"<html>proxy login</html>", "'<html>proxy login</html>'"),
    "nothing": (b"", "''"),
    "long": (b"<" + b"x" * 5000, f"'<{'x' * 79}'"),
    "no-text": (b"\xff\xfe", "'utf-8' codec can't decode byte 0xff.*"),
    "list": (b"[1,2]", ".+"),
    "null": (b"null", ".+"),
    "text": (b'"x"', "a job without an id"),
    "field-of-another-type": (b'{"id": 7, "jobs": [3], "metrics": [3], "jobMessages": [3]}', ".+"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_unreadable_answer_counts_as_none(service: dataflow.Service, case: str) -> None:
    body, came = UNREADABLE[case]
    client = remote_job.Service("test", "europe-west1", service.url, patience_sec=0.01)
    asks = {"get": client.get, "list": client.find_active, "metrics": client.counters, "messages": client.error_lines}
    for kind, ask in asks.items():
        if case == "text" and kind != "get":
            continue  # as an empty answer, which is allowed there
        service.say(kind, *[body] * 20)
        message = (
            rf"^\[Errno 5\] Dataflow does not answer in project 'test', .* what came is not an .* \({came}\); look for"
        )
        with pytest.raises(OSError, match=message):
            ask("j1")


@pytest.mark.parametrize(("body", "code"), [(b"<html>", 200), (b"{}", 200), (b"[1]", 503)])
def test_unreadable_answer_is_asked_for_again(
    service: dataflow.Service, client: remote_job.Service, body: bytes, code: int
) -> None:
    job = service.add("cats")
    service.say("get", body, code=code)
    assert client.get(job.id).state == "running"
    assert service.requests == ["get"] * 2


def test_service_without_credentials_says_how_to_get_some(
    service: dataflow.Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    with pytest.raises(errors.ConfigError, match="no credentials for Google Cloud: gcloud auth application-default"):
        remote_job.Service("test", "europe-west1", service.url).get("j1")
    assert service.requests == []


# --- texts -----------------------------------------------------------------------------------------------------------

TRACEBACK = """Error message from worker: generic::unknown: Traceback (most recent call last):
  File "/usr/lib/x.py", line 3, in process
    raise OSError(2, "gone")
FileNotFoundError: [Errno 2] gone [while running 'Write/Write']

passed through:
==>
    dist_proc/dax/workflow/worker/fnapi_service_impl.cc:1345
"""
ATTEMPTS = "Workflow failed. Causes: S02 failed., The job failed because a work item was attempted 4 times: w1, w2"


@case_tables.each_case(
    "texts, lines",
    {
        "nothing": ([], []),
        "plain": (["Startup of the worker pool failed.\n"], ["Startup of the worker pool failed."]),
        "traceback": ([TRACEBACK], ["FileNotFoundError: [Errno 2] gone"]),
        "repeated": ([TRACEBACK] * 4 + [ATTEMPTS], ["FileNotFoundError: [Errno 2] gone"]),
        "attempts-alone": ([ATTEMPTS], [ATTEMPTS]),
        "many": (list("abcde"), ["c", "d", "e"]),
        "blank": (["  \n"], []),
        "cut-short": (["Traceback (most recent call last):\n"], ["Traceback (most recent call last):"]),
    },
)
def test_lines_of_messages_are_their_causes(texts: list[str], lines: list[str]) -> None:
    assert remote_job.choose_lines(texts) == lines


def test_addresses_and_commands_name_the_job() -> None:
    assert remote_job.console_address("p", "r", "j").endswith("/dataflow/jobs/r/j?project=p")
    assert remote_job.console_address("p", "r", "").endswith("/dataflow/jobs?project=p")
    assert remote_job.cancel_command("p", "r", "j") == "gcloud dataflow jobs cancel j --project=p --region=r"
