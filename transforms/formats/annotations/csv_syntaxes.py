"""Syntaxes of CSV files with a header: boxes without sizes of images (VoTT), Open Images, and masks as run lengths."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from imagebeam.transforms.formats.annotations import syntax
from imagebeam.transforms.formats.annotations.syntax import Region, Row
from imagebeam.transforms.formats.tables import label_columns, table_heads

_NAMES: dict[str, tuple[str, ...]] = {
    "image": ("image", "filename", "file_name", "image_id", "imageid", "image_name", "image_path", "path"),
    "label": (
        "label", "class", "class_name", "classname", "category", "name", "label_name", "category_name",
        "object_name", "labels", "class_label", "class_id", "label_id", "category_id", "",
    ),
}  # fmt: skip
_EDGES: dict[str, tuple[str, ...]] = {
    "xmin": ("xmin", "x_min", "x1"),
    "ymin": ("ymin", "y_min", "y1"),
    "xmax": ("xmax", "x_max", "x2"),
    "ymax": ("ymax", "y_max", "y2"),
}
_FURTHER_CORNER = re.compile(r"(?i)[xy]_?[3-9]")


def _class_in(cells: Mapping[str, str]) -> str:
    """Returns the class of a row: one of all objects if the file has no column for it, unknown if the cell is empty."""
    return cells.get("label", syntax.NO_NAME) or syntax.UNKNOWN


class BoxCsv(syntax.Syntax):
    """A row for each box with the columns image, xmin, ymin, xmax, ymax and label, as VoTT writes them.

    Edges are pixels from the left and upper edge; no column has the sizes of the images (else it is `box_csv`). A row
    without edges is an image without objects.
    """

    TITLE = "boxes in CSV"
    SUFFIXES = (".csv",)
    MARKS = (rb"(?i)^(?!.*\b(width|labelname)\b)[^\n]*\b(xmin|x_min|x1)\b",)

    def rows(self, file: IO[bytes]) -> Iterator[Row]:
        for line, cells in syntax.table_of(file, _NAMES | _EDGES):
            fields = [cells[each] for each in _EDGES]
            name = _class_in(cells) if any(fields) else None
            yield Row(cells["image"], f"line {line}", name, fields)

    def unstored(self, heads: Iterable[bytes]) -> str:
        others = dict.fromkeys(name for head in heads for name in _columns_in(head)[1])
        return f"the columns {', '.join(others)} are not stored" if others else ""

    def question(self, head: bytes) -> str:
        """Asks which column has the classes if none is known to have them, and what speaks against boxes in pixels."""
        lines = csv.reader(head.decode("utf-8-sig", "replace").splitlines())
        names = [name.strip() for name in next(lines, [])]
        places, others = _columns_in(head)
        rows = tuple(dict(zip(names, row)) for row in lines if len(row) == len(names))
        edges = [names[places[each]] for each in _EDGES if places[each] >= 0]
        if doubt := next(label_columns.doubts_on_boxes(table_heads.Table("", tuple(names), rows), edges), ""):
            return doubt
        if further := [name for name in others if _FURTHER_CORNER.fullmatch(name)]:
            return (
                f"the columns {', '.join(further)} are further corners of the objects: write the edges around all as "
                "xmin, ymin, xmax, ymax"
            )
        if places["label"] >= 0 or not others:
            return ""
        return (
            f"no column is known as the class: if it is one of {', '.join(others)}, name it label in the first line; "
            f"else all objects are of one class, {syntax.NO_NAME}"
        )

    def region(self, fields: Any, size: tuple[int, int]) -> Region:
        return Region(syntax.box_of_edges(*syntax.numbers(fields, "xmin", "ymin", "xmax", "ymax")))


def _columns_in(head: bytes) -> tuple[dict[str, int], list[str]]:
    """Returns the places of the columns of boxes in the first line, by our names, and the names of the others."""
    names = [name.strip() for name in next(csv.reader(head.decode("utf-8-sig", "replace").splitlines()), [])]
    places = syntax.find_columns(names, _NAMES | _EDGES)
    return places, [name for at, name in enumerate(names) if name and at not in places.values()]


class OpenImages(syntax.Syntax):
    """Open Images' boxes: the columns ImageID, LabelName, XMin, XMax, YMin and YMax, edges as shares of the sides.

    IsGroupOf is stored as a crowd; the other flags are not stored. Images are named without an extension.

    Source: https://storage.googleapis.com/openimages/web/download_v7.html, Data Formats
    """

    TITLE = "Open Images"
    SUFFIXES = (".csv",)
    MARKS = (rb"^(?:\xef\xbb\xbf)?ImageID,[^\n]*LabelName,[^\n]*XMin,",)
    SHARES = True
    CODE = r"/[a-z]/\w+"
    MORE = (syntax.CROWD,)
    UNSTORED = (("the other flags of boxes, such as IsOccluded", rb"\bIsOccluded\b"),)

    def rows(self, file: IO[bytes]) -> Iterator[Row]:
        columns = {name: (name,) for name in ("imageid", "labelname", "xmin", "xmax", "ymin", "ymax")}
        for line, cells in syntax.table_of(file, columns | {"isgroupof": ("isgroupof", "")}):
            fields = [cells[each] for each in ("xmin", "xmax", "ymin", "ymax")]
            name = cells["labelname"] or syntax.UNKNOWN
            yield Row(cells["imageid"], f"line {line}", name, [*fields, cells.get("isgroupof", "")])

    def region(self, fields: Any, size: tuple[int, int]) -> Region:
        xmin, xmax, ymin, ymax = syntax.numbers(fields, "XMin", "XMax", "YMin", "YMax")
        syntax.check_shares((xmin, xmax, ymin, ymax))
        return Region(syntax.box_of_edges(xmin, ymin, xmax, ymax), more=(int(fields[4] == "1"),))


class RunLengths(syntax.Syntax):
    """Masks as run lengths, as in Kaggle's competitions: the columns ImageId, EncodedPixels and perhaps ClassId.

    Run lengths are pairs of a start, from 1, and a length, and count down the columns of pixels. An image without a
    mask has none, or -1. The box is the one around the mask. ImageId_ClassId and Image_Label are two columns in one.

    Source: https://www.kaggle.com/c/severstal-steel-defect-detection, https://www.kaggle.com/c/data-science-bowl-2018
    """

    TITLE = "masks as run lengths"
    SUFFIXES = (".csv",)
    MARKS = (rb"^[^\n]*\bEncodedPixels\b",)
    OUTLINES = MASKS = True
    _BOTH = ("imageid_classid", "image_label")

    def rows(self, file: IO[bytes]) -> Iterator[Row]:
        columns: dict[str, Sequence[str]] = {"image": (*_NAMES["image"], *self._BOTH), "runs": ("encodedpixels",)}
        columns |= {"label": ("classid", "class", "label", ""), "both": (*self._BOTH, "")}
        for line, cells in syntax.table_of(file, columns):
            image, name, runs = cells["image"], _class_in(cells), cells["runs"]
            if "both" in cells:
                image, _, name = cells["both"].rpartition("_")
                name = name or syntax.UNKNOWN
            yield Row(image, f"line {line}", name if runs not in ("", "-1") else None, runs)

    def region(self, fields: Any, size: tuple[int, int]) -> Region:
        height, width = size
        texts = fields.split()
        if len(texts) % 2 or not all(map(str.isdecimal, texts)):
            raise ValueError(f"EncodedPixels is {fields[:80]!r}, expected pairs of a start, from 1, and a length")
        counts, end = [], 0
        edges = width, 0, height, 0  # xmin, xmax, ymin, ymax
        for start, length in zip(map(int, texts[::2]), map(int, texts[1::2])):
            if not end < start <= start + length - 1 <= height * width:
                raise ValueError(
                    f"EncodedPixels has the run {start} {length} after pixel {end}; expected runs in order, within the "
                    f"{height * width:,} pixels of the image"
                )
            counts += [start - 1 - end, length]
            first, end = start - 1, start - 1 + length
            (left, top), (right, bottom) = divmod(first, height), divmod(end - 1, height)
            top, bottom = (top, bottom) if left == right else (0, height - 1)
            edges = min(edges[0], left), max(edges[1], right + 1), min(edges[2], top), max(edges[3], bottom + 1)
        return Region(edges, {"size": [height, width], "counts": [*counts, height * width - end]})
