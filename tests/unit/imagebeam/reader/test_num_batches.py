"""The number of batches, told before they are read, is that of the batches that come."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import imagebeam
from tests import error_texts
from tests.unit.imagebeam.reader import restarts
from tests.unit.imagebeam.reader.feeding import one_device

OPTIONS: dict[str, Any] = {"image_size": 8, "threads": 1}


@hypothesis.settings(deadline=None, max_examples=50)
@hypothesis.example("train", "global", "keep", False, 1, 1, 7, 9)
@hypothesis.given(
    st.sampled_from(["train", "train[:40%]", "train[3:17]+train[30:]", "mixture"]),
    st.sampled_from(["stream", "global", None]),
    st.sampled_from(sorted(restarts.WAYS)),
    st.booleans(),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 8),
    st.integers(1, 9),
)
def test_process_makes_as_many_batches_as_are_told(
    dataset: imagebeam.ImageDataset,
    text: str,
    shuffle: str | None,
    way: str,
    filters: bool,
    num_epochs: int,
    repeats: int,
    process_count: int,
    batch_size: int,
) -> None:
    chosen = dataset.filter(["cat"]) if filters else dataset
    mixture = imagebeam.Mixture([(chosen, "train[:50%]"), (chosen, "train[50%:]")], [3, 1])
    options = {**OPTIONS, **restarts.WAYS[way], "shuffle": shuffle, "process_count": process_count}
    if shuffle is not None:
        options["repeats"] = repeats
    if num_epochs > 1:
        options["num_epochs"] = num_epochs

    for index in {0, process_count - 1}:
        given = {**options, "process_index": index}
        if text == "mixture":
            told = mixture.num_batches(batch_size, **given)
        else:
            told = chosen.num_batches(text, batch_size, **given)
        if not told and way == "drop":
            continue  # refused by the feeds
        whole = {**given, "num_epochs": num_epochs}
        reader = (mixture, batch_size) if text == "mixture" else (chosen, text, batch_size)
        batches = reader[0].as_numpy(*reader[1:], **whole)
        assert batches.num_batches == told
        if not told:  # a process to which the common order deals no batch
            assert list(batches) == []
            continue
        next(batches)
        resumed = reader[0].as_numpy(*reader[1:], **whole, state=batches.state())
        assert 1 + sum(1 for _ in batches) == told
        assert resumed.num_batches == sum(1 for _ in resumed) == told - 1


def test_every_feed_tells_the_number(dataset: imagebeam.ImageDataset) -> None:
    tf = pytest.importorskip("tensorflow")
    told = dataset.num_batches("train", 5)
    options: dict[str, Any] = {**OPTIONS, "num_epochs": 1}
    strategy = tf.distribute.OneDeviceStrategy("cpu:0")
    assert told == len(list(dataset.as_numpy("train", 5, **options)))
    assert told == dataset.as_jax("train", one_device(), 5, **options).num_batches
    assert told == iter(dataset.as_grain_batches("train", 5, **options)).num_batches
    assert told == len(dataset.as_tf("train", 5, **options))
    assert told == int(dataset.as_distributed(strategy, "train", 5, **options).cardinality)
    assert dataset.as_numpy("train", 5, **OPTIONS).num_batches is None


def test_reader_that_never_ends_has_no_number_of_batches(dataset: imagebeam.ImageDataset) -> None:
    with error_texts.raises("options-conflict"):
        dataset.num_batches("train", 5, num_epochs=None)
