"""Starts a run: checks its arguments, makes its job, and holds the lock of its output while the caller runs it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from imagebeam import errors, records, storage
from imagebeam.pipelines import call_arguments, column_settings, launch, update_settings
from imagebeam.pipelines.beam import runners
from imagebeam.pipelines.call_arguments import AnyConfig
from imagebeam.pipelines.messages import job_progress
from imagebeam.pipelines.runs import dataflow_options, remote_job, run_remotely
from imagebeam.transforms import dataset_settings
from imagebeam.transforms.images import pillow_decoder
from imagebeam.transforms.output import output_paths

if TYPE_CHECKING:
    import apache_beam as beam

AddSteps: TypeAlias = Callable[..., None]  # called with a pipeline and `job`
Build: TypeAlias = "Callable[[], beam.Pipeline]"
RETRY_WITHOUT_UPDATE = "--retry-rejects is for datasets of snapshots: add --update"


class Request(NamedTuple):
    """The arguments of a run, as `convert` takes them."""

    config: AnyConfig
    arguments: list[str]  # of Beam
    workers: int | None = None
    overwrite: bool = False
    show_progress: bool = False
    own_process: bool = False  # whether this process does nothing else, so that it may import a part of Beam only
    while_building: contextlib.AbstractContextManager[None] | None = None  # entered if building imports TensorFlow
    update: bool = False  # whether to write a snapshot
    retry_rejects: bool = False  # whether the snapshot takes only images that the last one rejected
    fail_on_drift: bool = False  # whether a snapshot that drifts too far is not committed


@contextlib.contextmanager
def in_this_process(request: Request, add_steps: AddSteps) -> Iterator[tuple[dataset_settings.DatasetSettings, Build]]:
    """Holds the lock for a run that ends with this process; yields its settings and what builds its pipeline.

    Raises:
        BusyError: if another run writes to the output, or a job on Dataflow, even with the same config.
        ConfigError: if the arguments do not allow the run.
    """
    config, workers, snapshot = _check(request)
    with contextlib.ExitStack() as stack:
        early = stack.enter_context(launch.start_early(config, request.arguments, workers, request.own_process))
        options = launch.import_beam("convert", config, request.arguments, workers, request.own_process)
        if early.error is not None:
            raise early.error
        from imagebeam.pipelines import make_job  # imports Beam's transforms

        if scratch := column_settings.scratch_folder(config, request.arguments):
            stack.callback(storage.storage_of(scratch).remove_tree, scratch)
        run_id, paths = output_paths.new_run_id(), _paths_of(config, snapshot)
        job = make_job.make_job(
            config,
            request.overwrite and snapshot is None,
            paths.report(run_id),
            early.rules,
            scratch,
            run_id,
            paths.names_file(run_id),
            snapshot,
        )
        if early.rules is not None:
            job = job.label_early(early.rules.labelled)
        stack.enter_context(launch.hold_output(job.settings))
        building: list[contextlib.AbstractContextManager[None]] = []
        if request.show_progress:
            line = launch.show_progress(job.settings, early.pool, bool(job.transforms))
            building.append(stack.enter_context(line))
        building += _while_building(request, job)
        yield job.settings, functools.partial(launch.build, options, functools.partial(add_steps, job=job), building)


class Started(NamedTuple):
    """A run on Dataflow before its job is submitted, with its lock held; or one whose job runs already."""

    settings: dataset_settings.DatasetSettings
    build: Build
    run: run_remotely.Run
    is_attached: bool = False  # whether its job runs already
    template: str = ""  # the address to write a template to, instead of a job

    def submit(self, cancel_on_interrupt: bool = False) -> run_remotely.Run | None:
        """Returns the run of a job that was submitted, or runs already; None if only a template was written."""
        run = self.run._replace(cancel_on_interrupt=cancel_on_interrupt)
        if self.is_attached:
            run.say(f"{remote_job.describe(run.job)} does the same already: {run.job.console}")
            return run
        return run_remotely.submit(run, functools.partial(launch.submit_pipeline, self.build()))


@contextlib.contextmanager
def on_dataflow(request: Request, add_steps: AddSteps) -> Iterator[Started]:
    """Checks the options of a job on Dataflow, and holds the lock of its output, unless its job runs already.

    Raises:
        BusyError: if another run writes to the output.
        ConfigError: if the arguments do not allow the job.
    """
    config, workers, snapshot = _check(request)
    options = launch.import_beam("convert", config, request.arguments, workers, request.own_process)
    options = dataflow_options.prepare_options(config, options, request.arguments, workers)
    from imagebeam.pipelines import make_job  # imports Beam's transforms

    scratch = column_settings.scratch_folder(config, request.arguments)
    paths, template = _paths_of(config, snapshot), dataflow_options.template_of(options)
    run_id = "" if template else output_paths.new_run_id()  # jobs from a template would share it, and the report
    # a template stays, and with it the names that its workers read
    names_file = f"{template}.names.json" if template else paths.names_file(run_id)
    report = paths.report(run_id) if run_id else ""
    overwrite = request.overwrite and snapshot is None
    job = make_job.make_job(config, overwrite, report, None, scratch, run_id, names_file, snapshot)
    build = functools.partial(
        launch.build, options, functools.partial(add_steps, job=job), _while_building(request, job)
    )
    if template:
        job.settings.names.write()
        no_lock = run_remotely.NoLock()
        run = run_remotely.Run(
            dataflow_options.job_of(options), job.settings.output, "", no_lock, None, is_template=True
        )
        yield Started(job.settings, build, run, template=template)
        return
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(launch.hold_output(job.settings, scratch, attaches=True))
        shown = stack.enter_context(job_progress.JobProgress()) if request.show_progress else None
        run = run_remotely.Run(dataflow_options.job_of(options), job.settings.output, job.settings.report, lock, shown)
        run = run._replace(identity=job.settings.identity)
        if lock.running is not None:
            run = run._replace(job=lock.running, report=paths.report(lock.running_run))
        yield Started(job.settings, build, run, is_attached=lock.running is not None)


def _check(request: Request):  # type: ignore[no-untyped-def]  # a type would import pydantic
    """Returns the config, the number of workers, and the settings of the snapshot of a request."""
    call_arguments.require_utf8_file_names()
    for name in ("overwrite", "update", "retry_rejects", "fail_on_drift"):
        call_arguments.check_flags(**{name: getattr(request, name)})
    config, snapshot = call_arguments.as_config(request.config), None
    runners.take_hdfs_user(request.arguments)
    records.require_fast_crc32c()
    pillow_decoder.require_pillow()
    if request.update:
        snapshot = update_settings.find_base(config, request.overwrite, request.retry_rejects, request.fail_on_drift)
    elif request.retry_rejects:
        raise errors.ConfigError(RETRY_WITHOUT_UPDATE)
    elif request.fail_on_drift:
        raise errors.ConfigError("--fail-on-drift is for datasets of snapshots: add --update")
    return config, call_arguments.as_workers(request.workers), snapshot


def _paths_of(config, snapshot) -> output_paths.OutputPaths:  # type: ignore[no-untyped-def]
    folder = snapshot.folder if snapshot is not None else storage.normalize(str(config.output.uri or ""))
    return output_paths.OutputPaths(folder)


def _while_building(request: Request, job) -> list[contextlib.AbstractContextManager[None]]:  # type: ignore[no-untyped-def]
    return [request.while_building] if request.while_building is not None and job.transforms else []
