"""The annotations of one image: the objects in it as its record stores them, checked against the image.

Every source of objects ends here. An annotation file with one image is read together with the image, by the worker
that writes it: an `AnnotationReader` parses it. A file with many images (COCO's JSON, a CSV) is read when the source is
listed; it takes the same checks of boxes from here.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from imagebeam.transforms import elements
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, orientations

# Sources of the values of objects in a record: the boxes first, then the classes.
BOX_COLUMNS = tuple(f"image/object/bbox/{edge}" for edge in orientations.Box._fields)
CLASS_COLUMNS = ("image/object/class/label", "image/object/class/text")
KEYPOINT_COLUMNS = tuple(f"image/object/keypoint/{each}" for each in ("x", "y", "visibility", "num"))
COLUMNS = (*BOX_COLUMNS, *CLASS_COLUMNS)

# Kinds of annotations that become no object and are counted.
NO_AREA = "object_without_area"
OUTSIDE = "object_outside_image"

MAX_FILE_BYTES = 16 << 20  # a file with the annotations of one image: 200,000 boxes


_R = TypeVar("_R")


class BadBoxError(ValueError):
    """A box cannot be used; its image becomes a reject."""


class Extent(NamedTuple):
    """One side of an image, in the units of its boxes."""

    length: float
    slack: float  # a box outside of the image by no more is always clipped
    described: str  # "has 640 px"


SHARES = Extent(1.0, 1e-4, "ends at 1")  # files often hold four decimals


def pixels(side: int, slack: float) -> Extent:
    """Returns the extent of a side with boxes in pixels."""
    return Extent(side, slack, f"has {side} px")


def edges(start: float, end: float, extent: Extent, rejecting: str) -> tuple[float, float]:
    """Returns both edges of a box as shares of the image's side, 0 to 1. Nothing is left if the first is not smaller.

    Args:
        start: left or upper edge.
        end: right or lower edge.
        extent: of the image.
        rejecting: key of the config that asks to reject a box that leaves the image; "" clips it.

    Raises:
        BadBoxError: if the box leaves the image, and is to be rejected.
    """
    if rejecting and (start < -extent.slack or end > extent.length + extent.slack):
        raise BadBoxError(
            f"the box from {start:g} to {end:g} leaves the image, which {extent.described}; {rejecting}: clip would "
            "cut it"
        )
    return max(start, 0.0) / extent.length, min(end, extent.length) / extent.length


def around_turned(box: tuple[float, float, float, float], degrees: float) -> tuple[float, float, float, float]:
    """Returns xmin, xmax, ymin and ymax of the box around a box of these edges that is turned around its center."""
    xmin, xmax, ymin, ymax = box
    sine, cosine = abs(math.sin(math.radians(degrees))), abs(math.cos(math.radians(degrees)))
    width, height = xmax - xmin, ymax - ymin
    across, down = (width * cosine + height * sine) / 2, (width * sine + height * cosine) / 2
    x, y = (xmin + xmax) / 2, (ymin + ymax) / 2
    return x - across, x + across, y - down, y + down


ROTATION = "rotation"  # attribute of a box that CVAT has turned, clockwise in degrees
NOTE_ON_TURNED = "boxes are turned by the attribute rotation: the box around each is stored, and not its angle"


class Annotations(NamedTuple):
    """The objects of one image."""

    values: tuple[tuple[Any, ...], ...]  # by column of the reader; all have the same length
    expected: tuple[int, int] | None = None  # height and width of the image that they are for, in pixels
    dropped: Mapping[str, int] = {}  # objects that are left out, by kind


@dataclasses.dataclass(frozen=True)
class ClassNames(elements.PickledFields):
    """The classes of objects: their ids in records, and their names."""

    names: tuple[str, ...]
    numbers: tuple[int, ...] | None = None  # ids of the classes in annotation files; None counts from 0
    base: int = 0  # added to a number, makes the id

    def as_json(self) -> list[Any]:
        """Returns what decides the ids and names in records, for the fingerprint of a dataset."""
        return [list(self.names), None if self.numbers is None else list(self.numbers), self.base]

    def texts(self) -> Mapping[int, bytes]:
        """Returns the names by id."""
        return self._texts

    def id_of(self, name: str) -> int | None:
        """Returns the id of the class with a name; None if it is unknown."""
        return self._ids.get(name)

    def find(self, name: str, option: str) -> tuple[int, bytes]:
        """Returns the id and the stored text of a class in an annotation file.

        Raises:
            BadImageError: if it is none of those that the config names in `option`.
        """
        label = self.id_of(name)
        if label is None:
            raise checked_image.BadImageError(
                Reason.UNKNOWN_LABEL,
                f"the class {reprlib.repr(name)} is none of {option}: add it there, or leave {option} out to take the "
                "classes from the files",
            )
        return label, self._texts[label]

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        numbers = self.numbers or range(len(self.names))
        return {name: number + self.base for number, name in zip(numbers, self.names)}

    @functools.cached_property
    def _texts(self) -> dict[int, bytes]:
        numbers = self.numbers or range(len(self.names))
        return {number + self.base: encode_text(name) for number, name in zip(numbers, self.names)}


class AnnotationReader(Protocol):
    """Parses the annotation file of one image; hashable and picklable."""

    @property
    def classes(self) -> ClassNames:
        """The classes of the objects."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The sources of the values, in the order of `Annotations.values`."""

    def for_image(self, find_size: Callable[[], tuple[int, int]]) -> AnnotationReader:
        """Returns the reader for one image.

        Args:
            find_size: finds height and width, in pixels, of the picture that boxes refer to: for files that do not
                state them.
        """

    def read(self, data: bytes | None) -> Annotations:
        """Returns the objects in a file; none if the image has no file.

        Raises:
            BadImageError: if the image is to be rejected.
        """


class ReaderOfAnySize:
    """Base of readers that need not know the size of an image."""

    def for_image(self: _R, find_size: Callable[[], tuple[int, int]]) -> _R:
        return self


def encode_text(text: str) -> bytes:
    """Returns a text as it is stored."""
    return text.encode("utf-8", "surrogateescape")


class ObjectsBuilder:
    """Collects the objects of one image whose boxes are in shares or pixels."""

    def __init__(self, num_columns: int, rejecting: str):
        self._rows: list[tuple[Any, ...]] = []
        self._num_columns = num_columns
        self._rejecting = rejecting  # as in `edges`
        self.dropped: collections.Counter[str] = collections.Counter()

    def add(self, box: Sequence[float], width: Extent, height: Extent, values: tuple[Any, ...]) -> None:
        """Adds an object, or counts it if nothing of its box is inside of the image.

        Args:
            box: xmin, xmax, ymin, ymax.
            width: of the image.
            height: of the image.
            values: of the columns after the box.

        Raises:
            BadBoxError: as `edges`.
        """
        if box[0] >= box[1] or box[2] >= box[3]:
            self.dropped[NO_AREA] += 1
            return
        xmin, xmax = edges(box[0], box[1], width, self._rejecting)
        ymin, ymax = edges(box[2], box[3], height, self._rejecting)
        if xmin >= xmax or ymin >= ymax:
            self.dropped[OUTSIDE] += 1
            return
        self._rows.append((xmin, xmax, ymin, ymax, *values))

    def build(self, expected: tuple[int, int] | None = None) -> Annotations:
        """Returns the objects in the order in which they were added."""
        values = tuple(zip(*self._rows)) if self._rows else ((),) * self._num_columns
        return Annotations(values, expected, dict(self.dropped))


def parse_finite(text: str) -> float:
    """Returns the number in a text; NaN if it is no finite number as annotation tools write them (not 1_000)."""
    try:
        number = math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def bad_value(detail: str) -> checked_image.BadImageError:
    """Returns the error of annotations that cannot be used."""
    return checked_image.BadImageError(Reason.BAD_VALUE, detail)


def bad_value_at(where: str, error: ValueError) -> checked_image.BadImageError:
    """Returns the error of annotations one object of which cannot be used, with its place before the text."""
    if isinstance(error, checked_image.BadImageError):
        return checked_image.BadImageError(error.reason, f"{where}: {error.detail}")
    return bad_value(f"{where}: {error}")


def check_size(data: bytes, limit: int = MAX_FILE_BYTES) -> None:
    """Checks that an annotation file is not too long to be parsed.

    Raises:
        BadImageError: if it is.
    """
    if len(data) > limit:
        raise checked_image.BadImageError(
            Reason.TOO_LARGE, f"has {len(data):,} bytes; the annotations of one image may have {limit:,}"
        )
