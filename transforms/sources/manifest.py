"""Images named by a table."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from imagebeam import errors, look_ahead, storage
from imagebeam.transforms import elements
from imagebeam.transforms.sources import merged_rows, protocol, saved_listing, table_formats, table_header, table_rows

_REQUESTS_AT_ONCE = 16


@dataclasses.dataclass(frozen=True)
class ManifestSource:
    """A manifest and the columns that count. Relative paths resolve against its folder."""

    uri: str
    format: str
    image: str | None = "image"  # the column with the path; None where another source knows the images of the rows
    fields: table_rows.RowFields = table_rows.NO_FIELDS
    allow_outside: bool = False
    keys_below: str | None = None  # folder that keys are relative to, where it is not the table's own
    first_position: int = 0  # of its first row, where other tables come before
    merge_rows: bool = False  # whether rows of one image that follow each other are one
    header: tuple[str, ...] = ()  # of a CSV that has none
    delimiter: str | None = None  # of a CSV; None is a tab for .tsv, else a comma
    encoding: str = table_formats.UTF8  # of CSV and JSON lines

    @property
    def root(self) -> str:
        return posixpath.dirname(self.uri) or "."

    @property
    def _table(self) -> table_formats.Table:
        return table_formats.Table(self.uri, self.format, self.header, self.delimiter, self.encoding)

    @property
    def _key_prefix(self) -> str:
        """What keys are addresses without."""
        return storage.join(self.keys_below or self.root, "")

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that must be there."""
        images = () if self.image is None else (self.image,)
        return tuple(dict.fromkeys((*images, *self.fields.needed)))

    def column_names(self) -> list[str]:
        """The names of its columns.

        Raises:
            ConfigError: if the manifest cannot be read.
        """
        try:
            return self._table.column_names()
        except (OSError, ValueError, csv.Error) as e:
            raise errors.ConfigError(f"manifest {self.uri!r} cannot be read as {self.format}: {e}") from e

    def check_columns(self) -> None:
        """Reads the first row.

        Raises:
            ConfigError: if the manifest cannot be read, or a column is not there.
        """
        names = self.column_names()
        if not names and self.format == "csv":
            raise errors.ConfigError(
                f"manifest {self.uri!r} is empty; expected a first line with the names of its columns, such as "
                f"{','.join(self.needed)}"
            )
        required = self.needed
        if self.format == "jsonl":  # objects may leave keys out
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
                f"{', '.join(map(repr, names))}; {table_header.advise(self._table, names, missing, required)}"
            )

    def list_all(self) -> Iterator[protocol.Listing]:
        """Yields the manifest's references in the order of its rows."""
        found = protocol.ListingBuilder()
        num_rows = 0
        try:
            for image in self._look_up_all():
                num_rows += 1
                found.add(image)
                if found.is_full:
                    yield found.take()
            if not num_rows and self.keys_below is None:  # of several tables some may be empty
                found.problems.append(f"manifest {self.uri!r} has no rows, so there are no images; fill it")
        except table_rows.MissingValueError as e:
            found.problems.append(str(e))
        except (OSError, ValueError) as e:
            found.problems.append(f"manifest {self.uri!r} cannot be read to its end: {e}")
        yield found.take()

    def read_rows(self) -> Iterator[tuple[table_formats.Place, Any]]:
        """Yields each row's place, and its cells by column, or what is wrong with the row.

        Raises:
            OSError: if the table cannot be read.
            ValueError: if it is broken, or a text that is stored is not in the table's encoding.
        """
        return self._table.rows(self.needed, self.fields.texts)

    def describe_rows(self, positions: Sequence[int]) -> list[str]:
        """Where the rows with these positions are, in the words for a user.

        Raises:
            OSError: if the table cannot be read.
            ValueError: if it is broken.
        """
        wanted = {position - self.first_position for position in positions}
        places: dict[int, table_formats.Place] = {}
        for place, _ in self._table.rows(self.needed):
            if place.position in wanted:
                places[place.position] = place
                if len(places) == len(wanted):
                    break
        return [f"{places[position - self.first_position]} of {self.uri}" for position in positions]

    def _look_up_all(self) -> Iterator[elements.ImageRef | elements.Reject]:
        """Returns an iterator over what becomes of each row, in order. Files on a network are looked up ahead."""
        placed: Iterator[merged_rows.PlacedRow] = self.read_rows()
        if self.merge_rows and self.image is not None:
            placed = merged_rows.merge_rows(placed, self.image, self.fields)
        num_ahead = 1 if storage.storage_of(self.uri).is_local else _REQUESTS_AT_ONCE
        return look_ahead.map_ahead(lambda each: self._look_up(*each), placed, num_ahead)

    def _look_up(self, place: table_formats.Place, row: Any) -> elements.ImageRef | elements.Reject:
        try:
            return self._reference(place, row)
        except table_rows.BadRowError as e:
            return self._reject(place, row, e.reason, e.detail)
        except table_rows.MissingValueError as e:
            raise table_rows.MissingValueError(f"{place} of {self.uri}: {e}") from e
        except errors.ConfigError as e:  # an address that no storage is known for
            return self._reject(place, row, elements.Reason.UNREADABLE, str(e))

    def _reject(self, place: table_formats.Place, row: Any, reason: elements.Reason, detail: str) -> elements.Reject:
        cells = row.cells if isinstance(row, merged_rows.Conflict) else row if isinstance(row, Mapping) else {}
        key = _name_in(cells, self.fields.key or self.image) or str(place)
        uri = _name_in(cells, self.image) or self.uri
        return elements.Reject(key, uri, "list", reason, f"{place} of {self.uri}: {detail}")

    def _reference(self, place: table_formats.Place, row: Any) -> elements.ImageRef:
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
            raise table_rows.BadRowError(elements.Reason.UNREADABLE, f"{uri!r} is no path ({e})") from e
        if status.kind != storage.FILE:
            raise table_rows.BadRowError(elements.Reason.UNREADABLE, f"{uri!r} is not a regular file ({status.kind})")
        ref = elements.ImageRef(key, uri, status.size, status.version, position=self.first_position + place.position)
        return self.fields.fill(ref, row)

    def resolve(self, path: str) -> str:
        """The address of a path in the table.

        Raises:
            BadRowError: if it leaves the table's folder and may not.
            ConfigError: if no storage is known for it.
        """
        absolute = path.startswith("/") or storage.scheme_of(path) != "file" or path.lower().startswith("file://")
        if absolute:
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
    """A cell of a row that may be a bad one, for its dead letter."""
    with contextlib.suppress(table_rows.BadRowError):
        return table_rows.text_of(cells.get(column)) if column else None
    return None
