"""Parses the annotation file of one image in Pascal VOC's XML.

Edges of boxes are pixels, counted from 1, and both are inside of the box: `xmin` 1 and `xmax` 10 are the ten leftmost
pixels of the image, so in a record the box goes from 0 to 10 / width.

Nothing but elements and text is accepted. A document type, which all entities and files from elsewhere need, is refused
before it is read, and so are elements nested deeper than the format does.

Source: section 8 of the VOC2012 development kit, http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/
"""

from __future__ import annotations

import dataclasses
import math
import re
import reprlib
from collections.abc import Mapping
from typing import NamedTuple
from xml.parsers import expat

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, image_objects

FLAG_COLUMNS = ("image/object/difficult", "image/object/truncated", "image/object/view")

_ROOT = "annotation"
_MAX_DEPTH = 16  # annotation/object/part/bndbox/xmin has 5
_MAX_SIDE_PX = 1_000_000
_SLACK_PX = 0.5
_EDGES = ("xmin", "xmax", "ymin", "ymax")
_SIZES = {f"{_ROOT}/size/{name}" for name in ("height", "width")}
_OBJECT = f"{_ROOT}/object"  # not those of annotation/object/part, which have names and boxes too
_OF_OBJECT = {f"{_OBJECT}/{name}" for name in ("name", "pose", "truncated", "difficult")} | {
    f"{_OBJECT}/bndbox/{edge}" for edge in _EDGES
}
_UNSPECIFIED = "Unspecified"  # the format's own word for an unknown pose
_NAMES = re.compile(rb"<object>\s*<name>([^<&]+)</name>")


class VocFile(NamedTuple):
    """What an annotation file states, as text: fields by their names."""

    size: Mapping[str, str]  # height, width
    objects: tuple[Mapping[str, str], ...]  # name, xmin and so on


def parse(data: bytes) -> VocFile:
    """Parses an annotation file.

    Raises:
        BadImageError: if it is not XML of this format.
    """
    image_objects.check_size(data)
    parser = expat.ParserCreate()
    parser.buffer_text = True
    builder = _Builder()
    parser.StartDoctypeDeclHandler = builder.refuse_document_type
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.add_text
    try:
        parser.Parse(data, True)
    except expat.ExpatError as e:
        raise image_objects.bad_value(f"is not XML: {e}") from e
    except checked_image.BadImageError:
        raise
    except (LookupError, UnicodeError, ValueError) as e:  # an encoding that the parser does not know
        raise image_objects.bad_value(f"is not XML that can be read: {e}; save it as UTF-8") from e
    return VocFile(builder.size, tuple(builder.objects))


class _Builder:
    """Collects the fields of interest while a file is parsed."""

    def __init__(self) -> None:
        self.size: dict[str, str] = {}
        self.objects: list[dict[str, str]] = []
        self._path: list[str] = []
        self._texts: list[str] | None = None  # of the field that is open

    def refuse_document_type(self, *_: object) -> None:
        raise image_objects.bad_value("has a document type (<!DOCTYPE), which could define entities: remove it")

    def start(self, name: str, _: object) -> None:
        if not self._path and name != _ROOT:
            raise image_objects.bad_value(f"begins with <{reprlib.repr(name)[1:-1]}>, expected <{_ROOT}>")
        self._path.append(name)
        if len(self._path) > _MAX_DEPTH:
            raise image_objects.bad_value(f"has elements nested more than {_MAX_DEPTH} deep")
        path = "/".join(self._path)
        if path == _OBJECT:
            self.objects.append({})
        self._texts = [] if path in _SIZES or path in _OF_OBJECT else None

    def add_text(self, text: str) -> None:
        if self._texts is not None:
            self._texts.append(text)

    def end(self, name: str) -> None:
        if self._texts is not None:
            fields = self.size if "/".join(self._path) in _SIZES else self.objects[-1]
            if name in fields:
                raise image_objects.bad_value(f"states <{name}> twice{self._where()}")
            fields[name] = "".join(self._texts).strip()
        self._texts = None
        self._path.pop()

    def _where(self) -> str:
        return f" in object {len(self.objects)}" if _OBJECT in "/".join(self._path) else ""


def class_names(data: bytes) -> set[str]:
    """Returns the classes of the objects in an annotation file; none if it cannot be parsed.

    Files as common programs write them are searched, in a fifth of the time that it takes to parse them.
    """
    if not (b"<!" in data or b"&" in data or b"\0" in data or b"encoding" in data.lower()):
        found = _NAMES.findall(data)
        if len(found) == data.count(b"<object"):
            try:
                return {name.decode("utf-8").strip() for name in set(found)}
            except UnicodeDecodeError:
                return set()
    try:
        return {fields["name"] for fields in parse(data).objects if fields.get("name")}
    except checked_image.BadImageError:
        return set()


@dataclasses.dataclass(frozen=True)
class VocReader:
    """Reads annotation files."""

    classes: image_objects.ClassNames
    origin: int = 1  # number of the first pixel; with 0, xmin and xmax are distances from the image's edge
    rejects_outside: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return (*image_objects.COLUMNS, *FLAG_COLUMNS)

    def read(self, data: bytes | None) -> image_objects.Annotations:
        """Returns the objects in the order of the file.

        Raises:
            BadImageError: if the file, the size of the image or an object cannot be used.
        """
        rejecting = "source.voc.outside" if self.rejects_outside else ""
        found = image_objects.ObjectsBuilder(len(self.columns), rejecting)
        if data is None:
            return found.build()
        file = parse(data)
        height, width = (_side(file.size.get(name), name) for name in ("height", "width"))
        across, down = (image_objects.pixels(side, _SLACK_PX) for side in (width, height))
        for number, fields in enumerate(file.objects, 1):
            try:
                box = self._box(fields)
                found.add(box, across, down, self._values(fields))
            except checked_image.BadImageError as e:
                raise checked_image.BadImageError(e.reason, f"object {number}: {e.detail}") from e
            except ValueError as e:
                raise image_objects.bad_value(f"object {number}: {e}") from e
        return found.build((height, width))

    def _box(self, fields: Mapping[str, str]) -> tuple[float, float, float, float]:
        """Returns xmin, xmax, ymin, ymax in pixels from the left and upper edge of the image."""
        xmin, xmax, ymin, ymax = (_number(fields.get(edge), edge) for edge in _EDGES)
        if xmin > xmax or ymin > ymax:
            raise ValueError(
                f"the box ends before it begins: xmin {xmin:g}, xmax {xmax:g}, ymin {ymin:g}, ymax {ymax:g}"
            )
        return xmin - self.origin, xmax, ymin - self.origin, ymax

    def _values(self, fields: Mapping[str, str]) -> tuple[int | bytes, ...]:
        """Returns the values of the columns after the box."""
        name = fields.get("name")
        if not name:
            raise ValueError("it has no <name>")
        label = self.classes.id_of(name)
        if label is None:
            raise checked_image.BadImageError(
                Reason.UNKNOWN_LABEL,
                f"the class {_show(name)} is none of source.voc.classes: add it there, or leave source.voc.classes out "
                "to take the classes from the files",
            )
        flags = (_flag(fields.get(flag), flag) for flag in ("difficult", "truncated"))
        return label, self.classes.texts()[label], *flags, image_objects.encode_text(fields.get("pose") or _UNSPECIFIED)


def _side(text: str | None, name: str) -> int:
    try:
        side = _number(text, name)
    except ValueError as e:
        raise image_objects.bad_value(f"<size>: {e}") from e
    if not side.is_integer() or not 0 < side <= _MAX_SIDE_PX:
        raise image_objects.bad_value(f"<size>: {name} is {text!r}, expected the pixels of the image")
    return int(side)


def _number(text: str | None, name: str) -> float:
    if not text:
        raise ValueError(f"it has no <{name}>")
    number = image_objects.parse_finite(text)
    if math.isnan(number):
        raise ValueError(f"{name} is {_show(text)}, expected a finite number")
    return number


def _flag(text: str | None, name: str) -> int:
    if text not in (None, "", "0", "1"):
        raise ValueError(f"{name} is {_show(str(text))}, expected 0 or 1")
    return int(text or 0)


def _show(text: str) -> str:
    return reprlib.repr(text)
