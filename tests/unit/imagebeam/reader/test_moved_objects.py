"""Boxes, masks and keypoints move with the pixels: images tell by their colors where each pixel was stored."""

from __future__ import annotations

import io
import itertools
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

import imagebeam
from imagebeam.reader import moved_objects
from tests import case_tables, datasets, error_texts, image_sets, object_sets
from tests.unit.imagebeam.reader import sized_sets

SIZE = (96, 80)
ALL = imagebeam.Objects(masks=(48, 40), keypoints=True, min_visible=0.31, max=4, features=["image/object/area"])


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return object_sets.write(tmp_path_factory.mktemp("objects"))


PADDED: dict[str, Any] = {"max_enlarge": 0.5, "too_small": "pad"}  # 4 of the 6 images are then small
CROPS: list[dict[str, Any]] = [
    {"crop": "random", "flip": True},
    {"crop": "random", "flip": True, "antialias": True},
    {"crop": "random", "flip": True, "interpolation": "bicubic", "area": (0.5, 1.0)},
    {"crop": "center", "flip": False},
    {"crop": "center", "flip": True, "antialias": True},
    {"crop": "resize_shorter", "flip": True},
    {"crop": "squash", "flip": True},
    {"crop": "letterbox", "flip": True, "fill": 255},
    {"crop": "letterbox", "flip": False, "antialias": True},
    {"crop": "pad", "flip": True, "pad_pixels": 9},
    {"crop": "cover", "flip": True, **PADDED},
    {"crop": "center", "flip": True, "antialias": True, **PADDED},
    {"crop": "random", "flip": True, **PADDED},
    {"crop": "resize_shorter", "flip": True, **PADDED},
    {"crop": "resize_shorter", "flip": True, "center_fraction": 1.0, "interpolation": "bicubic", **PADDED},
    {"crop": "letterbox", "flip": True, **PADDED},
    {"crop": "letterbox", "flip": True, "antialias": True, **PADDED},
]


def batches(dataset: pathlib.Path, objects: imagebeam.Objects = ALL, **options: Any) -> list[dict[str, np.ndarray]]:
    found = imagebeam.open_dataset(dataset).as_numpy(
        "train", 3, **{"image_size": SIZE, "num_epochs": 3, "drop_remainder": False, "objects": objects, **options}
    )
    return list(found)


@pytest.mark.parametrize("options", CROPS, ids=str)
def test_objects_are_where_the_pixels_are(dataset: pathlib.Path, options: dict[str, Any]) -> None:
    known = object_sets.stored(dataset)
    height, width = SIZE
    mirrored = set()
    for batch in batches(dataset, **options):
        for row in range(len(batch["image"])):
            each = {name: values[row] for name, values in batch.items()}
            image, matrix = each["image"].astype(np.int32), each["transform"].astype(np.float64)
            number = int(image[height // 2, width // 2, 2])
            sides = object_sets.SIZES[number]
            example = known[number]
            back = [matrix @ (x + 0.5, y + 0.5, 1) for y in range(height) for x in range(width)]
            x, y = np.array(back)[:, :2].T.reshape(2, height, width)
            mirrored.add(bool(matrix[0, 0] < 0))
            # Colors say where each pixel was stored; a filter changes them beside the edges of the image.
            margin = 2 + 2 * max(1, abs(matrix[0, 0]), matrix[1, 1])
            inner = (x > margin) & (y > margin) & (x < sides[1] - margin) & (y < sides[0] - margin)
            assert np.abs(image[..., 0] - (x - 0.5))[inner].max(initial=0) <= 1.01
            assert np.abs(image[..., 1] - (y - 0.5))[inner].max(initial=0) <= 1.01
            check_objects(each, example, sides, np.linalg.inv(matrix))
    assert mirrored == ({True, False} if options["flip"] else {False})


def check_objects(
    each: dict[str, np.ndarray], example: dict[str, Any], sides: tuple[int, int], forward: np.ndarray
) -> None:
    """Computes the objects once more, one by one, from what is stored."""
    height, width = SIZE
    expected = []
    for index in range(len(example["image/object/class/label"])):
        edges = [example[f"image/object/bbox/{edge}"][index] for edge in ("xmin", "ymin", "xmax", "ymax")]
        corners = [
            forward @ (edges[0] * sides[1], edges[1] * sides[0], 1),
            forward @ (edges[2] * sides[1], edges[3] * sides[0], 1),
        ]
        (left, right), (top, bottom) = (sorted(corner[axis] for corner in corners) for axis in range(2))
        clipped = [max(top, 0), max(left, 0), min(bottom, height), min(right, width)]
        visible = max(clipped[2] - clipped[0], 0) * max(clipped[3] - clipped[1], 0)
        part = visible / ((bottom - top) * (right - left))
        assert abs(part - ALL.min_visible) > 1e-5, "the sets of these tests have no such case"
        if part > ALL.min_visible:
            expected.append((index, clipped))
    assert each["num_objects"] == len(expected)
    assert each["valid"].tolist() == [place < len(expected) for place in range(ALL.max)]
    for place, (index, clipped) in enumerate(expected[: ALL.max]):
        np.testing.assert_allclose(each["boxes"][place], clipped, atol=1e-3)
        assert each["labels"][place] == example["image/object/class/label"][index]
        assert each["image/object/area"][place] == example["image/object/area"][index]
        check_keypoints(each["keypoints"][place], example, index, sides, forward)
        check_mask(each["masks"][place], example["image/object/mask"][index], np.linalg.inv(forward))
    for name in ("boxes", "labels", "keypoints", "masks", "image/object/area"):
        assert not each[name][len(expected) :].any()


def check_keypoints(
    found: np.ndarray, example: dict[str, Any], index: int, sides: tuple[int, int], forward: np.ndarray
) -> None:
    height, width = SIZE
    is_mirrored = forward[0, 0] < 0
    for place, point in enumerate((0, 2, 1) if is_mirrored else (0, 1, 2)):
        at = index * len(object_sets.KEYPOINTS) + point
        x, y, visibility = (example[f"image/object/keypoint/{name}"][at] for name in ("x", "y", "visibility"))
        x, y, _ = forward @ (x * sides[1], y * sides[0], 1)
        if min(abs(x), abs(y), abs(x - width), abs(y - height)) < 1e-3:
            continue  # at the edge, where rounding decides
        is_inside = visibility and 0 <= x <= width and 0 <= y <= height
        np.testing.assert_allclose(found[place], (x, y, visibility) if is_inside else (0, 0, 0), atol=1e-3)


def check_mask(found: np.ndarray, encoded: bytes, matrix: np.ndarray) -> None:
    mask = np.asarray(Image.open(io.BytesIO(encoded)))
    height, width = found.shape
    for row, column in itertools.product(range(height), range(width)):
        x, y, _ = matrix @ ((column + 0.5) * SIZE[1] / width, (row + 0.5) * SIZE[0] / height, 1)
        if min(abs(x - round(x)), abs(y - round(y))) < 1e-3:
            continue  # between two pixels, where rounding decides
        x, y = int(np.floor(x)), int(np.floor(y))
        value = mask[y, x] if 0 <= y < mask.shape[0] and 0 <= x < mask.shape[1] else 0
        assert found[row, column] == value


def test_formats_of_boxes_are_of_the_same_boxes(dataset: pathlib.Path) -> None:
    options = {"crop": "random", "area": (0.3, 1.0), "num_epochs": 1}

    def boxes(**fields: Any) -> np.ndarray:
        found = batches(dataset, imagebeam.Objects(**fields), **options)
        return np.concatenate([batch["boxes"][batch["valid"]] for batch in found])

    top, left, bottom, right = boxes().T
    height, width = SIZE
    assert len(top) > 5
    np.testing.assert_allclose(boxes(boxes="xyxy").T, [left, top, right, bottom], rtol=1e-5)
    np.testing.assert_allclose(boxes(boxes="xywh").T, [left, top, right - left, bottom - top], rtol=1e-4, atol=1e-4)
    middle = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
    np.testing.assert_allclose(boxes(boxes="cxcywh").T, middle, rtol=1e-4, atol=1e-4)
    scaled = [top / height, left / width, bottom / height, right / width]
    np.testing.assert_allclose(boxes(normalized=True).T, scaled, rtol=1e-5)
    whole = boxes(clip=False)
    np.testing.assert_allclose(np.clip(whole, 0, [*SIZE, *SIZE]), boxes(), rtol=1e-5, atol=1e-4)
    assert (whole < 0).any() or (whole > [*SIZE, *SIZE]).any()


@pytest.mark.parametrize("crop", ["squash", "letterbox"])
def test_objects_of_whole_images_are_wholly_visible(dataset: pathlib.Path, crop: str) -> None:
    asked = imagebeam.Objects(min_visible=1, max=50)
    for size in ((96, 80), (33, 57), (224, 224)):
        for batch in batches(
            dataset, asked, crop=crop, flip=True, image_size=size, shuffle=None, pad=False, num_epochs=1
        ):
            assert batch["num_objects"].tolist() == [
                len(object_sets.stored(dataset)[int(image[size[0] // 2, size[1] // 2, 2])]["image/object/class/label"])
                for image in batch["image"]
            ]


def test_objects_of_other_categories_are_left_out(dataset: pathlib.Path) -> None:
    every = batches(dataset, imagebeam.Objects(), crop="squash", flip=False)
    some = batches(dataset, imagebeam.Objects(labels={18: 0}), crop="squash", flip=False)
    for one, other in zip(every, some, strict=True):
        for row in range(len(one["boxes"])):
            wanted = one["labels"][row] == 18
            assert other["num_objects"][row] == other["valid"][row].sum() == wanted.sum()
            np.testing.assert_array_equal(other["boxes"][row][other["valid"][row]], one["boxes"][row][wanted])
        assert not other["labels"].any()


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("option-bad-value", {"boxes": "xxyy"}),
    ("option-bad-value", {"max": 0}),
    ("option-bad-value", {"min_visible": 2}),
    ("option-bad-value", {"masks": (0, 4)}),
    ("option-bad-value", {"labels": [1]}),
    ("option-bad-value", {"features": "image/object/area"}),
    ("feature-unknown", {"features": ["image/object/are"]}),
    ("feature-unknown", {"features": ["image/object/keypoint/x"]}),
    ("option-bad-value", {"normalized": "false"}),
    ("option-bad-value", {"min_visible": "0.5"}),
    ("option-bad-value", {"labels": {1: 1 << 40}}),
    ("option-bad-value", {"keypoints": True, "flip_pairs": [("nose", "ear")]}),
    ("option-bad-value", {"keypoints": True, "flip_pairs": [(0, 1), (1, 2)]}),
    ("option-bad-value", {"keypoints": True, "flip_pairs": [("nose", "nose")]}),
]


def test_wrong_options_are_refused(dataset: pathlib.Path) -> None:
    opened = imagebeam.open_dataset(dataset)
    for code, fields in WRONG:
        with case_tables.named(fields), error_texts.raises(code):
            opened.as_numpy("train", 3, image_size=SIZE, objects=imagebeam.Objects(**fields))
    for given in ({"ignore": 256}, {"dtype": "int32"}, {"size": 5}):
        with case_tables.named(given), error_texts.raises("option-bad-value"):
            imagebeam.Segmentation(**given)
    for options in ({"objects": True}, {"segmentation": "uint8"}):
        with case_tables.named(options), error_texts.raises("option-bad-value"):
            opened.as_numpy("train", 3, **options)
    for options in (
        {"objects": imagebeam.Objects(), "supervised": True},
        {"objects": imagebeam.Objects(), "max_images": 2},
        {"segmentation": imagebeam.Segmentation(), "images": ["segmentation"]},
    ):
        with case_tables.named(options), error_texts.raises("options-conflict"):
            opened.as_numpy("train", 3, **options)


def test_dataset_without_objects_is_refused(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in")
    datasets.make(tmp_path / "in", tmp_path / "out")
    opened = imagebeam.open_dataset(tmp_path / "out")
    with error_texts.raises("objects-missing"):
        opened.as_numpy("train", 3, objects=imagebeam.Objects(masks=(8, 8)))
    with error_texts.raises("objects-missing"):
        opened.as_numpy("train", 3, segmentation=imagebeam.Segmentation())


def test_categories_that_the_dataset_does_not_have_are_named(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened = imagebeam.open_dataset(object_sets.write(tmp_path / "out", {1: "person", 18: "dog"}, ()))
    with error_texts.raises("objects-missing"):
        opened.as_numpy("train", 3, image_size=SIZE, objects=imagebeam.Objects(labels={77: 0, 2: 1}))
    opened.as_numpy("train", 3, image_size=SIZE, objects=imagebeam.Objects(labels={1: 0, 2: 1}))
    assert "Objects.labels names 2, and the dataset has the categories 1 (person), 18 (dog)" in caplog.text


def test_mixture_refuses_ids_of_two_categories(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    options: dict[str, Any] = {"image_size": SIZE, "objects": ALL}
    for names, keypoints in (({1: "c1", 18: "zebra"}, object_sets.KEYPOINTS), (None, object_sets.KEYPOINTS[::-1])):
        other = object_sets.write(tmp_path / keypoints[0], names, keypoints)
        parts = [(imagebeam.open_dataset(each), "train") for each in (dataset, other)]
        with error_texts.raises("mixture-classes-differ"):
            imagebeam.Mixture(parts, [1, 1]).as_numpy(4, **options)
    alike = [(imagebeam.open_dataset(dataset), "train")] * 2
    assert next(iter(imagebeam.Mixture(alike, [1, 1]).as_numpy(4, **options)))["boxes"].shape == (4, ALL.max, 4)


def test_pairs_of_keypoints_are_asked_for_if_their_names_do_not_tell_them() -> None:
    asked = imagebeam.Objects(keypoints=True)
    assert moved_objects.mirrored_keypoints(["nose", "right_eye", "left_eye"], asked).tolist() == [0, 2, 1]
    with error_texts.raises("flip-pairs-missing"):
        moved_objects.mirrored_keypoints(["tip", "end"], asked)
    given = imagebeam.Objects(keypoints=True, flip_pairs=[(0, 1)])
    assert moved_objects.mirrored_keypoints(["tip", "end"], given).tolist() == [1, 0]


def test_every_feed_gives_the_same_objects(dataset: pathlib.Path) -> None:
    options: dict[str, Any] = {"image_size": SIZE, "objects": ALL, "num_epochs": 1, "shuffle": "global"}
    sized_sets.check_feeds(sized_sets.OfSplit(imagebeam.open_dataset(dataset)), 6, **options)


def test_map_gets_the_objects_and_may_change_them(dataset: pathlib.Path) -> None:
    def drop(example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {**example, "valid": np.zeros_like(example["valid"])}

    for batch in batches(dataset, map=drop):
        assert not batch["valid"].any() and batch["boxes"].any()
