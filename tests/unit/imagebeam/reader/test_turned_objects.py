"""Boxes, masks and keypoints lie on their pixels after all turns: of the camera, the converter and the reader.

The colors of an image say where each pixel was in its file, and so which objects it belongs to.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import imagebeam
from tests import object_sets
from tests.unit.imagebeam.reader.test_moved_objects import CROPS

TURNS = range(1, 9)
SIZE = (96, 80)
BLUE = 255  # around images
ASKED = imagebeam.Objects(boxes="xyxy", masks=SIZE, keypoints=True, max=9, features=["image/object/area"])
NEAR = 4.5  # pixels of the file: JPEG changes colors by 2, interpolation by 1, and masks are of the nearest pixel

Found = dict[str, np.ndarray]


@pytest.fixture(scope="module", params=["apply", "keep"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp(request.param)
    object_sets.write(root, turns=TURNS, image={"orientation": request.param}, output={"num_shards": 3})
    for number, stored in object_sets.stored(root / "out").items():
        height, width = object_sets.SIZES[number // len(TURNS)]
        is_turned = request.param == "apply" and TURNS[number % len(TURNS)] >= 5  # a quarter
        assert [*stored["image/height"], *stored["image/width"]] == ([width, height] if is_turned else [height, width])
    return root


@pytest.mark.parametrize("options", CROPS, ids=str)
def test_objects_lie_on_their_pixels_in_every_process(folder: pathlib.Path, options: dict[str, Any]) -> None:
    described = json.loads((folder / "train.json").read_text())
    every = {image["file_name"]: [] for image in described["images"]}
    for each in described["annotations"]:
        every[described["images"][each["image_id"]]["file_name"]].append(each)
    asked = {"image_size": SIZE, "objects": ASKED, "features": ("image/filename",), "shuffle": "global"}
    asked |= {"num_epochs": 1, "pad": True, **options, "fill": (0, 0, BLUE)}
    num_checked = 0
    for count in (1, 2, 4):
        read = []
        for index in range(count):
            place = {"process_index": index, "process_count": count}
            for batch in imagebeam.open_dataset(folder / "out").as_numpy("train", 5, **asked, **place):
                for row in np.flatnonzero(batch["mask"]):
                    found = {name: values[row] for name, values in batch.items()}
                    name = found["image/filename"].decode()
                    read.append(name)
                    num_checked += check(found, every[name], int(pathlib.PurePath(name).stem))
                    if options["crop"] in ("squash", "letterbox"):
                        assert found["num_objects"] == len(every[name])
        assert sorted(read) == sorted(every)
    assert num_checked > 150


def check(found: Found, objects: list[dict[str, Any]], number: int) -> int:
    """Compares the objects of an image with its colors; returns how many there are."""
    image = found["image"].astype(np.float64)
    x, y, is_image = image[..., 0] + 0.5, image[..., 1] + 0.5, abs(image[..., 2] - number) <= 2
    for place in range(min(found["num_objects"], ASKED.max)):
        alike = [
            each
            for each in objects
            if each["area"] == found["image/object/area"][place] and each["category_id"] == found["labels"][place]
        ]
        assert any(is_on_its_pixels(each, found, place, x, y, is_image) for each in alike), (number, place)
    return int(found["num_objects"])


def is_on_its_pixels(
    described: dict[str, Any], found: Found, place: int, x: np.ndarray, y: np.ndarray, is_image: np.ndarray
) -> bool:
    left, top, width, height = described["bbox"]
    inside = np.minimum.reduce([x - left, left + width - x, y - top, top + height - y])
    surely, perhaps = is_image & (inside > NEAR), is_image & (inside > -NEAR)
    is_masked = found["masks"][place] > 0
    if (surely & ~is_masked).any() or (is_image & is_masked & ~perhaps).any():
        return False
    box = found["boxes"][place].reshape(2, 2)[:, ::-1]  # corners, as row and column
    for axis in range(2):
        first, last = box[:, axis]
        rows = np.nonzero(surely)[axis] + 0.5
        possible = np.nonzero(perhaps)[axis] + 0.5
        if len(rows) and not (first <= rows.min() and rows.max() <= last):
            return False
        if len(possible) and not (possible.min() - 2 <= first and last <= possible.max() + 2):
            return False
    order = (0, 2, 1) if found["transform"][0, 0] < 0 else (0, 1, 2)
    for (column, row, visibility), point in zip(found["keypoints"][place], order, strict=True):
        at = min(int(row), SIZE[0] - 1), min(int(column), SIZE[1] - 1)
        wanted = described["keypoints"][3 * point : 3 * point + 3]
        if (
            visibility
            and is_image[at]
            and not (
                visibility == wanted[2] and abs(x[at] - wanted[0]) < NEAR + 2 and abs(y[at] - wanted[1]) < NEAR + 2
            )
        ):
            return False
    return True
