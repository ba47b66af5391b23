"""The job of a config: what is read, with which rules, and what is written.

Reads small files only, no image. Importing this module imports no Beam.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from imagebeam import errors, storage
from imagebeam.pipelines import dataset_facts, own_code
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.recognize import contradictions, mask_signs
from imagebeam.pipelines.request import Checked, RunFiles, check_address
from imagebeam.storage import remote
from imagebeam.transforms import dataset_settings, elements, kept_features, sort_intervals
from imagebeam.transforms.classes import label_names
from imagebeam.transforms.formats import base_format, own_source
from imagebeam.transforms.images import class_masks, prepare, reader_decoder
from imagebeam.transforms.output import run_report
from imagebeam.transforms.shard import read_ahead
from imagebeam.transforms.sources import image_source, input_places, listing_rules, reference_rules, table_rows


@dataclasses.dataclass(frozen=True)
class Job:
    """The arguments of the transforms."""

    source: image_source.ImageSource
    rules: reference_rules.ReferenceRules  # for each image that the source lists
    fields: table_rows.RowFields  # what the columns of a row are
    split: reference_rules.SplitRule
    order: sort_intervals.Order
    is_complete: bool  # whether all that is listed is written: no step leaves out images before they are read
    settings: dataset_settings.DatasetSettings  # with all names of the label files
    name: str  # the dataset's name
    config: Mapping[str, Any]  # as JSON, for the catalog
    with_beam: bool  # whether Beam's own writer writes the shards
    transforms: tuple[elements.ColumnTransform, ...]
    scratch: str  # folder where tf.Transform writes first

    @property
    def early_order(self) -> sort_intervals.HashOrder | None:
        """The order in which images can be ranked when they are listed; None if a later step decides it."""
        order = self.order if isinstance(self.order, sort_intervals.HashOrder) else None
        return order if self.is_complete and self.rules.split is not None else None

    @property
    def keeps_position(self) -> bool:
        """Whether the row of an image in the source decides its place."""
        return isinstance(self.order, sort_intervals.ListedOrder)

    @property
    def hints(self) -> listing_rules.HintFinder:
        """Looks for what is wrong with the source."""
        return listing_rules.HintFinder(self.source, self.rules.listing)

    @property
    def table(self) -> image_source.ImageSource | None:
        """The source, if its references are rows of a table."""
        return None if self.source.column_names() is None else self.source


def make_job(checked: Checked, run: RunFiles | None = None, source: image_source.ImageSource | None = None) -> Job:
    """Returns the job of a checked request, whose config has `output.uri`.

    Args:
        checked: the request.
        run: the identity of the run, and its temporary files.
        source: of the images, instead of the one at `source.uri`.

    Raises:
        ConfigError: if an address, the manifest's columns, the IDX files or the vocabulary is not as the config says,
            or a package is missing.
    """
    config, snapshot, run = checked.config, checked.snapshot, run or RunFiles()
    source = source or make_source(config)
    names = label_names.stage_if_long(_names_of(config, source), run.names)
    code = own_code.find(config, source)
    settings = _settings_of(checked, run, source, names, code)
    label, split = _label_rule(config, source, names, code), _split_rule(config)
    early_split = None if split.stratify else split
    return Job(
        source=source,
        fields=row_fields(config),
        rules=reference_rules.ReferenceRules(listing_rules_of(config), label, early_split),
        split=split,
        order=sort_intervals.order_of(config.output.shuffle, config.split.seed),
        is_complete=snapshot is None and not config.duplicates.settings().only("drop").is_on,
        settings=settings,
        name=str(config.output.dataset),
        config=config.recorded(),
        with_beam=config.output.writer == "beam",
        transforms=make_transforms(config, settings.columns),
        scratch=run.scratch,
    )


def make_source(config: config_lib.Config) -> image_source.ImageSource:
    """Returns the source of `config`, after checks that find obvious mistakes at once.

    Raises:
        ConfigError: if an address, the manifest's columns or the IDX files are not as the config says.
    """
    if config.source.uri or not config.source.is_own:  # a source of the user may need no address
        require_address("--input", "source.uri", config.source.uri)
    require_address("--output", "output.uri", config.output.uri)
    uri, output = _input_of(config), storage.normalize(str(config.output.uri))
    request, source = _request_of(config, uri, output), config.source
    try:
        if source.is_own:
            return own_source.OwnSource.of(source.by, source.version, source.format, request)
        found = source.format.open(request)
        is_all = config.label.by == "directory" and config.source.include == ("**/*",)
        if is_all and found.listed_folder() == uri:
            with remote.budget(remote.CHECK_BUDGET_SEC):
                contradictions.refuse_boxes(uri)
        return found
    except errors.ConfigError as e:
        from imagebeam.pipelines.recognize import recognize_folder  # takes 20 ms, and is needed only here

        advice = "" if "--config" in str(e) else recognize_folder.advise(config)
        if not advice:
            raise
        raise e.extended(f"; {advice}") from e


def _input_of(config: config_lib.Config) -> str:
    """Returns the address that is read; "" for a source of the user that has none."""
    return storage.normalize(config.source.uri) if config.source.uri else ""


def require_address(option: str, key: str, address: str | os.PathLike[str] | None) -> None:
    """Checks that the config has an address, and that it answers.

    Raises:
        ConfigError: if not.
    """
    if not address:
        raise errors.ConfigError("address-missing", f"{option} ({key}) is missing: give an address")
    check_address(option, storage.normalize(address))


def _request_of(config: config_lib.Config, uri: str, output: str) -> base_format.Request:
    """Returns what a config asks of the source at an address."""
    label = config.label
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
        max_image_bytes=config.image.limits.image_bytes,
        keep=kept_features.KeepRule(
            names=config.kept_in_records,
            elsewhere=frozenset({*config.columns, *([] if label.column is None else [label.column])}),
            renamed=tuple((name.removeprefix("columns/"), key) for name, key in config.renamed_in_records.items()),
        ),
        key_feature=config.features.renamed.get("image/key", "image/key"),
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
    return config.source.format.folder_of(_input_of(config))


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
            column.first,
            column.last,
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


def _names_of(config: config_lib.Config, source: image_source.ImageSource) -> label_names.LabelNames:
    """Returns the content of the label files, or the names of the classes that the source gives."""
    in_column = config.label.by == "column"
    # with label.columns, the columns are the vocabulary: a class without an image keeps its id
    vocabulary = label_names.read_vocabulary(config.label.vocabulary, in_column) or config.label.columns or None
    return label_names.LabelNames(
        vocabulary or source.facts().class_names,
        label_names.read_texts(config.label.texts, in_column),
        label_names.read_lists(config.label.lists),
    )


def _label_rule(
    config: config_lib.Config,
    source: image_source.ImageSource,
    names: label_names.LabelNames | label_names.StagedNames,
    code: own_code.OwnCode,
) -> reference_rules.LabelRule:
    group, pattern = config.split.group, config.label.pattern or ""
    return reference_rules.LabelRule(
        by=config.label.by,
        level=1 if config.split.by == "directory" else 0,
        pattern=config.label.pattern,
        group=group if group and f"(?P<{group}>" in pattern else None,  # otherwise it is a column
        kind=config.label.kind,
        names=names,
        hint=_hint_on_folders(config, source),
        function=code.label,
        max_seconds=code.features.max_seconds,
        many=config.label.many,
        columns=own_code.columns_of(config, source),
    )


def _split_rule(config: config_lib.Config) -> reference_rules.SplitRule:
    return reference_rules.SplitRule(
        by=config.split.by,
        name=config.split.name,
        fractions=tuple((config.split.fractions or {}).items()),
        counts=tuple((config.split.counts or {}).items()),
        holdout=tuple((name, holdout.split, holdout.first) for name, holdout in config.split.holdout.items()),
        stratify=config.split.stratify,
        grouped=config.split.group is not None,
        seed=config.split.seed,
        rename=tuple(config.split.rename.items()),
        declared=config.split.declared,
    )


def _settings_of(
    checked: Checked,
    run: RunFiles,
    source: image_source.ImageSource,
    names: label_names.LabelNames | label_names.StagedNames,
    code: own_code.OwnCode,
) -> dataset_settings.DatasetSettings:
    """Returns the settings of the dataset that a job writes."""
    config, snapshot = checked.config, checked.snapshot
    output = storage.normalize(str(config.output.uri)) if snapshot is None else snapshot.folder
    if config.output.writer == "beam" and storage.scheme_of(output) not in ("file", "gs"):
        raise errors.ConfigError(
            "beam-writer-elsewhere",
            f"output.writer is 'beam', and --output is {output!r}: Beam's own writer is for local paths and gs://; "
            "leave output.writer out",
        )
    if config.output.writer == "beam" and not storage.storage_of(output).is_local:
        from imagebeam.transforms import write_shards_with_beam  # late: imports Beam

        write_shards_with_beam.require_file_system(output)
    if config.image.check == "tensorflow":
        reader_decoder.require()
    known = source.facts()
    facts = dataset_facts.other_facts(config, known.shape)
    if code.digests:
        facts["source_of_functions"] = code.digests
    if known.annotations is not None:
        facts["classes"] = known.annotations.classes.as_json()
    masks = mask_policy(config)
    if class_masks.SEGMENTS_COLUMN in known.columns:
        facts[run_report.MASKS] = [class_masks.VERSION, None]
        masks = dataclasses.replace(masks, segments=known.columns.index(class_masks.SEGMENTS_COLUMN))
    if config.source.masks.rule is not None:
        facts[run_report.MASKS] = [class_masks.VERSION, masks.colors and masks.colors.as_json()]
    return dataset_settings.DatasetSettings(
        output=output,
        identity=json.dumps([config.identity(), facts], sort_keys=True),
        features=config.resolve_features(),
        columns=own_code.columns_of(config, source),
        extra_images=config.source.gives().extra_images,
        about=config.about.model_dump(mode="json", exclude_defaults=True),
        label_kind=config.label.kind,
        label_base=config.label.base,
        names=names,
        label_by=config.label.by,
        stratified=config.split.stratify,
        unknown_label_is_error=config.label.unknown == "error",
        declared_splits=config.split.declared,
        holdout=_split_rule(config).holdout,
        sizing=dataset_settings.Sizing(
            config.output.num_shards, config.output.target_shard_bytes, config.output.examples_per_shard
        ),
        policy=dataclasses.replace(
            config.image.policy(known.shape, config.statistics.pixels),
            objects=known.annotations,
            masks=masks,
            list_column=config.source.gives().list_column,
            is_raw=known.is_raw,
            is_base64=known.is_base64,
            part=known.part,
            functions=code.images,
            limits=code.limits,
            extra_types=config.image.types_of(config.source.gives().extra_images),
        ),
        read_ahead=read_ahead.ReadAhead(
            config.source.reads_ahead,
            config.source.bytes_ahead,
            known.size_column,
            config.source.web.options(config.image.limits.image_bytes),
            read_ahead.OwnScheme(known.scheme, source.read_image) if known.scheme else None,
        ),
        compression=config.output.compression,
        suffix=config.output.suffix + (".gz" if config.output.compression == "gzip" and config.output.suffix else ""),
        analyze=config.statistics.analyze if config.transformed else None,
        max_reject_fraction=config.rejects.max_fraction,
        keep=known.keep,
        overwrite=checked.overwrite,
        writes_report=config.output.report,
        saved_listing=config.source.gives().is_saved,
        run_id=run.run_id,
        command=dataset_facts.digest_command(checked, _input_of(config), output, names.vocabulary),
        report=run.report,
        keypoints=known.keypoints,
        on_repeated_key=known.on_repeated_key,
        hints=(
            *_notes_on_labels(config, source),
            *known.notes,
            *mask_signs.notes_on_numbers(config),
            *_notes_on_counts(config),
        ),
        snapshot=snapshot,
        duplicates=config.duplicates.settings(),
        functions=code.features,
    )


def make_transforms(config: config_lib.Config, sources: Sequence[str]) -> tuple[elements.ColumnTransform, ...]:
    """Returns how the columns of `config` are transformed.

    Args:
        config: of the job.
        sources: the names of the values in ImageRef.columns, in their order.
    """
    keys = {feature.source: feature.key for feature in config.resolve_features()}
    return tuple(
        elements.ColumnTransform(
            column=name,
            key=keys[f"columns/{name}"],
            position=sources.index(f"columns/{name}"),
            kind=column.kind,
            name=str(column.transform),
            **column.model_dump(include={"buckets", "top_k", "num_oov_buckets"}),
        )
        for name, column in config.columns.items()
        if name in config.transformed
    )


def _hint_on_folders(config: config_lib.Config, source: image_source.ImageSource) -> str:
    """Returns the hint for an image without a class folder."""
    if config.label.by != "directory":
        return ""
    if (names := source.column_names()) is not None:
        return (
            "label.by: directory takes the folder in the path; for a column of the table set label.by: column "
            f"and label.column (its columns are {', '.join(map(repr, names))}), without labels label.by: none"
        )
    if not config.source.gives().folders:
        return "set label.by: column and label.column, or label.by: none"
    by_directory = config.split.by == "directory"
    below = "'*/*/*'" if by_directory else "'*/*'"
    given = "if all folders are classes, set split={by: none}; " if by_directory else ""
    return (
        f"the folder with the image is the class: {given}if a few images are next to the class folders, leave them "
        f"out with source.include={below}; if the folder given is itself a class, give its parent folder "
        "as --input; without classes set label.by: none, for classes in the file names label.by: filename"
    )


def _notes_on_counts(config: config_lib.Config) -> Iterator[str]:
    """Yields notes on what is counted in files or of the first image alone."""
    if config.image.frames == prepare.EACH:
        yield (
            "image.frames: each: the plan, the shares of splits and the sizes of shards count files; their frames are "
            "counted when they are read"
        )
    if names := config.source.gives().extra_images:
        stored = ", ".join(f"image/{name}" for name in names)
        yield f"each example has further images ({stored}): statistics and duplicates are of the first image alone"
    if column := config.source.gives().list_column:
        yield f"each example has the list of images in {column!r}: statistics are of the first, duplicates of all"


def _notes_on_labels(config: config_lib.Config, source: image_source.ImageSource) -> tuple[str, ...]:
    """Returns a note on a table if the config does not name its label column."""
    names = source.column_names()
    if names is None or config.label.by != "directory" or "by" in config.label.model_fields_set:
        return ()
    used = {*source.facts().own_columns, config.split.column, config.split.group}
    unused = [name for name in names if name not in used and name not in config.columns]
    if not unused:
        return ()
    return (
        "label.by is left out, so the class of an image is the folder in its path, not a column of the table "
        f"({', '.join(map(repr, unused))}); for a column set label.by: column and label.column",
    )
