"""Streams an annotation file in COCO's JSON format into tables that take a few bytes per object."""

from __future__ import annotations

import array
import contextlib
import dataclasses
import io
import math
import reprlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from imagebeam import features, storage
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import object_masks
from imagebeam.transforms.objects import image_objects

IMAGES, ANNOTATIONS, CATEGORIES = "images", "annotations", "categories"

# Kinds of annotations that become no object and are counted.
UNKNOWN_IMAGE = "object_of_unknown_image"
NO_AREA = image_objects.NO_AREA
OUTSIDE = image_objects.OUTSIDE
CROWD = "crowd"

_BUFFER_BYTES = 1 << 20
_ROUNDING_PX = 0.01  # COCO rounds boxes to this; a box outside of the image by no more is always clipped
_MAX_SIDE_PX = 1_000_000
_AREA_LIMIT = 1e38  # finite as a 32-bit float
_SHOWN = 80  # characters of a bad value in an error
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_REPR = reprlib.Repr()  # for values that may be long or deeply nested
_REPR.maxlist = _REPR.maxdict = 4


class AnnotationFileError(ValueError):
    """The annotation file cannot be used at all."""


class BadAnnotationError(ValueError):
    """An annotation cannot be parsed; its image becomes a reject."""


@dataclasses.dataclass(frozen=True)
class ObjectRule:
    """Says which objects are kept, and whether with masks."""

    masks: bool = False
    rejects_outside: bool = False  # reject boxes outside of the image; else clip them at its edge
    crowd: bool = True


BOXES = ObjectRule()


class ImageTable:
    """The images of a file, in its order."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.ids: list[int | str] = []
        self.heights = array.array("l")  # pixels
        self.widths = array.array("l")
        self.cells: list[tuple[Any, ...]] = []  # of the wanted columns
        self.numbers: dict[int | str, int] = {}  # by id
        self.faults: dict[int, tuple[Reason, str]] = {}  # by number: why the image cannot be used

    def add(self, entry: Any, columns: Sequence[str]) -> None:
        """Adds an image; notes a fault if it cannot be used."""
        number = len(self.names)
        fields = entry if isinstance(entry, dict) else {}
        name, image_id = fields.get("file_name"), _whole(fields.get("id"))
        size = _whole(fields.get("height")), _whole(fields.get("width"))
        self.names.append(name if isinstance(name, str) else "")
        self.ids.append(image_id if isinstance(image_id, (int, str)) else "")
        for sides, side in zip((self.heights, self.widths), size):
            sides.append(side if _is_side(side) else 0)
        self.cells.append(tuple(fields.get(column) for column in columns))
        if not isinstance(name, str) or not name:
            self.faults[number] = Reason.BAD_ROW, f"file_name is {_show(name)}, expected a name"
        elif not isinstance(image_id, (int, str)) or image_id == "":
            self.faults[number] = Reason.BAD_ROW, f"id is {_show(image_id)}, expected an integer or a text"
        elif not all(map(_is_side, size)):
            self.faults[number] = Reason.BAD_VALUE, f"height and width are {_show(size)}, expected pixels"
        if isinstance(image_id, (int, str)):
            self._note_id(image_id, number)

    def _note_id(self, image_id: int | str, number: int) -> None:
        first = self.numbers.setdefault(image_id, number)
        if first != number:  # the objects of this id may belong to either image
            fault = Reason.BAD_VALUE, f"two images have the id {image_id!r}: {self.names[first]}, {self.names[number]}"
            self.faults[first] = self.faults[number] = fault


class Objects(NamedTuple):
    """The objects of one image, as its record stores them."""

    xmin: tuple[float, ...]
    xmax: tuple[float, ...]
    ymin: tuple[float, ...]
    ymax: tuple[float, ...]
    labels: tuple[int, ...]
    texts: tuple[bytes, ...]
    areas: tuple[float, ...]
    crowds: tuple[int, ...]
    masks: tuple[bytes, ...]  # packed; empty unless masks are stored


class ObjectTable:
    """The objects of all images of a file: 53 bytes for each, and its mask."""

    def __init__(self, num_images: int, names: dict[int, bytes]):
        self.names = names  # of the categories, by id
        self._newest = array.array("q", [-1]) * num_images  # number of the last object of each image; -1 for none
        self._before = array.array("q")  # number of the object before it of the same image
        self._labels = array.array("q")
        self._numbers = array.array("f")  # five per object: xmin, xmax, ymin, ymax, area
        self._crowds = array.array("b")
        self._masks = bytearray()
        self._mask_ends = array.array("Q", [0])

    def add(self, image: int, label: int, numbers: Sequence[float], is_crowd: int, mask: bytes) -> None:
        """Adds an object of the image with the number `image`."""
        self._before.append(self._newest[image])
        self._newest[image] = len(self._labels)
        self._labels.append(label)
        self._numbers.extend(numbers)
        self._crowds.append(is_crowd)
        self._masks += mask
        self._mask_ends.append(len(self._masks))

    def of(self, image: int) -> Objects:
        """Returns the objects of an image in the order of the file."""
        found = []
        number = self._newest[image]
        while number >= 0:
            found.append(number)
            number = self._before[number]
        found.reverse()
        xmin, xmax, ymin, ymax, areas = (tuple(self._numbers[5 * each + i] for each in found) for i in range(5))
        labels = tuple(self._labels[each] for each in found)
        texts = tuple(self.names[label] for label in labels)
        crowds = tuple(self._crowds[each] for each in found)
        masks = tuple(bytes(self._masks[self._mask_ends[each] : self._mask_ends[each + 1]]) for each in found)
        return Objects(xmin, xmax, ymin, ymax, labels, texts, areas, crowds, masks)


def read_images(file: AnnotationFile, columns: Sequence[str]) -> ImageTable:
    """Reads the images, with the values of `columns`.

    Raises:
        AnnotationFileError: if the file is not JSON, or names no image.
        OSError: if it cannot be read.
    """
    images = ImageTable()
    for entry in file.items(IMAGES):
        images.add(entry, columns)
    if not images.names:
        raise AnnotationFileError(
            f"{file.uri!r} names no image: a file of COCO's format has them in a list, {IMAGES!r}"
        )
    return images


def _read_categories(file: AnnotationFile) -> dict[int, bytes]:
    """Reads the names of the categories, by id."""
    categories: dict[int, bytes] = {}
    for entry in file.items(CATEGORIES):
        fields = entry if isinstance(entry, dict) else {}
        label, name = _whole(fields.get("id")), fields.get("name")
        if not isinstance(label, int) or not features.check_value(features.INT64, label) or not isinstance(name, str):
            raise AnnotationFileError(f"{file.uri!r}: the category {_show(entry)} needs an integer id and a name")
        if label in categories:
            raise AnnotationFileError(f"{file.uri!r}: two categories have the id {label}; remove one")
        categories[label] = name.encode("utf-8", "surrogateescape")
    return categories


def read_objects(file: AnnotationFile, images: ImageTable, rule: ObjectRule, left_out: Counter[str]) -> ObjectTable:
    """Reads the objects of `images`; notes a fault for an image with a wrong annotation.

    Raises:
        AnnotationFileError: if the file is not JSON, or has no list of annotations, or no categories for them.
        OSError: if it cannot be read.
    """
    objects = ObjectTable(len(images.names), _read_categories(file))
    count = 0
    for entry in file.items(ANNOTATIONS):
        count += 1
        _add_object(entry, images, objects, rule, left_out)
    if not count:
        file.require_list(ANNOTATIONS)
    elif not objects.names:
        raise AnnotationFileError(f"{file.uri!r} has annotations and no list {CATEGORIES!r}, which names their classes")
    return objects


def _add_object(entry: Any, images: ImageTable, objects: ObjectTable, rule: ObjectRule, left_out: Counter[str]) -> None:
    fields = entry if isinstance(entry, dict) else {}
    image_id = _whole(fields.get("image_id"))
    image = images.numbers.get(image_id) if isinstance(image_id, (int, str)) else None
    if image is None:
        left_out[UNKNOWN_IMAGE] += 1
        return
    if image in images.faults:
        return
    try:
        is_crowd = _flag(fields.get("iscrowd", 0))
        if is_crowd and not rule.crowd:
            left_out[CROWD] += 1
            return
        label = _whole(fields.get("category_id"))
        if not isinstance(label, int) or label not in objects.names:
            raise BadAnnotationError(f"category_id is {_show(label)}, which is none of the file's categories")
        height, width = images.heights[image], images.widths[image]
        x, y, box_width, box_height = _box(fields.get("bbox"))
        if box_width == 0 or box_height == 0:
            left_out[NO_AREA] += 1
            return
        rejecting = "source.coco.outside" if rule.rejects_outside else ""
        xmin, xmax = image_objects.edges(x, x + box_width, image_objects.pixels(width, _ROUNDING_PX), rejecting)
        ymin, ymax = image_objects.edges(y, y + box_height, image_objects.pixels(height, _ROUNDING_PX), rejecting)
        if xmin >= xmax or ymin >= ymax:
            left_out[OUTSIDE] += 1
            return
        area = _area(fields.get("area"), box_width * box_height)
        mask = object_masks.pack(fields.get("segmentation"), height, width) if rule.masks else b""
        objects.add(image, label, (xmin, xmax, ymin, ymax, area), is_crowd, mask)
    except ValueError as e:
        images.faults[image] = Reason.BAD_VALUE, f"annotation {_show(fields.get('id'))}: {e}"


def _box(value: Any) -> tuple[float, float, float, float]:
    if not isinstance(value, list) or len(value) != 4 or not all(map(_is_number, value)):
        raise BadAnnotationError(f"bbox is {_show(value)}, expected [x, y, width, height]")
    if value[2] < 0 or value[3] < 0:
        raise BadAnnotationError(f"bbox {_show(value)} has a negative size; expected [x, y, width, height]")
    return tuple(map(float, value))  # type: ignore[return-value]


def _area(value: Any, of_box: float) -> float:
    if value is None:
        value = of_box
    if not _is_number(value) or not 0 <= value < _AREA_LIMIT:
        raise BadAnnotationError(f"area is {_show(value)}, expected pixels")
    return float(value)


def _flag(value: Any) -> int:
    if value not in (0, 1) or not isinstance(value, (int, float)):
        raise BadAnnotationError(f"iscrowd is {_show(value)}, expected 0 or 1")
    return int(value)


def _whole(value: Any) -> Any:
    """Converts a float such as 3.0 to an integer, and a bool to None; returns other values unchanged."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None if isinstance(value, bool) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_side(value: Any) -> bool:
    return isinstance(value, int) and 0 < value <= _MAX_SIDE_PX


def _show(value: Any) -> str:
    """Returns the text of a value, cut after `_SHOWN` characters."""
    text = _REPR.repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


@contextlib.contextmanager
def open_file(uri: str) -> Iterator[AnnotationFile]:
    """Opens an annotation file to be read several times; fetches a remote file once, to the local disk.

    Raises:
        OSError: if it cannot be read.
    """
    store = storage.storage_of(uri)
    with io.BufferedReader(store.open_read(uri), _BUFFER_BYTES) as file:  # type: ignore[type-var]
        if store.is_local:
            yield AnnotationFile(uri, file)
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(file, copy, _BUFFER_BYTES)
            yield AnnotationFile(uri, copy)


class AnnotationFile(NamedTuple):
    """An open file and its address."""

    uri: str
    file: Any

    def items(self, name: str) -> Iterator[Any]:
        """Yields the entries of the top-level list `name`, wherever it is in the file.

        Raises:
            AnnotationFileError: if the file is not JSON.
        """
        import ijson  # takes 10 ms, and is needed only here

        self._start()
        try:
            yield from ijson.items(self.file, f"{name}.item", use_float=True)
        except (ijson.JSONError, UnicodeDecodeError, OverflowError) as e:
            reason = " ".join(str(e).split())[:_SHOWN]
            where = f"in the last {_BUFFER_BYTES >> 10:,} KiB before byte {self.file.tell():,}"
            raise AnnotationFileError(f"{self.uri!r} is not JSON, {where}: {reason}") from e

    def require_list(self, name: str) -> None:
        """Checks that a list `name` exists. This reads the file, so it is called only if `items` yielded nothing.

        Raises:
            AnnotationFileError: if there is no such list.
        """
        import ijson

        self._start()
        events = ijson.parse(self.file, use_float=True)
        if not any(prefix == name and event == "start_array" for prefix, event, _ in events):
            raise AnnotationFileError(f"{self.uri!r} has no list {name!r}, as a file of COCO's format has")

    def _start(self) -> None:
        self.file.seek(0)
        if self.file.read(len(BYTE_ORDER_MARK)) != BYTE_ORDER_MARK:
            self.file.seek(0)
