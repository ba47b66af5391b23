"""Pixels in CSV files: a column with all pixels of an image as a text, or a column for each pixel.

    emotion,pixels,Usage            FER2013: pixels separated by blanks
    label,1x1,1x2,...,28x28         MNIST and sets like it, also without the first line

Values are integers from 0 to 255, from the top left, row by row.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from imagebeam.transforms.packed import found_array, packed_file

PIXELS = "pixels"  # column with all pixels, and the array that they are
_MAX_LINE_BYTES = 64 << 20
_MAX_OTHER_COLUMNS = 64  # beside one column for each pixel
_MIN_PIXELS = 16
_PIECE_ROWS = 256


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
    cells: tuple[str, ...]  # those of the columns that were asked for
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
    has_header = not _are_numbers(first)
    row = second if has_header else first
    if len(row) != len(first):
        return None
    if has_header:
        given = [index for index, name in enumerate(header) if not _names_pixel(name)]
        pixels = [index for index in range(len(first)) if index not in set(given)]
    else:
        given = [0] if math.isqrt(len(row) - 1) ** 2 == len(row) - 1 else []
        pixels = list(range(len(given), len(row)))
    if len(pixels) < _MIN_PIXELS or len(given) > _MAX_OTHER_COLUMNS or pixels[-1] - pixels[0] != len(pixels) - 1:
        return None
    if not _are_numbers([row[index] for index in pixels]):  # a label may be a text
        return None
    names = tuple(first[index].strip() if has_header else found_array.LABEL for index in given)
    return PixelTable(names, tuple(given), pixels[0], len(row), len(pixels), False, has_header)


def list_csv(uri: str, version: int) -> list[found_array.FoundArray]:
    """Returns the pixels of a file and its other columns as texts, if it holds pixels; raises as `look_into`."""
    table = look_into(uri, version)
    if table is None:
        return []
    count = sum(1 for _ in _read_lines(uri, version)) - table.has_header
    pixels = found_array.FoundArray(PIXELS, (count, table.num_pixels), "|u1")
    return [pixels, *(found_array.FoundArray(name, (count,), found_array.TEXT) for name in table.names)]


def read_csv(uri: str, version: int, array: found_array.FoundArray) -> Iterator[bytes]:
    """Yields the values of an array, with zeros for a row that cannot be used; errors are those of `look_into`."""
    names = () if array.name == PIXELS else (array.name,)
    pieces: list[bytes] = []
    for row in read_rows(uri, version, names):
        pieces.append(row.cells[0].encode() + b"\0" if names else row.pixels or bytes(array.shape[1]))
        if len(pieces) == _PIECE_ROWS:
            yield b"".join(pieces)
            pieces.clear()
    yield b"".join(pieces)


def read_rows(uri: str, version: int, names: Sequence[str]) -> Iterator[PixelRow]:
    """Yields the rows of a file that holds pixels, with the cells of these columns; errors are those of `look_into`."""
    table = look_into(uri, version)
    if table is None:
        raise packed_file.broken("holds no pixels any more")
    places = [table.places[table.names.index(name)] for name in names]
    lines = _read_lines(uri, version)
    if table.has_header:
        next(lines, None)
    for number, line in lines:
        cells = _split(line)
        if len(cells) != table.num_columns:
            problem = f"has {len(cells):,} columns, expected {table.num_columns:,}"
            yield PixelRow(number, ("",) * len(names), b"", problem)
            continue
        given = tuple(cells[place].strip() for place in places)
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


def _are_numbers(cells: Sequence[str]) -> bool:
    try:
        return [*map(float, cells)] != []
    except ValueError:
        return False


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
