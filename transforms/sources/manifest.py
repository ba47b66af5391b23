"""Lists the images that the rows of a table name."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam import errors, features, look_ahead, storage
from imagebeam.transforms import elements
from imagebeam.transforms.sources import (
    find_entries,
    image_source,
    merged_rows,
    missing_columns,
    saved_listing,
    table_formats,
    table_rows,
)

_Batch = list[merged_rows.PlacedRow]


class Trust(NamedTuple):
    """Takes the images of the rows as they are, without a look at the files."""

    size: str | None = None  # column with the size of the file in bytes


@dataclasses.dataclass(frozen=True)
class ManifestSource:
    """A manifest and its columns; relative paths are resolved against its folder."""

    uri: str
    format: str
    image: str | None = "image"  # the column with the path; None if another source finds the images of the rows
    fields: table_rows.RowFields = table_rows.NO_FIELDS
    allow_outside: bool = False
    keys_below: str | None = None  # folder that keys are relative to; None for the table's own
    first_position: int = 0  # of its first row, if other tables come before it
    merge_rows: bool = False  # merge consecutive rows of one image
    header: tuple[str, ...] = ()  # names of the columns of a CSV without a header
    delimiter: str | None = None  # of a CSV; None means a tab for .tsv, else a comma
    encoding: str = table_formats.UTF8  # of CSV and JSON lines
    trust: Trust | None = None  # None looks up every file

    @property
    def root(self) -> str:
        """The folder of the manifest."""
        return posixpath.dirname(self.uri) or "."

    @property
    def _table(self) -> table_formats.TableFile:
        return table_formats.TableFile(self.uri, self.format, self.header, self.delimiter, self.encoding)

    @property
    def _key_prefix(self) -> str:
        """The part of an address that its key leaves out."""
        return storage.join(self.keys_below or self.root, "")

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that must exist."""
        images = () if self.image is None else (self.image,)
        sizes = () if self.trust is None or self.trust.size is None else (self.trust.size,)
        return tuple(dict.fromkeys((*images, *sizes, *self.fields.needed)))

    def column_names(self) -> list[str]:
        """Returns the names of its columns.

        Raises:
            ConfigError: if the manifest cannot be read.
        """
        try:
            return self._table.column_names()
        except (OSError, ValueError, csv.Error) as e:
            raise errors.ConfigError(f"manifest {self.uri!r} cannot be read as {self.format}: {e}") from e

    def check_columns(self) -> None:
        """Checks by the first row that all columns exist.

        Raises:
            ConfigError: if the manifest cannot be read, or lacks a column.
        """
        names = self.column_names()
        if not names and self.format == "csv":
            raise errors.ConfigError(
                f"manifest {self.uri!r} is empty; expected a first line with the names of its columns, such as "
                f"{','.join(self.needed)}"
            )
        required = self.needed
        if self.format == "jsonl":  # objects may leave out keys
            required = () if self.image is None else (self.image,)
        repeated = next((name for name in required if names.count(name) > 1), None)
        if repeated is not None:
            raise errors.ConfigError(f"manifest {self.uri!r} has the column {repeated!r} twice; rename one of them")
        missing = [name for name in required if name not in names]
        if missing and names:
            if self.format == "jsonl" and saved_listing.is_listing(self.uri):
                raise errors.ConfigError(
                    f"{self.uri!r} is a listing that plan --save-listing wrote: {saved_listing.REMEDY}"
                )
            raise errors.ConfigError(
                f"manifest {self.uri!r} has no column {', '.join(map(repr, missing))}; its columns are "
                f"{', '.join(map(repr, names))}; {missing_columns.advise(self._table, names, missing, required)}"
            )

    def list_all(self) -> Iterator[image_source.Listing]:
        """Yields the images in the order of the rows, up to the first problem."""
        for batch in self._read_batches():
            found = batch if isinstance(batch, image_source.Listing) else self._look_up_all(batch)
            yield found
            if found.problems:
                return

    def list_rows(self) -> Iterator[image_source.RowBatch | image_source.Listing]:
        """Yields the rows in their order, with the needed columns alone."""
        for batch in self._read_batches():
            if isinstance(batch, image_source.Listing):
                yield batch
            else:
                yield image_source.RowBatch(self._pack(batch), first_position=self.first_position)

    def look_up(self, batch: image_source.RowBatch) -> image_source.Listing:
        """Returns the images of the rows."""
        return self._look_up_all(self._unpack(batch.packed))

    def _read_batches(self) -> Iterator[_Batch | image_source.Listing]:
        """Yields the rows in batches, and a listing with a problem if they cannot be read or there are none."""
        placed: Iterator[merged_rows.PlacedRow] = self.read_rows()
        if self.merge_rows and self.image is not None:
            placed = merged_rows.merge_rows(placed, self.image, self.fields)
        found, num_rows = image_source.ListingBuilder(), 0
        batch: _Batch = []
        try:
            for each in placed:
                num_rows += 1
                batch.append(each)
                if len(batch) >= image_source.MAX_REFS:
                    yield batch
                    batch = []
            if not num_rows and self.keys_below is None:  # some of several tables may be empty
                found.problems.append(f"manifest {self.uri!r} has no rows, so there are no images; fill it")
        except (OSError, ValueError) as e:
            found.problems.append(f"manifest {self.uri!r} cannot be read to its end: {e}")
        if batch:
            yield batch
        if found.problems:
            yield found.take()

    def _pack(self, batch: _Batch) -> bytes:
        """Packs rows; what is not a mapping of cells is kept as it is."""
        names, nothing = self.needed, (None,) * len(self.needed)
        return elements.pack_rows(
            [
                (*place, None, *map(row.get, names)) if isinstance(row, Mapping) else (*place, row, *nothing)
                for place, row in batch
            ]
        )

    def _unpack(self, packed: bytes) -> _Batch:
        names = self.needed
        return [
            (table_formats.RowPlace(position, unit, number), dict(zip(names, cells)) if other is None else other)
            for position, unit, number, other, *cells in elements.unpack_rows(packed)
        ]

    def _look_up_all(self, batch: _Batch) -> image_source.Listing:
        """Returns the references and rejects of rows, up to the first problem."""
        found = image_source.ListingBuilder()
        is_near = self.trust is not None or self._is_near(batch)
        num_ahead = 1 if is_near else find_entries.REQUESTS_AT_ONCE
        try:
            known = {} if is_near else find_entries.find_together(self._addresses(batch))
            for image in look_ahead.map_ahead(lambda each: self._look_up(*each, known), batch, num_ahead):
                found.add(image)
        except table_rows.MissingValueError as e:
            found.problems.append(str(e))
        except (OSError, ValueError) as e:
            found.problems.append(f"manifest {self.uri!r} cannot be read to its end: {e}")
        return found.take()

    def _is_near(self, batch: _Batch) -> bool:
        """Returns whether all files of the rows are on this machine, so that a look takes no time."""
        if not storage.storage_of(self.uri).is_local:
            return False
        return not self.allow_outside or not any("://" in str(self._path_in(row)) for _, row in batch)

    def _addresses(self, batch: _Batch) -> Iterator[str]:
        for _, row in batch:
            with contextlib.suppress(table_rows.BadRowError, errors.ConfigError):
                if path := self._path_in(row):
                    yield self.resolve(path)

    def _path_in(self, row: Any) -> str | None:
        return _name_in(_cells_of(row), self.image)

    @staticmethod
    def positions_in(packed: bytes) -> list[int]:
        """Returns the position of each row in the table."""
        return [position for position, *_ in elements.unpack_rows(packed)]

    def hash_addresses(self, packed: bytes, hash_address: Callable[[str], int]) -> Iterator[int]:
        """Yields the hash of the address in each row that has one."""
        return map(hash_address, self._addresses(self._unpack(packed)))

    def read_rows(self) -> Iterator[tuple[table_formats.RowPlace, Any]]:
        """Yields the place of each row with its cells by column, or with a text that says what is wrong with it.

        Raises:
            OSError: if the table cannot be read.
            ValueError: if it is broken, or a text to be stored is not in the table's encoding.
        """
        return self._table.rows(self.needed, self.fields.texts)

    def describe_rows(self, positions: Sequence[int]) -> list[str]:
        """Describes the places of the rows with these positions for a user, such as `line 5 of /data/a.csv`.

        Raises:
            OSError: if the table cannot be read.
            ValueError: if it is broken.
        """
        wanted = {position - self.first_position for position in positions}
        places: dict[int, table_formats.RowPlace] = {}
        for place, _ in self._table.rows(self.needed):
            if place.position in wanted:
                places[place.position] = place
                if len(places) == len(wanted):
                    break
        return [f"{places[position - self.first_position]} of {self.uri}" for position in positions]

    def _look_up(
        self, place: table_formats.RowPlace, row: Any, known: find_entries.Entries
    ) -> elements.ImageRef | elements.Reject:
        """Returns the reference of a row, or its reject."""
        try:
            return self._reference(place, row, known)
        except table_rows.BadRowError as e:
            return self._reject(place, row, e.reason, e.detail)
        except table_rows.MissingValueError as e:
            raise table_rows.MissingValueError(f"{place} of {self.uri}: {e}") from e
        except errors.ConfigError as e:  # no storage has the scheme of its address
            return self._reject(place, row, elements.Reason.UNREADABLE, str(e))

    def _reject(self, place: table_formats.RowPlace, row: Any, reason: elements.Reason, detail: str) -> elements.Reject:
        cells = _cells_of(row)
        key = _name_in(cells, self.fields.key or self.image) or str(place)
        uri = _name_in(cells, self.image) or self.uri
        return elements.Reject(key, uri, "list", reason, f"{place} of {self.uri}: {detail}")

    def _reference(self, place: table_formats.RowPlace, row: Any, known: find_entries.Entries) -> elements.ImageRef:
        if isinstance(row, merged_rows.Conflict):
            raise table_rows.BadRowError(elements.Reason.BAD_ROW, row.detail)
        if not isinstance(row, Mapping):
            raise table_rows.BadRowError(elements.Reason.BAD_ROW, str(row))
        path = table_rows.text_in(row, str(self.image))
        if not path:
            raise table_rows.BadRowError(elements.Reason.BAD_ROW, f"column {self.image!r} is empty")
        uri = self.resolve(path)
        column = self.fields.key
        key = table_rows.text_in(row, column) if column else uri.removeprefix(self._key_prefix)
        if not key:
            raise table_rows.BadRowError(elements.Reason.BAD_ROW, f"column {column!r} is empty")
        size, version = self._look_at(uri, known) if self.trust is None else (_size_in(row, self.trust.size), 0)
        ref = elements.ImageRef(key, uri, size, version, position=self.first_position + place.position)
        return self.fields.fill(ref, row)

    @staticmethod
    def _look_at(uri: str, known: find_entries.Entries) -> tuple[int, int]:
        """Returns size and version of the file at an address."""
        try:
            status = known[uri] if uri in known else storage.storage_of(uri).stat(uri)
        except (FileNotFoundError, NotADirectoryError) as e:
            raise table_rows.BadRowError(elements.Reason.NOT_FOUND, f"there is no file {uri!r}") from e
        except OSError as e:
            if storage.is_fault(e):
                raise
            raise table_rows.BadRowError(
                elements.Reason.UNREADABLE, f"{uri!r} cannot be read ({e.strerror or e})"
            ) from e
        except ValueError as e:
            raise table_rows.BadRowError(elements.Reason.UNREADABLE, f"{uri!r} is not a valid path ({e})") from e
        if status is None:
            raise table_rows.BadRowError(elements.Reason.NOT_FOUND, f"there is no file {uri!r}")
        if status.kind != storage.FILE:
            raise table_rows.BadRowError(elements.Reason.UNREADABLE, f"{uri!r} is not a regular file ({status.kind})")
        return status.size, status.version

    def resolve(self, path: str) -> str:
        """Returns the address of a path in the table.

        Raises:
            BadRowError: if it is outside of the table's folder and `allow_outside` is False.
            ConfigError: if no storage has its scheme.
        """
        if table_rows.is_absolute(path):
            uri = storage.normalize(path)
            inside = uri.startswith(storage.join(self.root, ""))
        else:
            relative = posixpath.normpath(path)
            uri = storage.join(self.root, relative)
            inside = relative.split("/")[0] != ".."
        if not inside and not self.allow_outside:
            raise table_rows.BadRowError(
                elements.Reason.OUTSIDE_ROOT,
                f"{path!r} leaves {self.root!r}; source.manifest.allow_outside: true would take it",
            )
        return uri


def _cells_of(row: Any) -> Mapping[str, Any]:
    """Returns the cells of a row, also of one that cannot be used; none if it has none."""
    return row.cells if isinstance(row, merged_rows.Conflict) else row if isinstance(row, Mapping) else {}


def _size_in(cells: Mapping[str, Any], column: str | None) -> int:
    """Returns the size in a cell; -1 if it is empty, or there is no such column.

    Raises:
        BadRowError: if it is not a number of bytes.
    """
    text = None if column is None else table_rows.text_in(cells, column)
    if text is None:
        return -1
    try:
        size = int(table_rows.parse_number(features.INT64, text))
        if size < 0:
            raise ValueError(f"{text!r} is negative; expected a number of bytes")
    except ValueError as e:
        raise table_rows.BadRowError(elements.Reason.BAD_VALUE, f"column {column!r}: {e}") from e
    return size


def _name_in(cells: Mapping[str, Any], column: str | None) -> str | None:
    """Returns a cell of a possibly broken row as text, for its reject; None without a usable one."""
    with contextlib.suppress(table_rows.BadRowError):
        return table_rows.text_of(cells.get(column)) if column else None
    return None
