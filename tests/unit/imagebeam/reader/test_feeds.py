"""Iterators over batches: their state, TensorFlow's errors and threads, forked processes, strategies."""

from __future__ import annotations

import json
import multiprocessing
import pathlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam import errors
from imagebeam.reader import batch_schedule, batch_stream, feeds
from imagebeam.reader.record_order import ReaderState
from tests import datasets, error_texts, patience
from tests.unit.imagebeam.reader import restarts
from tests.unit.imagebeam.reader.feeding import SIZE, finish, flat, one_device, start

tf = pytest.importorskip("tensorflow")

OPTIONS: dict[str, Any] = {"batch_size": 4, "num_epochs": 2, "shuffle": None}
EMPTY = 2  # number of the batch without examples


class NumberedBatches(Iterator[Any]):
    """Batches that hold their number in the job; all examples of one batch were skipped."""

    def __init__(self, schedule: batch_schedule.BatchSchedule):
        self.schedule = schedule
        first = schedule.begin // 4
        self._numbers = iter(range(first, first + (schedule.num_batches or 0)))

    def __next__(self) -> Any:
        number = next(self._numbers)
        return {"image": np.full(0 if number == EMPTY else 4, number)}


def begin(state: ReaderState | None) -> Any:
    planned = batch_schedule.make_schedule(
        batch_schedule.SelectionEpochs(restarts.select_all([10])), imagebeam.ReadOptions(**OPTIONS, state=state)
    )
    return NumberedBatches(planned)


def numbers_of(batches: feeds.BatchIterator) -> list[int]:
    return [int(batch["image"][0]) for batch in batches]


def test_batch_without_examples_is_skipped_and_counts_in_the_state() -> None:
    batches = feeds.BatchIterator(begin, None, is_deterministic=True)
    assert int(next(batches)["image"][0]) == 0 and batches.state().position == 4
    assert int(next(batches)["image"][0]) == 1 and batches.state().position == 8
    assert int(next(batches)["image"][0]) == 3
    assert (batches.state().epoch, batches.state().position) == (1, 6)
    assert numbers_of(batches) == [4]


def test_iterator_begins_and_is_restored_at_a_state() -> None:
    batches = feeds.BatchIterator(begin, None, is_deterministic=True)
    start = batches.state()
    next(batches)
    state = batches.state()
    assert numbers_of(feeds.BatchIterator(begin, state, is_deterministic=True)) == [1, 3, 4]
    assert numbers_of(batches) == [1, 3, 4]
    batches.restore(state)
    assert batches.state() == state
    assert numbers_of(batches) == [1, 3, 4]
    batches.restore(start)
    assert numbers_of(batches) == [0, 1, 3, 4]


def test_iterator_in_any_order_has_no_state() -> None:
    batches = feeds.BatchIterator(begin, None, is_deterministic=False)
    with error_texts.raises("state-unordered"):
        batches.state()


class CountedReader:
    """Makes batches that hold their first position; fails where it is told to, as often as told."""

    def __init__(self, failures: dict[int, int]):
        [self.schedule] = [begin(None).schedule]
        self.failures, self.made = failures, 0

    def metrics(self) -> dict[str, float]:
        return {"examples": self.made}

    def read_batch(self, first: int, end: int) -> Any:
        self.made += 1
        if self.failures.get(first, 0) > 0:
            self.failures[first] -= 1
            raise errors.ShardError("shard-missing", f"shard of {first} is missing")
        return {"image": np.arange(first, end)}


@pytest.mark.parametrize("deterministic", [True, False])
def test_failed_batch_is_made_again_by_the_next_call(deterministic: bool) -> None:
    reader = CountedReader({8: 2})
    options = imagebeam.ReadOptions(**OPTIONS, deterministic=deterministic, prefetch=3)
    stream = batch_stream.BatchStream(reader, options, is_local=True)  # type: ignore[arg-type]
    found, raised = [], 0
    while len(found) < reader.schedule.num_batches:
        try:
            found += [tuple(next(stream)["image"].tolist())]
        except errors.ShardError:
            raised += 1
    expected = [tuple(range(first, min(first + 4, 20))) for first in range(0, 20, 4)]
    assert (found if deterministic else sorted(found)) == expected
    assert raised == 2
    with pytest.raises(StopIteration):
        next(stream)


def test_reader_ahead_is_bounded_and_ends_with_its_iterator() -> None:
    reader = CountedReader({})
    stream = batch_stream.BatchStream(reader, imagebeam.ReadOptions(**OPTIONS, prefetch=1), is_local=True)  # type: ignore[arg-type]
    assert reader.made == 0
    next(stream)
    held = [stream]
    patience.wait_until(lambda: held[0].metrics()["batches_ready"] == 2)
    assert reader.made == 3
    gone = weakref.ref(stream)
    held.clear()
    del stream
    assert gone() is None


def _keep_reading(directory: str) -> None:
    """Leaves endless iterators that read ahead."""
    dataset = imagebeam.open_dataset(directory)
    options: dict[str, Any] = {"image_size": 16}
    every = [
        iter(dataset.as_tf("train", 50, **options)),
        dataset.as_numpy("train", 50, **options),
        dataset.as_jax("train", one_device(), 50, **options),
    ]
    for batches in every * 3:
        next(batches)
    globals()["kept"] = every  # live as long as the interpreter
    print("true", flush=True)


@pytest.mark.slow
def test_program_ends_while_iterators_read_ahead(directory: pathlib.Path) -> None:
    assert finish(start(_keep_reading, str(directory)))


OPTIONS_OF_FORK: dict[str, Any] = {"image_size": 8, "num_epochs": 1}


def _tell(read: Callable[[], Any], told: Any) -> None:
    try:
        read()
        told.put("read")
    except imagebeam.ConfigError as e:
        told.put(str(e))


def _fork_a_reader(directory: str) -> None:
    """Reads with every feed here and then in forked processes, where iterators of this process go on, too.

    Before, two forked processes read of a dataset that is only opened here.
    """
    dataset = imagebeam.open_dataset(directory)
    forks = multiprocessing.get_context("fork")
    told = forks.SimpleQueue()
    read_all: Callable[[], Any] = lambda: list(dataset.as_numpy("train", 4, **OPTIONS_OF_FORK))  # noqa: E731
    both = [forks.Process(target=_tell, args=(read_all, told)) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join(patience.HANG_SEC)
    results = {f"before {number}": told.get() for number in range(2)}
    import tensorflow as tf

    device = one_device()
    mixture = imagebeam.Mixture([(dataset, "train"), (dataset, "train")], [1, 1])
    here, on_jax = (
        dataset.as_numpy("train", 4, **OPTIONS_OF_FORK),
        dataset.as_jax("train", device, 4, **OPTIONS_OF_FORK),
    )
    next(here)
    next(on_jax)
    next(iter(dataset.as_tf("train", 4, **OPTIONS_OF_FORK)))
    reads: dict[str, Callable[[], Any]] = {
        "as_numpy": lambda: next(dataset.as_numpy("train", 4, **OPTIONS_OF_FORK)),
        "as_tf": lambda: next(iter(dataset.as_tf("train", 4, **OPTIONS_OF_FORK))),
        "as_jax": lambda: next(dataset.as_jax("train", device, 4, **OPTIONS_OF_FORK)),
        "as_distributed": lambda: dataset.as_distributed(tf.distribute.get_strategy(), "train", 4, **OPTIONS_OF_FORK),
        "mixture": lambda: next(mixture.as_numpy(4, **OPTIONS_OF_FORK)),
        "opened there": lambda: next(imagebeam.open_dataset(directory).as_numpy("train", 4, **OPTIONS_OF_FORK)),
        "iterator": lambda: next(here),
        "iterator of JAX": lambda: next(on_jax),
        "restored": lambda: here.restore(None),
        "as_grain": lambda: dataset.as_grain("train")[0],  # has no threads
    }
    for name, read in reads.items():
        told = forks.SimpleQueue()
        process = forks.Process(target=_tell, args=(read, told))
        process.start()
        process.join(patience.HANG_SEC)
        results[name] = told.get() if process.exitcode == 0 else f"exit code {process.exitcode}"
    next(here)  # this process reads on
    print(json.dumps(results))


@pytest.mark.slow
def test_iterators_of_the_parent_are_refused_in_a_forked_process(directory: pathlib.Path) -> None:
    results = finish(start(_fork_a_reader, str(directory)))
    for name in ("iterator", "iterator of JAX", "as_tf", "as_distributed"):
        assert "was forked from process" in results.pop(name)
    assert set(results.values()) == {"read"}, results


def _feed_two_replicas(directory: str) -> None:
    import keras
    import tensorflow as tf

    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    dataset = imagebeam.open_dataset(directory)
    results: dict[str, Any] = {}
    all_options: dict[str, dict[str, Any]] = {
        "pad": {"shuffle": None, "crop": "center", "pad": True},
        "remainder": {"drop_remainder": False},
        "drop": {"shuffle": "global"},
    }
    for name, options in all_options.items():
        batches = dataset.as_distributed(
            strategy, "train", 8, image_size=16, features=("image/key",), num_epochs=1, **options
        )
        keys = []
        for batch in batches:
            for part in strategy.experimental_local_results(batch["image/key"]):
                keys.append([key.decode() for key in part.numpy()])
        results[name] = keys
    with strategy.scope():
        model = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(2)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
    examples = dataset.as_distributed(strategy, "train", 8, image_size=16, supervised=True)
    history = model.fit(examples, steps_per_epoch=4, epochs=2, verbose=0)
    results["losses"] = history.history["loss"]
    finite = dataset.as_distributed(
        strategy, "train", 8, image_size=16, features=("image/key",), num_epochs=1, next_epoch_each_iteration=True
    )
    results["iterations"] = []
    for _ in range(2):
        parts = [strategy.experimental_local_results(batch["image/key"]) for batch in finite]
        results["iterations"].append([[key.decode() for part in each for key in part.numpy()] for each in parts])
    plain = dataset.as_tf("train", 8, image_size=16, supervised=True, num_epochs=1, drop_remainder=False, shuffle=None)
    results["evaluated"] = model.evaluate(plain, verbose=0, return_dict=True)
    print(json.dumps(results))


@pytest.mark.slow
def test_as_distributed_feeds_two_replicas_and_keras(directory: pathlib.Path) -> None:
    result = finish(start(_feed_two_replicas, str(directory)))
    every = sorted(datasets.keys(directory))
    assert sorted(flat(result["pad"])) == every
    assert {len(batch) for batch in result["pad"]} == {4}
    assert sorted(flat(result["remainder"])) == every
    dropped = flat(result["drop"])
    assert len(set(dropped)) == len(dropped) == SIZE // 8 * 8
    assert {len(batch) for batch in result["drop"]} == {4}
    assert len(result["losses"]) == 2
    first, second = result["iterations"]
    assert [len(batch) for batch in first] == [len(batch) for batch in second] == [8] * (SIZE // 8)
    assert len(set(flat(first))) == len(set(flat(second))) == SIZE // 8 * 8
    assert first != second
    assert np.isfinite(result["losses"]).all()
    assert 0 <= result["evaluated"]["accuracy"] <= 1


def test_forked_process_is_refused() -> None:
    with error_texts.raises("reader-forked"):
        feeds.check_process(started_in=1)


NAMES = {
    *("wait_seconds", "step_seconds", "bound", "batches_ready", "examples", "bytes", "skipped"),
    *("read_seconds", "parse_seconds", "decode_seconds", "map_seconds", "cache_hits", "cache_misses"),
}


def test_metrics_of_every_iterator_count_hits_of_the_cache(
    directory: pathlib.Path, tmp_path: pathlib.Path, far: Any
) -> None:
    address = f"far://{directory}"
    options: dict[str, Any] = {"num_epochs": 1, "shuffle": None, "image_size": 8}
    read, missed, again = (
        imagebeam.open_dataset(address, cache_dir=folder) for folder in (None, tmp_path / "cache", tmp_path / "cache")
    )
    for opened, hits, misses in [(read, 0, 0), (missed, None, None), (again, None, 0)]:
        feed = opened.as_numpy("train", 4, **options)
        assert len(list(feed)) == feed.num_batches
        found = feed.metrics()
        assert found.keys() == NAMES and found["examples"] == SIZE
        assert hits is None or found["cache_hits"] == hits
        assert misses is None or found["cache_misses"] == misses
        if opened is missed:
            assert found["cache_misses"] >= 1  # several batches may wait for one shard
        if opened is not read:
            asked = found["cache_hits"] + found["cache_misses"]
            assert SIZE / 4 <= asked <= SIZE / 4 + 2  # a batch over two shards asks for both
    mixture = imagebeam.Mixture([(again, "train"), (read, "train")], [1, 1])
    mixed = mixture.as_numpy(4, **options)
    list(mixed)
    assert mixed.metrics()["cache_misses"] == 0 < mixed.metrics()["cache_hits"]
    batches = again.as_jax("train", one_device(), 4, **options)
    list(batches)
    assert batches.metrics().keys() == NAMES
