"""What a run does about a lock that it finds: every kind of holder, with and without locks of the kernel."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from imagebeam import errors, storage
from imagebeam.pipelines.runs import output_lock, remote_job
from imagebeam.transforms.publish import run_records
from tests import error_texts, patience, races

JOB = remote_job.RemoteJob("DataflowRunner", "pets", "europe-west4", "convert-cats", "2026-11-22_1")
JOBS = {"no-job": None, "active": JOB, "ended": JOB, "unknown": JOB, "being-submitted": dataclasses.replace(JOB, id="")}
CONFIGS = {"same-config": "c1", "other-config": "c2"}
PROCESSES = ("alive", "gone", "other-host")
AGES = {"fresh": 10.0, "expired": 151.0}


@pytest.fixture(params=["local", "memory"])
def control(request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(output_lock, "_PATIENCE_SEC", 0.0)
    monkeypatch.setattr(run_records, "SETTLE_SEC", 0.0)
    uri = f"{tmp_path}/out" if request.param == "local" else f"memory://{tmp_path.name}"
    yield f"{uri}/.imagebeam"
    storage.storage_of(uri).remove_tree(uri)


def answer(monkeypatch: pytest.MonkeyPatch, state: remote_job.State | Exception) -> list[remote_job.RemoteJob]:
    """Makes the service of every job answer so, with its id; returns a list of the jobs that it is asked for."""
    asked = []

    def look_up(job: remote_job.RemoteJob) -> tuple[remote_job.RemoteJob, remote_job.State]:
        asked.append(job)
        if isinstance(state, Exception):
            raise state
        return dataclasses.replace(job, id=JOB.id), state

    monkeypatch.setattr(remote_job, "look_up", look_up)
    return asked


def leave(control: str, process: str, age: float = 10.0, **fields: object) -> None:
    """Leaves the lock of another run, `other`."""
    nobody = races.pid_of_nobody()
    record = run_records.RunRecord(
        run="other",
        process=os.getpid() if process == "alive" else nobody,
        host="elsewhere" if process == "other-host" else socket.gethostname(),
        time=time.time() - age,
        **fields,  # type: ignore[arg-type]
    )
    store = storage.storage_of(control)
    store.make_directories(control)
    store.write_whole(f"{control}/lock", record.encode())


def expected_of(is_local: bool, kind: str, config: str, process: str, age: str) -> str:
    if is_local:
        is_gone = True  # nobody holds the kernel's lock
    else:
        is_gone = age == "expired" or process == "gone"
    if kind == "no-job" or (kind == "being-submitted" and not is_gone):
        return "take" if is_gone else "busy"
    if kind in ("active", "being-submitted"):
        return "attach" if config == "same-config" else "busy"
    return {"ended": "take", "unknown": "busy"}[kind]


@pytest.mark.parametrize("kind", JOBS)
def test_lock_is_taken_attached_to_or_respected(control: str, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    state: remote_job.State | Exception = "running"
    if kind in ("ended", "unknown"):
        state = "cancelled" if kind == "ended" else storage.UnavailableError(5, "no answer")
    asked = answer(monkeypatch, state)
    job = JOBS[kind]
    for config, process, age in itertools.product(CONFIGS, PROCESSES, AGES):
        named = None if job is None else job.to_fields()
        leave(control, process, AGES[age], config=CONFIGS[config], job=named)
        before, end = storage.storage_of(control).read(f"{control}/lock"), "busy"
        with contextlib.suppress(errors.BusyError), output_lock.hold(control, "mine", "c1", attaches=True) as lock:
            end = "take" if lock.running is None else "attach"
            held = run_records.read_record(f"{control}/lock")
            assert held is not None
            if end == "attach":
                assert (lock.running, lock.running_run) == (JOB, "other")  # with the id, also if the lock has none
            else:
                assert (held.run, held.ended) == ("mine", ("other",) if kind == "ended" else ())
        assert end == expected_of("://" not in control, kind, config, process, age), (config, process, age)
        if end != "take":
            assert storage.storage_of(control).read(f"{control}/lock") == before
    assert (len(asked) > 0) == (kind != "no-job")


@pytest.mark.parametrize(
    ("state", "job"),
    [
        pytest.param("queued", JOB, id="active"),
        pytest.param("running", dataclasses.replace(JOB, id=""), id="active-without-an-id-in-the-lock"),
        pytest.param(storage.UnavailableError(5, "no answer for 90 s"), JOB, id="service-is-silent"),
        pytest.param(errors.ConfigError("a-code", "no credentials"), JOB, id="service-cannot-be-asked"),
        pytest.param(FileNotFoundError(2, "Dataflow knows no job 2026-11-22_1"), JOB, id="service-has-forgotten-it"),
        pytest.param(
            errors.ConfigError("a-code", "imagebeam cannot ask FlinkRunner"),
            dataclasses.replace(JOB, runner="FlinkRunner"),
            id="another-runner",
        ),
    ],
)
def test_refusal_names_the_job_and_what_to_do(
    control: str, monkeypatch: pytest.MonkeyPatch, state: remote_job.State | Exception, job: remote_job.RemoteJob
) -> None:
    answer(monkeypatch, state)
    leave(control, "gone", job=job.to_fields(), config="c2")
    with error_texts.raises("output-busy"), output_lock.hold(control, "mine", "c1", attaches=True):
        pass


def test_job_that_this_version_does_not_know_is_respected(control: str) -> None:
    leave(control, "gone", job={"runner": 7})
    for _ in range(2):  # the first one has let go of the file
        with error_texts.raises("lock-unknown-job"), output_lock.hold(control):
            pass


def test_kept_lock_names_its_job_after_the_launcher_has_left(control: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with output_lock.hold(control, "mine", "c1", attaches=True) as lock:
        lock.name_job(dataclasses.replace(JOB, id=""))
        first = run_records.read_record(f"{control}/lock")
        lock.name_job(JOB)
        lock.keep()
    left = run_records.read_record(f"{control}/lock")
    assert first is not None and first.job is not None and first.job["id"] == ""
    assert left is not None and (left.run, left.job, left.is_left_to_job) == ("mine", JOB.to_fields(), True)
    answer(monkeypatch, "running")
    with output_lock.hold(control, "second", "c1", attaches=True) as attached:
        assert (attached.running, attached.running_run) == (JOB, "mine")
    with error_texts.raises("output-busy"), output_lock.hold(control, "third", "c2", attaches=True):
        pass
    answer(monkeypatch, "failed")
    with output_lock.hold(control, "fourth", "c2", attaches=True) as taken:
        assert taken.running is None
    assert not storage.storage_of(control).exists(control)


def test_run_that_attaches_to_no_job_is_refused(control: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "running")
    with output_lock.hold(control, "mine", "c1", attaches=True) as lock:
        lock.name_job(JOB)
        lock.keep()
    before = run_records.read_record(f"{control}/lock")
    with error_texts.raises("output-busy"), output_lock.hold(control, "second", "c1"):
        pass
    assert run_records.read_record(f"{control}/lock") == before


def test_error_of_the_launcher_does_not_release_the_lock_of_a_job_that_may_run(control: str) -> None:
    with pytest.raises(ValueError), output_lock.hold(control, "mine", "c1", attaches=True) as lock:
        lock.name_job(JOB)
        raise ValueError("an answer that nobody foresaw")
    left = run_records.read_record(f"{control}/lock")
    assert left is not None and left.job == JOB.to_fields()


def test_lock_whose_job_has_ended_is_released(control: str) -> None:
    with output_lock.hold(control, "mine", "c1", attaches=True) as lock:
        lock.name_job(JOB)
        lock.forget_job()
    assert run_records.read_record(f"{control}/lock") is None


def test_second_run_attaches_while_the_launcher_still_waits(control: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "running")
    with output_lock.hold(control, "mine", "c1", attaches=True) as lock:
        lock.name_job(JOB)
        with output_lock.hold(control, "second", "c1", attaches=True) as attached:
            assert attached.running == JOB
        answer(monkeypatch, "done")
        found = run_records.read_record(f"{control}/lock")
        assert found is not None and found.run == "mine"


def test_lock_on_a_local_disk_is_not_taken_from_a_launcher_that_is_just_ending(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_lock, "_PATIENCE_SEC", 0.1)
    answer(monkeypatch, "done")
    control = str(tmp_path / "out/.imagebeam")
    with output_lock.hold(control, "mine", "c1", attaches=True) as lock:
        lock.name_job(JOB)
        with error_texts.raises("output-busy"), output_lock.hold(control, "second", "c1", attaches=True):
            pass


def test_holder_that_was_taken_over_can_name_no_job(tmp_path: pathlib.Path) -> None:
    control = f"memory://{tmp_path.name}/.imagebeam"
    with output_lock.hold(control, "mine") as lock:
        leave(control, "other-host")
        with error_texts.raises("lock-taken-over"):
            lock.name_job(JOB)
        lock.keep()  # raises nothing: it is called while an error is on its way
    assert json.loads(storage.storage_of(control).read(f"{control}/lock"))["run"] == "other"


def test_of_two_runs_one_takes_an_expired_lock(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_lock, "_PATIENCE_SEC", 0.0)
    control = str(tmp_path / "out/.imagebeam")  # a storage with an atomic rename, here without the kernel's lock
    leave(control, "other-host", 1e6)
    ends: list[str] = []
    is_over = threading.Event()

    def take(run: str) -> None:
        lock = output_lock.Lock(run_records.RunRecord.of_this_process(run))
        try:
            with output_lock._Lease(f"{control}/lock", lock).held():
                ends.append("taken")
                is_over.wait(patience.HANG_SEC)
        except errors.BusyError:
            ends.append("busy")

    threads = [threading.Thread(target=take, args=[run]) for run in ("one", "other")]
    for thread in threads:
        thread.start()
    patience.wait_until(lambda: len(ends) == 2)
    is_over.set()
    for thread in threads:
        thread.join()
    assert sorted(ends) == ["busy", "taken"]
