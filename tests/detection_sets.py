"""Small data sets of boxes in the layouts of YOLO, Pascal VOC and TensorFlow's object detection."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests import image_sets

CLASSES = ("cat", "dog", "zebra")
SIZE = 40, 20  # width and height in pixels


class Box(NamedTuple):
    """An object: its class, and its edges in pixels from the upper left corner of the image."""

    name: str
    xmin: int
    ymin: int
    xmax: int
    ymax: int

    @property
    def shares(self) -> tuple[float, ...]:
        """The edges as records hold them: xmin, xmax, ymin, ymax, 0 to 1."""
        width, height = SIZE
        return self.xmin / width, self.xmax / width, self.ymin / height, self.ymax / height


def boxes(number: int) -> list[Box]:
    """Returns the objects of image `number`: none of the first, then one to three."""
    rng = random.Random(number)
    found = []
    for _ in range(number % 4):
        x, y = rng.randrange(SIZE[0] - 8), rng.randrange(SIZE[1] - 8)
        found.append(Box(rng.choice(CLASSES), x, y, x + rng.randint(2, 8), y + rng.randint(2, 8)))
    return found


def yolo_text(objects: Sequence[Box]) -> str:
    """Returns the label file of an image."""
    lines = []
    for each in objects:
        xmin, xmax, ymin, ymax = each.shares
        values = (xmin + xmax) / 2, (ymin + ymax) / 2, xmax - xmin, ymax - ymin
        lines.append(f"{CLASSES.index(each.name)} " + " ".join(f"{value:.6f}" for value in values))
    return "\n".join(lines)


def write_image(path: pathlib.Path, number: int) -> None:
    """Writes image `number`, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(image_sets.make_image(number, size=SIZE))


def write_yolo(root: pathlib.Path, folders: Mapping[str, int], swap: tuple[str, str] = ("images", "labels")) -> None:
    """Writes images and label files into folders of images, each with as many images; the first has no label file."""
    number = 0
    for folder, count in folders.items():
        labels = root / folder.replace(*swap)
        labels.mkdir(parents=True, exist_ok=True)
        for index in range(count):
            write_image(root / folder / f"{number}.jpg", number)
            if index:
                (labels / f"{number}.txt").write_text(yolo_text(boxes(number)))
            number += 1


def voc_xml(objects: Sequence[Box], size: tuple[int, int] = SIZE, name: str = "x.jpg") -> str:
    """Returns the XML of an image: edges count from 1, and belong to the box. Every second object is difficult."""
    parts = [
        f"<filename>{name}</filename><size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>"
    ]
    for number, each in enumerate(objects):
        parts.append(
            f"<object>\n  <name>{each.name}</name>\n  <pose>Left</pose><truncated>{int(number == 0)}</truncated>"
            f"<difficult>{number % 2}</difficult><part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"
            f"<bndbox><xmin>{each.xmin + 1}</xmin><ymin>{each.ymin + 1}</ymin><xmax>{each.xmax}</xmax>"
            f"<ymax>{each.ymax}</ymax></bndbox></object>"
        )
    return f"<annotation>{''.join(parts)}</annotation>"


def write_voc(root: pathlib.Path, lists: Mapping[str, Sequence[int]]) -> None:
    """Writes Annotations, JPEGImages and ImageSets/Main with a list of numbers for each name."""
    for folder in ("Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, numbers in lists.items():
        (root / "ImageSets" / "Main" / f"{name}.txt").write_text("".join(f"{number:06d}\n" for number in numbers))
        for number in numbers:
            write_image(root / "JPEGImages" / f"{number:06d}.jpg", number)
            (root / "Annotations" / f"{number:06d}.xml").write_text(voc_xml(boxes(number)))


def write_voc_folders(root: pathlib.Path, folders: Mapping[str, Sequence[int]]) -> None:
    """Writes images with their XML files beside them."""
    for folder, numbers in folders.items():
        for number in numbers:
            write_image(root / folder / f"{number}.jpg", number)
            (root / folder / f"{number}.xml").write_text(voc_xml(boxes(number)))


CSV_HEADER = "filename,width,height,class,xmin,ymin,xmax,ymax"


def csv_rows(number: int, name: str) -> list[str]:
    """Returns the rows of the objects of image `number`; one without class and edges if it has none."""
    width, height = SIZE
    return [
        f"{name},{width},{height},{each.name},{each.xmin},{each.ymin},{each.xmax},{each.ymax}" for each in boxes(number)
    ] or [f"{name},{width},{height},,,,,"]


def write_csv(path: pathlib.Path, folder: pathlib.Path, numbers: Sequence[int]) -> None:
    """Writes a CSV with the boxes of images, in no order, and the images."""
    rows = []
    for number in numbers:
        write_image(folder / f"{number}.jpg", number)
        rows += csv_rows(number, f"{number}.jpg")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([CSV_HEADER, *rows[::2], *rows[1::2], ""]))
