"""Batches for a tf.distribute strategy and for Keras, in a fresh process with two devices."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import imagebeam
from tests import datasets
from tests.unit.imagebeam.reader.feeding import SIZE, finish, flat, start


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
