"""Runs a pipeline as a job on Dataflow: Beam's options for it, the lock of the output, and the submission."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from imagebeam import errors
from imagebeam.pipelines import launch
from imagebeam.pipelines.beam import runners
from imagebeam.pipelines.messages import progress, run_journal
from imagebeam.pipelines.request import Checked
from imagebeam.pipelines.runs import dataflow_options, output_lock, remote_job, run_remotely
from imagebeam.transforms import dataset_settings
from imagebeam.transforms.output import run_report

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

template_of = dataflow_options.template_of


def make_options(command: str, arguments: list[str], checked: Checked) -> PipelineOptions:
    """Returns Beam's options for a job on Dataflow, checked and completed before anything is written.

    Raises:
        ConfigError: if Beam does not know an option, or the job could not run.
    """
    options = launch.make_options(command, arguments, checked.workers, checked.config.output.writer)
    purpose = "" if command == "convert" else command
    return dataflow_options.prepare_options(checked.config, options, arguments, checked.workers, purpose)


class Started(NamedTuple):
    """A run on Dataflow before its job is submitted, with its lock held; or one whose job runs already."""

    settings: dataset_settings.DatasetSettings
    options: PipelineOptions
    add_steps: launch.AddSteps
    run: run_remotely.Run
    is_attached: bool = False  # whether its job runs already
    template: str = ""  # the address to write a template to, instead of a job

    def submit(self, cancel_on_interrupt: bool = False) -> run_remotely.Run | None:
        """Returns the run of a job that was submitted, or runs already; None if only a template was written."""
        run = self.run._replace(cancel_on_interrupt=cancel_on_interrupt)
        if self.is_attached:
            run.say(f"{remote_job.describe(run.job)} does the same already: {run.job.console}")
            return run
        pipeline = launch.build(self.options, self.add_steps)

        def start() -> str | None:
            with launch.without_tracebacks(), runners.relative_paths():
                result: Any = pipeline.run()
            return str(result.job_id()) if result.has_job else None

        return run_remotely.submit(run, start)

    def wait(self, journal: run_journal.Journal, cancel_on_interrupt: bool) -> run_report.RunReport:
        """Submits the job, waits for its end and returns the report of its run."""
        running = self.submit(cancel_on_interrupt)
        assert running is not None  # a template is refused before
        journal.job = running.job
        with journal.following(self.settings, running.report):
            return run_remotely.wait(running)


@contextlib.contextmanager
def start(
    settings: dataset_settings.DatasetSettings,
    options: PipelineOptions,
    add_steps: launch.AddSteps,
    scratch: str = "",
    show_progress: bool = False,
) -> Iterator[Started]:
    """Holds the lock of the output of a job on Dataflow, unless the job runs already. A template needs no lock.

    Args:
        settings: of the dataset.
        options: Beam's, completed for Dataflow.
        add_steps: adds the steps to an empty pipeline.
        scratch: a folder to remove with the temporary files of the run; "" if there is none.
        show_progress: whether to keep a progress line on standard error.

    Raises:
        BusyError: if another run writes to the output.
    """
    job = dataflow_options.job_of(options)
    if template := template_of(options):
        settings.names.write()
        run = run_remotely.Run(job, settings.output, "", output_lock.NoLock(), None, is_template=True)
        yield Started(settings, options, add_steps, run, template=template)
        return
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(launch.hold_output(settings, scratch, attaches=True))
        shown = stack.enter_context(progress.JobProgress()) if show_progress else None
        run = run_remotely.Run(job, settings.output, settings.report, lock, shown, identity=settings.identity)
        if lock.running is not None:
            run = run._replace(job=lock.running, report=settings.paths.report(lock.running_run))
        yield Started(settings, options, add_steps, run, is_attached=lock.running is not None)


def plan(
    settings: dataset_settings.DatasetSettings,
    options: PipelineOptions,
    add_steps: launch.AddSteps,
    journal: run_journal.Journal,
    show_progress: bool,
) -> None:
    """Runs the steps of a plan as a job, which writes nothing to the output, and notes its report in the journal."""
    if template_of(options):
        raise errors.ConfigError("plan-template", "plan writes no template: leave out --template_location")
    with progress.JobProgress() if show_progress else contextlib.nullcontext() as shown:
        job = dataflow_options.job_of(options)
        run = run_remotely.Run(job, settings.output, settings.report, output_lock.NoLock(), shown)
        journal.take_report(Started(settings, options, add_steps, run).wait(journal, cancel_on_interrupt=True))
