"""Which source a config names. No Beam here: the source is listed while Beam is imported."""

from __future__ import annotations

import glob
import posixpath

from imagebeam import errors, features, remote_storage, storage
from pipelines import config as config_lib
from transforms import kept_features
from transforms.sources import (
    coco,
    coco_json,
    containers,
    files,
    idx,
    listing,
    manifest,
    paired,
    rows,
    saved,
    table_formats,
    tables,
    tar,
    tfrecord,
)


def make_source(config: config_lib.Config) -> listing.Source:
    """The source of `config`, looked at so far that what is plainly wrong is told at once.

    Raises:
        ConfigError: if an address, the manifest's columns or the IDX files are not as the config says.
    """
    for option, address in (("--input", config.source.uri), ("--output", config.output.uri)):
        if not address:
            raise errors.ConfigError(f"{option} is missing: give an address")
        _check_address(option, storage.normalize(address))
    uri, output = storage.normalize(str(config.source.uri)), storage.normalize(str(config.output.uri))
    if config.source.by == "listing":
        listed = saved.SavedSource(uri, config.source.masks.rule)
        listed.check()
        return listed
    if config.source.by == "manifest":
        found = _manifest_source(config, uri, output)
        found.check_columns()
        if isinstance(found, tables.TablesSource) or found.image is not None:
            return found
        return _paired_source(config, found, output)
    if config.source.by == "idx":
        return _idx_source(config, uri)
    if config.source.by == "coco":
        with remote_storage.budget(remote_storage.CHECK_BUDGET_SEC):
            return _coco_source(config, uri)
    with remote_storage.budget(remote_storage.CHECK_BUDGET_SEC):
        if config.source.by in ("tar", "tfrecord"):
            return _container_source(config, uri, output)
        return _files_source(config, uri, output)


def _check_address(option: str, uri: str) -> None:
    """Looks whether what is reached over a network is there and answers, before anything is done.

    Raises:
        ConfigError: if not, or if there is no such scheme.
    """
    store = storage.storage_of(uri)
    if store.is_local:
        return
    with remote_storage.budget(remote_storage.CHECK_BUDGET_SEC):
        root = storage.root_of(uri)
        try:
            store.stat(root)
        except FileNotFoundError as e:
            raise errors.ConfigError(f"{option} {uri!r}: {e.strerror}; check the address, or create it") from e
        except OSError as e:
            raise errors.ConfigError(f"{option} {uri!r} cannot be reached: {e.strerror or e}") from e


def _files_source(config: config_lib.Config, uri: str, output: str) -> files.FilesSource:
    root, include, kind = _folder_of(config, uri, output)
    if kind != storage.DIRECTORY:
        raise errors.ConfigError(f"--input {uri!r} is no folder; for a table of images set source.by=manifest")
    return files.FilesSource(root, include, exclude=output, masks=config.source.masks.rule)


def _container_source(config: config_lib.Config, uri: str, output: str) -> tar.TarSource | tfrecord.TfrecordSource:
    root, include, kind = _folder_of(config, uri, output)
    if kind != storage.DIRECTORY:
        name = posixpath.basename(root)
        expected: type[containers.ContainerSource]
        expected = tar.TarSource if config.source.by == "tar" else tfrecord.TfrecordSource
        if not expected.FILE_NAME.fullmatch(name):
            raise errors.ConfigError(f"--input {uri!r} is neither a folder nor {expected.EXPECTED}")
        root, include = posixpath.dirname(root), (glob.escape(name),)
    if config.source.by == "tar":
        return tar.TarSource(root, include, output, row_fields(config))
    wanted = config.source.tfrecord
    fields, keeps_features = row_fields(config, wanted.key), config.kept_in_records != ()
    return tfrecord.TfrecordSource(root, include, output, fields, wanted.image, keeps_features)


def _folder_of(config: config_lib.Config, uri: str, output: str) -> tuple[str, tuple[str, ...], str]:
    """What is to be listed: its address, the globs that count below it, and which kind of entry it is."""
    root, include = files.split_glob(uri)
    if include != files.EVERYTHING and config.source.include != files.EVERYTHING:
        raise errors.ConfigError(f"--input {uri!r} is a glob and source.include is set; give one of the two")
    try:
        kind = storage.storage_of(root).stat(root).kind
    except OSError as e:
        raise errors.ConfigError(f"--input {uri!r} cannot be read ({e.strerror or e}); check the address") from e
    if root == output:
        raise errors.ConfigError(f"--output {output!r} is the input itself; choose a folder of its own")
    return root, config.source.include if include == files.EVERYTHING else include, kind


def _manifest_source(config: config_lib.Config, uri: str, output: str) -> manifest.ManifestSource | tables.TablesSource:
    wanted = config.source.manifest
    if wanted.path is None:
        return _table(config, uri)
    absolute = wanted.path.startswith(("/", "~", "file://")) or storage.scheme_of(wanted.path) != "file"
    path = storage.normalize(wanted.path if absolute else storage.join(uri, wanted.path))
    if not tables.is_glob(wanted.path) or storage.storage_of(path).exists(path):
        return _table(config, path)
    if absolute:
        raise errors.ConfigError(
            f"source.manifest.path {wanted.path!r} is a glob and not relative; give the folder as --input, and the "
            "glob below it"
        )
    if wanted.image is None:
        raise errors.ConfigError(
            f"source.manifest.path {wanted.path!r} is a glob, and source.manifest.files goes with the rows of one "
            "table; name that table, or the images in source.manifest.image"
        )
    found = tables.find_tables(uri, wanted.path, exclude=output, format=wanted.format)
    return tables.TablesSource(tuple(_table(config, each, keys_below=uri) for each in found))


def _table(config: config_lib.Config, uri: str, keys_below: str | None = None) -> manifest.ManifestSource:
    wanted = config.source.manifest
    format = wanted.format or table_formats.format_of(uri)
    if (wanted.header or wanted.delimiter) and format != "csv":
        raise errors.ConfigError(f"source.manifest.header and delimiter are for CSV, and {uri!r} is read as {format}")
    return manifest.ManifestSource(
        uri=uri,
        format=format,
        image=wanted.image,
        fields=row_fields(config, wanted.key),
        allow_outside=wanted.allow_outside,
        keys_below=keys_below,
        merge_rows=wanted.merge_rows,
        header=wanted.header,
        delimiter=wanted.delimiter,
    )


def _idx_source(config: config_lib.Config, uri: str) -> idx.IdxSource:
    if config.label.by not in ("column", "columns", "none"):
        raise errors.ConfigError(
            f"label.by is {config.label.by!r}, and source.by: idx has its labels in files: set label.by: column, "
            f"label.column: {idx.LABEL} and label.type: int, or label.by: none"
        )
    return idx.open_source(uri, config.source.idx.images, config.source.idx.labels, row_fields(config))


def _paired_source(config: config_lib.Config, table: manifest.ManifestSource, output: str) -> paired.PairedSource:
    glob = str(config.source.manifest.files)
    absolute = glob.startswith(("/", "~", "file://")) or storage.scheme_of(glob) != "file"
    uri = storage.normalize(glob if absolute else storage.join(table.root, glob))
    root, include = files.split_glob(uri)
    if include == files.EVERYTHING:  # a folder, or a name that is no glob
        raise errors.ConfigError(f"source.manifest.files {glob!r} is no glob; write for example 'faces/*.png'")
    try:
        kind = storage.storage_of(root).stat(root).kind
    except OSError as e:
        raise errors.ConfigError(
            f"source.manifest.files {glob!r}: {root!r} cannot be read ({e.strerror or e}); "
            "give it relative to the table's folder"
        ) from e
    if kind != storage.DIRECTORY:
        raise errors.ConfigError(f"source.manifest.files {glob!r}: {root!r} is no folder")
    return paired.PairedSource(table, files.FilesSource(root, include, exclude=output))


def _coco_source(config: config_lib.Config, uri: str) -> coco.CocoSource:
    wanted = config.source.coco
    parts = (
        coco.Part(split, storage.join(uri, path), _path_below(wanted.images[split]))
        for split, path in wanted.annotations.items()
    )
    source = coco.CocoSource(
        root=uri,
        parts=tuple(parts),
        objects=coco_json.ObjectRule(wanted.masks, wanted.outside == "reject", wanted.crowd),
        without_objects=wanted.without_objects,
        fields=row_fields(config),
    )
    source.check()
    return source


def _path_below(path: str) -> str:
    """A folder below the source's address, without a slash around it; "" is that address."""
    folder = posixpath.normpath(path.strip("/"))
    return "" if folder == "." else folder


def given_columns(config: config_lib.Config) -> tuple[str, ...]:
    """The sources of what `config.source` gives of each image beside `config.columns`, in their order."""
    if config.source.by != "coco":
        return ()
    return coco.COLUMNS + ((coco.MASKS,) if config.source.coco.masks else ())


def keep_rule(config: config_lib.Config) -> kept_features.KeepRule | None:
    """Which features of records that are written anew are kept; None where the source is no such records."""
    wanted = config.source.tfrecord
    if config.source.by != "tfrecord":
        return None
    elsewhere = {wanted.image, *config.columns}
    if config.label.column is not None:
        elsewhere.add(config.label.column)
    if wanted.key is not None and wanted.key == config.features.get("image/key", "image/key"):
        elsewhere.add(wanted.key)
    return kept_features.KeepRule(
        names=config.kept_in_records,
        elsewhere=frozenset(elsewhere),
        renamed=tuple((name.removeprefix("columns/"), key) for name, key in config.renamed_in_records.items()),
    )


def row_fields(config: config_lib.Config, key: str | None = None) -> rows.RowFields:
    """What a row says of its image, where the source is a table."""
    kinds = {"string": features.BYTES, "int": features.INT64, "float": features.FLOAT}
    columns = [
        rows.Column(
            name,
            kinds[column.type],
            column.list,
            column.separator,
            column.missing,
            column.default,
            column.transform == "log",
        )
        for name, column in config.columns.items()
    ]
    return rows.RowFields(
        key=key,
        label=config.label.column,
        label_separator=config.label.separator,
        label_flags=config.label.columns,
        split=config.split.column,
        group=config.split.group,
        columns=tuple(columns),
    )
