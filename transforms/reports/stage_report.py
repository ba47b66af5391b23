"""Stages `report.html` while a dataset is committed. A page that cannot be made never fails the commit."""

from __future__ import annotations

import json
import logging
import posixpath
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import records, snapshots, storage
from imagebeam.transforms import dataset_settings
from imagebeam.transforms.reports import snapshot_report
from imagebeam.transforms.shard import writer_processes
from imagebeam.transforms.updates import continue_snapshot

if TYPE_CHECKING:
    import array

    from imagebeam.transforms.html_report import sample_records

_LOGGER = logging.getLogger("imagebeam.transforms.stage_report")  # users select lines of logs by this name


class _Task(NamedTuple):
    """The input of the page of a dataset."""

    output: str
    staging: str  # the folder
    catalog: catalog_lib.Catalog
    statistics: Mapping[str, Any]
    removed: bytes | None  # the files of a snapshot
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
    return {catalog_lib.REPORT_PAGE_FILE: catalog_lib.File(len(page.html), records.extend_crc(0, page.html))}


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
    from imagebeam.transforms.html_report import page  # late: a writer process imports it

    return page.make_report(
        task.catalog,
        task.statistics,
        _files_of(task),
        storage.join(task.staging, catalog_lib.REJECTS_FILE),
        removed=_removed_in(task),
        changes=json.loads(task.changes),
        duplicates=storage.join(task.staging, catalog_lib.DUPLICATES_FILE) if task.catalog.duplicates else None,
    )


def _files_of(task: _Task) -> sample_records.ShardFiles:
    from imagebeam.transforms.html_report import sample_records

    def addresses(name: str) -> Sequence[str]:
        if name.startswith("../"):
            return [storage.join_relative(task.output, name)]
        # a commit that was cut short may have moved it
        return [storage.join(task.staging, posixpath.basename(name)), storage.join(task.output, name)]

    return sample_records.ShardFiles(addresses)


def _removed_in(task: _Task) -> Mapping[str, array.array[int]] | None:
    return snapshots.decode_removed(task.removed, task.catalog, snapshots.REMOVED_FILE) if task.removed else None
