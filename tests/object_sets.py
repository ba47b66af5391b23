"""A dataset of boxes, masks and keypoints whose images tell by their colors where each pixel was stored."""

from __future__ import annotations

import itertools
import json
import pathlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from tests import datasets, image_sets

KEYPOINTS = ["nose", "left_eye", "right_eye"]
SIZES = [(200, 140), (90, 220), (64, 64), (180, 181), (40, 50), (240, 240)]  # height and width in pixels
_NUM_OBJECTS = [3, 0, 5, 1, 2, 7]
_CATEGORIES = (1, 18)


def write(
    root: pathlib.Path,
    names: Mapping[int, str] | None = None,
    keypoints: Sequence[str] = KEYPOINTS,
    turns: Sequence[int] = (1,),
    **sections: Any,
) -> pathlib.Path:
    """Writes PNGs in which red is the column of each pixel, green its row and blue the number of the image.

    With several EXIF orientations in `turns`, each size comes in each, and every second image is a JPEG.
    """
    (root / "images").mkdir(parents=True)
    rng = random.Random(3)
    images: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for number, ((height, width), turn) in enumerate(itertools.product(SIZES, turns)):
        rows, columns = np.mgrid[:height, :width]
        pixels = np.stack([columns, rows, np.full_like(rows, number)], axis=-1).astype(np.uint8)
        name = f"{number}.jpg" if len(turns) > 1 and number // len(turns) % 2 else f"{number}.png"
        exact = {"quality": 100, "subsampling": 0} if name.endswith("jpg") else {}
        exif = {"exif": image_sets.turned(turn)} if turn > 1 else {}
        Image.fromarray(pixels).save(root / "images" / name, **exact, **exif)
        images.append({"id": number, "file_name": name, "height": height, "width": width})
        num_objects = _NUM_OBJECTS[number // len(turns)]
        found += [{"image_id": number, **_object(rng, height, width)} for _ in range(num_objects)]
    for number, each in enumerate(found):
        each["id"] = number
    named = names or {each: f"c{each}" for each in _CATEGORIES}
    categories = [{"id": each, "name": name, "keypoints": keypoints} for each, name in named.items()]
    (root / "train.json").write_text(json.dumps({"images": images, "annotations": found, "categories": categories}))
    coco = {"annotations": {"train": "train.json"}, "images": {"train": "images"}, "masks": True, "keypoints": True}
    datasets.make(root, root / "out", source={"by": "coco", "coco": coco}, **sections)
    return root / "out"


def _object(rng: random.Random, height: int, width: int) -> dict[str, Any]:
    left, top = rng.randrange(width - 12), rng.randrange(height - 12)
    w, h = (rng.choice((rng.randint(4, side), side)) for side in (width - left, height - top))  # some to the edge
    points = []
    for _ in KEYPOINTS:
        point = [rng.randrange(left, left + w), rng.randrange(top, top + h), rng.choice((0, 1, 2))]
        points += point if point[2] else [0, 0, 0]
    return {
        "category_id": rng.choice(_CATEGORIES),
        "bbox": [left, top, w, h],
        "area": w * h,
        "iscrowd": 0,
        "segmentation": [[left, top, left + w, top, left + w, top + h, left, top + h]],
        "keypoints": points,
        "num_keypoints": sum(map(bool, points[2::3])),
    }


def stored(dataset: pathlib.Path) -> dict[int, dict[str, Any]]:
    """Returns the examples by the numbers of their images."""
    every = datasets.read_lists(dataset)
    return {int(pathlib.PurePath(each["image/filename"][0].decode()).stem): each for each in every}
