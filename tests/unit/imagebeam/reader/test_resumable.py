"""The state of every iterator under the names of trainers, in Grain's datasets and in Orbax's checkpoints."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import pytest

import imagebeam
from tests import command_line, datasets, docs_pages, error_texts
from tests.unit.imagebeam.reader.feeding import SIZE, keys_of, one_device, start

grain = pytest.importorskip("grain")

OPTIONS: dict[str, Any] = {
    "image_size": 8,
    "features": ("image/key",),
    "num_epochs": 2,
    "shuffle": "global",
    "drop_remainder": False,
}
Make = Callable[..., Iterator[Any]]  # returns an iterator of one process


def _as_numpy(dataset: imagebeam.ImageDataset, **options: Any) -> Iterator[Any]:
    return dataset.as_numpy("train", **options)


def _as_jax(dataset: imagebeam.ImageDataset, **options: Any) -> Iterator[Any]:
    return dataset.as_jax("train", one_device(), **{**options, "pad": True})


def _as_grain(dataset: imagebeam.ImageDataset, **options: Any) -> Iterator[Any]:
    return iter(dataset.as_grain_batches("train", **options))


def _mapped(dataset: imagebeam.ImageDataset, **options: Any) -> Iterator[Any]:
    return iter(
        dataset.as_grain_batches("train", **options).map(lambda batch: {**batch, "mean": batch["image"].mean()})
    )


def _mixture(dataset: imagebeam.ImageDataset, **options: Any) -> Iterator[Any]:
    mixture = imagebeam.Mixture([(dataset, "train"), (dataset, "train[:20]")], [2, 1])
    return iter(mixture.as_grain_batches(**options))


FEEDS = [_as_numpy, _as_jax, _as_grain, _mapped, _mixture]
OVER_GRAIN = [_as_grain, _mapped]


def keys(batches: Iterator[Any]) -> list[list[str]]:
    return [[key.decode() for key in batch["image/key"] if key] for batch in batches]


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


@pytest.mark.parametrize(
    ("make", "save", "load"),
    [
        *((make, "get_state", "set_state") for make in FEEDS),
        *((make, "state_dict", "load_state_dict") for make in FEEDS if make is not _mapped),  # Grain's own iterator
    ],
)
def test_iterator_goes_on_from_any_step(dataset: imagebeam.ImageDataset, make: Make, save: str, load: str) -> None:
    options = {**OPTIONS, "batch_size": 9}
    batches = make(dataset, **options)
    states, expected = [through_json(getattr(batches, save)())], []
    for batch in batches:
        expected += keys(iter([batch]))
        states.append(through_json(getattr(batches, save)()))
    assert len(expected) == len(states) - 1 >= 2 * SIZE // 9
    for step in (0, 1, len(states) // 2, len(states) - 2):
        again = make(dataset, **options)
        next(again)
        getattr(again, load)(states[step])
        assert keys(again) == expected[step:]


@pytest.mark.parametrize("make", [_as_numpy, _as_jax, _as_grain])
def test_threads_share_the_batches_of_an_iterator(dataset: imagebeam.ImageDataset, make: Make) -> None:
    options = {**OPTIONS, "batch_size": 2, "num_epochs": 20}
    expected = keys(make(dataset, **options))
    shared = make(dataset, **options)
    with futures.ThreadPoolExecutor(6) as threads:
        found = [*itertools.chain(*threads.map(lambda _: keys(shared), range(6)))]
    assert sorted(found) == sorted(expected)
    with pytest.raises(StopIteration):
        next(shared)


@pytest.mark.parametrize("make", [_as_numpy, *OVER_GRAIN])
@pytest.mark.parametrize("counts", [(1, 3, 2), (4, 1, 2)])
def test_rest_is_read_once_by_another_number_of_processes(
    directory: pathlib.Path, dataset: imagebeam.ImageDataset, make: Make, counts: tuple[int, ...]
) -> None:
    state, found = None, []
    for place, count in enumerate(counts):
        job = [
            make(dataset, **{**OPTIONS, "num_epochs": 1}, batch_size=12 // count, process_index=n, process_count=count)
            for n in range(count)
        ]
        for each in job:
            if state is not None:
                each.set_state(state)  # type: ignore[attr-defined]
        for each in job:
            found += keys(itertools.islice(each, None if place + 1 == len(counts) else 1))
        state = through_json(job[0].get_state())  # type: ignore[attr-defined]
    assert sorted(itertools.chain(*found)) == sorted(datasets.keys(directory))


def test_dataset_of_grain_begins_again_with_each_iteration_and_reads_ahead(dataset: imagebeam.ImageDataset) -> None:
    batches = dataset.as_grain_batches("train", batch_size=8, **OPTIONS)
    expected = keys(iter(batches))
    threaded = grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=2)
    ahead = iter(threaded)
    assert keys(itertools.islice(ahead, 3)) == expected[:3]
    state = through_json(ahead.get_state())
    again = iter(threaded)
    again.set_state(state)
    assert keys(again) == expected[3:]
    ahead.close()
    alone = iter(batches)
    next(alone)
    assert alone.metrics()["examples"] >= 8
    alone.close()
    with pytest.raises(ValueError, match="closed"):
        next(alone)


def test_worker_processes_of_grain_are_refused(dataset: imagebeam.ImageDataset, parsed_flags: None) -> None:
    batches = dataset.as_grain_batches("train", batch_size=8, **OPTIONS)
    with error_texts.raises("reader-in-worker"):
        batches.set_slice(slice(0, 1))
    with pytest.raises(Exception, match="leave mp_prefetch out"):  # Grain's own error, of some versions
        next(iter(batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))))


def test_grain_mixes_sources_of_several_datasets(dataset: imagebeam.ImageDataset) -> None:
    sources = [grain.MapDataset.source(dataset.as_grain(split)) for split in ("train[:26]", "train[26:]")]
    mixed = grain.MapDataset.mix(sources, weights=[1, 1])
    assert len(set(keys_of(mixed[index] for index in range(SIZE)))) == SIZE


@pytest.mark.parametrize(
    ("call", "package", "module"),
    [("as_torch", "torch", "torch_feeds"), ("as_grain_batches", "grain", "grain_batches")],
)
def test_feed_without_its_package_names_the_extra(
    dataset: imagebeam.ImageDataset, monkeypatch: pytest.MonkeyPatch, call: str, package: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"imagebeam.reader.{module}", raising=False)
    monkeypatch.delattr(f"imagebeam.reader.{module}", raising=False)
    with error_texts.raises("package-missing"):
        getattr(dataset, call)("train", 8)


# --- Orbax -----------------------------------------------------------------------------------------------------------


def test_orbax_keeps_the_state_as_the_documentation_says(
    dataset: imagebeam.ImageDataset, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("orbax.checkpoint")
    [snippet] = [each for each in docs_pages.blocks("reading.md", "python") if "ocp.CheckpointManager" in each]
    batches, expected = _as_numpy(dataset, **OPTIONS, batch_size=8), _as_numpy(dataset, **OPTIONS, batch_size=8)
    assert keys(itertools.islice(batches, 2)) == keys(itertools.islice(expected, 2))
    save, load = snippet.rsplit("\n\n", 1)
    names = {"batches": batches, "folder": tmp_path / "checkpoints", "step": 2}
    exec(save, names)
    names["manager"].wait_until_finished()  # type: ignore[attr-defined]
    names["batches"] = _as_numpy(dataset, **OPTIONS, batch_size=8)
    exec(load, names)
    names["manager"].close()  # type: ignore[attr-defined]
    assert keys(names["batches"]) == keys(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", OVER_GRAIN)
def test_handler_of_grain_takes_the_iterator(
    dataset: imagebeam.ImageDataset, tmp_path: pathlib.Path, make: Make
) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")
    batches = make(dataset, **OPTIONS, batch_size=8)
    next(batches)
    with ocp.CheckpointManager(tmp_path / "checkpoints") as manager:
        manager.save(1, args=ocp.args.Composite(data=grain.checkpoint.CheckpointSave(batches)))
        manager.wait_until_finished()
        again = make(dataset, **OPTIONS, batch_size=8)
        manager.restore(1, args=ocp.args.Composite(data=grain.checkpoint.CheckpointRestore(again)))
    assert keys(again) == keys(batches)


def _train(directory: str, checkpoints: str, feed: str, process_count: int, num_steps: int, dies: bool) -> None:
    """Reads a job of `process_count` processes, which this one plays, and saves a checkpoint after each step."""
    import orbax.checkpoint as ocp

    dataset = imagebeam.open_dataset(directory)
    make = globals()[feed]
    job = [
        make(
            dataset,
            **{**OPTIONS, "num_epochs": 1},
            batch_size=12 // process_count,
            process_index=index,
            process_count=process_count,
        )
        for index in range(process_count)
    ]
    with ocp.CheckpointManager(checkpoints) as manager:
        step = manager.latest_step() or 0
        if step:
            state = manager.restore(step, args=ocp.args.Composite(data=ocp.args.JsonRestore())).data
            for each in job:
                each.set_state(state)
        for _ in range(num_steps):
            read = keys(next(each, {"image/key": []}) for each in job)
            step += 1
            manager.save(step, args=ocp.args.Composite(data=ocp.args.JsonSave(job[0].get_state())))
            print(json.dumps([step, read]), flush=True)
        if dies:  # while Orbax writes the last checkpoint
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_killed_job_goes_on_from_orbax_with_another_number_of_processes(
    directory: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("orbax.checkpoint")
    found: dict[int, list[str]] = {}  # by step; one whose checkpoint was cut short is read again
    for process_count, num_steps, dies in [(2, 3, True), (3, 1, True), (1, 5, False)]:
        process = start(_train, str(directory), str(tmp_path / "c"), "_mapped", process_count, num_steps, dies)
        for line in command_line.finish(process, -signal.SIGKILL if dies else 0).stdout.splitlines():
            step, read = json.loads(line)
            keys_of_step = sorted(itertools.chain(*read))
            assert found.setdefault(step, keys_of_step) == keys_of_step
    assert sorted(itertools.chain(*found.values())) == sorted(datasets.keys(directory))
    written = {path.name for path in (tmp_path / "c").glob("*/data/*")}
    assert written <= {"metadata", "commit_success.txt"}  # one state for all processes
