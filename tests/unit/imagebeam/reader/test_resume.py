"""Readers that go on from a state, in all modes, with and without examples that cannot be decoded."""

from __future__ import annotations

import itertools
import json
import logging
import pathlib
import random
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam import ImageDataset, errors, features
from tests import error_texts
from tests.unit.imagebeam.reader import written
from tests.unit.imagebeam.reader.feeding import keys_in, one_device

tf = pytest.importorskip("tensorflow")

NUM_EXAMPLES = 41
BROKEN = (7, 8, 9, 20, 40)  # in a row, alone, and at the end
BATCH_SIZE = 4
PROCESS_COUNT = 2
WAYS: Mapping[str, Mapping[str, bool]] = {
    "pad": {"pad": True},
    "drop": {"drop_remainder": True},
    "keep": {"drop_remainder": False},
}
OPTIONS: Mapping[str, Any] = {"image_size": 16, "features": ("image/key",), "shuffle_records": 8}


def write(folder: pathlib.Path, broken: Iterable[int] = ()) -> ImageDataset:
    examples = [written.jpeg_values(index) | {features.LABEL: index % 2} for index in range(NUM_EXAMPLES)]
    for index in broken:
        encoded = examples[index][features.ENCODED]
        examples[index][features.ENCODED] = encoded.replace(b"\xff\xc0", b"\x00\x00")  # no start of frame
    return written.write(folder, (*written.IMAGE, written.LABEL), examples, labels=("cat", "dog"), num_shards=3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> ImageDataset:
    return write(tmp_path_factory.mktemp("resume") / "whole")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> ImageDataset:
    return write(tmp_path_factory.mktemp("resume") / "broken", BROKEN)


def is_equal(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> bool:
    return first.keys() == second.keys() and all((first[name] == second[name]).all() for name in first)


# The schedule decides about the order before either decoder sees an example, and TensorFlow takes 0.2 to 0.4 s to build
# each graph, as much as ten readers by the decoder in C: with its decoder once for each order and each way to end;
# it skips with the two that make batches of one size, which fill or mask the places of what is skipped.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("decoder", "shuffle", "way"),
    [
        ("native", "stream", "drop"),
        ("native", "stream", "pad"),
        ("native", "global", "drop"),
        ("native", "global", "keep"),
        ("native", None, "pad"),
        ("native", None, "keep"),
        ("pillow", "stream", "drop"),
        ("pillow", "global", "keep"),
        ("pillow", None, "pad"),
    ],
    indirect=["decoder"],
)
def test_job_restarted_from_the_state_of_one_process_makes_the_batches_of_an_uninterrupted_one(
    broken: ImageDataset, decoder: str, shuffle: str | None, way: str
) -> None:
    """Of jobs that skip nothing this is a property of test_example_map.py, test_repeats.py and test_views.py."""
    options = {**OPTIONS, **WAYS[way], "shuffle": shuffle, "num_epochs": 2, "on_error": "skip", "decoder": decoder}

    def begin(index: int, **more: Any) -> Any:
        return broken.as_numpy("train", BATCH_SIZE, process_index=index, process_count=PROCESS_COUNT, **options, **more)

    iterators = [begin(index) for index in range(PROCESS_COUNT)]
    expected: list[list[Any]] = [[] for _ in iterators]
    states = []  # after each step that all processes make
    for batches in itertools.zip_longest(*iterators):
        for made, batch in zip(expected, batches):
            made += [] if batch is None else [batch]
        if None not in batches:
            [state] = {each.state() for each in iterators}
            states.append(state)
    if way != "keep":
        assert len({len(each) for each in expected}) == 1
        assert {len(batch["image"]) for each in expected for batch in each} == {BATCH_SIZE}
    found = keys_in(batch for each in expected for batch in each)
    readable = {str(index) for index in range(NUM_EXAMPLES) if index not in BROKEN}
    if way == "drop":  # each share is of 41 or 40 positions in two epochs, and drops at most one
        assert set(found) <= readable
        assert len(found) == 80
        counts = np.unique(found, return_counts=True)[1]
        assert counts.sum() == 80 and counts.max() <= 2 * 4
    else:
        assert sorted(found) == sorted(list(readable) * 2)

    stops = random.Random(f"{shuffle}{way}").sample(range(1, len(states)), PROCESS_COUNT)
    for index, stop in enumerate(stops):
        state = imagebeam.ReaderState.from_dict(json.loads(json.dumps(states[stop - 1].to_dict())))
        rest = begin(index, state=state)
        assert all(is_equal(*pair) for pair in zip(rest, expected[index][stop:], strict=True))


def test_state_of_another_filter_or_split_is_refused(whole: ImageDataset) -> None:
    state = whole.as_numpy("train", BATCH_SIZE, **OPTIONS).state()
    for dataset, split in ((whole.filter(["cat"]), "train"), (whole, "train[:40]")):
        with error_texts.raises("state-mismatch"):
            dataset.as_tf(split, BATCH_SIZE, **OPTIONS, state=state)
        with error_texts.raises("state-mismatch"):
            dataset.as_numpy(split, BATCH_SIZE, **OPTIONS).restore(state)
    whole.as_tf("train[:]", BATCH_SIZE, **OPTIONS, state=state)  # all of it, in other words


def test_iterator_that_refuses_a_state_goes_on_where_it_was(whole: ImageDataset) -> None:
    iterator, expected = (whole.as_numpy("train", BATCH_SIZE, **OPTIONS) for _ in range(2))
    next(iterator), next(expected)
    with error_texts.raises("state-mismatch"):
        iterator.restore(whole.as_numpy("train", BATCH_SIZE, **OPTIONS, seed=1).state())
    assert iterator.state() == expected.state()
    assert is_equal(next(iterator), next(expected))


@pytest.mark.parametrize("name", ["as_numpy", "as_jax"])
def test_iterators_refuse_next_epoch_each_iteration(whole: ImageDataset, name: str) -> None:
    options = {**OPTIONS, "num_epochs": 1, "next_epoch_each_iteration": True}
    with error_texts.raises("options-conflict"):
        if name == "as_numpy":
            whole.as_numpy("train", BATCH_SIZE, **options)
        else:
            whole.as_jax("train", one_device(), BATCH_SIZE, **options)


def test_numpy_batches_need_a_size(whole: ImageDataset) -> None:
    with error_texts.raises("batch-size-missing"):
        whole.as_numpy("train", None)  # type: ignore[arg-type]


# What is skipped.


@pytest.mark.parametrize(
    ("decoder", "way", "deterministic"),
    [
        *itertools.product(["native"], sorted(WAYS), [True, False]),
        ("pillow", "drop", True),
        ("pillow", "keep", False),  # where examples are skipped they come in order all the same
        ("pillow", "pad", True),
    ],
    indirect=["decoder"],
)
def test_skipped_examples_keep_the_places_of_all_others(
    broken: ImageDataset, decoder: str, way: str, deterministic: bool
) -> None:
    options = {**OPTIONS, **WAYS[way], "shuffle": None, "num_epochs": 1, "decoder": decoder, "on_error": "skip"}
    dataset = broken.as_tf("train", BATCH_SIZE, **options, deterministic=deterministic)
    keys = [keys_in([batch]) for batch in dataset.as_numpy_iterator()]
    places = [range(first, min(first + BATCH_SIZE, NUM_EXAMPLES)) for first in range(0, NUM_EXAMPLES, BATCH_SIZE)]
    if way == "drop":
        replaced = {7: 10, 8: 10, 9: 10, 20: 21}
        expected = [[str(replaced.get(each, each)) for each in place] for place in places if len(place) == BATCH_SIZE]
    else:
        expected = [[str(each) for each in place if each not in BROKEN] for place in places]
        expected = [each for each in expected if each or way == "pad"]  # a batch of nothing is left out
    assert sorted(keys) == sorted(expected)
    if deterministic:
        assert keys == expected


def test_batch_without_readable_examples_counts_in_the_state(broken: ImageDataset, decoder: str) -> None:
    options = {**OPTIONS, "shuffle": None, "num_epochs": 1, "on_error": "skip", "drop_remainder": False}
    iterator = broken.as_numpy("train", 1, **options, decoder=decoder)
    states = {}
    for batch in iterator:
        states[keys_in([batch])[0]] = iterator.state().position
    assert states == {str(index): index + 1 for index in range(NUM_EXAMPLES) if index not in BROKEN}


def test_batches_without_readable_examples_are_filled_from_others(broken: ImageDataset, decoder: str) -> None:
    options = {**OPTIONS, **WAYS["drop"], "shuffle": None, "num_epochs": 1, "on_error": "skip", "decoder": decoder}
    keys = [keys_in([batch]) for batch in broken.as_tf("train", 1, **options).as_numpy_iterator()]
    replaced = {7: 10, 8: 10, 9: 10, 20: 21, 40: 0}  # the last one by the first of the next epoch
    assert keys == [[str(replaced.get(index, index))] for index in range(NUM_EXAMPLES)]


def test_dataset_without_readable_examples_is_an_error(tmp_path: pathlib.Path, decoder: str) -> None:
    dataset = write(tmp_path / "nothing", range(NUM_EXAMPLES))
    options = {**OPTIONS, "num_epochs": 1, "on_error": "skip", "max_error_fraction": 1.0, "decoder": decoder}
    with error_texts.raises("examples-all-broken"):
        next(dataset.as_numpy("train", BATCH_SIZE, **options))
    assert list(dataset.as_numpy("train", BATCH_SIZE, **options, drop_remainder=False)) == []
    masks = [batch["mask"] for batch in dataset.as_numpy("train", BATCH_SIZE, **options, pad=True)]
    assert len(masks) == 11 and not np.any(masks)


def test_single_examples_that_cannot_be_read_are_skipped(broken: ImageDataset) -> None:
    options = {**OPTIONS, "shuffle": None, "num_epochs": 1, "on_error": "skip"}
    for deterministic in (True, False):
        examples = broken.as_tf("train", **options, deterministic=deterministic).as_numpy_iterator()
        keys = [int(each["image/key"]) for each in examples]
        in_order = keys if deterministic else sorted(keys)  # several are read at once, and the first to end come first
        assert in_order == [index for index in range(NUM_EXAMPLES) if index not in BROKEN]


def test_fraction_of_skipped_examples_counts_from_where_the_reader_began(tmp_path: pathlib.Path, decoder: str) -> None:
    """Twelve of the last twenty examples are broken: 0.6 of those that this reader reads, 0.1 of all since epoch 0."""
    dataset = write(tmp_path / "end", range(29, NUM_EXAMPLES))
    options = {**OPTIONS, "shuffle": None, "on_error": "skip", "max_error_fraction": 0.3, "decoder": decoder}
    options["num_epochs"] = None
    sound = write(tmp_path / "sound").as_numpy("train", 7, **options)
    for _ in range(3):
        next(sound)
    for epoch in (0, 2):
        state = imagebeam.ReaderState.from_dict(sound.state().to_dict() | {"epoch": epoch})
        with error_texts.raises("examples-too-many-broken"):
            list(dataset.as_numpy("train", 7, **{**options, "num_epochs": 3}, drop_remainder=False, state=state))


def test_statistics_are_of_readable_examples(broken: ImageDataset, caplog: pytest.LogCaptureFixture) -> None:
    options = {**OPTIONS, "dtype": "float32", "normalize": "dataset", "num_epochs": 1}
    with caplog.at_level(logging.WARNING):
        batches = list(broken.as_tf("train", BATCH_SIZE, **options, on_error="skip").as_numpy_iterator())
    assert np.isfinite([batch["image"] for batch in batches]).all()
    with pytest.raises((errors.ExampleError, tf.errors.OpError), match="the image cannot be decoded"):
        broken.as_tf("train", BATCH_SIZE, **options)


def test_statistics_of_nothing_are_an_error(tmp_path: pathlib.Path) -> None:
    dataset = write(tmp_path / "nothing", range(NUM_EXAMPLES))
    options = {**OPTIONS, "dtype": "float32", "normalize": "dataset", "on_error": "skip", "max_error_fraction": 1.0}
    with error_texts.raises("examples-all-broken"):
        dataset.as_tf("train", BATCH_SIZE, **options)
