"""The record of a job that ended badly while its launcher waited: the lock is released, and only this tells the end.

It lies in the metadata folder of the output until the next commit.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Sequence
from typing import Literal, TypeAlias

from imagebeam import storage
from imagebeam.pipelines.runs import remote_job
from imagebeam.transforms.output import output_folder

State: TypeAlias = Literal["failed", "cancelled", "refused"]
_STATES = ("failed", "cancelled", "refused")


@dataclasses.dataclass(frozen=True)
class LastRun:
    """How a job ended.

    Attributes:
        state: "refused" by imagebeam itself, such as for too many rejects; otherwise the state of the job.
        job: with its id.
        causes: its error messages, or the reason of the refusal.
        exit_code: of its launcher.
        ended: when its launcher saw it: ISO 8601, UTC.
    """

    state: State
    job: remote_job.RemoteJob
    causes: tuple[str, ...]
    exit_code: int
    ended: str


def record(output: str, state: State, job: remote_job.RemoteJob, causes: Sequence[str], exit_code: int) -> None:
    """Writes the record, in place of an earlier one.

    Raises:
        ConfigError: if the output cannot be written with these credentials.
        OSError: if the storage does not answer.
    """
    ended = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    fields = dataclasses.asdict(LastRun(state, job, tuple(causes), exit_code, ended))
    uri = output_folder.OutputPaths(output).last_run
    storage.storage_of(uri).write_whole(uri, json.dumps(fields).encode(), durable=False)


def read(output: str) -> LastRun | None:
    """Reads the record of an output; None if there is none, or none that this version understands.

    Raises:
        ConfigError: if the output cannot be read with these credentials.
        OSError: if the storage does not answer.
    """
    uri = output_folder.OutputPaths(output).last_run
    try:
        fields = json.loads(storage.storage_of(uri).read(uri))
        job = remote_job.RemoteJob.from_fields(fields["job"])
        causes = tuple(str(cause) for cause in fields["causes"])
        found = LastRun(fields["state"], job, causes, int(fields["exit_code"]), str(fields["ended"]))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if found.state in _STATES else None
