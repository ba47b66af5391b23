"""Images as patches: their sizes and layout are those of timm's NaFlex, their pixels those of an image of that size."""

from __future__ import annotations

import itertools
import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import imagebeam
from imagebeam import features
from imagebeam.reader import patches
from tests import case_tables, error_texts, image_sets
from tests.unit.imagebeam.reader import restarts, sized_sets, written
from tests.unit.imagebeam.reader.sized_sets import COUNT, FEEDS, Batch, OfSplit, by_record, check_equal

pytest.importorskip("imagebeam._native")

SIDE, MOST = 8, 20
BASE: dict[str, Any] = {"patches": SIDE, "max_patches": MOST, "seed": 5, "metadata": True, "features": ("image/key",)}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "flip": {"flip": True},
    "values": {"dtype": "float32", "normalize": (128, 2), "flip": True},
    "bfloat16": {"dtype": "bfloat16"},
    "antialias": {"antialias": True, "flip": True},
    "bicubic": {"interpolation": "bicubic", "antialias": True},
    "never enlarged": {"max_patches": 100, "max_enlarge": 1},
    "few": {"patches": 16, "max_patches": 3},
}


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, imagebeam.ImageDataset]:
    folder = tmp_path_factory.mktemp("patches")
    return {name: sized_sets.write(folder / name, name) for name in sized_sets.FORMATS}


@pytest.fixture(scope="module")
def dataset(every: dict[str, imagebeam.ImageDataset]) -> imagebeam.ImageDataset:
    return every["jpeg"]


def size_of_timm(sides: tuple[int, int], side: int, max_patches: int, max_ratio: float | None) -> tuple[int, int]:
    """Returns height and width as timm's get_image_size_for_seq."""

    def scaled(ratio: float) -> tuple[int, int]:
        height, width = (int(max(side * math.ceil(each * ratio / side), side)) for each in sides)
        return height, width

    least, most = 1e-5 / 10, 100.0
    while most - least >= 1e-5:
        middle = (least + most) / 2
        height, width = scaled(middle)
        if (height // side) * (width // side) <= max_patches:
            least = middle
        else:
            most = middle
    return scaled(least if max_ratio is None else min(least, max_ratio))


@given(
    st.lists(st.tuples(st.integers(16, 4000), st.integers(16, 4000)), min_size=1, max_size=20),
    st.integers(4, 32),
    st.integers(1, 1500),
    st.none() | st.sampled_from([0.5, 1.0, 2.0]),
)
def test_sizes_are_those_of_timm(
    sides: list[tuple[int, int]], side: int, max_patches: int, max_enlarge: float | None
) -> None:
    found = patches.sizes_in_patches(np.array(sides), side, max_patches, max_enlarge)
    expected = [size_of_timm(each, side, max_patches, max_enlarge) for each in sides]
    assert (side * found).tolist() == [[*each] for each in expected]
    assert (found.prod(axis=1) <= max_patches).all()


def cut(image: np.ndarray, side: int) -> np.ndarray:
    """Returns the patches of an image one by one, rows first, with their channels last, as timm's patchify_image."""
    tops, lefts = range(0, image.shape[0], side), range(0, image.shape[1], side)
    return np.stack([image[y : y + side, x : x + side].reshape(-1) for y, x in itertools.product(tops, lefts)])


@case_tables.each_case("kind, options", [*KINDS.items()])
@pytest.mark.parametrize("image_format", sized_sets.FORMATS)
@pytest.mark.parametrize("decoder", ["auto", "pillow"])
def test_patches_are_cut_from_images_of_their_size(
    every: dict[str, imagebeam.ImageDataset], image_format: str, decoder: str, kind: str, options: dict[str, Any]
) -> None:
    dataset, given = every[image_format], {"num_epochs": 2, "shuffle": "global", **options, "decoder": decoder}
    asked = {**BASE, **given}
    batches = list(dataset.as_numpy("train", 5, **asked, drop_remainder=False))
    side, most = asked["patches"], asked["max_patches"]
    assert {batch["patches"].shape[1:] for batch in batches} == {(most, side * side * 3)}
    found = by_record(batches)
    assert set(found) == set(itertools.product(range(COUNT), range(2)))
    common = {**given, "seed": 5, "metadata": True, "crop": "squash", "drop_remainder": False}
    for name in ("patches", "max_patches", "max_enlarge"):
        common.pop(name, None)
    fixed: dict[tuple[int, int], Any] = {}
    for (record, epoch), each in found.items():
        size = size_of_timm(sized_sets.sides_of(record), side, most, asked.get("max_enlarge"))
        if size not in fixed:
            fixed[size] = by_record(dataset.as_numpy("train", 7, **common, image_size=size))
        down, across = size[0] // side, size[1] // side
        used = down * across
        np.testing.assert_array_equal(each["patches"][:used], cut(fixed[size][record, epoch]["image"], side))
        assert not each["patches"][used:].any() and not each["patch_coord"][used:].any()
        assert each["patch_coord"][:used].tolist() == [[*at] for at in itertools.product(range(down), range(across))]
        assert each["patch_valid"].tolist() == [True] * used + [False] * (most - used)
        check_equal(
            {"label": each["label"], "seed": each["seed"]},
            {n: fixed[size][record, epoch][n] for n in ("label", "seed")},
        )
    assert each["patch_coord"].dtype == np.int32 and len(fixed) > 2


def test_padding_is_no_patch(dataset: imagebeam.ImageDataset) -> None:
    *_, last = dataset.as_numpy("train", 5, **BASE, num_epochs=1, pad=True, dtype="float32", normalize=(128, 2))
    real = last["mask"]
    assert real.tolist() == [True, True, False, False, False]
    assert last["patch_valid"][real].any(axis=1).all()
    for name in ("patches", "patch_coord", "patch_valid"):
        assert not last[name][~real].any(), name


@settings(max_examples=15)
@given(
    st.data(),
    st.sampled_from(["stream", "global", None]),
    st.sampled_from(sorted(restarts.WAYS)),
    st.integers(1, 3),
    st.integers(1, 7),
)
def test_patches_are_the_same_in_any_process_and_after_any_restart(
    dataset: imagebeam.ImageDataset, data: st.DataObject, shuffle: str | None, way: str, count: int, size: int
) -> None:
    options = {**BASE, **restarts.WAYS[way], "shuffle": shuffle, "num_epochs": 2, "map": mean_of, "flip": True}

    def values_of(batch: Batch) -> dict[Any, Any]:
        return {place: str(each) for place, each in by_record([batch]).items()} if len(batch["record"]) else {}

    seen = restarts.values_around_a_restart(dataset, data, options, size, count, 2 * COUNT, values_of)
    whole = dataset.as_numpy("train", 7, **{**options, "shuffle": "global", "pad": False, "drop_remainder": False})
    expected = {place: str(each) for place, each in by_record(whole).items()}
    assert seen.items() <= expected.items() if way == "drop" else seen == expected


def mean_of(example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Changes the patches that are there, and adds their mean."""
    changed = np.where(example["patch_valid"][:, None], 255 - example["patches"], 0).astype(np.uint8)
    return {**example, "patches": changed, "mean": changed.mean(), "draw": rng.integers(1 << 62)}


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("of", ["split", "mixture"])
def test_every_feed_gives_the_same_patches(every: dict[str, imagebeam.ImageDataset], feed: str, of: str) -> None:
    parts = [(every[name], "train") for name in ("jpeg", "png")]
    read: Any = OfSplit(every["jpeg"]) if of == "split" else imagebeam.Mixture(parts, [2, 1])
    options = {**BASE, "num_epochs": 1, "flip": True}
    expected = list(read.as_numpy(4, **options))
    for one, other in zip(FEEDS[feed](read, 4, **options), expected, strict=True):
        check_equal(one, other)
    assert [batch["patches"].shape for batch in expected] == [(4, MOST, SIDE * SIDE * 3)] * len(expected)


def test_single_examples_have_patches(dataset: imagebeam.ImageDataset) -> None:
    pytest.importorskip("tensorflow")
    examples = dataset.as_tf("train", **BASE, shuffle=None)
    assert examples.element_spec["patches"].shape.as_list() == [MOST, SIDE * SIDE * 3]
    [batch] = dataset.as_numpy("train", COUNT, **BASE, shuffle=None)
    for row, each in enumerate(examples.as_numpy_iterator()):
        np.testing.assert_array_equal(each["patches"], batch["patches"][row])


def test_state_of_patches_goes_through_json(dataset: imagebeam.ImageDataset) -> None:
    batches = dataset.as_numpy("train", 4, **BASE)
    for _ in range(7):
        next(batches)
    state = imagebeam.ReaderState.from_dict(json.loads(json.dumps(batches.state_dict())))
    again = dataset.as_numpy("train", 4, **BASE, state=state)
    for _ in range(4):
        check_equal(next(again), next(batches))


def test_image_too_narrow_for_whole_patches_is_named(tmp_path: pathlib.Path) -> None:
    pixels = image_sets.save(Image.new("RGB", (40_000, 1)))
    values = {"image/height": 1, "image/width": 40_000, "image/channels": 3, features.ENCODED: pixels}
    examples = [{**values, "image/format": b"png", "image/key": b"line"}]
    dataset = written.write(tmp_path / "set", written.IMAGE, examples, num_shards=1)
    with error_texts.raises("example-broken"):
        next(dataset.as_numpy("train", 1, patches=1, max_patches=40_000))


def test_broken_image_is_skipped(tmp_path: pathlib.Path) -> None:
    dataset = sized_sets.write(tmp_path / "set", broken=(2, 5))
    options = {**BASE, "shuffle": None}
    with error_texts.raises("example-broken"):
        list(dataset.as_numpy("train", 4, **options))
    for decoder in ("auto", "pillow"):
        batches = dataset.as_numpy("train", 4, **options, on_error="skip", max_error_fraction=1, decoder=decoder)
        assert {record for record, _ in by_record(batches)} == set(range(COUNT)) - {2, 5}
        assert batches.metrics()["skipped"] == 2
