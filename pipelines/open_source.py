"""Opens the source that a config names."""

from __future__ import annotations

from imagebeam import errors, storage
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize import contradictions
from imagebeam.storage import remote
from imagebeam.transforms import kept_features
from imagebeam.transforms.formats import base_format
from imagebeam.transforms.images import class_masks, structure
from imagebeam.transforms.sources import files, image_source, input_places, listing_rules, table_rows


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
            raise errors.ConfigError("address-missing", f"{option} ({key}) is missing: give an address")
        _check_address(option, storage.normalize(address))
    try:
        return _open(config, storage.normalize(str(config.source.uri)), storage.normalize(str(config.output.uri)))
    except errors.ConfigError as e:
        from imagebeam.pipelines.recognize import recognize_folder  # takes 20 ms, and is needed only here

        advice = "" if "--config" in str(e) else recognize_folder.advise(config)
        if not advice:
            raise
        raise e.extended(f"; {advice}") from e


def _open(config: config_lib.Config, uri: str, output: str) -> image_source.ImageSource:
    """Returns the source of `config` at the address `uri`.

    Raises:
        ConfigError: if the files there are not as the config says.
    """
    found = config.source.format.open(request_of(config, uri, output))
    if config.label.by == "directory" and config.source.include == files.EVERYTHING and found.listed_folder() == uri:
        with remote.budget(remote.CHECK_BUDGET_SEC):
            contradictions.refuse_boxes(uri)
    return found


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
        pattern = listing_rules.PathPattern(config.source.pattern, row_fields(config))
    if config.split.lists:
        root = _root_of(config)
        given = ((split, (one,) if isinstance(one, str) else one) for split, one in config.split.lists.items())
        places = tuple((split, input_places.resolve(each, root)) for split, several in given for each in several)
        lists = listing_rules.SplitLists(places, root, config.split.unlisted)
        lists.check()
    return listing_rules.ListingRules(pattern, lists)


def mask_policy(config: config_lib.Config) -> class_masks.MaskPolicy:
    """Returns what the pixels of masks mean.

    Raises:
        ConfigError: if the file with the colors of the classes cannot be read.
    """
    return config.source.masks.policy("" if config.source.masks.colors is None else _root_of(config))


def _root_of(config: config_lib.Config) -> str:
    """Returns the folder that is listed, or was."""
    return config.source.format.folder_of(storage.normalize(str(config.source.uri)))


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
            raise errors.ConfigError("address-not-found", f"{option} {uri!r}: {e.strerror}; {remedy}") from e
        except OSError as e:
            raise errors.ConfigError(
                "address-unreachable", f"{option} {uri!r} cannot be reached: {e.strerror or e}"
            ) from e


def row_fields(config: config_lib.Config) -> table_rows.RowFields:
    """Returns which fields of a row describe its image, if the source is a table; the key is an option of formats."""
    columns = [
        table_rows.Column(
            name, column.kind, column.list, column.separator, column.missing, column.default, column.transform == "log"
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
