"""Airflow operators that run `imagebeam`: on a worker of Airflow, or as a job on Dataflow that no worker waits for.

Copy this file into Airflow's plugins folder, where tasks and the triggerer find it. It needs Airflow 3, and imagebeam's
command line; that may be in a virtual environment of its own (`program`).
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from typing import Any

from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

NOT_RETRIED = {
    2: "the command, the config or the input is wrong",
    3: "more images were rejected than rejects.max_fraction allows",
    4: "verification failed",
}
RETRIED = {
    5: "busy: another run writes to the output",
    143: "terminated: the same command goes on",
    -9: "killed, perhaps for its memory: the same command goes on",
}
MAX_UNKNOWN = 10  # answers of `imagebeam status` in a row that tell nothing of the job


def raise_for(exit_code: int, message: str = "") -> None:
    """Raises what Airflow retries, or what it does not, by the exit code of `imagebeam`."""
    if exit_code == 0:
        return
    reason = message or NOT_RETRIED.get(exit_code) or RETRIED.get(exit_code) or "see the log above"
    text = f"imagebeam ended with exit code {exit_code}: {reason}"
    raise (AirflowFailException if exit_code in NOT_RETRIED else AirflowException)(text)


class ImagebeamOperator(BaseOperator):
    """Runs one command of imagebeam. Exit codes 2, 3 and 4 fail the task at once; others are retried.

    A retry runs the same command, which keeps the shards that are finished and attaches to a job that still runs.

    With `summary`, the document of `--summary-json` is the task's XCom: its return value, and, also of a task that
    fails, the key `summary`.

    Args:
        arguments: of the command, its name first; templated.
        program: path of `imagebeam`; templated.
        summary: whether the command writes a summary.
    """

    template_fields: Sequence[str] = ("arguments", "program")

    def __init__(self, *, arguments: Sequence[str], program: str = "imagebeam", summary: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.arguments = arguments
        self.program = program
        self.summary = summary
        self._hook: SubprocessHook | None = None

    def execute(self, context: Any) -> Any:
        """Runs the command; returns its summary, or None."""
        return self._run(context, self.arguments)

    def on_kill(self) -> None:
        """Stops the command with SIGTERM: it releases its lock and says what it keeps."""
        if self._hook is not None:
            self._hook.send_sigterm()

    def _run(self, context: Any, arguments: Sequence[str]) -> Any:
        summary = None
        self._hook = SubprocessHook()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "summary.json")
            added = ["--summary-json", str(path)] if self.summary else []
            done = self._hook.run_command([self.program, *arguments, *added])
            if path.exists():  # not after SIGKILL
                summary = json.loads(path.read_text())
                context["ti"].xcom_push(key="summary", value=summary)
        raise_for(done.exit_code, (summary or {}).get("message") or "")
        return summary


class ImagebeamDataflowOperator(ImagebeamOperator):
    """Submits `imagebeam convert` to Dataflow, and waits in the triggerer, where it takes no worker's slot.

    The task's return value is the output of `imagebeam status --json`. A retry, also of a task whose worker was lost,
    attaches to the job if it still runs.

    Args:
        arguments: of the command, `convert` first, without --output; templated.
        output_uri: the output; templated.
        poll_sec: seconds between two questions for the state of the job.
    """

    template_fields: Sequence[str] = ("arguments", "program", "output_uri")

    def __init__(self, *, output_uri: str, poll_sec: float = 60, **kwargs: Any):
        super().__init__(**kwargs)
        self.output_uri = output_uri
        self.poll_sec = poll_sec

    def execute(self, context: Any) -> None:
        """Submits the job, or finds the one that runs."""
        self._run(context, [*self.arguments, "--output", self.output_uri, "--no-wait"])
        trigger = JobEndTrigger(program=self.program, output_uri=self.output_uri, poll_sec=self.poll_sec)
        self.defer(trigger=trigger, method_name="finish")

    def finish(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:
        """Returns the status of an output whose job has committed."""
        self.log.info("%s", json.dumps(event, indent=1))
        context["ti"].xcom_push(key="status", value=event)
        if event["state"] == "committed":
            return event
        text = "; ".join(event["causes"]) or f"{self.output_uri} is {event['state']}"
        raise_for(event.get("run_exit_code") or 1, text)
        raise AssertionError("not reached: the exit code is not 0")


class JobEndTrigger(BaseTrigger):
    """Asks `imagebeam status` until the job that writes to an output has ended; its event is the status."""

    def __init__(self, *, program: str, output_uri: str, poll_sec: float):
        super().__init__()
        self.program = program
        self.output_uri = output_uri
        self.poll_sec = poll_sec

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns the class and the arguments with which the triggerer makes this object."""
        arguments = {"program": self.program, "output_uri": self.output_uri, "poll_sec": self.poll_sec}
        return (f"{type(self).__module__}.{type(self).__name__}", arguments)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields one event, once the job has ended or nothing can be learnt of it."""
        unknown = 0
        while True:
            status = await self._ask()
            unknown = unknown + 1 if status["state"] == "unknown" else 0
            if status["state"] not in ("running", "unknown") or unknown >= MAX_UNKNOWN:
                yield TriggerEvent(status)
                return
            await asyncio.sleep(self.poll_sec)

    async def _ask(self) -> dict[str, Any]:
        pipe = asyncio.subprocess.PIPE
        command = [self.program, "status", self.output_uri, "--json"]
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        text, complaint = await process.communicate()
        if not text:  # such as a storage that does not answer
            return {"state": "unknown", "causes": [complaint.decode(errors="replace").strip()]}
        return json.loads(text)
