"""Parses the annotation file of one image in LabelMe's JSON: shapes with a label and points in pixels.

Rectangles, polygons and circles become boxes, and masks where those are stored. Points and lines have no area: they are
left out and counted.

Source: https://github.com/wkentaro/labelme, labelme/label_file.py
"""

from __future__ import annotations

import dataclasses
import json
import math
import reprlib
from collections.abc import Sequence
from typing import Any

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, image_objects, object_masks

OTHER_SHAPE = "object_of_other_shape"  # points and lines

_MAX_BYTES = 256 << 20  # the image itself may be in the file, as text
_SLACK_PX = 0.5
_MAX_SIDE_PX = 1_000_000
_WITHOUT_AREA = ("point", "points", "line", "linestrip")
_CIRCLE_CORNERS = 64  # of the polygon that is drawn for a circle


@dataclasses.dataclass(frozen=True)
class LabelmeReader:
    """Reads annotation files."""

    classes: image_objects.ClassNames
    masks: bool = False
    rejects_outside: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return (*image_objects.COLUMNS, *((object_masks.FEATURE,) if self.masks else ()))

    def read(self, data: bytes | None) -> image_objects.Annotations:
        """Returns the objects in the order of the file.

        Raises:
            BadImageError: if the file, the size of the image or an object cannot be used.
        """
        rejecting = "source.labelme.outside" if self.rejects_outside else ""
        found = image_objects.ObjectsBuilder(len(self.columns), rejecting)
        if data is None:
            return found.build()
        file = _parse(data)
        height, width = (_side(file.get(name), name) for name in ("imageHeight", "imageWidth"))
        shapes = file.get("shapes")
        if not isinstance(shapes, list):
            raise image_objects.bad_value("has no list of shapes; a file of LabelMe has one")
        across, down = (image_objects.pixels(side, _SLACK_PX) for side in (width, height))
        for number, shape in enumerate(shapes, 1):
            try:
                fields = shape if isinstance(shape, dict) else {}
                kind = fields.get("shape_type") or "polygon"  # early versions know no other
                if kind in _WITHOUT_AREA:
                    found.dropped[OTHER_SHAPE] += 1
                    continue
                outline = _outline(fields.get("points"), kind)
                xs, ys = outline[::2], outline[1::2]
                box = min(xs), max(xs), min(ys), max(ys)
                values: tuple[Any, ...] = self._class_of(fields.get("label"))
                if self.masks:
                    values += (self._mask(kind, outline, height, width),)
                found.add(box, across, down, values)
            except checked_image.BadImageError as e:
                raise checked_image.BadImageError(e.reason, f"shape {number}: {e.detail}") from e
            except ValueError as e:
                raise image_objects.bad_value(f"shape {number}: {e}") from e
        return found.build((height, width))

    def _class_of(self, name: Any) -> tuple[int, bytes]:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"its label is {reprlib.repr(name)}, expected a name")
        label = self.classes.id_of(name.strip())
        if label is None:
            raise checked_image.BadImageError(
                Reason.UNKNOWN_LABEL,
                f"the class {reprlib.repr(name)} is none of source.labelme.classes: add it there, or leave "
                "source.labelme.classes out to take the classes from the files",
            )
        return label, self.classes.texts()[label]

    def _mask(self, kind: str, outline: list[float], height: int, width: int) -> bytes:
        if kind == "mask":
            raise ValueError("a shape of the type mask holds a picture; source.labelme.masks takes outlines")
        return object_masks.pack([outline], height, width)


def class_names(data: bytes) -> set[str]:
    """Returns the classes of the shapes in an annotation file; none if it cannot be parsed."""
    try:
        shapes = _parse(data).get("shapes")
    except checked_image.BadImageError:
        return set()
    names = (shape.get("label") for shape in shapes if isinstance(shape, dict)) if isinstance(shapes, list) else ()
    return {name.strip() for name in names if isinstance(name, str) and name.strip()}


def _parse(data: bytes) -> dict[str, Any]:
    """Returns the fields of a file.

    Raises:
        BadImageError: if it is no JSON object.
    """
    image_objects.check_size(data, _MAX_BYTES)
    try:
        file = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as e:
        reason = "is nested too deep" if isinstance(e, RecursionError) else f"is not JSON: {e}"
        raise image_objects.bad_value(reason) from e
    if not isinstance(file, dict):
        raise image_objects.bad_value(f"holds a JSON {type(file).__name__}; a file of LabelMe is an object")
    return file


def _side(value: Any, name: str) -> int:
    if type(value) is not int or not 0 < value <= _MAX_SIDE_PX:
        raise image_objects.bad_value(f"{name} is {reprlib.repr(value)}, expected the pixels of the image")
    return value


def _outline(points: Any, kind: str) -> list[float]:
    """Returns the corners of a shape as x, y, x, y, ... in pixels.

    Raises:
        ValueError: if its points are not those of its type.
    """
    if not isinstance(points, list) or not all(_is_point(point) for point in points):
        raise ValueError(f"points are {reprlib.repr(points)}, expected a list of [x, y]")
    if kind in ("rectangle", "mask"):
        if len(points) not in (2, 4):
            raise ValueError(f"a {kind} of {len(points)} points, expected 2 opposite corners, or all 4")
        xs, ys = [x for x, _ in points], [y for _, y in points]
        left, right, top, bottom = map(float, (min(xs), max(xs), min(ys), max(ys)))
        return [left, top, right, top, right, bottom, left, bottom]
    if kind == "circle":
        if len(points) != 2:
            raise ValueError(f"a circle of {len(points)} points, expected its center and a point on it")
        (x, y), on_it = points
        radius = math.dist(points[0], on_it)
        angles: Sequence[float] = [2 * math.pi * index / _CIRCLE_CORNERS for index in range(_CIRCLE_CORNERS)]
        return [value for a in angles for value in (x + radius * math.cos(a), y + radius * math.sin(a))]
    if kind != "polygon":
        raise ValueError(f"the shape_type is {reprlib.repr(kind)}, expected polygon, rectangle or circle")
    if len(points) < 3:
        raise ValueError(f"a polygon of {len(points)} points, expected 3 or more")
    return [float(value) for point in points for value in point]


def _is_point(point: Any) -> bool:
    return (
        isinstance(point, list)
        and len(point) == 2
        and all(type(value) in (int, float) and math.isfinite(value) for value in point)
    )
