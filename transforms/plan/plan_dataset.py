"""Plans the dataset from what was listed and ranked, before any image is read."""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import apache_beam as beam
from apache_beam.typehints import decorators

from imagebeam import catalog as catalog_lib
from imagebeam import storage
from imagebeam.transforms import dataset_settings, elements, kept_features, step, summaries
from imagebeam.transforms.classes import label_names
from imagebeam.transforms.output import output_folder, run_report
from imagebeam.transforms.plan import compare_with_committed, decide_plan
from imagebeam.transforms.sources import listing_rules

_LOGGER = logging.getLogger(__name__)
_LEFT_OUT = frozenset({listing_rules.UNLISTED})
_MAX_PROBLEMS = 5  # named in the error


class Table(Protocol):
    """A source whose references are rows."""

    def describe_rows(self, positions: Sequence[int]) -> list[str]:
        """Returns where the rows with these positions are: `line 5 of m.csv`."""


@dataclasses.dataclass
class _Stock:
    """Tallies and rejects added up so far; the result does not depend on the order of adding."""

    listed: int = 0
    skipped: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    problems: set[str] = dataclasses.field(default_factory=set)
    lists: label_names.ListSurvey = label_names.NO_LISTS
    features: kept_features.FeatureSurvey = kept_features.NO_FEATURES
    rejected: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    digest: int = 0
    first_unknown_label: elements.Reject | None = None  # in the order of keys
    first: elements.Reject | None = None  # in the order of keys

    def add(self, element: summaries.Tally | elements.Reject) -> None:
        if isinstance(element, elements.Reject):
            self.rejected[element.reason.value] += 1
            self.digest = (self.digest + summaries.digest_reject(element)) % summaries.DIGEST_RANGE
            self.first = _first(self.first, element)
            if element.reason is elements.Reason.UNKNOWN_LABEL:
                self.first_unknown_label = _first(self.first_unknown_label, element)
        else:
            counted = collections.Counter(element.skipped), set(element.problems), element.lists, element.features
            self.merge(_Stock(element.listed, *counted))

    def merge(self, other: "_Stock") -> None:
        self.listed += other.listed
        self.skipped.update(other.skipped)
        self.problems.update(other.problems)
        self.lists = self.lists.merge(other.lists)
        self.features = self.features.merge(other.features)
        self.rejected.update(other.rejected)
        self.digest = (self.digest + other.digest) % summaries.DIGEST_RANGE
        self.first = _first(self.first, other.first)
        self.first_unknown_label = _first(self.first_unknown_label, other.first_unknown_label)

    def result(self) -> tuple[summaries.Tally, summaries.RejectSummary]:
        """Returns what was added up."""
        tally = summaries.Tally(
            self.listed,
            dict(sorted(self.skipped.items())),
            tuple(sorted(self.problems)[:_MAX_PROBLEMS]),
            self.lists,
            self.features,
        )
        rejected = dict(sorted(self.rejected.items()))
        return tally, summaries.RejectSummary(rejected, self.digest, self.first_unknown_label, self.first)


def _first(one: elements.Reject | None, other: elements.Reject | None) -> elements.Reject | None:
    return min((reject for reject in (one, other) if reject is not None), default=None)


class _PlanFn(beam.DoFn):
    """-> DatasetPlan, Ranking; also writes a report of the plan for the launcher."""

    def __init__(
        self,
        settings: dataset_settings.DatasetSettings,
        table: Table | None,
        hints: listing_rules.HintFinder | None = None,
    ):
        self._settings = settings
        self._table = table
        self._hints = hints

    def process(
        self,
        _: bytes,
        rankings: Iterable[summaries.PartialRanking],
        tallies: Iterable[_Stock],
        rejects: Iterable[_Stock],
        comparison: summaries.Comparison | None = None,
    ) -> Iterator[Any]:
        begun = time.time()
        ranking = summaries.merge_rankings(rankings)
        stock = _merge_stocks(itertools.chain(tallies, rejects))
        duplicates = ranking.duplicates if comparison is None else comparison.duplicates
        rows = describe_repeated_rows(self._table, duplicates)
        base = self._settings.snapshot.load_base() if self._settings.snapshot is not None else None
        hint = find_hint(self._hints, *stock)
        plan = decide_plan.make_plan(self._settings, ranking, *stock, rows, base, comparison, hint)
        if comparison is None and plan.action == "write":
            plan = dataclasses.replace(plan, notes=(*plan.notes, *find_notes(self._hints, ranking)))
        plan = _finish(self._settings, plan, begun)
        num_images = sum(split.num_records for split in plan.splits.values())
        num_shards = sum(split.num_shards for split in plan.splits.values())
        step.count(step.PLANNED, num_images if plan.action == "write" else 0)
        _LOGGER.info(
            "plan %s: %s, %d images listed, %d to write into %d shards, rejected %s%s",
            plan.fingerprint,
            plan.action,
            plan.listed,
            num_images,
            num_shards,
            dict(plan.rejected),
            f": {plan.message}" if plan.action == "keep" else "",  # the commit raises why it is refused
        )
        yield plan
        yield beam.pvalue.TaggedOutput("ranking", ranking)


def _finish(
    settings: dataset_settings.DatasetSettings, plan: elements.DatasetPlan, begun: float
) -> elements.DatasetPlan:
    """Returns a plan compared with the output, with the id and the times of its run, and reports it."""
    plan = compare_with_committed.compare_with_committed(settings, plan)
    # without a launcher, as from a template, there is no lock: the run needs an id nevertheless
    run_id = settings.run_id or output_folder.new_run_id()
    plan = dataclasses.replace(plan, run_id=run_id, times={"planning": begun, "planned": time.time()})
    run_report.RunReport("planned", plan).write(settings.report)
    return plan


def _merge_stocks(stocks: Iterable[_Stock]) -> tuple[summaries.Tally, summaries.RejectSummary]:
    merged = _Stock()
    for stock in stocks:
        merged.merge(stock)
    return merged.result()


def describe_repeated_rows(table: Table | None, duplicates: Sequence[summaries.RepeatedKey]) -> Sequence[str]:
    """Returns where the two rows with the first repeated key are; () without a table, or if it cannot be read."""
    if table is not None and duplicates:
        with contextlib.suppress(OSError, ValueError):  # the error about the key matters more
            return table.describe_rows(duplicates[0].positions)
    return ()


def find_hint(hints: listing_rules.HintFinder | None, tally: summaries.Tally, rejects: summaries.RejectSummary) -> str:
    """Returns hint on a source whose images are all rejected or left out for one reason; "" if there is none."""
    reasons = list(rejects.counts) if tally.listed else [name for name in tally.skipped if name in _LEFT_OUT]
    if hints is None or len(reasons) != 1 or sum(rejects.counts.values()) != tally.listed:
        return ""
    with contextlib.suppress(OSError, ValueError):  # the rejects matter more
        return hints.hint(reasons[0])
    return ""


def find_notes(hints: listing_rules.HintFinder | None, ranking: summaries.Ranking) -> list[str]:
    """Returns notes on the source."""
    with contextlib.suppress(OSError, ValueError):
        return [] if hints is None else hints.notes({split: ranking.total(split) for split in ranking.starts})
    return []


class PlannedDataset(NamedTuple):
    """The outputs of PlanDataset."""

    plan: beam.PCollection[elements.DatasetPlan]  # one element
    ranking: beam.PCollection[summaries.Ranking]  # of all references; one element


def plan_once(
    rankings: beam.PCollection[summaries.PartialRanking], fn: beam.DoFn, **side_inputs: beam.pvalue.AsSideInput
) -> PlannedDataset:
    """Runs a step that plans for one element, with all partial rankings and other side inputs.

    Args:
        rankings: of the references.
        fn: yields the plan, and the whole ranking for the output "ranking".
        side_inputs: of `fn`, in addition to `rankings`.
    """
    planned = (
        rankings.pipeline
        | "StartPlan" >> beam.Impulse()
        | "Plan"
        >> beam.ParDo(fn, rankings=beam.pvalue.AsIter(rankings), **side_inputs)
        .with_output_types(elements.DatasetPlan, ranking=summaries.Ranking)
        .with_outputs("ranking", main="plan")
    )
    return PlannedDataset(planned.plan, planned.ranking)


@decorators.with_input_types(summaries.PartialRanking)
@dataclasses.dataclass
class PlanDataset(step.Step):
    """The partial rankings of the references -> the whole ranking, and the plan."""

    settings: dataset_settings.DatasetSettings
    tallies: beam.PCollection[summaries.Tally]
    rejects: beam.PCollection[elements.Reject]
    table: Table | None = None  # the source, if its references are rows
    comparison: "beam.pvalue.AsSingleton | None" = None  # with the snapshot before
    hints: listing_rules.HintFinder | None = None  # of the source, if it can look for what is wrong

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, rankings: beam.PCollection[summaries.PartialRanking]) -> PlannedDataset:
        # Few elements are left of each, so that they are side inputs of the plan: a combine costs 30 ms of start-up.
        tallies = self.tallies | "AddTallies" >> beam.ParDo(step.AddUpBundleFn(_Stock)).with_output_types(_Stock)
        rejects = self.rejects | "AddRejects" >> beam.ParDo(step.AddUpBundleFn(_Stock)).with_output_types(_Stock)
        compared = {} if self.comparison is None else {"comparison": self.comparison}
        return plan_once(
            rankings,
            _PlanFn(self.settings, self.table, self.hints),
            tallies=beam.pvalue.AsIter(tallies),
            rejects=beam.pvalue.AsIter(rejects),
            **compared,
        )


def _stage_inputs(plan: elements.DatasetPlan, settings: dataset_settings.DatasetSettings) -> Iterator[None]:
    if plan.action == "write":
        run_report.write_inputs(settings.paths.staging(plan.fingerprint), plan)
    yield from ()


@dataclasses.dataclass
class StageInputs(step.Step):
    """Writes into the staging folder what the dataset is made of, before the first shard is written."""

    settings: dataset_settings.DatasetSettings

    def expand(self, plan: beam.PCollection[elements.DatasetPlan]) -> beam.PCollection[None]:
        return plan | "Write" >> beam.FlatMap(_stage_inputs, settings=self.settings)


def plan_compaction(
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
    )


def _snapshot_of(settings: dataset_settings.DatasetSettings) -> dataset_settings.SnapshotSettings:
    assert settings.snapshot is not None, "only snapshots are compacted"
    return settings.snapshot


class _PlanCompactionFn(beam.DoFn):
    """-> DatasetPlan, Ranking; also writes a report of the plan for the launcher."""

    def __init__(self, settings: dataset_settings.DatasetSettings):
        self._settings = settings

    def process(
        self, _: bytes, rankings: Iterable[summaries.PartialRanking], rejected: Mapping[str, int]
    ) -> Iterator[Any]:
        begun = time.time()
        ranking = summaries.merge_rankings(rankings)
        compacted = catalog_lib.load_catalog(_snapshot_of(self._settings).compacted_folder)
        yield _finish(self._settings, plan_compaction(self._settings, compacted, ranking, rejected), begun)
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
    def expand(self, rankings: beam.PCollection[summaries.PartialRanking]) -> PlannedDataset:
        reasons = self.early_rejects | "Reasons" >> beam.Map(_reason_of).with_output_types(str)
        rejected = reasons | "CountReasons" >> beam.combiners.Count.PerElement()  # (reason, number)
        planned = plan_once(rankings, _PlanCompactionFn(self.settings), rejected=beam.pvalue.AsDict(rejected))
        take_over = beam.FlatMap(_take_over_transform, settings=self.settings).with_output_types(elements.DatasetPlan)
        return PlannedDataset(planned.plan | "TakeOverTransform" >> take_over, planned.ranking)
