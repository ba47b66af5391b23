"""Launches a pipeline: writer processes, Beam and its options, the lock, the progress line, the run and its report.

Imports no Beam when it is imported, so that the writer processes start first.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from imagebeam import errors, missing_packages, storage
from imagebeam.pipelines.beam import beam_shortcuts, hold_signals, job_servers, prism, runners
from imagebeam.pipelines.messages import progress
from imagebeam.pipelines.runs import finished_work, output_lock
from imagebeam.transforms import dataset_settings
from imagebeam.transforms.plan import run_report
from imagebeam.transforms.reports import stage_report
from imagebeam.transforms.shard import writer_processes
from imagebeam.transforms.sources import image_source

if TYPE_CHECKING:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from imagebeam.pipelines import job_rules
    from imagebeam.pipelines.config import model as config_lib

_LOGGERS_OF_ERRORS = (
    "apache_beam.runners.common",
    "apache_beam.runners.portability.local_job_service",  # the log of worker processes, as text
    "apache_beam.runners.worker.sdk_worker",
    "apache_beam.runners.dataflow.internal.apiclient",  # logs each error that it raises, as fatal
)
_CANCEL_SEC = 5.0  # for a runner to end its workers


class EarlyStart(NamedTuple):
    """The parts of a local job that start before Beam is imported, which takes half a second."""

    pool: writer_processes.WriterProcesses | None = None  # None on other runners
    rules: job_rules.ImageRules | None = None
    error: errors.ConfigError | None = None  # raised later, so that an unknown option of Beam is reported first


@contextlib.contextmanager
def start_early(
    config: config_lib.Config,
    beam_arguments: list[str],
    workers: int,
    own_process: bool = False,
    is_update: bool = False,
) -> Iterator[EarlyStart]:
    """Starts the writer processes of a local job, and the listing in one of them; stops them at the end.

    Args:
        config: of the job.
        beam_arguments: options for Beam.
        workers: number of writer processes.
        own_process: whether this process does nothing else, so that it may be copied.
        is_update: whether images are left out that the snapshot before has.
    """
    if not runners.is_local(beam_arguments):
        yield EarlyStart()
        return
    from imagebeam.pipelines import image_rules  # late: a command may have a writer process open the source

    with writer_processes.start(workers, forks=own_process) as pool:
        try:
            rules = image_rules.open_rules(config, is_update)
            pool.begin(image_source.list_whole, rules.labelled)
            if own_process and config.output.report:
                stage_report.prepare_in(pool)
            early = EarlyStart(pool, rules)
        except errors.ConfigError as e:
            early = EarlyStart(pool, error=e)
        yield early


class Needs(NamedTuple):
    """What decides which part of Beam a job needs."""

    addresses: Sequence[str | None]  # of the input and the output
    writer: str = "stream"  # as in `output.writer`
    transforms: bool = False  # whether it runs tf.Transform

    @classmethod
    def of(cls, config: config_lib.Config) -> Needs:
        return cls((config.source.uri, config.output.uri), config.output.writer, bool(config.transformed))


def import_beam(
    command: str, needs: Needs, beam_arguments: list[str], workers: int, own_process: bool
) -> PipelineOptions:
    """Imports Beam and returns its options.

    Args:
        command: the name of the command that needs Beam, for the error if it is not installed.
        needs: of the job.
        beam_arguments: options for Beam.
        workers: processes of Beam's own direct runner.
        own_process: whether this process does nothing else, so that a local job may import a part of Beam only.

    Raises:
        ConfigError: if Beam does not know an option, or is not installed, or the runner would lose images.
    """
    runners.require_supported(beam_arguments, needs.writer)
    if own_process and runners.is_prism(beam_arguments):
        prism.ignore_broken_streams()
    own_process = own_process and not needs.transforms  # tf.Transform needs what is left out: pyarrow, type hints
    if own_process:
        runners.import_beam_lightly(beam_arguments, needs.addresses)
    trusted = runners.TRUSTED_GRAPH if own_process and runners.is_local(beam_arguments) else ()
    try:
        options = runners.make_options([*trusted, *beam_arguments], workers)
    except ModuleNotFoundError as e:
        raise missing_packages.missing_package(e, command, "convert") from e
    if trusted:
        beam_shortcuts.install()
        beam_shortcuts.leave_pickles_uncompressed()
    return options


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
    with output_lock.hold(settings.paths.control, settings.run_id, settings.command, attaches) as lock:
        try:
            if lock.running is None:
                settings.names.write()
            yield lock
        finally:
            if not lock.stays and lock.running is None:
                store.remove(settings.report)
                settings.names.remove()
                store.remove_tree(settings.paths.beam_folder(settings.report))
                if scratch:
                    storage.storage_of(scratch).remove_tree(scratch)


@contextlib.contextmanager
def show_progress(
    settings: dataset_settings.DatasetSettings, pool: writer_processes.WriterProcesses | None, has_transforms: bool
) -> Iterator[contextlib.AbstractContextManager[None]]:
    """Keeps a progress line on standard error; yields a context for the time while the pipeline is built."""
    count_begun = pool.count_images if pool is not None else lambda: 0
    with progress.Progress(settings, count_begun=count_begun) as shown:
        # building imports TensorFlow then, which takes ten seconds or more
        yield shown.doing("starting tf.Transform") if has_transforms else contextlib.nullcontext()


def build(
    options: PipelineOptions,
    add_steps: Callable[[beam.Pipeline], None],
    building: Sequence[contextlib.AbstractContextManager[None]] = (),
) -> beam.Pipeline:
    """Returns the pipeline, with its steps.

    Args:
        options: Beam's.
        add_steps: adds the steps to an empty pipeline.
        building: contexts that are entered while the pipeline is built.

    Raises:
        ConfigError: if Beam cannot make the runner.
    """
    import apache_beam as beam

    try:
        pipeline = beam.Pipeline(options=options)
    except (ValueError, ImportError, AttributeError) as e:  # no such runner, or one that needs more options
        remedy = ": pip install 'imagebeam[dataflow]'" if "apache_beam[gcp]" in str(e) else ""
        raise errors.ConfigError(f"Beam cannot start this runner: {' '.join(str(e).split())}{remedy}") from e
    with contextlib.ExitStack() as stack:
        for each in building:
            stack.enter_context(each)
        add_steps(pipeline)
    return pipeline


def run_pipeline(settings: dataset_settings.DatasetSettings, pipeline: beam.Pipeline) -> dict[str, Any]:
    """Runs a pipeline to its end and returns the report it left.

    Raises:
        ImagebeamError: if the pipeline failed without a report of its own.
    """
    try:
        with _without_tracebacks(), runners.relative_paths():
            _run_and_wait(pipeline)
    except Exception as e:  # runners raise any type; the report, or the last line of the traceback, has the cause
        cause = _last_line(e)
        if cause.startswith("KeyboardInterrupt"):  # Ctrl-C in the middle of a step, which Beam turns into an error
            raise KeyboardInterrupt from e
        if missing := job_servers.explain_missing_jar(cause):
            raise errors.ConfigError(missing) from e
        if f"[Errno {errno.ENOSPC}]" in cause:
            cause += f" (in {settings.output}: free some first)"
        report = run_report.read_report(settings.report)
        if report is not None and report["state"] in ("committed", "kept"):
            return report  # only the end of the runner failed
        if (report is None or not report["exit_code"]) and (error := errors.find_in(cause, e)) is not None:
            raise type(error)(f"{error}{finished_work.describe_kept(settings.output)}") from None
        if report is None or not report["exit_code"]:
            is_known = "[Errno " in cause  # Beam's long text would only add a position in imagebeam's code
            kept = finished_work.describe_kept(settings.output) + finished_work.describe_deaths(settings.output)
            raise errors.ImagebeamError(f"the pipeline failed: {cause}{kept}") from (None if is_known else e)
        return report
    report = run_report.read_report(settings.report)
    if report is None:
        raise errors.ImagebeamError(f"the pipeline ended without its report, {settings.report}; run the command again")
    return report


def _run_and_wait(pipeline: beam.Pipeline) -> None:
    """Runs a pipeline to its end. KeyboardInterrupt cancels it on a runner that is not this process, such as Prism.

    Otherwise the worker processes of that runner would stay: also if the signal comes just when the job is submitted.
    """
    from apache_beam.runners.portability import fn_api_runner

    runs_here = isinstance(pipeline.runner, fn_api_runner.FnApiRunner)  # whose run() returns at the end of the job
    result = None
    try:
        with contextlib.ExitStack() as stack:
            if not runs_here:
                stack.enter_context(hold_signals.held_back())
                stack.enter_context(hold_signals.job_servers_ignoring_sigint())
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
def noting_kept_shards(settings: dataset_settings.DatasetSettings) -> Iterator[None]:
    """Gives KeyboardInterrupt a text on finished shards, if there are some."""
    try:
        yield
    except KeyboardInterrupt as e:
        raise KeyboardInterrupt(finished_work.describe_kept(settings.output).removeprefix("; ")) from e


def submit_pipeline(pipeline: beam.Pipeline) -> str | None:
    """Submits a pipeline as a job and returns the id of the job; None if only a template was written."""
    with _without_tracebacks(), runners.relative_paths():
        result: Any = pipeline.run()
    return str(result.job_id()) if result.has_job else None


@contextlib.contextmanager
def _without_tracebacks() -> Iterator[None]:
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
        with _unprinted():
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_wanted)


@contextlib.contextmanager
def _unprinted() -> Iterator[None]:
    """Stops a worker of Beam in this process (LOOPBACK) from printing tracebacks, which it logs too."""
    from apache_beam.runners.worker import sdk_worker

    if logging.getLogger(sdk_worker.__name__).isEnabledFor(logging.INFO) or hasattr(sdk_worker, "print"):
        yield
        return
    sdk_worker.print = lambda *_, **__: None  # its own name in front of the built-in function
    try:
        yield
    finally:
        del sdk_worker.print


def _last_line(error: BaseException) -> str:
    """Returns the cause inside an error of Beam, whose text is a whole traceback, or of gRPC, whose text is a table."""
    if callable(details := getattr(error, "details", None)):
        return f"the runner does not answer any more ({details()})"
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith(" ")]
    return lines[-1] if lines else type(error).__name__
