"""Stages `report.html` while a dataset is committed. A page that cannot be made never fails the commit."""

from __future__ import annotations

import json
import logging
import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from imagebeam import catalog as catalog_lib
from imagebeam import records, snapshots, storage
from imagebeam.transforms import commit_snapshot, dataset_settings, snapshot_report
from imagebeam.transforms.html_report import make_report, sample_records

_LOGGER = logging.getLogger(__name__)


def stage_report(
    settings: dataset_settings.DatasetSettings,
    staging: str,
    dataset: commit_snapshot.Continued,
    statistics: Mapping[str, Any],
    note: Callable[[str], None],
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
    """
    if not settings.writes_report:
        return {}
    try:
        page = _make(settings, dataset, statistics, staging)
        uri = storage.join(staging, catalog_lib.REPORT_PAGE_FILE)
        storage.storage_of(uri).write_whole(uri, page)
    except Exception as e:  # the dataset is complete without it: whatever it is must not keep it from its users
        _LOGGER.warning("no %s", catalog_lib.REPORT_PAGE_FILE, exc_info=True)
        note(
            f"the dataset has no {catalog_lib.REPORT_PAGE_FILE} ({type(e).__name__}: {e}): imagebeam report "
            f"{settings.output} makes one"
        )
        return {}
    return {catalog_lib.REPORT_PAGE_FILE: catalog_lib.File(len(page), records.extend_crc(0, page))}


def _make(
    settings: dataset_settings.DatasetSettings,
    dataset: commit_snapshot.Continued,
    statistics: Mapping[str, Any],
    staging: str,
) -> bytes:
    def addresses(name: str) -> Sequence[str]:
        if name.startswith("../"):
            return [storage.join_relative(settings.output, name)]
        # a commit that was cut short may have moved it
        return [storage.join(staging, posixpath.basename(name)), storage.join(settings.output, name)]

    catalog, files = dataset.catalog, dataset.files
    removed = files.get(snapshots.REMOVED_FILE)
    return make_report.make_report(
        catalog,
        statistics,
        sample_records.ShardFiles(addresses),
        storage.join(staging, catalog_lib.REJECTS_FILE),
        removed=snapshots.decode_removed(removed, catalog, snapshots.REMOVED_FILE) if removed else None,
        changes=json.loads(files.get(snapshot_report.REPORT_FILE, b"{}")),
        duplicates=storage.join(staging, catalog_lib.DUPLICATES_FILE) if catalog.duplicates else None,
    )
