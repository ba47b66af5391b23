"""Compacts a dataset of snapshots: copies the living records of the latest one into fresh shards."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from typing import TYPE_CHECKING

from imagebeam import catalog as catalog_lib
from imagebeam import errors, records, snapshots, storage
from imagebeam.pipelines import launch
from imagebeam.pipelines import request as request_lib
from imagebeam.pipelines.beam import runners
from imagebeam.pipelines.config import sections
from imagebeam.pipelines.messages import run_journal
from imagebeam.transforms import dataset_settings, sort_intervals
from imagebeam.transforms.output import output_folder, run_report

if TYPE_CHECKING:
    import apache_beam as beam


def add_steps(
    pipeline: beam.Pipeline, settings: dataset_settings.DatasetSettings, catalog: catalog_lib.Catalog
) -> None:
    """Adds the steps of a compaction to the pipeline, from the listing of the records to the commit."""
    from imagebeam.transforms import rank_references, write_shards
    from imagebeam.transforms.commit import commit_dataset, commit_step
    from imagebeam.transforms.plan import compact_snapshot

    assert settings.snapshot is not None
    order = sort_intervals.order_of(catalog.config["output"]["shuffle"], catalog.config["split"]["seed"])
    committer = commit_dataset.Committer(settings, catalog.name, catalog.config)
    list_all = compact_snapshot.ListRecords(settings.snapshot.compacted_folder, catalog.splits)
    listed = pipeline | "List" >> list_all  # batches of ImageRef: where a record is, or why an image has none
    ranked = listed.refs | "Rank" >> rank_references.RankInSplits(order)  # SortedRun; PartialRanking
    plan_of = compact_snapshot.PlanCompaction(settings, listed.early_rejects)
    plan, ranking = ranked.rankings | "Plan" >> plan_of  # DatasetPlan; Ranking
    placed = ranked.runs | "Place" >> write_shards.PlaceInShards(plan, ranking)  # (shard, [packed references])
    written = placed | "Write" >> write_shards.WriteShards(plan, settings)  # WrittenShard
    store = commit_step.StoreDeadLetters(settings, plan)
    rejects = listed.early_rejects | "StoreDeadLetters" >> store  # file name
    _ = written | "Commit" >> commit_step.CommitDataset(committer, plan, rejects, reject_states=listed.reject_states)


@dataclasses.dataclass(frozen=True)
class CompactResult:
    """The result of a compaction that ended well."""

    state: run_report.State
    """One of "committed"; "kept" if the latest snapshot is compact already."""
    output: str
    """The dataset."""
    snapshot: str
    """Name of the latest snapshot."""
    catalog: catalog_lib.Catalog
    seconds: float


def compact(
    directory: str | os.PathLike[str],
    beam_options: request_lib.BeamOptions = None,
    *,
    workers: int | None = None,
    show_progress: bool = False,
) -> CompactResult:
    """Writes a self-contained snapshot: the living records of the latest one, in the order of a fresh conversion.

    Shards, rejects and statistics are byte for byte those of a fresh conversion of the same input with the classes in
    the same order. The records are copied; the images are not read.

    Args:
        directory: the dataset, as given to `convert(update=True)` as `output.uri`.
        beam_options: as for `convert`; the local runner by default.
        workers: writer processes of the local runner; by default as many as cores.
        show_progress: whether to keep a progress line on standard error.

    Raises:
        ConfigError: if the folder holds no snapshots, or the options do not allow the run.
        BusyError: if another run writes to the dataset.
        ShardError: if a record is broken.
        CatalogError: if a snapshot is damaged.

    Examples:
        >>> imagebeam.compact("nightly").snapshot
        '000003'
    """
    arguments = request_lib.as_beam_arguments(beam_options)
    return run(directory, arguments, request_lib.as_workers(workers), show_progress, run_journal.Journal())


def run(
    directory: str | os.PathLike[str],
    arguments: list[str],
    workers: int,
    show_progress: bool,
    journal: run_journal.Journal,
) -> CompactResult:
    """Does what `compact` does, and notes in the journal how far it came."""
    start = time.monotonic()
    dataset = storage.normalize(directory)
    runners.refuse_own_flags(arguments)  # Beam's options are not looked at if there is nothing to do
    runners.take_hdfs_user(arguments)
    records.require_fast_crc32c()
    if runners.is_dataflow(arguments):
        raise errors.ConfigError(
            "compact-on-dataflow",
            "compact waits for a runner that it starts, and not for a job on Dataflow: leave out --runner, and raise "
            "--workers on a machine near the dataset",
        )
    latest = snapshots.find_latest(dataset)
    if latest is None:
        raise errors.ConfigError(
            "snapshots-none", f"{dataset} holds no snapshots: imagebeam convert --update writes them"
        )
    snapshots.require_committed(dataset, latest)
    folder = snapshots.folder_of(dataset, latest)
    catalog = catalog_lib.load_catalog(folder)
    if catalog.is_self_contained:
        return CompactResult("kept", dataset, latest, catalog, time.monotonic() - start)
    snapshot = dataset_settings.SnapshotSettings(dataset, snapshots.name_after(latest), compacted=latest)
    settings = _settings(snapshot, catalog)
    options = launch.make_options("compact", arguments, workers)
    steps = functools.partial(add_steps, settings=settings, catalog=catalog)
    writers = workers if runners.is_local(arguments) else None
    report = launch.run_here(settings, options, steps, journal, writers, show_progress)
    journal.take_report(report)
    if report.error is not None:
        raise report.error
    written = catalog_lib.load_catalog(settings.output)
    return CompactResult("committed", dataset, snapshot.name, written, time.monotonic() - start)


def _settings(
    snapshot: dataset_settings.SnapshotSettings, catalog: catalog_lib.Catalog
) -> dataset_settings.DatasetSettings:
    """Returns settings that are those of the latest snapshot, as far as shards and records depend on them."""
    run_id, paths = output_folder.new_run_id(), output_folder.OutputPaths(snapshot.folder)
    stored = catalog.config["output"]
    transformed = any(name.startswith(output_folder.TRANSFORM_FOLDERS) for name in catalog.files)
    first = next(shard for split in catalog.splits.values() for shard in split.shards)
    return dataset_settings.DatasetSettings(
        output=snapshot.folder,
        identity="",
        features=catalog.features,
        label_kind=catalog.label_kind,
        label_base=catalog.label_base,
        declared_splits=sections.SplitConfig.model_validate(catalog.config["split"]).declared,
        sizing=dataset_settings.Sizing(
            stored["num_shards"], stored["target_shard_bytes"], stored["examples_per_shard"]
        ),
        compression=catalog.compression,
        suffix=records.suffix_of(first.name.rpartition("/")[2]),
        analyze="all" if transformed else None,
        max_reject_fraction=1.0,
        writes_report=stored["report"],
        run_id=run_id,
        report=paths.report(run_id),
        snapshot=snapshot,
    )
