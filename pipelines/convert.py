"""Converts images into a committed dataset. `add_steps` is the pipeline; `convert` and `plan` run it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from imagebeam import catalog as catalog_lib
from imagebeam import cpu_count, errors, records, storage
from imagebeam.pipelines import call_arguments, column_settings, launch, open_source, runners
from imagebeam.pipelines import config as config_lib
from imagebeam.pipelines.call_arguments import AnyConfig, BeamOptions
from imagebeam.transforms import elements, output_paths, run_report
from imagebeam.transforms.sources import files, saved_listing

if TYPE_CHECKING:
    import apache_beam as beam

    from imagebeam.pipelines import make_job


def add_steps(pipeline: beam.Pipeline, job: make_job.Job, plan_only: bool = False) -> None:
    """Adds the steps of a job to the pipeline, from the listing to the commit, or to the plan alone."""
    import apache_beam as beam  # late: `convert` starts writer processes before the slow import of Beam

    from imagebeam.transforms import (
        assign_splits,
        commit_dataset,
        label_images,
        list_images,
        place_in_shards,
        plan_dataset,
        rank_references,
        record_inputs,
        store_dead_letters,
        transform_columns,
    )

    settings = job.settings
    listed = pipeline | "List" >> list_images.ListImages(job.source)  # ImageRef: where an image is
    labelled = listed.images | "Label" >> label_images.LabelImages(job.label)  # ImageRef with its label
    assigned = labelled.images | "Split" >> assign_splits.AssignSplits(job.split)  # ImageRef with its split
    rejects = (listed.rejects, labelled.rejects, assigned.rejects) | "Rejects" >> beam.Flatten()  # Reject
    tallies = (listed.tallies, labelled.tallies) | "Tallies" >> beam.Flatten()  # Tally
    ranked = assigned.images | "Rank" >> rank_references.RankInSplits(job.order)  # (split, ReferenceRun); Ranking
    plan = ranked.ranking | "Plan" >> plan_dataset.PlanDataset(settings, tallies, rejects, job.table)  # DatasetPlan
    if plan_only:
        return
    _ = plan | "RecordInputs" >> record_inputs.RecordInputs(settings)
    placed = ranked.runs | "Place" >> place_in_shards.PlaceInShards(plan)  # (shard, [packed run of ImageRef])
    transform = transform_columns.TransformColumns(job.transforms, plan, settings, job.scratch)
    transformed = placed | "Transform" >> transform  # the same, with transformed columns
    written = transformed | "Write" >> job.writer(plan, settings)  # WrittenShard
    early_rejects = rejects | "StoreDeadLetters" >> store_dead_letters.StoreDeadLetters(settings, plan)  # file name
    _ = written | "Commit" >> commit_dataset.CommitDataset(job.committer, plan, early_rejects)


@dataclasses.dataclass(frozen=True)
class ConvertResult:
    """The result of a run that ended well."""

    state: run_report.State  # "committed", or "kept": the same dataset was there already
    message: str
    output: str
    catalog: catalog_lib.Catalog
    plan: elements.DatasetPlan
    seconds: float


def convert(
    config: AnyConfig = None,
    beam_options: BeamOptions = None,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    show_progress: bool = False,
    _own_process: bool = False,
    _while_building: contextlib.AbstractContextManager[None] | None = None,
) -> ConvertResult:
    """Runs the whole job and returns once the dataset is committed, like the command `imagebeam convert`.

    Args:
        config: a Config, its fields as a mapping, or the name of a preset or a YAML file; with `source.uri` and
            `output.uri`. Paths may be pathlib paths.
        beam_options: Beam's own options, as PipelineOptions, as arguments, or as one string of arguments
            ("--runner=DataflowRunner --project=p"); by default the local runner in this process.
        workers: writer processes of the local runner; by default as many as cores.
        overwrite: whether to replace another dataset in the output; it stays until all shards of the new one are
            written.
        show_progress: whether to keep a progress line on standard error.

    Raises:
        ConfigError: if the config or the input does not allow the job; nothing was written.
        TooManyRejectsError: if more images were rejected than allowed; nothing was committed.
        ImagebeamError: if the job failed; finished shards are kept for the next run.
    """
    # For the command line. _own_process: this process does nothing else, so a local job may import a part of Beam only.
    # _while_building is entered while the pipeline is built, if that imports TensorFlow.
    start = time.monotonic()
    call_arguments.require_utf8_file_names()
    call_arguments.check_flags(overwrite=overwrite, show_progress=show_progress)
    job_config = call_arguments.as_config(config)
    arguments = call_arguments.as_beam_arguments(beam_options)
    runners.take_hdfs_user(arguments)
    records.require_fast_crc32c()
    workers = call_arguments.as_workers(workers)
    with contextlib.ExitStack() as stack:
        early = stack.enter_context(launch.start_early(job_config, arguments, workers))
        options = launch.import_beam(job_config, arguments, workers, _own_process)
        if early.error is not None:
            raise early.error
        from imagebeam.pipelines import make_job  # imports Beam's transforms

        if scratch := column_settings.scratch_folder(job_config, arguments):
            stack.callback(storage.storage_of(scratch).remove_tree, scratch)
        report = output_paths.OutputPaths(str(job_config.output.uri or "")).new_report()
        job = make_job.make_job(job_config, overwrite, storage.normalize(report), early.source, scratch)
        stack.enter_context(launch.hold_output(job.settings))
        building = []
        if show_progress:
            building.append(stack.enter_context(launch.show_progress(job.settings, early.pool, bool(job.transforms))))
        if _while_building is not None and job.transforms:
            building.append(_while_building)
        fields = launch.run_pipeline(job.settings, options, functools.partial(add_steps, job=job), building)
        if fields["exit_code"]:
            raise errors.from_exit_code(fields["exit_code"], fields["message"])
    return ConvertResult(
        state=fields["state"],
        message=fields["message"],
        output=job.settings.output,
        catalog=catalog_lib.load_catalog(job.settings.output),
        plan=run_report.decode_plan(fields["plan"]),
        seconds=time.monotonic() - start,
    )


def plan(
    config: AnyConfig = None,
    beam_options: BeamOptions = None,
    *,
    overwrite: bool = False,
    _own_process: bool = False,
) -> elements.DatasetPlan:
    """Lists and counts, and returns what `convert` would do; writes nothing.

    Args:
        config: as for `convert`. Without `output.uri` the plan is for a new folder.
        beam_options: as for `convert`.
        overwrite: as for `convert`.

    Raises:
        ConfigError: if the config does not fit the input.
    """
    call_arguments.require_utf8_file_names()
    call_arguments.check_flags(overwrite=overwrite)
    job_config = call_arguments.as_config(config)
    arguments = call_arguments.as_beam_arguments(beam_options)
    runners.take_hdfs_user(arguments)
    options = launch.import_beam(job_config, arguments, cpu_count.available_cores(), _own_process)
    from imagebeam.pipelines import make_job  # imports Beam's transforms

    with _temporary_directory() as directory:
        if job_config.output.uri is None:
            job_config = _with_output(job_config, storage.join(directory, "output"))
        job = make_job.make_job(job_config, overwrite, storage.join(directory, "report.json"))
        steps = functools.partial(add_steps, job=job, plan_only=True)
        return run_report.decode_plan(launch.run_pipeline(job.settings, options, steps)["plan"])


def save_listing(config: config_lib.Config, uri: str | os.PathLike[str]) -> config_lib.Config:
    """Lists the input of `config` into a file, and returns the config that reads that file instead.

    Raises:
        ConfigError: if the input is not a folder, or cannot be listed, or the file cannot be written.
    """
    call_arguments.require_utf8_file_names()
    # make_source needs the address of an output, and writes nothing there
    source = open_source.make_source(config if config.output.uri else _with_output(config, "/nowhere"))
    if not isinstance(source, files.FilesSource):
        raise errors.ConfigError(f"--save-listing is for folders: source.by {config.source.by} is a listing already")
    target = storage.normalize(uri)
    try:
        saved_listing.save(source, target)
    except OSError as e:
        raise errors.ConfigError(f"--save-listing {uri!r} cannot be written ({e.strerror or e})") from e
    listed = config.source.model_copy(update={"uri": target, "by": "listing", "include": ("**/*",)})
    return config.model_copy(update={"source": listed})


def _with_output(config: config_lib.Config, uri: str) -> config_lib.Config:
    return config.model_copy(update={"output": config.output.model_copy(update={"uri": uri})})


@contextlib.contextmanager
def _temporary_directory() -> Iterator[str]:
    directory = tempfile.mkdtemp(prefix="imagebeam-")
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
