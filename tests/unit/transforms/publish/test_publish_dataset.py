from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability import fn_api_runner
from apache_beam.testing import test_pipeline

from imagebeam import storage
from imagebeam.transforms import elements
from imagebeam.transforms.commit import commit_dataset, commit_step
from imagebeam.transforms.elements import ImageRef
from imagebeam.transforms.output import run_report
from imagebeam.transforms.publish import commit_rights, publish_dataset, run_records
from tests import case_tables, delayed_storage, error_texts, patience, races
from tests.unit.transforms import small_dataset


@pytest.fixture
def refs(tmp_path: pathlib.Path) -> list[ImageRef]:
    return small_dataset.make_refs(tmp_path / "in", per_label=8)


def staged_run(output: str, refs: list[ImageRef], num_shards: int = 2) -> races.Run:
    """A run before its commit."""
    run = races.make_runs(output, "same-config", refs)["A"]
    run.refs, run.num_shards = refs, num_shards
    run.step(), run.step()
    return run


# ---- many requests at once


@pytest.fixture(params=["move", "copy"])
def delayed(request: pytest.FixtureRequest) -> Iterator[delayed_storage.DelayedStorage]:
    """A storage on a network, where a move is one request or two."""
    store = delayed_storage.DelayedStorage(moves_at_once=request.param == "move")
    with delayed_storage.mounted(store):
        yield store


OUTPUT = f"{delayed_storage.SCHEME}://host/out"


@pytest.mark.parametrize("earlier", [None, 2, 12], ids=["new-output", "over-other-names", "over-same-names"])
def test_commit_makes_a_fixed_number_of_requests_for_each_shard(
    delayed: delayed_storage.DelayedStorage, refs: list[ImageRef], earlier: int | None
) -> None:
    counts = {}
    for num_shards in (2, 12):
        output = f"{OUTPUT}/{num_shards}"
        if earlier is not None:
            names = num_shards if earlier == 12 else num_shards + 1
            first = races.make_runs(output, "same-config", refs)["A"]
            first.settings = dataclasses.replace(first.settings, run_id="")
            first.fingerprint, first.num_shards, first.refs = "f0", names, refs
            assert first.run() == "committed"
        run = staged_run(output, refs, num_shards)
        delayed.requests.clear()
        assert run.step() == "committed"
        counts[num_shards] = dict(delayed.requests)
        assert races.committed_by(output) == ("A", "f1")
    more = {kind: counts[12][kind] - counts[2][kind] for kind in counts[12]}
    per_shard = {kind: count / 10 for kind, count in more.items() if count}
    is_move = "move" in counts[2]
    deletes = 1 + (3 if earlier == 2 else 0) + (0 if is_move else 3)  # its description; what is left; after copies
    assert per_shard == {"move" if is_move else "copy": 3, "delete": deletes}
    assert counts[2]["list"] <= 10
    assert sum(counts[2].values()) - 2 * sum(per_shard.values()) <= 70


def test_moves_and_deletions_of_a_commit_overlap(refs: list[ImageRef], monkeypatch: pytest.MonkeyPatch) -> None:
    store = delayed_storage.DelayedStorage()
    with delayed_storage.mounted(store) as output:
        run = staged_run(output, refs, 4)
        meetings = {kind: threading.Barrier(4) for kind in ("_move", "_remove")}
        for kind, meeting in meetings.items():
            method = getattr(store, kind)

            def meet(*args: Any, method: Any = method, meeting: threading.Barrier = meeting) -> None:
                if ".tfrecord" in args[0]:  # a shard, or its description
                    meeting.wait(patience.HANG_SEC)
                method(*args)

            monkeypatch.setattr(store, kind, meet)
        assert run.step() == "committed"
        assert races.committed_by(output) == ("A", "f1")
        assert max(store.most_at_once.values()) <= publish_dataset.REQUESTS_AT_ONCE


def test_files_beside_shards_of_new_names_move_before_the_commit(
    refs: list[ImageRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, moved = delayed_storage.DelayedStorage(), []
    with delayed_storage.mounted(store) as output:
        races.commit_earlier(output, refs)  # two shards
        run, move = staged_run(output, refs, 3), store._move

        def note(source: str, target: str, must_be_new: bool) -> None:
            moved.append((target.removeprefix(f"{output}/"), races.committed_by(output)[1]))
            move(source, target, must_be_new)

        monkeypatch.setattr(publish_dataset, "REQUESTS_AT_ONCE", 1)
        monkeypatch.setattr(store, "_move", note)
        assert run.step() == "committed"
    found = dict(moved)
    assert {name: by for name, by in found.items() if by} == {
        **{f"index/train-0000{index}-of-00003.{of}": "f0" for index in range(3) for of in ("index", "sizes")},
        ".imagebeam/replaced-f1.json": "f0",
    }
    assert {name for name in found if name.endswith(".tfrecord")} == {
        f"train-0000{index}-of-00003.tfrecord" for index in range(3)
    }


def test_commit_that_loses_its_lock_while_it_moves_stops(refs: list[ImageRef], monkeypatch: pytest.MonkeyPatch) -> None:
    store, moved = delayed_storage.DelayedStorage(), []
    with delayed_storage.mounted(store) as output:
        run, move, now = staged_run(output, refs, 12), store._move, time.time()
        other, one_by_one = run_records.RunRecord.of_this_process("B", fingerprint="f2"), threading.Lock()

        def lose(source: str, target: str, must_be_new: bool) -> None:
            with one_by_one:
                moved.append(target)
                if len(moved) == 5:  # stopped for a while, as far as it can tell; the other run took over meanwhile
                    store.add(run.settings.paths.commit_lock, other.encode())
                    monkeypatch.setattr(time, "time", lambda: now + run_records.RENEW_SEC + 1)
            move(source, target, must_be_new)

        monkeypatch.setattr(store, "_move", lose)
        monkeypatch.setattr(publish_dataset, "REQUESTS_AT_ONCE", 3)
        assert run.step() == "busy"
        assert 5 <= len(moved) <= 7  # those under way
        assert run_records.read_record(run.settings.paths.commit_lock) == other
        assert races.committed_by(output) == ("", "")


class Killed(BaseException):
    """The process ends here."""


def die_after(patch: pytest.MonkeyPatch, store: delayed_storage.DelayedStorage, number: int) -> None:
    """Lets so many moves happen. Later moves, and all deletions, raise: a process that has ended changes nothing."""
    left, move = itertools.count(number, -1), store._move

    def die(source: str, target: str = "", must_be_new: bool = False) -> None:
        if not target or next(left) <= 0:
            raise Killed
        move(source, target, must_be_new)

    patch.setattr(store, "_move", die)
    patch.setattr(store, "_remove", die)
    patch.setattr(commit_rights.CommitLock, "_write", lambda *_: None)


@pytest.mark.parametrize("follower", ["same-config", "other-shard-names"])
@pytest.mark.parametrize("has_earlier", [False, True], ids=["new-output", "over-another"])
def test_run_after_a_commit_that_was_killed_among_many_requests_commits(
    refs: list[ImageRef], monkeypatch: pytest.MonkeyPatch, has_earlier: bool, follower: str
) -> None:
    sign, nobody = run_records.RunRecord.of_this_process, races.pid_of_nobody()

    def sign_as(run: str, **fields: Any) -> run_records.RunRecord:
        record = sign(run, **fields)
        return dataclasses.replace(record, process=nobody) if run == "A" else record

    monkeypatch.setattr(run_records.RunRecord, "of_this_process", sign_as)
    for number in range(0, 12, 2):
        store = delayed_storage.DelayedStorage()
        with delayed_storage.mounted(store) as output:
            if has_earlier:
                races.commit_earlier(output, refs)
            runs = races.make_runs(output, follower, refs)
            a, b = runs["A"], runs["B"]
            a.num_shards = 4
            if follower == "same-config":
                b.num_shards = 4
            a.step(), a.step()
            with pytest.MonkeyPatch.context() as patch:
                die_after(patch, store, number)
                with pytest.raises(Killed):
                    a.step()
            assert races.committed_by(output)[1] in ("", "f0")
            assert b.run() == "committed"
            assert races.committed_by(output) == ("B", b.fingerprint)


def test_staged_file_that_is_not_there_stops_the_commit_before_it_changes_the_output(
    tmp_path: pathlib.Path, refs: list[ImageRef]
) -> None:
    for code, name, data in [
        ("staged-file-gone", "train-00001-of-00002.tfrecord", None),
        ("staged-file-gone", "train-00001-of-00002.index", None),
        ("staged-file-gone", "train-00001-of-00002.sizes", None),
        ("staged-file-changed", "train-00001-of-00002.tfrecord", b"123"),
        ("staged-file-changed", "train-00001-of-00002.index", b"123"),
    ]:
        for has_earlier in [False, True]:
            folder = case_tables.new_folder(tmp_path)
            output = folder / "out"
            if has_earlier:  # with shards of the same names
                races.commit_earlier(str(output), refs)
            before = small_dataset.read_files(output) if has_earlier else {}
            run = staged_run(str(output), refs)
            staged = pathlib.Path(run.settings.paths.staging("f1"), name)
            staged.unlink()
            if data is not None:
                staged.write_bytes(data)
            with error_texts.raises(code):
                run.step()
            after = small_dataset.read_files(output)
            assert {path: content for path, content in after.items() if not path.startswith(".imagebeam/")} == before
            assert not os.path.exists(run.settings.paths.commit_lock)


def test_staging_folder_cleared_by_another_run_is_reported(tmp_path: pathlib.Path, refs: list[ImageRef]) -> None:
    run = staged_run(str(tmp_path / "out"), refs)
    store = storage.storage_of(run.settings.output)
    store.remove_tree(run.settings.paths.staging("f1"))
    with error_texts.raises("staged-file-gone"):
        commit_dataset.Committer(run.settings, "A", {}).commit(run.plan, run.written, [])  # type: ignore[arg-type]
    other = races.make_runs(run.settings.output, "other-shard-names", refs)["B"]
    other.sign_lock()
    with error_texts.raises("output-taken-over"):
        commit_dataset.Committer(run.settings, "A", {}).commit(run.plan, run.written, [])  # type: ignore[arg-type]


def test_catalog_that_is_replaced_while_it_is_retired_is_put_back(
    tmp_path: pathlib.Path, refs: list[ImageRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    races.commit_earlier(str(output), refs)
    run = staged_run(str(output), refs)
    catalog, rename = output / "catalog.json", storage.LocalStorage.rename

    def rename_another(self: storage.LocalStorage, source: str, target: str, version: int = 0) -> None:
        if source == str(catalog):
            catalog.write_text("of another run")  # after the look at its version
            version = 0
        rename(self, source, target, version)

    monkeypatch.setattr(storage.LocalStorage, "rename", rename_another)
    assert run.step() == "busy"
    assert catalog.read_text() == "of another run"
    assert not os.path.exists(run.settings.paths.replaced("f1"))


def test_catalog_that_another_run_publishes_first_stays(
    tmp_path: pathlib.Path, refs: list[ImageRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, catalog, publish = (
        staged_run(str(tmp_path / "out"), refs),
        tmp_path / "out/catalog.json",
        storage.LocalStorage.publish,
    )

    def publish_later(self: storage.LocalStorage, source: str, target: str) -> None:
        if target == str(catalog):
            catalog.write_text("of another run")
        publish(self, source, target)

    monkeypatch.setattr(storage.LocalStorage, "publish", publish_later)
    with error_texts.raises("output-committed-by-two-runs"):
        commit_dataset.Committer(run.settings, "A", {}).commit(run.plan, run.written, [])  # type: ignore[arg-type]
    assert catalog.read_text() == "of another run"


def test_plan_without_its_catalog_is_refused_unless_retired(tmp_path: pathlib.Path, refs: list[ImageRef]) -> None:
    output = tmp_path / "out"
    races.commit_earlier(str(output), refs)
    run = staged_run(str(output), refs)
    (output / "catalog.json").rename(tmp_path / "aside")
    committer = commit_dataset.Committer(run.settings, "A", {})
    with error_texts.raises("output-changed"):
        committer.commit(run.plan, run.written, [])  # type: ignore[arg-type]
    (tmp_path / "aside").rename(run.settings.paths.replaced("f1"))
    assert run.step() == "committed"
    assert races.committed_by(str(output)) == ("A", "f1")


# ---- as a step of a pipeline


def commit_in_pipeline(run: races.Run) -> None:
    committer = commit_dataset.Committer(run.settings, "A", {})
    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        plan = pipeline | "Plan" >> beam.Create([run.plan])
        rejects = pipeline | "Rejects" >> beam.Create([])
        written = pipeline | "Written" >> beam.Create(run.written).with_output_types(elements.WrittenShard)
        _ = written | commit_step.CommitDataset(committer, plan, rejects)


def reported_run(output: pathlib.Path, refs: list[ImageRef]) -> races.Run:
    """A run before its commit, whose job outlives its launcher."""
    run = staged_run(str(output), refs)
    run.settings = dataclasses.replace(run.settings, report=run.settings.paths.report("A"))
    job = {"runner": "DataflowRunner", "project": "p", "region": "r", "name": "cats", "id": "5"}
    record = run_records.RunRecord.of_this_process("A", job=job, is_left_to_job=True)
    pathlib.Path(run.settings.paths.lock).write_bytes(record.encode())
    return run


def test_job_that_outlived_its_launcher_commits_and_leaves_nothing(
    tmp_path: pathlib.Path, refs: list[ImageRef]
) -> None:
    run = reported_run(tmp_path / "out", refs)
    commit_in_pipeline(run)
    assert races.committed_by(run.settings.output) == ("A", "f1")
    assert not (tmp_path / "out/.imagebeam").exists()


def test_job_that_is_refused_leaves_its_report_with_exit_code_5(tmp_path: pathlib.Path, refs: list[ImageRef]) -> None:
    run = reported_run(tmp_path / "out", refs)
    os.unlink(run.settings.paths.lock)
    assert races.make_runs(run.settings.output, "other-shard-names", refs)["B"].run() == "committed"
    with pytest.raises(Exception, match="another run committed to it"):
        commit_in_pipeline(run)
    report = run_report.read_report(run.settings.report)
    assert report is not None and report.state == "refused"
    error_texts.check(report.error, "output-changed")
    assert races.committed_by(run.settings.output)[0] == "B"
