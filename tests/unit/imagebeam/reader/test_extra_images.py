"""Extra images and masks of an example, decoded with the crop, flip and size of its first image."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from PIL import Image

import imagebeam
from imagebeam import features
from tests import datasets, error_texts, image_sets
from tests.unit.imagebeam.reader import sized_sets, written

SIDES = (60, 48)  # height and width of the smaller images
LEVEL = 4  # levels of brightness from one row to the next
COUNT, SIZE = 5, (40, 32)
PARTS = ("encoded", "format", "height", "width")
KINDS = {"encoded": features.BYTES, "format": features.BYTES, "height": features.INT64, "width": features.INT64}
TARGET = tuple(features.Feature(f"image/target/{part}", f"image/target/{part}", KINDS[part]) for part in PARTS)
MASK = features.Feature("image/segmentation/class/encoded", "image/segmentation/class/encoded", features.BYTES)
CROPS: Mapping[str, dict[str, Any]] = {
    "whole": {"crop": "squash", "flip": False},
    "flip": {"crop": "squash", "flip": True},
    "center": {"crop": "center", "flip": False},
    "random": {"crop": "random", "flip": False},
    "random flip": {"crop": "random", "flip": True},
    "filtered": {"crop": "random", "antialias": True, "interpolation": "bicubic"},
    "shorter": {"crop": "resize_shorter", "flip": True},
}


def ramps(factor: int, is_target: bool) -> Image.Image:
    """Returns a picture whose colors are its rows and columns; those of a target are exchanged."""
    rows, columns = ((np.arange(side * factor) + 0.5) / factor * LEVEL for side in SIDES)
    down, right = np.meshgrid(rows, columns, indexing="ij")
    colors = [right, np.full_like(down, 99), down] if is_target else [down, right, np.full_like(down, 7)]
    return Image.fromarray(np.stack(colors, 2).astype(np.uint8))


def example_of(index: int, image_format: str, factors: tuple[int, int]) -> dict[str, Any]:
    options = {"quality": 98, "subsampling": 0} if image_format == "JPEG" else {}
    first, target = ramps(factors[0], False), ramps(factors[1], True)
    classes = np.repeat(np.arange(first.height, dtype=np.uint8)[:, None], first.width, axis=1)
    named = image_format.lower().encode()
    return {
        "image/channels": 3,
        "image/format": named,
        "image/height": first.height,
        "image/key": f"{index}".encode(),
        "image/width": first.width,
        features.ENCODED: image_sets.save(first, image_format, **options),
        "image/target/encoded": image_sets.save(target, image_format, **options),
        "image/target/format": named,
        "image/target/height": target.height,
        "image/target/width": target.width,
        MASK.source: image_sets.save(Image.fromarray(classes)),
    }


def write(
    folder: pathlib.Path,
    image_format: str = "PNG",
    factors: tuple[int, int] = (1, 1),
    changed: Mapping[str, Any] | None = None,
) -> imagebeam.ImageDataset:
    """Writes a dataset with targets and masks; `changed` are other values of the example 2."""
    examples = [example_of(index, image_format, factors) for index in range(COUNT)]
    examples[2] |= changed or {}
    statistics = {"formats": {image_format.lower(): COUNT}}
    return written.write(folder, (*written.IMAGE, *TARGET, MASK), examples, statistics=statistics)


def window_in(image: np.ndarray) -> tuple[bool, tuple[float, float, float, float]]:
    """Returns whether a decoded picture of `ramps` is mirrored, and the part: left, top, right, bottom."""
    edges, is_mirrored = [], False
    for axis, channel in enumerate(range(2)):
        line = image[..., channel].astype(float).mean(axis=1 - axis)
        margin = len(line) // 4
        inner = np.arange(margin, len(line) - margin)
        slope, start = np.polyfit(inner + 0.5, line[inner] / LEVEL, 1)
        ends = [start, start + slope * len(line)]
        is_mirrored |= slope < 0
        edges.append(sorted(ends))
    (top, bottom), (left, right) = edges
    return is_mirrored, (left, top, right, bottom)


def expected_target(image: np.ndarray, factor: int) -> np.ndarray:
    """Returns what Pillow makes of the target, with the part that the decoded image has."""
    is_mirrored, box = window_in(image)
    target = ramps(factor, True)
    left, top, right, bottom = (max(each * factor, 0.0) for each in box)
    inside = (left, top, min(right, target.width), min(bottom, target.height))
    made = np.asarray(target.resize(SIZE[::-1], Image.Resampling.BILINEAR, box=inside)).astype(float)
    return made[:, ::-1] if is_mirrored else made


def batches_of(dataset: imagebeam.ImageDataset, feed: str, **options: Any) -> list[dict[str, np.ndarray]]:
    options = {"image_size": SIZE, "images": ["target", "segmentation"], "num_epochs": 2, **options}
    if feed == "as_numpy":
        return list(dataset.as_numpy("train", COUNT, **options))
    return list(dataset.as_tf("train", COUNT, **options).as_numpy_iterator())


# Each pair of two settings.
@pytest.mark.parametrize(
    ("image_format", "factors", "feed", "decoder"),
    [
        ("PNG", (1, 1), "as_numpy", "auto"),
        ("PNG", (1, 2), "as_tf", "pillow"),
        ("PNG", (2, 1), "as_numpy", "auto"),
        ("JPEG", (1, 1), "as_tf", "pillow"),
        ("JPEG", (1, 2), "as_numpy", "auto"),
        ("JPEG", (2, 1), "as_tf", "pillow"),
    ],
)
def test_extra_images_have_the_geometry_of_the_image(
    tmp_path: pathlib.Path, image_format: str, feed: str, decoder: str, factors: tuple[int, int]
) -> None:
    dataset = write(tmp_path / "set", image_format, factors)
    allowed = 4 if image_format == "PNG" else 8  # levels: a pixel, and the losses of JPEG
    for name, options in CROPS.items():
        turned = set()
        for batch in batches_of(dataset, feed, decoder=decoder, **options):
            assert batch["target"].dtype == batch["segmentation"].dtype == np.uint8
            assert batch["target"].shape == batch["image"].shape and batch["segmentation"].shape == (COUNT, *SIZE, 1)
            for image, target, mask in zip(batch["image"], batch["target"], batch["segmentation"]):
                assert np.abs(target.astype(float) - expected_target(image, factors[1])).max() <= 2 * allowed, name
                exchanged = np.stack([image[..., 1], np.full(SIZE, 99), image[..., 0]], 2)
                assert np.abs(target.astype(float) - exchanged).max() <= allowed, name
                rows = (mask[..., 0] + 0.5) / factors[0] * LEVEL
                assert np.abs(rows - image[..., 0]).max() <= LEVEL + allowed, name
                turned.add(window_in(image)[0])
        assert turned == ({False, True} if "flip" in name or name in ("shorter", "filtered") else {False})


def test_masks_are_resized_to_the_nearest_pixel_as_pillow_does(tmp_path: pathlib.Path) -> None:
    dataset = write(tmp_path / "set")
    [batch] = batches_of(dataset, "as_numpy", crop="squash", flip=False, num_epochs=1)
    classes = Image.fromarray(np.repeat(np.arange(SIDES[0], dtype=np.uint8)[:, None], SIDES[1], axis=1))
    expected = np.asarray(classes.resize(SIZE[::-1], Image.Resampling.NEAREST))
    assert all(np.array_equal(mask[..., 0], expected) for mask in batch["segmentation"])


@pytest.mark.parametrize("crop", ["random", "center", "resize_shorter", "squash", "letterbox", "pad"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("halved", [False, True])
def test_segmentation_shows_what_the_image_shows(tmp_path: pathlib.Path, crop: str, dtype: str, halved: bool) -> None:
    dataset = write(tmp_path / "set")
    height, width = 40, 44  # of another aspect ratio than the images
    asked = imagebeam.Segmentation(ignore=250, size=(height // 2, width // 2) if halved else None, dtype=dtype)
    options = {"image_size": (height, width), "crop": crop, "flip": True, "fill": (0, 0, 255), "pad_pixels": 9}
    num_beside = 0
    for batch in dataset.as_numpy("train", COUNT, segmentation=asked, num_epochs=2, **options):
        masks = batch["segmentation"].repeat(2, axis=1).repeat(2, axis=2) if halved else batch["segmentation"]
        assert masks.dtype == dtype and masks.shape == (COUNT, height, width, 1)
        for image, mask in zip(batch["image"].astype(float), masks[..., 0].astype(int), strict=True):
            is_beside = image[..., 2] == 255
            edges = np.zeros_like(is_beside)  # where the middle of a pixel of a smaller mask may be on either side
            for axis in range(2):
                edges |= is_beside != np.roll(is_beside, 1, axis) if halved else False
                edges |= is_beside != np.roll(is_beside, -1, axis) if halved else False
            assert np.array_equal((mask == 250)[~edges], is_beside[~edges])
            shown = ~is_beside & ~edges
            steps = np.abs(np.diff(image[..., 0], axis=0))[shown[1:] & shown[:-1]]
            differing = np.abs((mask + 0.5) * LEVEL - image[..., 0])[shown]
            assert differing.max() <= 2 * LEVEL + np.median(steps)
            num_beside += is_beside.sum()
    assert (num_beside > 0) == (crop in ("letterbox", "pad"))


def test_the_image_is_the_same_with_and_without_extra_images(tmp_path: pathlib.Path) -> None:
    dataset = write(tmp_path / "set", "JPEG")
    for alone, beside in zip(batches_of(dataset, "as_numpy", images=[]), batches_of(dataset, "as_numpy"), strict=True):
        assert alone.keys() == beside.keys() - {"target", "segmentation"}
        assert np.array_equal(alone["image"], beside["image"])


@pytest.mark.parametrize("decoder", ["auto", "pillow"])
def test_type_normalization_and_padding_are_those_of_the_image(tmp_path: pathlib.Path, decoder: str) -> None:
    dataset = write(tmp_path / "set")
    options = {"image_size": SIZE, "images": ["target", "segmentation"], "shuffle": None, "decoder": decoder}
    exact = list(dataset.as_numpy("train", 3, **options))
    scaled = list(dataset.as_numpy("train", 3, dtype="float32", normalize=(127.5, 127.5), **options))
    for one, other in zip(exact, scaled, strict=True):
        real = one["mask"]
        assert np.allclose(other["target"][real], one["target"][real] / 127.5 - 1, atol=1e-5)
        assert other["target"].dtype == np.float32 and other["segmentation"].dtype == np.uint8
    assert np.array_equal(scaled[-1]["target"][-1], scaled[-1]["image"][-1]) and not exact[-1]["mask"][-1]


def test_single_examples_of_their_own_size_are_flipped_alike(tmp_path: pathlib.Path) -> None:
    dataset = write(tmp_path / "set", factors=(1, 2))
    names, mirrored = ["target", "segmentation"], set()
    examples = dataset.as_tf("train", image_size=None, crop=None, flip=True, images=names, num_epochs=2)
    for each in examples.as_numpy_iterator():
        assert each["target"].shape == (2 * SIDES[0], 2 * SIDES[1], 3) and each["segmentation"].shape == (*SIDES, 1)
        is_mirrored = window_in(each["image"])[0]
        rights = each["target"][0, :, 0].astype(int)
        assert (rights[0] > rights[-1]) == is_mirrored
        mirrored.add(is_mirrored)
    assert mirrored == {False, True}


@pytest.mark.parametrize("decoder", ["auto", "pillow"])
@pytest.mark.parametrize(
    ("changed", "detail"),
    [
        ({"image/target/encoded": b"no image"}, "image 'target' cannot be decoded"),
        (
            {"image/target/height": 90},
            "the image has 60 x 48 pixels, image 'target' has 90 x 48 pixels",
        ),
        (
            {MASK.source: image_sets.make_image(1, "PNG", "L", (9, 9))},
            "decoded: the image is uint8 of 9 x 9 pixels",
        ),
        (
            {MASK.source: image_sets.save(Image.new("I;16", SIDES[::-1]))},
            "cannot be decoded: the image is uint16 of 60 x 48 pixels",
        ),
    ],
    ids=["broken", "other sides", "small mask", "wide mask"],
)
def test_bad_extra_image_is_a_fault_of_its_example(
    tmp_path: pathlib.Path, decoder: str, changed: dict[str, Any], detail: str
) -> None:
    dataset = write(tmp_path / "set", changed=changed)
    with pytest.raises(imagebeam.ExampleError, match="key '2'") as caught:
        batches_of(dataset, "as_numpy", decoder=decoder, shuffle=None)
    assert detail in str(caught.value)
    left = batches_of(dataset, "as_numpy", decoder=decoder, shuffle=None, on_error="skip", features=["image/key"])
    assert [batch["image/key"][batch["mask"]].tolist() for batch in left] == [[b"0", b"1", b"3", b"4"]] * 2


def test_crop_of_whole_images_takes_any_sides(tmp_path: pathlib.Path) -> None:
    wide = image_sets.make_image(1, "PNG", size=(31, 17))
    sides = {"image/target/height": 17, "image/target/width": 31, "image/target/encoded": wide}
    assert len(batches_of(write(tmp_path / "set", changed=sides), "as_numpy", crop="squash")) == 2


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"images": ["source"]}, "image-unknown"),
        ({"images": "target"}, "option-bad-value"),
        ({"images": ["target"], "supervised": True}, "options-conflict"),
    ],
)
def test_wrong_images_are_refused(tmp_path: pathlib.Path, options: dict[str, Any], code: str) -> None:
    with error_texts.raises(code):
        write(tmp_path / "set").as_numpy("train", 2, **options)


def test_dropped_sides_and_taken_names_are_refused(tmp_path: pathlib.Path) -> None:
    examples = [example_of(index, "PNG", (1, 1)) for index in range(2)]
    wanted = [each for each in TARGET if each.source != "image/target/height"]
    dataset = written.write(tmp_path / "set", (*written.IMAGE, *wanted), examples)
    with error_texts.raises("image-without-sides"):
        dataset.as_numpy("train", 2, images=["target"])
    named = {f"image/mask/{part}": examples[0][f"image/target/{part}"] for part in PARTS}
    others = [features.Feature(key, key, KINDS[key.rpartition("/")[2]]) for key in named]
    dataset = written.write(tmp_path / "other", (*written.IMAGE, *others), [example | named for example in examples])
    with error_texts.raises("feature-name-taken"):
        dataset.as_numpy("train", 2, shuffle=None, images=["mask"])


def test_images_of_16_bits_are_taken_as_bytes(tmp_path: pathlib.Path) -> None:
    for folder in ("input", "target"):
        (tmp_path / "in" / folder).mkdir(parents=True)
        image = Image.fromarray(np.arange(6, dtype=np.uint16).reshape(2, 3) * 9999)
        (tmp_path / "in" / folder / "1.png").write_bytes(image_sets.save(image, "PNG"))
    source = {"by": "pairs", "pairs": {"image": r"input/(.*)\.png", "others": {"target": r"target/\1.png"}}}
    none = {"by": "none"}
    datasets.make(tmp_path / "in", tmp_path / "out", source=source, image={"dtype": "uint16"}, label=none, split=none)
    with error_texts.raises("image-other-form"):
        imagebeam.open_dataset(tmp_path / "out").as_numpy("train", 1, images=["target"])


def test_mixture_of_datasets_gives_extra_images(tmp_path: pathlib.Path) -> None:
    both = [(write(tmp_path / name), "train") for name in ("one", "two")]
    mixed = imagebeam.Mixture(both, [1, 1])
    batch = next(mixed.as_numpy(4, image_size=SIZE, images=["target"]))
    assert batch["target"].shape == batch["image"].shape
    exchanged = batch["image"][..., [1, 2, 0]]
    assert np.abs(batch["target"][..., [0, 2]].astype(int) - exchanged[..., [0, 2]]).max() <= 2


def test_bytes_of_an_extra_image_under_a_crop_are_logged(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "imagebeam.dataset"):
        write(tmp_path / "set").as_tf("train", 2, features=["image/target/encoded"])
    assert "images=['target'] decodes them alike" in caplog.text


def test_every_feed_has_the_images_of_numpy(tmp_path: pathlib.Path) -> None:
    options: dict[str, Any] = {"image_size": SIZE, "images": ["target", "segmentation"], "num_epochs": 2}
    sized_sets.check_feeds(sized_sets.OfSplit(write(tmp_path / "set")), 4, **options)
