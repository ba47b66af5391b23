"""Processes that call `map`: results of threads, their errors, and their end."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import pathlib
import signal
import sys
from typing import Any

import numpy as np
import pytest

import imagebeam
from tests import case_tables, command_line, error_texts, patience
from tests.unit.imagebeam.reader import test_example_map
from tests.unit.imagebeam.reader.feeding import SIZE

Example = dict[str, Any]
BASE: dict[str, Any] = {"image_size": 8, "seed": 3, "features": ("image/key",), "shuffle": None}


def change(example: Example, rng: np.random.Generator) -> Example:
    image = example["image"] + rng.integers(50, size=3, dtype=np.uint8)
    return {**example, "image": image, "half": image[::2] / np.float32(2), "name": example["image/key"][:3], "one": 1}


def die(example: Example, rng: np.random.Generator, file: str) -> Example:
    if example["image/key"] == b"cat/7.jpg" and os.path.exists(file):
        os.kill(os.getpid(), signal.SIGKILL)
    return example


def huge(example: Example, rng: np.random.Generator) -> Example:
    return {**example, "huge": np.broadcast_to(np.uint8(0), 1 << 50)}


class Unloadable:
    """Can be sent, and not be loaded."""

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        return example

    def __reduce__(self) -> Any:
        return getattr, (os, "nothing")


@case_tables.each_case("options", {"padded": {}, "pairs": {"supervised": True, "features": (), "map": None}})
def test_processes_give_the_batches_of_threads(dataset: imagebeam.ImageDataset, options: dict[str, Any]) -> None:
    options = {**BASE, "map": change, **options}
    options["map"] = options["map"] or functools.partial(test_example_map.identity)
    expected = list(dataset.as_numpy("train", 11, **options))
    found = dataset.as_numpy("train", 11, **options, map_workers=2)
    for one, other in zip(expected, found, strict=True):
        assert isinstance(one, tuple) or one.keys() == other.keys()
        for name in range(len(one)) if isinstance(one, tuple) else one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name])
    assert found.metrics()["map_seconds"] > 0


def test_error_in_a_process_names_the_record(dataset: imagebeam.ImageDataset) -> None:
    for function in (test_example_map.fails_for_a_cat, test_example_map.small_for_a_cat):
        options = {**BASE, "map": function, "map_workers": 1}
        with error_texts.raises("example-broken") as caught:
            list(dataset.as_numpy("train", 13, **options))
        assert function.__name__ in str(caught.value.__cause__.__cause__) or function.__name__ == "small_for_a_cat"
        kept = [batch["mask"].sum() for batch in dataset.as_numpy("train", 13, **options, on_error="skip")]
        assert sum(kept) == SIZE - 1


def test_process_that_dies_is_an_error_and_the_next_call_starts_another(
    dataset: imagebeam.ImageDataset, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "deadly").touch()
    function = functools.partial(die, file=str(tmp_path / "deadly"))
    batches = dataset.as_numpy("train", SIZE, **BASE, map=function, map_workers=1)
    with error_texts.raises("map-worker-died"):
        next(batches)
    (tmp_path / "deadly").unlink()
    assert next(batches)["mask"].all()


def test_function_that_cannot_be_sent_is_refused(dataset: imagebeam.ImageDataset) -> None:
    with error_texts.raises("map-not-picklable"):
        dataset.as_numpy("train", 4, **BASE, map=lambda example, rng: example, map_workers=1)
    with error_texts.raises("map-not-picklable"):
        next(dataset.as_numpy("train", 4, **BASE, map=Unloadable(), map_workers=1))
    with error_texts.raises("map-workers-no-memory"):
        dataset.as_numpy("train", 4, **BASE, map=huge, map_workers=1)
    with error_texts.raises("options-conflict"):
        dataset.as_numpy("train", 4, **BASE, map_workers=1)


def processes() -> set[int]:
    return {each.pid or 0 for each in multiprocessing.active_children() if each.name == "imagebeam-map"}


def test_processes_end_with_the_iterator(dataset: imagebeam.ImageDataset) -> None:
    gc.collect()
    before = processes()
    batches = dataset.as_numpy("train", 4, **BASE, map=change, map_workers=2)
    next(batches)
    started = processes() - before
    assert 1 <= len(started) <= 2
    del batches
    patience.wait_until(lambda: not (gc.collect(), processes() & started)[1])


def read_and_name(directory: str) -> None:
    """Reads a batch, and prints the processes; the iterator is still there when the program ends."""
    batches = imagebeam.open_dataset(directory).as_numpy("train", 4, **BASE, map=change, map_workers=2)
    next(batches)
    globals()["kept"] = batches
    print("[" + ",".join(map(str, processes())) + "]")
    sys.stdout.flush()


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="processes are found in /proc")
def test_processes_end_with_the_program(directory: pathlib.Path) -> None:
    code = f"from {__name__} import read_and_name; read_and_name({str(directory)!r})"
    done = command_line.finish(command_line.start_program(code), 0)
    found = [int(each) for each in done.stdout.splitlines()[-1].strip("[]").split(",")]
    assert found and "leaked" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    patience.wait_until(lambda: not any(os.path.exists(f"/proc/{each}") for each in found))
