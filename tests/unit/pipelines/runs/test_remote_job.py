"""The identity of a job, as stored in a lock."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from imagebeam import errors
from imagebeam.pipelines.runs import remote_job
from tests import case_tables
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
    with pytest.raises(errors.ConfigError, match="imagebeam cannot ask FlinkRunner for the state of cats"):
        remote_job.look_up(remote_job.RemoteJob("FlinkRunner", "p", "r", "cats"))


def test_job_of_another_runner_has_no_page_at_dataflow() -> None:
    job = remote_job.RemoteJob("FlinkRunner", "p", "r", "cats", "j1")
    assert (remote_job.describe(job), job.console, job.cancel_command) == ("Flink job j1", "", "")


def test_state_comes_from_the_service_with_the_id(service: dataflow.Service, job: remote_job.RemoteJob) -> None:
    assert remote_job.look_up(job) == (job, "failed")  # not submitted
    submitted = service.add(job.name, dataflow.QUEUED)
    named = dataclasses.replace(job, id=submitted.id)
    assert remote_job.look_up(job) == remote_job.look_up(named) == (named, "queued")
