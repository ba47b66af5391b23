"""Reads YOLO's label files: a line `class x y width height` for each object.

The numbers are shares of the image's width and height, x and y those of the center of the box. Lines with more numbers
are polygons, `class x1 y1 x2 y2 ...`, or hold a confidence or keypoints after the box.

Source: https://docs.ultralytics.com/datasets/detect/ and https://docs.ultralytics.com/datasets/segment/
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
from typing import Literal

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, image_objects

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BOX_FIELDS = 5  # class, x, y, width, height
_POLYGON_FIELDS = 7  # class and three points
# A share further outside of 0 to 1 is no rounding: the numbers are pixels, or the file is damaged.
_TOLERANCE = 0.01


@dataclasses.dataclass(frozen=True)
class YoloReader(image_objects.ReaderOfAnySize):
    """Reads label files; says what becomes of lines that are no plain boxes."""

    classes: image_objects.ClassNames
    polygons: Literal["box", "reject"] = "box"
    confidence: Literal["drop", "reject"] = "reject"
    num_keypoint_values: int = 0  # after each box, as data.yaml states them; they are not stored
    rejects_outside: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return image_objects.COLUMNS

    def read(self, data: bytes | None) -> image_objects.Annotations:
        """Returns the objects in the order of the lines. An empty file, or none, is an image without objects.

        Raises:
            BadImageError: if a line cannot be used.
        """
        found = image_objects.ObjectsBuilder(
            len(image_objects.COLUMNS), "source.yolo.outside" if self.rejects_outside else ""
        )
        if not data:
            return found.build()
        image_objects.check_size(data)
        for number, line in enumerate(data.removeprefix(_BYTE_ORDER_MARK).splitlines(), 1):
            if not (fields := line.split()):
                continue
            try:
                texts = [field.decode("ascii") for field in fields]
                label = self._class_of(texts[0])
                values = [_number(text) for text in texts[1:]]
                box = self._box(values)
                found.add(box, image_objects.SHARES, image_objects.SHARES, (label, self.classes.texts()[label]))
            except UnicodeDecodeError as e:
                raise image_objects.bad_value(
                    f"line {number} holds {line[:40]!r}, which is no text of numbers; write it as UTF-8"
                ) from e
            except ValueError as e:
                raise image_objects.bad_value_at(f"line {number}", e) from e
        return found.build()

    def _class_of(self, text: str) -> int:
        """Returns the id of a class."""
        number = _number(text)
        if not number.is_integer():
            raise ValueError(f"the class is {reprlib.repr(text)}, expected an integer")
        label = int(number) + self.classes.base
        if label not in self.classes.texts():
            known = self.classes.numbers or range(len(self.classes.names))
            raise checked_image.BadImageError(
                Reason.UNKNOWN_LABEL,
                f"the class is {int(number)}, and the classes are {min(known)} to {max(known)}: correct the file, or "
                "the names of the classes",
            )
        return label

    def _box(self, values: list[float]) -> tuple[float, float, float, float]:
        """Returns xmin, xmax, ymin, ymax."""
        num_fields = len(values) + 1
        if self.num_keypoint_values:
            if num_fields != _BOX_FIELDS + self.num_keypoint_values:
                raise ValueError(
                    f"{num_fields} fields, expected {_BOX_FIELDS + self.num_keypoint_values}: a box and the keypoints "
                    "of kpt_shape"
                )
            return _box_of_center(values[:4])
        if num_fields == _BOX_FIELDS:
            return _box_of_center(values)
        if num_fields == _BOX_FIELDS + 1:
            if self.confidence == "reject":
                raise ValueError("6 fields: a confidence follows the box; source.yolo.confidence: drop leaves it out")
            return _box_of_center(values[:4])
        if num_fields < _POLYGON_FIELDS or num_fields % 2 == 0:
            raise ValueError(
                f"{num_fields} fields, expected class x y width height, or a class and three points or more"
            )
        if self.polygons == "reject":
            raise ValueError(
                f"a polygon of {len(values) // 2} points; source.yolo.polygons: box would take the box around it"
            )
        _check_shares(values, "a polygon")
        xs, ys = values[::2], values[1::2]
        return min(xs), max(xs), min(ys), max(ys)


def _box_of_center(values: list[float]) -> tuple[float, float, float, float]:
    _check_shares(values, "x y width height")
    x, y, width, height = values
    if width < 0 or height < 0:
        raise ValueError(f"the box has a negative size, {width:g} x {height:g}")
    return x - width / 2, x + width / 2, y - height / 2, y + height / 2


def _check_shares(values: list[float], what: str) -> None:
    wrong = next((value for value in values if not -_TOLERANCE <= value <= 1 + _TOLERANCE), None)
    if wrong is not None:
        raise ValueError(
            f"{what}: {wrong:g} is not a share of the image, 0 to 1; divide pixels by the image's width and height"
        )


def _number(text: str) -> float:
    number = image_objects.parse_finite(text)
    if math.isnan(number):
        raise ValueError(f"{reprlib.repr(text)} is not a finite number")
    return number
