"""Small datasets in the layout of COCO 2017."""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any

from tests import image_sets

CATEGORIES = {1: "person", 18: "dog", 90: "toothbrush"}  # ids with gaps, as COCO's
SIZE = 40, 30  # width and height in pixels

Fields = dict[str, Any]


def annotations(num_images: int, first_id: int, prefix: str = "", seed: int = 0) -> Fields:
    """Returns annotations. The first image has no object, the next ones one to four; every fifth object is a crowd."""
    rng = random.Random(seed)
    width, height = SIZE
    images, objects = [], []
    for number in range(num_images):
        image_id = first_id + 7 * number
        images.append(
            {
                "license": number % 3 + 1,
                "file_name": f"{prefix}{image_id:012d}.jpg",
                "height": height,
                "width": width,
                "date_captured": "2013-11-14 17:02:52",
                "id": image_id,
            }
        )
        for _ in range(number % 5):
            x, y = round(rng.uniform(0, width - 12), 2), round(rng.uniform(0, height - 12), 2)
            w, h = round(rng.uniform(3, 12), 2), round(rng.uniform(3, 12), 2)
            is_crowd = int(len(objects) % 5 == 4)
            objects.append(
                {
                    "segmentation": _runs(x, y, w, h) if is_crowd else [[x, y, x + w, y, x + w, y + h, x, y + h]],
                    "area": round(w * h / 2, 4),
                    "iscrowd": is_crowd,
                    "image_id": image_id,
                    "bbox": [x, y, w, h],
                    "category_id": rng.choice(list(CATEGORIES)),
                    "id": 900_000 + len(objects),
                }
            )
    rng.shuffle(objects)  # in the real files, too, the objects of an image are scattered
    categories = [{"supercategory": "thing", "id": each, "name": name} for each, name in CATEGORIES.items()]
    return {"info": {"year": 2017}, "images": images, "annotations": objects, "categories": categories}


def _runs(x: float, y: float, w: float, h: float) -> Fields:
    """Returns the run lengths of the pixels inside a box."""
    width, height = SIZE
    runs, last = [0], 0
    for column in range(width):
        for row in range(height):
            inside = int(x <= column < x + w and y <= row < y + h)
            if inside != last:
                runs.append(0)
                last = inside
            runs[-1] += 1
    return {"counts": runs, "size": [height, width]}


NAMES = ["nose", "left_eye", "right_eye"]  # of keypoints


def with_keypoints(fields: Fields) -> Fields:
    """Returns annotations with three keypoints of each person; some are not labeled, or outside of the image."""
    rng = random.Random(5)
    for each in fields["annotations"]:
        if each["category_id"] == 1:
            points = [(rng.randrange(-2, SIZE[0] + 3), rng.randrange(SIZE[1]), rng.choice((1, 2))) for _ in NAMES]
            points[rng.randrange(3)] = 0, 0, 0
            each["keypoints"] = [value for point in points for value in point]
            each["num_keypoints"] = 2
    fields["categories"][0] |= {"keypoints": NAMES, "skeleton": [[1, 2]]}
    return fields


def captions(fields: Fields) -> Fields:
    """Returns the file of captions of the same images, one to three for each but the first; scattered."""
    rng = random.Random(6)
    found = [
        {"image_id": image["id"], "id": 10 * number + index, "caption": f"Caption {index} of {number}.\n"}
        for number, image in enumerate(fields["images"])
        for index in range(min(number, 3))
    ]
    rng.shuffle(found)
    return {"info": {}, "licenses": [], "images": fields["images"], "annotations": found}


def write(root: pathlib.Path, num_train: int = 12, num_validation: int = 5) -> dict[str, Fields]:
    """Writes train2017, val2017 and annotations below `root`; returns the annotations of each split."""
    found = {}
    for split, name, count, first_id in (
        ("train", "train2017", num_train, 9),
        ("validation", "val2017", num_validation, 139),
    ):
        found[split] = annotations(count, first_id, seed=first_id)
        (root / name).mkdir(parents=True)
        for number, image in enumerate(found[split]["images"]):
            (root / name / image["file_name"]).write_bytes(image_sets.make_image(first_id + number, size=SIZE))
        save(root, split, found[split])
    return found


def save(root: pathlib.Path, split: str, fields: Fields) -> pathlib.Path:
    """Writes an annotation file."""
    path = root / "annotations" / f"instances_{split.replace('validation', 'val')}2017.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(fields))
    return path


def objects_of(fields: Fields, image_id: Any) -> list[Fields]:
    """Returns the annotations of an image in the order of the file."""
    return [each for each in fields["annotations"] if each["image_id"] == image_id]
