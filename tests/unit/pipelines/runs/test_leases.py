"""One run at a time on a storage without locks: here the one that fsspec keeps in memory."""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from imagebeam import storage
from imagebeam.pipelines.messages import terminal
from imagebeam.pipelines.runs import output_lock
from imagebeam.transforms.publish import commit_rights
from tests import case_tables, error_texts, patience

CONTROL = "memory://out/.imagebeam"
LOCK = f"{CONTROL}/lock"


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[storage.Storage]:
    monkeypatch.setattr(output_lock, "_PATIENCE_SEC", 0.01)
    monkeypatch.setattr(output_lock, "_LOOK_AT_LEASE_SEC", 0.01)
    monkeypatch.setattr(commit_rights, "SETTLE_SEC", 0.0)
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


def test_lock_is_there_while_it_is_held(store: storage.Storage) -> None:
    with output_lock.hold(CONTROL):
        assert store.exists(LOCK)
    assert not store.exists(CONTROL)


@case_tables.each_case("word", [b"", b"[]", b"{}", b"not json", b'{"time": "yesterday"}', b'{"time": null}'])
def test_lock_that_says_nothing_is_void(store: storage.Storage, word: bytes) -> None:
    store.write_whole(LOCK, word)
    with output_lock.hold(CONTROL):
        assert json.loads(store.read(LOCK))["run"] != "other"


def test_what_the_run_wrote_stays(store: storage.Storage) -> None:
    with output_lock.hold(CONTROL):
        store.write_whole(f"{CONTROL}/staged", b"x")
    assert [entry.name for entry in store.list_directory(CONTROL)] == ["staged"]


def test_second_run_is_told_who_holds_it(store: storage.Storage) -> None:
    leave(store, time=time.time() - 12)
    with error_texts.raises("output-busy"), output_lock.hold(CONTROL):
        pass
    assert json.loads(store.read(LOCK))["run"] == "other"


def test_second_run_waits_for_one_that_is_about_to_end(store: storage.Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_lock, "_PATIENCE_SEC", patience.HANG_SEC)
    leave(store)
    after_two_looks(store, monkeypatch, lambda: store.remove(LOCK))
    with output_lock.hold(CONTROL):
        assert json.loads(store.read(LOCK))["run"] != "other"


@pytest.mark.parametrize("age", [151, 1e9])
def test_lock_that_was_not_renewed_is_taken_over(store: storage.Storage, age: float) -> None:
    leave(store, time=time.time() - age)
    with output_lock.hold(CONTROL):
        assert json.loads(store.read(LOCK))["host"] == socket.gethostname()


NO_DATES = [float("nan"), float("inf"), 9e9]


@pytest.mark.parametrize("clock", NO_DATES)
def test_lock_with_an_impossible_time_that_is_not_renewed_is_taken_over(
    store: storage.Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, clock: float
) -> None:
    monkeypatch.setattr(commit_rights, "LEASE_SEC", 0.05)
    monkeypatch.setattr(commit_rights, "WATCH_SEC", 0.01)
    leave(store, time=clock)
    with output_lock.hold(CONTROL):
        assert json.loads(store.read(LOCK))["host"] == socket.gethostname()
    (record,) = caplog.records
    assert record.getMessage().endswith(
        f"if it was killed, remove {LOCK}; looking for 0.05 s whether the lock changes, and taking it over if not"
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
def test_lock_with_an_impossible_time_that_changes_is_respected(
    store: storage.Storage, monkeypatch: pytest.MonkeyPatch, clock: float
) -> None:
    monkeypatch.setattr(commit_rights, "WATCH_SEC", 0.01)
    leave(store, time=clock)
    after_two_looks(store, monkeypatch, lambda: leave(store, time=clock, config="renewed"))
    with error_texts.raises("output-busy"), output_lock.hold(CONTROL):
        pass
    assert json.loads(store.read(LOCK))["run"] == "other"


def test_lock_of_a_process_that_is_gone_is_taken_over_at_once(store: storage.Storage) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    leave(store, host=socket.gethostname(), process=process.pid)
    with output_lock.hold(CONTROL):
        pass


def test_lock_is_renewed(store: storage.Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_lock, "_RENEW_SEC", 0.02)
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


def test_lock_that_another_run_took_over_is_left_to_it(store: storage.Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_lock, "_RENEW_SEC", 0.02)
    with output_lock.hold(CONTROL):
        leave(store)
        time.sleep(patience.MOMENT_SEC)
    assert json.loads(store.read(LOCK))["run"] == "other"
