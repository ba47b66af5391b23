"""Reads the ends of a table as far as a probe looks, and finds where its images are."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam import errors, storage
from imagebeam.transforms.formats.parquet import columns as parquet_columns
from imagebeam.transforms.formats.tables import table_formats
from imagebeam.transforms.sources import files as files_lib
from imagebeam.transforms.sources import name_signs, value_signs
from imagebeam.transforms.sources.folder_probe import (
    HEAD_BYTES,
    NEARLY_ALL,
    Folder,
    FolderProbe,
    extension_of,
    likely_first,
    shape_of_json,
    split_meant,
    spread,
)

_BETWEEN = "|"
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_MAX_ROWS = 2_000
_NUM_PARQUET_ROWS = 200


class Table(NamedTuple):
    """The beginning of a table."""

    path: str  # below the root of the probe
    columns: tuple[str, ...]
    rows: tuple[Mapping[str, str], ...]
    settings: Mapping[str, Any] = {}  # how it is read
    has_header: bool = True
    last_rows: tuple[Mapping[str, str], ...] = ()  # from the end of a longer file
    doubts: tuple[str, ...] = ()  # on how it is read
    path_column: str = ""  # the column whose cells hold more than a path, if there is one
    lists: frozenset[str] = frozenset()  # columns whose cells are lists, here as texts with "|" between the entries
    holds_images: bool = False  # their bytes, in Parquet

    def names_in(self, column: str) -> list[str]:
        """Returns the values of a column; of lists their entries."""
        values = self.values(column)
        return [each for value in values for each in value.split(_BETWEEN) if each] if column in self.lists else values

    def values(self, column: str) -> list[str]:
        """Returns the values of a column that are not empty, from both ends of the table."""
        return [value for row in (*self.rows, *self.last_rows) if (value := row.get(column, "").strip())]


def read_table(probe: FolderProbe, path: str) -> Table | None:
    """Returns the beginning of a table; None if the file is none."""
    table = _read_table(probe, path)
    return table and _with_paths(table)


def is_whole(probe: FolderProbe, table: Table) -> bool:
    """Returns whether a table was read to its end."""
    is_short = len(table.rows) < (_NUM_PARQUET_ROWS if extension_of(table.path) == ".parquet" else _MAX_ROWS)
    return is_short and (extension_of(table.path) == ".parquet" or len(probe.head(table.path)) < HEAD_BYTES)


_PATHS = (r"(.*)#\d+", r"[A-Za-z]:(?:.*[\\/])?([^\\/]+)", r"/(?:.*/)?([^/]+)")  # 1.jpg#0, paths of other machines


def _names_image(cell: str) -> bool:
    return is_image(cell) or any(is_image(match[1]) for each in _PATHS if (match := re.fullmatch(each, cell)))


def _with_paths(table: Table) -> Table:
    """Returns a table with the paths that the cells of a column hold, if all of them have such a form."""
    for column in table.columns:
        values = table.values(column)
        for pattern in _PATHS if values else ():
            found = {each: match[1] for each in values if (match := re.fullmatch(pattern, each)) and is_image(match[1])}
            is_same = len({*found.values()}) == len(found)  # else the folders of such paths tell images apart
            if is_same and len(found) == len({*values}):
                rows, last_rows = (
                    tuple({**row, column: found.get(row.get(column, ""), "")} for row in each)
                    for each in (table.rows, table.last_rows)
                )
                settings = {**table.settings, "source.manifest.image_pattern": pattern}
                return table._replace(rows=rows, last_rows=last_rows, settings=settings, path_column=column)
    return table


def _read_table(probe: FolderProbe, path: str) -> Table | None:
    extension = extension_of(path)
    if extension == ".parquet":
        return _read_parquet(probe, path)
    head = probe.head(path)
    encoding = _encoding_of(head)
    if not head or (b"\0" in head and encoding != _UTF16):
        return None
    lines = head.decode(encoding, "replace").splitlines()
    if len(head) >= (1 << 16) and len(lines) > 1:
        lines.pop()  # it may be cut short
    tail = b"" if encoding == _UTF16 else probe.tail(path)  # which begins anywhere, and has no mark of its order
    last = tail.decode(encoding, "replace").splitlines()[1:]  # the first line is cut short
    if extension in (".jsonl", ".ndjson"):
        table = _of_objects(path, _parse_lines(lines), {})
        after = _of_objects(path, _parse_lines(last), {})
        return table._replace(last_rows=after.rows) if table and after else table
    if extension == ".json":
        return _read_json(probe, path)
    table = _read_csv(path, lines[: _MAX_ROWS + 1], last[-_MAX_ROWS:])
    if table is None or encoding == "utf-8-sig":
        return table
    if encoding == _UTF16:
        return table._replace(settings={**table.settings, "source.manifest.encoding": encoding})
    doubt = f"{path} is not UTF-8: is source.manifest.encoding={encoding} right? The names in it show that"
    return table._replace(settings={**table.settings, "source.manifest.encoding": encoding}, doubts=(doubt,))


_UTF16 = "utf-16"
_TWO_BYTES = re.compile(rb"[\x80-\xff]{2}")


def _encoding_of(head: bytes) -> str:
    """Returns the encoding that a text says, or the first one that it can have; every text can have the last one."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return _UTF16
    for encoding in ("utf-8-sig", "gb18030"):
        if encoding == "gb18030" and not _TWO_BYTES.search(head):
            break  # a letter with an accent between others: in GB18030 it would take the one after it
        try:
            head.decode(encoding)
            return encoding
        except UnicodeDecodeError as e:
            if len(head) >= 1 << 16 and e.start > len(head) - 4:  # where the head ends within a character
                return encoding
    return "cp1252"


def _parse_lines(lines: Sequence[str]) -> Iterator[Any]:
    for line in lines[:_MAX_ROWS]:
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            return


def _of_objects(path: str, objects: Iterator[Any], settings: Mapping[str, Any]) -> Table | None:
    read = [{name.strip(): value for name, value in each.items()} for each in objects if isinstance(each, dict)]
    rows = [{name: _as_text(value) for name, value in each.items()} for each in read]
    lists = frozenset(name for each in read for name, value in each.items() if isinstance(value, list))
    return Table(path, tuple(rows[0]), tuple(rows), settings, lists=lists) if rows else None


def _as_text(value: Any) -> str:
    if isinstance(value, list):
        return _BETWEEN.join("" if each is None else str(each) for each in value)
    return "" if value is None else str(value)


def _read_json(probe: FolderProbe, path: str) -> Table | None:
    import ijson

    head = probe.head(path)
    shape = shape_of_json(head)
    lists = [name for name, first in shape.items() if first and name not in ("categories", "licenses", "classes")]
    if not lists:
        return None
    items = "" if "" in lists else next((n for n in lists if _has_image(shape[n])), lists[0])
    rows = []
    try:
        for each in ijson.items(io.BytesIO(head), f"{items}.item" if items else "item", use_float=True):
            rows.append(each)
    except (ijson.JSONError, ValueError, RecursionError):  # the head ends within the file
        pass
    if "annotations" in shape and "images" in shape:  # COCO's JSON is no table
        return None
    return _of_objects(path, iter(rows), {"source.manifest.items": items} if items else {})


def _has_image(first: Mapping[str, Any]) -> bool:
    return any(isinstance(value, str) and is_image(value) for value in first.values())


def _find_delimiter(path: str, lines: Sequence[str]) -> str:
    """Returns what splits lines into cells, as source.manifest.delimiter says it; "" if nothing does.

    A delimiter that splits all lines into as many cells comes before one that splits the first line into more.
    """
    some = [line for line in lines if line.strip()][:_NUM_VALUES]
    usual = {".tsv": "\t;,|", ".txt": "\t;|,"}.get(extension_of(path), ",;\t|")

    def rank(delimiter: str) -> tuple[bool, int]:
        return len({len(cells) for cells in csv.reader(some, delimiter=delimiter)}) == 1, some[0].count(delimiter)

    found = max((each for each in usual if some and each in some[0]), key=rank, default="")
    if not found and extension_of(path) == ".txt" and some:
        return table_formats.WHITESPACE if any("  " in line.strip() for line in some) else " "
    has_blanks = found and (
        any(re.search(f'{re.escape(found)} +"', line) for line in some)
        or all(found in line and line.count(found) == line.count(f"{found} ") for line in some)
    )
    return f"{found}{table_formats.AND_BLANK}" if has_blanks else found


def _has_quotes_in_text(lines: Sequence[str]) -> bool:
    """Returns whether quotes in cells between tabs are characters of texts, as OCR has them.

    All lines have as many cells, and a quote at the beginning of one is not closed at its end, or it is in quotes that
    it does not need and others are not.
    """
    rows = [line.rstrip("\r\n").split("\t") for line in lines if line.strip()]
    if len({*map(len, rows)}) > 1:
        return False
    for cells in zip(*rows):
        quoted = [cell for cell in cells if cell.startswith('"')]
        texts = (cell for cell in cells[1:] if not value_signs.is_number(cell))  # the first one may be of the header
        plain = [cell for cell in texts if not cell.startswith('"')]
        are_whole = all(map(_QUOTED.fullmatch, quoted))
        if not are_whole or (plain and any('"' not in cell[1:-1] for cell in quoted)):
            return True
    return False


def _read_csv(path: str, lines: Sequence[str], last: Sequence[str] = ()) -> Table | None:
    first = next((line for line in lines if line.strip()), "")
    is_text = extension_of(path) == ".txt"
    if is_text and value_signs.is_number(first):  # of the rows, above the header
        table = _read_csv(path, lines[lines.index(first) + 1 :], last)
        return table and table._replace(settings={**table.settings, "source.manifest.skip_rows": 1})
    try:
        delimiter = _find_delimiter(path, lines)
    except csv.Error:
        return None
    settings: dict[str, Any] = {"source.manifest.format": "csv"} if is_text else {}
    if delimiter not in ("", "\t" if extension_of(path) == ".tsv" else ","):
        settings["source.manifest.delimiter"] = delimiter
    is_aligned = delimiter == table_formats.WHITESPACE
    if is_aligned:
        lines, last = ([" ".join(line.split()) for line in each] for each in (lines, last))
    options: dict[str, Any] = {"delimiter": " " if is_aligned else delimiter[:1] or ","}
    options["skipinitialspace"] = len(delimiter) > 1
    if delimiter == "\t" and _has_quotes_in_text(lines):
        options["quoting"], settings["source.manifest.quotes"] = csv.QUOTE_NONE, False
    try:
        cells, after = (list(csv.reader((line for line in each if line.strip()), **options)) for each in (lines, last))
    except csv.Error:
        return None
    if not cells or (len(cells[0]) < 2 and is_text):
        return None
    header = [name.strip() for name in cells[0]]
    has_header = not any(_names_image(cell) or value_signs.is_number(cell) for cell in header)
    if not has_header:
        others = (
            "caption" if all(" " in row[n].strip() for row in cells if n < len(row)) else "label"
            for n in range(len(header))
        )
        header = ["image" if _names_image(cell) else other for cell, other in zip(header, others)]
        if len(set(header)) < len(header):
            at = next((index for index, cell in enumerate(header) if cell == "image"), -1)
            header = [f"column_{n}" if n != at else "image" for n in range(1, len(header) + 1)]
        settings["source.manifest.header"] = header
    elif is_aligned and len(cells) > 1 and len(cells[1]) == len(header) + 1:
        header.insert(0, "image")
    if len(set(header)) < len(header):
        return None
    body = cells[1:] if has_header else cells
    rows, last_rows = (
        tuple(dict(zip(header, row)) for row in each if len(row) == len(header)) for each in (body, after)
    )
    return Table(path, tuple(header), rows, settings, has_header, last_rows) if rows or has_header else None


def _read_parquet(probe: FolderProbe, path: str) -> Table | None:
    try:
        import pyarrow
        import pyarrow.parquet

        uri = probe.uri(path)
        with storage.storage_of(uri).open_read(uri) as file:
            parquet = pyarrow.parquet.ParquetFile(file)
            names = parquet.schema_arrow.names
            holds_images = any(parquet_columns.holds_images(field.type) for field in parquet.schema_arrow)
            shown = [
                field.name
                for field in parquet.schema_arrow
                if not pyarrow.types.is_binary(field.type)
                and (not pyarrow.types.is_nested(field.type) or _is_list_of_texts(field.type))
            ]
            batch = next(parquet.iter_batches(batch_size=_NUM_PARQUET_ROWS, columns=shown), None) if shown else None
            objects = batch.to_pylist() if batch is not None else []
    except (OSError, ValueError, ImportError, errors.ConfigError):
        return None
    rows = tuple({name: _as_text(value) for name, value in each.items()} for each in objects)
    lists = frozenset(name for each in objects for name, value in each.items() if isinstance(value, list))
    return Table(path, tuple(names), rows, lists=lists, holds_images=holds_images)


def _is_list_of_texts(type_: Any) -> bool:
    import pyarrow.types

    return pyarrow.types.is_list(type_) and str(type_.value_type) in ("string", "large_string")


def is_image(text: str) -> bool:
    """Returns whether a text ends as the name of an image."""
    return extension_of(text.strip())[1:] in files_lib.IMAGE_EXTENSIONS


# --- where the images are ---------------------------------------------------------------------------------------------

_NUM_VALUES = 20  # values of a column that are looked for as images
_NUM_PADDED = 10  # numbers that name images only with zeros before them, at least
_NUM_FOLDERS = 40  # in which images are looked for
_NUM_INNER = 20  # folders beside those of splits, in each of the first folders
_SHARE_SPREAD = 0.9  # share of the images that are in one of several folders
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".txt")
MAX_TABLES = 12  # in one folder


class Place(NamedTuple):
    """Place of the images of a table."""

    column: str
    folder: str  # that the paths are relative to, below the root of the probe
    has_extension: bool
    found: int  # number of images found
    looked_for: int
    inside: tuple[str, ...] = ()  # folders below `folder` that hold some of them each; () if they are in it
    width: int = 0  # digits of numbers with zeros before them in the names of images, where the column has none


def find_place(probe: FolderProbe, at: str, table: Table) -> Place | None:
    """Returns which column names images, and where they are; None if no image of the first rows is found."""
    return next(find_places(probe, at, table), None)


def find_places(probe: FolderProbe, at: str, table: Table) -> Iterator[Place]:
    """Yields all folders that have images of the first column that names some: the one with most of them first."""
    home = probe.look(posixpath.dirname(table.path))
    top = probe.look(at)
    folders = [home, top, *(probe.look(home.below(name)) for name in home.folders[:_NUM_FOLDERS])]
    folders += [probe.look(top.below(name)) for name in top.folders[:_NUM_FOLDERS]]
    near = [(each, name) for each in folders[2:12] for name in likely_first(each, _NUM_INNER)]
    folders += [probe.look(each.below(name)) for each, name in near]
    unique = {folder.path: folder for folder in folders}
    listing = {name for name in table.lists if any(map(is_image, table.names_in(name)))}
    columns = sorted(table.columns, key=lambda name: (name not in listing, _rank_of_image(name)))
    for is_padded, column in itertools.product((False, True), columns):
        values = [each for each in spread(table.names_in(column), _NUM_VALUES)[:_NUM_VALUES] if len(each) < 1000]
        if not values or len({*values}) < len(values) / 6 or (is_padded and len(values) < _NUM_PADDED):
            continue
        if all(map(value_signs.is_number, values)) and not name_signs.IMAGE_NUMBERS.search(column):
            continue  # 1, 2, 3 may be anything
        widths = {path: _width_of(folder, values) if is_padded else 0 for path, folder in unique.items()}
        found = {
            path: [_look_up(probe, folder, value.zfill(widths[path])) for value in values]
            for path, folder in unique.items()
        }
        numbers = {path: sum(known is not None for known in each) for path, each in found.items()}
        singles = [
            Place(column, path, any(found[path]), number, len(values), width=widths[path])
            for path, number in numbers.items()
            if number
        ]
        spread_out = _find_spread(found, singles[0]) if singles else None
        likely = [each for each in singles if each.found >= len(values) * (NEARLY_ALL if is_padded else 0.25)]
        likely.sort(key=lambda each: (-each.found, _is_of_other_split(each, table), _are_masks(each)))
        if column in table.lists:  # paths as they are, and no templates
            spread_out, likely = None, [each for each in likely if each.has_extension]
        if spread_out is not None:
            yield spread_out
        if spread_out is not None or likely:
            yield from likely[spread_out is not None :]
            return


def _is_of_other_split(place: Place, table: Table) -> bool:
    return split_meant(place.folder) != split_meant(table.path)


def _are_masks(place: Place) -> bool:
    return name_signs.MASKS.search(posixpath.basename(place.folder)) is not None


def _width_of(folder: Folder, values: Sequence[str]) -> int:
    """Returns the digits of the images' names if all have as many, and numbers would need zeros before them; else 0."""
    stems = [stem for stem in folder.stems if stem.isdecimal()]
    are_padded = len({*map(len, stems)}) == 1 and any(stem.startswith("0") for stem in stems)
    width = len(stems[0]) if are_padded else 0
    return width if all(map(str.isdecimal, values)) and min(map(len, values)) < width else 0


def _find_spread(found: Mapping[str, Sequence[bool | None]], single: Place) -> Place | None:
    """Returns the place of images that lie in several folders of one folder, each image in one of them."""
    holders = {path: each for path, each in found.items() if any(known is not None for known in each)}
    times = [sum(known is not None for known in each) for each in zip(*holders.values())]
    number = sum(each == 1 for each in times)
    if len(holders) < 2 or number <= single.found or number < _SHARE_SPREAD * len(times):
        return None
    above = posixpath.commonpath([posixpath.dirname(path) for path in holders])
    inside = tuple(sorted(path.removeprefix(f"{above}/") for path in holders))
    return single._replace(folder=above, found=number, inside=inside)


def has_image(probe: FolderProbe, folder: str, name: str) -> bool:
    """Returns whether a folder has an image of a name, with or without its extension."""
    return _look_up(probe, probe.look(folder), name) is not None


def _look_up(probe: FolderProbe, folder: Folder, value: str) -> bool | None:
    """Returns whether a value has the extension of the image that it names; None if there is no such image."""
    path = posixpath.normpath(value)
    if path.startswith(("/", "..")) or ":/" in path:
        return None
    *above, base = path.split("/")
    if above and above[0] not in folder.folders:
        return None
    holder = probe.look("/".join([*filter(None, [folder.path]), *above])) if above else folder
    if base in holder.files and is_image(base):
        return True
    return False if base in holder.stems else None


def _rank_of_image(name: str) -> int:
    return (
        name_signs.IMAGE_COLUMNS.index(name.lower())
        if name.lower() in name_signs.IMAGE_COLUMNS
        else len(name_signs.IMAGE_COLUMNS)
    )


def note_on_missing(probe: FolderProbe, path: str) -> str:
    """Returns what to do about a table whose images are not found; "" if it does not seem to name images."""
    return next(_notes_on_missing(probe, path, name_signs.IMAGE_COLUMNS), "")


def notes_on_tables(probe: FolderProbe) -> list[str]:
    """Returns notes on the tables of a folder that name images, if these were not found."""
    names = [name for name in probe.look().ending(*SUFFIXES) if split_meant(name) != "test"][:MAX_TABLES]
    return [note for name in names for note in _notes_on_missing(probe, name)]


def _notes_on_missing(probe: FolderProbe, path: str, usual: Sequence[str] = ()) -> Iterator[str]:
    """Yields a note for the first column with names of images, or with one of the `usual` names."""
    table = read_table(probe, path)
    for column in sorted(table.columns, key=_rank_of_image) if table is not None else ():
        first = next(iter(table.values(column)), "") if table is not None else ""
        if is_image(first) or (first and column.lower() in usual):
            yield (
                f"{path} names images in its column {column!r}, such as {first!r}, but the folders that were looked "
                "into do not have them: set source.manifest.root to the folder that has them, with "
                f"--config kaggle --set source.manifest.path={path} --set source.manifest.image={column}"
            )
            return


def parent_of(folder: str) -> str:
    """Returns the folder above; "" above the root of a storage."""
    parent = folder.rstrip("/").rpartition("/")[0]
    return "" if parent.endswith("/") or folder.rstrip("/") == storage.root_of(folder).rstrip("/") else parent
