"""Tables with a row for each image, in CSV, JSON lines, JSON or Parquet."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import posixpath
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal

from imagebeam import errors, features, storage
from imagebeam.transforms import elements
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.formats.parquet import columns as parquet_columns
from imagebeam.transforms.formats.tables import (
    detect_tables,
    manifest,
    paired_files,
    row_steps,
    table_formats,
    table_heads,
    table_per_folder,
)
from imagebeam.transforms.sources import files, folder_probe, image_source, input_places, listing_rules, table_rows


@dataclasses.dataclass(frozen=True)
class Join:
    """Further tables with columns of the same images."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    key: str | None = None
    """The column with the id that the tables share."""
    tables: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """For CSV: further tables with the same delimiter, whose rows have the same ids in the same order. From
    the path of each table, relative to the folder of the first, to the names of its columns, as in `header`; [] for a
    table with a header line."""

    def __post_init__(self) -> None:
        if (self.key is None) != (not self.tables):
            raise ValueError("source.manifest.join.key and source.manifest.join.tables go together")


@dataclasses.dataclass(frozen=True)
class Tables(base_format.Format):
    """A table with one row per image."""

    ABOUT: ClassVar[str] = "a table with a row for each image"
    PRESETS: ClassVar[tuple[str, ...]] = detect_tables.PRESETS
    PLACES: ClassVar[Mapping[str, Any]] = {"path": True, "root": True, "files": True, "join": {"tables"}}

    path: str | tuple[str, ...] | None = None
    """Address of the table below `source.uri`, or a glob for several tables (`**/metadata.*`). Paths in a table are
    relative to its own folder, and keys to `source.uri`. Of a list, the first that exists is read. By default
    `source.uri` is the table itself."""
    format: Literal["csv", "jsonl", "json", "parquet"] | None = None
    """By default decided by the file's extension."""
    items: base_format.Text | None = None
    """For JSON: the list of rows in the file, as a path of names such as `annotations.items`; by default the whole file
    is the list."""
    header: tuple[str, ...] = ()
    """Column names for a CSV without a header line: then its first line is a row."""
    join: Join = Join()
    """Further tables with columns of the same images."""
    delimiter: base_format.Text | None = None
    """Separator between the cells of a CSV; by default a tab in a .tsv file, otherwise a comma. `whitespace` is any
    number of blanks and tabs, as between aligned columns; if no name is above the first column, it is `image`. With a
    blank after it, as `", "`, the blanks before a cell are no part of it: for `1.png, "cat"`."""
    quotes: bool = True
    """If false, quotes in a CSV are characters as all others. By default a cell in quotes is what is between them."""
    skip_rows: base_format.Natural = 0
    """Number of lines of a CSV before its header line; with `header` before its first row."""
    encoding: str = table_formats.UTF8
    """Encoding of a CSV or JSON file: `utf-8`, `utf-16`, `latin-1`, `cp1252` or another that Python knows."""
    root: str | None = None
    """Folder that the paths in the table are relative to: an address, or relative to the table's folder, such as
    `images` or `../images`. By default the table's folder. Keys are relative to it, too, if it is not below
    the folder `source.uri`."""
    image: str | None = "image"
    """Column with the image's path, relative to `root`; or a template with columns in braces, like `images/{id}.jpg`,
    or `{id:06}.jpg` for a number that has zeros before it there. A template that ends in `.*` finds the extension by
    one listing of the folder, and one like `**/{id}.jpg` the folder below `root`. Null if the table does not name its
    images, see `files`."""
    images: str | None = None
    """Column with a list of any number of paths, for JSON and Parquet: all images of a row are one example. Replaces
    `image`. The features of images become lists, and `image/position` has the place of each image in the list of the
    table, whose nulls and empty texts are left out. If one image is bad, the whole example is a reject; so is a row
    without an image."""
    image_pattern: str | None = None
    """Regular expression for the whole cell of the column `image`, whose first group is the path: `(.*)#\\d` for
    `1.jpg#0`, and `(?:.*[\\\\/])?([^\\\\/]+)` for the name in `C:\\photos\\1.jpg`. A row that does not match is a
    reject."""
    further: dict[str, str] = dataclasses.field(default_factory=dict)
    """Further images of each example, such as the same place at another time: from a name to the column with the path,
    or a template, as for `image`. `after: after_file` stores `image/after/encoded`, `format`, `height` and `width`. All
    are checked and changed like the first image; if one is bad, the whole example is a reject."""
    files: str | tuple[str, ...] | None = None
    """For `image: null`: glob of the images, relative to the manifest's folder; of a list, the first that matches. Row
    n belongs to file n when the paths are sorted, see `order`; there must be as many rows as files. The table may be a
    single column of numbers without a header."""
    order: Literal["text", "natural"] | None = None
    """Order of `files`: `text` sorts 10.png before 2.png, `natural` sorts numbers by their values. May be left out if
    both are the same; otherwise the run is refused, since a wrong order gives every image another row."""
    key: str | None = None
    """Column with the stable id; by default the path is the key."""
    allow_outside: bool = False
    """If true, paths may lead out of `root` (`..`, absolute, another scheme); otherwise such images are rejects."""
    merge_rows: bool = False
    """If true, consecutive rows of one image become one example, with the values of its `list` columns joined."""
    trust: bool = False
    """If true, no file is looked up before it is read. A missing file is then a reject of its shard, one that was
    replaced is not noticed unless its size differs, and images that no row names are not counted. Needs `size`, or a
    number of shards."""
    size: str | None = None
    """For `trust: true`: column with the size of each file in bytes, which decides the number of shards. A file of
    another size is a reject; an empty cell is an unknown size."""
    sha256: str | None = None
    """Column with the SHA-256 of each file in hexadecimal digits. A file with another one is a reject, `bad_checksum`;
    an empty cell is not compared."""

    def __post_init__(self) -> None:
        blank = (self.delimiter or "")[1:]
        if self.delimiter != table_formats.WHITESPACE and blank not in ("", table_formats.AND_BLANK):
            raise ValueError(f"source.manifest.delimiter {self.delimiter!r} is neither one character nor whitespace")
        if self.image_pattern is not None:
            listing_rules.check_pattern(self.image_pattern, "source.manifest.image_pattern", needs_names=False)
            if self.image is None or row_steps.parse(self.image) is not None:
                raise ValueError("source.manifest.image_pattern needs a column in source.manifest.image")
        try:
            row_steps.parse(self.image)
        except ValueError as e:
            raise ValueError(f"source.manifest.image {e}") from e
        try:
            for name, image in self.further.items():
                features.check_extra_image_name(name)
                row_steps.parse(image)
        except ValueError as e:
            raise ValueError(f"source.manifest.further {e}") from e
        try:
            "".encode(self.encoding)  # a codec of bytes, such as base64, refuses
        except LookupError as e:
            raise ValueError(
                f"source.manifest.encoding {self.encoding!r} is not known; write for example latin-1"
            ) from e
        object.__setattr__(self, "encoding", codecs.lookup(self.encoding).name)
        with_files = (
            (self.root, "is relative to the table's folder; source.manifest.root needs names in a column"),
            (self.merge_rows, "pairs each row with a file; source.manifest.merge_rows needs names"),
            (self.trust, "lists the files; source.manifest.trust needs their names in a column"),
        )
        if (self.image is None) != (self.files is not None):
            raise ValueError(
                "source.manifest.files goes with source.manifest.image: null; a column names the images, or a glob "
                "gives them in the order of the rows"
            )
        if self.files is not None and (why := next((text for other, text in with_files if other), "")):
            raise ValueError(f"source.manifest.files {why}")
        of_one = (
            *(("further", self.further), ("image_pattern", self.image_pattern), ("sha256", self.sha256)),
            *(("files", self.files), ("merge_rows", self.merge_rows), ("size", self.size)),
        )
        if self.images is not None and (name := next((name for name, used in of_one if used), "")):
            raise ValueError(
                f"source.manifest.images puts several images into one example, and source.manifest.{name} is for one "
                "image a row: leave one of the two out"
            )
        for name, used in (("files", self.image is None), ("merge_rows", self.merge_rows), ("trust", self.trust)):
            if self.further and used:
                raise ValueError(
                    f"source.manifest.further needs a row for each example, whose files are looked up: leave "
                    f"source.manifest.{name} out"
                )
        if self.size is not None and not self.trust:
            raise ValueError(
                "source.manifest.size is for source.manifest.trust: true; without it each file's size is looked up"
            )

    def reads(self, probe: folder_probe.FolderProbe, at: str) -> base_format.Reads | None:
        paths = (self.path,) if isinstance(self.path, str) else self.path or ()
        if len(paths) != 1 or self.image is None:
            return base_format.Reads(files=paths)
        holder, _, name = paths[0].rpartition("/")
        holders = probe.look(at).folders if holder == "*" else (holder,)  # */labels.csv is of the folders of splits
        tables = [table_heads.read_table(probe, posixpath.join(at, each, name)) for each in holders]
        known = [_images_of(probe, at, table) for table in tables if table is not None]
        if not known or None in known:
            return base_format.Reads(files=paths)
        return base_format.Reads(lambda path: any(each is not None and each(path) for each in known), files=paths)

    def gives(self) -> base_format.Gives:
        refuses: tuple[tuple[str, str], ...] = ()
        if self.further:
            refuses = base_format.no_pixels_or_frames("source.manifest.further")
        elif self.images is not None:
            refuses = base_format.of_lists("source.manifest.images")
        unsized = (
            "source.manifest.trust leaves the sizes of the images unknown: name a column in source.manifest.size, or "
            "set output.examples_per_shard or output.num_shards"
        )
        unlisted = "source.manifest.merge_rows puts lists together: give columns.NAME.list: true, or label.separator"
        return base_format.Gives(
            columns=True,
            tables=True,
            extra_images=tuple(sorted(self.further)),
            list_column=self.images or "",
            refuses=refuses,
            needs_shards=unsized if self.trust and self.size is None else "",
            needs_lists=unlisted if self.merge_rows else "",
        )

    def open(self, request: base_format.Request) -> image_source.ImageSource:
        found = _open_table(self, request)
        found.check_columns()
        if isinstance(found, table_per_folder.TablePerFolderSource) or found.image is not None:
            return found
        return _open_pairs(self, found, request.output)

    @classmethod
    def detect(cls, probe: folder_probe.FolderProbe, at: str) -> Iterator[folder_probe.Finding]:
        return detect_tables.find_tables(probe, at)


def _images_of(probe: folder_probe.FolderProbe, at: str, table: table_heads.Table) -> Callable[[str], bool] | None:
    """Returns whether an image may be in a table, by its path below the input; None if its images are not found."""
    place = table_heads.find_place(probe, at, table)
    if place is None:
        return None
    folder, above = place.folder, posixpath.join(place.folder, "")
    names = [name.zfill(place.width) for name in table.names_in(place.column)]
    has_paths = bool(place.inside) or any("/" in name for name in names)
    named = {form for name in map(posixpath.basename, names) for form in (name, posixpath.splitext(name)[0])}
    is_whole = table_heads.is_whole(probe, table)

    def is_named(path: str) -> bool:
        path = posixpath.join(at, path)
        stem = posixpath.splitext(posixpath.basename(path))[0]
        if stem not in named and (is_whole or not named.isdisjoint(folder_probe.beginnings(stem))):
            return False  # 1_mask.png is another image than the 1 of the table
        return posixpath.dirname(path) == folder or (has_paths and path.startswith(above))

    return is_named


def _open_table(
    wanted: Tables, request: base_format.Request
) -> manifest.ManifestSource | table_per_folder.TablePerFolderSource:
    """Returns the table that the config names, or several.

    Raises:
        ConfigError: if the files are not as the config says.
    """
    uri, output = request.uri, request.output
    if wanted.path is None:
        if input_places.is_folder(uri):
            raise errors.ConfigError(
                "table-not-named",
                f"--input {uri!r} is a folder: give the table itself, or its name in the folder as "
                "source.manifest.path; for images without a table set source.by: files",
            )
        table = _table(wanted, request, uri, output)
        if table.image is None or wanted.root is None:
            return _name_only_column(table)
        return table_per_folder.TablePerFolderSource((table,), table.image_root, output)
    given = _first_that_exists(wanted.path, uri)
    absolute = input_places.is_absolute(given)
    path = storage.normalize(given if absolute else storage.join(uri, given))
    if not table_per_folder.is_glob(given) or storage.storage_of(path).exists(path):
        below = path.startswith(storage.join(uri, ""))
        table = _table(wanted, request, path, output)
        if table.image is None or not (below or wanted.root):
            return _name_only_column(table)
        table = dataclasses.replace(table, is_only=True)
        return _below(uri if below else table.image_root, (table,), output)
    if absolute:
        raise errors.ConfigError(
            "table-absolute-glob",
            f"source.manifest.path {given!r} is an absolute glob; give the folder as --input, and the glob below it",
        )
    if wanted.image is None:
        raise errors.ConfigError(
            "table-glob-with-files",
            f"source.manifest.path {given!r} is a glob, and source.manifest.files goes with the rows of one "
            "table; name that table, or the images in source.manifest.image",
        )
    left_out = input_places.leave_out(output, uri)
    found = table_per_folder.find_tables(uri, given, exclude=left_out, format=wanted.format)
    tables = tuple(_table(wanted, request, each, left_out) for each in found)
    return _below(uri, tables, left_out)


def _open_pairs(wanted: Tables, table: manifest.ManifestSource, output: str) -> paired_files.PairedFilesSource:
    """Returns a table with the files that its rows go with: those of the first glob that matches some.

    Raises:
        ConfigError: if the files are not as the config says.
    """
    globs = wanted.files or ()
    several = (globs,) if isinstance(globs, str) else globs
    for each in several if len(several) > 1 else ():
        with contextlib.suppress(errors.ConfigError):
            found = _paired_with(each, table, output, wanted.order)
            if any(part.num_refs or part.rejects for part in found.files.list_all()):
                return found
    return _paired_with(several[0], table, output, wanted.order)


def _below(uri: str, tables: tuple[manifest.ManifestSource, ...], output: str) -> table_per_folder.TablePerFolderSource:
    """Returns tables whose keys are relative to `uri`; to the root of each table if one is elsewhere."""
    roots = {table.image_root for table in tables}
    if all(storage.join(root, "").startswith(storage.join(uri, "")) for root in roots):
        tables = tuple(dataclasses.replace(table, keys_below=uri) for table in tables)
        return table_per_folder.TablePerFolderSource(tables, uri, output)
    return table_per_folder.TablePerFolderSource(tables, roots.pop() if len(roots) == 1 else None, output)


def _first_that_exists(path: str | tuple[str, ...], uri: str) -> str:
    """Returns the first of several addresses of a table that exists; the first of all if none does."""
    if isinstance(path, str):
        return path
    places = ((each, input_places.resolve(each, uri)) for each in path)
    return next((each for each, place in places if storage.storage_of(place).exists(place)), path[0])


def _name_only_column(table: manifest.ManifestSource) -> manifest.ManifestSource:
    """Returns a table without paths with the name of its column, if it is a column of numbers without a header."""
    if table.image is not None or table.format != "csv" or table.header or len(table.needed) != 1:
        return table
    names = table.column_names()
    is_row = len(names) == 1 and table_rows.is_number(names[0])
    return dataclasses.replace(table, header=table.needed) if is_row else table


def _table(wanted: Tables, request: base_format.Request, uri: str, output: str) -> manifest.ManifestSource:
    format = wanted.format or table_formats.format_of(uri)
    read_as = f"and {uri!r} is read as {format}"
    if (wanted.header or wanted.delimiter or wanted.skip_rows or not wanted.quotes) and format != "csv":
        raise errors.ConfigError(
            "table-option-of-csv", f"source.manifest.header, delimiter, quotes and skip_rows are for CSV, {read_as}"
        )
    if wanted.items is not None and format != "json":
        raise errors.ConfigError("table-option-of-json", f"source.manifest.items is for JSON, {read_as}")
    if wanted.encoding != table_formats.UTF8 and format == "parquet":
        raise errors.ConfigError("table-option-of-text", f"source.manifest.encoding is for CSV and JSON, {read_as}")
    column = wanted.images or wanted.image
    if format == "parquet" and column is not None and parquet_columns.holds_bytes(uri, column):
        raise errors.ConfigError(
            "table-holds-images",
            f"manifest {uri!r}: column {column!r} holds the bytes of images, not their paths: set source.by: parquet",
        )
    if wanted.images is not None and format == "csv":
        raise errors.ConfigError(
            "table-option-of-json", f"source.manifest.images is for lists in JSON and Parquet, {read_as}"
        )
    table = manifest.ManifestSource(
        uri=uri,
        format=format,
        image=wanted.images or wanted.image,
        has_lists=wanted.images is not None,
        fields=dataclasses.replace(request.fields, key=wanted.key, sha256=wanted.sha256),
        extra_images=tuple(column for _, column in sorted(wanted.further.items())),
        allow_outside=wanted.allow_outside,
        images_below=None if wanted.root is None else input_places.resolve(wanted.root, posixpath.dirname(uri) or "."),
        exclude=output,
        joined=_joined_tables(wanted, uri, format),
        joined_on=wanted.join.key or "",
        split=posixpath.splitext(posixpath.basename(uri))[0] if request.split_by == "table" else "",
        items=wanted.items or "",
        merge_rows=wanted.merge_rows,
        header=wanted.header,
        delimiter=wanted.delimiter,
        encoding=wanted.encoding,
        skip_rows=wanted.skip_rows,
        quotes=wanted.quotes,
        image_pattern=wanted.image_pattern,
        trust=wanted.trust,
        size=wanted.size,
    )
    if wanted.root is not None and not input_places.is_folder(table.image_root):
        raise _explain_root(wanted.root, table)
    return table


def _joined_tables(wanted: Tables, table: str, format: str) -> tuple[table_formats.TableFile, ...]:
    if wanted.join.tables and format != "csv":
        raise errors.ConfigError(
            "table-option-of-csv", f"source.manifest.join is for CSV, and {table!r} is read as {format}; join it before"
        )
    folder = posixpath.dirname(table) or "."
    return tuple(
        table_formats.TableFile(
            input_places.resolve(path, folder), format, header, wanted.delimiter, wanted.encoding, quotes=wanted.quotes
        )
        for path, header in wanted.join.tables.items()
    )


def _explain_root(root: str, table: manifest.ManifestSource) -> errors.ImagebeamError:
    """Returns the error for a root that is not a folder, with the folder that has the table's images if one has."""
    if not storage.storage_of(table.uri).exists(table.uri):  # the first thing to correct
        return errors.ConfigError(
            "table-missing",
            f"there is no table {table.uri!r}: check --input and source.manifest.path, which names the table below it",
        )
    error = errors.ConfigError(
        "table-root-not-folder",
        f"source.manifest.root {root!r}: {table.image_root!r} is not a folder; give it relative to the folder of "
        f"{table.uri!r}, or as an address",
    )
    try:
        table.check_columns()
        hint = table.hint(elements.Reason.NOT_FOUND)
    except (OSError, errors.ConfigError):  # an error of the table, which a root that exists brings up
        return error
    return error.extended(f"; {hint}") if hint else error


def _paired_with(
    glob: str, table: manifest.ManifestSource, output: str, order: Literal["text", "natural"] | None
) -> paired_files.PairedFilesSource:
    """Returns a table with the files that `glob` matches.

    Raises:
        ConfigError: if it is not a glob below a folder.
    """
    uri = storage.normalize(glob if input_places.is_absolute(glob) else storage.join(table.root, glob))
    root, include = files.split_glob(uri)
    if include == files.EVERYTHING:  # a folder, or a name without wildcards
        raise errors.ConfigError(
            "table-files-no-glob", f"source.manifest.files {glob!r} is not a glob; write for example 'faces/*.png'"
        )
    if input_places.kind_of(root) != storage.DIRECTORY:
        raise errors.ConfigError(
            "table-files-not-folder",
            f"source.manifest.files {glob!r}: {root!r} is not a folder; give it relative to the table's folder",
        )
    return paired_files.PairedFilesSource(
        table, files.FilesSource(root, include, exclude=input_places.leave_out(output, root)), order
    )
