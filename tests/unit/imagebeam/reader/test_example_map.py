"""The user's `map` and `batch_map`: the same for an example whoever reads it and when, and clear errors."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image

import imagebeam
from tests import case_tables, docs_pages, error_texts
from tests.unit.imagebeam.reader.feeding import SIZE
from tests.unit.imagebeam.reader.restarts import WAYS, values_around_a_restart, values_of

Example = dict[str, Any]
BASE: dict[str, Any] = {"image_size": 8, "seed": 3, "metadata": True, "features": ("image/key",)}


def augment(example: Example, rng: np.random.Generator) -> Example:
    """Changes shape and type of the image, and adds a value."""
    image = example["image"].astype(np.float32)[::-1] + rng.normal(size=3).astype(np.float32)
    return {**example, "image": image[:6], "draw": rng.integers(1 << 62)}


def mix_up(batch: Example, rng: np.random.Generator) -> Example:
    weight = np.float32(rng.beta(0.2, 0.2))
    image = weight * batch["image"] + (1 - weight) * np.roll(batch["image"], 1, axis=0)
    return {**batch, "image": image, "mixed": np.full(len(image), weight)}


def identity(value: Example, rng: np.random.Generator) -> Example:
    return value


@pytest.fixture(scope="module")
def in_one_process(dataset: imagebeam.ImageDataset) -> Any:
    @functools.cache
    def read(crop: str) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        options = {**BASE, "shuffle": None, "num_epochs": 2, "crop": crop, "map": augment}
        for batch in dataset.as_numpy("train", 13, **options):
            found |= values_of(batch)
        assert len(found) == 2 * SIZE
        return found

    return read


@hypothesis.settings(max_examples=40)
@hypothesis.given(
    data=st.data(),
    shuffle=st.sampled_from(["stream", "global", None]),
    way=st.sampled_from(sorted(WAYS)),
    crop=st.sampled_from(["random", "center"]),
    count=st.integers(1, 4),
    size=st.integers(1, 9),
)
def test_example_is_the_same_in_any_process_and_after_any_restart(
    dataset: imagebeam.ImageDataset,
    in_one_process: Any,
    data: st.DataObject,
    shuffle: str | None,
    way: str,
    crop: str,
    count: int,
    size: int,
) -> None:
    expected = in_one_process(crop)
    options = {**BASE, **WAYS[way], "shuffle": shuffle, "num_epochs": 2, "crop": crop, "map": augment}
    seen = values_around_a_restart(dataset, data, options, size, count, 2 * SIZE, values_of)
    assert seen.items() <= expected.items() if way == "drop" else seen == expected


def test_random_numbers_of_a_batch_are_the_same_in_all_processes_and_after_a_restart(
    dataset: imagebeam.ImageDataset,
) -> None:
    options = {**BASE, "shuffle": "global", "num_epochs": 4, "batch_map": mix_up, "dtype": "float32"}

    def mixed(count: int, **more: Any) -> list[float]:
        read = [
            [
                set(batch["mixed"].tolist())
                for batch in dataset.as_numpy("train", 12 // count, **options, **each, **more)
            ]
            for each in ({"process_index": index, "process_count": count} for index in range(count))
        ]
        assert all(each == read[0] for each in read)
        return [value for [value] in read[0]]

    whole = mixed(1)
    assert len(set(whole)) == len(whole) == 4 * SIZE // 12
    assert mixed(2) == mixed(3) == whole
    reader = dataset.as_numpy("train", 4, **options, process_count=3)
    for _ in range(5):
        next(reader)
    assert mixed(2, state=reader.state()) == whole[5:]


KEYS = ("image/key", "image/height")
LAYOUTS: dict[str, dict[str, Any]] = {
    "padded": {"shuffle": None, "features": KEYS},
    "normalised": {"shuffle": None, "dtype": "float32", "normalize": "imagenet", "metadata": True},
    "pairs": {"shuffle": None, "supervised": True, "weights": {0: 1.5, 1: 2}},
    "dropped": {"num_epochs": 1, "features": KEYS, "weights": "image/width"},
    "smaller": {"num_epochs": 1, "drop_remainder": False, "dtype": "bfloat16"},
}


@case_tables.each_case("options", LAYOUTS)
def test_identity_changes_nothing(dataset: imagebeam.ImageDataset, options: dict[str, Any]) -> None:
    plain, mapped = (
        list(dataset.as_numpy("train", 7, image_size=8, **options, **more))
        for more in ({}, {"map": identity, "batch_map": identity})
    )
    assert len(plain) == len(mapped) > 6
    for one, other in zip(plain, mapped, strict=True):
        assert one.keys() == other.keys() if isinstance(one, dict) else len(one) == len(other)
        for name in one if isinstance(one, dict) else range(len(one)):
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name])


def test_values_may_be_kept_under_other_names(dataset: imagebeam.ImageDataset) -> None:
    def keep(example: Example, rng: np.random.Generator) -> Example:
        return {"image": example["image"] // 2, "whole": example["image"], "again": example["image"][::-1]}

    def swap(example: Example, rng: np.random.Generator) -> Example:
        return {"image": example["seed"], "seed": np.resize(example["image"], 2), "mirrored": example["image"][:, ::-1]}

    [plain, *_] = dataset.as_numpy("train", 7, image_size=8, shuffle=None, metadata=True)
    [kept, *_] = dataset.as_numpy("train", 7, image_size=8, shuffle=None, map=keep)
    np.testing.assert_array_equal(kept["image"], plain["image"] // 2)
    np.testing.assert_array_equal(kept["whole"], plain["image"])
    np.testing.assert_array_equal(kept["again"], plain["image"][:, ::-1])
    [swapped, *_] = dataset.as_numpy("train", 7, image_size=8, shuffle=None, metadata=True, map=swap)
    np.testing.assert_array_equal(swapped["image"], plain["seed"])
    np.testing.assert_array_equal(swapped["mirrored"], plain["image"][:, :, ::-1])


def test_mixture_calls_the_functions(dataset: imagebeam.ImageDataset) -> None:
    mixture = imagebeam.Mixture([(dataset, "train"), (dataset, "train")], [1, 1])
    options = {**BASE, "map": augment, "batch_map": mix_up, "erasing": 0.5, "color_jitter": {"hue": 0.1}}
    batch, again = (next(mixture.as_numpy(8, **options)) for _ in range(2))
    assert batch["image"].shape == (8, 6, 8, 3) and len(set(batch["mixed"].tolist())) == 1
    np.testing.assert_array_equal(batch["image"], again["image"])


def test_lists_keep_their_lengths_or_become_arrays(lists: imagebeam.ImageDataset) -> None:
    def count(example: Example, rng: np.random.Generator) -> Example:
        xmin = example["image/object/bbox/xmin"]
        return {**example, "image/object/bbox/xmin": xmin[: len(xmin) // 2], "boxes": np.int64(len(xmin))}

    asked: dict[str, Any] = {"image_size": 8, "crop": "squash", "shuffle": None}
    [batch] = lists.as_numpy("train", 4, features=["image/object/bbox/xmin"], map=count, **asked)
    assert [each.tolist() for each in batch["image/object/bbox/xmin"]] == [[], [], [0.0], []]
    assert batch["boxes"].tolist() == [0, 1, 2, 0]


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    """Three examples with none, one and two boxes."""
    from tests.unit.imagebeam.reader import written

    examples = [
        {**written.jpeg_values(index), **{key: [0.0] * index for key in written.BOX_KEYS}} for index in range(3)
    ]
    return written.write(tmp_path_factory.mktemp("lists") / "out", (*written.IMAGE, *written.BOXES), examples)


# --- feeds of TensorFlow and JAX --------------------------------------------------------------


@case_tables.each_case("options", LAYOUTS)
def test_tensorflow_gets_the_batches_of_numpy(dataset: imagebeam.ImageDataset, options: dict[str, Any]) -> None:
    tf = pytest.importorskip("tensorflow")
    asked = {"image_size": 8, **options, "map": augment, "batch_map": mix_up}
    if options.get("supervised"):
        darker = lambda example, rng: {**example, "image": example["image"][:6] / np.float32(rng.uniform(1, 2))}  # noqa: E731
        asked |= {"map": darker, "batch_map": lambda batch, rng: {**batch, "label": batch["label"] % 2 + rng.random()}}
    found = dataset.as_tf("train", 7, **asked)
    sizes = {each.shape[0] for each in tf.nest.flatten(found.element_spec)}
    assert sizes == ({None} if options.get("drop_remainder") is False else {7})
    expected = list(dataset.as_numpy("train", 7, **asked))
    for one, other in zip(found.as_numpy_iterator(), expected, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, dict(other) if isinstance(other, dict) else other)


def test_map_brings_images_of_any_size_to_one(dataset: imagebeam.ImageDataset) -> None:
    pytest.importorskip("tensorflow")

    def means(example: Example, rng: np.random.Generator) -> Example:
        return {"image": example["image"][:8, :8], "all": example["image"][:, ::2], "mean": example["image"].mean()}

    found = dataset.as_tf("train", image_size=None, crop=None, num_epochs=1, map=means)
    shapes = {name: each.shape.as_list() for name, each in found.element_spec.items()}
    assert shapes == {"image": [8, 8, 3], "all": [None, None, 3], "mean": []}
    assert {each["all"].shape for each in found.as_numpy_iterator()} == {(16, 12, 3)}


# --- errors --------------------------------------------------------------


def fails_for_a_cat(example: Example, rng: np.random.Generator) -> Example:
    if example["image/key"] == b"cat/7.jpg":
        raise KeyError("whiskers")
    return example


def small_for_a_cat(example: Example, rng: np.random.Generator) -> Example:
    is_cat = example["image/key"] == b"cat/7.jpg"
    return {**example, "image": example["image"][:4] if is_cat else example["image"]}


def other_for_a_cat(example: Example, rng: np.random.Generator) -> Example:
    return {**example, "tail": 1} if example["image/key"] == b"cat/7.jpg" else example


@case_tables.each_case("function", [(fails_for_a_cat,), (small_for_a_cat,), (other_for_a_cat,)])
def test_example_that_cannot_be_mapped_is_named_or_skipped(dataset: imagebeam.ImageDataset, function: Any) -> None:
    [function] = function
    options = {"image_size": 8, "shuffle": None, "features": ("image/key",), "map": function}
    batches = dataset.as_numpy("train", 13, **options)
    with error_texts.raises("example-broken") as caught:
        list(batches)
    assert "cat/7.jpg" in str(caught.value) and caught.value.__cause__ is not None
    batches = dataset.as_numpy("train", 13, **options, on_error="skip")
    kept = [key for batch in batches for key in batch["image/key"][batch["mask"]]]
    assert len(kept) == SIZE - 1 and b"cat/7.jpg" not in kept and batches.metrics()["skipped"] == 1
    full = dataset.as_numpy("train", 13, **{**options, "shuffle": "stream", "num_epochs": 1}, on_error="skip")
    assert all(len(batch["image"]) == 13 for batch in full)


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "no dict": ("map-bad-result", {"map": lambda example, rng: example["image"]}),
    "no image": ("map-bad-result", {"map": lambda example, rng: {"picture": example["image"]}}),
    "text": ("map-bad-result", {"map": lambda example, rng: {**example, "name": "cat"}}),
    "mask": ("map-bad-result", {"map": lambda example, rng: {**example, "mask": 1}}),
    "more than a pair": ("map-bad-result", {"map": augment, "supervised": True}),
    "failure": ("map-failed", {"map": lambda example, rng: example["nothing"]}),
    "of another length": ("batch-map-bad-result", {"batch_map": lambda batch, rng: {"image": batch["image"][:2]}}),
    "more than a pair in a batch": ("batch-map-bad-result", {"batch_map": mix_up, "supervised": True}),
    "no batch": ("batch-map-bad-result", {"batch_map": lambda batch, rng: None}),
    "name without a function": ("options-conflict", {"map_id": "v1"}),
    "metadata in a pair": ("options-conflict", {"metadata": True, "supervised": True}),
    "no function": ("option-bad-value", {"map": "flip"}),
    "no name": ("option-bad-value", {"map": identity, "map_id": 1}),
}


@case_tables.each_case("code, options", REFUSED)
def test_wrong_function_is_refused(dataset: imagebeam.ImageDataset, code: str, options: dict[str, Any]) -> None:
    with error_texts.raises(code):
        next(dataset.as_numpy("train", 4, image_size=8, shuffle=None, **options))


def test_shape_that_depends_on_the_size_is_refused(dataset: imagebeam.ImageDataset) -> None:
    pytest.importorskip("tensorflow")

    def tags(example: Example, rng: np.random.Generator) -> Example:
        return {**example, "tags": np.zeros([2] * (1 + (len(example["image"]) > 64)))}

    with error_texts.raises("map-bad-result"):
        dataset.as_tf("train", image_size=None, crop=None, map=tags)
    with error_texts.raises("options-conflict"):
        dataset.as_tf("train", batch_map=identity)


def test_metadata_takes_the_names_of_no_features(tmp_path: pathlib.Path) -> None:
    from imagebeam import features
    from tests.unit.imagebeam.reader import written

    seed = features.Feature("seed", "image/object/count", features.INT64)
    examples = [{**written.jpeg_values(0), "image/object/count": 1}]
    taken = written.write(tmp_path / "out", (*written.IMAGE, seed), examples, num_shards=1)
    with error_texts.raises("feature-name-taken"):
        taken.as_numpy("train", 1, metadata=True, features=["seed"])


class Callable:
    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        return example


def test_state_names_the_functions(dataset: imagebeam.ImageDataset) -> None:
    asked: dict[str, Any] = {"image_size": 8, "map": functools.partial(identity), "batch_map": Callable()}
    state = dataset.as_numpy("train", 4, **asked).state()
    assert state.map_id == f"{__name__}:identity {__name__}:Callable"
    assert state == dataset.state_at("train", 0, 4, **asked)
    assert imagebeam.ReaderState.from_dict(json.loads(json.dumps(state.to_dict()))) == state
    plain = dataset.as_numpy("train", 4).state()
    assert "map_id" not in plain.to_dict()  # as earlier releases wrote it
    for options in ({}, {"map": identity}, {**asked, "map_id": "v2"}):
        with case_tables.named(options), error_texts.raises("state-mismatch"):
            dataset.as_numpy("train", 4, **{"image_size": 8, **options}, state=state)
    with error_texts.raises("state-mismatch"):
        dataset.as_numpy("train", 4, **asked, state=plain)
    named = dataset.as_numpy("train", 4, image_size=8, map=identity, map_id="v2").state()
    next(dataset.as_numpy("train", 4, image_size=8, map=augment, map_id="v2", state=named))


def test_functions_of_the_page_run(directory: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    (tmp_path / "shards").symlink_to(directory)
    monkeypatch.chdir(tmp_path)
    snippet = docs_pages.blocks("augmentation.md", "python")[1].replace('"train", 256', '"train", 8, image_size=16')
    names = docs_pages.run_snippet(snippet)
    batch = next(names["train"])
    assert (batch["image"].dtype, batch["image"].shape) == (np.float32, (8, 16, 16, 3))
    for operation in names["OPERATIONS"]:
        picture = Image.fromarray(batch["image"][0].astype(np.uint8))
        assert {operation(picture, strength, 1).size for strength in (0, 0.5, 1)} == {(16, 16)}
