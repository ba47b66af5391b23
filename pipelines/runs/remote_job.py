"""A job that outlives its launcher: where it runs, and how to ask its service for its state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from imagebeam import errors
from imagebeam.pipelines.runs import dataflow_jobs
from imagebeam.pipelines.runs.job_states import ENDED, State

__all__ = ["ENDED", "Found", "RemoteJob", "State", "describe", "look_up", "service_of"]


_DATAFLOW = "DataflowRunner"


@dataclasses.dataclass(frozen=True)
class RemoteJob:
    """The identity of a job at the service that runs it, as stored in the lock of its output."""

    runner: str  # Beam's name: "DataflowRunner"
    project: str
    region: str
    name: str
    id: str = ""  # "" until the service has answered the submission
    endpoint: str = ""  # of the service's API, if it is not the public one

    @property
    def console(self) -> str:
        """Address of the job's page, or of the project's jobs while the id is not known; "" for other runners."""
        return dataflow_jobs.console_address(self.project, self.region, self.id) if self._is_on_dataflow else ""

    @property
    def cancel_command(self) -> str:
        """A command that cancels the job; needs its id. "" for other runners."""
        return dataflow_jobs.cancel_command(self.project, self.region, self.id) if self._is_on_dataflow else ""

    @property
    def service(self) -> str:
        """The name of the service for messages, such as "Dataflow"."""
        return self.runner.removesuffix("Runner") or self.runner

    @property
    def _is_on_dataflow(self) -> bool:
        return self.runner == _DATAFLOW

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


def service_of(job: RemoteJob, patience_sec: float = dataflow_jobs.PATIENCE_SEC) -> dataflow_jobs.Service:
    """Returns the service that runs a job.

    Args:
        job: whose service is asked.
        patience_sec: seconds for one question, with all its repetitions.

    Raises:
        ConfigError: if imagebeam cannot ask the runner of the job.
    """
    if job.runner != _DATAFLOW:
        raise errors.ConfigError(f"imagebeam cannot ask {job.runner} for the state of {job.name}")
    return dataflow_jobs.Service(job.project, job.region, job.endpoint, patience_sec)


class Found(NamedTuple):
    """A job as its service knows it."""

    job: RemoteJob  # with its id, if the service knows one
    state: State


def look_up(job: RemoteJob) -> Found:
    """Asks the service for the state of a job. A job without an id is looked up by its name among the active ones.

    Raises:
        ConfigError: if the package that talks to the service is not installed, there are no credentials, or imagebeam
            cannot ask this runner.
        FileNotFoundError: if the service knows no job with this id.
        OSError: if the service does not answer.
    """
    seen = dataflow_jobs.look_up(service_of(job), job.id, job.name)
    return Found(dataclasses.replace(job, id=seen.id), seen.state)


def describe(job: RemoteJob) -> str:
    """Returns how a job is named in messages."""
    return f"{job.service} job {job.id}" if job.id else f"{job.service} job {job.name!r} (its id is not known)"
