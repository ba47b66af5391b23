"""Plans a snapshot of records that another one holds already, and takes over what is not in its shards."""

import dataclasses
import hashlib
import logging
import time
from collections.abc import Iterator

import apache_beam as beam

from imagebeam import catalog as catalog_lib
from imagebeam import storage
from imagebeam.transforms import (
    compare_with_committed,
    dataset_settings,
    elements,
    output_paths,
    run_report,
    snapshot_settings,
    summaries,
    transform_columns,
)
from imagebeam.transforms.shard import shard_writer

_LOGGER = logging.getLogger(__name__)


def make_plan(
    settings: dataset_settings.DatasetSettings, compacted: catalog_lib.Catalog, ranking: summaries.Ranking
) -> elements.DatasetPlan:
    """Returns the plan to write all living records of a snapshot into new shards.

    Args:
        settings: of the new snapshot.
        compacted: catalog of the snapshot whose records are copied.
        ranking: of these records.
    """
    assert settings.snapshot is not None, "only snapshots are compacted"
    splits = {}
    for split in compacted.splits:
        num_records, num_bytes = ranking.total(split), ranking.num_bytes[split]
        num_shards = settings.sizing.shards_of(split, num_records, num_bytes)
        splits[split] = elements.SplitPlan(num_records, num_bytes, num_shards)
    num_images = sum(split.num_records for split in splits.values())
    parts = ("compacted", compacted.fingerprint)
    return elements.DatasetPlan(
        action="write",
        message="",
        exit_code=0,
        fingerprint=hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest(),
        splits=splits,
        labels=compacted.labels,
        listed=compacted.counts.listed,
        rejected=compacted.counts.rejected,
        passed_over=compacted.counts.passed_over,
        inputs=compacted.inputs,
        snapshot={
            **compacted.snapshot,
            "name": settings.snapshot.name,
            "base": None,
            "compacted": settings.snapshot.compacted,
            "added": 0,
            "changed": 0,
            "removed": 0,
            "unchanged": num_images,
        },
        run_id=settings.run_id or output_paths.new_run_id(),
    )


class _PlanFn(beam.DoFn):
    """-> DatasetPlan; also writes a report of it for the launcher."""

    def __init__(self, settings: dataset_settings.DatasetSettings, snapshot: snapshot_settings.SnapshotSettings):
        self._settings = settings
        self._snapshot = snapshot

    def process(self, ranking: summaries.Ranking) -> Iterator[elements.DatasetPlan]:
        begun = time.time()
        compacted = catalog_lib.load_catalog(self._snapshot.compacted_folder)
        plan = make_plan(self._settings, compacted, ranking)
        plan = compare_with_committed.compare_with_committed(self._settings, plan)
        plan = dataclasses.replace(plan, times={"planning": begun, "planned": time.time()})
        run_report.write_report(self._settings.report, "planned", plan)
        _LOGGER.info("planned %s: %s", self._settings.output, plan.action)
        yield plan


class _TakeOverFn(beam.DoFn):
    """DatasetPlan -> names of the staged files of rejects; also stages the saved transform of columns."""

    def __init__(self, settings: dataset_settings.DatasetSettings, snapshot: snapshot_settings.SnapshotSettings):
        self._settings = settings
        self._snapshot = snapshot

    def process(self, plan: elements.DatasetPlan) -> Iterator[str]:
        if plan.action != "write":
            return
        folder, staging = self._snapshot.compacted_folder, self._settings.paths.staging(plan.fingerprint)
        store = storage.storage_of(staging)
        store.make_directories(staging)
        if self._settings.analyze is not None:
            transform_columns.stage(folder, staging)
        name = f"early-0{shard_writer.REJECTS_SUFFIX}"
        rejects = storage.join(folder, catalog_lib.REJECTS_FILE)
        store.write_whole(storage.join(staging, name), storage.storage_of(rejects).read(rejects), durable=False)
        yield name


class PlanCompaction(beam.PTransform):
    """The ranking of the records -> one DatasetPlan."""

    def __init__(self, settings: dataset_settings.DatasetSettings, snapshot: snapshot_settings.SnapshotSettings):
        super().__init__()
        self._settings, self._snapshot = settings, snapshot

    def expand(self, ranking: beam.PCollection[summaries.Ranking]) -> beam.PCollection[elements.DatasetPlan]:
        plan = beam.ParDo(_PlanFn(self._settings, self._snapshot)).with_output_types(elements.DatasetPlan)
        return ranking | "Plan" >> plan


class TakeOverFiles(beam.PTransform):
    """The plan -> names of the staged files of rejects."""

    def __init__(self, settings: dataset_settings.DatasetSettings, snapshot: snapshot_settings.SnapshotSettings):
        super().__init__()
        self._settings, self._snapshot = settings, snapshot

    def expand(self, plan: beam.PCollection[elements.DatasetPlan]) -> beam.PCollection[str]:
        return plan | "TakeOver" >> beam.ParDo(_TakeOverFn(self._settings, self._snapshot)).with_output_types(str)
