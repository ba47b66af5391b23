"""Images named by a table."""

from __future__ import annotations

import collections
import contextlib
import csv
import dataclasses
import itertools
import posixpath
from collections.abc import Iterator, Mapping
from concurrent import futures
from typing import Any

from imagebeam import errors, storage
from transforms import references
from transforms.sources import listing, merge, rows, table_formats

_REQUESTS_AT_ONCE = 16


@dataclasses.dataclass(frozen=True)
class ManifestSource:
    """A manifest and the columns that count. Relative paths resolve against its folder."""

    uri: str
    format: str
    image: str | None = "image"  # the column with the path; None where another source knows the images of the rows
    fields: rows.RowFields = rows.NO_FIELDS
    allow_outside: bool = False
    keys_below: str | None = None  # folder that keys are relative to, where it is not the table's own
    first_position: int = 0  # of its first row, where other tables come before
    merge_rows: bool = False  # whether rows of one image that follow each other are one
    header: tuple[str, ...] = ()  # of a CSV that has none
    delimiter: str | None = None  # of a CSV; None is a tab for .tsv, else a comma

    @property
    def root(self) -> str:
        return posixpath.dirname(self.uri) or "."

    @property
    def _table(self) -> table_formats.Table:
        return table_formats.Table(self.uri, self.format, self.header, self.delimiter)

    @property
    def _key_prefix(self) -> str:
        """What keys are addresses without."""
        return storage.join(self.keys_below or self.root, "")

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that must be there."""
        images = () if self.image is None else (self.image,)
        return tuple(dict.fromkeys((*images, *self.fields.needed)))

    def check_columns(self) -> None:
        """Reads the first row.

        Raises:
            ConfigError: if the manifest cannot be read, or a column is not there.
        """
        try:
            names = self._table.column_names()
        except (OSError, ValueError, csv.Error) as e:
            raise errors.ConfigError(f"manifest {self.uri!r} cannot be read as {self.format}: {e}") from e
        required = self.needed
        if self.format == "jsonl":  # objects may leave keys out
            required = () if self.image is None else (self.image,)
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
                found.add(image)
                if found.is_full:
                    yield found.take()
        except rows.MissingValueError as e:
            found.problems.append(str(e))
        except (OSError, ValueError) as e:
            found.problems.append(f"manifest {self.uri!r} cannot be read to its end: {e}")
        yield found.take()

    def read_rows(self) -> Iterator[Mapping[str, Any] | str]:
        """Yields each row's cells by column, or what is wrong with the row.

        Raises:
            OSError: if the table cannot be read.
            ValueError: if it is broken.
        """
        return self._table.rows(self.needed)

    def _look_up_all(self) -> Iterator[references.ImageRef | references.Reject]:
        """What becomes of each row, in their order; files on a network are looked up ahead, by threads."""
        numbered: Iterator[merge.NumberedRow] = enumerate(self.read_rows())
        if self.merge_rows and self.image is not None:
            numbered = merge.merge_rows(numbered, self.image, self.fields)
        if storage.storage_of(self.uri).is_local:
            yield from itertools.starmap(self._look_up, numbered)
            return
        ahead: collections.deque[futures.Future[references.ImageRef | references.Reject]] = collections.deque()
        with futures.ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
            for position, row in numbered:
                ahead.append(threads.submit(self._look_up, position, row))
                if len(ahead) > 2 * _REQUESTS_AT_ONCE:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def _look_up(self, position: int, row: Any) -> references.ImageRef | references.Reject:
        try:
            return self._reference(position, row)
        except rows.BadRowError as e:
            return self._reject(position, row, e.reason, e.detail)
        except rows.MissingValueError as e:
            raise rows.MissingValueError(f"row {position} of {self.uri}: {e}") from e
        except errors.ConfigError as e:  # an address that no storage is known for
            return self._reject(position, row, references.Reason.UNREADABLE, str(e))

    def _reject(self, position: int, row: Any, reason: references.Reason, detail: str) -> references.Reject:
        cells = row.cells if isinstance(row, merge.Conflict) else row if isinstance(row, Mapping) else {}
        key = _name_in(cells, self.fields.key or self.image) or f"row {position}"
        uri = _name_in(cells, self.image) or self.uri
        return references.Reject(key, uri, "list", reason, f"row {position} of {self.uri}: {detail}")

    def _reference(self, position: int, row: Any) -> references.ImageRef:
        if isinstance(row, merge.Conflict):
            raise rows.BadRowError(references.Reason.BAD_ROW, row.detail)
        if not isinstance(row, Mapping):
            raise rows.BadRowError(references.Reason.BAD_ROW, str(row))
        path = rows.text_in(row, str(self.image))
        if not path:
            raise rows.BadRowError(references.Reason.BAD_ROW, f"column {self.image!r} is empty")
        uri = self._resolve(path)
        column = self.fields.key
        key = rows.text_in(row, column) if column else uri.removeprefix(self._key_prefix)
        if not key:
            raise rows.BadRowError(references.Reason.BAD_ROW, f"column {column!r} is empty")
        try:
            status = storage.storage_of(uri).stat(uri)
        except (FileNotFoundError, NotADirectoryError) as e:
            raise rows.BadRowError(references.Reason.NOT_FOUND, f"there is no file {uri!r}") from e
        except OSError as e:
            if storage.is_fault(e):
                raise
            raise rows.BadRowError(references.Reason.UNREADABLE, f"{uri!r} cannot be read ({e.strerror or e})") from e
        except ValueError as e:
            raise rows.BadRowError(references.Reason.UNREADABLE, f"{uri!r} is no path ({e})") from e
        if status.kind != storage.FILE:
            raise rows.BadRowError(references.Reason.UNREADABLE, f"{uri!r} is not a regular file ({status.kind})")
        ref = references.ImageRef(key, uri, status.size, status.mtime_ns, position=self.first_position + position)
        return self.fields.fill(ref, row)

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
            raise rows.BadRowError(
                references.Reason.OUTSIDE_ROOT,
                f"{path!r} leaves {self.root!r}; source.manifest.allow_outside: true would take it",
            )
        return uri


def _name_in(cells: Mapping[str, Any], column: str | None) -> str | None:
    """A cell of a row that may be a bad one, for its dead letter."""
    with contextlib.suppress(rows.BadRowError):
        return rows.text_of(cells.get(column)) if column else None
    return None
