from __future__ import annotations

import json
import pathlib
import threading
from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam
import google_crc32c
import pytest
from apache_beam.runners.portability import fn_api_runner
from apache_beam.testing import test_pipeline
from apache_beam.testing.util import assert_that

from imagebeam import errors, storage
from imagebeam.transforms import step
from imagebeam.transforms.commit import commit_step, dataset_files
from imagebeam.transforms.commit.dataset_files import RejectFiles
from imagebeam.transforms.elements import DatasetPlan, Reason, Reject
from imagebeam.transforms.shard import shard_writer
from tests import case_tables, delayed_storage, patience
from tests.unit.transforms import small_dataset

FILES = RejectFiles([f"early-{index}" for index in range(3)], [f"shard-{index}" for index in range(5)])
CONTENT = b"".join(name.encode() * 3 + b"\n" for names in FILES for name in names)


@pytest.fixture(params=["local", "network"])
def folder(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[str]:
    """A folder with files that repeat their names three times."""
    with delayed_storage.mounted(delayed_storage.DelayedStorage()) as network:
        folder = str(tmp_path) if request.param == "local" else network
        for name in (*FILES.early, *FILES.of_shards):
            storage.storage_of(folder).write_whole(f"{folder}/{name}", name.encode() * 3 + b"\n")
        yield folder


def test_files_are_joined_in_their_order(folder: str) -> None:
    checks: list[None] = []
    found = dataset_files.join_rejects(folder, FILES, f"{folder}/all", lambda: checks.append(None))
    assert storage.storage_of(folder).read(f"{folder}/all") == CONTENT
    assert found == (len(CONTENT), google_crc32c.value(CONTENT))
    assert len(checks) == 8


def test_no_files_give_an_empty_one(folder: str) -> None:
    assert dataset_files.join_rejects(folder, RejectFiles([], []), f"{folder}/all") == (0, 0)
    assert storage.storage_of(folder).read(f"{folder}/all") == b""


def test_file_that_is_gone_is_an_error_and_nothing_is_written(folder: str) -> None:
    store = storage.storage_of(folder)
    store.remove(f"{folder}/shard-3")
    with pytest.raises(FileNotFoundError):
        dataset_files.join_rejects(folder, FILES, f"{folder}/all")
    assert not store.exists(f"{folder}/all")


def test_check_that_fails_ends_it(folder: str) -> None:
    def refuse() -> None:
        raise errors.BusyError("a-code", "another run took over")

    with pytest.raises(errors.BusyError):
        dataset_files.join_rejects(folder, FILES, f"{folder}/all", refuse)
    assert not storage.storage_of(folder).exists(f"{folder}/all")


def test_files_on_a_network_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store, meeting = delayed_storage.DelayedStorage(), threading.Barrier(len(FILES.of_shards))
    with delayed_storage.mounted(store) as folder:
        for name in FILES.of_shards:
            store.add(f"{folder}/{name}", b"1\n")
        read = store._read

        def meet(uri: str, offset: int, length: int, version: int) -> bytes:
            meeting.wait(patience.HANG_SEC)
            return read(uri, offset, length, version)

        monkeypatch.setattr(store, "_read", meet)
        found = dataset_files.join_rejects(folder, RejectFiles([], FILES.of_shards), f"{folder}/all")
        assert found.bytes == 2 * len(FILES.of_shards)


# ---- store dead letters


REJECTS = [
    Reject(f"{index}{odd}.jpg", f"/data/{index}{odd}.jpg", "label", Reason.NO_LABEL, "no folder")
    for index in range(40)
    for odd in ("", "\udcff", "\n", "\ud83d")
]


def store(output: pathlib.Path, plan: DatasetPlan, rejects: Sequence[Reject]) -> dict[str, bytes]:
    """Returns the files in the output afterwards, after a check that their names were yielded."""
    settings = small_dataset.make_settings(output)

    def check_names(names: Iterable[str]) -> None:
        staging = pathlib.Path(settings.paths.staging(plan.fingerprint))
        assert sorted(names) == sorted(path.name for path in staging.glob("*"))

    with test_pipeline.TestPipeline(runner=fn_api_runner.FnApiRunner()) as pipeline:
        plans = pipeline | "Plan" >> beam.Create([plan])
        found = pipeline | "Rejects" >> beam.Create(rejects).with_output_types(Reject)
        assert_that(found | commit_step.StoreDeadLetters(settings, plans), check_names)
    return small_dataset.read_files(output)


def test_store_dead_letters_keeps_every_reject_once_in_few_sorted_files(tmp_path: pathlib.Path) -> None:
    for action, error, order in [("write", None, 1), ("refuse", errors.TooManyRejectsError("a-code", "x"), -1)]:
        folder = case_tables.new_folder(tmp_path)
        files = store(folder, small_dataset.make_plan({}, action=action, error=error), REJECTS[::order])
        assert 1 < len(files) <= 16
        stored = []
        for data in files.values():
            rejects = [Reject(**json.loads(line)) for line in data.splitlines()]
            assert data == shard_writer.encode_rejects(sorted(rejects))
            stored += rejects
        assert sorted(stored) == sorted(REJECTS)
        assert sorted(files)[0] == ".imagebeam/staging-f1/early-00.rejects.jsonl"


def test_more_rejects_go_to_more_files_up_to_a_bound_and_keep_their_order(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_step, "_REJECTS_PER_FILE", 10)
    monkeypatch.setattr(step, "MAX_FILES", 200)
    for num_rejects, num_files in [(160, 16), (161, 17), (1600, 160), (10**9, 200)]:
        plan = small_dataset.make_plan({}, rejected={"no_label": num_rejects})
        assert commit_step.count_files(plan) == num_files
    files = store(tmp_path / "one", plan, REJECTS)
    assert files == store(tmp_path / "other", plan, REJECTS[::-1])
    numbers = [int(name.rpartition("early-")[2].partition(".")[0]) for name in sorted(files)]
    assert numbers == sorted(numbers)
    assert 16 < max(numbers) < num_files
    assert sorted(line for data in files.values() for line in data.splitlines()) == sorted(
        shard_writer.encode_rejects(REJECTS).splitlines()
    )


def test_store_dead_letters_of_run_that_leaves_nothing_stores_none(tmp_path: pathlib.Path) -> None:
    for action, error in [("keep", None), ("refuse", errors.ConfigError("a-code", "x"))]:
        folder = case_tables.new_folder(tmp_path)
        assert store(folder, small_dataset.make_plan({}, action=action, error=error), REJECTS) == {}
