from __future__ import annotations

import dataclasses
import os
import pathlib
import socket
import time

import pytest

from imagebeam import errors, look_ahead
from imagebeam.transforms.commit import commit_rights, run_record
from imagebeam.transforms.commit.commit_rights import LockView, PublishMarker
from imagebeam.transforms.commit.run_record import RunRecord
from imagebeam.transforms.output import output_paths
from tests import races
from tests.unit.transforms import small_dataset

JOB = {"runner": "DataflowRunner", "name": "cats", "id": "5"}


@pytest.fixture
def paths(tmp_path: pathlib.Path) -> output_paths.OutputPaths:
    (tmp_path / "out/.imagebeam").mkdir(parents=True)
    return output_paths.OutputPaths(str(tmp_path / "out"))


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
    paths: output_paths.OutputPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_record, "_READ_WAIT_SEC", 0.0)  # of a lock that is not signed
    assert commit_rights.look_at_lock(paths, "mine") == LockView(is_held=False)
    sign(paths.lock, "mine", age=1e6, ended=("old",))
    assert commit_rights.look_at_lock(paths, "mine") == LockView(is_held=True, ended=("old",))
    sign(paths.lock, "other", is_gone=True)
    assert commit_rights.look_at_lock(paths, "mine") == LockView(is_held=False)
    pathlib.Path(paths.lock).write_text("process 1 on elsewhere")
    assert commit_rights.look_at_lock(paths, "mine") == LockView(is_held=False)


@pytest.mark.parametrize(
    ("fields", "who"),
    [
        pytest.param({}, r"process \d+ on .+", id="process"),
        pytest.param({"job": JOB, "is_gone": True}, "DataflowRunner job 5", id="job-whose-launcher-is-gone"),
    ],
)
def test_lock_of_another_run_stops_the_commit(
    paths: output_paths.OutputPaths, fields: dict[str, bool], who: str
) -> None:
    sign(paths.lock, "other", **fields)
    message = (
        rf"^another run took over {paths.output} \({who}\): nothing of this run was committed; wait until that run"
    )
    with pytest.raises(errors.BusyError, match=message):
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
    paths: output_paths.OutputPaths, run: str, job: dict[str, str] | None, left: bool, is_gone: bool, is_removed: bool
) -> None:
    report = pathlib.Path(paths.report("mine"))
    report.write_text("{}")
    sign(paths.lock, run, is_gone, job=job, is_left_to_job=left)
    settings = small_dataset.make_settings(pathlib.Path(paths.output), run_id="mine", report=str(report))
    commit_rights.leave_output(settings)
    assert os.path.exists(paths.control) != is_removed
    assert report.exists() != is_removed
    commit_rights.leave_output(dataclasses.replace(settings, run_id=""))
    assert report.exists() != is_removed


# ---- the marker


def test_marker_is_there_while_it_is_held(paths: output_paths.OutputPaths) -> None:
    with PublishMarker(paths, "mine", "f1").held() as marker:
        found = run_record.read(paths.publish_marker)
        assert found is not None and (found.run, found.fingerprint) == ("mine", "f1")
        assert not marker.continues
    assert os.listdir(paths.control) == []


@pytest.mark.parametrize(
    ("run", "is_gone", "age", "ended", "is_taken"),
    [
        pytest.param("other", False, 149, (), False, id="live"),
        pytest.param("other", False, 151, (), True, id="expired"),
        pytest.param("other", True, 0, (), True, id="process-gone"),
        pytest.param("other", False, 0, ("other",), True, id="job-ended"),
        pytest.param("mine", False, 0, (), True, id="own-of-an-earlier-attempt"),
        pytest.param("", False, 0, (), True, id="of-nobody"),
    ],
)
@pytest.mark.parametrize("fingerprint", ["f1", "f2"])
def test_marker_is_taken_over_from_a_run_that_is_gone(
    paths: output_paths.OutputPaths,
    run: str,
    is_gone: bool,
    age: float,
    ended: tuple[str, ...],
    is_taken: bool,
    fingerprint: str,
) -> None:
    record = sign(paths.publish_marker, run, is_gone, age, fingerprint=fingerprint)
    marker = PublishMarker(paths, "mine", "f1")
    if is_taken:
        with marker.held(ended):
            assert marker.continues == (fingerprint == "f1")
        assert not os.path.exists(paths.publish_marker)
    else:
        message = (
            rf"^another run commits to {paths.output} at this moment \(process \d+ on .*, last renewed \d+ s ago\)"
        )
        with pytest.raises(errors.BusyError, match=message), marker.held(ended):
            pass
        assert run_record.read(paths.publish_marker) == record


@pytest.mark.parametrize("is_renewed", [False, True], ids=["left", "renewed"])
def test_marker_with_an_impossible_time_is_watched(
    paths: output_paths.OutputPaths, monkeypatch: pytest.MonkeyPatch, is_renewed: bool
) -> None:
    now = [time.monotonic()]
    age = -9e9
    sign(paths.publish_marker, "other", age=age, fingerprint="f2")

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if is_renewed:
            sign(paths.publish_marker, "other", age=age - 1, fingerprint="f2")

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    start, marker = now[0], PublishMarker(paths, "mine", "f1")
    if is_renewed:
        message = (
            r"by a clock that disagrees .* has ended \(if it was killed, remove .*/publishing\), then run the same"
        )
        with pytest.raises(errors.BusyError, match=message), marker.held():
            pass
    else:
        with marker.held():
            assert now[0] - start > run_record.LEASE_SEC


@pytest.mark.parametrize(("text", "continues"), [("f1", True), ("f0", False), ("", False)])
def test_marker_of_an_older_version_is_taken_over(paths: output_paths.OutputPaths, text: str, continues: bool) -> None:
    pathlib.Path(paths.publish_marker).write_text(text)
    with PublishMarker(paths, "mine", "f1").held() as marker:
        assert marker.continues == continues


@pytest.mark.parametrize("has_changed", [False, True], ids=["nothing-changed", "files-changed"])
def test_marker_of_a_commit_that_fails_stays_if_files_changed_and_is_nobodys(
    paths: output_paths.OutputPaths, has_changed: bool
) -> None:
    with pytest.raises(OSError, match="disk full"), PublishMarker(paths, "mine", "f1").held() as marker:
        if has_changed:
            marker.note_change()
        raise OSError("disk full")
    assert os.path.exists(paths.publish_marker) == has_changed
    with PublishMarker(paths, "next", "f1").held() as marker:  # need not wait
        assert marker.continues == has_changed


def test_marker_is_renewed_twice_a_minute(paths: output_paths.OutputPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    with PublishMarker(paths, "mine", "f1").held() as marker:
        times = []
        for _ in range(8):
            marker.check()
            found = run_record.read(paths.publish_marker)
            assert found is not None
            times.append(found.time)
            now[0] += 10
    assert times == [1000.0, 1000.0, 1000.0, 1030.0, 1030.0, 1030.0, 1060.0, 1060.0]


def test_marker_is_renewed_once_by_many_threads(
    paths: output_paths.OutputPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker, renewed = PublishMarker(paths, "mine", "f1"), []
    with marker.held():
        renew = marker.renew
        monkeypatch.setattr(marker, "renew", lambda: (renewed.append(None), time.sleep(0.05), renew()))
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + run_record.RENEW_SEC)
        look_ahead.call_each(lambda _: marker.check(), range(100), 8)
        assert len(renewed) == 1


@pytest.mark.parametrize("is_removed", [False, True], ids=["taken-over", "gone"])
def test_commit_that_was_stopped_notices_the_takeover_and_leaves_the_marker(
    paths: output_paths.OutputPaths, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    now = time.time()
    message = rf"^another run took over the commit to {paths.output}.*, since this one was stopped for more than 150 s"
    with pytest.raises(errors.BusyError, match=message), PublishMarker(paths, "mine", "f1").held() as marker:
        marker.note_change()
        monkeypatch.setattr(time, "time", lambda: now + 200)
        if is_removed:
            os.unlink(paths.publish_marker)
        else:
            sign(paths.publish_marker, "other", fingerprint="f2")
        marker.check()
    found = run_record.read(paths.publish_marker)
    assert is_removed == (found is None)
    assert found is None or found.run == "other"
