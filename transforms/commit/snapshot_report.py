"""Reports what a run changes in a dataset of snapshots, and how far the snapshot drifts from the one before.

`report.json` is a file of the snapshot:

```
{"snapshot": "000003", "base": "000002", "compacted": null,
 "splits": {split: {"added", "changed", "removed", "unchanged": images, "rejected": those that were read and rejected,
                    "examples": added + changed + unchanged}},
 "labels": {split: {label: {"written", "removed", "unchanged"}}},
 "written": {split: {"shards", "records", "bytes"}},
 "rejects": {reason: {"new", "kept", "gone"}},
 "drift": {"labels": {split: figure}, "sizes": {"bytes", "height", "width": figure}, "rejects": {reason: figure}}}
```

A changed image counts under its label as removed and as written. A reject is new if the snapshot before has no reject
of the same key and reason. `rejects` is null if the rejects of the snapshot before are lost, `drift` if there is no
snapshot before. A figure has the fields of `snapshot_drift.to_json`.
"""

from __future__ import annotations

import array
import collections
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import errors, storage
from imagebeam.transforms import dataset_settings, elements, summaries
from imagebeam.transforms.shard import statistics
from imagebeam.transforms.snapshots import snapshot_drift
from imagebeam.transforms.updates import continue_snapshot

REPORT_FILE = "report.json"

_PURPOSE = b"imagebeam.report"
_MEASURES = ("bytes", "height", "width")

RejectHashes = Mapping[str, "array.array[int]"]  # by reason: 64-bit hashes of the keys, so that millions fit in memory


class RejectChanges(NamedTuple):
    """Numbers of rejects of one reason, compared with the snapshot before."""

    new: int
    kept: int
    gone: int


def add_report(
    settings: dataset_settings.DatasetSettings, dataset: continue_snapshot.Continued, rejects: Iterable[bytes]
) -> continue_snapshot.Continued:
    """Returns the dataset with its report among its files.

    Args:
        settings: of the dataset.
        dataset: as it is committed.
        rejects: the lines of `rejects.jsonl`.

    Raises:
        DriftError: if the drift is too large, and the run has to fail then. The report stays in the metadata folder.
    """
    snapshot = settings.snapshot
    if snapshot is None or dataset.run is None:
        return dataset
    earlier = snapshot.base_folder if snapshot.base else snapshot.compacted_folder
    known = load_reject_hashes(earlier) if snapshot.continues else {}
    changes = None if known is None else compare_reject_hashes(known, hash_rejects(rejects))
    report = make_report(snapshot, dataset.run, dataset.catalog, changes)
    content = json.dumps(report, indent=1).encode() + b"\n"
    excess = snapshot_drift.describe_excess(report["drift"] or {})
    if excess and snapshot.fail_on_drift:
        uri = settings.paths.drift_report
        storage.storage_of(uri).write_whole(uri, content)
        raise errors.DriftError(
            "snapshot-drift",
            f"snapshot {snapshot.name} drifts too far from {snapshot.base}: {'; '.join(excess)}; nothing was "
            f"committed; the report is in {uri}; look whether the input is as it should be, and commit the finished "
            "shards by the same command without --fail-on-drift, or set a higher update.drift",
        )
    return dataset._replace(files={**dataset.files, REPORT_FILE: content})


def make_report(
    settings: dataset_settings.SnapshotSettings,
    run: continue_snapshot.Run,
    catalog: catalog_lib.Catalog,
    rejects: Mapping[str, RejectChanges] | None,
) -> dict[str, Any]:
    """Returns the report of a snapshot.

    Args:
        settings: of the snapshot.
        run: what it has written and removed.
        catalog: of the snapshot.
        rejects: numbers by reason; None if they cannot be compared.
    """
    compared = run.comparison
    splits = {}
    for split in sorted({*catalog.splits, *compared.removed, *compared.rejected}, key=_in_order(catalog)):
        counts = {name: getattr(compared, name).get(split, 0) for name in (*summaries.CHANGES, "rejected")}
        examples = catalog.splits[split].num_examples if split in catalog.splits else 0
        if settings.compacted:
            counts["unchanged"] = examples
        splits[split] = counts | {"examples": examples}
    labels = {}
    for split in splits:
        before = run.base_statistics.get(split, {}).get("labels", {})
        written = run.statistics.get(split, {}).get("labels", {}) if not settings.compacted else {}
        removed = compared.removed_labels.get(split, {})
        labels[split] = {
            label: {
                "written": written.get(label, 0),
                "removed": removed.get(label, 0),
                "unchanged": max(0, before.get(label, 0) - removed.get(label, 0)),
            }
            for label in sorted({*before, *written, *removed})
        }
    return {
        "snapshot": settings.name,
        "base": settings.base or None,
        "compacted": settings.compacted or None,
        "splits": splits,
        "labels": {split: counts for split, counts in labels.items() if counts},
        "written": {
            split: {"shards": len(each.shards), "records": each.num_examples, "bytes": each.num_bytes}
            for split, each in run.written.splits.items()
        },
        "rejects": None if rejects is None else {reason: each._asdict() for reason, each in sorted(rejects.items())},
        "drift": None if run.base is None else snapshot_drift.to_json(_figures(run, run.base, rejects), settings.drift),
    }


def _in_order(catalog: catalog_lib.Catalog) -> Any:
    order = {split: index for index, split in enumerate(catalog.splits)}
    return lambda split: (order.get(split, len(order)), split)


def _figures(
    run: continue_snapshot.Run, base: catalog_lib.Catalog, rejects: Mapping[str, RejectChanges] | None
) -> Iterator[snapshot_drift.Figure]:
    """Yields the differences between a snapshot and the one before, as far as they are known."""
    before, written = run.base_statistics, run.statistics
    for split, counted in before.items():
        figure = snapshot_drift.compare_labels(
            split,
            counted.get("labels", {}),
            written.get(split, {}).get("labels", {}),
            run.comparison.removed_labels.get(split, {}),
        )
        if figure is not None:
            yield figure
    of_all = [statistics.merge_statistics(each.values()) for each in (before, written)]
    for name in _MEASURES:
        known, added = (snapshot_drift.sizes_of(counted, name) for counted in of_all)
        figure = snapshot_drift.compare_sizes(name, known, added) if known and added else None
        if figure is not None:
            yield figure
    if rejects is not None:
        new = {reason: each.new for reason, each in rejects.items() if each.new}
        num_read = run.written.counts.written + sum(new.values())
        yield from snapshot_drift.compare_rejects(base.counts.rejected, base.counts.listed, new, num_read)


def load_reject_hashes(folder: str) -> RejectHashes | None:
    """Returns the rejects of the snapshot in a folder; None if they are lost."""
    uri = storage.join(folder, catalog_lib.REJECTS_FILE)
    try:
        with storage.storage_of(uri).open_read(uri) as file:
            return hash_rejects(file)
    except FileNotFoundError:
        return None


def hash_rejects(lines: Iterable[bytes]) -> RejectHashes:
    """Returns the hashes of the keys in lines of `rejects.jsonl`, by reason."""
    hashes: dict[str, array.array[int]] = collections.defaultdict(lambda: array.array("Q"))
    for line in lines:
        fields = json.loads(line)
        hashes[fields["reason"]].append(elements.hash64(fields["key"], 0, _PURPOSE))
    return dict(hashes)


def compare_reject_hashes(before: RejectHashes, now: RejectHashes) -> dict[str, RejectChanges]:
    """Returns how many rejects are new, the same, and gone, by reason. A key may occur more than once."""
    import numpy as np  # late: a converting process has no use for it before the commit

    found = {}
    for reason in {**before, **now}:
        old, new = before.get(reason, array.array("Q")), now.get(reason, array.array("Q"))
        (old_keys, old_counts), (new_keys, new_counts) = (
            np.unique(np.asarray(each, np.uint64), return_counts=True) for each in (old, new)
        )
        _, in_old, in_new = np.intersect1d(old_keys, new_keys, assume_unique=True, return_indices=True)
        kept = int(np.minimum(old_counts[in_old], new_counts[in_new]).sum())
        found[reason] = RejectChanges(len(new) - kept, kept, len(old) - kept)
    return found


def load_report(folder: str) -> dict[str, Any]:
    """Returns the report of the snapshot in a folder; {} if it has none.

    Raises:
        CatalogError: if it is damaged.
    """
    uri = storage.join(folder, REPORT_FILE)
    try:
        return json.loads(storage.storage_of(uri).read(uri))
    except FileNotFoundError:
        return {}
    except ValueError as e:
        raise errors.CatalogError(
            "snapshot-report-damaged", f"{uri} is damaged ({e}): restore it, or remove it; only reports read it"
        ) from e


def notes_of(settings: dataset_settings.SnapshotSettings | None) -> list[str]:
    """Returns a note for each difference of the committed snapshot that is above its threshold."""
    report = load_report(settings.folder) if settings is not None else {}
    excess = snapshot_drift.describe_excess(report.get("drift") or {})
    return [f"drift since snapshot {report['base']}: {text}" for text in excess]
