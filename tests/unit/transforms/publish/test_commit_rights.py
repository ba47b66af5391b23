from __future__ import annotations

import dataclasses
import os
import pathlib
import socket
import time

import pytest

from imagebeam import concurrency
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.publish import commit_rights
from imagebeam.transforms.publish.commit_rights import CommitLock, LockView, RunRecord
from tests import error_texts, races
from tests.unit.transforms import small_dataset

JOB = {"runner": "DataflowRunner", "name": "cats", "id": "5"}


@pytest.fixture
def paths(tmp_path: pathlib.Path) -> output_folder.OutputPaths:
    (tmp_path / "out/.imagebeam").mkdir(parents=True)
    return output_folder.OutputPaths(str(tmp_path / "out"))


def sign(uri: str, run: str, is_gone: bool = False, age: float = 0.0, **fields: object) -> RunRecord:
    record = RunRecord(
        run,
        races.pid_of_nobody() if is_gone else os.getpid(),
        socket.gethostname(),
        time.time() - age,
        **fields,  # type: ignore[arg-type]
    )
    pathlib.Path(uri).write_bytes(record.encode())
    return record


# ---- the lock


def test_lock_is_held_as_long_as_it_names_the_run(
    paths: output_folder.OutputPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_rights, "_READ_WAIT_SEC", 0.0)  # of a lock that is not signed
    assert commit_rights.look_at_lock(paths, "mine") == LockView(is_held=False)
    sign(paths.lock, "mine", age=1e6, ended=("old",))
    assert commit_rights.look_at_lock(paths, "mine") == LockView(is_held=True, ended=("old",))
    sign(paths.lock, "other", is_gone=True)
    assert commit_rights.look_at_lock(paths, "mine") == LockView(is_held=False)
    pathlib.Path(paths.lock).write_text("process 1 on elsewhere")
    assert commit_rights.look_at_lock(paths, "mine") == LockView(is_held=False)


def test_lock_of_another_run_stops_the_commit(paths: output_folder.OutputPaths) -> None:
    for fields in ({}, {"job": JOB, "is_gone": True}):  # the latter is a job whose launcher is gone
        sign(paths.lock, "other", **fields)
        with error_texts.raises("output-taken-over"):
            commit_rights.look_at_lock(paths, "mine")
        assert commit_rights.look_at_lock(paths, "") == LockView(is_held=True)  # its caller keeps other runs away


@pytest.mark.parametrize(
    ("run", "job", "left", "is_gone", "is_removed"),
    [
        pytest.param("mine", JOB, True, False, True, id="launcher-left"),
        pytest.param("mine", JOB, False, True, True, id="launcher-killed"),
        pytest.param("mine", JOB, False, False, False, id="launcher-waits"),
        pytest.param("mine", None, False, True, False, id="no-job"),
        pytest.param("other", JOB, True, True, False, id="of-another-run"),
    ],
)
def test_job_removes_report_and_lock_if_nobody_else_does(
    paths: output_folder.OutputPaths, run: str, job: dict[str, str] | None, left: bool, is_gone: bool, is_removed: bool
) -> None:
    report = pathlib.Path(paths.report("mine"))
    report.write_text("{}")
    sign(paths.lock, run, is_gone, job=job, is_left_to_job=left)
    settings = small_dataset.make_settings(pathlib.Path(paths.output), run_id="mine", report=str(report))
    commit_rights.leave_output(settings)
    assert os.path.exists(paths.metadata) != is_removed
    assert report.exists() != is_removed
    commit_rights.leave_output(dataclasses.replace(settings, run_id=""))
    assert report.exists() != is_removed


# ---- the commit lock


def test_commit_lock_is_there_while_it_is_held(paths: output_folder.OutputPaths) -> None:
    with CommitLock(paths, "mine", "f1").held() as commit_lock:
        found = commit_rights.read_record(paths.commit_lock)
        assert found is not None and (found.run, found.fingerprint) == ("mine", "f1")
        assert not commit_lock.continues
    assert os.listdir(paths.metadata) == []


def test_commit_lock_is_taken_over_from_a_run_that_is_gone(paths: output_folder.OutputPaths) -> None:
    for run, is_gone, age, ended, is_taken in [
        ("other", False, 149, (), False),  # live
        ("other", False, 151, (), True),  # expired
        ("other", True, 0, (), True),  # process-gone
        ("other", False, 0, ("other",), True),  # job-ended
        ("mine", False, 0, (), True),  # own-of-an-earlier-attempt
        ("", False, 0, (), True),  # of-nobody
    ]:
        for fingerprint in ["f1", "f2"]:
            record = sign(paths.commit_lock, run, is_gone, age, fingerprint=fingerprint)
            commit_lock = CommitLock(paths, "mine", "f1")
            if is_taken:
                with commit_lock.held(ended):
                    assert commit_lock.continues == (fingerprint == "f1")
                assert not os.path.exists(paths.commit_lock)
            else:
                with error_texts.raises("output-commit-by-another-run"), commit_lock.held(ended):
                    pass
                assert commit_rights.read_record(paths.commit_lock) == record


@pytest.mark.parametrize("is_renewed", [False, True], ids=["left", "renewed"])
def test_commit_lock_with_an_impossible_time_is_watched(
    paths: output_folder.OutputPaths, monkeypatch: pytest.MonkeyPatch, is_renewed: bool
) -> None:
    now = [time.monotonic()]
    age = -9e9
    sign(paths.commit_lock, "other", age=age, fingerprint="f2")

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if is_renewed:
            sign(paths.commit_lock, "other", age=age - 1, fingerprint="f2")

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    start, commit_lock = now[0], CommitLock(paths, "mine", "f1")
    if is_renewed:
        with error_texts.raises("output-commit-by-another-run"), commit_lock.held():
            pass
    else:
        with commit_lock.held():
            assert now[0] - start > commit_rights.LEASE_SEC


def test_commit_lock_that_is_not_understood_is_taken_over(paths: output_folder.OutputPaths) -> None:
    for text in ["f1", "", "{"]:
        pathlib.Path(paths.commit_lock).write_text(text)
        with CommitLock(paths, "mine", "f1").held() as commit_lock:
            assert not commit_lock.continues


def test_commit_lock_of_a_commit_that_fails_stays_if_files_changed_and_is_nobodys(
    paths: output_folder.OutputPaths,
) -> None:
    for has_changed in [False, True]:
        with pytest.raises(OSError, match="disk full"), CommitLock(paths, "mine", "f1").held() as commit_lock:
            if has_changed:
                commit_lock.note_change()
            raise OSError("disk full")
        assert os.path.exists(paths.commit_lock) == has_changed
        with CommitLock(paths, "next", "f1").held() as commit_lock:  # need not wait
            assert commit_lock.continues == has_changed


def test_commit_lock_is_renewed_twice_a_minute(
    paths: output_folder.OutputPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    with CommitLock(paths, "mine", "f1").held() as commit_lock:
        times = []
        for _ in range(8):
            commit_lock.check()
            found = commit_rights.read_record(paths.commit_lock)
            assert found is not None
            times.append(found.time)
            now[0] += 10
    assert times == [1000.0, 1000.0, 1000.0, 1030.0, 1030.0, 1030.0, 1060.0, 1060.0]


def test_commit_lock_is_renewed_once_by_many_threads(
    paths: output_folder.OutputPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_lock, renewed = CommitLock(paths, "mine", "f1"), []
    with commit_lock.held():
        renew = commit_lock.renew
        monkeypatch.setattr(commit_lock, "renew", lambda: (renewed.append(None), time.sleep(0.05), renew()))
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + commit_rights.RENEW_SEC)
        concurrency.call_each(lambda _: commit_lock.check(), range(100), 8)
        assert len(renewed) == 1


@pytest.mark.parametrize("is_removed", [False, True], ids=["taken-over", "gone"])
def test_commit_that_was_stopped_notices_the_takeover_and_leaves_the_commit_lock(
    paths: output_folder.OutputPaths, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    now = time.time()
    with error_texts.raises("commit-taken-over"), CommitLock(paths, "mine", "f1").held() as commit_lock:
        commit_lock.note_change()
        monkeypatch.setattr(time, "time", lambda: now + 200)
        if is_removed:
            os.unlink(paths.commit_lock)
        else:
            sign(paths.commit_lock, "other", fingerprint="f2")
        commit_lock.check()
    found = commit_rights.read_record(paths.commit_lock)
    assert is_removed == (found is None)
    assert found is None or found.run == "other"
