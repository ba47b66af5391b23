from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import socket
import time

import pytest

from imagebeam.transforms.publish import commit_rights
from imagebeam.transforms.publish.commit_rights import RunRecord
from tests import races

HERE = socket.gethostname()


def test_record_survives_its_encoding(tmp_path: pathlib.Path) -> None:
    record = RunRecord.of_this_process(
        "f00d", fingerprint="ab", config="c", job={"id": "1"}, is_left_to_job=True, ended=("a",)
    )
    assert (record.process, record.host) == (os.getpid(), HERE)
    assert commit_rights.parse_record(record.encode()) == record
    (tmp_path / "lock").write_bytes(record.encode() + b'the rest of a longer record"}\n')
    assert commit_rights.read_record(str(tmp_path / "lock")) == record


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
        assert commit_rights.parse_record(content) is None


def test_record_with_fields_of_a_newer_version_is_read() -> None:
    assert commit_rights.parse_record(json.dumps({"run": "y", "mood": "good"}).encode()) == RunRecord("y")


def test_missing_file_holds_no_record(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    assert commit_rights.read_record(str(tmp_path / "nothing")) is None
    assert commit_rights.read_record(str(tmp_path / "file" / "below")) is None


def test_record_of_a_lock_that_is_being_signed_is_waited_for(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    record = RunRecord.of_this_process("f00d")
    monkeypatch.setattr(time, "sleep", lambda seconds: lock.write_bytes(record.encode()))
    assert commit_rights.read_record(str(lock)) == record


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
        record = commit_rights.parse_record(
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
    watch, other = commit_rights.RecordWatch(), commit_rights.RecordWatch()
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
