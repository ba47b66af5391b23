"""Writes `report.html` for a dataset that is committed."""

from __future__ import annotations

import os

from imagebeam import catalog as catalog_lib
from imagebeam import errors, find_snapshot, shard_names, snapshots, storage
from imagebeam.pipelines import verify_dataset
from imagebeam.transforms.classes import object_classes
from imagebeam.transforms.html_report import make_report, sample_records
from imagebeam.transforms.images import pillow_decoder
from imagebeam.transforms.output import output_folder, tfds_metadata
from imagebeam.transforms.reports import snapshot_report

_OWN_FILES = frozenset(
    (
        catalog_lib.CATALOG_FILE,
        catalog_lib.DUPLICATES_FILE,
        catalog_lib.LABELS_FILE,
        catalog_lib.MASK_LABELS_FILE,
        object_classes.LABEL_MAP_FILE,
        catalog_lib.REJECTS_FILE,
        catalog_lib.REPORT_PAGE_FILE,
        catalog_lib.STATISTICS_FILE,
        snapshots.LATEST_FILE,
        snapshots.REMOVED_FILE,
        snapshot_report.REPORT_FILE,
        *tfds_metadata.LOADED_BY,
    )
)
_OWN_FOLDERS = frozenset(
    (
        catalog_lib.CONTROL_DIRECTORY,
        catalog_lib.INDEX_DIRECTORY,
        catalog_lib.STATE_DIRECTORY,
        snapshots.DIRECTORY,
        *output_folder.TRANSFORM_FOLDERS,
    )
)
_LABELS_SUFFIX = ".labels.txt"  # of names of classes for TFDS


def write_report(
    directory: str | os.PathLike[str], output: str | os.PathLike[str], snapshot: str | int | None = None
) -> int:
    """Writes the page of a dataset; returns its size in bytes.

    Reads some dozens of small parts of the shards, whatever the size of the dataset.

    Args:
        directory: of the dataset, a path or an address.
        output: path or address of the page, which is replaced.
        snapshot: name or number of a snapshot; None for the latest.

    Raises:
        CatalogError: if there is no dataset, or a file of it is damaged.
        ConfigError: if Pillow is not installed, there is no such snapshot, or `output` belongs to the dataset or
            cannot be written.
    """
    pillow_decoder.require_pillow("report")
    output = os.fspath(output)
    if not output:
        raise errors.ConfigError("--output is empty: give a file")
    given = verify_dataset.find_folder(os.fspath(directory))
    folder, catalog = find_snapshot.find(given, snapshot)
    target = storage.normalize(output)
    if any(_is_owned(target, each) for each in (folder, given, *_dataset_around(folder))):
        raise errors.ConfigError(
            f"--output {output!r} is a file of the dataset, which imagebeam verify compares with the catalog, or has "
            "the name of one; give a file outside of it"
        )
    page = _make(folder, catalog)
    try:
        storage.storage_of(target).write_whole(target, page, durable=False)
    except OSError as e:
        raise errors.ConfigError(
            f"--output {output!r} cannot be written ({e.strerror or e}); give a file in a folder that exists"
        ) from e
    return len(page)


def _dataset_around(folder: str) -> list[str]:
    """Returns the folder of the dataset that a folder is a snapshot of."""
    dataset, _, last = folder.rpartition(f"/{snapshots.DIRECTORY}/")
    return [dataset] if dataset and snapshots.is_name(last) else []


def _is_owned(target: str, folder: str) -> bool:
    """Returns whether a file is in the folder of a dataset, under a name that imagebeam writes or may write later."""
    if storage.storage_of(target).is_local and storage.storage_of(folder).is_local:
        parent, name = os.path.split(target)
        target, folder = os.path.join(os.path.realpath(parent), name), os.path.realpath(folder)
    start = storage.join(folder, "")
    if not target.startswith(start):
        return False
    first, slash, _ = target.removeprefix(start).partition("/")
    if slash:
        return first in _OWN_FOLDERS
    suffixes = (shard_names.suffix_of(first),)
    return first in _OWN_FILES or first.endswith(_LABELS_SUFFIX) or shard_names.is_shard_name(first, suffixes)


def _make(folder: str, catalog: catalog_lib.Catalog) -> bytes:
    return make_report.make_report(
        catalog,
        catalog_lib.load_statistics(folder),
        sample_records.ShardFiles(lambda name: [storage.join_relative(folder, name)]),
        storage.join(folder, catalog_lib.REJECTS_FILE),
        removed=find_snapshot.load_removed(folder, catalog),
        changes=snapshot_report.load_report(folder),
        duplicates=storage.join(folder, catalog_lib.DUPLICATES_FILE) if catalog.duplicates else None,
    )
