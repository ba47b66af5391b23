"""Images that kill the process which decodes them, or take too long: a plugin of Pillow that does so stands in."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import os
import pathlib
import sys
from typing import Any

import pytest

from imagebeam import storage
from imagebeam.pipelines import convert
from imagebeam.transforms import dataset_settings, elements, write_shards
from imagebeam.transforms.images import checked_image, pillow_decoder, prepare
from imagebeam.transforms.shard import shard_writer, writer_processes
from tests import case_tables, datasets, delayed_storage, image_sets
from tests.unit.transforms import small_dataset

HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
PLUGIN = """
import os, signal, time
from PIL import Image

_now = time.monotonic

def _open(file, filename=None):
    data = file.read()
    if b"kill" in data:
        os.kill(os.getpid(), signal.SIGKILL)
    if b"slow" in data:
        time.monotonic = lambda: _now() + 600  # as after ten minutes
        time.sleep(600)
    raise SyntaxError("not for tests")

def register_heif_opener():
    Image.register_open("HEIF", _open, lambda head: head[4:8] == b"ftyp")
"""


def write_plugin(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the plugin one of this process and of those that it starts."""
    (folder / "plugin").mkdir()
    (folder / "plugin" / "pillow_heif.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(folder / "plugin")  # writer processes get this path
    # what this process learns from the plugin is forgotten at the end of the test
    pillow = pillow_decoder.pillow()
    monkeypatch.setattr(pillow, "OPEN", dict(pillow.OPEN))
    monkeypatch.setattr(pillow, "ID", list(pillow.ID))
    known = functools.cache(pillow_decoder.decoded_formats.__wrapped__)
    monkeypatch.setattr(pillow_decoder, "decoded_formats", known)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    del sys.modules["pillow_heif"]


SHARDS = [f"train-{index:05d}-of-00003.tfrecord" for index in range(3)]
MARKS = [name + shard_writer.MARK_SUFFIX for name in SHARDS]


@dataclasses.dataclass
class Job:
    """Three shards to write."""

    settings: dataset_settings.DatasetSettings
    refs: list[elements.ImageRef]
    staging: pathlib.Path
    apart: list[int] = dataclasses.field(default_factory=list)  # indexes of shards written in another process

    @property
    def tasks(self) -> list[shard_writer.ShardTask]:
        return small_dataset.make_tasks(self._plan, {"train": self.refs})

    @property
    def writer(self) -> shard_writer.ShardWriter:
        return self.settings.writer_of(self._plan)

    @property
    def _plan(self) -> elements.DatasetPlan:
        return small_dataset.make_plan({"train": self.refs}, num_shards=3)

    def start_worker(self) -> write_shards.WorkerWriter:
        return write_shards.WorkerWriter(self.writer)

    def marks(self) -> list[str]:
        return sorted(path.name for path in self.staging.glob(f"*{shard_writer.MARK_SUFFIX}"))

    def leave_mark(self, name: str) -> None:
        self.staging.mkdir(parents=True, exist_ok=True)
        (self.staging / name).write_bytes(b"{}")

    def replace_image(self, number: int, data: bytes) -> None:
        uri = self.refs[number].uri
        pathlib.Path(uri).write_bytes(data)
        status = os.stat(uri)
        self.refs[number] = self.refs[number]._replace(size=status.st_size, version=status.st_mtime_ns)


@pytest.fixture
def job(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    write_plugin(tmp_path, monkeypatch)
    settings = small_dataset.make_settings(tmp_path / "out")
    refs = small_dataset.make_refs(tmp_path / "images", per_label=6)
    job = Job(settings, refs, pathlib.Path(settings.paths.staging("f1")))
    submit = writer_processes.WriterProcesses.submit

    def noted(self: writer_processes.WriterProcesses, function: Any, task: shard_writer.ShardTask, mend: Any) -> Any:
        job.apart.append(task.shard_index)
        return submit(self, function, task, mend)

    monkeypatch.setattr(writer_processes.WriterProcesses, "submit", noted)
    return job


def test_first_attempt_is_marked_while_it_writes_and_no_longer(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    write, seen = shard_writer.ShardWriter.write_unfinished, []

    def look(self: shard_writer.ShardWriter, task: shard_writer.ShardTask) -> elements.WrittenShard:
        seen.append(job.marks())
        return write(self, task)

    monkeypatch.setattr(shard_writer.ShardWriter, "write_unfinished", look)
    worker = job.start_worker()
    written = [worker.write(task) for task in job.tasks]
    assert [each.shard.name for each in written] == SHARDS
    assert seen == [[mark] for mark in MARKS]
    assert (job.marks(), job.apart) == ([], [])


def test_finished_shard_is_not_marked_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    first = job.start_worker().write(job.tasks[0])
    job.leave_mark(MARKS[0])  # a worker died after the shard was finished
    assert job.start_worker().write(job.tasks[0]) == first._replace(is_kept=True)
    assert job.apart == []


def test_shard_with_a_mark_is_written_in_another_process_and_the_next_one_in_this(job: Job) -> None:
    expected = [job.start_worker().write(task) for task in job.tasks]
    for path in job.staging.iterdir():
        path.unlink()
    job.leave_mark(MARKS[0])  # a launcher was stopped in the middle of this shard
    worker = job.start_worker()
    written = [worker.write(task) for task in job.tasks]
    worker.close()
    assert written == expected
    assert (job.apart, job.marks()) == ([0], [])


def test_mark_that_another_attempt_removes_meanwhile_counts_as_one(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_it_gone(self: storage.LocalStorage, uri: str, data: bytes) -> bool:
        raise FileNotFoundError(uri)

    monkeypatch.setattr(storage.LocalStorage, "create_new", find_it_gone)
    worker = job.start_worker()
    worker.write(job.tasks[0])
    worker.close()
    assert job.apart == [0]


@pytest.mark.parametrize("error", [OSError("no space"), ValueError("a bug"), KeyboardInterrupt()], ids=repr)
def test_error_leaves_no_mark(job: Job, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(shard_writer.ShardWriter, "write_unfinished", fail)
        with pytest.raises(type(error)):
            job.start_worker().write(job.tasks[0])
    assert job.marks() == []
    job.start_worker().write(job.tasks[0])
    assert job.apart == []


def test_error_in_another_process_ends_it_and_leaves_the_mark(job: Job) -> None:
    job.leave_mark(MARKS[0])
    (job.staging / SHARDS[0]).mkdir()  # so that no file can be moved there
    worker = job.start_worker()
    with pytest.raises(writer_processes.WriterError, match="IsADirectoryError"):
        worker.write(job.tasks[0])
    assert worker._process is None
    assert job.marks() == [MARKS[0]]


def test_image_that_killed_a_worker_is_rejected_and_later_shards_are_written_apart(job: Job) -> None:
    job.replace_image(1, HEIC + b"kill")  # in the first shard
    job.replace_image(9, HEIC + b"kill")  # in the third one, which has no mark
    job.leave_mark(MARKS[0])
    worker, other = job.start_worker(), None
    try:
        first = worker.write(job.tasks[0])
        other = job.start_worker()  # elsewhere, after the image was found
        rest = [other.write(job.tasks[1]), worker.write(job.tasks[2])]
    finally:
        for each in filter(None, (worker, other)):
            each.close()
    assert [dict(each.rejected) for each in (first, *rest)] == [{"crashed": 1}, {}, {"crashed": 1}]
    assert job.refs[1].key in (job.staging / f"{SHARDS[0]}.rejects.jsonl").read_text()
    assert (job.apart, job.marks()) == ([0, 1, 2], [])


def test_shards_with_a_limit_of_seconds_are_written_apart(job: Job) -> None:
    policy = dataclasses.replace(prepare.AS_IT_IS, limits=checked_image.Limits(max_seconds=600))
    job.settings = dataclasses.replace(job.settings, policy=policy)
    worker = job.start_worker()
    written = [worker.write(task) for task in job.tasks[:2]]
    worker.close()
    assert [each.shard.records for each in written] == [4, 4]
    assert (job.apart, job.marks()) == ([0, 1], [])


def test_requests_of_three_shards(job: Job) -> None:
    for marks, more in [
        (False, {}),  # writer process of the launcher
        (True, {"put": 3, "delete": 3, "stat": 1}),  # worker
    ]:
        store = delayed_storage.DelayedStorage()
        with delayed_storage.mounted(store) as output:
            job.settings = dataclasses.replace(job.settings, output=output)
            worker = job.start_worker() if marks else job.writer
            for task in job.tasks:
                worker.write(task)
        ours = collections.Counter(
            {"put": 12, "read": 3, "checksum": 3}
        )  # a shard, two files beside it, its description; a look
        assert store.requests == ours + collections.Counter(more)


# --- with the writer processes of the launcher ------------------------------------------------------------------------


@pytest.fixture
def images(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    write_plugin(tmp_path, monkeypatch)
    image_sets.write_folder(tmp_path / "images", per_label=6)
    return tmp_path / "images"


def rejects(output: pathlib.Path) -> dict[str, tuple[str, str]]:
    lines = map(json.loads, (output / "rejects.jsonl").read_text().splitlines())
    return {line["key"]: (line["reason"], line["detail"]) for line in lines}


def test_images_that_kill_are_named_and_the_rest_is_written(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for workers, more in [
        (1, {}),  # one-worker
        (2, {"duplicates": {"exact": "drop"}}),  # two-workers-that-read-twice
    ]:
        folder = case_tables.new_folder(tmp_path)
        for name in ("cat/a.heic", "dog/b.heic"):
            (images / name).write_bytes(HEIC + b"kill")
        sections = {"source": {"uri": str(images)}, "output": {"uri": str(folder / "out"), "num_shards": 2}}
        result = convert.convert({**sections, **more, "rejects": {"max_fraction": 0.5}}, workers=workers)
        assert result.catalog is not None
        assert (result.catalog.counts.written, dict(result.catalog.counts.rejected)) == (12, {"crashed": 2})
        found = rejects(folder / "out")
        assert {key: reason for key, (reason, _) in found.items()} == {"cat/a.heic": "crashed", "dog/b.heic": "crashed"}
        assert "two processes died on it" in found["cat/a.heic"][1]
        assert len(list(datasets.read(folder / "out", "train"))) == 12


def test_image_that_takes_too_long_is_rejected(images: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (images / "cat/a.heic").write_bytes(HEIC + b"slow")
    sections = {"source": {"uri": str(images)}, "output": {"uri": str(tmp_path / "out"), "num_shards": 2}}
    limits = {"rejects": {"max_fraction": 0.5}, "image": {"limits": {"max_seconds": 16}}}
    result = convert.convert({**sections, **limits}, workers=1)
    assert result.catalog is not None
    assert (result.catalog.counts.written, dict(result.catalog.counts.rejected)) == (12, {"too_slow": 1})
    assert "longer than image.limits.max_seconds of 16 s" in rejects(tmp_path / "out")["cat/a.heic"][1]
