"""Opens the source that a config names."""

from __future__ import annotations

import posixpath

from imagebeam import errors, storage
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.inputs import color_files
from imagebeam.pipelines.recognize import boxes_as_classes
from imagebeam.storage import remote
from imagebeam.transforms import kept_features
from imagebeam.transforms.arrays import array_names
from imagebeam.transforms.formats import base_format, tar, tfrecord
from imagebeam.transforms.formats import zip as zip_format
from imagebeam.transforms.formats.parquet import parquet
from imagebeam.transforms.images import class_masks, structure
from imagebeam.transforms.packed import broken_content
from imagebeam.transforms.sources import (
    arrays,
    files,
    idx,
    image_source,
    listing_rules,
    path_pattern,
    pixel_csv,
    saved_listing,
    source_places,
    split_lists,
    table_rows,
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
        if zip_format.is_archive(uri):
            return zip_format.Zip().open(request_of(config, uri, output))
        return _files_source(config, uri, output)


def request_of(config: config_lib.Config, uri: str, output: str) -> base_format.Request:
    """Returns what a config asks of the source at an address."""
    label, max_bytes = config.label, config.image.limits.max_bytes
    return base_format.Request(
        uri=uri,
        output=output,
        include=config.source.include,
        fields=row_fields(config),
        label_by=label.by,
        split_by=config.split.by,
        label_kind=label.kind,
        masks=config.source.masks.rule,
        has_lists=bool(config.split.lists or label.lists),
        max_image_bytes=min(structure.MAX_IMAGE_BYTES, structure.MAX_IMAGE_BYTES if max_bytes is None else max_bytes),
        keep=kept_features.KeepRule(
            names=config.kept_in_records,
            elsewhere=frozenset({*config.columns, *([] if label.column is None else [label.column])}),
            renamed=tuple((name.removeprefix("columns/"), key) for name, key in config.renamed_in_records.items()),
        ),
        key_feature=config.features.get("image/key", "image/key"),
    )


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
    root, include, kind = source_places.find_input(uri, config.source.include, output)
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
    for by, source in (("tar", tar.TarSource), ("tfrecord", tfrecord.TfrecordSource)):
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


def row_fields(config: config_lib.Config) -> table_rows.RowFields:
    """Returns which fields of a row describe its image, if the source is a table; the key is an option of formats."""
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
        label=config.label.column,
        label_separator=config.label.separator,
        label_flags=config.label.columns,
        split=config.split.column,
        group=config.split.group,
        columns=tuple(columns),
    )
