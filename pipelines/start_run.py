"""Starts a run: checks its arguments, makes its job, and holds the lock of its output while the caller runs it."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from imagebeam import storage
from imagebeam.pipelines import column_settings, launch
from imagebeam.pipelines.beam import late_modules
from imagebeam.pipelines.call_arguments import Request
from imagebeam.pipelines.late_dataflow import dataflow_options, job_progress, run_remotely
from imagebeam.pipelines.runs import remote_job
from imagebeam.transforms import dataset_settings
from imagebeam.transforms.output import output_paths

if TYPE_CHECKING:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from imagebeam.pipelines import job_rules, make_job, prepare_aside
    from imagebeam.transforms.shard import writer_processes

AddSteps: TypeAlias = Callable[..., None]  # called with a pipeline and `job`
Build: TypeAlias = "Callable[[], beam.Pipeline]"


@contextlib.contextmanager
def in_this_process(
    request: Request, add_steps: AddSteps, prepared: prepare_aside.Prepared | None = None
) -> Iterator[tuple[dataset_settings.DatasetSettings, Build]]:
    """Holds the lock for a run that ends with this process; yields its settings and what builds its pipeline.

    Args:
        request: of the run.
        add_steps: adds the steps of a job to a pipeline.
        prepared: what a writer process has made of the config; None to read it here.

    Raises:
        BusyError: if another run writes to the output, or a job on Dataflow, even with the same config.
        ConfigError: if the arguments do not allow the run.
    """
    with contextlib.ExitStack() as stack:
        if prepared is not None:
            prepared.check()
            needs = launch.Needs([prepared.subject.input, prepared.subject.output])
            options = launch.import_beam("convert", needs, request.arguments, prepared.pool.size, request.own_process)
            pool: writer_processes.WriterProcesses | None = prepared.pool
            rules = prepared.rules()
        else:
            options, rules, pool = _prepare_here(request, stack)
        is_first = request.own_process and "imagebeam.pipelines.make_job" not in sys.modules
        with late_modules.quick_imports() if is_first else contextlib.nullcontext():
            from imagebeam.pipelines import make_job  # imports Beam's transforms

        job = make_job.of_rules(rules, is_listed_with_labels=pool is not None)
        stack.enter_context(launch.hold_output(job.settings))
        building: list[contextlib.AbstractContextManager[None]] = []
        if request.show_progress:
            line = launch.show_progress(job.settings, pool, bool(job.transforms))
            building.append(stack.enter_context(line))
        building += _while_building(request, job)
        add: Callable[[beam.Pipeline], None] = functools.partial(add_steps, job=job)
        if is_first:
            add = late_modules.quick_imports()(add)  # of the modules of the steps
        yield job.settings, functools.partial(launch.build, options, add, building)


def _prepare_here(
    request: Request, stack: contextlib.ExitStack
) -> tuple[PipelineOptions, job_rules.JobRules, writer_processes.WriterProcesses | None]:
    """Returns Beam's options, the rules of the job, and the writer processes of a local job.

    Args:
        request: of the run.
        stack: ends what was started.
    """
    from imagebeam.pipelines import prepare_run  # late: imports pydantic

    checked = prepare_run.check(request)
    config, workers = checked.config, checked.workers
    is_update = checked.snapshot is not None
    early = stack.enter_context(launch.start_early(config, request.arguments, workers, request.own_process, is_update))
    options = launch.import_beam("convert", launch.Needs.of(config), request.arguments, workers, request.own_process)
    if early.error is not None:
        raise early.error
    if scratch := column_settings.scratch_folder(config, request.arguments):
        stack.callback(storage.storage_of(scratch).remove_tree, scratch)
    return options, prepare_run.make_rules(request, checked, early.rules, scratch), early.pool


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
    from imagebeam.pipelines import prepare_run  # late: imports pydantic

    checked = prepare_run.check(request)
    config, workers, snapshot = checked
    options = launch.import_beam("convert", launch.Needs.of(config), request.arguments, workers, request.own_process)
    options = dataflow_options.prepare_options(config, options, request.arguments, workers)
    from imagebeam.pipelines import make_job  # imports Beam's transforms

    scratch = column_settings.scratch_folder(config, request.arguments)
    paths, template = prepare_run.paths_of(checked), dataflow_options.template_of(options)
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


def _while_building(request: Request, job: make_job.Job) -> list[contextlib.AbstractContextManager[None]]:
    return [request.while_building] if request.while_building is not None and job.transforms else []
