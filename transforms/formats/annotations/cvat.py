"""CVAT's XML for images: boxes, polygons and masks of many images in one file."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterator
from typing import IO, Any
from xml.parsers import expat

from imagebeam.transforms.formats.annotations import syntax
from imagebeam.transforms.formats.annotations.syntax import Region, Row

_BUFFER_BYTES = 1 << 16
_SHAPES = frozenset({"box", "polygon", "polyline", "points", "cuboid", "ellipse", "mask", "skeleton"})


class Cvat(syntax.Syntax):
    """CVAT for images 1.1: boxes, also rotated ones, polygons, ellipses and masks. Others are left out and counted.

    An export of a project says the subset of each image, which is in the folder of that name.

    Source: https://docs.cvat.ai/docs/manual/advanced/xml_format/
    """

    TITLE = "CVAT"
    SUFFIXES = (".xml",)
    MARKS = (rb"<annotations>", rb"<image [^>]*\bname=|<track ")
    OUTLINES = ENTRIES = True
    UNSTORED = (
        ("tags of images", rb"<tag "),
        ("attributes", rb"<attribute name="),
        ("angles of turned boxes", rb'\brotation="(?!0+(\.0*)?")'),
        ("marks of occlusion", rb'occluded="1"'),
    )

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
        elif kind == "mask":
            found = _mask(each, size)
        else:
            return None
        return found._replace(size=syntax.stated_size(sides))


def _mask(fields: dict[str, str], size: tuple[int, int]) -> Region:
    """Returns a mask, whose run lengths go along the rows of its box, first of pixels outside of it.

    The box is the one around the mask. COCO's run lengths go down the columns of the whole image.
    """
    import numpy as np

    left, top, width, height = (int(each) for each in syntax.numbers(fields, "left", "top", "width", "height"))
    texts = fields.get("rle", "").split(",")
    if not all(each.strip().isdecimal() for each in texts):
        raise ValueError(f"its rle is {fields.get('rle', '')[:80]!r}, expected run lengths: 3, 5, 2")
    counts = [*map(int, texts)]
    if min(left, top) < 0 or left + width > size[1] or top + height > size[0] or sum(counts) != width * height:
        raise ValueError(
            f"its rle has {sum(counts):,} pixels, at left {left} and top {top} of {width} x {height}, in an image of "
            f"{size[1]} x {size[0]} (width x height)"
        )
    inside = np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(height, width)
    down, right = np.nonzero(inside)
    if not len(down):
        raise ValueError("its rle has no pixel of the object")
    changes = np.diff(inside.T.astype(np.int8), axis=1, prepend=0, append=0)  # along each column
    first, end = (
        (left + column) * size[0] + top + row for column, row in (np.nonzero(changes == each) for each in (1, -1))
    )
    is_apart = first[1:] != end[:-1]  # a column to the lower edge of the image goes on in the next one
    first, end = first[np.append(True, is_apart)], end[np.append(is_apart, True)]
    edges = [0, *np.stack([first, end], 1).ravel().tolist(), size[0] * size[1]]
    box = left + int(right.min()), left + int(right.max()) + 1, top + int(down.min()), top + int(down.max()) + 1
    return Region(box, {"size": [*size], "counts": [b - a for a, b in itertools.pairwise(edges)]})
