"""Tables of the images and objects in an annotation file: a few bytes per object."""

from __future__ import annotations

import array
import re
import reprlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from imagebeam.transforms.elements import Reason

SHOWN = 80  # characters of a bad value in an error
_MAX_SIDE_PX = 1_000_000

_REPR = reprlib.Repr()  # for values that may be long or deeply nested
_REPR.maxlist = _REPR.maxdict = 4


class AnnotationFileError(ValueError):
    """The annotation file cannot be used at all."""


class ImageTable:
    """The images of a file, in its order."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.ids: list[int | str] = []
        self.heights = array.array("l")  # pixels
        self.widths = array.array("l")
        self.cells: list[tuple[Any, ...]] = []  # cells of the wanted columns
        self.numbers: dict[int | str, int] = {}  # by id
        self.captions: dict[int, list[bytes]] = {}  # by number
        self.panoptic: dict[int, tuple[str, bytes]] = {}  # by number: name of the PNG, and its packed segments
        self.faults: dict[int, tuple[Reason, str]] = {}  # by number: why the image cannot be used

    def add(self, entry: Any, columns: Sequence[str]) -> None:
        """Adds an image; notes a fault if it cannot be used."""
        number = len(self.names)
        fields = entry if isinstance(entry, dict) else {}
        name, image_id = fields.get("file_name"), whole(fields.get("id"))
        if name is None and isinstance(url := fields.get("coco_url"), str):  # LVIS names images so
            name = "/".join(url.split("/")[-2:])
        size = whole(fields.get("height")), whole(fields.get("width"))
        self.names.append(name if isinstance(name, str) else "")
        self.ids.append(image_id if isinstance(image_id, (int, str)) else "")
        for sides, side in zip((self.heights, self.widths), size):
            sides.append(side if _is_side(side) else 0)
        self.cells.append(tuple(fields.get(column) for column in columns))
        if not isinstance(name, str) or not name:
            self.faults[number] = Reason.BAD_ROW, f"file_name is {show(name)}, expected a name"
        elif not isinstance(image_id, (int, str)) or image_id == "":
            self.faults[number] = Reason.BAD_ROW, f"id is {show(image_id)}, expected an integer or a text"
        elif not all(map(_is_side, size)):
            self.faults[number] = Reason.BAD_VALUE, f"height and width are {show(size)}, expected pixels"
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
    keypoints: tuple[float, ...] = ()  # x, y and visibility of each keypoint of each object, one after the other


class ObjectTable:
    """The objects of all images of a file: 53 bytes for each, and its mask."""

    def __init__(self, num_images: int, names: dict[int, bytes], num_keypoints: int = 0):
        self.names = names  # names of the categories, by id
        self._keypoints = array.array("f")
        self._keypoint_values = 3 * num_keypoints  # names of the keypoints of each object
        self._newest = array.array("q", [-1]) * num_images  # number of the last object of each image; -1 for none
        self._before = array.array("q")  # number of the object before it of the same image
        self._labels = array.array("q")
        self._numbers = array.array("f")  # five per object: xmin, xmax, ymin, ymax, area
        self._crowds = array.array("b")
        self._masks = bytearray()
        self._mask_ends = array.array("Q", [0])

    def add_image(self) -> None:
        """Makes room for another image, without objects."""
        self._newest.append(-1)

    def add(
        self,
        image: int,
        label: int,
        numbers: Sequence[float],
        is_crowd: int,
        mask: bytes,
        keypoints: Sequence[float] = (),
    ) -> None:
        """Adds an object of the image with the number `image`."""
        self._keypoints.extend(keypoints)
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
        size = self._keypoint_values
        keypoints = tuple(value for each in found for value in self._keypoints[size * each : size * (each + 1)])
        return Objects(xmin, xmax, ymin, ymax, labels, texts, areas, crowds, masks, keypoints)


def whole(value: Any) -> Any:
    """Converts a float such as 3.0 to an integer, and a bool to None; returns other values unchanged."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None if isinstance(value, bool) else value


def _is_side(value: Any) -> bool:
    return isinstance(value, int) and 0 < value <= _MAX_SIDE_PX


def show(value: Any) -> str:
    """Returns the text of a value, cut after `SHOWN` characters."""
    text = _REPR.repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


MAX_DEPTH = 1_000  # COCO's format has 6 levels
TOO_DEEP = f"lists or objects nested more than {MAX_DEPTH:,} deep"

_CHUNK_BYTES = 1 << 20
_OPENING, _CLOSING, _QUOTE = b"[{", b"]}", b'"'
_OTHERS = bytes(each for each in range(256) if each not in _OPENING + _CLOSING + _QUOTE)
_ESCAPE = re.compile(rb"\\.", re.DOTALL)


class DepthMeter:
    """Measures the nesting of JSON that is read in pieces."""

    def __init__(self) -> None:
        self._depth, self._in_text, self._cut = 0, 0, b""

    def is_too_deep(self, chunk: bytes) -> bool:
        """Returns whether lists and objects are nested deeper than `MAX_DEPTH` in the next piece of the JSON."""
        import numpy as np

        chunk, self._cut = self._cut + chunk, b""
        if b"\\" in chunk:
            chunk = _ESCAPE.sub(b"", chunk)
            self._cut = b"\\" if chunk.endswith(b"\\") else b""
        marks = np.frombuffer(chunk.translate(None, _OTHERS), np.uint8)
        if not len(marks):
            return False
        steps = np.zeros(256, np.int8)
        steps[list(_OPENING)], steps[list(_CLOSING)] = 1, -1
        texts = (np.cumsum(marks == _QUOTE[0]) + self._in_text) & 1  # 1 from the opening quote on
        levels = self._depth + np.cumsum(np.where(texts, 0, steps[marks]), dtype=np.int64)
        self._depth, self._in_text = int(levels[-1]), int(texts[-1])
        return bool(levels.max() > MAX_DEPTH)


def check_depth(file: Any, uri: str) -> None:
    """Checks the nesting of a JSON file, and leaves its position anywhere.

    Args:
        file: opened in binary mode.
        uri: of the file, for the error.

    Raises:
        AnnotationFileError: if it is nested deeper than `MAX_DEPTH`.
    """
    file.seek(0)
    meter = DepthMeter()
    while chunk := file.read(_CHUNK_BYTES):
        if meter.is_too_deep(chunk):
            raise AnnotationFileError(f"{uri!r} holds {TOO_DEEP}, so it is no annotation file")
