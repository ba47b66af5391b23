"""Turns a config into the rules and settings of a job: plain values. Reads small files only, no image; imports no Beam.

See `job_rules`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zlib
from typing import Any

from imagebeam import errors, features, storage
from imagebeam.pipelines import column_settings, image_rules, job_rules, open_source
from imagebeam.pipelines.config import model as config_lib
from imagebeam.pipelines.inputs import opened_source
from imagebeam.pipelines.recognize import seen_masks
from imagebeam.transforms import dataset_settings
from imagebeam.transforms.images import (
    class_masks,
    jpeg_entry_points,
    native_resizer,
    pillow_decoder,
    prepare,
    reader_decoder,
    scaling,
    segment_masks,
    turn_upright,
)
from imagebeam.transforms.output import recorded_inputs
from imagebeam.transforms.shard import read_ahead
from imagebeam.transforms.snapshots import snapshot_settings


def make_rules(
    config: config_lib.Config,
    overwrite: bool = False,
    report: str = "",
    images: job_rules.ImageRules | None = None,
    scratch: str = "",
    run_id: str = "",
    names_file: str = "",
    snapshot: snapshot_settings.SnapshotSettings | None = None,
) -> job_rules.JobRules:
    """Returns the rules and settings of the job that `config` describes.

    Args:
        config: with `source.uri` and `output.uri`.
        overwrite: whether to replace another dataset in the output.
        report: address of the report that the run writes.
        images: the source of `config` and the rules for its images, if they are open already.
        scratch: folder where tf.Transform writes first.
        run_id: of the run that holds the lock.
        names_file: address where long label files are staged for the workers; "" keeps them in the job graph. The
            caller writes and removes it: `settings.names`.
        snapshot: settings of the snapshot to write; None for a dataset without snapshots.

    Raises:
        ConfigError: if an address, the manifest's columns, the IDX files or the vocabulary is not as the config says,
            or a package is missing.
    """
    images = images or image_rules.open_rules(config, is_update=snapshot is not None)
    source = images.source
    dataset = storage.normalize(str(config.output.uri))
    output = dataset if snapshot is None else snapshot.folder
    if config.output.writer == "beam" and storage.scheme_of(output) not in ("file", "gs"):
        raise errors.ConfigError(
            f"output.writer is 'beam', and --output is {output!r}: Beam's own writer is for local paths and gs://; "
            "leave output.writer out"
        )
    if config.output.writer == "beam" and not storage.storage_of(output).is_local:
        from imagebeam.transforms import write_shards_with_beam  # late: imports Beam

        write_shards_with_beam.require_file_system(output)
    if config.image.check == "tensorflow":
        reader_decoder.require()
    raw_shape = opened_source.image_shape(source) or config.source.tfrecord.fixed_shape
    objects = opened_source.object_reader(source)
    facts = _other_facts(config, raw_shape) | ({} if objects is None else {"classes": objects.classes.as_json()})
    masks = open_source.mask_policy(config)
    if config.source.by == "coco" and config.source.coco.panoptic is not None:
        facts[recorded_inputs.MASKS] = [class_masks.VERSION, None]
        masks = dataclasses.replace(
            masks, segments=opened_source.given_columns(config, source).index(segment_masks.COLUMN)
        )
    if config.source.masks.rule is not None:
        facts[recorded_inputs.MASKS] = [class_masks.VERSION, masks.colors and masks.colors.as_json()]
    settings = dataset_settings.DatasetSettings(
        output=output,
        identity=json.dumps([config.identity(), facts], sort_keys=True),
        features=config.resolve_features(),
        columns=(*opened_source.given_columns(config, source), *(f"columns/{name}" for name in config.columns)),
        further=tuple(sorted(config.source.manifest.further)),
        label_kind=config.label.kind,
        label_base=config.label.base,
        names=images.names,
        label_by=config.label.by,
        stratified=config.split.stratify,
        unknown_label_is_error=config.label.unknown == "error",
        declared_splits=config.split.declared,
        carve=images.split.carve,
        sizing=dataset_settings.Sizing(
            config.output.num_shards, config.output.target_shard_bytes, config.output.examples_per_shard
        ),
        policy=dataclasses.replace(
            config.image.policy(raw_shape, config.statistics.pixels),
            objects=objects,
            masks=masks,
            is_raw=bool(config.source.tfrecord.shape_keys),
            is_base64=config.source.tfrecord.base64,
        ),
        read_ahead=read_ahead.ReadAhead(
            config.source.reads_ahead, config.source.bytes_ahead, config.source.manifest.size or ""
        ),
        compression=config.output.compression,
        suffix=config.output.suffix + (".gz" if config.output.compression == "gzip" and config.output.suffix else ""),
        analyze=config.statistics.analyze if config.transformed else None,
        max_reject_fraction=config.rejects.max_fraction,
        keep=opened_source.keep_rule(config),
        overwrite=overwrite,
        writes_report=config.output.report,
        saved_listing=config.source.by == "listing",
        run_id=run_id,
        command=_digest_command(config, output, images.names.vocabulary, overwrite, snapshot),
        report=report,
        keypoints=opened_source.keypoint_names(source),
        on_repeated_key=opened_source.advise_on_repeated_key(config),
        hints=(
            *opened_source.notes_on_labels(config, source),
            *opened_source.notes_on_files(source),
            *seen_masks.notes_on_numbers(config),
            *_notes_on_frames(config),
            *_notes_on_further(config),
        ),
        snapshot=snapshot,
        duplicates=config.duplicates.settings(),
    )
    return job_rules.JobRules(
        settings=settings,
        names_file=names_file,
        name=config.output.name or config_lib.default_name(dataset),
        config=config.model_dump(mode="json"),
        images=images,
        writer=config.output.writer,
        table=opened_source.as_table(source),
        transforms=column_settings.make_transforms(config, settings.columns),
        scratch=scratch,
    )


def _digest_command(
    config: config_lib.Config,
    output: str,
    vocabulary: tuple[str, ...] | None,
    overwrite: bool,
    snapshot: snapshot_settings.SnapshotSettings | None,
) -> str:
    """Returns a digest that is equal if the same command runs again."""
    addresses = storage.normalize(str(config.source.uri)), output
    parts: tuple[Any, ...] = (config.model_dump(mode="json"), addresses, vocabulary, overwrite)
    if snapshot is not None:  # its flags are no part of the config
        parts += (snapshot,)
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _notes_on_frames(config: config_lib.Config) -> tuple[str, ...]:
    """Returns a note on what is counted in files, where each frame of a file becomes an example."""
    if config.image.frames != prepare.EACH:
        return ()
    return (
        "image.frames: each: the plan, the shares of splits and the sizes of shards count files; their frames are "
        "counted when they are read",
    )


def _notes_on_further(config: config_lib.Config) -> tuple[str, ...]:
    """Returns a note on what is counted of the first image alone, where an example has several."""
    names = sorted(config.source.manifest.further)
    if not names:
        return ()
    stored = ", ".join(f"image/{name}" for name in names)
    return (f"each example has further images ({stored}): statistics and duplicates are of the first image alone",)


def _other_facts(config: config_lib.Config, raw_shape: tuple[int, int, int] | None) -> dict[str, Any]:
    """Returns the facts outside the config that decide what shards hold: library versions, the shape of raw pixels.

    An update goes on with other `libraries`; any other difference makes it another dataset.
    """
    facts: dict[str, Any] = {}
    libraries: dict[str, Any] = {}
    if config.output.compression == "gzip" or config.has_object_masks:
        libraries["zlib"] = zlib.ZLIB_RUNTIME_VERSION
    if raw_shape is None or config.image.encode != prepare.KEEP:  # any image may have to be encoded again
        libraries["pillow"] = pillow_decoder.pillow_version()
        libraries |= pillow_decoder.plugin_versions()
        if config.image.encode == prepare.KEEP and config.image.orientation == prepare.APPLY:
            libraries["turned_by"] = turn_upright.library()
    if config.image.resampler == scaling.NATIVE:
        native_resizer.require()
        libraries["resized_by"] = native_resizer.library()
    if any(feature.source == features.ENTRY_POINTS for feature in config.resolve_features()):
        jpeg_entry_points.require()
    if libraries:
        facts[recorded_inputs.LIBRARIES] = libraries
    if raw_shape is not None:
        facts["raw_shape"] = raw_shape
    return facts | column_settings.versions(config)
