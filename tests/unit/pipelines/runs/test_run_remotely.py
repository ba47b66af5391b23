"""Submission, waiting and every ending of a job, on a stub of Dataflow."""

from __future__ import annotations

import _thread
import dataclasses
import datetime
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from google.api_core import exceptions

from imagebeam import errors
from imagebeam.pipelines.runs import output_lock, remote_job, run_remotely
from imagebeam.transforms import elements
from imagebeam.transforms.output import run_report
from imagebeam.transforms.publish import run_records
from tests import datasets, error_texts, image_sets, patience
from tests.servers import dataflow

PLAN = elements.DatasetPlan("write", "", "f00d", {}, (), 0, {}, {})
HASTE = run_remotely.Patience(first_sec=0.001, longest_sec=0.001, unreachable_sec=0.05, messages_sec=0.01)


class Lock(output_lock.Lock):
    """Notes which jobs are named."""

    def __init__(self) -> None:
        super().__init__(run_records.RunRecord.of_this_process("1"))
        self.named: list[str] = []

    def name_job(self, job: remote_job.RemoteJob) -> None:
        self.named.append(job.id)


class Shown:
    """Notes what it shows."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.counters: list[Mapping[str, int]] = []
        self.said: list[str] = []

    def update(self, state: remote_job.State, counters: Mapping[str, int]) -> None:
        self.states.append(state)
        self.counters.append(dict(counters))

    def say(self, text: str) -> None:
        self.said.append(text)


@dataclasses.dataclass
class Runner:
    """A run with its lock and its progress, and the service it is on."""

    service: dataflow.Service
    run: run_remotely.Run
    lock: Lock
    shown: Shown

    def submitted(self, *steps: dataflow.Step) -> run_remotely.Run:
        return self.run.named(self.service.add(self.run.job.name, *steps).id)

    def leave_report(self, state: run_report.State, message: str = "", **fields: Any) -> Callable[[Any], None]:
        """Returns an action for a step: the job writes its report."""
        return lambda _: run_report.RunReport(state, PLAN, message, **fields).write(self.run.report)

    def leave_shard(self) -> None:
        """Leaves a finished shard in the staging folder."""
        folder = pathlib.Path(self.run.output, ".imagebeam", "staging-f00d")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train-00000-of-00002.tfrecord.done.json").write_text("{}")


@pytest.fixture
def runner(service: dataflow.Service, job: remote_job.RemoteJob, tmp_path: pathlib.Path) -> Runner:
    (tmp_path / "out" / ".imagebeam").mkdir(parents=True)  # the lock lies there
    lock, shown = Lock(), Shown()
    run = run_remotely.Run(job, str(tmp_path / "out"), str(tmp_path / "run-1.json"), lock, shown, patience=HASTE)
    return Runner(service, run, lock, shown)


# --- submission ------------------------------------------------------------------------------------------------------


def test_job_is_named_before_and_after_its_submission(runner: Runner) -> None:
    def start() -> str:
        assert runner.lock.named == [""]
        return "j1"

    submitted = run_remotely.submit(runner.run, start)
    assert submitted is not None and submitted.job.id == "j1"
    assert runner.lock.named == ["", "j1"] and not runner.lock.is_kept


def fail_to_name(lock: Lock, error: Exception) -> None:
    """Makes a lock fail when the id of the job is known."""

    def name_job(job: remote_job.RemoteJob) -> None:
        if job.id:
            raise error

    lock.name_job = name_job  # type: ignore[method-assign]


def test_job_goes_on_where_its_id_cannot_be_stored(runner: Runner) -> None:
    fail_to_name(runner.lock, OSError(5, "no answer"))
    submitted = run_remotely.submit(runner.run, lambda: "j1")
    assert submitted is not None and submitted.job.id == "j1"
    assert runner.shown.said[0] == "the id of the job could not be stored in the lock: no answer"
    assert runner.shown.said[1].startswith("submitted Dataflow job j1: https://")


def test_job_whose_lock_was_taken_over_is_named(runner: Runner) -> None:
    fail_to_name(runner.lock, errors.BusyError("lock-taken-over", "another run took over the lock"))
    with error_texts.raises("lock-taken-over"):
        run_remotely.submit(runner.run, lambda: "j1")


def test_template_is_no_job(runner: Runner) -> None:
    assert run_remotely.submit(runner.run, lambda: None) is None
    assert runner.lock.named == [""]


def raising(error: BaseException) -> Callable[[], str]:
    def start() -> str:
        raise error

    return start


class DataflowJobAlreadyExistsError(Exception):
    """As Beam's client raises it."""


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        pytest.param(exceptions.BadRequest("no such zone"), errors.ConfigError, "job-refused", id="400"),
        pytest.param(exceptions.Forbidden("api off"), errors.ConfigError, "job-refused", id="403"),
        pytest.param(exceptions.NotFound("no region"), errors.ConfigError, "job-refused", id="404"),
        pytest.param(
            exceptions.NotFound("POST http://localhost:1/v1b3/projects/test?%24alt=json%3Benum-encoding%3Dint: gone"),
            errors.ConfigError,
            "job-refused",
            id="404-with-its-request",
        ),
        pytest.param(exceptions.Conflict("j0"), errors.BusyError, "job-runs-already", id="409"),
        pytest.param(DataflowJobAlreadyExistsError("j0"), errors.BusyError, "job-runs-already", id="beams-409"),
        pytest.param(exceptions.TooManyRequests("quota"), errors.ImagebeamError, "dataflow-quota", id="429"),
        pytest.param(exceptions.ServiceUnavailable("down"), errors.ImagebeamError, "job-not-submitted", id="503"),
        pytest.param(OSError("setup.py\n failed"), errors.ImagebeamError, "job-not-submitted", id="local"),
    ],
)
def test_submission_that_fails_says_why_and_leaves_no_lock(
    runner: Runner, error: Exception, kind: type[errors.ImagebeamError], code: str
) -> None:
    with error_texts.raises(code) as raised:
        run_remotely.submit(runner.run, raising(error))
    assert type(raised.value) is kind
    assert not runner.lock.is_kept


@pytest.mark.parametrize(
    "error", [exceptions.ServiceUnavailable("down"), ConnectionError("reset")], ids=["503", "closed"]
)
def test_job_whose_answer_was_lost_is_found_by_its_name(runner: Runner, error: Exception) -> None:
    job = runner.service.add(runner.run.job.name)
    submitted = run_remotely.submit(runner.run, raising(error))
    assert submitted is not None and submitted.job.id == job.id
    assert runner.lock.named == ["", job.id]


def test_lock_stays_where_nobody_can_tell_whether_the_job_exists(runner: Runner) -> None:
    runner.service.fail_always("list", 403)
    with error_texts.raises("job-not-submitted"):
        run_remotely.submit(runner.run, raising(ConnectionError("reset")))
    assert runner.lock.is_kept


@pytest.mark.parametrize(
    ("exists", "listing", "message", "is_kept"),
    [
        pytest.param(
            True, None, "goes on: https://.*to cancel it: gcloud dataflow jobs cancel 2026", True, id="exists"
        ),
        pytest.param(False, None, "^$", False, id="does-not-exist"),
        pytest.param(False, 403, r"job 'imagebeam-cats' \(its id is not known\) may go on", True, id="unknown"),
    ],
)
def test_interrupted_submission_leaves_the_lock_to_a_job_that_may_exist(
    runner: Runner, exists: bool, listing: int | None, message: str, is_kept: bool
) -> None:
    if exists:
        runner.service.add(runner.run.job.name)
    runner.service.fail_always("list", listing)
    with pytest.raises(KeyboardInterrupt, match=message):
        run_remotely.submit(runner.run, raising(KeyboardInterrupt()))
    assert runner.lock.is_kept == is_kept


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_template_that_was_not_written_leaves_no_job_behind(runner: Runner, error: type[BaseException]) -> None:
    runner.service.add(runner.run.job.name)
    with pytest.raises((KeyboardInterrupt, errors.ImagebeamError)) as raised:
        run_remotely.submit(runner.run._replace(is_template=True), raising(error()))
    assert "go on" not in str(raised.value) and not runner.lock.is_kept


def test_interrupted_submission_cancels_where_asked_to(runner: Runner) -> None:
    job = runner.service.add(runner.run.job.name)
    with pytest.raises(run_remotely.Interrupted, match=f"Dataflow job {job.id} was cancelled$"):
        run_remotely.submit(runner.run._replace(cancel_on_interrupt=True), raising(KeyboardInterrupt()))
    assert job.state == "JOB_STATE_CANCELLED" and not runner.lock.is_kept


# --- endings ---------------------------------------------------------------------------------------------------------


def test_report_of_a_job_that_is_done_is_returned(runner: Runner) -> None:
    action = runner.leave_report("committed", "7 of 9 shards")
    run = runner.submitted(dataflow.QUEUED, dataflow.RUNNING, dataflow.Step("JOB_STATE_DONE", action=action))
    report = run_remotely.wait(run)
    assert (report.state, report.message, report.error) == ("committed", "7 of 9 shards", None)
    assert runner.shown.states == ["queued", "running"]
    assert not runner.lock.is_kept


def test_job_that_removed_its_report_is_known_by_its_catalog(runner: Runner, tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=2)
    datasets.make(tmp_path / "in", tmp_path / "out")
    report = run_remotely.wait(runner.submitted(dataflow.DONE))
    assert (report.state, report.plan.listed, report.plan.labels) == ("committed", 4, ("cat", "dog"))


def set_age(runner: Runner, seconds: float) -> None:
    """Makes the job older or younger than it is."""
    runner.service.jobs[-1].created -= datetime.timedelta(seconds=seconds)


OTHER_CONFIG = '[{"split": {"seed": 1}}, {}]'


def make_dataset(tmp_path: pathlib.Path) -> str:
    """Writes the dataset of the run into its output; returns the identity of its config."""
    image_sets.write_folder(tmp_path / "in", per_label=2)
    datasets.make(tmp_path / "in", tmp_path / "out")
    (tmp_path / "out" / ".imagebeam").mkdir()  # with the lock of this run
    inputs = json.loads((tmp_path / "out" / "catalog.json").read_text())["inputs"]
    return json.dumps([inputs["config"], inputs["others"]])


@pytest.mark.parametrize(
    ("age_sec", "state", "message"),
    [
        pytest.param(3600.0, "committed", "", id="newer-dataset"),
        pytest.param(-3600.0, "kept", "/out held this dataset already, written 20", id="older-dataset"),
    ],
)
def test_job_without_its_report_committed_a_newer_dataset_and_kept_an_older_one(
    runner: Runner, tmp_path: pathlib.Path, age_sec: float, state: str, message: str
) -> None:
    run = runner.submitted(dataflow.DONE)._replace(identity=make_dataset(tmp_path))
    set_age(runner, age_sec)
    report = run_remotely.wait(run)
    assert report.state == state and message in report.message and report.error is None


def test_dataset_of_another_config_is_not_what_the_job_has_committed(runner: Runner, tmp_path: pathlib.Path) -> None:
    make_dataset(tmp_path)
    run = runner.submitted(dataflow.DONE)._replace(identity=OTHER_CONFIG)
    with error_texts.raises("job-without-report"):
        run_remotely.wait(run)
    found = remote_job.read_last_run(run.output)
    assert found is not None and found.state == "failed"


def test_plan_without_its_report_is_not_read_from_a_dataset(runner: Runner, tmp_path: pathlib.Path) -> None:
    make_dataset(tmp_path)
    run = runner.submitted(dataflow.DONE)._replace(lock=output_lock.NoLock())
    with error_texts.raises("job-without-report"):
        run_remotely.wait(run)


@pytest.mark.parametrize(
    ("age_sec", "has_same_config", "attaches"),
    [
        pytest.param(3600.0, True, True, id="job-has-committed"),
        pytest.param(-3600.0, True, False, id="older-dataset"),
        pytest.param(3600.0, False, False, id="dataset-of-another-config"),
    ],
)
def test_run_attaches_to_a_job_of_its_name_that_has_committed_its_dataset(
    runner: Runner, tmp_path: pathlib.Path, age_sec: float, has_same_config: bool, attaches: bool
) -> None:
    identity = make_dataset(tmp_path)
    ending = runner.submitted(dataflow.RUNNING, dataflow.DONE)  # without a lock: its launcher has left
    set_age(runner, age_sec)
    run = runner.run._replace(identity=identity if has_same_config else OTHER_CONFIG)
    refused = raising(exceptions.Conflict("already exists"))
    if not attaches:
        with error_texts.raises("job-runs-already"):
            run_remotely.submit(run, refused)
        return
    submitted = run_remotely.submit(run, refused)
    assert submitted is not None and submitted.job.id == ending.job.id
    assert runner.lock.named == ["", ending.job.id]  # a launcher that is killed now leaves the lock to that job
    assert "/out is committed by an earlier run of this command" in runner.shown.said[0]
    assert runner.shown.said[1].startswith(f"waiting for the end of Dataflow job {ending.job.id}: https://")
    assert run_remotely.wait(submitted).state == "committed"


@pytest.mark.parametrize(
    ("step", "keeps", "code"),
    [
        (dataflow.failed("boom", "bang"), True, "job-failed"),
        (dataflow.failed(), False, "job-failed"),
        (dataflow.CANCELLED, True, "job-cancelled"),
        (dataflow.CANCELLED, False, "job-cancelled"),
        (dataflow.DONE, True, "job-without-report"),
    ],
)
def test_job_that_ends_badly_says_what_is_kept(runner: Runner, step: dataflow.Step, code: str, keeps: bool) -> None:
    if keeps:
        runner.leave_shard()
    with error_texts.raises(code) as raised:
        run_remotely.wait(runner.submitted(dataflow.RUNNING, step))
    assert type(raised.value) is errors.ImagebeamError
    says_kept = str(raised.value).endswith("; finished shards are kept, run the same command again to go on")
    assert says_kept == (keeps and step is not dataflow.DONE)
    assert not runner.lock.is_kept
    found = remote_job.read_last_run(runner.run.output)
    assert found is not None and found.job.id == runner.service.jobs[0].id and found.exit_code == 1
    assert found.state == ("cancelled" if step is dataflow.CANCELLED else "failed")
    if step is dataflow.DONE:
        assert found.causes == (str(raised.value),)
    else:
        assert found.causes == tuple(text for _, text in step.messages)


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (dataflow.failed("Traceback"), errors.TooManyRejectsError("too-many-rejects", "too many rejects")),
        (dataflow.CANCELLED, errors.BusyError("output-busy", "another run writes")),
    ],
)
def test_refusal_in_the_report_counts_more_than_the_end_of_its_job(
    runner: Runner, step: dataflow.Step, error: errors.ImagebeamError
) -> None:
    step = dataclasses.replace(step, action=runner.leave_report("refused", error=error))
    report = run_remotely.wait(runner.submitted(dataflow.RUNNING, step))
    assert report.error is not None and errors.to_fields(report.error) == errors.to_fields(error)
    found = remote_job.read_last_run(runner.run.output)
    assert found is not None
    assert (found.state, found.causes, found.exit_code) == ("refused", (str(error),), error.exit_code)


@pytest.mark.parametrize("holder", ["nobody", "other-launcher", "other-run"])
def test_end_is_recorded_only_by_the_run_that_holds_the_lock(runner: Runner, holder: str) -> None:
    run = runner.submitted(dataflow.CANCELLED)
    if holder == "nobody":
        run = run._replace(lock=output_lock.NoLock())
    elif holder == "other-launcher":
        runner.lock.running = run.job
    else:
        fail_to_name(runner.lock, errors.BusyError("lock-taken-over", "another run took over the lock"))
    with error_texts.raises("job-cancelled"):
        run_remotely.wait(run)
    assert remote_job.read_last_run(run.output) is None


def test_end_that_cannot_be_recorded_is_told_nevertheless(runner: Runner) -> None:
    fail_to_name(runner.lock, OSError(5, "no answer"))
    with error_texts.raises("job-failed"):
        run_remotely.wait(runner.submitted(dataflow.failed("boom")))


def test_errors_of_a_running_job_are_said_once(runner: Runner) -> None:
    message = ("JOB_MESSAGE_ERROR", "worker lost")
    running = dataflow.Step(messages=[message])
    run = runner.submitted(running, dataflow.RUNNING, dataflow.RUNNING, dataflow.CANCELLED)
    with error_texts.raises("job-cancelled"):
        run_remotely.wait(run)
    assert runner.shown.said == ["error on a worker: worker lost"]


def test_messages_that_arrive_after_the_end_are_waited_for(runner: Runner) -> None:
    run = runner.submitted(dataflow.failed())
    job, read = runner.service.jobs[0], []

    class Late(list[tuple[str, str]]):
        """The messages of a job, which are there when they are read for the third time."""

        def __iter__(self) -> Iterator[tuple[str, str]]:
            read.append(1)
            return iter([("JOB_MESSAGE_ERROR", "late")] if len(read) > 2 else [])

    job.messages = Late()
    with error_texts.raises("job-failed"):
        run_remotely.wait(run._replace(patience=dataclasses.replace(HASTE, messages_sec=patience.HANG_SEC)))


def test_requests_come_one_at_a_time_and_counters_are_shown(runner: Runner) -> None:
    steps = [dataflow.Step(counters={"images-listed": number}) for number in (3, 6)]
    done = dataflow.Step("JOB_STATE_DONE", action=runner.leave_report("kept"))
    run_remotely.wait(runner.submitted(*steps, done))
    assert runner.service.requests == ["get", "metrics", "messages"] * 2 + ["get"]
    assert runner.service.most_at_once == 1
    assert [each["images-listed"] for each in runner.shown.counters] == [6, 6]  # the stub goes on with each "get"


@pytest.mark.parametrize(("kind", "code"), [("metrics", 403), ("messages", 404)])
def test_counters_and_messages_that_cannot_be_read_do_not_end_the_wait(runner: Runner, kind: str, code: int) -> None:
    runner.service.fail_always(kind, code)
    done = dataflow.Step("JOB_STATE_DONE", action=runner.leave_report("kept"))
    assert run_remotely.wait(runner.submitted(dataflow.RUNNING, dataflow.RUNNING, done)).state == "kept"


@pytest.mark.parametrize("code", [404, dataflow.CLOSED])
def test_service_that_is_silent_for_a_while_is_waited_for(runner: Runner, code: int) -> None:
    run = runner.submitted(dataflow.RUNNING, dataflow.Step("JOB_STATE_DONE", action=runner.leave_report("kept")))
    runner.service.fail("get", code)
    assert run_remotely.wait(run._replace(patience=run_remotely.Patience(first_sec=0.001))).state == "kept"
    assert runner.service.requests.count("get") == 3


def test_user_is_told_once_that_the_service_is_silent(runner: Runner) -> None:
    done = dataflow.Step("JOB_STATE_DONE", action=runner.leave_report("kept"))
    runner.service.fail("get", 404, 404)
    told_at_once = run_remotely.Patience(first_sec=0.001, silence_sec=0.0)
    run_remotely.wait(runner.submitted(dataflow.RUNNING, done)._replace(patience=told_at_once))
    (line,) = runner.shown.said
    assert line.startswith("no answer, asking on: Dataflow knows no job 2026-11-22")


@pytest.mark.parametrize("code", [403, 503])
def test_service_that_stays_silent_leaves_the_job_with_its_lock(runner: Runner, code: int) -> None:
    run = runner.submitted(dataflow.RUNNING)
    runner.service.fail_always("get", code)
    with error_texts.raises("dataflow-silent"):
        run_remotely.wait(run)
    assert runner.lock.is_kept


# --- interruption ----------------------------------------------------------------------------------------------------


def interrupt(_: object) -> None:
    _thread.interrupt_main()


def test_interrupted_wait_leaves_the_job_with_its_lock(runner: Runner) -> None:
    run = runner.submitted(dataflow.RUNNING, dataflow.Step(action=interrupt))
    with pytest.raises(run_remotely.Interrupted) as raised:
        run_remotely.wait(run)
    assert str(raised.value) == (
        f"Dataflow job {run.job.id} goes on: {run.job.console}; to ask for it: imagebeam status {run.output}; "
        f"to cancel it: {run.job.cancel_command}"
    )
    assert runner.lock.is_kept and "update" not in runner.service.requests


def test_interrupted_wait_cancels_where_asked_to_and_waits_for_the_end(runner: Runner) -> None:
    runner.leave_shard()
    run = runner.submitted(dataflow.RUNNING, dataflow.Step(action=interrupt))._replace(cancel_on_interrupt=True)
    with pytest.raises(run_remotely.Interrupted, match="was cancelled; finished shards are kept, run the same"):
        run_remotely.wait(run)
    assert runner.service.jobs[0].state == "JOB_STATE_CANCELLED"
    assert not runner.lock.is_kept
    found = remote_job.read_last_run(run.output)
    assert found is not None and (found.state, found.job) == ("cancelled", run.job)


def test_job_that_cannot_be_cancelled_keeps_its_lock(runner: Runner) -> None:
    runner.service.fail_always("update", 403)
    run = runner.submitted(dataflow.RUNNING, dataflow.Step(action=interrupt))._replace(cancel_on_interrupt=True)
    with pytest.raises(run_remotely.Interrupted, match=r"Dataflow job \S+ may go on: .* to cancel it: gcloud"):
        run_remotely.wait(run)
    assert runner.lock.is_kept


def test_second_interruption_leaves_a_job_that_is_being_cancelled(runner: Runner) -> None:
    run = runner.submitted(dataflow.RUNNING, dataflow.Step(action=interrupt))._replace(cancel_on_interrupt=True)
    job = runner.service.jobs[0]
    plain_set = job.set

    def set_and_interrupt(*steps: dataflow.Step) -> None:
        plain_set(dataflow.Step("JOB_STATE_CANCELLING"), dataflow.Step("JOB_STATE_CANCELLING", action=interrupt))

    job.set = set_and_interrupt  # type: ignore[method-assign]
    with pytest.raises(run_remotely.Interrupted, match="may go on"):
        run_remotely.wait(run)
    assert runner.lock.is_kept


def test_job_without_an_output_names_no_status(runner: Runner) -> None:
    run = runner.run.named("j1")._replace(lock=output_lock.NoLock())
    runner.leave_shard()
    assert "imagebeam status" not in run.advice and run.kept == ""
