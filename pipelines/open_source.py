"""Opens the source that a config names."""

from __future__ import annotations

import glob
import posixpath
import re
from collections.abc import Mapping

from imagebeam import errors, storage
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.inputs import color_files
from imagebeam.pipelines.recognize import boxes_as_classes
from imagebeam.storage import remote
from imagebeam.transforms.arrays import array_names
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.images import class_masks, structure
from imagebeam.transforms.packed import broken_content
from imagebeam.transforms.sources import (
    arrays,
    class_files,
    containers,
    files,
    idx,
    image_source,
    listing_rules,
    parquet,
    path_pattern,
    pixel_csv,
    saved_listing,
    source_places,
    split_lists,
    table_rows,
    tar,
    tfrecord,
)
from imagebeam.transforms.sources import zip as zip_source

_IN_ARCHIVE = re.compile(r"(.+?\.zip)(?:/(.*))?", re.IGNORECASE)  # an archive, and a folder in it


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
    try:
        return _open(config, storage.normalize(str(config.source.uri)), storage.normalize(str(config.output.uri)))
    except errors.ConfigError as e:
        from imagebeam.pipelines.recognize import recognize_folder  # takes 20 ms, and is needed only here

        advice = "" if "--config" in str(e) else recognize_folder.advise(config)
        if not advice:
            raise
        raise errors.ConfigError(f"{e}; {advice}") from e


def _open(config: config_lib.Config, uri: str, output: str) -> image_source.ImageSource:
    """Returns the source of `config` at the address `uri`.

    Raises:
        ConfigError: if the files there are not as the config says.
    """
    if config.source.by == "listing":
        listed = saved_listing.SavedListingSource(uri, config.source.masks.rule)
        listed.check()
        return listed
    if config.source.by == "idx":
        return _idx_source(config, uri)
    if config.source.by == "arrays":
        return _arrays_source(config, uri)
    if config.source.format is not None:
        return config.source.format.open(request_of(config, uri, output))
    with remote.budget(remote.CHECK_BUDGET_SEC):
        if config.source.by in _CONTAINERS:
            return _container_source(config, uri, output)
        if config.source.by == "zip" or _names_archive(uri):
            return _zip_source(config, uri, output)
        return _files_source(config, uri, output)


def request_of(config: config_lib.Config, uri: str, output: str) -> base_format.Request:
    """Returns what a config asks of the source at an address."""
    return base_format.Request(uri, output, config.source.include, row_fields(config), config.label.by, config.split.by)


def listing_rules_of(config: config_lib.Config) -> listing_rules.ListingRules:
    """Returns the rules for every image that the source of `config` lists.

    Raises:
        ConfigError: if a list of `split.lists` cannot be read, or is empty.
    """
    pattern = lists = None
    if config.source.pattern is not None:
        pattern = path_pattern.PathPattern(config.source.pattern, row_fields(config))
    if config.split.lists:
        root = _root_of(config)
        given = ((split, (one,) if isinstance(one, str) else one) for split, one in config.split.lists.items())
        places = tuple((split, source_places.resolve(each, root)) for split, several in given for each in several)
        lists = split_lists.SplitLists(places, root, config.split.unlisted)
        lists.check()
    return listing_rules.ListingRules(pattern, lists)


def mask_policy(config: config_lib.Config) -> class_masks.MaskPolicy:
    """Returns what the pixels of masks mean.

    Raises:
        ConfigError: if the file with the colors of the classes cannot be read.
    """
    masks = config.source.masks
    colors = None if masks.colors is None else color_files.read_colors(masks, _root_of(config))
    return class_masks.MaskPolicy(colors, bits=masks.bits)


def _root_of(config: config_lib.Config) -> str:
    """Returns the folder that is listed, or was."""
    uri = storage.normalize(str(config.source.uri))
    if config.source.by == "listing":
        return saved_listing.SavedListingSource(uri, config.source.masks.rule).root()
    root = files.split_glob(uri)[0]
    return root if source_places.is_folder(root) else posixpath.dirname(root)


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
        boxes_as_classes.refuse_boxes(root)
    return files.FilesSource(
        root, include, exclude=source_places.leave_out(output, root), masks=config.source.masks.rule
    )


def _advise_on_file(uri: str) -> str:
    """Returns which source reads a file that was given instead of a folder."""
    if saved_listing.is_listing(uri):
        return f"it is a listing that plan --save-listing wrote: {saved_listing.REMEDY}"
    name = posixpath.basename(uri)
    if parquet.ParquetSource.FILE_NAME.fullmatch(name):
        return "for Parquet with the bytes of images set source.by: parquet, with their paths source.by: manifest"
    for by, source in _CONTAINERS.items():
        if source.FILE_NAME.fullmatch(name):
            return f"for {source.EXPECTED} set source.by: {by}"
    if name.endswith(array_names.ENDS[: -len(array_names.PICKLED)]):
        return "for images that are rows of arrays set source.by: arrays, as the presets npz, hdf5, svhn and emnist do"
    if name.lower().endswith(array_names.CSV) and _holds_pixels(uri):
        return "for pixels in CSV set source.by: arrays, as the presets mnist_csv and fer2013 do"
    return "for a table of images set source.by=manifest"


def _holds_pixels(uri: str) -> bool:
    from imagebeam.transforms.arrays import pixel_rows  # late: NumPy

    try:
        return pixel_rows.look_into(uri, storage.storage_of(uri).stat(uri).version) is not None
    except (OSError, broken_content.BrokenContentError):
        return False


_CONTAINERS: Mapping[str, type[containers.ContainerSource]] = {
    "tar": tar.TarSource,
    "tfrecord": tfrecord.TfrecordSource,
    "parquet": parquet.ParquetSource,
}


def _container_source(config: config_lib.Config, uri: str, output: str) -> containers.ContainerSource:
    root, include, kind = _folder_of(config, uri, output)
    if kind != storage.DIRECTORY:
        name = posixpath.basename(root)
        expected = _CONTAINERS[config.source.by]
        if not expected.FILE_NAME.fullmatch(name) and not expected.is_container(
            root, storage.storage_of(root).stat(root).size
        ):
            raise errors.ConfigError(f"--input {uri!r} is neither a folder nor {expected.EXPECTED}")
        root, include = posixpath.dirname(root), (glob.escape(name),)
    else:
        output = source_places.leave_out(output, root)
    if config.source.by == "tar":
        return tar.TarSource(root, include, output, row_fields(config))
    if config.source.by == "parquet":
        return _parquet_source(config, root, include, output)
    wanted = config.source.tfrecord
    fields, keeps_features = row_fields(config, wanted.key), config.kept_in_records != ()
    return tfrecord.TfrecordSource(
        root, include, output, fields, wanted.image, keeps_features, wanted.shape_keys, wanted.base64
    )


def _names_archive(uri: str) -> bool:
    """Returns whether an address is that of a zip archive, or of a folder in one."""
    return _IN_ARCHIVE.fullmatch(uri) is not None and not source_places.is_folder(uri)


def _zip_source(config: config_lib.Config, uri: str, output: str) -> zip_source.ZipSource:
    """Returns the source of one archive, of a folder in it, or of all archives of a folder.

    Raises:
        ConfigError: if there is none, or the config asks for what archives do not have.
    """
    if config.source.masks.rule is not None:
        raise errors.ConfigError(f"source.masks cannot read {uri!r}, a zip archive: unpack it, and give the folder")
    if config.split.lists or config.label.lists:
        raise errors.ConfigError(
            f"lists of images or labels (split.lists, label.lists) name files of a folder, and {uri!r} is a zip "
            "archive: unpack it, and give the folder"
        )
    match = _IN_ARCHIVE.fullmatch(uri)
    archive, inside = (match[1], match[2] or "") if match else (uri, "")
    max_bytes = config.image.limits.max_bytes
    limit = structure.MAX_IMAGE_BYTES if max_bytes is None else min(int(max_bytes), structure.MAX_IMAGE_BYTES)
    try:
        kind = storage.storage_of(archive).stat(archive).kind
    except OSError as e:
        raise errors.ConfigError(f"--input {uri!r} cannot be read ({e.strerror or e}); check the address") from e
    if kind == storage.DIRECTORY:
        source_places.refuse_input_as_output(output, archive)
        exclude = source_places.leave_out(output, archive)
        return zip_source.ZipSource(archive, config.source.include, exclude, max_image_bytes=limit)
    if match is None:
        raise errors.ConfigError(f"--input {uri!r} is neither a folder nor {zip_source.ZipSource.EXPECTED}")
    root, name = posixpath.split(archive)
    return zip_source.ZipSource(
        root, config.source.include, archive=name, inside=inside.strip("/"), max_image_bytes=limit
    )


def _parquet_source(
    config: config_lib.Config, root: str, include: tuple[str, ...], output: str
) -> parquet.ParquetSource:
    """Returns the source, after a look at the first file.

    Raises:
        ConfigError: if it cannot be read, or its column of images or the names of its classes are not as they must be.
    """
    wanted = config.source.parquet
    fields = row_fields(config, wanted.key)
    found = parquet.ParquetSource(root, include, output, fields, wanted.image or "", config.label.kind == "class")
    if found.layout.names:
        class_files.check_names(found.layout.names, f"the metadata of {found.layout.uri!r}")
    return found


def _folder_of(config: config_lib.Config, uri: str, output: str) -> tuple[str, tuple[str, ...], str]:
    """Returns what to list: its address, the globs below it, and its kind of entry."""
    root, include = files.split_glob(uri)
    if include != files.EVERYTHING and config.source.include != files.EVERYTHING:
        raise errors.ConfigError(f"--input {uri!r} is a glob and source.include is set; give one of the two")
    try:
        kind = storage.storage_of(root).stat(root).kind
    except OSError as e:
        raise errors.ConfigError(f"--input {uri!r} cannot be read ({e.strerror or e}); check the address") from e
    source_places.refuse_input_as_output(output, root)
    return root, config.source.include if include == files.EVERYTHING else include, kind


def _idx_source(config: config_lib.Config, uri: str) -> idx.IdxSource:
    if config.label.by not in ("column", "columns", "none"):
        raise errors.ConfigError(
            f"label.by is {config.label.by!r}, and source.by: idx has its labels in files: set label.by: column, "
            f"label.column: {idx.LABEL} and label.type: int, or label.by: none"
        )
    return idx.open_source(uri, config.source.idx.images, config.source.idx.labels, row_fields(config))


def _arrays_source(config: config_lib.Config, uri: str) -> arrays.ArraysSource | pixel_csv.PixelCsvSource:
    from imagebeam.pipelines.inputs import find_arrays  # late: NumPy

    if config.label.by not in ("column", "none"):
        raise errors.ConfigError(
            f"label.by is {config.label.by!r}, and source.by: arrays has its labels in arrays: set label.by: column "
            f"and label.column: {arrays.LABEL}, or label.by: none"
        )
    fields = row_fields(config)
    return find_arrays.find(uri, config.source.arrays, fields, config.label.kind, config.split.by == "source")


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
