from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import socket
import time

import pytest

from imagebeam import concurrency
from imagebeam.transforms.output.output_folder import OutputPaths
from imagebeam.transforms.publish import commit_rights, run_records
from imagebeam.transforms.publish.commit_rights import CommitLock, LockView
from imagebeam.transforms.publish.run_records import RunRecord
from tests import error_texts, races
from tests.unit.transforms import small_dataset

JOB = {"runner": "DataflowRunner", "name": "cats", "id": "5"}
NOW = time.time()


@pytest.fixture(autouse=True)
def _stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The age of a record is what a test says, however long the test takes."""
    monkeypatch.setattr(time, "time", lambda: NOW)


@pytest.fixture
def paths(tmp_path: pathlib.Path) -> OutputPaths:
    (tmp_path / "out/.imagebeam").mkdir(parents=True)
    return OutputPaths(str(tmp_path / "out"))


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


def test_lock_is_held_while_it_names_the_run(paths: OutputPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_records, "_READ_WAIT_SEC", 0.0)  # of a lock that is not signed
    assert commit_rights.look_at_lock(paths, "mine") == LockView(is_held=False)
    sign(paths.lock, "mine", age=1e6, ended=("old",))
    assert commit_rights.look_at_lock(paths, "mine") == LockView(is_held=True, ended=("old",))
    sign(paths.lock, "other", is_gone=True)
    assert commit_rights.look_at_lock(paths, "mine") == LockView(is_held=False)
    pathlib.Path(paths.lock).write_text("process 1 on elsewhere")
    assert commit_rights.look_at_lock(paths, "mine") == LockView(is_held=False)


def test_lock_of_another_run_stops_the_commit(paths: OutputPaths) -> None:
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
    paths: OutputPaths, run: str, job: dict[str, str] | None, left: bool, is_gone: bool, is_removed: bool
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


def test_commit_lock_is_taken_over_from_a_run_that_is_gone(paths: OutputPaths) -> None:
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
                assert run_records.read_record(paths.commit_lock) == record


@pytest.mark.parametrize("is_renewed", [False, True], ids=["left", "renewed"])
def test_commit_lock_with_an_impossible_time_is_watched(
    paths: OutputPaths, monkeypatch: pytest.MonkeyPatch, is_renewed: bool
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
            assert now[0] - start > run_records.LEASE_SEC


def test_commit_lock_that_is_not_understood_is_taken_over(paths: OutputPaths) -> None:
    for text in ["f1", "", "{"]:
        pathlib.Path(paths.commit_lock).write_text(text)
        with CommitLock(paths, "mine", "f1").held() as commit_lock:
            assert not commit_lock.continues


def test_commit_lock_of_a_failed_commit_stays_if_files_changed(paths: OutputPaths) -> None:
    for has_changed in [False, True]:
        with pytest.raises(OSError, match="disk full"), CommitLock(paths, "mine", "f1").held() as commit_lock:
            if has_changed:
                commit_lock.note_change()
            raise OSError("disk full")
        assert os.path.exists(paths.commit_lock) == has_changed
        with CommitLock(paths, "next", "f1").held() as commit_lock:  # need not wait
            assert commit_lock.continues == has_changed


def test_commit_lock_is_renewed_twice_a_minute(paths: OutputPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    with CommitLock(paths, "mine", "f1").held() as commit_lock:
        times = []
        for _ in range(8):
            commit_lock.check()
            found = run_records.read_record(paths.commit_lock)
            assert found is not None
            times.append(found.time)
            now[0] += 10
    assert times == [1000.0, 1000.0, 1000.0, 1030.0, 1030.0, 1030.0, 1060.0, 1060.0]


def test_commit_lock_is_renewed_once_by_threads(paths: OutputPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    commit_lock, renewed = CommitLock(paths, "mine", "f1"), []
    with commit_lock.held():
        renew = commit_lock.renew
        monkeypatch.setattr(commit_lock, "renew", lambda: (renewed.append(None), time.sleep(0.05), renew()))
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + run_records.RENEW_SEC)
        concurrency.call_each(lambda _: commit_lock.check(), range(100), 8)
        assert len(renewed) == 1


@pytest.mark.parametrize("is_removed", [False, True], ids=["taken-over", "gone"])
def test_commit_that_was_stopped_notices_the_takeover_and_leaves_the_commit_lock(
    paths: OutputPaths, monkeypatch: pytest.MonkeyPatch, is_removed: bool
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
    found = run_records.read_record(paths.commit_lock)
    assert is_removed == (found is None)
    assert found is None or found.run == "other"


# ---- run record


HERE = socket.gethostname()


def test_record_survives_its_encoding(tmp_path: pathlib.Path) -> None:
    record = RunRecord.of_this_process(
        "f00d", fingerprint="ab", config="c", job={"id": "1"}, is_left_to_job=True, ended=("a",)
    )
    assert (record.process, record.host) == (os.getpid(), HERE)
    assert run_records.parse_record(record.encode()) == record
    (tmp_path / "lock").write_bytes(record.encode() + b'the rest of a longer record"}\n')
    assert run_records.read_record(str(tmp_path / "lock")) == record


def test_other_content_is_no_record() -> None:
    for content in [
        b"",
        b"ab12",
        b"[]",
        b"7",
        b"process 1 on elsewhere",
        b'{"time": "yesterday"}',
        b'{"time": null}',
        b'{"process": "1"}',
        b'{"run": 1}',
        b'{"job": "x"}',
        b'{"ended": 7}',
        b'{"ended": [["u"]]}',
        b'{"ended": [7]}',
        b'{"is_left_to_job": "no"}',
    ]:
        assert run_records.parse_record(content) is None


def test_record_with_fields_of_a_newer_version_is_read() -> None:
    assert run_records.parse_record(json.dumps({"run": "y", "mood": "good"}).encode()) == RunRecord("y")


def test_missing_file_holds_no_record(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    assert run_records.read_record(str(tmp_path / "nothing")) is None
    assert run_records.read_record(str(tmp_path / "file" / "below")) is None


def test_lock_that_is_being_signed_is_waited_for(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    record = RunRecord.of_this_process("f00d")
    monkeypatch.setattr(time, "sleep", lambda seconds: lock.write_bytes(record.encode()))
    assert run_records.read_record(str(lock)) == record


def test_process_is_gone_if_it_ended_here_or_its_record_expired() -> None:
    for is_renewed in [True, False]:
        for age in [0, 149, 151, 1e9]:
            for process in ["alive", "gone", "elsewhere", "not-known"]:
                number = {
                    "alive": os.getpid(),
                    "gone": races.pid_of_nobody(),
                    "elsewhere": races.pid_of_nobody(),
                    "not-known": 0,
                }
                record = RunRecord(
                    "x", number[process], "elsewhere" if process == "elsewhere" else HERE, time.time() - age
                )
                assert record.is_gone(is_renewed) == ((is_renewed and age > 150) or process == "gone")


NO_DATES = ["NaN", "Infinity", "-Infinity", "1e400", "1" + "0" * 400, "9e9"]


def test_record_with_an_impossible_time_is_read_and_not_dated() -> None:
    for number in NO_DATES:
        record = run_records.parse_record(
            b'{"run": "x", "process": 1, "host": "elsewhere", "time": %s}' % number.encode()
        )
        assert record is not None
        assert (record.is_dated, record.is_gone(is_renewed=True)) == (False, False)
        who = r"process 1 on elsewhere, renewed at (-?inf|nan|9000000000) s by a clock that disagrees with .*, \d+ s"
        assert re.fullmatch(who, record.describe(is_renewed=True))
        gone = dataclasses.replace(record, process=races.pid_of_nobody(), host=HERE)
        assert gone.is_gone(is_renewed=True)


def test_clock_of_another_host_may_be_a_little_ahead() -> None:
    for ahead, is_dated in [(-1e9, True), (0, True), (100, True), (200, False)]:
        record = RunRecord("x", 1, "elsewhere", time.time() + ahead)
        assert record.is_dated == is_dated
        assert ("last renewed 0 s ago" in record.describe(is_renewed=True)) == (ahead in (0, 100))


def test_watch_tells_a_record_that_changes_from_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    watch, other = run_records.RecordWatch(), run_records.RecordWatch()
    assert (watch.look(b"a"), other.look(b"a")) == ("watching", "watching")
    monkeypatch.setattr(time, "monotonic", lambda: now + 149)
    assert (watch.look(b"a"), other.look(b"b")) == ("watching", "renewed")
    monkeypatch.setattr(time, "monotonic", lambda: now + 152)
    assert (watch.look(b"a"), other.look(b"b")) == ("expired", "renewed")


def test_successor_names_the_runs_whose_jobs_have_ended() -> None:
    first = RunRecord("a")
    assert RunRecord("b").after(None, has_ended=True).ended == ()
    assert RunRecord("b").after(first, has_ended=False).ended == ()
    second = RunRecord("b").after(first, has_ended=True)
    assert second.ended == ("a",)
    assert RunRecord("c").after(second, has_ended=True).ended == ("a", "b")
    many = second
    for number in range(30):
        many = RunRecord(str(number)).after(many, has_ended=True)
    assert many.ended == tuple(str(number) for number in range(9, 29))


def test_record_is_described() -> None:
    for job, is_renewed, text in [
        (None, False, "process 7 on h"),  # process
        (None, True, "process 7 on h, last renewed 12 s ago"),  # renewed
        ({"runner": "DataflowRunner", "id": "", "name": "cats"}, True, "DataflowRunner job cats"),  # job
        ({"runner": "DataflowRunner", "id": "5", "name": "cats"}, False, "DataflowRunner job 5"),  # id
    ]:
        assert RunRecord("x", 7, "h", time.time() - 12, job=job).describe(is_renewed) == text
