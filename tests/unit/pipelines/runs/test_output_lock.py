from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

from imagebeam import storage
from imagebeam.pipelines.runs import output_lock
from tests import case_tables, command_line, error_texts, patience

HOLDER = """
import sys
from imagebeam.pipelines.runs import output_lock
with output_lock.hold(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def control(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "out" / ".imagebeam")


def start_holder(control: str) -> subprocess.Popen[str]:
    """Another process that holds the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, control],
        cwd=command_line.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_lock_of_new_output_leaves_no_folder(control: str) -> None:
    with output_lock.hold(control):
        assert os.listdir(control) == ["lock"]
    assert not os.path.exists(os.path.dirname(control))


def test_lock_leaves_what_the_run_wrote(control: str) -> None:
    with output_lock.hold(control):
        pathlib.Path(control, "staged").touch()
    assert os.listdir(control) == ["staged"]


def test_lock_of_empty_output_leaves_the_output(control: str) -> None:
    output = os.path.dirname(control)
    os.mkdir(output)
    with output_lock.hold(control):
        pass
    assert os.listdir(output) == []


def test_second_run_is_told_who_holds_the_lock(control: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_lock, "_PATIENCE_SEC", 0.2)
    holder = start_holder(control)
    with error_texts.raises("output-busy"), output_lock.hold(control):
        pass
    holder.communicate()
    assert holder.returncode == 0


def test_lock_of_killed_holder_is_free(control: str) -> None:
    holder = start_holder(control)
    holder.kill()
    holder.communicate()
    assert os.listdir(control) == ["lock"]  # left behind, and nobody's
    with output_lock.hold(control):
        assert os.listdir(control) == ["lock"]


def test_second_run_waits_for_a_run_that_is_about_to_end(control: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_lock, "_PATIENCE_SEC", patience.HANG_SEC)
    holder = start_holder(control)
    assert holder.stdin is not None
    threading.Timer(0.3, holder.stdin.close).start()
    with output_lock.hold(control):
        assert holder.wait() == 0


def test_lock_in_many_hands_is_held_by_one_at_a_time(control: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_lock, "_PATIENCE_SEC", patience.HANG_SEC)
    holders: list[int] = []
    most = []

    def hold_repeatedly() -> None:
        for _ in range(5):
            with output_lock.hold(control):
                holders.append(1)
                most.append(len(holders))
                time.sleep(0.001)
                holders.pop()

    threads = [threading.Thread(target=hold_repeatedly) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 30


@case_tables.each_case("output", {"a-file": "a-file", "below-a-file": "a-file/below"})
def test_lock_where_no_folder_can_be_raises_config_error(tmp_path: pathlib.Path, output: str) -> None:
    (tmp_path / "a-file").touch()
    with error_texts.raises("output-unwritable"), output_lock.hold(str(tmp_path / output / ".imagebeam")):
        pass


# --- what unfinished runs have left ----------------------------------------------------------------------------------


DONE = "train-00000-of-00002.tfrecord.done.json"


@case_tables.each_case(
    "files, number",
    {
        "nothing": ([], None),
        "no-staging-folder": (["last-run.json"], None),
        "without-its-description": (["staging-f00d/train-00000-of-00002.tfrecord"], 0),
        "finished": ([f"staging-f00d/{DONE}"], 1),
        "of-two-configs": ([f"staging-f00d/{DONE}", f"staging-beef/{DONE}", "staging-beef/x"], 2),
    },
)
def test_shards_count_once_their_description_is_written(
    tmp_path: pathlib.Path, files: list[str], number: int | None
) -> None:
    for name in files:
        path = tmp_path / ".imagebeam" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    output = str(tmp_path)
    assert output_lock.count_finished_shards(output) == number
    kept = "; finished shards are kept, run the same command again to go on"
    assert output_lock.describe_kept(output) == (kept if number else "")


def test_mark_of_a_worker_that_died_is_described(tmp_path: pathlib.Path) -> None:
    output, staging = str(tmp_path), tmp_path / ".imagebeam" / "staging-f00d"
    staging.mkdir(parents=True)
    (staging / DONE).write_text("{}")
    assert output_lock.describe_deaths(output) == ""
    (staging / "train-00001-of-00002.tfrecord.begun.json").write_text("{}")
    expected = "; an image may have killed a worker: the same command finds and rejects it"
    assert output_lock.describe_deaths(output) == expected


def test_storage_that_does_not_answer_holds_up_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(uri: str) -> None:
        raise OSError(5, "no answer")

    monkeypatch.setattr(storage, "storage_of", fail)
    assert output_lock.describe_kept("gs://b/out") == output_lock.describe_deaths("gs://b/out") == ""
    with pytest.raises(OSError, match="no answer"):
        output_lock.count_finished_shards("gs://b/out")
