"""Images with several shapes, with their boxes as COCO has them or with masks, and what an evaluation counts."""

from __future__ import annotations

import json
import pathlib
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import demo
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

NUM_IMAGES = {"train": 480, "validation": 120}
CATEGORIES = {3: "circle", 7: "square", 9: "triangle"}  # ids with gaps, as COCO's

Corners = tuple[float, float, float, float]  # left, top, right, bottom in pixels


class Boxes(NamedTuple):
    """Boxes in one image, found or annotated."""

    corners: npt.NDArray[Any]  # float [N, 4], in pixels of the stored image
    labels: npt.NDArray[Any]  # int [N]
    scores: npt.NDArray[Any]  # float [N]; not used of annotated boxes


def make(folder: pathlib.Path) -> str:
    """Draws images below `folder` and converts them; returns the folder of the dataset."""
    source, output = folder / "scenes", str(folder / "scenes-tfrecord")
    (source / "annotations").mkdir(parents=True)
    for split, num_images in NUM_IMAGES.items():
        name = {"train": "train2017", "validation": "val2017"}[split]
        (source / name).mkdir()
        images: list[dict[str, object]] = []
        annotations: list[dict[str, object]] = []
        for number in range(num_images):
            image, objects = draw(random.Random(f"{split} {number}"))
            file_name = f"{number:06d}.jpg"
            image.save(source / name / file_name, quality=95)
            images.append({"id": number, "file_name": file_name, "width": image.width, "height": image.height})
            for category, (left, top, right, bottom) in objects:
                box = [left, top, right - left, bottom - top]
                fields = {
                    "image_id": number,
                    "category_id": category,
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                }
                annotations.append({"id": len(annotations), **fields})
        categories = [{"id": each, "name": shape} for each, shape in CATEGORIES.items()]
        text = json.dumps({"images": images, "annotations": annotations, "categories": categories})
        (source / "annotations" / f"instances_{name}.json").write_text(text)
    demo.run("convert", "--config", "coco", "--input", str(source), "--output", output)
    return output


def make_masks(folder: pathlib.Path) -> str:
    """Draws images and masks below `folder` and converts them; returns the folder of the dataset.

    A mask has the number 0 for what is between the shapes, and from 1 on those of `CATEGORIES`, in their order.
    """
    source, output = folder / "masked", str(folder / "masked-tfrecord")
    for split, num_images in NUM_IMAGES.items():
        images, masks = (source / kind / split for kind in ("images", "annotations"))
        images.mkdir(parents=True)
        masks.mkdir(parents=True)
        for number in range(num_images):
            image, objects = draw(random.Random(f"{split} {number}"))
            image.save(images / f"{number:06d}.jpg", quality=95)
            mask = Image.new("L", image.size)
            for category, box in objects:
                _draw_shape(ImageDraw.Draw(mask), category, box, sorted(CATEGORIES).index(category) + 1)
            mask.save(masks / f"{number:06d}.png")
    demo.run("convert", "--config", "segmentation", "--input", str(source), "--output", output)
    return output


def draw(rng: random.Random) -> tuple[Image.Image, list[tuple[int, Corners]]]:
    """Returns an image, 96 to 160 pixels a side, and one to four shapes in it with their boxes."""
    width, height = rng.randint(96, 160), rng.randint(96, 160)
    image = Image.new("RGB", (width, height), tuple(rng.randint(0, 120) for _ in range(3)))
    objects: list[tuple[int, Corners]] = []
    for _ in range(rng.randint(1, 4)):
        x_radius, y_radius = rng.randint(10, 26), rng.randint(10, 26)
        x, y = rng.randint(x_radius, width - x_radius), rng.randint(y_radius, height - y_radius)
        box = (x - x_radius, y - y_radius, x + x_radius, y + y_radius)
        if any(overlap(np.array([box]), np.array([other]))[0, 0] > 0 for _, other in objects):
            continue
        category = rng.choice(sorted(CATEGORIES))
        _draw_shape(ImageDraw.Draw(image), category, box, tuple(rng.randint(130, 255) for _ in range(3)))
        objects.append((category, box))
    return image, objects


def _draw_shape(canvas: ImageDraw.ImageDraw, category: int, box: Corners, fill: int | tuple[int, ...]) -> None:
    if CATEGORIES[category] == "circle":
        canvas.ellipse(box, fill=fill)
    elif CATEGORIES[category] == "square":
        canvas.rectangle(box, fill=fill)
    else:
        left, top, right, bottom = box
        canvas.polygon([((left + right) / 2, top), (left, bottom), (right, bottom)], fill=fill)


def overlap(boxes: npt.NDArray[Any], others: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the intersection over union of each box with each other one, [N, M]."""
    upper = np.maximum(boxes[:, None, :2], others[None, :, :2])
    lower = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    both = np.prod(np.maximum(lower - upper, 0), axis=-1)
    areas = [np.prod(each[:, 2:] - each[:, :2], axis=-1) for each in (boxes, others)]
    return both / (areas[0][:, None] + areas[1][None] - both)


def average_precision(found: Sequence[Boxes], annotated: Sequence[Boxes], least_overlap: float = 0.5) -> float:
    """Returns AP50 as COCO defines it, without crowds and limits of area: the mean over categories.

    For each category: the mean, over 101 recalls from 0 to 1, of the best precision at that recall or a higher one.
    """
    results = []
    for label in np.unique(np.concatenate([each.labels for each in annotated])):
        hits, scores, num_annotated = [], [], 0
        for boxes, truth in zip(found, annotated, strict=True):
            wanted = truth.corners[truth.labels == label]
            num_annotated += len(wanted)
            is_label = boxes.labels == label
            overlaps = overlap(boxes.corners[is_label], wanted)
            is_free = np.ones(len(wanted), bool)
            for number in np.argsort(-boxes.scores[is_label], kind="stable"):
                candidates = np.where(is_free, overlaps[number], 0)
                best = int(candidates.argmax()) if len(wanted) else 0
                is_hit = len(wanted) > 0 and candidates[best] >= least_overlap
                if is_hit:
                    is_free[best] = False
                hits.append(is_hit)
                scores.append(boxes.scores[is_label][number])
        order = np.argsort(-np.array(scores), kind="stable")
        num_hits = np.cumsum(np.array(hits, float)[order])
        recall, precision = num_hits / num_annotated, num_hits / np.arange(1, len(order) + 1)
        best_precision = np.maximum.accumulate(precision[::-1])[::-1]
        places = np.searchsorted(recall, np.linspace(0, 1, 101))
        results.append(np.append(best_precision, 0)[places].mean())
    return float(np.mean(results))
