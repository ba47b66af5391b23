"""Forked commands wait less between two attempts, by the same factor everywhere, and try for as long as others."""

from __future__ import annotations

import importlib
import itertools
from types import SimpleNamespace

import pytest
from apache_beam.utils import retry

from imagebeam.pipelines.runs import dataflow_jobs, run_remotely
from imagebeam.reader.shard_cache import cached_shards
from imagebeam.storage import remote
from tests import command_line, patience, quick_waits


def waits() -> list[float]:
    return [
        getattr(importlib.import_module(module), name)
        for module, (_, *names) in quick_waits.WAITS.items()
        for name in names
    ]


def test_waits_are_shorter_and_budgets_the_same() -> None:
    before, budgets = waits(), (remote.BUDGET_SEC, remote.CHECK_BUDGET_SEC, dataflow_jobs.PATIENCE_SEC)
    factors = [factor for factor, *names in quick_waits.WAITS.values() for _ in names]
    with quick_waits.patched():
        assert waits() == [factor * each for factor, each in zip(factors, before, strict=True)]
        assert budgets == (remote.BUDGET_SEC, remote.CHECK_BUDGET_SEC, dataflow_jobs.PATIENCE_SEC)
    assert waits() == before


def test_pauses_are_shorter_and_as_many(tmp_path: object) -> None:
    shards = cached_shards.RemoteShards(str(tmp_path), {}, (1.0, 3.0))
    looks = run_remotely.Patience(first_sec=1.0, growth=2.0)
    with quick_waits.patched():
        assert list(shards._waits()) == [quick_waits.FACTOR, 3 * quick_waits.FACTOR, None]
        pauses = list(itertools.islice(looks.pauses(), 3))
    assert pauses == [each * quick_waits.TIMED_FACTOR for each in (1, 2, 4)]
    assert list(shards._waits()) == [1.0, 3.0, None]


def test_beam_waits_less_before_it_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(quick_waits, "time", SimpleNamespace(sleep=slept.append))
    with quick_waits.patched():
        retry.Clock().sleep(5.0)
    assert slept == [5.0 * quick_waits.FACTOR]


END_A_CHILD = """
import subprocess, time
from apache_beam.utils import subprocess_server
with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
    begin = time.monotonic()
    subprocess_server.time.sleep(0.05)
    print(time.monotonic() - begin >= 0.05, child.poll())
    child.kill()
    subprocess_server.time.sleep(10_000)
    print(child.poll())
"""


def test_beam_waits_for_a_child_that_it_ends_until_it_has_ended() -> None:
    process = command_line.start_program(END_A_CHILD)
    stdout, stderr = process.communicate(timeout=patience.HANG_SEC)
    assert (stdout, stderr) == ("True None\n-9\n", "")


def test_waits_are_shorter_in_forked_commands_and_as_users_have_them_in_a_new_process() -> None:
    code = "from imagebeam.storage import remote; print(remote._FIRST_WAIT_SEC)"
    stdout, _ = command_line.start_program(code, preloaded="remote").communicate()
    assert float(stdout) == remote._FIRST_WAIT_SEC * quick_waits.TIMED_FACTOR
    assert float(command_line.run_python(code).stdout) == remote._FIRST_WAIT_SEC
