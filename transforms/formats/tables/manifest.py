"""Lists the images that the rows of a table name."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from imagebeam import concurrency, errors, features, storage
from imagebeam.transforms import elements
from imagebeam.transforms.formats import folder
from imagebeam.transforms.formats.tables import row_steps, table_formats, table_hints
from imagebeam.transforms.formats.tables.row_steps import Listed
from imagebeam.transforms.sources import find_files, image_source, table_rows

_Rows: TypeAlias = Sequence[tuple[Any, ...]]  # PlacedRow


@dataclasses.dataclass(frozen=True)
class ManifestSource(elements.PickledFields, table_formats.TableFile, image_source.RowSource):
    """A manifest and its columns; relative paths are resolved against its folder, or `images_below`."""

    image: str | None = "image"  # column with the path, or a template; None if another source finds the images
    fields: table_rows.RowFields = table_rows.NO_FIELDS
    has_lists: bool = False  # whether a cell of `image` is a list of paths, all of one example
    extra_images: tuple[str, ...] = ()  # columns with the paths of extra images of the row's example, or templates
    allow_outside: bool = False
    keys_below: str | None = None  # folder that keys are relative to; None for that of the paths
    is_only: bool = False  # whether there is no other table, so that it must have rows
    images_below: str | None = None  # folder that paths are relative to; None for the table's own
    split: str = ""  # split of all its rows; "" if a column or something else gives it
    exclude: str = ""  # address that is not searched for images without extension: the output folder
    first_position: int = 0  # position of its first row, if other tables come before it
    merge_rows: bool = False  # merge consecutive rows of one image
    trust: bool = False  # take the images of the rows as they are, without a look at the files
    size: str | None = None  # with `trust`: column with the size of the file in bytes
    joined: tuple[table_formats.TableFile, ...] = ()  # further CSV tables with columns of the same rows
    joined_on: str = ""  # the column that all of them share
    image_pattern: str | None = None  # regular expression for the cells of `image`; its first group is the path

    def facts(self) -> image_source.SourceFacts:
        key = () if self.fields.key is None else (self.fields.key,)
        return image_source.SourceFacts(
            columns=(features.POSITION,) if self.has_lists else (),
            own_columns=(*self._image_columns, *key),
            size_column=self.size or "",
        )

    @property
    def root(self) -> str:
        """The folder of the manifest."""
        return posixpath.dirname(self.uri) or "."

    @functools.cached_property
    def image_root(self) -> str:
        """The folder that paths are relative to."""
        return self.images_below or self.root

    @property
    def _images(self) -> tuple[str, ...]:
        """The columns and templates that name the images of a row, the first image before all others."""
        return () if self.image is None else (self.image, *self.extra_images)

    @property
    def _templates(self) -> tuple[row_steps.PathTemplate, ...]:
        return tuple(dict.fromkeys(found for each in self._images if (found := row_steps.parse(each)) is not None))

    @property
    def _image_columns(self) -> tuple[str, ...]:
        """The columns that the paths of images are made of."""
        parsed = ((each, row_steps.parse(each)) for each in self._images)
        names = ((each,) if template is None else template.columns for each, template in parsed)
        return tuple(dict.fromkeys(itertools.chain.from_iterable(names)))

    @functools.cached_property
    def _key_prefix(self) -> str:
        """The part of an address that its key leaves out."""
        return storage.join(self.keys_below or self.image_root, "")

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that must exist."""
        sizes = () if self.size is None else (self.size,)
        shared = (self.joined_on,) if self.joined else ()
        fields = itertools.chain.from_iterable(self._spans.get(name, (name,)) for name in self.fields.needed)
        return tuple(dict.fromkeys((*self._image_columns, *shared, *sizes, *fields)))

    @functools.cached_property
    def _spans(self) -> Mapping[str, Sequence[str]]:
        """The columns of the table whose values are the list of one column of the config, by its name.

        Raises:
            ConfigError: if the table cannot be read, or has no such columns in this order.
        """
        spans, names = {}, list[str]()
        for column in self.fields.columns:
            if column.first is not None and column.last is not None:
                names = names or self.column_names()
                found = [names.index(each) if each in names else -1 for each in (column.first, column.last)]
                if not 0 <= found[0] <= found[1]:
                    raise errors.ConfigError(
                        "table-no-such-span",
                        f"columns.{column.name}: manifest {self.uri!r} has no columns from {column.first!r} to "
                        f"{column.last!r}; its columns are {', '.join(map(repr, names))}",
                    )
                spans[column.name] = names[found[0] : found[1] + 1]
        return spans

    def column_names(self) -> list[str]:
        """Returns the names of its columns.

        Raises:
            ConfigError: if the manifest cannot be read.
        """
        try:
            names = super().column_names()
            for table in self.joined:
                names += [name for name in table.column_names() if name != self.joined_on]
            return names
        except (OSError, ValueError, csv.Error) as e:
            raise errors.ConfigError(
                "table-unreadable", f"manifest {self.uri!r} cannot be read as {self.format}: {e}"
            ) from e

    def check_columns(self) -> None:
        """Checks by the first row that all columns exist.

        Raises:
            ConfigError: if the manifest cannot be read, or lacks a column.
        """
        names = self.column_names()
        if not names and self.format == "csv":
            raise errors.ConfigError(
                "table-empty",
                f"manifest {self.uri!r} is empty; expected a first line with the names of its columns, such as "
                f"{','.join(self.needed)}",
            )
        required = self.needed
        if self.format in ("jsonl", "json"):  # objects may leave out keys
            required = self._image_columns
        repeated = next((name for name in required if names.count(name) > 1), None)
        if repeated is not None:
            raise errors.ConfigError(
                "table-column-twice", f"manifest {self.uri!r} has the column {repeated!r} twice; rename one of them"
            )
        missing = [name for name in required if name not in names]
        if missing and names:
            if self.format == "jsonl" and folder.is_listing(self.uri):
                raise errors.ConfigError(
                    "table-is-listing", f"{self.uri!r} is a listing that plan --save-listing wrote: {folder.REMEDY}"
                )
            raise errors.ConfigError(
                "table-unknown-column",
                f"manifest {self.uri!r} has no column {', '.join(map(repr, missing))}; its columns are "
                f"{', '.join(map(repr, names))}; {table_hints.hint_on_columns(self, names, missing, required)}",
            )

    def list_rows(self, listed: Listed | None = None) -> Iterator[image_source.RowBatch | image_source.Listing]:
        """Yields the rows in their order.

        Args:
            listed: the folders that other tables have listed for extensions; this one adds its own.
        """
        for batch in self._read_batches({} if listed is None else listed):
            if isinstance(batch, image_source.Listing):
                yield batch
            else:
                yield image_source.RowBatch(batch, first_position=self.first_position)

    def _read_batches(self, listed: Listed) -> Iterator[list[row_steps.PlacedRow] | image_source.Listing]:
        """Yields the rows in batches, and a listing with a problem if they cannot be read or there are none."""
        placed: Iterator[row_steps.PlacedRow] = self.read_rows()
        for template in self._templates:
            placed = row_steps.name_images(
                template, placed, self.image_root, self.resolve, listed, exclude=self.exclude
            )
        if self.merge_rows and self.image is not None:
            placed = row_steps.merge_rows(placed, self.image, self.fields)
        found, num_rows = image_source.ListingBuilder(), 0
        batch: list[row_steps.PlacedRow] = []
        try:
            for each in placed:
                num_rows += 1
                batch.append(each)
                if len(batch) >= image_source.MAX_REFS:
                    yield batch
                    batch = []
            if not num_rows and (self.keys_below is None or self.is_only):
                found.problems.append(f"manifest {self.uri!r} has no rows, so there are no images; fill it")
        except (OSError, ValueError) as e:
            found.problems.append(f"manifest {self.uri!r} cannot be read to its end: {e}")
        if batch:
            yield batch
        if found.problems:
            yield found.take()

    def look_up(self, batch: image_source.RowBatch) -> image_source.Listing:
        """Returns the references and rejects of rows, up to the first problem."""
        found, rows = image_source.ListingBuilder(), batch.rows
        is_near = self.trust or self._is_near(rows)
        num_ahead = 1 if is_near else find_files.REQUESTS_AT_ONCE
        try:
            known = {} if is_near else find_files.find_together(self.addresses(rows))
            for image in concurrency.map_ahead(lambda each: self._look_up(each[0], each[1], known), rows, num_ahead):
                found.add(image)
        except table_rows.MissingValueError as e:
            found.problems.append(str(e))
        except (OSError, ValueError) as e:
            found.problems.append(f"manifest {self.uri!r} cannot be read to its end: {e}")
        return found.take()

    def _is_near(self, rows: _Rows) -> bool:
        """Returns whether all files of the rows are on this machine, so that a look takes no time."""
        if not storage.storage_of(self.image_root).is_local:
            return False
        return not self.allow_outside or not any("://" in path for _, row in rows for path in self._paths_in(row))

    def addresses(self, rows: _Rows) -> Iterator[str]:
        """Yields the addresses of all images in the rows."""
        for _, row in rows:
            for path in self._paths_in(row):
                try:
                    yield self.resolve(path)
                except (table_rows.BadRowError, errors.ConfigError):  # the lookup rejects the row
                    continue

    def _paths_in(self, row: Any) -> Iterator[str]:
        """Yields the paths of all images of a row, without those of empty cells."""
        cells = _cells_of(row)
        if not self.has_lists:
            yield from (path for each in self._images if (path := table_rows.name_in(cells, each)))
            return
        with contextlib.suppress(table_rows.BadRowError):  # the lookup rejects the row
            yield from filter(None, map(table_rows.text_of, table_rows.values_of(cells.get(str(self.image)), None)))

    def read_rows(self) -> Iterator[tuple[table_formats.RowPlace, Any]]:
        """Yields the place of each row with its cells by column, or with a text that says what is wrong with it.

        Raises:
            OSError: if the table cannot be read.
            ValueError: if it is broken, or a text to be stored is not in the table's encoding.
        """
        rows = self.rows(self.needed, self.fields.texts)
        for table in self.joined:
            rows = row_steps.join_rows(rows, table, self.joined_on, self.needed, self.fields.texts)
        if self._spans or self.image_pattern:
            return ((place, self._complete(row) if isinstance(row, Mapping) else row) for place, row in rows)
        return rows

    def _complete(self, row: Mapping[str, Any]) -> table_formats.Row:
        """Returns a row with the lists of its spans, and the path in the cell of the image."""
        cells = {**row, **{name: [row.get(each) for each in span] for name, span in self._spans.items()}}
        if self.image_pattern and (cell := table_rows.name_in(row, self.image)):
            match = re.fullmatch(self.image_pattern, cell)
            if match is None or not match[1]:
                return f"column {self.image!r}: {cell!r} does not match source.manifest.image_pattern"
            cells[str(self.image)] = match[1]
        return cells

    def describe_rows(self, positions: Sequence[int]) -> list[str]:
        """Describes the places of the rows with these positions for a user, such as `line 5 of /data/a.csv`.

        Raises:
            OSError: if the table cannot be read.
            ValueError: if it is broken.
        """
        wanted = {position - self.first_position for position in positions}
        places: dict[int, table_formats.RowPlace] = {}
        for place, _ in self.rows(self.needed):
            if place.position in wanted:
                places[place.position] = place
                if len(places) == len(wanted):
                    break
        return [f"{places[position - self.first_position]} of {self.uri}" for position in positions]

    def hint(self, reason: elements.Reason) -> str:
        """Returns what to do if every image is rejected for this reason; "" if there is none."""
        if reason is not elements.Reason.NOT_FOUND or self.image is None:
            return ""
        placed = self.read_rows()
        rows = (row for _, row in itertools.islice(placed, table_hints.NUM_ROWS) if isinstance(row, Mapping))
        if (template := row_steps.parse(self.image)) is not None:
            rows = (row_steps.fill(template, row) for row in rows)
        one = dataclasses.replace(self, extra_images=())
        named = itertools.chain.from_iterable(map(one._paths_in, rows))
        paths = [path for path in named if not table_rows.is_absolute(path)]
        return table_hints.hint_on_root(self.root, self.images_below, self.image, paths)

    def _look_up(
        self, place: table_formats.RowPlace, row: Any, known: find_files.Entries
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
        path = table_rows.name_in(cells, self.image)
        if self.fields.key:
            key = table_rows.name_in(cells, self.fields.key)
        else:
            key = self._key_of_row(place) if self.has_lists else path and self._key_of(path)
        uri, key = path or self.uri, key or str(place)
        return elements.Reject(key, uri, "list", reason, f"{place} of {self.uri}: {detail}")

    def _key_of(self, path: str) -> str:
        """Returns the key that a path gives its image; the path itself if it cannot be resolved."""
        with contextlib.suppress(table_rows.BadRowError, errors.ConfigError):
            return self.resolve(path).removeprefix(self._key_prefix)
        return path

    def _key_of_row(self, place: table_formats.RowPlace) -> str:
        """Returns the key of a row of several images: the path of the table, and the number of the row."""
        name = self.uri.removeprefix(self._key_prefix) if self.uri.startswith(self._key_prefix) else ""
        return f"{name or posixpath.basename(self.uri)}/{place.position}"

    def _reference(self, place: table_formats.RowPlace, row: Any, known: find_files.Entries) -> elements.ImageRef:
        if isinstance(row, row_steps.Conflict):
            raise table_rows.BadRowError(elements.Reason.BAD_ROW, row.detail)
        if not isinstance(row, Mapping):
            raise table_rows.BadRowError(elements.Reason.BAD_ROW, str(row))
        if self.has_lists:
            return self.fields.fill(self._with_list(place, row, known), row)
        uri = self._address_in(row, str(self.image))
        key = self._key_in(row, uri.removeprefix(self._key_prefix))
        storage.storage_of(uri)  # its scheme must be known, also where nothing is looked up
        size, version = (_size_in(row, self.size), 0) if self.trust else find_files.look_at(uri, known)
        ref = elements.ImageRef(
            key, uri, size, version, position=self.first_position + place.position, split=self.split
        )
        if self.extra_images:
            ref = ref._replace(extra_images=tuple(self._extra_image_in(row, each, known) for each in self.extra_images))
        return self.fields.fill(ref, row)

    def _key_in(self, row: Mapping[str, Any], otherwise: str) -> str:
        """Returns the key of a row: that in its column, or `otherwise` if the config names none."""
        column = self.fields.key
        if not (key := table_rows.text_in(row, column) if column else otherwise):
            raise table_rows.BadRowError(elements.Reason.BAD_ROW, f"column {column!r} is empty")
        return key

    def _with_list(
        self, place: table_formats.RowPlace, row: Mapping[str, Any], known: find_files.Entries
    ) -> elements.ImageRef:
        """Returns the reference of a row with all images of its list."""
        images: list[tuple[int, elements.ExtraImage]] = []
        for position, cell in enumerate(table_rows.values_of(row.get(str(self.image)), None)):
            try:
                if path := table_rows.text_of(cell):
                    uri = self.resolve(path)
                    storage.storage_of(uri)  # its scheme must be known, also where nothing is looked up
                    size, version = (-1, 0) if self.trust else find_files.look_at(uri, known)
                    images.append((position, elements.ExtraImage(uri, size, version)))
            except table_rows.BadRowError as e:
                raise table_rows.BadRowError(e.reason, f"{self.image}[{position}]: {e.detail}") from e
        ref = table_rows.with_list(self._key_in(row, self._key_of_row(place)), str(self.image), images)
        return ref._replace(position=self.first_position + place.position, split=self.split)

    def _address_in(self, row: Mapping[str, Any], image: str) -> str:
        """Returns the address of an image that a row names.

        Args:
            row: the cells, with the paths that templates made.
            image: the column, or the template.

        Raises:
            BadRowError: if it names none, or one outside of the folder.
        """
        template = row_steps.parse(image)
        path = table_rows.text_in(row, image)
        if not path:
            empty = image if template is None else template.find_empty(row)
            raise table_rows.BadRowError(elements.Reason.BAD_ROW, f"column {empty!r} is empty")
        uri = self.resolve(path)
        if template is not None and (path.endswith(row_steps.ANY_EXTENSION) or row_steps.ANY_FOLDER in path):
            raise table_rows.BadRowError(elements.Reason.NOT_FOUND, f"there is no image {uri!r}")
        return uri

    def _extra_image_in(self, row: Mapping[str, Any], image: str, known: find_files.Entries) -> elements.ExtraImage:
        """Returns an extra image that a row names; the error of a bad one names the column."""
        try:
            uri = self._address_in(row, image)
            return elements.ExtraImage(uri, *find_files.look_at(uri, known), image)
        except table_rows.BadRowError as e:
            detail = e.detail if e.detail.startswith("column ") else f"column {image!r}: {e.detail}"
            raise table_rows.BadRowError(e.reason, detail) from e

    def resolve(self, path: str) -> str:
        """Returns the address of a path in the table.

        Raises:
            BadRowError: if it is outside of the folder that paths are relative to, and `allow_outside` is False.
            ConfigError: if no storage has its scheme.
        """
        return table_rows.resolve_path(path, self.image_root, self.allow_outside)


def _cells_of(row: Any) -> Mapping[str, Any]:
    """Returns the cells of a row, also of one that cannot be used; none if it has none."""
    return row.cells if isinstance(row, row_steps.Conflict) else row if isinstance(row, Mapping) else {}


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
