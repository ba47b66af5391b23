"""The source of images that are the rows of arrays; labels are other arrays."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from imagebeam import plural
from imagebeam.transforms import elements
from imagebeam.transforms.packed import found_array, pixel_csv
from imagebeam.transforms.sources import image_source, table_rows

LABEL = found_array.LABEL
Names: TypeAlias = tuple[tuple[str, str], ...]  # class of each value, both as texts; () takes the values themselves
_MAX_CLASSES = 100_000  # more numbers are no classes
_MAX_FILLED = 10_000  # different labels whose fields are kept
_AFTER_POSITION = elements.ImageRef._fields.index("position") + 1  # fields from here on depend on the cells alone


class Wanted(NamedTuple):
    """The options of the format."""

    images: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    layout: str | None = None
    shape: tuple[int, int, int] | None = None
    classes: Names = ()
    option: str = "source.arrays"  # section of the config, for errors
    has_idx: bool = False  # whether files are IDX, whatever their names are, and each glob means one of them


class ImageRows(NamedTuple):
    """Images of one array, one after another, each as its height, width and channels."""

    address: str  # where they are: a file, or a part of it that is to be unpacked
    version: int
    start: int  # byte offset of the first image
    num_images: int


class LabelArray(NamedTuple):
    """One array with a value for each image."""

    cell: str
    uri: str
    version: int
    array: found_array.FoundArray
    names: Names = ()


class ArrayPart(NamedTuple):
    """Images and labels that belong together."""

    images: ImageRows
    labels: tuple[LabelArray, ...]
    csv: str = ""  # address of the file if the images are pixels in CSV; the labels are columns of it


class ArraySplit(NamedTuple):
    """The arrays of one split, in their order."""

    name: str  # "" if the files name none
    parts: tuple[ArrayPart, ...]


@dataclasses.dataclass(frozen=True)
class ArraysSource(image_source.ImageSource):
    """Splits whose images all have one shape."""

    splits: tuple[ArraySplit, ...]
    image_shape: tuple[int, int, int]  # height and width in pixels, and channels
    fields: table_rows.RowFields = table_rows.NO_FIELDS
    numbers: Names = ()  # classes of labels that are numbers without names

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in the order of their ids, as the files state it; () if they do not."""
        names = next((self._names_of(label) for label in self.labels() if label.cell == self.fields.label), ())
        return tuple(dict.fromkeys(name for _, name in names))

    def _names_of(self, label: LabelArray) -> Names:
        return label.names or (self.numbers if label.cell == self.fields.label else ())

    def labels(self) -> Iterator[LabelArray]:
        """Yields the arrays of labels."""
        return (label for split in self.splits for part in split.parts for label in part.labels)

    def facts(self) -> image_source.SourceFacts:
        return image_source.SourceFacts(shape=self.image_shape, class_names=self.class_names or None)

    def list_all(self) -> Iterator[image_source.Listing]:
        """Yields a reference for each image, in the order of the arrays."""
        yield from image_source.list_parts(self._parts())

    def _parts(self) -> Iterator[tuple[Iterator[elements.ImageRef | elements.Reject], str]]:
        for split in self.splits:
            position = 0
            for part in split.parts:
                what = repr(part.csv) if part.csv else f"the labels of {part.images.address!r}"
                yield self._list_part(split, part, position), what
                position += part.images.num_images

    def _list_part(
        self, split: ArraySplit, part: ArrayPart, position: int
    ) -> Iterator[elements.ImageRef | elements.Reject]:
        images, size = part.images, math.prod(self.image_shape)
        unfilled = elements.ImageRef("", images.address, split=split.name)
        filled: dict[tuple[str | None, ...], tuple[Any, ...] | table_rows.BadRowError] = {}
        names = [dict(self._names_of(label)) for label in part.labels]
        for index, (number, values, problem) in enumerate(_read_rows(part)):
            known = table_rows.BadRowError(elements.Reason.BAD_ROW, problem) if problem else filled.get(values)
            if known is None:
                known = self._fill(unfilled, part.labels, names, values)
                if len(filled) < _MAX_FILLED:
                    filled[values] = known
            key = f"{split.name or 'images'}/{position + index:05d}"
            if isinstance(known, table_rows.BadRowError):
                where = f"line {number} of {part.csv}" if part.csv else f"row {number} of {images.address}"
                yield elements.Reject(key, part.csv or images.address, "list", known.reason, f"{where}: {known.detail}")
            else:
                offset = images.start + index * size
                yield elements.new_ref(
                    (key, images.address, size, images.version, offset, size, position + index, *known)
                )

    def _fill(
        self,
        ref: elements.ImageRef,
        labels: Sequence[LabelArray],
        names: Sequence[Mapping[str, str]],
        values: Sequence[str | None],
    ) -> tuple[Any, ...] | table_rows.BadRowError:
        try:
            found = zip(labels, names, values)
            cells = {label.cell: _class_of(label, each, value) for label, each, value in found}
            return self.fields.fill(ref, cells)[_AFTER_POSITION:]
        except table_rows.BadRowError as e:
            return e


def _class_of(label: LabelArray, names: Mapping[str, str], value: str | None) -> str | None:
    """Returns the class of a value.

    Raises:
        BadRowError: if it has none.
    """
    array = label.array.name
    if value is not None and value.startswith(SEVERAL):
        raise table_rows.BadRowError(
            elements.Reason.BAD_VALUE, f"{array!r} has {value.removeprefix(SEVERAL)} of its values set to 1"
        )
    if not names or not value:
        return value
    if value not in names:
        shown = plural.name_some([f"{number}: {name}" for number, name in names.items()], 20)
        raise table_rows.BadRowError(
            elements.Reason.UNKNOWN_LABEL, f"{array!r} is {value}, and the classes are {shown}"
        )
    return names[value]


def _read_rows(part: ArrayPart) -> Iterator[tuple[int, tuple[str | None, ...], str]]:
    """Yields the number of each image, or its line in CSV, the values of its labels, and why it cannot be used."""
    if part.csv:
        for row in pixel_csv.read_rows(part.csv, part.images.version, [label.cell for label in part.labels]):
            yield row.line, row.cells, row.problem
    else:
        rows = zip(*map(read_texts, part.labels)) if part.labels else [()] * part.images.num_images
        for index, values in enumerate(rows):
            yield index, values, ""


SEVERAL = "\0"  # begins the text for a row that is not one-hot


def read_texts(label: LabelArray) -> list[str | None]:
    """Reads the values of an array, one for each image, as texts; None for NaN.

    Raises:
        OSError: if the file cannot be read, or changed since it was checked.
    """
    from imagebeam.transforms.packed import array_files  # late: NumPy

    values = array_files.load(label.uri, label.version, label.array)
    if isinstance(values, list):
        return list(values)
    if values.size and values.size != max(values.shape):  # one-hot: [count, classes]
        is_set = values == 1
        others = ((values != 0) & ~is_set).any(1)
        hot = is_set.argmax(1).tolist()
        counts = is_set.sum(1).tolist()
        return [
            str(index) if number == 1 and not other else f"{SEVERAL}{number}"
            for index, number, other in zip(hot, counts, others.tolist())
        ]
    flat = values.ravel().tolist()
    if values.dtype.kind == "S":
        return [text.decode("utf-8", "surrogateescape") for text in flat]
    if values.dtype.kind == "f":
        return [None if value != value else str(int(value)) if value.is_integer() else repr(value) for value in flat]
    return [str(int(value)) if values.dtype.kind == "b" else str(value) for value in flat]


def numbers_up_to(texts: Iterable[str | None]) -> Names:
    """Returns the numbers from 0 to the highest label, each as its own name; () if the labels are not such numbers."""
    highest = -1
    for text in texts:
        if text is None or not text.isascii() or not text.isdecimal() or text != str(int(text[:9])):
            return ()
        highest = max(highest, int(text))
    return tuple((str(number), str(number)) for number in range(highest + 1)) if highest < _MAX_CLASSES else ()
