"""Plans the dataset from what was listed and ranked and what the output holds already, before any image is read."""

import collections
import contextlib
import dataclasses
import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import apache_beam as beam
from apache_beam.typehints import decorators

from imagebeam import catalog as catalog_lib
from imagebeam import errors, snapshots, storage
from imagebeam.transforms import dataset_settings, elements, step, summaries
from imagebeam.transforms.output import croissant, output_folder, run_report
from imagebeam.transforms.plan import decide_plan
from imagebeam.transforms.shard import shard_writer
from imagebeam.transforms.sources import listing_rules

_LOGGER = logging.getLogger(__name__)
_LEFT_OUT = frozenset({listing_rules.UNLISTED})


class Table(Protocol):
    """A source whose references are rows."""

    def describe_rows(self, positions: Sequence[int]) -> list[str]:
        """Returns where the rows with these positions are: `line 5 of m.csv`."""


@dataclasses.dataclass
class _Stock:
    """Tallies and rejects added up so far; the result does not depend on the order of adding."""

    tally: summaries.Tally = summaries.NO_TALLY
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
            self.tally = self.tally.merge(element)

    def merge(self, other: "_Stock") -> None:
        self.tally = self.tally.merge(other.tally)
        self.rejected.update(other.rejected)
        self.digest = (self.digest + other.digest) % summaries.DIGEST_RANGE
        self.first = _first(self.first, other.first)
        self.first_unknown_label = _first(self.first_unknown_label, other.first_unknown_label)

    def result(self) -> tuple[summaries.Tally, summaries.RejectSummary]:
        """Returns what was added up."""
        rejected = dict(sorted(self.rejected.items()))
        return self.tally, summaries.RejectSummary(rejected, self.digest, self.first_unknown_label, self.first)


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
        run_id: str = "",
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
        plan = finish_plan(self._settings, plan, begun, run_id)
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


def finish_plan(
    settings: dataset_settings.DatasetSettings, plan: elements.DatasetPlan, begun: float, run_id: str = ""
) -> elements.DatasetPlan:
    """Returns a plan compared with the output, with the id and the times of its run, and reports it.

    `run_id` is that of a run without a launcher, which holds the lock.
    """
    plan = compare_with_committed(settings, plan)
    # from a template there is neither a launcher nor a lock: the run needs an id nevertheless
    held = settings.output if run_id else ""
    run_id = run_id or settings.run_id or output_folder.new_run_id()
    times = {"planning": begun, "planned": time.time()}
    plan = dataclasses.replace(plan, run_id=run_id, held_output=held, times=times)
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
    ranking: beam.PCollection[summaries.Ranking]  # one element: the ranks of all references


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
    hints: listing_rules.HintFinder | None = None  # the source, if it can look for what is wrong
    run_id: "beam.PCollection[str] | None" = None  # of a run without a launcher, once it holds the lock

    @decorators.no_annotations  # Beam warns of an output that is a NamedTuple
    def expand(self, rankings: beam.PCollection[summaries.PartialRanking]) -> PlannedDataset:
        # Few elements are left of each, so that they are side inputs of the plan: a combine costs 30 ms of start-up.
        tallies = self.tallies | "AddTallies" >> beam.ParDo(step.AddUpBundleFn(_Stock)).with_output_types(_Stock)
        rejects = self.rejects | "AddRejects" >> beam.ParDo(step.AddUpBundleFn(_Stock)).with_output_types(_Stock)
        known: dict[str, Any] = {} if self.comparison is None else {"comparison": self.comparison}
        if self.run_id is not None:
            known["run_id"] = beam.pvalue.AsSingleton(self.run_id)
        return plan_once(
            rankings,
            _PlanFn(self.settings, self.table, self.hints),
            tallies=beam.pvalue.AsIter(tallies),
            rejects=beam.pvalue.AsIter(rejects),
            **known,
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


# --- what the output holds already: a committed dataset, other files, staged shards ----------------------------------


def compare_with_committed(
    settings: dataset_settings.DatasetSettings, plan: elements.DatasetPlan
) -> elements.DatasetPlan:
    """Returns `plan`, kept or refused if the output holds this dataset or something else; reads the output.

    The plan records the catalog that it was compared with: the commit replaces this one and no other. A plan that
    still writes gets notes on shards of earlier runs that it cannot use.
    """
    if plan.action != "write":
        return plan
    try:
        plan = _compare_with_output(settings, plan)
    except errors.ImagebeamError as e:
        return decide_plan.refuse(plan, e)
    if plan.action != "write":
        return plan
    return dataclasses.replace(plan, notes=(*plan.notes, *_note_staged_shards(settings, plan)))


def _compare_with_output(
    settings: dataset_settings.DatasetSettings, plan: elements.DatasetPlan
) -> elements.DatasetPlan:
    """Returns the plan with the catalog to replace, or to keep the dataset; raises why the run is refused."""
    output = settings.output
    folder = output_folder.OutputFolder(output)
    found = output_folder.find_catalog(output)
    committed = None if found is None else found.catalog
    if committed is not None and committed.indexed:
        raise errors.ConfigError(
            "output-indexed",
            f"{output} holds TFRecord files of another tool, and an index of them that imagebeam index made: choose "
            "another --output",
        )
    folder.refuse_unnamed_shards(settings.suffix)
    if found is None:
        _require_room(settings, folder)
        return plan
    plan = dataclasses.replace(plan, committed=found.record)
    if committed is None:
        if not settings.overwrite:
            raise errors.ConfigError("catalog-unreadable", f"{found.error}; --overwrite replaces it")
    elif committed.fingerprint == plan.fingerprint:
        damage = folder.find_damage(committed, thoroughly=settings.overwrite)
        is_described = croissant.about(committed) == settings.about
        if damage is None and not (settings.overwrite and not is_described):
            message = f"{output} holds this dataset already: same config, same images"
            if not is_described:
                message += f"; {croissant.FILE} has an earlier section about, and --overwrite writes all again"
            return dataclasses.replace(plan, action="keep", message=message)
        if not settings.overwrite:
            raise errors.ConfigError(
                "dataset-damaged", f"{output} holds this dataset, but {damage}; --overwrite writes it again"
            )
    elif settings.snapshot is not None:
        raise errors.BusyError(
            "snapshot-by-another-run",
            f"another run has written snapshot {settings.snapshot.name} of {settings.snapshot.dataset} since this "
            "one began: run the same command again, which continues that snapshot",
        )
    elif not settings.overwrite:
        difference = run_report.compare_inputs(committed.inputs, plan.inputs)
        raise errors.ConfigError(
            "output-other-dataset",
            f"{output} holds another dataset ({output_folder.describe(committed)}; {difference}); choose another "
            "--output, or --overwrite",
        )
    return plan


def _require_room(settings: dataset_settings.DatasetSettings, folder: output_folder.OutputFolder) -> None:
    """Checks an output without a catalog: nothing there may be of another dataset."""
    output = settings.output
    if settings.snapshot is not None:
        _require_base(settings.snapshot)
    elif snapshots.latest_name(output) is not None:
        raise errors.ConfigError(
            "output-holds-snapshots",
            f"{output} holds snapshots, which convert --update writes: add --update, or choose another --output",
        )
    stray = None if settings.overwrite else folder.find_stray_file(settings.analyze is not None)
    if stray is not None:
        raise errors.ConfigError(
            "output-not-empty",
            f"{output} holds {stray}, which no {catalog_lib.CATALOG_FILE} names; choose another --output, or "
            "--overwrite",
        )


def _require_base(snapshot: dataset_settings.SnapshotSettings) -> None:
    """Checks the sizes of the files that a snapshot takes over."""
    if name := snapshot.base or snapshot.compacted:
        folder = snapshots.folder_of(snapshot.dataset, name)
        damage = output_folder.OutputFolder(folder).find_damage(catalog_lib.load_catalog(folder), thoroughly=False)
        if damage is not None:
            raise errors.VerificationError(
                "snapshot-damaged",
                f"snapshot {name} of {snapshot.dataset} is damaged: {damage}; restore the file, or write a whole new "
                "snapshot with --update --overwrite",
            )


def _note_staged_shards(settings: dataset_settings.DatasetSettings, plan: elements.DatasetPlan) -> list[str]:
    """Returns notes on finished shards of earlier runs that belong to another dataset than this one."""
    notes = []
    for staging in output_folder.OutputFolder(settings.output).staging_folders():
        if staging == settings.paths.staging(plan.fingerprint):
            continue
        entries = storage.storage_of(staging).list_directory(staging)
        count = sum(entry.name.endswith(shard_writer.DONE_SUFFIX) for entry in entries)
        if count:
            shards = "1 finished shard" if count == 1 else f"{count:,} finished shards"
            why = run_report.compare_inputs(run_report.read_inputs(staging), plan.inputs)
            notes.append(f"{shards} of an earlier run cannot be used: {why}")
    return sorted(notes)
