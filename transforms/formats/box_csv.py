"""Boxes in CSV files as TensorFlow's object detection scripts write them: one row for each box.

The columns are filename, width, height, class, xmin, ymin, xmax and ymax, in any order; others are ignored. Edges are
pixels from the left and upper edge of the image. The rows of an image may be anywhere in the file. A row without class
and edges is an image without objects.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from imagebeam import errors, storage
from imagebeam.storage import remote
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.formats.annotations import syntax
from imagebeam.transforms.formats.tables import table_heads
from imagebeam.transforms.images import image_objects
from imagebeam.transforms.sources import annotation_tables, folder_probe, image_source, input_places, table_rows
from imagebeam.transforms.sources.annotation_tables import (
    AnnotatedSplit,
    AnnotationFileError,
    ImageTable,
    Objects,
    ObjectTable,
)

COLUMNS = image_objects.COLUMNS

_NAMES = ("filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax")
_BOX = ("class", "xmin", "ymin", "xmax", "ymax")
_CORNER, _SIZE = ("xmax", "ymax"), ("box_width", "box_height")  # a box has either of them
_SEPARATORS = ";\t|"
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")  # UTF-16 begins with one of them
_SLACK_PX = 0.5
_BUFFER_BYTES = 1 << 20


_Column = Literal["filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax", "box_width", "box_height"]


@dataclasses.dataclass(frozen=True)
class BoxCsv(base_format.ObjectFormat):
    """Boxes in CSV files with a row for each: filename, width, height, class, xmin, ymin, xmax, ymax."""

    ABOUT: ClassVar[str] = "tables with a row for each box"
    PRESETS: ClassVar[tuple[str, ...]] = ("box_csv",)

    annotations: dict[str, str] | None = None
    """CSV files below `source.uri`, by split. By default `train_labels.csv`, `train/_annotations.csv` or `train.csv`,
    also in the folder `data` or `annotations`, and the same for val, valid, validation and test."""
    images: dict[str, str] | None = None
    """Folders of the images below `source.uri`, by split. By default the folder of the CSV file; for a file at
    `source.uri` itself, in `data` or in `annotations`, `images/train`, `train` or `images` if there is one."""
    columns: dict[_Column, base_format.Text] = dataclasses.field(default_factory=dict)
    """Columns that have other names: from `filename`, `width`, `height`, `class`, `xmin`, `ymin`, `xmax` or `ymax` to
    the name in the file. For boxes with their size instead of a second corner, name its columns as `box_width` and
    `box_height`, and the left and upper edge as `xmin` and `ymin`."""
    delimiter: base_format.Character = ","
    """Separator between the cells."""
    without_objects: bool = True
    """If true, images without an object are stored."""

    def __post_init__(self) -> None:
        sized = {"box_width", "box_height"} & set(self.columns)
        if len(sized) == 1 or (sized and {"xmax", "ymax"} & set(self.columns)):
            raise ValueError(
                "source.box_csv.columns: box_width and box_height go together, in place of xmax and ymax; it names "
                f"{', '.join(self.columns)}"
            )
        if self.images is not None and set(self.images) != set(self.annotations or ()):
            raise ValueError(
                f"source.box_csv.annotations names the splits {', '.join(self.annotations or ()) or 'none'}, "
                f"source.box_csv.images {', '.join(self.images) or 'none'}; name the same in both"
            )

    def gives(self) -> base_format.Gives:
        return base_format.Gives(splits=True, features=frozenset({"objects"}))

    def open(self, request: base_format.Request) -> image_source.ImageSource:
        with remote.budget(remote.CHECK_BUDGET_SEC):
            root, splits = find(request.uri, self)
            given = self.classes
            classes = () if given is None else input_places.read_classes(root, given, "source.box_csv.classes")
            source = BoxCsvSource(root, splits, self.without_objects, options=self, classes=classes)
            source.check()
            used = (split.folder for split in splits)
            return dataclasses.replace(source, unread=input_places.find_unread(root, used, (), request.output))

    def reads(self, probe: folder_probe.FolderProbe, at: str) -> base_format.Reads:
        root, splits = find(probe.uri(at), self)
        files = (each.annotations.removeprefix(storage.join(root, "")) for each in splits)
        reads = base_format.Reads.of_parts((input_places.Part(each.name, each.folder) for each in splits), files=files)
        named = list[str]()
        for split in splits:
            table = table_heads.read_table(probe, split.annotations.removeprefix(storage.join(probe.root, "")))
            names = table.values(self.columns.get("filename", "filename")) if table is not None else []
            if table is None or not names or not table_heads.is_whole(probe, table):
                return reads
            named += (posixpath.join(split.folder, name) for name in names)
        return reads.in_folders_of(named)

    @classmethod
    def detect(cls, probe: folder_probe.FolderProbe, at: str) -> Iterator[folder_probe.Finding]:
        """Finds the CSV files that Roboflow writes beside the images; others are found among the tables."""
        for found in folder_probe.find_exports(probe, at, "box_csv", _EXPORT, lambda paths: {}):
            paths = [folder.below(_EXPORT) for folder in folder_probe.split_places(probe, at)]
            tables = [table for path in paths if (table := table_heads.read_table(probe, path)) is not None]
            bare = [
                f"{table.path} has no line with the names of its columns: write one above it, for boxes of corners "
                "image,xmin,ymin,xmax,ymax,label"
                for table in tables
                if not table.has_header
            ]
            yield dataclasses.replace(found, doubts=(*found.doubts, *bare[:1]))


_EXPORT = "_annotations.csv"  # Roboflow writes it beside the images
_TABLES = ("data", "annotations")  # folders that often hold the CSV files beside a folder of images


def find(uri: str, wanted: BoxCsv) -> tuple[str, tuple[AnnotatedSplit, ...]]:
    """Returns the root and the splits of the data set at an address: a folder, or one CSV file.

    Raises:
        ConfigError: if there is no CSV file.
    """
    if wanted.annotations is None and input_places.kind_of(uri) == storage.FILE:
        root, name = posixpath.dirname(uri) or ".", posixpath.basename(uri)
        files = {"train": name}
    else:
        input_places.require_folder(uri, "the folder of the images and CSV files")
        root = uri
        files = wanted.annotations or dict(_find_files(root))
    if not files:
        raise errors.ConfigError(
            "box-csv-no-files",
            f"{root!r} holds no train_labels.csv, train/_annotations.csv or train.csv; name the files in "
            "source.box_csv.annotations, and the folders of their images in source.box_csv.images",
        )
    given = wanted.images
    splits = []
    for split, path in files.items():
        folder = _folder_of(root, split, path) if given is None else input_places.path_below(given[split])
        splits.append(AnnotatedSplit(split, storage.join(root, path), folder))
    return root, tuple(splits)


def _find_files(root: str) -> Iterator[tuple[str, str]]:
    for split in input_places.SPLITS:
        names = (f"{split}_labels.csv", f"{split}.csv")
        elsewhere = (f"{folder}/{name}" for folder in _TABLES for name in names)
        for path in (names[0], f"{split}/_annotations.csv", names[1], *elsewhere):
            if input_places.kind_of(storage.join(root, path)) == storage.FILE:
                yield split, path
                break


def _folder_of(root: str, split: str, path: str) -> str:
    """Returns the folder of the images of a split, below the root."""
    beside = posixpath.dirname(path)
    if not beside or beside in _TABLES:
        for folder in (f"images/{split}", split, "images"):
            if input_places.kind_of(storage.join(root, folder)) == storage.DIRECTORY:
                return folder
    return beside


@dataclasses.dataclass(frozen=True)
class BoxCsvSource(annotation_tables.AnnotationTableSource):
    """CSV files with boxes, and the folders of their images below `root`."""

    options: BoxCsv = dataclasses.field(default=BoxCsv(), hash=False)
    classes: tuple[str, ...] = ()  # in the order of their ids; () takes those in all files, sorted

    OPTION: ClassVar[str] = "source.box_csv"
    ON_REPEATED_KEY: ClassVar[str] = (
        "name each image in one file of source.box_csv.annotations; rows of one file may be anywhere in it"
    )
    columns = COLUMNS

    def check_head(self, split: AnnotatedSplit, head: bytes) -> None:
        option = f"{self.OPTION}.annotations.{split.name}: {split.annotations!r}"
        if head.startswith(_BYTE_ORDER_MARKS) or b"\0" in head:
            raise errors.ConfigError("box-csv-not-utf8", f"{option} looks like UTF-16 text; save it as UTF-8")
        line = next(iter(head.decode("utf-8-sig", "replace").splitlines()), "")
        names = next(csv.reader([line], delimiter=self.options.delimiter), [])
        wanted = [self._named.get(name, name) for name in self._wanted]
        if missing := [name for name in wanted if name not in names]:
            other = next((each for each in _SEPARATORS if len(names) == 1 and each in line), None)
            remedy = f"source.box_csv.delimiter: {other!r}" if other else "source.box_csv.columns for other names"
            raise errors.ConfigError(
                "box-csv-unknown-column",
                f"{option} has no column {', '.join(missing)}; its first line names {', '.join(names) or 'none'}, "
                f"expected {','.join(wanted)}: set {remedy}",
            )
        if repeated := [name for name in wanted if names.count(name) > 1]:
            raise errors.ConfigError(
                "box-csv-column-twice", f"{option} has the column {repeated[0]!r} twice; rename one of them"
            )

    def read(self, split: AnnotatedSplit, found: image_source.ListingBuilder) -> tuple[ImageTable, ObjectTable]:
        classes = image_objects.ClassNames(self.classes or self._collect_classes(), None, self.options.base)
        images = ImageTable()
        objects = ObjectTable(0, dict(classes.texts()))
        lines: list[int] = []  # line of the first row of each image
        of_box = [name for name in self._wanted if name in (*_BOX, *_SIZE)]
        for line, row in self._read_rows(split.annotations):
            number = _number_of(row, line, images, objects, lines)
            if number in images.faults or all(not row[name] for name in of_box):
                continue
            try:
                self._add(row, number, images, objects, classes, found)
            except table_rows.BadRowError as e:
                images.faults[number] = e.reason, f"line {line}: {e.detail}"
            except ValueError as e:
                images.faults[number] = Reason.BAD_VALUE, f"line {line}: {e}"
        if not images.names:
            raise AnnotationFileError(f"{split.annotations!r} has no rows, so there are no images; fill it")
        return images, objects

    def values_of(self, images: ImageTable, number: int, objects: Objects) -> tuple[Any, ...]:
        return objects[: len(COLUMNS)]

    @property
    def _named(self) -> Mapping[str, str]:
        """Names in the file of columns that are named otherwise."""
        return self.options.columns  # type: ignore[return-value]

    @property
    def _wanted(self) -> tuple[str, ...]:
        """Columns that must be there, by our names."""
        return tuple(name for name in _NAMES if name not in _CORNER) + _SIZE if _SIZE[0] in self._named else _NAMES

    def _read_rows(self, uri: str) -> Iterator[tuple[int, Mapping[str, str]]]:
        """Yields the line number and the cells of each row, by our names of the columns.

        Raises:
            AnnotationFileError: if the file is not CSV in UTF-8.
            OSError: if it cannot be read.
        """
        columns = {name: (self._named.get(name, name),) for name in self._wanted}
        raw: Any = storage.storage_of(uri).open_read(uri)
        try:
            yield from syntax.table_of(io.BufferedReader(raw, _BUFFER_BYTES), columns, self.options.delimiter)
        except ValueError as e:
            raise AnnotationFileError(f"{uri!r} {e}") from e

    def _collect_classes(self) -> tuple[str, ...]:
        """Returns the names of the classes in all files, sorted: all splits have the same ids."""
        every = (row for split in self.splits for _, row in self._read_rows(split.annotations))
        names = {row["class"] for row in every}
        return tuple(sorted(names - {""}))

    def _add(
        self,
        row: Mapping[str, str],
        number: int,
        images: ImageTable,
        objects: ObjectTable,
        classes: image_objects.ClassNames,
        found: image_source.ListingBuilder,
    ) -> None:
        """Adds the object of a row."""
        name = row["class"]
        label = classes.id_of(name)
        if label is None:
            shown = annotation_tables.show(name)
            detail = f"the class {shown} is none of {self.OPTION}.classes: add it there, or leave it out"
            raise table_rows.BadRowError(Reason.UNKNOWN_LABEL, detail)
        xmin, ymin = syntax.number(row["xmin"], "xmin"), syntax.number(row["ymin"], "ymin")
        if _SIZE[0] in self._named:
            xmax, ymax = xmin + syntax.number(row[_SIZE[0]], _SIZE[0]), ymin + syntax.number(row[_SIZE[1]], _SIZE[1])
        else:
            xmax, ymax = syntax.number(row["xmax"], "xmax"), syntax.number(row["ymax"], "ymax")
        box = image_objects.ObjectsBuilder(
            len(COLUMNS), f"{self.OPTION}.outside" if self.options.outside == "reject" else ""
        )
        width = image_objects.pixels(images.widths[number], _SLACK_PX)
        height = image_objects.pixels(images.heights[number], _SLACK_PX)
        box.add(syntax.box_of_edges(xmin, ymin, xmax, ymax), width, height, (label, b""))
        found.skipped.update(box.dropped)
        for values in zip(*box.build().values):
            area = (xmax - xmin) * (ymax - ymin)
            objects.add(number, label, (*values[:4], area), 0, b"")


def _number_of(row: Mapping[str, str], line: int, images: ImageTable, objects: ObjectTable, lines: list[int]) -> int:
    """Returns the number of the image of a row; adds it if it is new, and notes a fault if its rows contradict."""
    name = row["filename"]
    size = tuple(_side(row[side]) for side in ("height", "width"))
    number = images.numbers.get(name) if name else None
    if number is None:
        number = len(images.names)
        images.add({"file_name": name, "id": name or f"line {line}", "height": size[0], "width": size[1]}, ())
        objects.add_image()
        lines.append(line)
        if number in images.faults:
            reason, detail = images.faults[number]
            images.faults[number] = reason, f"line {line}: {detail}"
    elif number not in images.faults and size != (images.heights[number], images.widths[number]):
        images.faults[number] = (
            Reason.BAD_VALUE,
            f"width and height are {row['width']} x {row['height']} in line {line}, and "
            f"{images.widths[number]} x {images.heights[number]} in line {lines[number]}",
        )
    return number


def _side(text: str | None) -> Any:
    """Returns the pixels of a side; the text itself if it is no whole number."""
    try:
        number = float(text or "")
    except ValueError:
        return text
    return int(number) if math.isfinite(number) and number.is_integer() else text
