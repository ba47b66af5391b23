"""The record of a job that ended badly."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from imagebeam.pipelines.runs import remote_job

JOB = remote_job.RemoteJob("DataflowRunner", "p", "r", "cats", "j1")


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / ".imagebeam").mkdir()
    return tmp_path / ".imagebeam" / "last-run.json"


@pytest.mark.parametrize("state", ["failed", "cancelled", "refused"])
@pytest.mark.parametrize("causes", [[], ["boom", "b\xe4ng\n"]], ids=["mute", "causes"])
def test_record_that_was_written_is_read(
    file: pathlib.Path, tmp_path: pathlib.Path, state: remote_job.BadEnd, causes: list[str]
) -> None:
    remote_job.record_last_run(str(tmp_path), "failed", JOB, ["earlier"], 1)
    remote_job.record_last_run(str(tmp_path), state, JOB, causes, 3)
    found = remote_job.read_last_run(str(tmp_path))
    assert found is not None
    assert (found.state, found.job, list(found.causes), found.exit_code) == (state, JOB, causes, 3)
    assert found.ended.startswith("20") and found.ended.endswith("+00:00")
    assert [path.name for path in file.parent.iterdir()] == ["last-run.json"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"state": "paused"}, id="state-of-a-newer-version"),
        pytest.param({"job": None}, id="no-job"),
        pytest.param({"job": {"runner": 1}}, id="odd-job"),
        pytest.param({"causes": None}, id="no-causes"),
        pytest.param({"exit_code": "x"}, id="odd-exit-code"),
    ],
)
def test_record_that_is_not_understood_counts_for_nothing(
    file: pathlib.Path, tmp_path: pathlib.Path, change: dict[str, Any]
) -> None:
    remote_job.record_last_run(str(tmp_path), "failed", JOB, [], 1)
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    assert remote_job.read_last_run(str(tmp_path)) is None


@pytest.mark.parametrize("content", [None, b"", b"[]", b"\xff"])
def test_no_record_is_read_where_none_is(file: pathlib.Path, tmp_path: pathlib.Path, content: bytes | None) -> None:
    if content is not None:
        file.write_bytes(content)
    assert remote_job.read_last_run(str(tmp_path)) is None
