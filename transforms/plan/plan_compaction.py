"""Plans a snapshot of what another one holds already: its records, and the images that it rejected."""

import dataclasses
import hashlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam
from apache_beam.typehints import decorators

from imagebeam import catalog as catalog_lib
from imagebeam import storage
from imagebeam.transforms import dataset_settings, elements, step, summaries
from imagebeam.transforms.output import output_folder, run_report
from imagebeam.transforms.plan import compare_with_committed, decide_plan, plan_dataset

_LOGGER = logging.getLogger(__name__)


def make_plan(
    settings: dataset_settings.DatasetSettings,
    compacted: catalog_lib.Catalog,
    ranking: summaries.Ranking,
    rejected: Mapping[str, int],
) -> elements.DatasetPlan:
    """Returns the plan to write all living records of a snapshot into new shards.

    Args:
        settings: of the new snapshot.
        compacted: catalog of the snapshot whose records are copied.
        ranking: of these records, and of the images that were rejected while shards were written.
        rejected: number of all other rejects, by reason.
    """
    snapshot = _snapshot_of(settings)
    splits = {}
    for split in decide_plan.in_order(settings, compacted.splits):
        num_records, num_bytes = ranking.total(split), ranking.num_bytes[split]
        num_shards = settings.sizing.shards_of(split, num_records, num_bytes)
        splits[split] = elements.SplitPlan(num_records, num_bytes, num_shards)
    parts = ("compacted", compacted.fingerprint)
    return elements.DatasetPlan(
        action="write",
        message="",
        fingerprint=hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest(),
        splits=splits,
        labels=compacted.labels,
        listed=compacted.counts.listed,
        rejected=dict(sorted(rejected.items())),
        skipped=compacted.counts.skipped,
        inputs=compacted.inputs,
        snapshot={
            **compacted.snapshot,
            "name": snapshot.name,
            "base": None,
            "compacted": snapshot.compacted,
            "added": 0,
            "changed": 0,
            "removed": 0,
            "unchanged": compacted.counts.written,
        },
        run_id=settings.run_id or output_folder.new_run_id(),
    )


def _snapshot_of(settings: dataset_settings.DatasetSettings) -> dataset_settings.SnapshotSettings:
    assert settings.snapshot is not None, "only snapshots are compacted"
    return settings.snapshot


class _PlanFn(beam.DoFn):
    """-> DatasetPlan, Ranking; also writes a report of the plan for the launcher."""

    def __init__(self, settings: dataset_settings.DatasetSettings):
        self._settings = settings

    def process(
        self, _: bytes, rankings: Iterable[summaries.PartialRanking], rejected: Mapping[str, int]
    ) -> Iterator[Any]:
        begun = time.time()
        ranking = summaries.merge_rankings(rankings)
        compacted = catalog_lib.load_catalog(_snapshot_of(self._settings).compacted_folder)
        plan = make_plan(self._settings, compacted, ranking, rejected)
        plan = compare_with_committed.compare_with_committed(self._settings, plan)
        plan = dataclasses.replace(plan, times={"planning": begun, "planned": time.time()})
        run_report.RunReport("planned", plan).write(self._settings.report)
        _LOGGER.info("planned %s: %s", self._settings.output, plan.action)
        yield plan
        yield beam.pvalue.TaggedOutput("ranking", ranking)


def _take_over_transform(
    plan: elements.DatasetPlan, settings: dataset_settings.DatasetSettings
) -> Iterator[elements.DatasetPlan]:
    """DatasetPlan -> DatasetPlan; stages the saved transform of columns."""
    if plan.action == "write" and settings.analyze is not None:
        staging = settings.paths.staging(plan.fingerprint)
        storage.storage_of(staging).make_directories(staging)
        output_folder.stage(_snapshot_of(settings).compacted_folder, staging)
    yield plan


def _reason_of(reject: elements.Reject) -> str:
    return reject.reason.value


@decorators.with_input_types(summaries.PartialRanking)
@dataclasses.dataclass
class PlanCompaction(step.Step):
    """The partial rankings of the records -> the whole ranking, and the plan."""

    settings: dataset_settings.DatasetSettings
    early_rejects: beam.PCollection[elements.Reject]  # those that take no place in the order

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, rankings: beam.PCollection[summaries.PartialRanking]) -> plan_dataset.PlannedDataset:
        reasons = self.early_rejects | "Reasons" >> beam.Map(_reason_of).with_output_types(str)
        rejected = reasons | "CountReasons" >> beam.combiners.Count.PerElement()  # (reason, number)
        planned = plan_dataset.plan_once(rankings, _PlanFn(self.settings), rejected=beam.pvalue.AsDict(rejected))
        take_over = beam.FlatMap(_take_over_transform, settings=self.settings).with_output_types(elements.DatasetPlan)
        return plan_dataset.PlannedDataset(planned.plan | "TakeOverTransform" >> take_over, planned.ranking)
