"""Letterbox, padded crops, color jitter and erasing in C, against NumPy, Python's colorsys and Pillow."""

from __future__ import annotations

import colorsys
import itertools
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image

import imagebeam
from imagebeam import features
from imagebeam.reader import crops, image_changes, image_decoder
from imagebeam.reader import options as options_lib
from tests import case_tables, error_texts
from tests.unit.imagebeam.reader import written

_native = pytest.importorskip("imagebeam._native")

NOISE = np.random.default_rng(0).integers(256, size=(13, 17, 3), dtype=np.uint8)
SIDES = {"shrunk": (26, 34), "square": (20, 20), "odd": (11, 31)}


def decode(pixels: np.ndarray, size: tuple[int, int], **more: Any) -> np.ndarray:
    """Returns bare pixels as `decode` changes them."""
    height, width, _ = pixels.shape
    out = np.full((1, *size, 3), 77, np.uint8)
    given = {"flip": 0, "places": None, "colors": None, "erased": None, "fill": bytes(3), "frames": None, **more}
    failures = _native.decode(
        [pixels.tobytes()],
        np.array([given.get("part", [0, 0, height, width])], np.int32),
        np.array([given["flip"]], np.uint8),
        out,
        1,
        [b""],
        given["frames"],
        1,
        given.get("antialias", False),
        False,
        given.get("values"),
        None,
        np.array([[height, width, 3]], np.int32),
        given["places"],
        given["colors"],
        given["erased"],
        given["fill"],
    )
    assert not failures
    return out[0]


# --- colors --------------------------------------------------------------


def jitter(pixels: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Returns pixels changed by torchvision's formulas for floating-point images."""
    image = pixels / 255

    def gray(image: np.ndarray) -> np.ndarray:
        return image @ [0.2989, 0.587, 0.114]

    def blend(image: np.ndarray, other: Any, factor: float) -> np.ndarray:
        return np.clip(factor * image + (1 - factor) * other, 0, 1)

    def turn(image: np.ndarray, part: float) -> np.ndarray:
        turned = np.empty_like(image)
        for place in np.ndindex(image.shape[:2]):
            hue, saturation, value = colorsys.rgb_to_hsv(*image[place])
            turned[place] = colorsys.hsv_to_rgb((hue + part) % 1, saturation, value)
        return turned

    steps = [
        lambda image: blend(image, 0, change[0]),
        lambda image: blend(image, gray(image).mean(), change[1]),
        lambda image: blend(image, gray(image)[..., None], change[2]),
        lambda image: turn(image, change[3]),
    ]
    order, left = int(change[4]), list(range(4))
    for count in range(4, 0, -1):
        image = steps[left.pop(order % count)](image)
        order //= count
    return 255 * image


@hypothesis.given(
    factors=st.tuples(*[st.floats(0, 3, width=32)] * 3),
    hue=st.floats(-0.5, 0.5, width=32),
    order=st.integers(0, 23),
)
def test_colors_change_by_the_formulas_of_torchvision(
    factors: tuple[float, float, float], hue: float, order: int
) -> None:
    change = np.array([[*factors, hue, order]], np.float32)
    found = decode(NOISE, NOISE.shape[:2], colors=change)
    assert np.abs(found - jitter(NOISE, change[0].astype(float))).max() < 0.51


@hypothesis.given(turn=st.integers(-127, 127), seed=st.integers(0, 9))
def test_hue_turns_as_that_of_pillow_but_for_its_rounding(turn: int, seed: int) -> None:
    """Pillow has 256 levels of hue, saturation and value, as torchvision has for images of Pillow."""
    pixels = np.random.default_rng(seed).integers(256, size=(60, 70, 3), dtype=np.uint8)
    hue, saturation, value = Image.fromarray(pixels).convert("HSV").split()
    turned = Image.fromarray((np.asarray(hue).astype(int) + turn).astype(np.uint8))
    expected = np.asarray(Image.merge("HSV", (turned, saturation, value)).convert("RGB")).astype(int)
    found = decode(pixels, pixels.shape[:2], colors=np.array([[1, 1, 1, turn / 256, 0]], np.float32))
    difference = np.abs(found - expected)
    assert difference.max() <= 12 and difference.mean() < 1
    np.testing.assert_array_equal(found.max(axis=-1), pixels.max(axis=-1))
    np.testing.assert_array_equal(found.min(axis=-1), pixels.min(axis=-1))


def test_change_of_nothing_keeps_colors_and_orders_are_all_orders() -> None:
    same = np.array([[1, 1, 1, 0, 5]], np.float32)
    np.testing.assert_array_equal(decode(NOISE, NOISE.shape[:2], colors=same), NOISE)
    changes = [np.array([[1.7, 1.6, 0.4, 0.2, order]], np.float32) for order in range(image_changes.NUM_ORDERS)]
    found = {decode(NOISE, NOISE.shape[:2], colors=each).tobytes() for each in changes}
    assert (
        len(found) > 12
    )  # brightness and hue, or saturation and brightness, may change places where nothing is cut off


# --- places --------------------------------------------------------------


@case_tables.each_case("sides, flip", itertools.product(SIDES.values(), [False, True]))
def test_letterbox_is_the_image_resized_inside_of_the_fill(sides: tuple[int, int], flip: bool) -> None:
    asked = options_lib.ReadOptions(crop="letterbox", image_size=(18, 24), flip=flip, batch_size=1, antialias=True)
    pixels = np.random.default_rng(1).integers(256, size=(*sides, 3), dtype=np.uint8)
    height, width = (np.array([side]) for side in sides)
    uniforms = np.zeros((1, crops.NUM_UNIFORMS), np.float32)
    places = crops.places(height, width, uniforms, np.array([flip]), asked)
    assert places is not None
    frames = crops.frames(height, width, crops.windows(height, width, uniforms, asked), asked, places)
    found = decode(pixels, (18, 24), flip=flip, places=places, frames=frames, antialias=True, fill=bytes([9, 8, 7]))
    scale = min(18 / sides[0], 24 / sides[1])
    rows, columns = round(sides[0] * scale), round(sides[1] * scale)
    assert rows == 18 or columns == 24
    expected = np.full((18, 24, 3), [9, 8, 7], np.int64)
    top, left = (18 - rows) // 2, (24 - columns) // 2
    resized = Image.fromarray(pixels).resize((columns, rows), Image.Resampling.BILINEAR)
    expected[top : top + rows, left : left + columns] = np.asarray(resized)
    expected = expected[:, ::-1] if flip else expected
    difference = np.abs(found - expected)
    assert difference.max() <= 1 and not difference[expected == [9, 8, 7]].any()


@pytest.mark.parametrize("crop", ["cover", "center", "resize_shorter", "letterbox"])
@hypothesis.given(
    sides=st.tuples(*[st.integers(100, 400)] * 2),
    size=st.tuples(*[st.integers(50, 300)] * 2),
    limit=st.floats(0.3, 3),
    fraction=st.sampled_from([1.0, 0.875]),
    antialias=st.booleans(),
    flip=st.booleans(),
)
def test_padded_images_are_enlarged_by_max_enlarge_at_most(
    crop: str,
    sides: tuple[int, int],
    size: tuple[int, int],
    limit: float,
    fraction: float,
    antialias: bool,
    flip: bool,
) -> None:
    """In their aspect ratio; where the crop enlarges them by less, they are as without `too_small`."""
    options = {"crop": crop, "image_size": size, "center_fraction": fraction, "antialias": antialias, "batch_size": 1}
    padded, plain = ({**options, "max_enlarge": limit, "too_small": "pad"}, options)
    factors = np.array(size) / sides
    wanted = {"cover": factors.max(), "letterbox": factors.min()}.get(crop, factors.max() / fraction)
    factor = min(wanted, limit)
    found = _cut(sides, flip, padded)
    top, left, rows, columns = found["place"]
    assert np.allclose(1 / found["step"], factor, rtol=0.05)
    expected = np.minimum(np.array(sides) * factor, size)
    assert np.allclose((rows, columns), expected, rtol=0.03, atol=1.5)
    assert abs(size[0] - rows - 2 * top) <= 1 and abs(size[1] - columns - 2 * left) <= 1
    if wanted < 0.95 * limit:
        assert all(np.array_equal(found[name], each) for name, each in _cut(sides, flip, plain).items())


def _cut(sides: tuple[int, int], flip: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of an image, its place in the batch, and the pixels of the image for one of the batch."""
    asked = options_lib.ReadOptions(**options)
    height, width = (np.array([side]) for side in sides)
    uniforms, flips = np.zeros((1, crops.NUM_UNIFORMS), np.float32), np.array([flip])
    parts = crops.windows(height, width, uniforms, asked)
    places = crops.places(height, width, uniforms, flips, asked)
    frames = crops.frames(height, width, parts, asked, places) if asked.filters else None
    cuts = image_decoder.Cuts(parts, frames, flips, places)
    wanted = image_decoder.Wanted([b""], [b""], np.array([sides]), None, cuts)
    [place] = np.array([[0, 0, *asked.size]]) if places is None else places
    return {"part": parts[0], "place": place, "step": wanted.geometry(asked.size).step[0]}


@hypothesis.given(
    sides=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    size=st.tuples(st.integers(3, 20), st.integers(3, 20)),
    pad=st.integers(0, 2),
    draws=st.tuples(*[st.floats(0, 1, exclude_max=True, width=32)] * 2),
    flip=st.booleans(),
)
def test_padded_crop_is_a_crop_of_the_padded_image(
    sides: tuple[int, int], size: tuple[int, int], pad: int, draws: tuple[float, float], flip: bool
) -> None:
    asked = options_lib.ReadOptions(crop="pad", image_size=size, pad_pixels=pad, batch_size=1)
    pixels = np.random.default_rng(2).integers(256, size=(*sides, 3), dtype=np.uint8)
    height, width = (np.array([side]) for side in sides)
    uniforms = np.zeros((1, crops.NUM_UNIFORMS), np.float32)
    uniforms[0, 2 * crops.NUM_TRIALS : 2 * crops.NUM_TRIALS + 2] = draws
    [part] = crops.windows(height, width, uniforms, asked)
    places = crops.places(height, width, uniforms, np.array([flip]), asked)
    found = decode(pixels, size, part=part, places=places, flip=flip, fill=bytes([1, 2, 3]))
    border = 40
    padded = np.full((sides[0] + 2 * border, sides[1] + 2 * border, 3), [1, 2, 3], np.uint8)
    padded[border:-border, border:-border] = pixels
    starts = []
    for side, wanted, drawn in zip(sides, size, draws, strict=True):
        room = side + 2 * pad - wanted
        starts.append(border - pad + (int(drawn * (room + 1)) if room >= 0 else room // 2))
    expected = padded[starts[0] : starts[0] + size[0], starts[1] : starts[1] + size[1]]
    np.testing.assert_array_equal(found, expected[:, ::-1] if flip else expected)


def test_random_numbers_reach_all_places_and_no_others() -> None:
    asked = options_lib.ReadOptions(crop="pad", image_size=32, pad_pixels=4, batch_size=1)
    count = 4000
    uniforms = np.random.default_rng(3).random((count, crops.NUM_UNIFORMS), np.float32)
    side = np.full(count, 32)
    places = crops.places(side, side, uniforms, np.zeros(count, bool), asked)
    parts = crops.windows(side, side, uniforms, asked)
    assert places is not None
    for axis in range(2):
        starts, counts = np.unique(parts[:, axis] - places[:, axis], return_counts=True)
        assert starts.tolist() == list(range(-4, 5)) and counts.min() > count / 9 * 0.8


# --- erasing --------------------------------------------------------------


def test_erased_parts_are_of_the_area_and_ratio_of_torchvision() -> None:
    asked = options_lib.ReadOptions(image_size=(64, 96), erasing=0.25, batch_size=1)
    uniforms = np.random.default_rng(4).random((8000, image_changes.NUM_UNIFORMS), np.float32)
    parts = image_changes.erased(uniforms, asked)
    assert parts is not None
    top, left, height, width = parts[parts[:, 2] > 0].T.astype(float)
    assert 0.23 < len(top) / len(parts) < 0.27
    area, ratio = height * width / (64 * 96), height / width
    assert 0.015 < area.min() < 0.03 and 0.3 < area.max() < 0.35 and 0.15 < area.mean() < 0.19
    assert 0.25 < ratio.min() < 0.4 and 2.5 < ratio.max() < 3.8 and abs(np.log(ratio).mean()) < 0.1
    assert top.min() == left.min() == 0 and (top + height).max() == 64 and (left + width).max() == 96


def test_erased_part_becomes_the_fill_after_colors_and_before_values() -> None:
    change, erased = np.array([[0.5, 1, 1, 0, 0]], np.float32), np.array([[2, 3, 4, 5]], np.int32)
    found = decode(NOISE, NOISE.shape[:2], colors=change, erased=erased, fill=bytes([10, 20, 30]))
    expected = np.floor(NOISE / 2 + 0.5)
    expected[2:6, 3:8] = [10, 20, 30]
    np.testing.assert_array_equal(found, expected)


# --- the reader --------------------------------------------------------------


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> imagebeam.ImageDataset:
    examples = [{**written.jpeg_values(index), features.LABEL: index % 2} for index in range(10)]
    folder = tmp_path_factory.mktemp("changes") / "out"
    return written.write(folder, (*written.IMAGE, written.LABEL), examples, labels=("cat", "dog"))


ALL = {"color_jitter": {"brightness": 0.4, "contrast": (0.5, 2), "hue": 0.1}, "erasing": 0.5, "fill": (124, 116, 104)}


@case_tables.each_case("crop", ["random", "letterbox", "pad", "resize_shorter"])
def test_changes_are_the_same_in_any_process_and_of_any_type(dataset: imagebeam.ImageDataset, crop: str) -> None:
    asked: dict[str, Any] = {"image_size": 24, "crop": crop, "num_epochs": 2, "metadata": True, **ALL}

    def read(**more: Any) -> dict[tuple[int, int], np.ndarray]:
        return {
            (int(epoch), int(record)): image
            for batch in dataset.as_numpy("train", 3, shuffle="global", pad=True, **asked, **more)
            for epoch, record, image, mask in zip(batch["epoch"], batch["record"], batch["image"], batch["mask"])
            if mask
        }

    whole = read()
    assert len(whole) == 20 and len({each.tobytes() for each in whole.values()}) == 20
    parts = [read(process_count=3, process_index=index, dtype="float32") for index in range(3)]
    assert sum(map(len, parts)) == 20
    for key, image in itertools.chain(*(part.items() for part in parts)):
        np.testing.assert_array_equal(image, whole[key])


def test_options_of_changes_leave_the_crops_of_others(dataset: imagebeam.ImageDataset) -> None:
    plain, same = (
        np.concatenate([each["image"] for each in dataset.as_numpy("train", 5, num_epochs=1, image_size=16, **more)])
        for more in ({}, {"color_jitter": {"brightness": (1, 1)}, "erasing": 1e-9})
    )
    np.testing.assert_array_equal(plain, same)


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "pillow": ("decoder-cannot-change", {"erasing": 0.5, "decoder": "pillow"}),
    "pillow and a place": ("decoder-cannot-change", {"crop": "letterbox", "decoder": "pillow"}),
    "border": ("options-conflict", {"crop": "pad", "image_size": 4}),
    "other images": ("options-conflict", {"crop": "pad", "images": ["target"]}),
    "name": ("option-bad-value", {"color_jitter": {"gamma": 1}}),
    "nothing": ("option-bad-value", {"color_jitter": {}}),
    "negative": ("option-bad-value", {"color_jitter": {"contrast": -0.1}}),
    "hue": ("option-bad-value", {"color_jitter": {"hue": 0.6}}),
    "three": ("option-bad-value", {"color_jitter": {"hue": (0, 0.1, 0.2)}}),
    "text": ("option-bad-value", {"color_jitter": {"hue": "0.1"}}),
    "level": ("option-bad-value", {"fill": 256}),
    "two levels": ("option-bad-value", {"fill": (0, 0)}),
    "probability": ("option-bad-value", {"erasing": 1.5}),
}


@case_tables.each_case("code, options", REFUSED)
def test_wrong_change_is_refused(dataset: imagebeam.ImageDataset, code: str, options: dict[str, Any]) -> None:
    with error_texts.raises(code):
        dataset.as_numpy("train", 2, **options)


def test_changes_of_images_of_any_size_are_refused(dataset: imagebeam.ImageDataset) -> None:
    pytest.importorskip("tensorflow")
    with error_texts.raises("options-conflict"):
        dataset.as_tf("train", image_size=None, crop=None, erasing=0.5)
