"""CVAT's XML for images: boxes and polygons of many images in one file."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import IO, Any
from xml.parsers import expat

from imagebeam.transforms.formats.annotations import syntax
from imagebeam.transforms.formats.annotations.syntax import Region, Row

_BUFFER_BYTES = 1 << 16
_SHAPES = frozenset({"box", "polygon", "polyline", "points", "cuboid", "ellipse", "mask", "skeleton"})


class Cvat(syntax.Syntax):
    """CVAT for images 1.1: boxes, also rotated ones, polygons and ellipses. Other shapes are left out and counted.

    An export of a project says the subset of each image, which is in the folder of that name.

    Source: https://docs.cvat.ai/docs/manual/advanced/xml_format/
    """

    TITLE = "CVAT"
    SUFFIXES = (".xml",)
    MARKS = (rb"<annotations>", rb"<image [^>]*\bname=|<track ")
    OUTLINES = ENTRIES = True

    def rows(self, file: IO[bytes]) -> Iterator[Row]:
        found: list[Row] = []
        image: dict[str, str] = {}

        def start(name: str, fields: dict[str, str]) -> None:
            where = f"line {parser.CurrentLineNumber}"
            if name == "image":
                image.clear()
                image.update(fields)
                subset = image.get("subset", "")
                image["name"] = posixpath.join(subset, image.get("name", ""))
                found.append(Row(image["name"], where, None, subset=subset))
            elif name == "track":
                raise syntax.OtherFormError("holds tracks of a video: export it as CVAT for images")
            elif name in _SHAPES and image:
                sides = [image.get("height"), image.get("width")]
                found.append(Row(image["name"], where, fields.get("label") or syntax.UNKNOWN, [name, sides, fields]))

        def refuse(*_: object) -> None:
            raise ValueError("has a document type (<!DOCTYPE), which could define entities: remove it")

        parser = expat.ParserCreate()
        parser.StartElementHandler, parser.StartDoctypeDeclHandler = start, refuse
        try:
            for data in iter(lambda: file.read(_BUFFER_BYTES), b""):
                parser.Parse(data, False)
                yield from found
                found.clear()
            parser.Parse(b"", True)
        except (expat.ExpatError, LookupError) as e:
            raise ValueError(f"is not XML: {e}") from e

    def region(self, fields: Any, size: tuple[int, int]) -> Region | None:
        kind, sides, each = fields
        if kind == "box":
            xmin, xmax, ymin, ymax = box = syntax.box_of_edges(*syntax.numbers(each, "xtl", "ytl", "xbr", "ybr"))
            found = syntax.rectangle(box)
            if angle := syntax.number(each.get("rotation", 0), "rotation"):
                found = syntax.polygon(syntax.turned(found.outline[0], angle, (xmin + xmax) / 2, (ymin + ymax) / 2))
        elif kind == "polygon":
            points = [part.split(",") for part in each.get("points", "").split(";")]
            found = syntax.polygon([number for point in points for number in syntax.numbers(point, "x", "y")])
        elif kind == "ellipse":
            found = syntax.ellipse(*syntax.numbers({"rotation": 0} | each, "cx", "cy", "rx", "ry", "rotation"))
        else:
            return None
        return found._replace(size=syntax.stated_size(sides))
