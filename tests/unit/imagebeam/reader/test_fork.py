"""A reader in a forked process: TensorFlow's threads stay behind, so it refuses instead of waiting for them."""

from __future__ import annotations

import json
import multiprocessing
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

import imagebeam
from tests import patience
from tests.unit.imagebeam.reader.feeding import finish, start

OPTIONS: dict[str, Any] = {"image_size": 8, "num_epochs": 1}


def _tell(read: Callable[[], Any], told: Any) -> None:
    try:
        read()
        told.put("read")
    except imagebeam.ConfigError as e:
        told.put(str(e))


def _fork_a_reader(directory: str) -> None:
    """Reads with every feed here and then in forked processes, where iterators of this process go on, too."""
    import jax
    import tensorflow as tf

    dataset = imagebeam.open_dataset(directory)
    mixture = imagebeam.Mixture([(dataset, "train"), (dataset, "train")], [1, 1])
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    here, on_jax = dataset.as_numpy("train", 4, **OPTIONS), dataset.as_jax("train", device, 4, **OPTIONS)
    next(here)
    next(on_jax)
    reads: dict[str, Callable[[], Any]] = {
        "as_numpy": lambda: next(dataset.as_numpy("train", 4, **OPTIONS)),
        "as_tf": lambda: next(iter(dataset.as_tf("train", 4, **OPTIONS))),
        "as_jax": lambda: next(dataset.as_jax("train", device, 4, **OPTIONS)),
        "as_distributed": lambda: dataset.as_distributed(tf.distribute.get_strategy(), "train", 4, **OPTIONS),
        "mixture": lambda: next(mixture.as_numpy(4, **OPTIONS)),
        "opened there": lambda: next(imagebeam.open_dataset(directory).as_numpy("train", 4, **OPTIONS)),
        "iterator": lambda: next(here),
        "iterator of JAX": lambda: next(on_jax),
        "restored": lambda: here.restore(None),
        "as_grain": lambda: dataset.as_grain("train")[0],  # has no threads
    }
    forks = multiprocessing.get_context("fork")
    results = {}
    for name, read in reads.items():
        told = forks.SimpleQueue()
        process = forks.Process(target=_tell, args=(read, told))
        process.start()
        process.join(patience.HANG_SEC)
        results[name] = told.get() if process.exitcode == 0 else f"exit code {process.exitcode}"
    next(here)  # this process reads on
    print(json.dumps(results))


@pytest.mark.slow
def test_every_feed_in_a_forked_process_is_refused_and_names_spawn(directory: pathlib.Path) -> None:
    results = finish(start(_fork_a_reader, str(directory)))
    assert results.pop("as_grain") == "read"
    assert len(results) == 9
    for name, text in results.items():
        assert "was forked from process" in text and "start workers by spawn" in text, (name, text)


def _read_after_fork(directory: str) -> None:
    """Reads in two forked processes of one that has only opened the dataset."""
    dataset = imagebeam.open_dataset(directory)
    forks = multiprocessing.get_context("fork")
    told = forks.SimpleQueue()
    both = [
        forks.Process(target=_tell, args=(lambda: list(dataset.as_numpy("train", 4, **OPTIONS)), told))
        for _ in range(2)
    ]
    for each in both:
        each.start()
    for each in both:
        each.join(patience.HANG_SEC)
    print(json.dumps([told.get() for _ in both]))


@pytest.mark.slow
def test_processes_forked_before_the_first_read_read_alone(directory: pathlib.Path) -> None:
    assert finish(start(_read_after_fork, str(directory))) == ["read", "read"]
