"""Pixels in CSV files: a column with all pixels of an image as a text, or a column for each pixel.

    emotion,pixels,Usage            FER2013: pixels separated by blanks
    label,1x1,1x2,...,28x28         MNIST and sets like it, also without the first line

Values are integers from 0 to 255, from the top left, row by row.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from imagebeam import errors
from imagebeam.transforms import elements
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.formats.arrays import array_places, array_source, found_array
from imagebeam.transforms.packed import packed_file, unpacked_content
from imagebeam.transforms.sources import image_source, table_rows

PIXELS = "pixels"  # column with all pixels, and the part of the file that they are
_MAX_LINE_BYTES = 64 << 20
_MAX_OTHER_COLUMNS = 64  # beside one column for each pixel
_MIN_PIXELS = 16
_PIECE_ROWS = 256
_MAX_SHOWN = 6
_MAX_FILES = 100  # looked into


class PixelTable(NamedTuple):
    """How a CSV file holds pixels.

    Attributes:
        names: of the columns without pixels.
        places: indexes of these columns.
        first: index of the first column with pixels.
        num_columns: of all columns.
        num_pixels: values in an image.
        is_text: whether one column holds all of them.
        has_header: whether the first line names the columns.
    """

    names: tuple[str, ...]
    places: tuple[int, ...]
    first: int
    num_columns: int
    num_pixels: int
    is_text: bool
    has_header: bool


class PixelRow(NamedTuple):
    """One row; if it cannot be used, `problem` says why and `pixels` is empty."""

    line: int  # counted from 1
    cells: tuple[str, ...]  # in the order of PixelTable.names
    pixels: bytes
    problem: str = ""


def look_into(uri: str, version: int) -> PixelTable | None:
    """Returns how a CSV file holds pixels, by its first two lines; None if it holds none.

    Raises:
        BrokenContentError: if its lines have no end.
        OSError: if it cannot be read.
    """
    lines = _read_lines(uri, version)
    try:
        first = _split(next(lines, (0, b""))[1])
        second = _split(next(lines, (0, b""))[1])
    finally:
        lines.close()  # type: ignore[attr-defined]
    header = [cell.strip().lower() for cell in first]
    if PIXELS in header and len(second) == len(first):
        place = header.index(PIXELS)
        others = tuple(index for index in range(len(first)) if index != place)
        count = len(second[place].split())
        names = tuple(first[index].strip() for index in others)
        return PixelTable(names, others, place, len(first), count, True, True) if count else None
    has_header = not all(map(table_rows.is_number, first))
    row = second if has_header else first
    if len(row) != len(first) or not all(map(table_rows.is_number, row)):
        return None
    if has_header:
        given = [index for index, name in enumerate(header) if not _names_pixel(name)]
        pixels = [index for index in range(len(first)) if index not in set(given)]
    else:
        given = [0] if math.isqrt(len(row) - 1) ** 2 == len(row) - 1 else []
        pixels = list(range(len(given), len(row)))
    if len(pixels) < _MIN_PIXELS or len(given) > _MAX_OTHER_COLUMNS or pixels[-1] - pixels[0] != len(pixels) - 1:
        return None
    names = tuple(first[index].strip() if has_header else array_source.LABEL for index in given)
    return PixelTable(names, tuple(given), pixels[0], len(row), len(pixels), False, has_header)


def read_rows(uri: str, version: int, table: PixelTable) -> Iterator[PixelRow]:
    """Yields the rows of a file; errors are those of `look_into`."""
    lines = _read_lines(uri, version)
    if table.has_header:
        next(lines, None)
    for number, line in lines:
        cells = _split(line)
        if len(cells) != table.num_columns:
            problem = f"has {len(cells):,} columns, expected {table.num_columns:,}"
            yield PixelRow(number, ("",) * len(table.names), b"", problem)
            continue
        given = tuple(cells[place].strip() for place in table.places)
        texts = cells[table.first].split() if table.is_text else cells[table.first : table.first + table.num_pixels]
        if len(texts) != table.num_pixels:
            yield PixelRow(number, given, b"", f"has {len(texts):,} pixels, expected {table.num_pixels:,}")
            continue
        is_plain = line.isascii() and not (b"_" in line or b"+" in line or b"-" in line)
        try:
            pixels = bytes(map(int, texts)) if is_plain or _are_digits("".join(texts)) else b""
        except ValueError:
            pixels = b""
        if pixels:
            yield PixelRow(number, given, pixels)
        else:
            index = next(index for index, text in enumerate(texts) if not _is_value(text))
            problem = f"pixel {index:,} is {texts[index][:40]!r}, expected an integer from 0 to 255"
            yield PixelRow(number, given, b"", problem)


def read_images(uri: str, version: int, part: str) -> Iterator[bytes]:
    """Yields the images of a file as rows of pixels; zeros for a row that cannot be used.

    Args:
        uri: address of the file.
        version: of the file.
        part: `pixels:` and the axes, as `open_tables` writes it.
    """
    table = look_into(uri, version)
    if table is None:
        raise packed_file.broken("holds no pixels any more")
    axes = found_array.ImageAxes.parse(part.rpartition(":")[2])
    array = found_array.FoundArray(PIXELS, (0, table.num_pixels), "|u1")
    yield from found_array.to_rows(_read_pieces(uri, version, table), array, axes)


def _read_pieces(uri: str, version: int, table: PixelTable) -> Iterator[bytes]:
    nothing = bytes(table.num_pixels)
    pieces: list[bytes] = []
    for row in read_rows(uri, version, table):
        pieces.append(row.pixels or nothing)
        if len(pieces) == _PIECE_ROWS:
            yield b"".join(pieces)
            pieces.clear()
    yield b"".join(pieces)


def _read_lines(uri: str, version: int) -> Iterator[tuple[int, bytes]]:
    """Yields number and bytes of each line that is not blank."""
    with packed_file.open_version(uri, version) as file:
        number = 0
        while line := file.readline(_MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > _MAX_LINE_BYTES:
                raise packed_file.broken(f"has more than {_MAX_LINE_BYTES:,} bytes in line {number}; correct it")
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line := line.strip():
                yield number, line


def _split(line: bytes) -> list[str]:
    text = line.decode("utf-8", "replace")
    if '"' not in text:
        return text.split(",")
    return next(csv.reader([text]), []) if len(text) < csv.field_size_limit() else text.replace('"', "").split(",")


def _are_digits(text: str) -> bool:
    """Returns whether a text has only ASCII digits and blanks; int() also takes 1_0, +5 and digits of other scripts."""
    return text.isascii() and (text.isdecimal() or "".join(text.split()).isdecimal())


def _is_value(text: str) -> bool:
    try:
        return _are_digits(text) and int(text) <= 255
    except ValueError:
        return False


def _names_pixel(name: str) -> bool:
    """Returns whether a column is named as a pixel: 28x28, pixel783, p3, 12."""
    return name.removeprefix("pixel").removeprefix("p").lstrip("_ ").replace("x", "").isdecimal()


# --- the source ------------------------------------------------------------------------------------------------------


class PixelFile(NamedTuple):
    """One CSV file."""

    split: str  # "" if its name says none
    uri: str
    version: int
    table: PixelTable
    address: str = ""  # where its images are: a part of the file


@dataclasses.dataclass(frozen=True)
class PixelCsvSource(image_source.ImageSource):
    """Files whose images all have one shape."""

    files: tuple[PixelFile, ...]
    image_shape: found_array.Shape
    fields: table_rows.RowFields = table_rows.NO_FIELDS
    names: array_source.Names = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in the order of their ids, as the config states them; () if it does not."""
        return tuple(dict.fromkeys(name for _, name in self.names))

    def facts(self) -> image_source.SourceFacts:
        return image_source.SourceFacts(shape=self.image_shape, class_names=self.class_names or None)

    def list_all(self) -> Iterator[image_source.Listing]:
        """Yields a reference for each row, in the order of the files."""
        yield from image_source.list_parts((self._list_file(file), repr(file.uri)) for file in self.files)

    def _list_file(self, file: PixelFile) -> Iterator[elements.ImageRef | elements.Reject]:
        size, classes = math.prod(self.image_shape), dict(self.names)
        for position, row in enumerate(read_rows(file.uri, file.version, file.table)):
            key = f"{file.split or 'images'}/{position:05d}"
            try:
                if row.problem:
                    raise table_rows.BadRowError(elements.Reason.BAD_ROW, row.problem)
                cells = dict(zip(file.table.names, row.cells))
                if classes and self.fields.label is not None and (label := cells[self.fields.label]):
                    if label not in classes:
                        raise table_rows.BadRowError(
                            elements.Reason.UNKNOWN_LABEL,
                            f"column {self.fields.label!r} is {label!r}, and the classes are "
                            f"{', '.join(map(': '.join, self.names[:20]))}",
                        )
                    cells[self.fields.label] = classes[label]
                ref = elements.ImageRef(
                    key, file.address, size, file.version, position * size, size, position, split=file.split
                )
                yield self.fields.fill(ref, cells)
            except table_rows.BadRowError as e:
                yield elements.Reject(key, file.uri, "list", e.reason, f"line {row.line} of {file.uri}: {e.detail}")


def find_tables(files: array_places.Files, wanted: array_source.Wanted) -> Mapping[str, PixelFile] | None:
    """Returns the CSV files with pixels by split; None if the config or the files say that images are in arrays."""
    tables: dict[str, PixelFile] = {}
    if wanted.images:
        if not all(one.endswith(unpacked_content.CSV) for one in wanted.images.values()):
            return None
        for split, one in wanted.images.items():
            uris = files.match(f"source.arrays.images.{split}", one)
            if len(uris) > 1 or (found := _open(uris[0], split)) is None:
                raise errors.ConfigError(
                    "pixels-not-one-file",
                    f"source.arrays.images.{split}, {one!r}, must name one CSV file with pixels; it names "
                    f"{', '.join(uris[:_MAX_SHOWN])}",
                )
            tables[split] = found
        return tables
    names = [name for name in files.names if name.endswith(unpacked_content.CSV)]
    for name in names[:_MAX_FILES]:
        split = array_places.role_of(name.removesuffix(unpacked_content.CSV)).split
        if (found := _open(files.address(name), split)) is not None:
            if split in tables:
                raise errors.ConfigError(
                    "pixels-ambiguous",
                    f"{found.uri!r} and {tables[split].uri!r} both hold pixels of the split {split or '(unnamed)'}: "
                    "give one of them as --input, or name them in source.arrays.images",
                )
            tables[split] = found
    return {split: tables[split] for split in sorted(tables, key=array_places.ORDER.index)} or None


def _open(uri: str, split: str) -> PixelFile | None:
    version = array_places.stat(uri).version
    with array_places.explained(uri):
        table = look_into(uri, version)
    return None if table is None else PixelFile(split, uri, version, table)


def open_tables(
    tables: Mapping[str, PixelFile], wanted: array_source.Wanted, request: base_format.Request
) -> PixelCsvSource:
    """Returns the source of CSV files with pixels.

    Raises:
        ConfigError: if the files have not what the config asks for.
    """
    if request.split_by == "source" and "" in tables:
        raise errors.ConfigError(
            "arrays-no-split",
            f"the name of {tables[''].uri!r} says no split: set split.by: column or split.by: hash, or name the files "
            "of each split in source.arrays.images",
        )
    found: list[PixelFile] = []
    shapes: dict[found_array.Shape, array_places.Place] = {}
    for each in tables.values():
        missing = [name for name in request.fields.needed if name not in each.table.names]
        if missing:
            raise errors.ConfigError(
                "arrays-unknown-column",
                f"{each.uri!r} has no column {missing[0]!r} beside its pixels, only "
                f"{', '.join(map(repr, each.table.names)) or 'none'}; name another, or leave the file out by giving "
                "the other as --input",
            )
        flat = found_array.FoundArray(PIXELS, (0, each.table.num_pixels), "|u1")
        place = array_places.Place(each.uri, each.version, flat)
        axes = array_places.axes_of(place, wanted)
        try:
            shapes.setdefault(axes.image_shape(flat.shape), place)
        except ValueError as e:
            raise errors.ConfigError(
                "arrays-wrong-layout", f"{place} does not have {e}: correct source.arrays.shape"
            ) from e
        found.append(each._replace(address=unpacked_content.part_of(each.uri, f"{PIXELS}:{axes}")))
    has_classes = request.label_kind == "class"
    names = (wanted.classes or _numbers_in(found, request.fields.label)) if has_classes else ()
    return PixelCsvSource(tuple(found), array_places.only_shape(shapes), request.fields, names)


def _numbers_in(found: list[PixelFile], label: str | None) -> array_source.Names:
    texts: set[str] = set()
    for file in found if label is not None else ():
        column = file.table.names.index(label)
        with array_places.explained(file.uri):
            texts.update(row.cells[column] for row in read_rows(file.uri, file.version, file.table))
    return array_source.numbers_up_to(texts - {""})
