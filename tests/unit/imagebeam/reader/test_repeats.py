"""`repeats`: copies of a record have the random numbers of further epochs, in any process and after any restart."""

from __future__ import annotations

import functools
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import imagebeam
from imagebeam import features
from tests import error_texts
from tests.unit.imagebeam.reader import written
from tests.unit.imagebeam.reader.restarts import WAYS, values_around_a_restart, values_of

SIZE = 26
Example = dict[str, Any]
BASE: dict[str, Any] = {"image_size": 8, "seed": 3, "metadata": True, "color_jitter": {"contrast": 0.5}}
NAMES = ("image", "label", "draw", "seed")  # of values that are compared


def draw(example: Example, rng: np.random.Generator) -> Example:
    return {**example, "draw": rng.integers(1 << 62)}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    """Bare pixels: copies share an image, and colors at the edges of a part of a JPEG may differ from those alone."""
    examples = [
        {
            **written.raw_values(np.random.default_rng(index).integers(256, size=(12, 17, 3), dtype=np.uint8), index),
            features.LABEL: index % 2,
        }
        for index in range(SIZE)
    ]
    folder = tmp_path_factory.mktemp("repeats") / "out"
    return written.write(folder, (*written.IMAGE, written.LABEL), examples, labels=("cat", "dog"))


@pytest.fixture(scope="module")
def without_copies(dataset: imagebeam.ImageDataset) -> Any:
    @functools.cache
    def read(num_epochs: int) -> dict[Any, Any]:
        batches = dataset.as_numpy("train", 13, **BASE, shuffle="global", num_epochs=num_epochs, map=draw)
        found: dict[Any, Any] = {}
        for batch in batches:
            found |= values_of(batch, 1, NAMES)
        assert len(found) == num_epochs * SIZE
        return found

    return read


@hypothesis.settings(max_examples=30)
@hypothesis.given(
    data=st.data(),
    shuffle=st.sampled_from(["stream", "global"]),
    way=st.sampled_from(sorted(WAYS)),
    repeats=st.integers(2, 4),
    count=st.integers(1, 4),
    size=st.integers(1, 9),
)
def test_copies_are_those_of_further_epochs_in_any_process_and_after_any_restart(
    dataset: imagebeam.ImageDataset,
    without_copies: Any,
    data: st.DataObject,
    shuffle: str,
    way: str,
    repeats: int,
    count: int,
    size: int,
) -> None:
    options = {**BASE, **WAYS[way], "shuffle": shuffle, "num_epochs": 2, "map": draw, "repeats": repeats}
    seen = values_around_a_restart(
        dataset, data, options, size, count, 2 * repeats * SIZE, lambda batch: values_of(batch, repeats, NAMES)
    )
    expected = without_copies(2 * repeats)
    assert seen.items() <= expected.items() if way == "drop" else seen == expected


def test_copies_are_neighbours_and_are_read_once(dataset: imagebeam.ImageDataset) -> None:
    for shuffle in ("stream", "global"):
        batches = dataset.as_numpy("train", 6, **BASE, shuffle=shuffle, num_epochs=1, repeats=3)
        found = list(batches)
        assert len(found) == 3 * SIZE // 6 and batches.state().epoch == 1
        records = np.concatenate([batch["record"] for batch in found]).reshape(-1, 3)
        assert (records == records[:, :1]).all() and sorted(records[:, 0].tolist()) == list(range(SIZE))
        assert np.concatenate([batch["copy"] for batch in found]).reshape(-1, 3).tolist() == [[0, 1, 2]] * SIZE
        once = dataset.as_numpy("train", 2, **BASE, shuffle=shuffle, num_epochs=1)
        assert len(list(once)) == len(found) and batches.metrics()["bytes"] == once.metrics()["bytes"]


def test_mixture_keeps_copies_together(dataset: imagebeam.ImageDataset) -> None:
    mixture = imagebeam.Mixture([(dataset, "train"), (dataset.filter(["dog"]), "train")], [2, 1])
    once, twice = (
        np.concatenate(
            [each["record"] for each in mixture.as_numpy(4 * repeats, **BASE, num_epochs=1, repeats=repeats)]
        )
        for repeats in (1, 2)
    )
    assert twice.tolist() == np.repeat(once, 2).tolist()


def test_evaluation_has_no_copies(dataset: imagebeam.ImageDataset) -> None:
    with error_texts.raises("options-conflict"):
        dataset.as_numpy("train", 4, shuffle=None, repeats=2)
