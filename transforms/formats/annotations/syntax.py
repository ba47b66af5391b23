"""The interface of a syntax, and the reader that turns its rows into the objects of one image.

A syntax splits a file into rows (`rows`), one for each object, and reads the region of one row (`region`). A file is of
one image, beside it or in a folder of annotations, or of many images. Rows of a file of many images travel with the
references to the images: the file is split when it is listed, and regions are read by the writers, which know the
sizes of the images.
"""

from __future__ import annotations

import abc
import csv
import dataclasses
import io
import itertools
import json
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, ClassVar, Literal, NamedTuple

from imagebeam import plural
from imagebeam.transforms.formats import box_signs
from imagebeam.transforms.images import image_objects, object_masks
from imagebeam.transforms.sources import folder_probe

# Kinds of objects that are left out and counted, beside those of `image_objects`.
IGNORED = "object_to_be_ignored"  # by the file itself
OTHER_SHAPE = "object_of_other_shape"  # points and lines

CORNERS, DIFFICULT, CROWD = "image/object/corners", "image/object/difficult", "image/object/is_crowd"
NO_NAME = "object"  # class of the objects of a file without classes
UNKNOWN = "\0"  # in place of a class that is missing

_SLACK_PX = 0.5
_MAX_SIDE_PX = 1_000_000
_TOLERANCE = 0.01  # of shares: a number further outside of 0 to 1 is no rounding


class Row(NamedTuple):
    """One object as its file has it; `fields` holds what JSON can hold."""

    image: str  # name of the image; "" in a file of one image
    where: str  # "line 3"
    name: str | None  # class, or UNKNOWN; "" for an object to be ignored, None for an image without objects
    fields: Any = ()
    subset: str = ""  # of the image, if the file says it


class Region(NamedTuple):
    """The place of an object."""

    box: tuple[float, float, float, float]  # xmin, xmax, ymin, ymax: pixels, or shares if the syntax has shares
    outline: Any = None  # a list of polygons or run lengths, as COCO has them; None if there is none
    more: tuple[Any, ...] = ()  # values of the syntax's further features
    size: tuple[int, int] | None = None  # height and width of the image, if the file states them


class OtherFormError(ValueError):
    """A file is of the tool whose syntax is read, in a form that is not read."""


@dataclasses.dataclass(frozen=True)
class Syntax(abc.ABC):
    """One syntax of annotation files. It has no state: its copies are equal."""

    TITLE: ClassVar[str]  # such as "KITTI"
    SUFFIXES: ClassVar[tuple[str, ...]]  # names of its files end in one of these
    MARKS: ClassVar[tuple[bytes, ...]] = ()  # patterns, each of which is in the beginning of each file that has objects
    # Folders of images with the folder of their annotations beside it; "" is for files beside the images. None: a file
    # is of many images.
    FOLDERS: ClassVar[tuple[tuple[str, str], ...] | None] = None
    WHOLE_NAMES: ClassVar[bool] = False  # whether files are named x.jpg.json
    MORE: ClassVar[tuple[str, ...]] = ()  # further features: keys of features.STANDARD
    BOXES: ClassVar[str] = box_signs.CORNERS  # form of the four numbers of a box
    SHARES: ClassVar[bool] = False  # whether numbers are shares of the image's width and height, and no pixels
    UNSTORED: ClassVar[tuple[tuple[str, bytes], ...]] = ()  # what else files may say, and a pattern of where they do
    OUTLINES: ClassVar[bool] = False  # whether objects have outlines, which can be stored as masks
    MASKS: ClassVar[bool] = False  # whether these are always stored
    SIZED: ClassVar[bool] = False  # whether a file begins with a row without a class whose fields are height and width
    ENTRIES: ClassVar[bool] = False  # whether a row without a class begins the entry of an image, which has one
    CODES: ClassVar[Mapping[str, str]] = {}  # names of the classes that rows name by codes
    CODE: ClassVar[str] = ""  # regular expression for a class that is a code, for which another file may have a name
    CODES_FILE: ClassVar[str] = ""  # beside a file of annotations; has the names in place of `CODES`, in their order
    UNNAMED: ClassVar[Literal["skip", "keep"]] = "skip"  # by default, for images that no file names

    @abc.abstractmethod
    def rows(self, file: IO[bytes]) -> Iterator[Row]:
        """Yields the rows of a file.

        Raises:
            ValueError: at what makes all that follows unreadable, with the line.
        """

    @abc.abstractmethod
    def region(self, fields: Any, size: tuple[int, int]) -> Region | None:
        """Returns the place of an object; None for a shape without area.

        Args:
            fields: of its row.
            size: height and width of its image in pixels.

        Raises:
            ValueError: if the fields cannot be used.
        """

    def holders(self, probe: folder_probe.FolderProbe, at: str, most: int) -> Iterator[folder_probe.Folder]:
        """Yields the folders in which files, or pairs of folders, are looked for.

        Args:
            probe: of the folder.
            at: the data set in it.
            most: folders that are looked into at each place, beside those of splits.
        """
        return with_inner(probe, at, most)

    def question(self, head: bytes) -> str:
        """Returns what to ask about a file of this syntax, whose first bytes are given; "" for nothing."""
        rows = self.first_rows(head, len(head) < folder_probe.HEAD_BYTES, is_known=True) or ()
        refused = [f"{row.where}: {reason}" for row in rows if row.name and (reason := self.refusal(row.fields))]
        objects = plural.count(len(refused), "object")
        return f"the images of {objects} in its beginning would be rejected; {refused[0]}" if refused else ""

    def refusal(self, fields: Any) -> str:
        """Returns why an object cannot be stored whose place may be well; "" if it can."""
        return ""

    def first_rows(self, head: bytes, is_whole: bool, is_known: bool = False) -> list[Row] | None:
        """Returns the rows in the beginning of a file; None if it is of another syntax.

        Args:
            head: the first bytes.
            is_whole: whether these are all.
            is_known: whether the file is of this syntax, so that rows with faults are no sign of another one.

        Raises:
            OtherFormError: if it is of the same tool, in a form that is not read.
        """
        found = []
        is_marked = all(re.search(mark, head) for mark in self.MARKS)
        if not is_known and not is_marked and self.FOLDERS is None:
            return None
        try:
            for row in self.rows(io.BytesIO(head if is_whole else head[: head.rfind(b"\n") + 1] or head)):
                found.append(row)
        except OtherFormError:
            raise
        except ValueError:
            if is_whole and not is_known:
                return None
        placed = [row for row in found if row.name]
        if not found or is_known:
            return found
        return found if is_marked and sum(map(self._is_placed, placed)) >= 0.9 * len(placed) else None

    def unstored(self, heads: Iterable[bytes]) -> str:
        """Returns a line on what files say and is not stored, given their first bytes; "" for nothing."""
        text = b"\n".join(heads)
        found = [what for what, pattern in self.UNSTORED if re.search(pattern, text)]
        return f"{folder_probe.and_list(found)} are not stored" if found else ""

    def fields_in(self, head: bytes) -> Iterator[tuple[str, str]]:
        """Yields names and values of what the first bytes of a file say of images, and is not stored."""
        return iter(())

    def doubt_on_splits(self, heads: Iterable[bytes], split: str | None) -> str:
        """Returns a doubt if files say splits of images that differ from the one that their folder means; or ""."""
        found: dict[str, set[str]] = {}
        for name, value in (each for head in heads for each in self.fields_in(head)):
            found.setdefault(name, set()).add(value)
        for name, values in found.items():
            if folder_probe.may_be_split(name, values) and {*map(folder_probe.split_meant, values)} != {split}:
                shown = folder_probe.name_some(sorted(values))
                return f"{name} of images may be the split ({shown}), which is not read: {_LISTS}"
        return ""

    def boxes_in(self, head: bytes, sizes: Mapping[str, box_signs.Size | None]) -> Iterator[box_signs.Box]:
        """Yields the boxes in the first bytes of a file, unless they are made of masks.

        Args:
            head: the first bytes.
            sizes: width and height of images, by name; "" is the one of a file of one image. If the file states a size,
                that one counts.
        """
        size = sizes.get("")
        try:
            rows = self.first_rows(head, len(head) < folder_probe.HEAD_BYTES, is_known=True) or []
        except OtherFormError:
            return
        for row in rows if not self.MASKS else ():
            if self.SIZED and row.name is None:
                size = row.fields[::-1]
            elif (region := self._region_of(row)) is not None:
                (xmin, xmax, ymin, ymax), of_image = region.box, sizes.get(row.image, size)
                of_image = region.size[::-1] if region.size is not None else of_image
                written = box_signs.as_written((xmin, ymin, xmax, ymax), self.BOXES)
                yield written, box_signs.SHARES if self.SHARES else of_image

    def doubt_on_sizes(
        self, probe: folder_probe.FolderProbe, folder: folder_probe.Folder, sizes: Mapping[str, box_signs.Size | None]
    ) -> str:
        """Returns a doubt if a file beside the annotations in `folder` says other sizes of the images; "" if not."""
        return ""

    def has_other_shape(self, row: Row) -> bool:
        """Returns whether the object of a row is of a shape that is not stored."""
        try:
            return bool(row.name) and self.region(row.fields, _ANY_SIZE) is None
        except ValueError:
            return False

    def _region_of(self, row: Row) -> Region | None:
        """Returns the place of the object of a row; None if it has none that can be used."""
        try:
            return self.region(row.fields, _ANY_SIZE) if row.name else None
        except ValueError:
            return None

    def _is_placed(self, row: Row) -> bool:
        try:
            self.region(row.fields, _ANY_SIZE)
        except ValueError:
            return bool(self.refusal(row.fields))
        return True


_LISTS = "write the names of the images of each split into a list, and set split={by: lists, lists: {train: LIST, ...}}"
_ANY_SIZE = 1 << 16, 1 << 16  # for a look at fields before the size is known


@dataclasses.dataclass(frozen=True)
class RowReader:
    """Reads the rows of one image: of its file, or of a document that `pack_rows` made."""

    classes: image_objects.ClassNames
    syntax: Syntax
    masks: bool = False
    rejects_outside: bool = False
    option: str = "source.annotations"  # section of the config, for errors
    size: tuple[int, int] | None = None  # height and width of the image in pixels, unless its file states them

    @property
    def columns(self) -> tuple[str, ...]:
        return (*image_objects.COLUMNS, *self.syntax.MORE, *((object_masks.FEATURE,) if self.masks else ()))

    def for_image(self, find_size: Callable[[], tuple[int, int]]) -> RowReader:
        return self if self.syntax.SIZED else dataclasses.replace(self, size=find_size())

    def read(self, data: bytes | None) -> image_objects.Annotations:
        """Returns the objects in the order of the rows.

        Raises:
            BadImageError: if an object cannot be used.
        """
        rejecting = f"{self.option}.outside" if self.rejects_outside else ""
        found = image_objects.ObjectsBuilder(len(self.columns), rejecting)
        size = expected = self.size
        width, height = self._extents(size)
        for row in self._rows(data):
            if row.name is None:
                if self.syntax.SIZED:
                    size = expected = row.fields
                    width, height = self._extents(size)
                continue
            if not row.name:
                found.dropped[IGNORED] += 1
                continue
            try:
                assert size is not None
                region = self.syntax.region(row.fields, size)
                if region is None:
                    found.dropped[OTHER_SHAPE] += 1
                    continue
                if row.name == UNKNOWN:
                    raise ValueError("it has no class")
                expected = region.size or expected
                values = (*self.classes.find(row.name, f"{self.option}.classes"), *region.more)
                if self.masks:
                    values += (object_masks.pack(region.outline, *size),)
                found.add(region.box, width, height, values)
            except ValueError as e:
                raise image_objects.bad_value_at(row.where, e) from e
        built = found.build(expected)
        if CORNERS in self.columns:
            place = self.columns.index(CORNERS)
            corners = tuple(itertools.chain.from_iterable(built.values[place]))
            built = built._replace(values=(*built.values[:place], corners, *built.values[place + 1 :]))
        return built

    def _extents(self, size: tuple[int, int] | None) -> tuple[image_objects.Extent, image_objects.Extent]:
        """Returns those of the width and the height of the image."""
        if size is None or self.syntax.SHARES:
            return image_objects.SHARES, image_objects.SHARES
        return image_objects.pixels(size[1], _SLACK_PX), image_objects.pixels(size[0], _SLACK_PX)

    def _rows(self, data: bytes | None) -> Iterable[Row]:
        if data is None or (not data and self.syntax.FOLDERS is None):
            return
        if self.syntax.FOLDERS is None:
            file, *lines = data.decode("utf-8", "surrogateescape").splitlines()
            for line in lines:
                where, name, fields = json.loads(line)
                yield Row("", f"{where} of {file}", name, fields)
            return
        image_objects.check_size(data, _MAX_BYTES)
        try:
            yield from self.syntax.rows(io.BytesIO(data))
        except ValueError as e:
            raise image_objects.bad_value(str(e)) from e


_MAX_BYTES = 256 << 20  # a file of one image


def with_inner(probe: folder_probe.FolderProbe, at: str, most: int) -> Iterator[folder_probe.Folder]:
    """Yields a folder and those in it: all of the names of splits with their labels, and so many others."""
    root = probe.look(at)
    yield root
    for name in folder_probe.likely_first(root, most):
        folder = probe.look(root.below(name))
        yield folder
        if folder_probe.split_meant(name) is not None:
            yield from (probe.look(folder.below(each)) for each in ("labels", "annotations") if each in folder.folders)


def pack_row(row: Row) -> bytes:
    """Returns a row as a line of a document, whose first line is the name of the file."""
    return b"%s\n" % json.dumps([row.where, row.name, row.fields], separators=(",", ":")).encode()


def classes_in(rows: Iterable[Row]) -> set[str]:
    """Returns the names of the classes in rows."""
    return {row.name for row in rows if row.name} - {UNKNOWN}


def class_names(syntax: Syntax, data: bytes) -> set[str]:
    """Returns the classes in a file of one image; none if it cannot be parsed."""
    try:
        return classes_in(syntax.rows(io.BytesIO(data)))
    except ValueError:
        return set()


# --- for parsers ------------------------------------------------------------------------------------------------------


def name_of(value: Any, default: str = UNKNOWN) -> str:
    """Returns the name that a value of JSON is; `default` if it is none."""
    return value.strip() if isinstance(value, str) and value.strip() else default


def lines_of(file: IO[bytes]) -> Iterator[tuple[int, str]]:
    """Yields the lines that are not blank, with their numbers.

    Raises:
        ValueError: if the file is not UTF-8.
    """
    with io.TextIOWrapper(file, "utf-8-sig") as text:
        number = 0
        try:
            for number, line in enumerate(text, 1):
                if line.strip():
                    yield number, line.strip()
        except UnicodeDecodeError as e:
            raise ValueError(f"is no UTF-8 text after line {number}: {e}") from e


def table_of(
    file: IO[bytes], columns: Mapping[str, Sequence[str]], delimiter: str = ","
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the rows of a CSV file with their lines: the wanted cells by our names of the columns that it has.

    Args:
        file: of the table.
        columns: names in the file, by our names; an empty name among them means that it may miss.
        delimiter: between cells.

    Raises:
        ValueError: if the file is not CSV in UTF-8, or misses a column.
    """
    csv.field_size_limit(1 << 30)  # run lengths are longer than Python's default
    with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        table = csv.reader(text, delimiter=delimiter, strict=True)  # else an open quote takes the rows after it
        line = 0
        try:
            header = next(table, [])
            line = table.line_num
            places = find_columns(header, columns)
            for ours, names in columns.items():
                if places[ours] < 0 and "" not in names:
                    shown = ", ".join(name.strip().lower() for name in header)
                    raise ValueError(f"has no column {' or '.join(names)}; its first line names {shown}")
            for row in table:
                if row:
                    cells = {ours: row[at].strip() if at < len(row) else "" for ours, at in places.items() if at >= 0}
                    yield table.line_num, cells
                line = table.line_num
        except (csv.Error, UnicodeDecodeError) as e:
            remedy = "save it as UTF-8" if isinstance(e, UnicodeDecodeError) else "correct the quotes from there on"
            raise ValueError(f"cannot be read as CSV in UTF-8 after line {line}: {e}; {remedy}") from e


def codes_of(names: Iterable[str]) -> dict[str, str]:
    """Returns names by their numbers from 1."""
    return {str(number): name for number, name in enumerate(names, 1)}


def find_columns(header: Sequence[str], columns: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Returns the places of the columns of `table_of` in the first line of a table; -1 for one that misses."""
    exact = [name.strip() for name in header]
    there = [*exact, *map(str.lower, exact)]
    places = {ours: [there.index(name) for name in names if name and name in there] for ours, names in columns.items()}
    return {ours: found[0] % len(exact) if found else -1 for ours, found in places.items()}


def json_entries(file: IO[bytes], *paths: str) -> Iterator[Any]:
    """Yields the values at paths in a JSON file, such as `annotations.item`: each entry of the list `annotations`.

    Raises:
        ValueError: if it is not JSON.
    """
    import ijson  # takes 10 ms, and is needed only here

    try:
        builders: dict[str, Any] = {}
        for prefix, event, value in ijson.parse(file, use_float=True, buf_size=_BUFFER_BYTES):
            if len(prefix) > _MAX_PREFIX:
                raise ValueError("holds lists or objects nested too deep")
            path = next((path for path in paths if prefix == path or prefix.startswith(f"{path}.")), None)
            if path is None:
                continue
            builder = builders.setdefault(path, ijson.ObjectBuilder())
            builder.event(event, value)
            if prefix == path and event not in ("start_map", "start_array", "map_key"):
                yield builders.pop(path).value
    except (ijson.JSONError, RecursionError) as e:
        raise ValueError(f"is not JSON: {str(e).splitlines()[0]}") from e


_BUFFER_BYTES, _MAX_PREFIX = 1 << 14, 1_000


def number(value: Any, name: str) -> float:
    """Returns a finite number; `name` is for the error."""
    found = image_objects.parse_finite(str(value)) if type(value) in (int, float, str) else math.nan
    if not math.isfinite(found):
        raise ValueError(f"{name} is {reprlib.repr(value)}, expected a finite number")
    return found


def numbers(values: Any, *names: str) -> list[float]:
    """Returns so many finite numbers: those of a list in order, or of an object by name."""
    if isinstance(values, dict):
        return [number(values.get(name), name) for name in names]
    if not isinstance(values, list) or len(values) < len(names):
        raise ValueError(f"has {reprlib.repr(values)}, expected {' '.join(names)}")
    return [number(value, name) for value, name in zip(values, names)]


def list_of(value: Any, what: str) -> list[Any]:
    """Returns a value that must be a list; `what` is for the error."""
    if not isinstance(value, list):
        raise ValueError(f"{what} is {str(value)[:80]!r}, expected a list")
    return value


def points_of(value: Any) -> list[float]:
    """Returns x, y, x, y, ... of a list of [x, y]."""
    points = [numbers(point, "x", "y") for point in list_of(value, "a list of points")]
    return [*itertools.chain.from_iterable(points)]


def box_of_edges(xmin: float, ymin: float, xmax: float, ymax: float) -> tuple[float, float, float, float]:
    """Returns the box between two corners."""
    if xmin > xmax or ymin > ymax:
        raise ValueError(f"the box ends before it begins: {xmin:g} to {xmax:g}, {ymin:g} to {ymax:g}")
    return xmin, xmax, ymin, ymax


def box_of_size(xmin: float, ymin: float, width: float, height: float) -> tuple[float, float, float, float]:
    """Returns the box of a corner and a size."""
    if width < 0 or height < 0:
        raise ValueError(f"the box has a negative size, {width:g} x {height:g}")
    return xmin, xmin + width, ymin, ymin + height


def turned(points: Sequence[float], degrees: float, x: float, y: float) -> list[float]:
    """Returns points x, y, x, y, ... turned clockwise around the point at `x` and `y`."""
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    moved = [(right - x, below - y) for right, below in zip(points[::2], points[1::2])]
    return [each for a, b in moved for each in (x + a * cosine - b * sine, y + a * sine + b * cosine)]


def stated_size(sides: Any) -> tuple[int, int]:
    """Returns the height and width that a file states."""
    height, width = numbers(sides, "height", "width")
    if not all(side.is_integer() and 0 < side <= _MAX_SIDE_PX for side in (height, width)):
        raise ValueError(f"the size is {width:,g} x {height:,g}, expected pixels")
    return int(height), int(width)


def polygon(points: Sequence[float]) -> Region:
    """Returns the region of an outline x, y, x, y, ... in pixels."""
    xs, ys = points[::2], points[1::2]
    if len(points) < 6 or len(xs) != len(ys):
        raise ValueError(f"a polygon of {len(points)} numbers, expected x and y of 3 points or more")
    return Region((min(xs), max(xs), min(ys), max(ys)), [[*points]])


def rectangle(box: tuple[float, float, float, float]) -> Region:
    """Returns the region of a box in pixels, with its outline."""
    xmin, xmax, ymin, ymax = box
    return Region(box, [[xmin, ymin, xmax, ymin, xmax, ymax, xmin, ymax]])


_CORNERS = 64  # of the polygon that an ellipse becomes


def ellipse(x: float, y: float, across: float, down: float, degrees: float) -> Region:
    """Returns the region of an ellipse around the point at `x` and `y`, with two radii, turned clockwise."""
    turns = [2 * math.pi * index / _CORNERS for index in range(_CORNERS)]
    points = [each for turn in turns for each in (x + across * math.cos(turn), y + down * math.sin(turn))]
    return polygon(turned(points, degrees, x, y))


def check_shares(values: Iterable[float]) -> None:
    """Checks that numbers are shares of a side, 0 to 1."""
    for value in values:
        if not -_TOLERANCE <= value <= 1 + _TOLERANCE:
            raise ValueError(f"{value:g} is no share of the image's side, 0 to 1")
