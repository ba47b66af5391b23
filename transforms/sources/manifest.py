"""Lists the images that the rows of a table name."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from imagebeam import errors, look_ahead, storage
from imagebeam.transforms import elements
from imagebeam.transforms.sources import (
    image_source,
    merged_rows,
    missing_columns,
    saved_listing,
    table_formats,
    table_rows,
)

_REQUESTS_AT_ONCE = 16


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
        return tuple(dict.fromkeys((*images, *self.fields.needed)))

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
        """Yields the images in the order of the rows."""
        found = image_source.ListingBuilder()
        num_rows = 0
        try:
            for image in self._look_up_all():
                num_rows += 1
                found.add(image)
                if found.is_full:
                    yield found.take()
            if not num_rows and self.keys_below is None:  # some of several tables may be empty
                found.problems.append(f"manifest {self.uri!r} has no rows, so there are no images; fill it")
        except table_rows.MissingValueError as e:
            found.problems.append(str(e))
        except (OSError, ValueError) as e:
            found.problems.append(f"manifest {self.uri!r} cannot be read to its end: {e}")
        yield found.take()

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

    def _look_up_all(self) -> Iterator[elements.ImageRef | elements.Reject]:
        """Yields the reference or reject of each row in order; threads look up files ahead over a network."""
        placed: Iterator[merged_rows.PlacedRow] = self.read_rows()
        if self.merge_rows and self.image is not None:
            placed = merged_rows.merge_rows(placed, self.image, self.fields)
        num_ahead = 1 if storage.storage_of(self.uri).is_local else _REQUESTS_AT_ONCE
        return look_ahead.map_ahead(lambda each: self._look_up(*each), placed, num_ahead)

    def _look_up(self, place: table_formats.RowPlace, row: Any) -> elements.ImageRef | elements.Reject:
        try:
            return self._reference(place, row)
        except table_rows.BadRowError as e:
            return self._reject(place, row, e.reason, e.detail)
        except table_rows.MissingValueError as e:
            raise table_rows.MissingValueError(f"{place} of {self.uri}: {e}") from e
        except errors.ConfigError as e:  # no storage has the scheme of its address
            return self._reject(place, row, elements.Reason.UNREADABLE, str(e))

    def _reject(self, place: table_formats.RowPlace, row: Any, reason: elements.Reason, detail: str) -> elements.Reject:
        cells = row.cells if isinstance(row, merged_rows.Conflict) else row if isinstance(row, Mapping) else {}
        key = _name_in(cells, self.fields.key or self.image) or str(place)
        uri = _name_in(cells, self.image) or self.uri
        return elements.Reject(key, uri, "list", reason, f"{place} of {self.uri}: {detail}")

    def _reference(self, place: table_formats.RowPlace, row: Any) -> elements.ImageRef:
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
        try:
            status = storage.storage_of(uri).stat(uri)
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
        if status.kind != storage.FILE:
            raise table_rows.BadRowError(elements.Reason.UNREADABLE, f"{uri!r} is not a regular file ({status.kind})")
        ref = elements.ImageRef(key, uri, status.size, status.version, position=self.first_position + place.position)
        return self.fields.fill(ref, row)

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


def _name_in(cells: Mapping[str, Any], column: str | None) -> str | None:
    """Returns a cell of a possibly broken row as text, for its reject; None without a usable one."""
    with contextlib.suppress(table_rows.BadRowError):
        return table_rows.text_of(cells.get(column)) if column else None
    return None
