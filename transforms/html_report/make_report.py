"""Makes the page of a dataset: gathers the facts by a few small reads, whatever the size of the dataset."""

from __future__ import annotations

import array
from collections.abc import Mapping, Sequence
from typing import Any

from imagebeam import catalog as catalog_lib
from imagebeam.transforms.html_report import dataset_facts, page, sample_records, thumbnails


def read_share(
    catalog: catalog_lib.Catalog,
    statistics: Mapping[str, Any],
    files: sample_records.ShardFiles,
    removed: Mapping[str, array.array[int]] | None = None,
    index: int = 0,
    count: int = 1,
) -> list[sample_records.ReadPlace]:
    """Returns a share of the thumbnails of `report.html`. Arguments as for `make_report` and `sample_records`."""
    maker = thumbnails.maker_of(catalog, statistics)
    return sample_records.read_share(catalog, files, maker.make, removed, index, count)


def make_report(
    catalog: catalog_lib.Catalog,
    statistics: Mapping[str, Any],
    files: sample_records.ShardFiles,
    rejects: str,
    *,
    removed: Mapping[str, array.array[int]] | None = None,
    changes: Mapping[str, Any] | None = None,
    duplicates: str | None = None,
    notes: tuple[str, ...] = (),
    shares: Sequence[Sequence[sample_records.ReadPlace]] = (),
) -> bytes:
    """Returns `report.html` of a dataset. The same dataset gives the same bytes, with the same version of Pillow.

    What cannot be read is missing from the page, with a note in its place.

    Args:
        catalog: of the dataset.
        statistics: as in `statistics.json`.
        files: where its shards are.
        rejects: address of its `rejects.jsonl`.
        removed: indexes of removed records by the name of their shard.
        changes: `report.json` of a snapshot.
        duplicates: address of its `duplicates.jsonl`; None if there is none.
        notes: further notes.
        shares: thumbnails that `read_share` has made already; () to make all of them here.
    """
    samples = sample_records.join_shares(catalog, shares or [read_share(catalog, statistics, files, removed)], removed)
    examples: Mapping[str, Any] = {}
    if sum(catalog.counts.rejected.values()):
        try:
            examples = sample_records.find_reject_examples(rejects)
        except OSError as e:
            notes = (*notes, f"{catalog_lib.REJECTS_FILE} cannot be read ({e})")
    repeated: Sequence[Mapping[str, Any]] = ()
    if duplicates is not None:
        try:
            repeated = sample_records.find_duplicates(duplicates)
        except OSError as e:
            notes = (*notes, f"{catalog_lib.DUPLICATES_FILE} cannot be read ({e})")
    return page.render(
        dataset_facts.DatasetFacts(catalog, statistics, samples, examples, changes or {}, repeated, notes)
    )
