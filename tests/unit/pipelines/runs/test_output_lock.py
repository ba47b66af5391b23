"""One run at a time: the lock of an output, and what unfinished runs have left there."""

from __future__ import annotations

import itertools
import json
import logging
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from imagebeam import storage
from imagebeam.pipelines.messages import terminal
from imagebeam.pipelines.runs import output_lock
from imagebeam.transforms.publish import run_records
from tests import case_tables, command_line, error_texts, patience, written_files

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
def test_shards_count_when_they_are_described(tmp_path: pathlib.Path, files: list[str], number: int | None) -> None:
    written_files.write(tmp_path / ".imagebeam", dict.fromkeys(files, "{}"))
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


# --- on a storage without locks: here the one that fsspec keeps in memory --------------------------------------------


CONTROL = "memory://out/.imagebeam"
LOCK = f"{CONTROL}/lock"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[storage.Storage]:
    monkeypatch.setattr(output_lock, "_PATIENCE_SEC", 0.01)
    monkeypatch.setattr(output_lock, "_LOOK_AT_LEASE_SEC", 0.01)
    monkeypatch.setattr(run_records, "SETTLE_SEC", 0.0)
    store = storage.storage_of(LOCK)
    yield store
    store.remove_tree("memory://out")


def leave(store: storage.Storage, **word: Any) -> None:
    """The lock of another run."""
    whole = {"process": 1, "host": "elsewhere", "run": "other", "time": time.time(), **word}
    store.write_whole(LOCK, json.dumps(whole).encode())


def after_two_looks(store: storage.Storage, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    """Calls `then` once, after a run has read the lock of another one twice."""
    read, looks = store.read, itertools.count(1)

    def read_and_go_on(uri: str, **options: Any) -> bytes:
        content = read(uri, **options)
        if next(looks) == 2:
            then()
        return content

    monkeypatch.setattr(store, "read", read_and_go_on)


@case_tables.each_case("word", [b"", b"[]", b"{}", b"not json", b'{"time": "yesterday"}', b'{"time": null}'])
def test_lease_that_says_nothing_is_void(store: storage.Storage, word: bytes) -> None:
    store.write_whole(LOCK, word)
    with output_lock.hold(CONTROL):
        assert json.loads(store.read(LOCK))["run"] != "other"


def test_lease_leaves_what_the_run_wrote(store: storage.Storage) -> None:
    with output_lock.hold(CONTROL):
        store.write_whole(f"{CONTROL}/staged", b"x")
    assert [entry.name for entry in store.list_directory(CONTROL)] == ["staged"]


def test_second_run_is_told_who_holds_the_lease(store: storage.Storage) -> None:
    leave(store, time=time.time() - 12)
    with error_texts.raises("output-busy"), output_lock.hold(CONTROL):
        pass
    assert json.loads(store.read(LOCK))["run"] == "other"


def test_second_run_waits_for_a_lease_about_to_end(store: storage.Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_lock, "_PATIENCE_SEC", patience.HANG_SEC)
    leave(store)
    after_two_looks(store, monkeypatch, lambda: store.remove(LOCK))
    with output_lock.hold(CONTROL):
        assert json.loads(store.read(LOCK))["run"] != "other"


NO_DATES = [float("nan"), float("inf"), 9e9]


@pytest.mark.parametrize("clock", NO_DATES)
def test_lease_with_an_impossible_time_that_is_not_renewed_is_taken_over(
    store: storage.Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, clock: float
) -> None:
    monkeypatch.setattr(run_records, "LEASE_SEC", 0.5)
    monkeypatch.setattr(run_records, "WATCH_SEC", 0.01)
    leave(store, time=clock)
    with output_lock.hold(CONTROL):
        assert json.loads(store.read(LOCK))["host"] == socket.gethostname()
    (record,) = caplog.records
    assert record.getMessage().endswith(
        f"if it was killed, remove {LOCK}; looking for 0.5 s whether the lock changes, and taking it over if not"
    )


def test_command_line_shows_why_a_run_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("imagebeam.pipelines.output_lock")
    monkeypatch.setattr(logger, "level", logging.CRITICAL)
    for name in ("TF_CPP_MIN_LOG_LEVEL", "GRPC_VERBOSITY"):
        monkeypatch.setenv(name, os.environ.get(name, "2"))
    with warnings.catch_warnings():
        terminal.quieten(verbose=False)
    assert logger.level == logging.WARNING
    logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize("clock", NO_DATES)
def test_lease_with_an_impossible_time_that_changes_is_respected(
    store: storage.Storage, monkeypatch: pytest.MonkeyPatch, clock: float
) -> None:
    monkeypatch.setattr(run_records, "WATCH_SEC", 0.01)
    leave(store, time=clock)
    after_two_looks(store, monkeypatch, lambda: leave(store, time=clock, config="renewed"))
    with error_texts.raises("output-busy"), output_lock.hold(CONTROL):
        pass
    assert json.loads(store.read(LOCK))["run"] == "other"


def test_lease_is_renewed(store: storage.Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_records, "RENEW_SEC", 0.02)
    with output_lock.hold(CONTROL):
        first = json.loads(store.read(LOCK))["time"]
        patience.wait_until(lambda: json.loads(store.read(LOCK))["time"] != first)


@pytest.mark.parametrize("is_created", [False, True])
def test_run_that_is_stopped_while_it_locks_leaves_no_lock(
    store: storage.Storage, monkeypatch: pytest.MonkeyPatch, is_created: bool
) -> None:
    create_new = store.create_new

    def interrupted(*arguments: Any) -> bool:
        if is_created:
            create_new(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "create_new", interrupted)
    with pytest.raises(KeyboardInterrupt), output_lock.hold(CONTROL):
        pass
    assert not store.exists(LOCK)


def test_lease_taken_over_by_another_run_is_left_to_it(store: storage.Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_records, "RENEW_SEC", 0.02)
    with output_lock.hold(CONTROL):
        leave(store)
        time.sleep(patience.MOMENT_SEC)
    assert json.loads(store.read(LOCK))["run"] == "other"
