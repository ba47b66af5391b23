"""The formats of tables: CSV, JSON lines and Parquet, read row by row at any address."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from imagebeam import errors, storage

Row: TypeAlias = "Mapping[str, Any] | str"  # cells by column, or what is wrong with the row

FORMATS: Mapping[str, str] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def format_of(uri: str) -> str:
    """The format of a manifest by its extension.

    Raises:
        ConfigError: if the extension tells nothing.
    """
    extension = posixpath.splitext(uri)[1].lower()
    if extension not in FORMATS:
        raise errors.ConfigError(
            f"manifest {uri!r}: extension {extension!r} is none of {', '.join(FORMATS)}; "
            "set source.manifest.format, or source.by: files for a folder of images"
        )
    return FORMATS[extension]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table at an address."""

    uri: str
    format: str  # csv, jsonl or parquet
    header: tuple[str, ...] = ()  # of a CSV that has none
    delimiter: str | None = None  # of a CSV; None is a tab for .tsv, else a comma

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yields each row's cells, of `columns` at least, or what is wrong with the row.

        Raises:
            OSError: if the table cannot be read.
            ValueError: if it is broken.
        """
        if self.format == "parquet":
            return _parquet_rows(self, columns)
        return _csv_rows(self) if self.format == "csv" else _jsonl_rows(self)

    def column_names(self) -> list[str]:
        """The names of the columns; of JSON lines those of the first row.

        Raises:
            OSError: if the table cannot be read.
            ValueError: if it is broken.
        """
        if self.format == "parquet":
            import pyarrow.parquet

            with storage.storage_of(self.uri).open_read(self.uri) as file:
                return list(pyarrow.parquet.ParquetFile(file).schema_arrow.names)
        if self.format == "csv":
            with _open_text(self.uri) as text:
                return list(self.header) or _csv_header(_csv_lines(self, text))
        first = next(_jsonl_rows(self), {})
        return list(first) if isinstance(first, Mapping) else []


def _open_text(uri: str) -> io.TextIOWrapper:
    binary = io.BufferedReader(storage.storage_of(uri).open_read(uri), 1 << 20)  # type: ignore[type-var]
    # a byte that is no UTF-8 stays what it was, so that a path made of such bytes still opens its file
    return io.TextIOWrapper(binary, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _csv_rows(table: Table) -> Iterator[Row]:
    csv.field_size_limit(1 << 30)
    with _open_text(table.uri) as text:
        lines = _csv_lines(table, text)
        try:
            header = table.header or _csv_header(lines)
            for row in lines:
                if len(row) == len(header):
                    yield dict(zip(header, row))
                elif row:
                    yield f"{len(row)} cells, the header has {len(header)}; quote the cells that hold commas"
        except csv.Error as e:
            raise ValueError(f"line {lines.line_num}: {e}") from e


def _csv_lines(table: Table, text: io.TextIOWrapper) -> Any:
    delimiter = table.delimiter or ("\t" if table.uri.lower().endswith(".tsv") else ",")
    return csv.reader(text, strict=True, delimiter=delimiter)


def _csv_header(lines: Iterator[list[str]]) -> list[str]:
    """The first row that is not blank."""
    return next(filter(None, lines), [])


def _jsonl_rows(table: Table) -> Iterator[Row]:
    with _open_text(table.uri) as text:
        for line in text:
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                if "\\u" in line:  # may be half a surrogate pair, of which no file name, key or label can be made
                    json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogateescape")
            except (ValueError, RecursionError) as e:
                yield f"not JSON: {e}"
                continue
            yield row if isinstance(row, dict) else f"a JSON {type(row).__name__}, expected an object"


def _parquet_rows(table: Table, columns: Sequence[str]) -> Iterator[Row]:
    import pyarrow.parquet  # 90 ms, and only here

    with storage.storage_of(table.uri).open_read(table.uri) as file:
        parquet = pyarrow.parquet.ParquetFile(file)
        for batch in parquet.iter_batches(batch_size=4096, columns=list(columns)):
            yield from batch.to_pylist()
