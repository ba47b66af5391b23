"""Lists of images in a batch: each image as a reader of single images gives it, black images, and the count."""

from __future__ import annotations

import io
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

import imagebeam
from imagebeam import features
from tests import case_tables, error_texts, image_sets
from tests.unit.imagebeam.reader import sized_sets, written

COUNTS = (2, 1, 4, 3, 1, 2)  # images of the examples
SIZE = (20, 24)
PARTS = ("image/height", "image/width", features.ENCODED)
LISTED = tuple(each._replace(many=True) for each in written.IMAGE if each.source in PARTS)
KEY = next(each for each in written.IMAGE if each.source == "image/key")
READERS: dict[str, dict[str, Any]] = {
    "flip": {"crop": "squash", "flip": True, "decoder": "native"},
    "shorter": {"crop": "resize_shorter", "antialias": True, "decoder": "native"},
    "random": {"crop": "random", "decoder": "native"},
    "center": {"crop": "center", "decoder": "pillow"},
    "random of pillow": {"crop": "random", "decoder": "pillow"},
}


def image(example: int, place: int, equal: bool) -> bytes:
    """Returns an image of a side that its place has, or one for all of an example."""
    size = (40 + example, 30) if equal else (40 + 3 * place, 30 + example)
    return image_sets.make_image(10 * example + (0 if equal else place), "PNG", size=size)


def write(folder: pathlib.Path, equal: bool = False, changed: dict[str, Any] | None = None) -> imagebeam.ImageDataset:
    """Writes examples with lists; `changed` are other values of the example 2."""
    examples = []
    for number, count in enumerate(COUNTS):
        images = [image(number, place, equal) for place in range(count)]
        sides = [Image.open(io.BytesIO(each)).size for each in images]
        heights, widths = [height for _, height in sides], [width for width, _ in sides]
        values = {"image/format": b"png", "image/key": b"%d" % number, "image/height": heights, "image/width": widths}
        examples.append({**values, features.ENCODED: images})
    examples[2] |= changed or {}
    return written.write(folder, (*LISTED, KEY), examples)


def write_alone(folder: pathlib.Path, place: int, equal: bool = False) -> imagebeam.ImageDataset:
    """Writes the images at one place of the lists, each as an example of its own; black ones where a list is over."""
    examples = []
    for number, count in enumerate(COUNTS):
        data = image(number, place, equal) if place < count else image_sets.save(Image.new("RGB", (9, 9)))
        width, height = Image.open(io.BytesIO(data)).size
        known = {"image/channels": 3, "image/format": b"png", "image/key": b"%d" % number}
        examples.append({**known, "image/height": height, "image/width": width, features.ENCODED: data})
    return written.write(folder, written.IMAGE, examples)


@case_tables.each_case("reader", READERS)
def test_images_of_a_list_are_those_of_single_examples(tmp_path: pathlib.Path, reader: dict[str, Any]) -> None:
    options = {"image_size": SIZE, "shuffle": None, "num_epochs": 2, **reader}
    options |= {"dtype": "float32", "normalize": (100.0, 50.0)}
    listed = [*write(tmp_path / "lists").as_numpy("train", 4, max_images=2, **options)]
    for place in range(2):
        alone = [*write_alone(tmp_path / str(place), place).as_numpy("train", 4, **options)]
        for one, other in zip(listed, alone, strict=True):
            assert np.array_equal(one["image"][:, place], other["image"])
    counts = np.concatenate([each["image/count"][each["mask"]] for each in listed])
    assert counts.tolist() == [*COUNTS] * 2 and listed[0]["image"].shape == (4, 2, *SIZE, 3)


@pytest.mark.parametrize("decoder", ["native", "pillow"])
def test_images_of_equal_sides_have_one_crop_and_flip(tmp_path: pathlib.Path, decoder: str) -> None:
    batches = write(tmp_path / "set", equal=True).as_tf("train", 6, image_size=SIZE, max_images=4, decoder=decoder)
    seen = set()
    for batch in batches.take(3).as_numpy_iterator():
        for images, count in zip(batch["image"], batch["image/count"]):
            assert all(np.array_equal(images[0], each) for each in images[:count]) and not images[count:].any()
            seen.add(images[0].tobytes())
    assert len(seen) > len(COUNTS)  # drawn again in each epoch


def test_every_feed_has_the_images_of_numpy(tmp_path: pathlib.Path) -> None:
    options: dict[str, Any] = {"image_size": SIZE, "max_images": 3, "shuffle": "global", "num_epochs": 1}
    sized_sets.check_feeds(sized_sets.OfSplit(write(tmp_path / "set")), 3, **options)


def test_grain_gives_all_images_in_their_sizes(tmp_path: pathlib.Path) -> None:
    dataset = write(tmp_path / "set")
    for number, count in enumerate(COUNTS):
        for decode in (True, False):
            found = dataset.as_grain("train", decode=decode)[number]["image"]
            assert len(found) == count
            for place, each in enumerate(found):
                data = image(number, place, False)
                assert np.array_equal(each, np.asarray(Image.open(io.BytesIO(data)))) if decode else each == data


def test_mixture_gives_lists_of_images(tmp_path: pathlib.Path) -> None:
    mixed = imagebeam.Mixture([(write(tmp_path / name), "train") for name in ("one", "two")], [1, 1])
    assert next(mixed.as_numpy(4, image_size=SIZE, max_images=2))["image"].shape == (4, 2, *SIZE, 3)
    with error_texts.raises("options-conflict"):
        both = [(write(tmp_path / "three"), "train"), (write_alone(tmp_path / "alone", 0), "train")]
        imagebeam.Mixture(both, [1, 1]).as_numpy(4, image_size=SIZE, max_images=2)


def test_statistics_are_of_first_images(tmp_path: pathlib.Path) -> None:
    expected = write_alone(tmp_path / "alone", 0).pixel_statistics("train")
    assert write(tmp_path / "set").pixel_statistics("train") == expected


@pytest.mark.parametrize("decoder", ["native", "pillow"])
@pytest.mark.parametrize(
    ("changed", "detail"),
    [
        (
            {features.ENCODED: [image(2, 0, False), b"no image", b"none", image(2, 3, False)]},
            "image 1 of its list cannot",
        ),
        ({"image/height": [30]}, "features image/encoded, image/height, image/width have 4, 1, 4 values"),
        ({features.ENCODED: []}, "feature 'image/encoded' has no values"),
    ],
    ids=["broken", "other sides", "none"],
)
def test_bad_image_is_a_fault_of_its_example(
    tmp_path: pathlib.Path, decoder: str, changed: dict[str, Any], detail: str
) -> None:
    options: dict[str, Any] = {"image_size": SIZE, "max_images": 3, "shuffle": None, "decoder": decoder}
    dataset = write(tmp_path / "set", changed=changed)
    with pytest.raises(imagebeam.ExampleError, match="key '2'") as caught:
        list(dataset.as_numpy("train", 6, **options))
    assert detail in str(caught.value)
    skip: dict[str, Any] = {"on_error": "skip", "max_error_fraction": 1.0, "features": ["image/key"]}
    [batch] = dataset.as_numpy("train", 6, **options, **skip)
    assert batch["image/key"][batch["mask"]].tolist() == [b"0", b"1", b"3", b"4", b"5"]
    assert batch["image/count"][batch["mask"]].tolist() == [2, 1, 3, 1, 2]


def test_broken_image_that_a_batch_has_no_room_for_is_not_decoded(tmp_path: pathlib.Path) -> None:
    images = [*[image(2, 0, False)] * 3, b"no image"]
    sides = {"image/height": [32] * 4, "image/width": [40] * 4}
    dataset = write(tmp_path / "set", changed={features.ENCODED: images, **sides})
    [batch] = dataset.as_numpy("train", 6, image_size=SIZE, max_images=3, shuffle=None)
    assert batch["image/count"].tolist() == [*COUNTS]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({}, "max-images-missing"),
        ({"max_images": 0}, "option-bad-value"),
        ({"max_images": 2, "supervised": True}, "options-conflict"),
        ({"max_images": 2, "image_size": None, "crop": None}, "options-conflict"),
        ({"max_images": 2, "images": ["target"]}, "image-unknown"),
    ],
)
def test_options_that_do_not_fit_lists_are_refused(tmp_path: pathlib.Path, options: dict[str, Any], code: str) -> None:
    with error_texts.raises(code):
        write(tmp_path / "set").as_tf("train", **options)


def test_dropped_sides_and_single_images_are_refused(tmp_path: pathlib.Path) -> None:
    with error_texts.raises("options-conflict"):
        write_alone(tmp_path / "alone", 0).as_numpy("train", 2, max_images=2)
    wanted = [each for each in LISTED if each.source != "image/width"]
    sides = {"image/height": [16], "image/width": [24]}
    examples = [{"image/format": b"png", **sides, features.ENCODED: [image_sets.make_image(1, "PNG")]}]
    with error_texts.raises("image-without-sides"):
        written.write(tmp_path / "set", wanted, examples).as_numpy("train", 1, max_images=2)
