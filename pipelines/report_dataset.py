"""Writes `report.html` for a dataset that is committed."""

from __future__ import annotations

import os

from imagebeam import catalog as catalog_lib
from imagebeam import errors, snapshots, storage
from imagebeam.pipelines import verify_dataset
from imagebeam.transforms.html_report import page, sample_records
from imagebeam.transforms.images import pillow_decoder
from imagebeam.transforms.reports import snapshot_report


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
        ConfigError: if Pillow is not installed, there is no such snapshot, or `output` is in the dataset's folder or
            cannot be written.
    """
    pillow_decoder.require_pillow("report")
    output = os.fspath(output)
    if not output:
        raise errors.ConfigError("--output is empty: give a file")
    given = verify_dataset.find_folder(os.fspath(directory))
    folder, catalog = snapshots.find(given, snapshot)
    target = storage.normalize(output)
    if any(_is_below(target, each) for each in (folder, given, *_dataset_around(folder))):
        raise errors.ConfigError(
            f"--output {output!r} is in the folder of the dataset, where imagebeam verify compares the files with the "
            "catalog; give a file outside of it"
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


def _is_below(target: str, folder: str) -> bool:
    """Returns whether a file is in a folder or below it; links of a local path are followed."""
    if storage.storage_of(target).is_local and storage.storage_of(folder).is_local:
        target, folder = os.path.realpath(target), os.path.realpath(folder)
    return target.startswith(storage.join(folder, ""))


def _make(folder: str, catalog: catalog_lib.Catalog) -> bytes:
    return page.make_report(
        catalog,
        catalog_lib.load_statistics(folder),
        sample_records.ShardFiles(lambda name: [storage.join_relative(folder, name)]),
        storage.join(folder, catalog_lib.REJECTS_FILE),
        removed=snapshots.load_removed(folder, catalog),
        changes=snapshot_report.load_report(folder),
        duplicates=storage.join(folder, catalog_lib.DUPLICATES_FILE) if catalog.duplicates else None,
    )
