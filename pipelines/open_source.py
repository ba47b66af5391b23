"""Opens the source that a config names. Imports no Beam: the source is listed while Beam is imported."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import posixpath
from typing import TypeAlias, cast

from imagebeam import errors, features, storage
from imagebeam.pipelines import class_files, config_source, find_box_csv, find_voc, find_yolo, recognize_boxes
from imagebeam.pipelines import config as config_lib
from imagebeam.storage import remote
from imagebeam.transforms import kept_features, output_folder
from imagebeam.transforms.objects import image_objects, voc_xml, yolo_text
from imagebeam.transforms.sources import (
    annotated_files,
    box_csv,
    coco,
    coco_json,
    containers,
    files,
    idx,
    image_source,
    joined_rows,
    listing_rules,
    manifest,
    paired_files,
    path_pattern,
    path_template,
    saved_listing,
    split_lists,
    table_formats,
    table_per_folder,
    table_rows,
    tar,
    tfrecord,
)


def make_source(config: config_lib.Config) -> image_source.ImageSource:
    """Returns the source of `config`, after checks that find obvious mistakes at once.

    Raises:
        ConfigError: if an address, the manifest's columns or the IDX files are not as the config says.
    """
    for option, key, address in (
        ("--input", "source.uri", config.source.uri),
        ("--output", "output.uri", config.output.uri),
    ):
        if not address:
            raise errors.ConfigError(f"{option} ({key}) is missing: give an address")
        _check_address(option, storage.normalize(address))
    uri, output = storage.normalize(str(config.source.uri)), storage.normalize(str(config.output.uri))
    if config.source.by == "listing":
        listed = saved_listing.SavedListingSource(uri, config.source.masks.rule)
        listed.check()
        return listed
    if config.source.by == "manifest":
        found = _manifest_source(config, uri, output)
        found.check_columns()
        if isinstance(found, table_per_folder.TablePerFolderSource) or found.image is not None:
            return found
        return _paired_source(config, found, output)
    if config.source.by == "idx":
        return _idx_source(config, uri)
    if config.source.by == "coco":
        with remote.budget(remote.CHECK_BUDGET_SEC):
            return _coco_source(config, uri)
    if config.source.by == "yolo":
        with remote.budget(remote.CHECK_BUDGET_SEC):
            return _yolo_source(config, uri, output)
    if config.source.by == "box_csv":
        with remote.budget(remote.CHECK_BUDGET_SEC):
            return _box_csv_source(config, uri)
    if config.source.by == "voc":
        return _voc_source(config, uri, output)
    with remote.budget(remote.CHECK_BUDGET_SEC):
        if config.source.by in ("tar", "tfrecord"):
            return _container_source(config, uri, output)
        return _files_source(config, uri, output)


def listing_rules_of(config: config_lib.Config) -> listing_rules.ListingRules:
    """Returns the rules for every image that the source of `config` lists.

    Raises:
        ConfigError: if a list of `split.lists` cannot be read, or is empty.
    """
    pattern = lists = None
    if config.source.pattern is not None:
        pattern = path_pattern.PathPattern(config.source.pattern, row_fields(config))
    if config.split.lists:
        uri = storage.normalize(str(config.source.uri))
        if config.source.by == "listing":
            root = saved_listing.SavedListingSource(uri, config.source.masks.rule).root()
        else:
            root = files.split_glob(uri)[0]
            root = root if _is_folder(root) else posixpath.dirname(root)
        given = ((split, (one,) if isinstance(one, str) else one) for split, one in config.split.lists.items())
        places = tuple((split, _resolve(each, root)) for split, several in given for each in several)
        lists = split_lists.SplitLists(places, root, config.split.unlisted)
        lists.check()
    return listing_rules.ListingRules(pattern, lists)


def _check_address(option: str, uri: str) -> None:
    """Checks that an address on a network exists and answers, before any work.

    Raises:
        ConfigError: if not, or if the scheme is not known.
    """
    store = storage.storage_of(uri)
    if store.is_local:
        return
    with remote.budget(remote.CHECK_BUDGET_SEC):
        root = storage.root_of(uri)
        try:
            store.stat(root)
        except FileNotFoundError as e:
            remedy = "check the address, or create it" if option == "--output" else "check the address"
            raise errors.ConfigError(f"{option} {uri!r}: {e.strerror}; {remedy}") from e
        except OSError as e:
            raise errors.ConfigError(f"{option} {uri!r} cannot be reached: {e.strerror or e}") from e


def _files_source(config: config_lib.Config, uri: str, output: str) -> files.FilesSource:
    root, include, kind = _folder_of(config, uri, output)
    if kind != storage.DIRECTORY:
        raise errors.ConfigError(f"--input {uri!r} is not a folder; {_advise_on_file(root)}")
    if config.label.by == "directory" and include == files.EVERYTHING:
        recognize_boxes.refuse_boxes(root)
    return files.FilesSource(root, include, exclude=_leave_out(output, root), masks=config.source.masks.rule)


def _advise_on_file(uri: str) -> str:
    """Returns which source reads a file that was given instead of a folder."""
    if saved_listing.is_listing(uri):
        return f"it is a listing that plan --save-listing wrote: {saved_listing.REMEDY}"
    name = posixpath.basename(uri)
    for by, source in (("tar", tar.TarSource), ("tfrecord", tfrecord.TfrecordSource)):
        if source.FILE_NAME.fullmatch(name):
            return f"for {source.EXPECTED} set source.by: {by}"
    return "for a table of images set source.by=manifest"


def _container_source(config: config_lib.Config, uri: str, output: str) -> tar.TarSource | tfrecord.TfrecordSource:
    root, include, kind = _folder_of(config, uri, output)
    if kind != storage.DIRECTORY:
        name = posixpath.basename(root)
        expected: type[containers.ContainerSource]
        expected = tar.TarSource if config.source.by == "tar" else tfrecord.TfrecordSource
        if not expected.FILE_NAME.fullmatch(name):
            raise errors.ConfigError(f"--input {uri!r} is neither a folder nor {expected.EXPECTED}")
        root, include = posixpath.dirname(root), (glob.escape(name),)
    else:
        output = _leave_out(output, root)
    if config.source.by == "tar":
        return tar.TarSource(root, include, output, row_fields(config))
    wanted = config.source.tfrecord
    fields, keeps_features = row_fields(config, wanted.key), config.kept_in_records != ()
    return tfrecord.TfrecordSource(root, include, output, fields, wanted.image, keeps_features)


def _folder_of(config: config_lib.Config, uri: str, output: str) -> tuple[str, tuple[str, ...], str]:
    """Returns what to list: its address, the globs below it, and its kind of entry."""
    root, include = files.split_glob(uri)
    if include != files.EVERYTHING and config.source.include != files.EVERYTHING:
        raise errors.ConfigError(f"--input {uri!r} is a glob and source.include is set; give one of the two")
    try:
        kind = storage.storage_of(root).stat(root).kind
    except OSError as e:
        raise errors.ConfigError(f"--input {uri!r} cannot be read ({e.strerror or e}); check the address") from e
    _refuse_input_as_output(output, root)
    return root, config.source.include if include == files.EVERYTHING else include, kind


def _refuse_input_as_output(output: str, root: str) -> None:
    if _real_address(output) == _real_address(root):
        raise errors.ConfigError(f"--output {output!r} is the input itself; choose another folder")


def _leave_out(output: str, root: str) -> str:
    """Returns the address of the output as a listing of the folder `root` sees it, so that it can leave it out.

    Raises:
        ConfigError: if the output is that folder itself, or is below it and holds files that must be listed.
    """
    _refuse_input_as_output(output, root)
    real_output, real_root = _real_address(output), _real_address(root)
    if not real_output.startswith(storage.join(real_root, "")):
        return output
    try:
        others = output_folder.OutputFolder(output).find_files_of_others()
    except OSError as e:
        raise errors.ConfigError(
            f"--output {output!r} is inside the input, and its content cannot be listed ({e.strerror or e}); "
            "grant read access to it, or choose an --output elsewhere"
        ) from e
    if others:
        raise errors.ConfigError(
            f"--output {output!r} is inside the input {root!r}, which is listed without it, and holds "
            f"{output_folder.name_some(others)}, which imagebeam did not write: they would be lost silently; "
            "choose a new folder as --output, or one outside of the input"
        )
    return storage.join(root, real_output[len(storage.join(real_root, "")) :])


def _real_address(uri: str) -> str:
    """Returns an address that is the same for all names of a folder: resolves links in local paths."""
    return os.path.realpath(uri) if storage.storage_of(uri).is_local else uri


def _manifest_source(
    config: config_lib.Config, uri: str, output: str
) -> manifest.ManifestSource | table_per_folder.TablePerFolderSource:
    wanted = config.source.manifest
    if wanted.path is None:
        if _is_folder(uri):
            raise errors.ConfigError(
                f"--input {uri!r} is a folder: give the table itself, or its name in the folder as "
                "source.manifest.path; for images without a table set source.by: files"
            )
        table = _table(config, uri, output=output)
        if table.image is None or wanted.root is None:
            return _name_only_column(table)
        return table_per_folder.TablePerFolderSource((table,), table.image_root, output)
    given = _first_that_exists(wanted.path, uri)
    absolute = _is_absolute(given)
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
    left_out = _leave_out(output, uri)
    found = table_per_folder.find_tables(uri, given, exclude=left_out, format=wanted.format)
    tables = tuple(_table(config, each, left_out) for each in found)
    return _below(uri, tables, left_out)


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
    places = ((each, _resolve(each, uri)) for each in path)
    return next((each for each, place in places if storage.storage_of(place).exists(place)), path[0])


def _name_only_column(table: manifest.ManifestSource) -> manifest.ManifestSource:
    """Returns a table without paths with the name of its column, if it is a column of numbers without a header."""
    if table.image is not None or table.format != "csv" or table.header or len(table.needed) != 1:
        return table
    names = table.column_names()
    return dataclasses.replace(table, header=table.needed) if len(names) == 1 and _is_number(names[0]) else table


def _is_number(text: str) -> bool:
    try:
        table_rows.parse_number(features.FLOAT, text)
    except ValueError:
        return False
    return True


def _is_absolute(address: str) -> bool:
    """Returns whether an address is complete, and not relative to the input or the table."""
    return address.startswith(("/", "~", "file://")) or storage.scheme_of(address) != "file"


def _resolve(address: str, folder: str) -> str:
    """Returns a complete address; a relative one is below `folder`, or above it with `..`."""
    if _is_absolute(address):
        return storage.normalize(address)
    return storage.normalize(storage.join_relative(folder, posixpath.normpath(address)).removesuffix("/."))


def _is_folder(uri: str) -> bool:
    try:
        return storage.storage_of(uri).stat(uri).kind == storage.DIRECTORY
    except OSError:  # reading the table reports the error
        return False


def _table(config: config_lib.Config, uri: str, output: str) -> manifest.ManifestSource:
    wanted = config.source.manifest
    format = wanted.format or table_formats.format_of(uri)
    if (wanted.header or wanted.delimiter) and format != "csv":
        raise errors.ConfigError(f"source.manifest.header and delimiter are for CSV, and {uri!r} is read as {format}")
    if wanted.items is not None and format != "json":
        raise errors.ConfigError(f"source.manifest.items is for JSON, and {uri!r} is read as {format}")
    if wanted.encoding != table_formats.UTF8 and format == "parquet":
        raise errors.ConfigError(f"source.manifest.encoding is for CSV and JSON lines, and {uri!r} is read as parquet")
    return manifest.ManifestSource(
        uri=uri,
        format=format,
        image=wanted.image,
        fields=row_fields(config, wanted.key),
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


def _joined_tables(join: config_source.JoinConfig, table: str, format: str) -> tuple[joined_rows.JoinedTable, ...]:
    if not join.tables:
        return ()
    if format != "csv":
        raise errors.ConfigError(f"source.manifest.join is for CSV, and {table!r} is read as {format}; join it before")
    folder = posixpath.dirname(table) or "."
    return tuple(joined_rows.JoinedTable(_resolve(path, folder), header) for path, header in join.tables.items())


def _root_of(root: str | None, table: str) -> str | None:
    """Returns the address of the folder that the paths of a table are relative to; None for the table's own.

    Raises:
        ConfigError: if it is not a folder.
    """
    if root is None:
        return None
    uri = _resolve(root, posixpath.dirname(table) or ".")
    if not _is_folder(uri):
        raise errors.ConfigError(
            f"source.manifest.root {root!r}: {uri!r} is not a folder; give it relative to the folder of {table!r}, "
            "or as an address"
        )
    return uri


def _idx_source(config: config_lib.Config, uri: str) -> idx.IdxSource:
    if config.label.by not in ("column", "columns", "none"):
        raise errors.ConfigError(
            f"label.by is {config.label.by!r}, and source.by: idx has its labels in files: set label.by: column, "
            f"label.column: {idx.LABEL} and label.type: int, or label.by: none"
        )
    return idx.open_source(uri, config.source.idx.images, config.source.idx.labels, row_fields(config))


def _paired_source(
    config: config_lib.Config, table: manifest.ManifestSource, output: str
) -> paired_files.PairedFilesSource:
    globs = config.source.manifest.files or ()
    several = (globs,) if isinstance(globs, str) else globs
    for each in several if len(several) > 1 else ():
        with contextlib.suppress(errors.ConfigError):
            found = _paired_with(each, table, output)
            if any(part.num_refs or part.rejects for part in found.files.list_all()):
                return found
    return _paired_with(several[0], table, output)


def _paired_with(glob: str, table: manifest.ManifestSource, output: str) -> paired_files.PairedFilesSource:
    """Returns a table with the files that `glob` matches.

    Raises:
        ConfigError: if it is not a glob below a folder.
    """
    uri = storage.normalize(glob if _is_absolute(glob) else storage.join(table.root, glob))
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
    return paired_files.PairedFilesSource(table, files.FilesSource(root, include, exclude=_leave_out(output, root)))


def _coco_source(config: config_lib.Config, uri: str) -> coco.CocoSource:
    wanted = config.source.coco
    splits = (
        coco.CocoSplit(split, storage.join(uri, path), _path_below(wanted.images[split]))
        for split, path in wanted.annotations.items()
    )
    source = coco.CocoSource(
        root=uri,
        splits=tuple(splits),
        objects=coco_json.ObjectRule(wanted.masks, wanted.outside == "reject", wanted.crowd, wanted.categories or ()),
        without_objects=wanted.without_objects,
        fields=row_fields(config),
    )
    source.check()
    return source


def _yolo_source(config: config_lib.Config, uri: str, output: str) -> annotated_files.AnnotatedFilesSource:
    wanted = config.source.yolo
    found = find_yolo.find(uri, wanted)
    reader = yolo_text.YoloReader(
        found.classes, wanted.polygons, wanted.confidence, found.num_keypoint_values, wanted.outside == "reject"
    )
    rule = annotated_files.PairRule(".txt", "images", "labels", wanted.without_labels)
    source = annotated_files.AnnotatedFilesSource(
        found.root, found.parts, rule, reader, exclude=_leave_out(output, found.root)
    )
    source.check("source.yolo.images")
    return source


def _voc_source(config: config_lib.Config, uri: str, output: str) -> annotated_files.AnnotatedFilesSource:
    wanted = config.source.voc
    found = find_voc.find(uri, wanted)
    rejects_outside = wanted.outside == "reject"
    source = annotated_files.AnnotatedFilesSource(
        uri,
        found.parts,
        annotated_files.PairRule(".xml", found.image_folder, found.annotation_folder, wanted.without_annotations),
        voc_xml.VocReader(image_objects.ClassNames(()), wanted.origin, rejects_outside),
        exclude=_leave_out(output, uri),
        named_in=found.image_folder,
    )
    if wanted.classes is None:
        names = find_voc.collect_classes(source)
    else:
        names = class_files.read_classes(uri, wanted.classes, "source.voc.classes")
    source.check("source.voc.images")
    classes = image_objects.ClassNames(names, None, wanted.base)
    return dataclasses.replace(source, reader=voc_xml.VocReader(classes, wanted.origin, rejects_outside))


def _box_csv_source(config: config_lib.Config, uri: str) -> box_csv.BoxCsvSource:
    wanted = config.source.box_csv
    classes = wanted.classes
    root, splits = find_box_csv.find(uri, wanted)
    source = box_csv.BoxCsvSource(
        root=root,
        splits=splits,
        without_objects=wanted.without_objects,
        classes=None if classes is None else class_files.read_classes(root, classes, "source.box_csv.classes"),
        base=wanted.base,
        rejects_outside=wanted.outside == "reject",
    )
    source.check()
    return source


def _path_below(path: str) -> str:
    """Returns a folder relative to the source's address, without slashes at its ends; "" is the address itself."""
    folder = posixpath.normpath(path.strip("/"))
    return "" if folder == "." else folder


_Table: TypeAlias = "manifest.ManifestSource | table_per_folder.TablePerFolderSource | paired_files.PairedFilesSource"


def as_table(source: image_source.ImageSource) -> _Table | None:
    """Returns the source if its references are rows of a table, else None."""
    is_table = isinstance(
        source, (manifest.ManifestSource, table_per_folder.TablePerFolderSource, paired_files.PairedFilesSource)
    )
    return cast("_Table", source) if is_table else None


def advise_on_folders(config: config_lib.Config, source: image_source.ImageSource) -> str:
    """Returns advice for an image without a class folder."""
    if config.label.by != "directory":
        return ""
    if (table := as_table(source)) is not None:
        names = ", ".join(map(repr, table.column_names()))
        return (
            "label.by: directory takes the folder in the path; for a column of the table set label.by: column and "
            f"label.column (its columns are {names}), without labels label.by: none"
        )
    if config.source.by not in ("files", "listing"):
        return "set label.by: column and label.column, or label.by: none"
    by_directory = config.split.by == "directory"
    below = "'*/*/*'" if by_directory else "'*/*'"
    given = "if all folders are classes, set split={by: none}; " if by_directory else ""
    return (
        f"the folder with the image is the class: {given}if a few images are next to the class folders, leave them "
        f"out with source.include={below}; if the folder given is itself a class, give its parent folder "
        "as --input; without classes set label.by: none, for classes in the file names label.by: filename"
    )


def notes_on_labels(config: config_lib.Config, source: image_source.ImageSource) -> tuple[str, ...]:
    """Returns a note on a table if the config does not name its label column."""
    table = as_table(source)
    if table is None or config.label.by != "directory" or "by" in config.label.model_fields_set:
        return ()
    template = path_template.parse(config.source.manifest.image)
    in_path = (config.source.manifest.image,) if template is None else template.columns
    used = {*in_path, config.source.manifest.key, config.split.column, config.split.group}
    unused = [name for name in table.column_names() if name not in used and name not in config.columns]
    if not unused:
        return ()
    return (
        "label.by is left out, so the class of an image is the folder in its path, not a column of the table "
        f"({', '.join(map(repr, unused))}); for a column set label.by: column and label.column",
    )


def object_reader(source: image_source.ImageSource) -> image_objects.AnnotationReader | None:
    """Returns what reads the annotation file of each image; None if images have no such files."""
    return source.reader if isinstance(source, annotated_files.AnnotatedFilesSource) else None


def given_columns(config: config_lib.Config, source: image_source.ImageSource) -> tuple[str, ...]:
    """Returns the names of the values that the source itself gives for each image, in their order."""
    if (reader := object_reader(source)) is not None:
        return reader.columns
    if config.source.by == "box_csv":
        return box_csv.COLUMNS
    if config.source.by != "coco":
        return ()
    return coco.COLUMNS + ((coco.MASKS,) if config.source.coco.masks else ())


def keep_rule(config: config_lib.Config) -> kept_features.KeepRule | None:
    """Returns which features of rewritten records are kept; None for other sources."""
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
