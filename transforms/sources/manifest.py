"""Images named by a table: CSV with a header, JSON lines, or Parquet."""

from __future__ import annotations

import collections
import csv
import dataclasses
import io
import itertools
import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

from imagebeam import errors, features, storage
from transforms import references
from transforms.sources import listing

FORMATS: Mapping[str, str] = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}

_FLOAT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+(\.0+)?", re.ASCII)  # 3.0 is how pandas writes the integer 3 beside a missing one
_FLOAT32_LIMIT = 2.0**128 - 2.0**103  # rounds to infinity in 32 bits, as all above it


class BadRowError(ValueError):
    """A row that names no usable image; becomes a reject."""

    def __init__(self, reason: references.Reason, detail: str):
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


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


_REQUESTS_AT_ONCE = 16


@dataclasses.dataclass(frozen=True)
class ManifestSource:
    """A manifest and the columns that count. Relative paths resolve against its folder."""

    uri: str
    format: str
    image: str = "image"
    key: str | None = None
    label: str | None = None
    split: str | None = None
    group: str | None = None
    columns: tuple[tuple[str, str], ...] = ()  # name, kind
    allow_outside: bool = False

    @property
    def root(self) -> str:
        return posixpath.dirname(self.uri) or "."

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that must be there."""
        named = (self.image, self.key, self.label, self.split, self.group, *(name for name, _ in self.columns))
        return tuple(dict.fromkeys(name for name in named if name is not None))

    def check_columns(self) -> None:
        """Reads the first row.

        Raises:
            ConfigError: if the manifest cannot be read, or a column is not there.
        """
        try:
            names = _column_names(self.uri, self.format)
        except (OSError, ValueError, csv.Error) as e:
            raise errors.ConfigError(f"manifest {self.uri!r} cannot be read as {self.format}: {e}") from e
        required = self.needed if self.format != "jsonl" else (self.image,)  # JSON objects may leave keys out
        repeated = next((name for name in required if names.count(name) > 1), None)
        if repeated is not None:
            raise errors.ConfigError(f"manifest {self.uri!r} has the column {repeated!r} twice; rename one of them")
        missing = [name for name in required if name not in names]
        if missing and names:
            raise errors.ConfigError(
                f"manifest {self.uri!r} has no column {', '.join(map(repr, missing))}; its columns are "
                f"{', '.join(map(repr, names))}; set source.manifest.image, label.column and the like"
            )

    def list_all(self) -> Iterator[listing.Listing]:
        """Yields the manifest's references in the order of its rows."""
        found = listing.ListingBuilder()
        try:
            for image in self._look_up_all():
                if isinstance(image, references.Reject):
                    found.rejects.append(image)
                else:
                    found.refs.append(image)
                if found.is_full:
                    yield found.take()
        except (OSError, ValueError) as e:
            found.problems.append(f"manifest {self.uri!r} cannot be read to its end: {e}")
        yield found.take()

    def _look_up_all(self) -> Iterator[references.ImageRef | references.Reject]:
        """What becomes of each row, in their order; files on a network are looked up ahead, by threads."""
        rows = enumerate(_ROWS[self.format](self.uri, self.needed))
        if storage.storage_of(self.uri).is_local:
            yield from itertools.starmap(self._look_up, rows)
            return
        ahead: collections.deque[futures.Future[references.ImageRef | references.Reject]] = collections.deque()
        with futures.ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
            for position, row in rows:
                ahead.append(threads.submit(self._look_up, position, row))
                if len(ahead) > 2 * _REQUESTS_AT_ONCE:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def _look_up(self, position: int, row: Any) -> references.ImageRef | references.Reject:
        try:
            return self._reference(position, row)
        except BadRowError as e:
            return self._reject(position, row, e.reason, e.detail)
        except errors.ConfigError as e:  # an address that no storage is known for
            return self._reject(position, row, references.Reason.UNREADABLE, str(e))

    def _reject(self, position: int, row: Any, reason: references.Reason, detail: str) -> references.Reject:
        cells = row if isinstance(row, Mapping) else {}
        key = _text(cells.get(self.key or self.image)) or f"row {position}"
        uri = _text(cells.get(self.image)) or self.uri
        return references.Reject(key, uri, "list", reason, f"row {position} of {self.uri}: {detail}")

    def _reference(self, position: int, row: Any) -> references.ImageRef:
        if not isinstance(row, Mapping):
            raise BadRowError(references.Reason.BAD_ROW, str(row))
        path = _text(row.get(self.image))
        if not path:
            raise BadRowError(references.Reason.BAD_ROW, f"column {self.image!r} is empty")
        uri = self._resolve(path)
        key = _text(row.get(self.key)) if self.key else uri.removeprefix(storage.join(self.root, ""))
        if not key:
            raise BadRowError(references.Reason.BAD_ROW, f"column {self.key!r} is empty")
        try:
            status = storage.storage_of(uri).stat(uri)
        except (FileNotFoundError, NotADirectoryError) as e:
            raise BadRowError(references.Reason.NOT_FOUND, f"there is no file {uri!r}") from e
        except storage.UnavailableError:  # not the row's fault
            raise
        except OSError as e:
            raise BadRowError(references.Reason.UNREADABLE, f"{uri!r} cannot be read ({e.strerror or e})") from e
        except ValueError as e:
            raise BadRowError(references.Reason.UNREADABLE, f"{uri!r} is no path ({e})") from e
        if status.kind != storage.FILE:
            raise BadRowError(references.Reason.UNREADABLE, f"{uri!r} is not a regular file ({status.kind})")
        return references.ImageRef(
            key,
            uri,
            status.size,
            status.mtime_ns,
            position=position,
            label=_text(row.get(self.label)) if self.label else None,
            split=(_text(row.get(self.split)) or "") if self.split else "",
            group=(_text(row.get(self.group)) or "") if self.group else "",
            columns=tuple(parse_value(name, kind, row.get(name)) for name, kind in self.columns),
        )

    def _resolve(self, path: str) -> str:
        absolute = path.startswith("/") or storage.scheme_of(path) != "file" or path.lower().startswith("file://")
        if absolute:
            uri = storage.normalize(path)
            inside = uri.startswith(storage.join(self.root, ""))
        else:
            relative = posixpath.normpath(path)
            uri = storage.join(self.root, relative)
            inside = relative.split("/")[0] != ".."
        if not inside and not self.allow_outside:
            raise BadRowError(
                references.Reason.OUTSIDE_ROOT,
                f"{path!r} leaves {self.root!r}; source.manifest.allow_outside: true would take it",
            )
        return uri


def parse_value(name: str, kind: str, value: Any) -> Any:
    """A column's value as bytes, int or float.

    Raises:
        BadRowError: if it cannot be read so, or is missing.
    """
    text = _text(value)
    if text is None:
        raise BadRowError(references.Reason.BAD_VALUE, f"column {name!r} is empty")
    try:
        return parse_number(kind, text) if kind != features.BYTES else text.encode("utf-8", "surrogateescape")
    except ValueError as e:
        raise BadRowError(references.Reason.BAD_VALUE, f"column {name!r}: {e}") from e


def parse_number(kind: str, text: str) -> int | float:
    """`text` as an int64, or as a float that is finite in 32 bits.

    Raises:
        ValueError: if it is none.
    """
    text = text.strip()
    if kind == features.FLOAT:
        if not _FLOAT.fullmatch(text):  # float() would also take nan, inf and 1_000
            raise ValueError(f"{text!r} is not a finite number")
        number = float(text)
        if abs(number) >= _FLOAT32_LIMIT:
            raise ValueError(f"{text!r} does not fit into a 32-bit float")
        return number
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{text!r} is not an integer")
    integer = int(text.partition(".")[0])
    if not features.check_value(features.INT64, integer):
        raise ValueError(f"{text!r} does not fit into 64 bits")
    return integer


def _text(value: Any) -> str | None:
    """A cell as text, None where it is empty."""
    if isinstance(value, bytes):  # Parquet's binary columns
        value = value.decode("utf-8", "surrogateescape")
    if value is None or value == "" or value != value:
        return None
    return value if isinstance(value, str) else str(value)


def _open_text(uri: str) -> io.TextIOWrapper:
    binary = io.BufferedReader(storage.storage_of(uri).open_read(uri), 1 << 20)  # type: ignore[type-var]
    # a byte that is no UTF-8 stays what it was, so that a path made of such bytes still opens its file
    return io.TextIOWrapper(binary, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _csv_rows(uri: str, columns: Sequence[str]) -> Iterator[Mapping[str, Any] | str]:
    del columns
    csv.field_size_limit(1 << 30)
    with _open_text(uri) as text:
        rows = csv.reader(text, strict=True)
        try:
            header = _csv_header(rows)
            for row in rows:
                if len(row) == len(header):
                    yield dict(zip(header, row))
                elif row:
                    yield f"{len(row)} cells, the header has {len(header)}; quote the cells that hold commas"
        except csv.Error as e:
            raise ValueError(f"line {rows.line_num}: {e}") from e


def _csv_header(rows: Iterator[list[str]]) -> list[str]:
    """The first row that is not blank."""
    return next(filter(None, rows), [])


def _jsonl_rows(uri: str, columns: Sequence[str]) -> Iterator[Mapping[str, Any] | str]:
    del columns
    with _open_text(uri) as text:
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


def _parquet_rows(uri: str, columns: Sequence[str]) -> Iterator[Mapping[str, Any] | str]:
    import pyarrow.parquet  # 90 ms, and only here

    with storage.storage_of(uri).open_read(uri) as file:
        table = pyarrow.parquet.ParquetFile(file)
        for batch in table.iter_batches(batch_size=4096, columns=list(columns)):
            yield from batch.to_pylist()


_ROWS = {"csv": _csv_rows, "jsonl": _jsonl_rows, "parquet": _parquet_rows}


def _column_names(uri: str, format: str) -> list[str]:
    if format == "parquet":
        import pyarrow.parquet

        with storage.storage_of(uri).open_read(uri) as file:
            return list(pyarrow.parquet.ParquetFile(file).schema_arrow.names)
    if format == "csv":
        with _open_text(uri) as text:
            return _csv_header(csv.reader(text, strict=True))
    first = next(iter(_jsonl_rows(uri, ())), {})
    return list(first) if isinstance(first, dict) else []
