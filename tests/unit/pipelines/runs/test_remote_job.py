"""The identity of a job, as stored in a lock; the questions to its service; the record of its end."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import pytest

from imagebeam.pipelines.runs import remote_job
from tests import case_tables, error_texts
from tests.servers import dataflow

JOB = remote_job.RemoteJob("DataflowRunner", "p", "r", "cats", "j1")


def test_fields_of_a_job_give_the_job_again() -> None:
    fields = {**JOB.to_fields(), "added": "by a later version"}
    assert remote_job.RemoteJob.from_fields(fields) == JOB


@case_tables.each_case("fields", [{}, {"runner": "x"}, {**JOB.to_fields(), "id": 3}])
def test_fields_of_something_else_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="does not describe a job"):
        remote_job.RemoteJob.from_fields(fields)


def test_job_is_described_with_or_without_its_id() -> None:
    assert remote_job.describe(JOB) == "Dataflow job j1"
    named = remote_job.RemoteJob("DataflowRunner", "p", "r", "cats")
    assert remote_job.describe(named) == "Dataflow job 'cats' (its id is not known)"
    assert (JOB.console, named.console) == (
        "https://console.cloud.google.com/dataflow/jobs/r/j1?project=p",
        "https://console.cloud.google.com/dataflow/jobs?project=p",
    )
    assert JOB.cancel_command == "gcloud dataflow jobs cancel j1 --project=p --region=r"


def test_other_runners_are_not_asked() -> None:
    with error_texts.raises("runner-cannot-be-asked"):
        remote_job.look_up(remote_job.RemoteJob("FlinkRunner", "p", "r", "cats"))


def test_job_of_another_runner_has_no_page_at_dataflow() -> None:
    job = remote_job.RemoteJob("FlinkRunner", "p", "r", "cats", "j1")
    assert (remote_job.describe(job), job.console, job.cancel_command) == ("Flink job j1", "", "")


def test_state_comes_from_the_service_with_the_id(service: dataflow.Service, job: remote_job.RemoteJob) -> None:
    assert remote_job.look_up(job) == (job, "failed")  # not submitted
    service.add(job.name, dataflow.DONE)
    assert remote_job.look_up(job) == (job, "failed")
    submitted = service.add(job.name, dataflow.QUEUED)
    named = dataclasses.replace(job, id=submitted.id)
    assert remote_job.look_up(job) == remote_job.look_up(named) == (named, "queued")


# --- the record of a job that ended badly ----------------------------------------------------------------------------


JOB = remote_job.RemoteJob("DataflowRunner", "p", "r", "cats", "j1")


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / ".imagebeam").mkdir()
    return tmp_path / ".imagebeam" / "last-run.json"


@pytest.mark.parametrize("state", ["failed", "cancelled", "refused"])
@pytest.mark.parametrize("causes", [[], ["boom", "b\xe4ng\n"]], ids=["mute", "causes"])
def test_record_that_was_written_is_read(
    file: pathlib.Path, tmp_path: pathlib.Path, state: remote_job.BadEnd, causes: list[str]
) -> None:
    remote_job.record_last_run(str(tmp_path), "failed", JOB, ["earlier"], 1)
    remote_job.record_last_run(str(tmp_path), state, JOB, causes, 3)
    found = remote_job.read_last_run(str(tmp_path))
    assert found is not None
    assert (found.state, found.job, list(found.causes), found.exit_code) == (state, JOB, causes, 3)
    assert found.ended.startswith("20") and found.ended.endswith("+00:00")
    assert [path.name for path in file.parent.iterdir()] == ["last-run.json"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"state": "paused"}, id="state-of-a-newer-version"),
        pytest.param({"job": None}, id="no-job"),
        pytest.param({"job": {"runner": 1}}, id="odd-job"),
        pytest.param({"causes": None}, id="no-causes"),
        pytest.param({"exit_code": "x"}, id="odd-exit-code"),
    ],
)
def test_unclear_record_counts_for_nothing(file: pathlib.Path, tmp_path: pathlib.Path, change: dict[str, Any]) -> None:
    remote_job.record_last_run(str(tmp_path), "failed", JOB, [], 1)
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    assert remote_job.read_last_run(str(tmp_path)) is None


@pytest.mark.parametrize("content", [None, b"", b"[]", b"\xff"])
def test_no_record_is_read_where_none_is(file: pathlib.Path, tmp_path: pathlib.Path, content: bytes | None) -> None:
    if content is not None:
        file.write_bytes(content)
    assert remote_job.read_last_run(str(tmp_path)) is None


# --- questions to Dataflow, asked with its real client of a stub -----------------------------------------------------


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
        (400, OSError, "Dataflow refuses the question in project 'test', region 'europe-west1': scripted answer 400"),
        (404, FileNotFoundError, "Dataflow knows no job j1 in project 'test'"),
    ],
)
def test_lasting_error_is_raised_at_once(
    service: dataflow.Service, client: remote_job.Service, code: int, kind: type[Exception], message: str
) -> None:
    service.fail("get", code, 403)
    with pytest.raises(kind, match=message):
        client.get("j1")
    with error_texts.raises("dataflow-denied"):
        client.get("j1")
    assert service.requests == ["get"] * 2


@pytest.mark.parametrize("code", [429, 503, dataflow.CLOSED])
def test_service_that_stays_silent_is_given_up(service: dataflow.Service, code: int) -> None:
    service.fail_always("get", code)
    with pytest.raises(OSError, match="Dataflow does not answer in project 'test', region 'europe-west1': "):
        remote_job.Service("test", "europe-west1", service.url, patience_sec=0.01).get("j1")


def test_service_without_credentials_says_how(service: dataflow.Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    with error_texts.raises("credentials-missing"):
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
