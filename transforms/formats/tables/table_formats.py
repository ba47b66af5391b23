"""Reads tables row by row: CSV, JSON lines, lists in JSON and Parquet, on any storage."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from imagebeam import errors, storage
from imagebeam.transforms.packed import packed_file
from imagebeam.transforms.sources import annotation_tables

Row: TypeAlias = "Mapping[str, Any] | str"  # cells by column, or a text that says what is wrong with the row

UTF8 = "utf-8"
WHITESPACE = "whitespace"  # a delimiter: any number of blanks and tabs
AND_BLANK = " "  # after another character: cells may begin with blanks, which are no part of them
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}

FORMATS: Mapping[str, str] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def format_of(uri: str) -> str:
    """Returns the format of a manifest by its extension.

    Raises:
        ConfigError: if the extension is unknown.
    """
    extension = posixpath.splitext(uri)[1].lower()
    if extension not in FORMATS:
        raise errors.ConfigError(
            "table-unknown-extension",
            f"manifest {uri!r}: extension {extension!r} is none of {', '.join(FORMATS)}; "
            "set source.manifest.format, or source.by: files for a folder of images",
        )
    return FORMATS[extension]


class RowPlace(NamedTuple):
    """The place of a row: `line 5`, as editors count from 1, or `row 4`, as readers of Parquet count from 0."""

    position: int  # number of rows before it
    unit: str
    number: int

    def __str__(self) -> str:
        return f"{self.unit} {self.number}"


@dataclasses.dataclass(frozen=True)
class TableFile:
    """A table and how to read it."""

    uri: str
    format: str  # csv, jsonl, json or parquet
    header: tuple[str, ...] = ()  # names of the columns of a CSV without a header
    delimiter: str | None = None  # for CSV; a character, with AND_BLANK, or WHITESPACE; None: tab for .tsv, else comma
    encoding: str = UTF8  # for CSV and JSON
    items: str = ""  # path of the list of rows in JSON, such as annotations.items; "" if the file is the list
    skip_rows: int = 0  # for CSV: lines before the header, or before the first row
    quotes: bool = True  # for CSV: whether quotes around a cell are no part of it

    @property
    def separator(self) -> str:
        """The character between the cells of a CSV."""
        if self.delimiter == WHITESPACE:
            return " "
        if self.delimiter:
            return self.delimiter[0]
        return "\t" if self.uri.lower().endswith(".tsv") else ","

    def rows(self, columns: Sequence[str], texts: Sequence[str] = ()) -> Iterator[tuple[RowPlace, Row]]:
        """Yields the place of each row with its cells, or with a text that says what is wrong with it.

        Args:
            columns: names of the needed columns; others may be left out.
            texts: names of the columns that must be text in `encoding`. Others may hold any bytes: a path of such bytes
                still opens its file.

        Raises:
            OSError: if the table cannot be read.
            ValueError: if it is broken, or a cell of `texts` is not in `encoding`.
        """
        if self.format == "parquet":
            yield from _parquet_rows(self, columns)
            return
        if self.format == "csv":
            rows = _csv_rows(self, columns)
        else:
            rows = _with_columns(_jsonl_rows(self) if self.format == "jsonl" else _json_rows(self), columns)
        for place, row in rows:
            if isinstance(row, Mapping):
                self._check_texts(place, row, texts)
            yield place, row

    def _check_texts(self, place: RowPlace, row: Mapping[str, Any], texts: Sequence[str]) -> None:
        for name in texts:
            if not _is_decoded(row.get(name)):
                cell = row[name]
                found = cell.encode(self.encoding, "surrogateescape") if isinstance(cell, str) else cell
                raise ValueError(f"{place}: column {name!r} holds {found!r}, which {self._not_encoded}")

    @property
    def _not_encoded(self) -> str:
        return (
            f"is not {self.encoding.upper()}: set source.manifest.encoding to the table's (latin-1, cp1252, ...), or "
            "save it as UTF-8"
        )

    def column_names(self) -> list[str]:
        """Returns the names of the columns; of JSON lines those in the first row.

        Raises:
            ConfigError: if the table is Parquet, and pyarrow is not installed.
            OSError: if the table cannot be read.
            ValueError: if it is broken, or clearly of another format.
        """
        self._check_signature()
        if self.format == "parquet":
            with errors.imports_for(f"reading {self.uri!r}"):
                import pyarrow.parquet

            with storage.storage_of(self.uri).open_read(self.uri) as file:
                return [name.strip() for name in pyarrow.parquet.ParquetFile(file).schema_arrow.names]
        if self.format == "csv":
            with _open_text(self) as text:
                names = _split_header(self, _csv_lines(self, text))[0]
        else:
            rows = _jsonl_rows(self) if self.format == "jsonl" else _json_rows(self)
            _, first = next(rows, (None, {}))
            names = list(first) if isinstance(first, Mapping) else []
        if odd := next((name for name in names if not _is_decoded(name)), None):
            raise ValueError(f"its column {odd!r} {self._not_encoded}")
        return names

    def _check_signature(self) -> None:
        """Checks the first bytes.

        Raises:
            OSError: if the table cannot be read.
            ValueError: if they belong to another format or encoding.
        """
        head = storage.storage_of(self.uri).read(self.uri, 0, 512)
        meant = next((meant for signature, meant in _SIGNATURES.items() if head.startswith(signature)), None)
        if meant and not (self.format == "parquet" and head.startswith(b"PAR1")):
            raise ValueError(meant)
        if self.format == "parquet" or self.encoding != UTF8:
            return
        marked = head.startswith((b"\xff\xfe", b"\xfe\xff"))
        if marked or head.count(0) > len(head) // 4:  # a few zeros are part of a broken cell
            wide = "utf-16" if marked else "utf-16-be" if head[:1] == b"\0" else "utf-16-le"
            raise ValueError(
                f"it looks like UTF-16 text, not UTF-8: set source.manifest.encoding: {wide}, or save it as UTF-8"
            )


_SIGNATURES = {
    b"PAR1": "it is a Parquet file: set source.manifest.format: parquet",
    b"PK\x03\x04": "it is a zip file, as spreadsheets are: save the table as CSV",
    b"\xd0\xcf\x11\xe0": "it is a spreadsheet: save the table as CSV",
    packed_file.GZIP_MAGIC: "it is compressed with gzip: unpack it",
}


def _is_decoded(value: Any) -> bool:
    """Returns whether all bytes of the texts in a cell could be decoded."""
    if isinstance(value, str):
        return value.isascii() or not any("\udc80" <= character <= "\udcff" for character in value)
    return not isinstance(value, list) or all(map(_is_decoded, value))


def _open_text(table: TableFile) -> io.TextIOWrapper:
    binary = io.BufferedReader(storage.storage_of(table.uri).open_read(table.uri), 1 << 20)  # type: ignore[type-var]
    encoding = "utf-8-sig" if table.encoding == UTF8 else table.encoding
    # Bytes outside of the encoding are kept, so that a path of such bytes still opens its file.
    return io.TextIOWrapper(binary, encoding=encoding, errors="surrogateescape", newline="")


def _csv_rows(table: TableFile, columns: Sequence[str]) -> Iterator[tuple[RowPlace, Row]]:
    csv.field_size_limit(1 << 30)
    with _open_text(table) as text:
        lines = _csv_lines(table, text)
        try:
            header, end, rows = _split_header(table, lines)
            wanted = [(name, index) for index, name in enumerate(header) if name in columns]
            position = 0
            for line, row in rows:
                # A quoted cell may span several lines.
                place, end = RowPlace(position, "line", table.skip_rows + end + 1), line
                if len(row) == len(header):
                    yield place, {name: row[index] for name, index in wanted}
                elif row:
                    remedy = f"quote the cells that hold {DELIMITERS.get(table.separator, 'the delimiter')}"
                    guess = guess_delimiter(row[0], table.separator, len(header)) if len(row) == 1 else ""
                    if guess:
                        remedy = f"the line is split by {guess}"
                    if guess or len(row) > len(header) or set(columns).intersection(header[len(row) :]):
                        yield place, f"{len(row)} cells, the header has {len(header)}; {remedy}"
                    else:  # nothing asks for the cells that are missing
                        yield place, dict(zip(header, row))
                else:  # a blank line
                    continue
                position += 1
        except csv.Error as e:
            remedy = "; if quotes are part of the text set source.manifest.quotes: false" if table.quotes else ""
            raise ValueError(f"line {table.skip_rows + lines.line_num}: {e}{remedy}") from e


def _csv_lines(table: TableFile, text: io.TextIOWrapper) -> Any:
    lines: Iterator[str] = itertools.islice(text, table.skip_rows, None)
    if table.delimiter == WHITESPACE:
        lines = (line.replace("\t", " ").strip() for line in lines)
    skips_blanks = table.delimiter is not None and len(table.delimiter) > 1
    return csv.reader(
        lines,
        strict=True,
        delimiter=table.separator,
        skipinitialspace=skips_blanks,
        quoting=csv.QUOTE_MINIMAL if table.quotes else csv.QUOTE_NONE,
    )


def _split_header(table: TableFile, lines: Any) -> tuple[list[str], int, Iterator[tuple[int, list[str]]]]:
    """Returns the names of the columns, the line that they end in, and the rows, each with the line that it ends in.

    The first row that is not blank has the names; `image, label` names the column `label`. Aligned columns may have one
    name fewer, since none is above the images.
    """
    rows = ((lines.line_num, row) for row in lines)
    if table.header:
        return list(table.header), 0, rows
    end, first = next((each for each in rows if each[1]), (0, []))
    names = [name.strip() for name in first]
    if table.delimiter == WHITESPACE and (following := next(rows, None)) is not None:
        rows = itertools.chain([following], rows)  # type: ignore[assignment]
        names = ["image"] * (len(following[1]) == len(names) + 1) + names
    return names, end, rows


def guess_delimiter(line: str, separator: str, wanted: Sequence[str] | int) -> str:
    """Returns the delimiter that splits `line` as wanted, and how to set it; "" if none does.

    Args:
        line: a line that `separator` does not split.
        separator: the delimiter that was used.
        wanted: names that should be among the cells, or the number of cells.
    """
    pieces = {each: [piece.strip() for piece in line.split(each)] for each in DELIMITERS if each in line}
    pieces.pop(separator, None)
    if isinstance(wanted, int):
        pieces = {each: parts for each, parts in pieces.items() if len(parts) == wanted}
    if not pieces:
        return ""
    names = () if isinstance(wanted, int) else wanted
    best = max(pieces, key=lambda each: (len(set(pieces[each]) & set(names)), len(pieces[each])))
    in_yaml = '"\\t"' if best == "\t" else f"'{best}'"
    return f"{DELIMITERS[best]}: set source.manifest.delimiter: {in_yaml}"


def _jsonl_rows(table: TableFile) -> Iterator[tuple[RowPlace, Row]]:
    with _open_text(table) as text:
        position = 0
        for number, line in enumerate(text, 1):
            if not line.strip():
                continue
            yield RowPlace(position, "line", number), _parse_json_row(line)
            position += 1


def _json_rows(table: TableFile) -> Iterator[tuple[RowPlace, Row]]:
    """Yields the objects of a list, one by one.

    Raises:
        ValueError: if the file is not JSON, or has no such list.
    """
    import ijson  # takes 10 ms, and is needed only here

    where = f"{table.items}.item" if table.items else "item"
    position = 0
    try:
        with _open_text(table) as text:
            for row in ijson.items(_Utf8(text), where, use_float=True):
                yield RowPlace(position, "row", position), _as_row(row)
                position += 1
        if not position:
            with _open_text(table) as text:
                lists = list(itertools.islice(_lists_in(ijson.parse(_Utf8(text))), _MAX_LISTS))
            if table.items not in lists:
                found = f"has no list {table.items!r}" if table.items else "is not a list of rows"
                raise ValueError(f"it {found}; its lists are {', '.join(lists) or 'none'}: set source.manifest.items")
    except (ijson.JSONError, OverflowError) as e:
        raise ValueError(f"row {position}: not JSON: {' '.join(str(e).split())[:200]}") from e


_MAX_LISTS = 20  # that an error names


def _lists_in(events: Iterator[tuple[str, str, Any]]) -> Iterator[str]:
    """Yields the paths of the lists that are in no other list."""
    return (prefix for prefix, event, _ in events if event == "start_array" and "item" not in prefix.split("."))


class _Utf8:
    """Text as a file of bytes in UTF-8, which ijson wants; JSON that is nested so deep that ijson fails is refused."""

    def __init__(self, text: io.TextIOWrapper):
        self._text = text
        self._meter = annotation_tables.DepthMeter()

    def read(self, size: int = -1) -> bytes:
        data = self._text.read(size).encode("utf-8", "surrogateescape")
        if self._meter.is_too_deep(data):
            raise ValueError(f"it holds {annotation_tables.TOO_DEEP}: it is no table")
        return data


def _as_row(row: Any) -> Row:
    return _strip_names(row) if isinstance(row, dict) else f"a JSON {type(row).__name__}, expected an object"


def _strip_names(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row with the names of its columns stripped, like those of a CSV."""
    if all(map(str.__eq__, row, map(str.strip, row))):
        return row
    return {name.strip(): value for name, value in row.items()}


def _with_columns(rows: Iterator[tuple[RowPlace, Row]], columns: Sequence[str]) -> Iterator[tuple[RowPlace, Row]]:
    """Yields the rows with these columns alone, so that long texts in others take no memory."""
    for place, row in rows:
        yield place, row if isinstance(row, str) else {name: row[name] for name in columns if name in row}


def _parse_json_row(line: str) -> Row:
    try:
        row = json.loads(line)
        if "\\u" in line:  # half a surrogate pair cannot be used in a file name, key or label
            json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except (ValueError, RecursionError) as e:
        return f"not JSON: {e}"
    return _as_row(row)


def _parquet_rows(table: TableFile, columns: Sequence[str]) -> Iterator[tuple[RowPlace, Row]]:
    with errors.imports_for(f"reading {table.uri!r}"):
        import pyarrow.parquet  # takes 90 ms, and is needed only here

    with storage.storage_of(table.uri).open_read(table.uri) as file:
        parquet = pyarrow.parquet.ParquetFile(file)
        stored = {name.strip(): name for name in parquet.schema_arrow.names}
        position = 0
        for batch in parquet.iter_batches(batch_size=4096, columns=[stored.get(name, name) for name in columns]):
            for row in map(_strip_names, batch.to_pylist()):
                yield RowPlace(position, "row", position), row
                position += 1
