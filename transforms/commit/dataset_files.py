"""Stages the files of a dataset beside its shards: statistics, names of classes, rejects, metadata, the page.

With its metadata, TensorFlow Datasets loads the output: `tfds.builder_from_directory(out)`. They are made without TFDS.
A page that cannot be made never fails the commit. Imports no Beam: a writer process makes the page.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import posixpath
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import concurrency, features, records, snapshots, storage
from imagebeam.transforms import dataset_settings
from imagebeam.transforms.classes import class_names
from imagebeam.transforms.commit import snapshot_report
from imagebeam.transforms.output import croissant, output_folder
from imagebeam.transforms.shard import statistics, writer_processes
from imagebeam.transforms.updates import continue_snapshot

_COPY_BYTES = 1 << 20
_READS_AT_ONCE = 64  # over a network
_LARGE_READS_AT_ONCE = 16  # for files with the rejects of the listing, which have some MB each
_LOGGER = logging.getLogger("imagebeam.transforms.stage_report")  # users select lines of logs by this name


class RejectFiles(NamedTuple):
    """Names of files in the staging folder, in their order in `rejects.jsonl`."""

    early: Sequence[str]  # rejected while images were listed and planned
    of_shards: Sequence[str]  # rejected while a shard was written


class StagedLines(NamedTuple):
    """Names of staged files of lines that are joined for the commit."""

    rejects: RejectFiles
    duplicates: RejectFiles


def stage_files(
    settings: dataset_settings.DatasetSettings,
    staging: str,
    dataset: continue_snapshot.Continued,
    lines: StagedLines,
    check: Callable[[], None],
    note: Callable[[str], None],
    writers: str | None = None,
) -> Mapping[str, catalog_lib.File]:
    """Writes all files but shards, indexes and the catalog into the staging folder.

    Returns sizes and checksums by name, also of tf.Transform's output, which was staged before the first shard.

    Args:
        settings: of the dataset.
        staging: the folder.
        dataset: as it is published.
        lines: the rejects and duplicates.
        check: is called between files, so that the commit lock is renewed.
        note: is called with a note for the user if there is no page.
        writers: token of the writer processes, one of which makes the page; None to make it here.
    """
    catalog, store = dataset.catalog, storage.storage_of(staging)
    found = {}
    if settings.analyze is not None:
        listed = json.loads(store.read(storage.join(staging, output_folder.STAGED_FILES)))
        found = {name: catalog_lib.File(*file) for name, file in listed.items()}
    by_split = {split: dataset.merged[split] for split in catalog.splits if split in dataset.merged}
    formats = {name for split in by_split.values() for name in split["formats"]}
    files = dict(dataset.files)
    if catalog.is_self_contained:  # other readers take whole shards of one folder
        files |= tfds_files(catalog, settings.suffix, formats)
        files[croissant.FILE] = croissant.describe(catalog, settings.suffix)
    described = {split: statistics.describe_statistics(counts) for split, counts in by_split.items()}
    files[catalog_lib.STATISTICS_FILE] = json.dumps(described, indent=1).encode() + b"\n"
    if catalog.labels:
        files[catalog_lib.LABELS_FILE] = labels_text(list(catalog.labels))
    if catalog.object_classes:
        files[class_names.LABEL_MAP_FILE] = class_names.label_map(catalog.object_classes)
    if (colors := settings.policy.masks.colors) is not None:
        files[catalog_lib.MASK_LABELS_FILE] = labels_text(list(colors.names))
    for folder in {os.path.dirname(name) for name in files} - {""}:
        store.make_directories(storage.join(staging, folder))
    for name, data in files.items():
        store.write_whole(storage.join(staging, name), data)
        found[name] = catalog_lib.entry_of(data)
    joined = {catalog_lib.REJECTS_FILE: lines.rejects}
    if settings.duplicates.is_on:
        joined[catalog_lib.DUPLICATES_FILE] = lines.duplicates
    for name, staged in joined.items():
        found[name] = join_rejects(staging, staged, storage.join(staging, name), check)
    found |= stage_report(settings, staging, dataset, described, note, writers)
    check()
    return dict(sorted(found.items()))


def join_rejects(
    staging: str, staged: RejectFiles, target: str, check: Callable[[], None] = lambda: None
) -> catalog_lib.File:
    """Concatenates files of rejects; returns size and checksum of the new file.

    Args:
        staging: the folder of the files.
        staged: their names.
        target: address of the new file.
        check: is called after each piece, so that the commit lock is renewed while there are many.
    """
    num_bytes = crc = 0
    with storage.storage_of(target).write_file(target) as pending:
        for chunk in _read_all(staging, staged):
            check()
            num_bytes, crc = num_bytes + len(chunk), records.extend_crc(crc, chunk)
            rest = memoryview(chunk)
            while rest:  # an unbuffered file may write only a part
                rest = rest[pending.file.write(rest) :]
        pending.checksum = num_bytes, crc
    return catalog_lib.File(num_bytes, crc)


def read_lines(staging: str, staged: RejectFiles) -> Iterator[bytes]:
    """Yields the lines of files of rejects, without their line breaks."""
    rest = b""
    for chunk in _read_all(staging, staged):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def _read_all(staging: str, staged: RejectFiles) -> Iterator[bytes]:
    return itertools.chain(
        _read_in_order(staging, staged.early, _LARGE_READS_AT_ONCE),
        _read_in_order(staging, staged.of_shards, _READS_AT_ONCE),
    )


def _read_in_order(folder: str, names: Iterable[str], num_at_once: int) -> Iterator[bytes]:
    """Yields the content of files. Over a network whole files are read ahead: they are small, and there may be many."""
    store = storage.storage_of(folder)
    uris = (storage.join(folder, name) for name in names)
    if not store.is_local:
        yield from concurrency.map_ahead(store.read, uris, num_at_once)
        return
    for uri in uris:
        with store.open_read(uri) as file:
            while chunk := file.read(_COPY_BYTES):
                yield chunk


# --- the page --------------------------------------------------------------------------------------------------------


class _Task(NamedTuple):
    """The input of the page of a dataset."""

    output: str
    staging: str  # the folder
    catalog: catalog_lib.Catalog
    statistics: Mapping[str, Any]
    removed: bytes | None  # a snapshot has this file and the next one
    changes: bytes


class _Page(NamedTuple):
    html: bytes
    problem: str = ""  # why there is no page
    trace: str = ""


def stage_report(
    settings: dataset_settings.DatasetSettings,
    staging: str,
    dataset: continue_snapshot.Continued,
    statistics: Mapping[str, Any],
    note: Callable[[str], None],
    writers: str | None = None,
) -> dict[str, catalog_lib.File]:
    """Writes the page into the staging folder; returns its size and checksum by name, {} if it cannot be made.

    Reads some dozens of small parts of staged shards, whatever the size of the dataset, and of `rejects.jsonl`, which
    is staged already.

    Args:
        settings: of the dataset.
        staging: the folder.
        dataset: as it is published.
        statistics: as in `statistics.json`.
        note: is called with a note for the user if there is no page.
        writers: token of the writer processes; None to make the page here.
    """
    if not settings.writes_report:
        return {}
    files = dataset.files
    removed, changes = files.get(snapshots.REMOVED_FILE), files.get(snapshot_report.REPORT_FILE, b"{}")
    page = _make_somewhere(_Task(settings.output, staging, dataset.catalog, statistics, removed, changes), writers)
    if not page.problem:
        try:
            uri = storage.join(staging, catalog_lib.REPORT_PAGE_FILE)
            storage.storage_of(uri).write_whole(uri, page.html)
        except Exception as e:  # the dataset is complete without it: whatever it is must not keep it from its users
            page = _explain(e)
    if page.problem:
        _LOGGER.warning("no %s\n%s", catalog_lib.REPORT_PAGE_FILE, page.trace)
        note(
            f"the dataset has no {catalog_lib.REPORT_PAGE_FILE} ({page.problem}): imagebeam report "
            f"{settings.output} makes one"
        )
        return {}
    return {catalog_lib.REPORT_PAGE_FILE: catalog_lib.entry_of(page.html)}


def _make_somewhere(task: _Task, writers: str | None) -> _Page:
    pool = writer_processes.find(writers)
    if pool is None:
        return _try_to_make(task)
    try:
        page: _Page = pool.submit(_try_to_make, task).result()
    except writer_processes.WriterError as e:
        return _explain(e)
    return page


def _try_to_make(task: _Task) -> _Page:
    try:
        return _Page(_make(task))
    except Exception as e:  # as in `stage_report`
        return _explain(e)


def _explain(error: Exception) -> _Page:
    return _Page(b"", f"{type(error).__name__}: {error}", traceback.format_exc())


def _make(task: _Task) -> bytes:
    from imagebeam.transforms.html_report import page, sample_records  # late: a writer process imports them

    def addresses(name: str) -> Sequence[str]:
        if name.startswith("../"):
            return [storage.join_relative(task.output, name)]
        # a commit that was cut short may have moved it
        return [storage.join(task.staging, posixpath.basename(name)), storage.join(task.output, name)]

    packed, catalog = task.removed, task.catalog
    return page.make_report(
        catalog,
        task.statistics,
        sample_records.ShardFiles(addresses),
        storage.join(task.staging, catalog_lib.REJECTS_FILE),
        removed=snapshots.decode_removed(packed, catalog, snapshots.REMOVED_FILE) if packed else None,
        changes=json.loads(task.changes),
        duplicates=storage.join(task.staging, catalog_lib.DUPLICATES_FILE) if catalog.duplicates else None,
    )


# --- TensorFlow Datasets ---------------------------------------------------------------------------------------------

_CORE = "tensorflow_datasets.core.features."
_VERSION = "1.0.0"
# Formats that are declared as bytes. Unless it is asked for a still picture, TensorFlow 2.21 makes an animation of one
# frame of a WebP, uint8 [1, height, width, 3]. TFDS 4.9 does not ask, so its image feature would fail.
_AS_BYTES = ("raw", "webp")
_TENSOR_TYPES = {features.BYTES: "string", features.INT64: "int64", features.FLOAT: "float32"}


def tfds_files(catalog: catalog_lib.Catalog, suffix: str, image_formats: set[str]) -> dict[str, bytes]:
    """Returns the files to write next to the shards, by name; none for compressed shards, which TFDS cannot read.

    Args:
        catalog: of the dataset.
        suffix: of its shards' names.
        image_formats: of the images in it; declared to TFDS if there is exactly one.

    Source: tensorflow_datasets/core/proto/dataset_info.proto and feature.proto, TFDS 4.9.
    """
    if catalog.compression != "none":
        return {}
    encoding = next(iter(image_formats)) if len(image_formats) == 1 else None
    described = map(_to_json, (_dataset_info(catalog, suffix), _features(catalog, encoding)))
    files = dict(zip(output_folder.TFDS_FILES, described))
    labels = labels_text(["background"] * catalog.label_base + list(catalog.labels))
    return files | dict.fromkeys(_labels_files(catalog), labels)


def _labels_files(catalog: catalog_lib.Catalog) -> list[str]:
    keys = [feature.key for feature in catalog.features if feature.source == features.LABEL]
    return [f"{key.replace('/', '.')}.labels.txt" for key in keys] if catalog.label_kind == "class" else []


def labels_text(names: list[str]) -> bytes:
    """Returns the content of a labels file: one name per line."""
    return "".join(f"{name}\n" for name in names).encode("utf-8", "surrogateescape")


def _dataset_info(catalog: catalog_lib.Catalog, suffix: str) -> dict[str, Any]:
    keys = {feature.source: feature.key for feature in catalog.features}
    described: dict[str, Any] = {
        "name": catalog.name,
        "version": _VERSION,
        "moduleName": "",
        "fileFormat": "tfrecord",
        "splits": [
            {
                "name": name,
                "shardLengths": [str(shard.records) for shard in split.shards],
                "numBytes": str(split.num_bytes),
                "filepathTemplate": f"{{SPLIT}}-{{SHARD_X_OF_Y}}{suffix}",
            }
            for name, split in catalog.splits.items()
        ],
    }
    if features.ENCODED in keys and features.LABEL in keys:
        pair = [{"featureKey": keys[features.ENCODED]}, {"featureKey": keys[features.LABEL]}]
        described["supervisedKeys"] = {"tuple": {"items": pair}}
    return described


def _features(catalog: catalog_lib.Catalog, encoding: str | None) -> dict[str, Any]:
    fields = {feature.key: _feature(feature, catalog, encoding) for feature in catalog.features}
    return _node("features_dict.FeaturesDict", {"featuresDict": {"features": fields}})


def _feature(feature: features.Feature, catalog: catalog_lib.Catalog, encoding: str | None) -> dict[str, Any]:
    if feature.shape is not None:
        return _tensor(feature)
    if feature.many:
        one = _feature(feature._replace(many=False), catalog, encoding)
        return _node("sequence_feature.Sequence", {"sequence": {"length": "-1", "feature": one}})
    if feature.source == features.ENCODED and catalog.pixels:
        return _pixels(catalog.pixels, encoding)
    if feature.source == features.ENCODED and feature.kind == features.BYTES and encoding not in _AS_BYTES:
        image = {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8"}
        return _node("image_feature.Image", {"image": image | ({"encodingFormat": encoding} if encoding else {})})
    further = _further_of(feature)
    if (form := catalog.extra_pixels.get(further)) is not None:
        shape = [None, None, form["channels"]]
        return _pixels({"dtype": form["dtype"], "shape": shape}, "raw" if form["dtype"] == "float32" else "png")
    if further and encoding not in _AS_BYTES:  # only the formats of first images are counted
        return _node("image_feature.Image", {"image": {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8"}})
    if feature.source == features.LABEL and catalog.label_kind == "class":
        num_classes = str(len(catalog.labels) + catalog.label_base)
        return _node("class_label_feature.ClassLabel", {"classLabel": {"numClasses": num_classes}})
    if feature.kind == features.BYTES:
        return _node("text_feature.Text", {"text": {}})
    return _tensor(feature)


def _tensor(feature: features.Feature) -> dict[str, Any]:
    shape = {"dimensions": [str(side) for side in feature.shape]} if feature.shape else {}
    tensor = {"shape": shape, "dtype": _TENSOR_TYPES[feature.kind], "encoding": "none"}
    return _node("tensor_feature.Tensor", {"tensor": tensor})


def _pixels(form: Mapping[str, Any], encoding: str | None) -> dict[str, Any]:
    """Returns the feature of images of another type than the usual; bare pixels of many sizes are declared as bytes."""
    dimensions = ["-1" if side is None else str(side) for side in form["shape"]]
    if encoding == "png" and dimensions[2] != "-1":
        image = {"shape": {"dimensions": ["-1", "-1", dimensions[2]]}, "dtype": form["dtype"], "encodingFormat": "png"}
        return _node("image_feature.Image", {"image": image})
    if encoding != "raw" or "-1" in dimensions:
        return _node("text_feature.Text", {"text": {}})
    tensor = {"shape": {"dimensions": dimensions}, "dtype": form["dtype"], "encoding": "bytes"}
    return _node("tensor_feature.Tensor", {"tensor": tensor})


def _further_of(feature: features.Feature) -> str:
    """Returns the name of the extra image whose bytes a feature holds; "" for other features."""
    name, part = features.extra_image_part(feature.source) or ("", "")
    return name if part == "encoded" else ""


def _node(class_name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": _CORE + class_name, **content}


def _to_json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, indent=1, sort_keys=True).encode() + b"\n"
