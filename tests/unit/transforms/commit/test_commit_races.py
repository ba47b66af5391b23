"""Commits of two runs to one output, in every order, inside of each other, and killed in the middle."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from imagebeam import storage
from imagebeam.storage import fsspec_files, remote
from imagebeam.transforms.elements import ImageRef
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.publish import commit_rights, publish_dataset, run_records
from tests import error_texts, lost_answers, races
from tests.unit.transforms import small_dataset

CHANGES = ("write_file", "write_whole", "create_new", "replace", "publish", "rename", "remove", "remove_tree")
INSIDE = [  # storage, config of B, whether there is an earlier dataset, whether B holds the lock: each pair of values
    pytest.param("local", "same-config", False, False, id="local-same-config"),
    pytest.param("memory", "same-config", True, True, id="memory-same-config-over-another-with-the-lock"),
    pytest.param("memory", "same-shard-names", False, True, id="memory-same-shard-names-with-the-lock"),
    pytest.param("local", "same-shard-names", True, False, id="local-same-shard-names-over-another"),
    pytest.param("memory", "other-shard-names", True, False, id="memory-other-shard-names-over-another"),
    pytest.param("local", "other-shard-names", False, True, id="local-other-shard-names-with-the-lock"),
]
inside = pytest.mark.parametrize(("outputs", "config", "has_earlier", "locked"), INSIDE, indirect=["outputs"])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power failure is tested
    monkeypatch.setattr(run_records, "SETTLE_SEC", 0.0)
    monkeypatch.setattr(publish_dataset, "REQUESTS_AT_ONCE", 1)  # so that change number n is the same one in each run


@pytest.fixture
def refs(tmp_path: pathlib.Path) -> list[ImageRef]:
    return small_dataset.make_refs(tmp_path / "in")


@pytest.fixture
def outputs(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[str]:
    """A folder for outputs: on the local disk, or on a storage that checks and moves in two steps."""
    if request.param == "local":
        yield str(tmp_path / "outputs")
        return
    uri = f"memory://{tmp_path.name}"
    yield uri
    storage.storage_of(uri).remove_tree(uri)


@pytest.mark.parametrize("outputs", ["local"], indirect=True)
@pytest.mark.parametrize("config", races.OTHER_CONFIGS)
def test_two_runs_in_any_order_commit_one_whole_dataset(outputs: str, config: str) -> None:
    assert races.play_all(outputs, config) == 80


@pytest.mark.parametrize("outputs", ["memory"], indirect=True)
@pytest.mark.parametrize("config", races.OTHER_CONFIGS)
def test_two_runs_commit_one_whole_dataset_where_a_swap_takes_two_steps(outputs: str, config: str) -> None:
    assert races.play_each(outputs, config) == 20


class Killed(BaseException):
    """The process ends here."""


def before_change(patch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> list[str]:
    """Calls `act` before change `number` of a storage; returns a list that gets the names of all changes before it."""
    seen: list[str] = []
    inside = [False]

    def watch(name: str, method: Callable[..., object]) -> Callable[..., object]:
        def watched(*args: object, **keywords: object) -> object:
            if inside[0]:
                return method(*args, **keywords)
            if len(seen) == number:
                inside[0] = True
                act()
            seen.append(name)
            inside[0] = True  # a change that is made of others counts once
            try:
                return method(*args, **keywords)
            finally:
                inside[0] = len(seen) > number

        return watched

    for store in (storage.LocalStorage, fsspec_files.FsspecStorage):
        for name in CHANGES:
            patch.setattr(store, name, watch(name, getattr(store, name)))
    return seen


@inside
def test_run_inside_the_commit_of_another_leaves_one_whole_dataset(
    outputs: str, refs: list[ImageRef], config: str, has_earlier: bool, locked: bool
) -> None:
    busy: dict[str, int] = {"A": 0, "B": 0}
    for number in itertools.count():
        output = f"{outputs}/{number}"
        if has_earlier:
            races.commit_earlier(output, refs)
        runs = races.make_runs(output, config, refs)
        a, b = runs["A"], runs["B"]
        a.step(), a.step()
        ends: dict[str, str] = {}

        def run_b(b: races.Run = b, ends: dict[str, str] = ends) -> None:
            if locked:
                b.sign_lock()
            ends["B"] = b.run()

        with pytest.MonkeyPatch.context() as patch:
            seen = before_change(patch, number, run_b)
            ends["A"] = a.step()
        committer, fingerprint = races.committed_by(output)
        assert fingerprint == runs[committer].fingerprint
        assert ends[committer] == "committed"
        for name, end in ends.items():
            busy[name] += end == "busy"
            assert end != "kept" or fingerprint == runs[name].fingerprint
        if "B" not in ends:
            assert len(seen) == number
            break
        if sorted(ends.values()) == ["committed", "committed"]:  # one after the other: the commit lock was gone
            assert committer == "B" and number == len(seen) - 1
        b.drop_lock()
        races.clear_memory(output)
    assert number > 10
    assert busy["B"] > 5
    assert busy["A"] >= (config != "same-config")


@inside
def test_run_after_a_commit_that_was_killed_anywhere_commits(
    outputs: str, refs: list[ImageRef], config: str, has_earlier: bool, locked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = races.pid_of_nobody()
    sign = run_records.RunRecord.of_this_process

    def sign_as(run: str, **fields: Any) -> run_records.RunRecord:
        record = sign(run, **fields)
        return dataclasses.replace(record, process=nobody) if run == "A" else record

    def kill() -> None:
        raise Killed

    monkeypatch.setattr(run_records.RunRecord, "of_this_process", sign_as)
    for number in itertools.count():
        output = f"{outputs}/{number}"
        if has_earlier:
            races.commit_earlier(output, refs)
        runs = races.make_runs(output, config, refs)
        a, b = runs["A"], runs["B"]
        a.step(), a.step()
        is_killed = False
        with pytest.MonkeyPatch.context() as patch:
            before_change(patch, number, kill)
            try:
                assert a.step() == "committed"
            except Killed:
                is_killed = True
        races.committed_by(output)
        if locked:
            b.sign_lock()
        has_committed = races.committed_by(output)[0] == "A"
        end = b.run()
        assert end == ("kept" if has_committed and config == "same-config" else "committed")
        assert races.committed_by(output)[1] == b.fingerprint
        if locked:
            store, control = storage.storage_of(output), b.settings.paths.metadata
            assert [entry.name for entry in store.list_directory(control)] == ["lock"]
        races.clear_memory(output)
        if not is_killed:
            break
    assert number > 10


def test_commit_is_whole_whatever_answer_is_lost(
    tmp_path: pathlib.Path, refs: list[ImageRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_FIRST_WAIT_SEC", 0.001)
    for number in itertools.count():
        output = f"lossymemory://{tmp_path.name}/{number}"
        races.commit_earlier(output, refs)
        run = races.make_runs(output, "same-config", refs)["A"]
        run.step(), run.step(), run.sign_lock()
        lost_answers.LOSSES.lose(number)
        assert run.step() == "committed", number
        was_lost = lost_answers.LOSSES.was_lost
        lost_answers.LOSSES.lose(-1)
        assert races.committed_by(output) == ("A", run.fingerprint), number
        store = storage.storage_of(output)
        assert list(lost_answers.files_in(store, run.settings.paths.metadata)) == ["lock"]
        store.remove_tree(output)
        if not was_lost:
            break
    assert number > 50


def test_killed_commit_is_known_if_answers_are_lost(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_FIRST_WAIT_SEC", 0.001)
    paths = output_folder.OutputPaths(f"lossymemory://{tmp_path.name}")
    killed = dataclasses.replace(
        run_records.RunRecord.of_this_process("A", fingerprint="f1"), process=races.pid_of_nobody()
    )
    for number in itertools.count():
        storage.storage_of(paths.output).write_whole(paths.commit_lock, killed.encode())
        lost_answers.LOSSES.lose(number)
        with commit_rights.CommitLock(paths, "B", "f1").held() as commit_lock:
            assert commit_lock.continues, number
            assert lost_answers.files_in(storage.storage_of(paths.output), paths.metadata)
        if not lost_answers.LOSSES.was_lost:
            break
    assert number > 10


@pytest.mark.parametrize("outputs", ["local", "memory"], indirect=True)
def test_run_that_finds_its_plan_outdated_says_what_to_do(outputs: str, refs: list[ImageRef]) -> None:
    runs = races.make_runs(f"{outputs}/0", "other-shard-names", refs)
    runs["A"].step(), runs["A"].step()
    assert runs["B"].run() == "committed"
    committer = races.commit_dataset.Committer(runs["A"].settings, "A", {})
    with error_texts.raises("output-changed"):
        committer.commit(runs["A"].plan, runs["A"].written, [])  # type: ignore[arg-type]
    assert runs["A"].has_staged
