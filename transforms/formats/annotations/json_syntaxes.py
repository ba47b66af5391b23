"""Syntaxes of JSON: Create ML, the VGG Image Annotator, Label Studio, Supervisely and Segment Anything."""

from __future__ import annotations

import io
import json
import math
import re
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import IO, Any

from imagebeam.transforms.formats import box_signs
from imagebeam.transforms.formats.annotations import syntax
from imagebeam.transforms.formats.annotations.syntax import Region, Row
from imagebeam.transforms.sources import input_places


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class CreateMl(syntax.Syntax):
    """Create ML's list of images with their objects: label, and center and size of the box in pixels.

    Source: https://developer.apple.com/documentation/createml/building-an-object-detector-data-source
    """

    TITLE = "Create ML"
    SUFFIXES = (".json",)
    MARKS = (rb"^\s*\[", rb'"image(filename)?"\s*:', rb'"coordinates"\s*:\s*\{')
    BOXES = box_signs.CENTERED
    ENTRIES = True

    def rows(self, file: IO[bytes]) -> Iterator[Row]:
        for number, entry in enumerate(map(_dict, syntax.json_entries(file, "item")), 1):
            image = syntax.name_of(entry.get("image") or entry.get("imagefilename"), "")
            yield Row(image, f"entry {number}", None)
            for index, each in enumerate(map(_dict, entry.get("annotations") or entry.get("annotation") or ()), 1):
                where = f"annotation {index} of entry {number}"
                yield Row(image, where, syntax.name_of(each.get("label")), each.get("coordinates"))

    def region(self, fields: Any, size: tuple[int, int]) -> Region:
        x, y, width, height = syntax.numbers(fields, "x", "y", "width", "height")
        return Region(syntax.box_of_size(x - width / 2, y - height / 2, width, height))


class Via(syntax.Syntax):
    """The VGG Image Annotator's projects and exports of annotations, as JSON or CSV.

    Rectangles, polygons, circles and ellipses become boxes. The only attribute of a region is its class.

    Source: https://www.robots.ox.ac.uk/~vgg/software/via/docs/face_track_annotation.html and via.js of version 2
    """

    TITLE = "the VGG Image Annotator"
    SUFFIXES = (".json", ".csv")
    MARKS = (rb'"shape_attributes"|\bregion_shape_attributes\b',)
    OUTLINES = ENTRIES = True
    UNSTORED = (("attributes of files", rb'"file_attributes"\s*:\s*\{\s*"'),)

    def rows(self, file: IO[bytes]) -> Iterator[Row]:
        data = file.read()
        if not data.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{"):
            yield from self._rows_of_csv(data)
            return
        for number, entry in enumerate(_entries_of_object(data, b'"_via_img_metadata"' in data), 1):
            image = syntax.name_of(entry.get("filename"), "")
            yield Row(image, f"image {number}", None)
            regions = entry.get("regions") or ()
            for index, each in enumerate(map(_dict, regions.values() if isinstance(regions, dict) else regions), 1):
                yield _via_row(image, f"region {index} of image {number}", *map(_dict, map(each.get, _VIA)))

    def fields_in(self, head: bytes) -> Iterator[tuple[str, str]]:
        for each in _FILE_ATTRIBUTES.findall(head):
            for name, value in _TEXTS.findall(each):
                yield name.decode("utf-8", "replace"), value.decode("utf-8", "replace")

    def _rows_of_csv(self, data: bytes) -> Iterator[Row]:
        columns = {name: (name,) for name in ("filename", "region_shape_attributes", "region_attributes")}
        for line, (image, *cells) in ((n, cells.values()) for n, cells in syntax.table_of(io.BytesIO(data), columns)):
            try:
                shape, attributes = (_dict(json.loads(cell or "{}")) for cell in cells)
            except ValueError as e:
                raise ValueError(f"line {line}: region_shape_attributes or region_attributes is not JSON: {e}") from e
            yield _via_row(image, f"line {line}", shape, attributes) if shape else Row(image, f"line {line}", None)

    def refusal(self, fields: Any) -> str:
        attributes = fields[0]
        text = f"it has the attributes {', '.join(attributes)}, and one is its class: remove the others"
        return text if len(attributes) > 1 else ""

    def region(self, fields: Any, size: tuple[int, int]) -> Region | None:
        _, *shape = fields
        if reason := self.refusal(fields):
            raise ValueError(reason)
        kind, shape = shape[0].get("name"), shape[0]
        if kind == "rect":
            box = syntax.box_of_size(*syntax.numbers(shape, "x", "y", "width", "height"))
            return syntax.rectangle(box)
        if kind == "polygon":
            xs, ys = (syntax.list_of(shape.get(name), name) for name in ("all_points_x", "all_points_y"))
            if len(xs) != len(ys):
                raise ValueError(f"all_points_x has {len(xs)} numbers, all_points_y {len(ys)}")
            return syntax.polygon(syntax.points_of([*map(list, zip(xs, ys))]))
        if kind in ("circle", "ellipse"):
            radii = ("r", "r") if kind == "circle" else ("rx", "ry")
            x, y, across, down, angle = syntax.numbers({"theta": 0} | shape, "cx", "cy", *radii, "theta")
            return syntax.ellipse(x, y, across, down, math.degrees(angle))
        if kind in ("point", "polyline"):
            return None
        raise ValueError(f"the shape is {str(kind)[:80]!r}, expected rect, polygon, circle or ellipse")


_FILE_ATTRIBUTES = re.compile(rb'"file_attributes"\s*:\s*\{([^{}]*)\}')
_TEXTS = re.compile(rb'"([^"]+)"\s*:\s*"([^"]+)"')
_VIA = ("shape_attributes", "region_attributes")


def _via_row(image: str, where: str, shape: dict[str, Any], attributes: dict[str, Any]) -> Row:
    """Returns the row of a region; an attribute may be a text, or an object with a flag for each of its values."""
    value: Any = next(iter(attributes.values()), syntax.NO_NAME)
    said = [*attributes]
    if isinstance(value, dict):
        flags = [name for name, is_set in value.items() if is_set in (True, "true")]
        value, said = (*flags, None)[0], flags if len(flags) > 1 else said
    return Row(image, where, syntax.name_of(value), [said, shape])


def _entries_of_object(data: bytes, is_project: bool) -> Iterator[dict[str, Any]]:
    """Yields the values of the object of images in a JSON file."""
    import ijson

    try:
        found = ijson.kvitems(io.BytesIO(data), "_via_img_metadata" if is_project else "", use_float=True)
        yield from (_dict(value) for _, value in found)
    except (ijson.JSONError, RecursionError) as e:
        raise ValueError(f"is not JSON: {str(e).splitlines()[0]}") from e


class LabelStudio(syntax.Syntax):
    """Label Studio's JSON: a list of tasks with rectangles and polygons, in percent of the image's sides.

    A task with several annotations, of several people, is refused, and one without any, or only skipped ones, names no
    image. Brushes and keypoints are left out.

    Source: https://labelstud.io/guide/export.html and https://labelstud.io/guide/task_format
    """

    TITLE = "Label Studio"
    SUFFIXES = (".json",)
    MARKS = (rb"^\s*\[", rb'"original_width"\s*:')
    OUTLINES = ENTRIES = True
    UNSTORED = (
        ("choices", rb'"type"\s*:\s*"(choices|taxonomy)"'),
        ("texts", rb'"type"\s*:\s*"textarea"'),
        ("angles of turned boxes", rb'"rotation"\s*:\s*-?(?!0+(\.0*)?[,\s}])\d'),
    )

    def rows(self, file: IO[bytes]) -> Iterator[Row]:
        for number, task in enumerate(map(_dict, syntax.json_entries(file, "item")), 1):
            texts = [value for value in _dict(task.get("data")).values() if isinstance(value, str)]
            paths = (urllib.parse.unquote(text.partition("?d=")[2] or text).rpartition("/")[2] for text in texts)
            image = next((path for path in paths if path.endswith(input_places.IMAGE_SUFFIXES)), "")
            done = [each for each in map(_dict, task.get("annotations") or ()) if not each.get("was_cancelled")]
            if not done:
                continue  # nobody has looked at it
            yield Row(image, f"task {number}", None)
            if len(done) > 1:
                yield Row(image, f"task {number}", syntax.NO_NAME, f"it has {len(done)} annotations: keep one of them")
                continue
            for index, kind, each, labels in _regions([*map(_dict, done[0].get("result") or ())]):
                fields: Any = [
                    kind,
                    [each.get("original_height"), each.get("original_width")],
                    _dict(each.get("value")),
                ]
                if len(labels) > 1:
                    fields = f"it has the labels {', '.join(labels)}: keep one of them"
                yield Row(image, f"result {index} of task {number}", (*labels, syntax.NO_NAME)[0], fields)

    def refusal(self, fields: Any) -> str:
        return fields if isinstance(fields, str) else ""

    def region(self, fields: Any, size: tuple[int, int]) -> Region | None:
        if reason := self.refusal(fields):
            raise ValueError(reason)
        kind, sides, value = fields
        if kind.startswith("rectangle"):
            x, y, width, height = syntax.numbers(value, "x", "y", "width", "height")
            corners = [x, y, x + width, y, x + width, y + height, x, y + height]
        elif kind.startswith("polygon"):
            corners = syntax.points_of(value.get("points"))
        else:
            return None
        rows, columns = stated = syntax.stated_size(sides)
        points = [corner * (columns, rows)[place % 2] / 100 for place, corner in enumerate(corners)]
        if angle := syntax.number(value.get("rotation") or 0, "rotation"):
            points = syntax.turned(points, angle, *points[:2])  # around the first corner
        return syntax.polygon(points)._replace(size=stated)


_NO_SHAPES = ("labels", "choices", "taxonomy", "textarea", "number", "rating")  # what is said of one, or of the image


def _regions(results: Sequence[dict[str, Any]]) -> Iterator[tuple[int, str, dict[str, Any], list[str]]]:
    """Yields number, type and result of each region with all its labels: results of one id are one region."""
    regions: dict[str, list[tuple[int, str, dict[str, Any]]]] = {}
    for index, each in enumerate(results, 1):
        regions.setdefault(str(each.get("id") or f"result {index}"), []).append((index, str(each.get("type")), each))
    for parts in regions.values():
        shown = [part for part in parts if part[1] not in _NO_SHAPES]
        named = [_dict(each.get("value")).get(kind) for _, kind, each in parts if kind.endswith("labels")]
        labels = [name for names in named if isinstance(names, list) for name in map(syntax.name_of, names)]
        if shown or labels:
            yield *(shown or parts)[0], [name for name in labels if name != syntax.UNKNOWN]


class Supervisely(syntax.Syntax):
    """Supervisely's files in `ann`, one for each image in `img`: rectangles and polygons in pixels.

    Bitmaps, points and lines are left out and counted.

    Source: https://docs.supervisely.com/data-organization/00_ann_format_navi
    """

    TITLE = "Supervisely"
    SUFFIXES = (".json",)
    MARKS = (rb'"classTitle"\s*:|"objects"\s*:\s*\[',)
    UNSTORED = (("tags", rb'"tags"\s*:\s*\[\s*\{'), ("descriptions", rb'"description"\s*:\s*"[^"]'))
    FOLDERS = (("img", "ann"),)
    WHOLE_NAMES = True
    OUTLINES = True

    def rows(self, file: IO[bytes]) -> Iterator[Row]:
        size: dict[str, Any] = {}
        index = 0
        for each in map(_dict, syntax.json_entries(file, "size", "objects.item")):
            if "classTitle" not in each and "height" in each:
                size = each
                continue
            index += 1
            fields = [each.get("geometryType"), size, _dict(each.get("points")).get("exterior")]
            yield Row("", f"object {index}", syntax.name_of(each.get("classTitle")), fields)

    def region(self, fields: Any, size: tuple[int, int]) -> Region | None:
        kind, stated, exterior = fields
        if kind not in ("rectangle", "polygon"):
            return None
        points = syntax.points_of(exterior)
        if kind == "polygon":
            found = syntax.polygon(points)
        elif len(points) == 4:
            found = syntax.rectangle(syntax.box_of_edges(*points))
        else:
            raise ValueError(f"a rectangle of {len(points) // 2} points, expected 2 opposite corners")
        return found._replace(size=syntax.stated_size(stated) if stated else None)


class SegmentAnything(syntax.Syntax):
    """Segment Anything's files beside the images: masks as run lengths, with a box each and without classes.

    Source: https://github.com/facebookresearch/segment-anything, Dataset
    """

    TITLE = "Segment Anything"
    SUFFIXES = (".json",)
    MARKS = (rb'"image"\s*:\s*\{[^}]*"file_name"',)
    FOLDERS = (("", ""),)
    OUTLINES = True

    def rows(self, file: IO[bytes]) -> Iterator[Row]:
        for number, each in enumerate(map(_dict, syntax.json_entries(file, "annotations.item")), 1):
            yield Row("", f"annotation {number}", syntax.NO_NAME, [each.get("bbox"), each.get("segmentation")])

    def region(self, fields: Any, size: tuple[int, int]) -> Region:
        box, outline = fields
        found = syntax.box_of_size(*syntax.numbers(box, "x", "y", "width", "height"))
        stated = syntax.stated_size(_dict(outline).get("size")) if outline else None
        return Region(found, outline, size=stated)
