"""Opens tables: those that name their images, and those whose rows go with files in order."""

from __future__ import annotations

import contextlib
import dataclasses
import posixpath

from imagebeam import errors, features, storage
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.config import source_section
from imagebeam.pipelines.inputs import source_places
from imagebeam.transforms import elements, parse_numbers
from imagebeam.transforms.sources import (
    files,
    joined_rows,
    manifest,
    paired_files,
    parquet_columns,
    table_formats,
    table_per_folder,
    table_rows,
)


def open_table(
    config: config_lib.Config, uri: str, output: str
) -> manifest.ManifestSource | table_per_folder.TablePerFolderSource:
    """Returns the table that the config names, or several.

    Raises:
        ConfigError: if the files are not as the config says.
    """
    wanted = config.source.manifest
    if wanted.path is None:
        if source_places.is_folder(uri):
            raise errors.ConfigError(
                f"--input {uri!r} is a folder: give the table itself, or its name in the folder as "
                "source.manifest.path; for images without a table set source.by: files"
            )
        table = _table(config, uri, output=output)
        if table.image is None or wanted.root is None:
            return _name_only_column(table)
        return table_per_folder.TablePerFolderSource((table,), table.image_root, output)
    given = _first_that_exists(wanted.path, uri)
    absolute = source_places.is_absolute(given)
    path = storage.normalize(given if absolute else storage.join(uri, given))
    if not table_per_folder.is_glob(given) or storage.storage_of(path).exists(path):
        below = path.startswith(storage.join(uri, ""))
        table = _table(config, path, output=output)
        if table.image is None or not (below or wanted.root):
            return _name_only_column(table)
        table = dataclasses.replace(table, is_only=True)
        return _below(uri if below else table.image_root, (table,), output)
    if absolute:
        raise errors.ConfigError(
            f"source.manifest.path {given!r} is an absolute glob; give the folder as --input, and the glob below it"
        )
    if wanted.image is None:
        raise errors.ConfigError(
            f"source.manifest.path {given!r} is a glob, and source.manifest.files goes with the rows of one "
            "table; name that table, or the images in source.manifest.image"
        )
    left_out = source_places.leave_out(output, uri)
    found = table_per_folder.find_tables(uri, given, exclude=left_out, format=wanted.format)
    tables = tuple(_table(config, each, left_out) for each in found)
    return _below(uri, tables, left_out)


def open_pairs(
    config: config_lib.Config, table: manifest.ManifestSource, output: str
) -> paired_files.PairedFilesSource:
    """Returns a table with the files that its rows go with: those of the first glob that matches some.

    Raises:
        ConfigError: if the files are not as the config says.
    """
    globs = config.source.manifest.files or ()
    several = (globs,) if isinstance(globs, str) else globs
    for each in several if len(several) > 1 else ():
        with contextlib.suppress(errors.ConfigError):
            found = _paired_with(each, table, output)
            if any(part.num_refs or part.rejects for part in found.files.list_all()):
                return found
    return _paired_with(several[0], table, output)


def row_fields(config: config_lib.Config, key: str | None = None) -> table_rows.RowFields:
    """Returns which fields of a row describe its image, if the source is a table."""
    columns = [
        table_rows.Column(
            name,
            column.kind,
            column.list,
            column.separator,
            column.missing,
            column.default,
            column.transform == "log",
        )
        for name, column in config.columns.items()
    ]
    return table_rows.RowFields(
        key=key,
        label=config.label.column,
        label_separator=config.label.separator,
        label_flags=config.label.columns,
        split=config.split.column,
        group=config.split.group,
        columns=tuple(columns),
    )


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
    places = ((each, source_places.resolve(each, uri)) for each in path)
    return next((each for each, place in places if storage.storage_of(place).exists(place)), path[0])


def _name_only_column(table: manifest.ManifestSource) -> manifest.ManifestSource:
    """Returns a table without paths with the name of its column, if it is a column of numbers without a header."""
    if table.image is not None or table.format != "csv" or table.header or len(table.needed) != 1:
        return table
    names = table.column_names()
    return dataclasses.replace(table, header=table.needed) if len(names) == 1 and _is_number(names[0]) else table


def _is_number(text: str) -> bool:
    try:
        parse_numbers.parse_number(features.FLOAT, text)
    except ValueError:
        return False
    return True


def _table(config: config_lib.Config, uri: str, output: str) -> manifest.ManifestSource:
    wanted = config.source.manifest
    format = wanted.format or table_formats.format_of(uri)
    if (wanted.header or wanted.delimiter) and format != "csv":
        raise errors.ConfigError(f"source.manifest.header and delimiter are for CSV, and {uri!r} is read as {format}")
    if wanted.items is not None and format != "json":
        raise errors.ConfigError(f"source.manifest.items is for JSON, and {uri!r} is read as {format}")
    if wanted.encoding != table_formats.UTF8 and format == "parquet":
        raise errors.ConfigError(f"source.manifest.encoding is for CSV and JSON lines, and {uri!r} is read as parquet")
    if format == "parquet" and wanted.image is not None and parquet_columns.holds_bytes(uri, wanted.image):
        raise errors.ConfigError(
            f"manifest {uri!r}: column {wanted.image!r} holds the bytes of images, not their paths: set "
            "source.by: parquet"
        )
    table = manifest.ManifestSource(
        uri=uri,
        format=format,
        image=wanted.image,
        fields=row_fields(config, wanted.key),
        further=tuple(column for _, column in sorted(wanted.further.items())),
        allow_outside=wanted.allow_outside,
        images_below=_root_of(wanted.root, uri),
        exclude=output,
        joined=_joined_tables(wanted.join, uri, format),
        joined_on=wanted.join.key or "",
        split=posixpath.splitext(posixpath.basename(uri))[0] if config.split.by == "table" else "",
        items=wanted.items or "",
        merge_rows=wanted.merge_rows,
        header=wanted.header,
        delimiter=wanted.delimiter,
        encoding=wanted.encoding,
        trust=manifest.Trust(wanted.size) if wanted.trust else None,
    )
    if wanted.root is not None and not source_places.is_folder(table.image_root):
        raise errors.ConfigError(_explain_root(wanted.root, table))
    return table


def _joined_tables(join: source_section.JoinConfig, table: str, format: str) -> tuple[joined_rows.JoinedTable, ...]:
    if not join.tables:
        return ()
    if format != "csv":
        raise errors.ConfigError(f"source.manifest.join is for CSV, and {table!r} is read as {format}; join it before")
    folder = posixpath.dirname(table) or "."
    return tuple(
        joined_rows.JoinedTable(source_places.resolve(path, folder), header) for path, header in join.tables.items()
    )


def _root_of(root: str | None, table: str) -> str | None:
    """Returns the address of the folder that the paths of a table are relative to; None for the table's own."""
    return None if root is None else source_places.resolve(root, posixpath.dirname(table) or ".")


def _explain_root(root: str, table: manifest.ManifestSource) -> str:
    """Returns the error for a root that is not a folder, with the folder that has the table's images if one has."""
    if not storage.storage_of(table.uri).exists(table.uri):  # the first thing to correct
        return (
            f"there is no table {table.uri!r}: check --input and source.manifest.path, which names the table below it"
        )
    error = (
        f"source.manifest.root {root!r}: {table.image_root!r} is not a folder; give it relative to the folder of "
        f"{table.uri!r}, or as an address"
    )
    try:
        table.check_columns()
        advice = table.advise(elements.Reason.NOT_FOUND)
    except (OSError, errors.ConfigError):  # an error of the table, which a root that exists brings up
        return error
    return f"{error}; {advice}" if advice else error


def _paired_with(glob: str, table: manifest.ManifestSource, output: str) -> paired_files.PairedFilesSource:
    """Returns a table with the files that `glob` matches.

    Raises:
        ConfigError: if it is not a glob below a folder.
    """
    uri = storage.normalize(glob if source_places.is_absolute(glob) else storage.join(table.root, glob))
    root, include = files.split_glob(uri)
    if include == files.EVERYTHING:  # a folder, or a name without wildcards
        raise errors.ConfigError(f"source.manifest.files {glob!r} is not a glob; write for example 'faces/*.png'")
    try:
        kind = storage.storage_of(root).stat(root).kind
    except OSError as e:
        raise errors.ConfigError(
            f"source.manifest.files {glob!r}: {root!r} cannot be read ({e.strerror or e}); "
            "give it relative to the table's folder"
        ) from e
    if kind != storage.DIRECTORY:
        raise errors.ConfigError(f"source.manifest.files {glob!r}: {root!r} is not a folder")
    return paired_files.PairedFilesSource(
        table, files.FilesSource(root, include, exclude=source_places.leave_out(output, root))
    )
