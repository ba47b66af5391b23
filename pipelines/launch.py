"""Runs a pipeline, here or as a job on Dataflow: Beam's options, the lock of the output, progress, the end of the run.

Importing this module imports no Beam.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from imagebeam import concurrency, errors, storage
from imagebeam.pipelines import storage_tables
from imagebeam.pipelines.beam import job_servers, runners
from imagebeam.pipelines.messages import progress, run_journal
from imagebeam.pipelines.runs import dataflow_options, output_lock, remote_job, run_remotely
from imagebeam.transforms import dataset_settings
from imagebeam.transforms.output import output_folder, run_report
from imagebeam.transforms.shard import writer_processes

if TYPE_CHECKING:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from imagebeam.pipelines.config import model as config_lib

AddSteps: TypeAlias = "Callable[[beam.Pipeline], None]"

_LOGGERS_OF_ERRORS = (
    "apache_beam.runners.common",
    "apache_beam.runners.portability.local_job_service",  # the log of worker processes, as text
    "apache_beam.runners.worker.sdk_worker",
    "apache_beam.runners.dataflow.internal.apiclient",  # logs each error that it raises, as fatal
)
_REACHED_BY_TENSORFLOW = ("file", "gs")
_CANCEL_SEC = 5.0  # for a runner to end its workers


def make_options(
    command: str, beam_arguments: list[str], workers: int, config: config_lib.Config | None = None
) -> PipelineOptions:
    """Imports Beam and returns its options, checked and completed before anything is written.

    Args:
        command: the name of the command that needs Beam, for errors and for the name of a job.
        beam_arguments: options for Beam.
        workers: processes of Beam's own direct runner.
        config: of the job; None for a command that never runs on Dataflow.

    Raises:
        ConfigError: if Beam does not know an option, or is not installed, or the runner would lose images, or the job
            could not run.
    """
    runners.require_supported(beam_arguments, "stream" if config is None else config.output.writer)
    try:
        options = runners.make_options(beam_arguments, workers)
    except ModuleNotFoundError as e:
        raise errors.missing_package(e, command, "convert") from e
    if config is None or not runners.is_dataflow(beam_arguments):
        return options
    purpose = "" if command == "convert" else command
    return dataflow_options.prepare_options(config, options, beam_arguments, workers, purpose)


def run_here(
    settings: dataset_settings.DatasetSettings,
    options: PipelineOptions,
    add_steps: AddSteps,
    journal: run_journal.Journal,
    writers: int | None = None,
    show_progress: bool = False,
) -> run_report.RunReport:
    """Runs a pipeline that ends with this process, and returns its report. Holds the lock of the output meanwhile.

    Args:
        settings: of the dataset.
        options: Beam's.
        add_steps: adds the steps to an empty pipeline.
        journal: of the command.
        writers: number of writer processes; None on a runner with workers of its own.
        show_progress: whether to keep a progress line on standard error.

    Raises:
        BusyError: if another run writes to the output.
        ConfigError: if Beam cannot make the runner.
        ImagebeamError: if the pipeline failed without a report of its own.
    """
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(hold_output(settings))
        pool = None if writers is None else stack.enter_context(writer_processes.start(writers))
        job, known = None, options.get_all_options()
        if pool is None and known.get("job_name"):  # which every job of a job server has
            job = job_servers.ServedJob(known.get("job_endpoint") or "", known["job_name"])
            if job.endpoint:
                lock.name_served_job(job.endpoint, job.name)
        if show_progress:
            count_begun = pool.count_images if pool is not None else lambda: 0
            stack.enter_context(progress.Progress(settings, count_begun=count_begun, job=job))
        stack.enter_context(_noting_kept_shards(settings))
        pipeline = build(options, add_steps)
        with journal.following(settings):
            return run_pipeline(settings, pipeline)


@contextlib.contextmanager
def temporary_folder(options: PipelineOptions | None) -> Iterator[str]:
    """Yields a folder for the report of a plan, and removes it at the end.

    Args:
        options: of a job on Dataflow, whose temp_location its workers can write to; None for a local folder.
    """
    if options is None:
        folder = tempfile.mkdtemp(prefix="imagebeam-")
    else:
        location = options.get_all_options()["temp_location"].rstrip("/")
        folder = storage.join(location, f"imagebeam-plan-{secrets.token_hex(4)}")
    try:
        yield folder
    finally:
        storage.storage_of(folder).remove_tree(folder)


def scratch_folder(config: config_lib.Config, beam_arguments: Sequence[str]) -> str:
    """Returns a folder that TensorFlow can write to on every worker; "" if no column is transformed.

    Raises:
        ConfigError: if there is no such folder.
    """
    if not config.transformed:
        return ""
    if runners.is_direct(beam_arguments):
        return tempfile.mkdtemp(prefix="imagebeam-")
    output = storage.normalize(str(config.output.uri))
    if storage.scheme_of(output) not in _REACHED_BY_TENSORFLOW or config.output.storage_options:
        raise errors.ConfigError(
            "transform-output-unreachable",
            f"columns.{config.transformed[0]}.transform on {runners.runner_name(beam_arguments)}: TensorFlow cannot "
            f"write to {output!r}; choose an --output that is gs:// without output.storage_options, or a folder that "
            "all workers share, or the local runner",
        )
    return output_folder.OutputPaths(output).new_transform_folder()


@contextlib.contextmanager
def hold_output(
    settings: dataset_settings.DatasetSettings, scratch: str = "", attaches: bool = False
) -> Iterator[output_lock.Lock]:
    """Holds the lock of the output. At the end, removes the temporary files of the run, unless its job goes on.

    Args:
        settings: of the dataset.
        scratch: a folder to remove with the temporary files; "" if there is none.
        attaches: whether the caller waits for a job that does the same, if one holds the lock: see `Lock.running`.

    Raises:
        BusyError: if another run holds the lock.
        ConfigError: if the output cannot be written.
    """
    store = storage.storage_of(settings.report)
    with output_lock.hold(settings.paths.metadata, settings.run_id, settings.command, attaches) as lock:
        try:
            if lock.running is None:
                settings.names.write()
            yield lock
        finally:
            if not lock.stays and lock.running is None:
                store.remove(settings.report)
                store.remove(run_report.begun_of(settings.report))
                settings.names.remove()
                store.remove_tree(settings.paths.beam_folder(settings.report))
                if scratch:
                    storage.storage_of(scratch).remove_tree(scratch)


def build(options: PipelineOptions, add_steps: AddSteps) -> beam.Pipeline:
    """Returns the pipeline, with its steps.

    Raises:
        ConfigError: if Beam cannot make the runner.
    """
    import apache_beam as beam

    try:
        pipeline = beam.Pipeline(options=options)
    except (ValueError, ImportError, AttributeError) as e:  # no such runner, or one that needs more options
        remedy = ": pip install 'imagebeam[dataflow]'" if "apache_beam[gcp]" in str(e) else ""
        raise errors.ConfigError(
            "runner-cannot-start", f"Beam cannot start this runner: {' '.join(str(e).split())}{remedy}"
        ) from e
    add_steps(pipeline)
    storage_tables.carry(pipeline)
    return pipeline


def run_pipeline(settings: dataset_settings.DatasetSettings, pipeline: beam.Pipeline) -> run_report.RunReport:
    """Runs a pipeline to its end and returns the report it left.

    Raises:
        ImagebeamError: if the pipeline failed without a report of its own.
    """
    try:
        with without_tracebacks(), runners.relative_paths():
            _run_and_wait(pipeline)
    except Exception as e:  # runners raise any type; the report, or the last line of the traceback, has the cause
        cause = _last_line(e)
        # Ctrl-C in the middle of a step, which Beam turns into an error
        if concurrency.stop_signals or cause.startswith("KeyboardInterrupt"):
            raise KeyboardInterrupt from e
        if missing := job_servers.explain_missing_jar(cause):
            raise errors.ConfigError("job-server-missing", missing) from e
        if f"[Errno {errno.ENOSPC}]" in cause:
            cause += f" (in {settings.output}: free some first)"
        cause += job_servers.remedy_of(cause, pipeline.options.get_all_options().get("job_endpoint") or "")
        report = run_report.read_report(settings.report)
        # if the run has committed, only the end of the runner failed
        if report is not None and (report.state in ("committed", "kept") or report.error is not None):
            return report
        if (error := errors.find_in(cause, e)) is not None:
            raise error.extended(output_lock.describe_kept(settings.output)) from None
        is_known = "[Errno " in cause  # Beam's long text would only add a position in imagebeam's code
        kept = output_lock.describe_kept(settings.output) + output_lock.describe_deaths(settings.output)
        failure = errors.ImagebeamError("pipeline-failed", f"the pipeline failed: {cause}{kept}")
        raise failure from (None if is_known else e)
    report = run_report.read_report(settings.report)
    if report is None:
        raise errors.ImagebeamError(
            "run-without-report", f"the pipeline ended without its report, {settings.report}; run the command again"
        )
    return report


def _run_and_wait(pipeline: beam.Pipeline) -> None:
    """Runs a pipeline to its end. KeyboardInterrupt cancels it on a runner that is not this process, such as Prism.

    Otherwise the worker processes of that runner would stay: also if the signal comes just when the job is submitted.
    """
    from apache_beam.runners.portability import fn_api_runner

    runner: Any = pipeline.runner
    if isinstance(runner, fn_api_runner.FnApiRunner):  # whose run() returns at the end of the job
        pipeline.run().wait_until_finish()
        return
    result = None
    with job_servers.broken_streams_ignored(), _unprinted(), job_servers.ended(runner):
        try:
            with runners.held_back():
                result = pipeline.run()
            result.wait_until_finish()
        except KeyboardInterrupt:
            with contextlib.suppress(Exception):  # any type of error: the user wants to leave
                if result is not None:
                    result.cancel()
                    give_up = time.monotonic() + _CANCEL_SEC
                    while result.state not in ("CANCELLED", "DONE", "FAILED") and time.monotonic() < give_up:
                        time.sleep(0.05)
            raise


@contextlib.contextmanager
def _noting_kept_shards(settings: dataset_settings.DatasetSettings) -> Iterator[None]:
    """Gives KeyboardInterrupt a text on finished shards, if there are some."""
    try:
        yield
    except KeyboardInterrupt as e:
        raise KeyboardInterrupt(output_lock.describe_kept(settings.output).removeprefix("; ")) from e


@contextlib.contextmanager
def without_tracebacks() -> Iterator[None]:
    """Keeps Beam's tracebacks out of the log: an error of a step is raised to the caller, with its cause.

    If the user has set Beam's loggers to INFO, they log everything. Only Beam's own loggers are changed, and only
    during the run.
    """

    def is_wanted(record: logging.LogRecord) -> bool:
        if logging.getLogger(record.name).isEnabledFor(logging.INFO):
            return True
        is_raised = record.name.endswith(".apiclient")
        return not (is_raised or record.exc_info or "Traceback (most recent call last)" in record.getMessage())

    loggers = [logging.getLogger(name) for name in _LOGGERS_OF_ERRORS]
    for logger in loggers:
        logger.addFilter(is_wanted)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_wanted)


@contextlib.contextmanager
def _unprinted() -> Iterator[None]:
    """Stops a worker of Beam in this process (LOOPBACK) from printing tracebacks, which it logs too."""
    stream = sys.stderr if logging.getLogger("apache_beam").isEnabledFor(logging.INFO) else io.StringIO()
    with contextlib.redirect_stderr(stream):
        yield


def _last_line(error: BaseException) -> str:
    """Returns the cause inside an error of Beam, whose text is a whole traceback, or of gRPC, whose text is a table."""
    if callable(details := getattr(error, "details", None)):
        return f"the runner does not answer any more ({details()})"
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith(" ")]
    return lines[-1] if lines else type(error).__name__


class Started(NamedTuple):
    """A run on Dataflow before its job is submitted, with its lock held; or one whose job runs already."""

    settings: dataset_settings.DatasetSettings
    options: PipelineOptions
    add_steps: AddSteps
    run: run_remotely.Run
    is_attached: bool = False  # whether its job runs already
    template: str = ""  # the address to write a template to, instead of a job

    def submit(self, cancel_on_interrupt: bool = False) -> run_remotely.Run | None:
        """Returns the run of a job that was submitted, or runs already; None if only a template was written."""
        run = self.run._replace(cancel_on_interrupt=cancel_on_interrupt)
        if self.is_attached:
            run.say(f"{remote_job.describe(run.job)} does the same already: {run.job.console}")
            return run
        pipeline = build(self.options, self.add_steps)

        def start() -> str | None:
            with without_tracebacks(), runners.relative_paths():
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
def start_on_dataflow(
    settings: dataset_settings.DatasetSettings,
    options: PipelineOptions,
    add_steps: AddSteps,
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
    if template := dataflow_options.template_of(options):
        settings.names.write()
        run = run_remotely.Run(job, settings.output, "", output_lock.NoLock(), None, is_template=True)
        yield Started(settings, options, add_steps, run, template=template)
        return
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(hold_output(settings, scratch, attaches=True))
        shown = stack.enter_context(progress.JobProgress()) if show_progress else None
        run = run_remotely.Run(job, settings.output, settings.report, lock, shown, identity=settings.identity)
        if lock.running is not None:
            run = run._replace(job=lock.running, report=settings.paths.report(lock.running_run))
        yield Started(settings, options, add_steps, run, is_attached=lock.running is not None)


def plan_on_dataflow(
    settings: dataset_settings.DatasetSettings,
    options: PipelineOptions,
    add_steps: AddSteps,
    journal: run_journal.Journal,
    show_progress: bool,
) -> None:
    """Runs the steps of a plan as a job, which writes nothing to the output, and notes its report in the journal."""
    if dataflow_options.template_of(options):
        raise errors.ConfigError("plan-template", "plan writes no template: leave out --template_location")
    with progress.JobProgress() if show_progress else contextlib.nullcontext() as shown:
        job = dataflow_options.job_of(options)
        run = run_remotely.Run(job, settings.output, settings.report, output_lock.NoLock(), shown)
        journal.take_report(Started(settings, options, add_steps, run).wait(journal, cancel_on_interrupt=True))
