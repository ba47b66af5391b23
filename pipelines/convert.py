"""Converts images into a committed dataset. `add_steps` is the pipeline; `convert`, `submit` and `plan` run it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from imagebeam import catalog as catalog_lib
from imagebeam import errors, storage
from imagebeam.pipelines import job as job_lib
from imagebeam.pipelines import launch, storage_tables
from imagebeam.pipelines import request as request_lib
from imagebeam.pipelines.beam import runners
from imagebeam.pipelines.messages import run_journal
from imagebeam.pipelines.request import AnyConfig, BeamOptions, Request
from imagebeam.pipelines.runs import dataflow_options
from imagebeam.transforms import dataset_settings, elements
from imagebeam.transforms.commit import snapshot_report
from imagebeam.transforms.formats import folder as folder_format
from imagebeam.transforms.output import run_report

if TYPE_CHECKING:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from imagebeam.pipelines.config import model as config_lib
    from imagebeam.pipelines.runs import remote_job


def add_steps(pipeline: beam.Pipeline, job: job_lib.Job, plan_only: bool = False, begun: str = "") -> None:
    """Adds the steps of a job to the pipeline, from the listing to the commit, or to the plan alone.

    The first worker writes the file `begun`; "" for none.
    """
    from imagebeam.pipelines import write_references  # late: imports Beam
    from imagebeam.transforms import list_images

    list_all = list_images.ListImages(job.source, job.rules, job.early_order, begun)
    listed = pipeline | "List" >> list_all  # batches of ImageRef: where images are, their labels and splits; Reject
    steps = write_references.PlanReferences if plan_only else write_references.WriteReferences
    _ = listed.images | "WriteDataset" >> steps(job, listed)


@dataclasses.dataclass(frozen=True)
class ConvertResult:
    """The result of a run that ended well."""

    state: run_report.State
    """One of "committed", or "kept": the same dataset was there already."""
    message: str
    output: str
    catalog: catalog_lib.Catalog
    plan: elements.DatasetPlan
    seconds: float
    is_attached: bool = False
    """Whether the job was running already: `seconds` count from then on."""
    report: Mapping[str, Any] = dataclasses.field(
        default_factory=dict
    )  # report of a snapshot, see commit/snapshot_report


@dataclasses.dataclass(frozen=True)
class Submission:
    """A job that was submitted and that nobody waits for, or a template."""

    output: str
    job: remote_job.RemoteJob | None
    """None for a template."""
    template: str = ""
    """Its address."""
    is_attached: bool = False
    """Whether the job was running already."""


def convert(
    config: AnyConfig = None,
    beam_options: BeamOptions = None,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    update: bool = False,
    retry_rejects: bool = False,
    fail_on_drift: bool = False,
    show_progress: bool = False,
    cancel_on_interrupt: bool = False,
) -> ConvertResult:
    """Runs the whole job and returns once the dataset is committed, like the command `imagebeam convert`.

    If the same command runs as a job on Dataflow already, waits for that job.

    Args:
        config: a Config, its fields as a mapping, or the name of a preset or a YAML file; with `source.uri` and
            `output.uri`. Paths may be pathlib paths.
        beam_options: Beam's own options, as PipelineOptions, as arguments, or as one string of arguments
            ("--runner=DataflowRunner --project=p"); by default the local runner in this process.
        workers: writer processes of the local runner; by default as many as cores.
        overwrite: whether to replace another dataset in the output; it stays until all shards of the new one are
            written.
        update: whether to keep a dataset of snapshots up to date: reads only images that are new or have changed since
            the last one. With `overwrite` the new snapshot takes nothing from the last one.
        retry_rejects: with `update`, whether to read only images that the last snapshot rejected.
        fail_on_drift: with `update`, whether to commit nothing if the snapshot drifts further from the last one than
            `update.drift` allows; the finished shards are kept.
        show_progress: whether to keep a progress line on standard error.
        cancel_on_interrupt: whether KeyboardInterrupt cancels a job on Dataflow; otherwise the job goes on.

    Raises:
        ConfigError: if the config or the input does not allow the job; nothing was written.
        BusyError: if another run writes to the output, or has committed to it in the meantime.
        TooManyRejectsError: if more images were rejected or removed than allowed; nothing was committed.
        DriftError: with `fail_on_drift`, if the snapshot drifts too far; nothing was committed.
        ImagebeamError: if the job failed; finished shards are kept for the next run.

    Examples:
        >>> config = {
        ...     "source": {"uri": "photos"},
        ...     "split": {"by": "hash", "fractions": {"train": 0.8, "test": 0.2}},
        ...     "output": {"uri": "shards"},
        ... }
        >>> result = imagebeam.convert(config, overwrite=True, show_progress=False)
        >>> result.catalog.counts.written, dict(result.catalog.counts.rejected)
        (600, {'empty_file': 1, 'not_an_image': 1, 'truncated': 1})
    """
    flags = overwrite, update, retry_rejects, fail_on_drift, show_progress, cancel_on_interrupt
    return run(Request(config, beam_options, workers, *flags), run_journal.Journal())


@storage_tables.with_storages
def run(request: Request, journal: run_journal.Journal) -> ConvertResult:
    """Does what `convert` does, and notes in the journal how far it came."""
    start = time.monotonic()
    on_dataflow = runners.is_dataflow(request.arguments)
    if on_dataflow and runners.leaves_job(request.arguments):
        raise errors.ConfigError(
            "convert-cannot-leave-job",
            "convert waits for the dataset, and beam_options ask to leave the job, or for a template: call "
            "imagebeam.submit, or leave out no_wait_until_finish and template_location",
        )
    checked = request_lib.check(request)
    is_attached = False
    with contextlib.ExitStack() as stack:
        if on_dataflow:
            started = stack.enter_context(_on_dataflow(request, checked))
            settings, is_attached = started.settings, started.is_attached
            report = started.wait(journal, request.cancel_on_interrupt)
        else:
            options = launch.make_options("convert", request.arguments, checked.workers, checked.config)
            if scratch := launch.scratch_folder(checked.config, request.arguments):
                stack.callback(storage.storage_of(scratch).remove_tree, scratch)
            job = job_lib.make_job(checked, request_lib.RunFiles.new(checked.paths, scratch))
            settings, writers = job.settings, checked.workers if runners.is_local(request.arguments) else None
            begun = run_report.begun_of(settings.report) if writers is None else ""
            steps = functools.partial(add_steps, job=job, begun=begun)
            report = launch.run_here(settings, options, steps, journal, writers, request.show_progress)
    journal.take_report(report)
    if report.error is not None:
        raise report.error.extended(_advice(checked.config, report.plan))
    folder = _committed_folder(settings)
    return ConvertResult(
        state=report.state,
        message=report.message,
        output=settings.output,
        catalog=catalog_lib.load_catalog(folder),
        plan=report.plan,
        seconds=time.monotonic() - start,
        is_attached=is_attached,
        report=snapshot_report.load_report(folder) if settings.snapshot is not None else {},
    )


def _on_dataflow(request: Request, checked: request_lib.Checked) -> contextlib.AbstractContextManager[launch.Started]:
    """Makes the job of a request for Dataflow, and holds the lock of its output: see `launch.start_on_dataflow`."""
    options = launch.make_options("convert", request.arguments, checked.workers, checked.config)
    scratch = launch.scratch_folder(checked.config, request.arguments)
    files = request_lib.RunFiles.new(checked.paths, scratch)
    if template := dataflow_options.template_of(options):
        # jobs from a template would share the id of a run, and the report; the names stay with the template
        files = request_lib.RunFiles(names=f"{template}.names.json", scratch=scratch)
    job = job_lib.make_job(checked, files)
    steps = functools.partial(add_steps, job=job)
    return launch.start_on_dataflow(job.settings, options, steps, scratch, request.show_progress)


def _advice(config: config_lib.Config, plan: elements.DatasetPlan) -> str:
    """Returns what to do about a refused plan, if this needs the config; "" if it does not.

    That is which preset fits an input without one image that can be used, or how to do without splits of a few images.
    """
    if plan.error is not None and plan.error.code == "split-empty" and config.split.by == "hash":
        return "; for one split of all images add --set 'split={by: none}'"
    if plan.action != "refuse" or sum(plan.rejected.values()) < plan.listed:
        return ""
    from imagebeam.pipelines.recognize import recognize_folder  # late, as it is needed only here

    advice = recognize_folder.advise(config)
    return f"; {advice}" if advice else ""


def _committed_folder(settings: dataset_settings.DatasetSettings) -> str:
    """Returns the folder of the dataset that a run has committed or found: without a change, the snapshot before."""
    if settings.snapshot is None or not settings.snapshot.base:
        return settings.output
    is_written = storage.storage_of(settings.output).exists(settings.paths.catalog)
    return settings.output if is_written else settings.snapshot.base_folder


def submit(
    config: AnyConfig = None,
    beam_options: BeamOptions = None,
    *,
    overwrite: bool = False,
    update: bool = False,
    retry_rejects: bool = False,
    fail_on_drift: bool = False,
    show_progress: bool = False,
) -> Submission:
    """Submits a job and returns at once, like `imagebeam convert --no-wait`; the job holds the lock of the output.

    With Beam's option `template_location`, writes a template instead of a job. If a job that does the same writes to
    the output already, returns that job.

    Args:
        config: as for `convert`.
        beam_options: as for `convert`, with a runner whose jobs outlive their launcher: DataflowRunner.
        overwrite: as for `convert`.
        update: as for `convert`.
        retry_rejects: as for `convert`.
        fail_on_drift: as for `convert`.
        show_progress: as for `convert`.

    Raises:
        ConfigError: if the config or the options do not allow the job, or the runner is another one.
        BusyError: if another run writes to the output.
        ImagebeamError: if the job could not be submitted.

    Examples:
        >>> dataflow = "--runner=DataflowRunner --project=p --region=r --temp_location=gs://bucket/temp"
        >>> job = imagebeam.submit("images.yaml", dataflow)  # doctest: +SKIP
    """
    return submit_request(
        Request(config, beam_options, None, overwrite, update, retry_rejects, fail_on_drift, show_progress)
    )


@storage_tables.with_storages
def submit_request(request: Request) -> Submission:
    """Does what `submit` does."""
    if not runners.is_dataflow(request.arguments):
        raise errors.ConfigError(
            "runner-cannot-be-left",
            f"a job on {runners.runner_name(request.arguments)} ends with its launcher: only jobs on Dataflow can be "
            "left (--runner=DataflowRunner); leave out --no-wait, or in Python call imagebeam.convert",
        )
    with _on_dataflow(request, request_lib.check(request)) as started:
        running = started.submit()
        if running is None:
            return Submission(started.settings.output, None, started.template)
        running.lock.keep()
        return Submission(started.settings.output, running.job, is_attached=started.is_attached)


def plan(
    config: AnyConfig = None,
    beam_options: BeamOptions = None,
    *,
    overwrite: bool = False,
    update: bool = False,
    retry_rejects: bool = False,
    show_progress: bool = False,
) -> elements.DatasetPlan:
    """Lists and counts, and returns what `convert` would do; writes nothing to the output.

    On Dataflow the job leaves its result in `temp_location`, from where it is removed.

    Args:
        config: as for `convert`. Without `output.uri` the plan is for a new folder.
        beam_options: as for `convert`.
        overwrite: as for `convert`.
        update: as for `convert`.
        retry_rejects: as for `convert`.
        show_progress: whether to keep a progress line on standard error for a job on Dataflow.

    Raises:
        ConfigError: if the config does not fit the input.

    Examples:
        >>> plan = imagebeam.plan({"source": {"uri": "photos"}})
        >>> plan.listed, plan.labels
        (603, ('circle', 'square', 'triangle'))
    """
    request = Request(config, beam_options, None, overwrite, update, retry_rejects, show_progress=show_progress)
    return run_plan(request, run_journal.Journal())


@storage_tables.with_storages
def run_plan(request: Request, journal: run_journal.Journal) -> elements.DatasetPlan:
    """Does what `plan` does, and notes in the journal how far it came."""
    checked, options = check_plan(request)
    on_dataflow = runners.is_dataflow(request.arguments)
    with launch.temporary_folder(options if on_dataflow else None) as directory:
        if checked.config.output.uri is None:
            checked = checked._replace(config=_with_output(checked.config, storage.join(directory, "output")))
        report, names = storage.join(directory, "report.json"), storage.join(directory, "names.json")
        job = job_lib.make_job(checked, request_lib.RunFiles(report=report, names=names))
        job.settings.names.write()
        steps = functools.partial(add_steps, job=job, plan_only=True)
        if on_dataflow:
            launch.plan_on_dataflow(job.settings, options, steps, journal, request.show_progress)
        else:
            pipeline = launch.build(options, steps)
            with journal.following(job.settings):
                journal.take_report(launch.run_pipeline(job.settings, pipeline))
    assert journal.plan is not None
    advice = "" if on_dataflow else _advice(checked.config, journal.plan)
    return dataclasses.replace(journal.plan, message=journal.plan.message + advice)


@storage_tables.with_storages
def check_plan(request: Request) -> tuple[request_lib.Checked, PipelineOptions]:
    """Checks the arguments of `plan` without listing the input, and returns them with Beam's options.

    Raises:
        ConfigError: if Beam does not know an option, or the job could not run.
    """
    checked = request_lib.check(request)
    return checked, launch.make_options("plan", request.arguments, checked.workers, checked.config)


def save_listing(config: config_lib.Config, uri: str | os.PathLike[str]) -> config_lib.Config:
    """Lists the input of `config` into a file, and returns the config that reads that file instead.

    Raises:
        ConfigError: if the input is not a folder, or cannot be listed, or the file cannot be written.
    """
    request_lib.require_utf8_file_names()
    with storage_tables.of_config(config):
        return _save_listing(config, uri)


def _save_listing(config: config_lib.Config, uri: str | os.PathLike[str]) -> config_lib.Config:
    # make_source needs the address of an output, and writes nothing there
    source = job_lib.make_source(config if config.output.uri else _with_output(config, "/nowhere"))
    if not source.listed_folder():
        raise errors.ConfigError(
            "listing-of-no-folder", f"--save-listing is for folders: source.by {config.source.by} does not list one"
        )
    target = storage.normalize(uri)
    with errors.explained("listing-unwritable", f"--save-listing {uri!r} cannot be written"):
        folder_format.save_listing(source, config.source.masks.rule, target)
    listed = config.source.model_copy(update={"uri": target, "by": "listing", "include": ("**/*",)})
    return config.model_copy(update={"source": listed})


def _with_output(config: config_lib.Config, uri: str) -> config_lib.Config:
    return config.model_copy(update={"output": config.output.model_copy(update={"uri": uri})})
