"""Launches a pipeline: writer processes, Beam and its options, the lock, the progress line, the run and its report.

Imports no Beam when it is imported, so that the writer processes start first.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from imagebeam import errors, missing_packages, storage
from imagebeam.pipelines import config as config_lib
from imagebeam.pipelines import open_source, output_lock, progress, runners
from imagebeam.transforms import dataset_settings, run_report
from imagebeam.transforms.shard import writer_processes
from imagebeam.transforms.sources import image_source

if TYPE_CHECKING:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

_LOGGERS_OF_ERRORS = (
    "apache_beam.runners.common",
    "apache_beam.runners.portability.local_job_service",  # the log of worker processes, as text
    "apache_beam.runners.worker.sdk_worker",
)


class EarlyStart(NamedTuple):
    """The parts of a local job that start before Beam is imported, which takes half a second."""

    pool: writer_processes.WriterProcesses | None = None  # None on other runners
    source: image_source.ImageSource | None = None
    error: errors.ConfigError | None = None  # raised later, so that an unknown option of Beam is reported first


@contextlib.contextmanager
def start_early(config: config_lib.Config, beam_arguments: list[str], workers: int) -> Iterator[EarlyStart]:
    """Starts the writer processes of a local job, and the listing in one of them; stops them at the end."""
    if not runners.is_local(beam_arguments):
        yield EarlyStart()
        return
    with writer_processes.start(workers) as pool:
        try:
            source = open_source.make_source(config)
            pool.begin(image_source.list_whole, source)
            early = EarlyStart(pool, source)
        except errors.ConfigError as e:
            early = EarlyStart(pool, error=e)
        yield early


def import_beam(
    config: config_lib.Config, beam_arguments: list[str], workers: int, own_process: bool
) -> PipelineOptions:
    """Imports Beam and returns its options.

    Args:
        config: of the job.
        beam_arguments: options for Beam.
        workers: processes of Beam's own direct runner.
        own_process: whether this process does nothing else, so that a local job may import a part of Beam only.

    Raises:
        ConfigError: if Beam does not know an option, or is not installed.
    """
    own_process = own_process and not config.transformed  # tf.Transform needs what is left out: pyarrow, type hints
    if own_process:
        runners.import_beam_lightly(beam_arguments, [config.source.uri, config.output.uri])
    trusted = runners.TRUSTED_GRAPH if own_process and runners.is_local(beam_arguments) else ()
    try:
        return runners.make_options([*trusted, *beam_arguments], workers)
    except ModuleNotFoundError as e:
        raise missing_packages.missing_package(e, "convert", "convert") from e


@contextlib.contextmanager
def hold_output(settings: dataset_settings.DatasetSettings) -> Iterator[None]:
    """Holds the lock of the output, and removes the temporary files of the run at the end.

    Raises:
        ConfigError: if another run holds the lock, or the output cannot be written.
    """
    store = storage.storage_of(settings.report)
    with output_lock.hold(settings.paths.control), contextlib.ExitStack() as stack:
        stack.callback(store.remove, settings.report)
        stack.callback(store.remove_tree, settings.paths.beam_folder(settings.report))
        yield


@contextlib.contextmanager
def show_progress(
    settings: dataset_settings.DatasetSettings, pool: writer_processes.WriterProcesses | None, has_transforms: bool
) -> Iterator[contextlib.AbstractContextManager[None]]:
    """Keeps a progress line on standard error; yields a context for the time while the pipeline is built."""
    count_begun = pool.count_images if pool is not None else lambda: 0
    with progress.Progress(settings, count_begun=count_begun) as shown:
        # building imports TensorFlow then, which takes ten seconds or more
        yield shown.doing("starting tf.Transform") if has_transforms else contextlib.nullcontext()


def run_pipeline(
    settings: dataset_settings.DatasetSettings,
    options: PipelineOptions,
    add_steps: Callable[[beam.Pipeline], None],
    building: Sequence[contextlib.AbstractContextManager[None]] = (),
) -> dict[str, Any]:
    """Runs a pipeline to its end and returns the report it left.

    Args:
        settings: of the dataset.
        options: Beam's.
        add_steps: adds the steps to an empty pipeline.
        building: contexts that are entered while the pipeline is built.

    Raises:
        ConfigError: if Beam cannot make the runner.
        ImagebeamError: if the pipeline failed without a report of its own.
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
    try:
        with _without_tracebacks():
            pipeline.run().wait_until_finish()
    except Exception as e:  # runners raise any type; the report, or the last line of the traceback, has the cause
        cause = _last_line(e)
        if cause.startswith("KeyboardInterrupt"):  # Ctrl-C in the middle of a step, which Beam turns into an error
            raise KeyboardInterrupt from e
        if f"[Errno {errno.ENOSPC}]" in cause:
            cause += f" (in {settings.output}: free some first)"
        report = run_report.read_report(settings.report)
        if report is None or not report["exit_code"]:
            is_local = storage.storage_of(settings.output).is_local
            where = "" if is_local else f" in {settings.paths.control}"  # not obvious for a bucket
            is_known = "[Errno " in cause  # Beam's long text would only add a position in imagebeam's code
            raise errors.ImagebeamError(
                f"the pipeline failed: {cause}; finished shards are kept{where}, run the same command again to go on"
            ) from (None if is_known else e)
        return report
    report = run_report.read_report(settings.report)
    if report is None:
        raise errors.ImagebeamError(f"the pipeline ended without its report, {settings.report}; run the command again")
    return report


@contextlib.contextmanager
def _without_tracebacks() -> Iterator[None]:
    """Keeps Beam's tracebacks out of the log: an error of a step is raised to the caller, with its cause.

    If the user has set Beam's loggers to INFO, they log everything. Only Beam's own loggers are changed, and only
    during the run.
    """

    def is_wanted(record: logging.LogRecord) -> bool:
        if logging.getLogger(record.name).isEnabledFor(logging.INFO):
            return True
        return not record.exc_info and "Traceback (most recent call last)" not in record.getMessage()

    loggers = [logging.getLogger(name) for name in _LOGGERS_OF_ERRORS]
    for logger in loggers:
        logger.addFilter(is_wanted)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_wanted)


def _last_line(error: BaseException) -> str:
    """Returns the cause inside an error of Beam, whose text is a whole traceback."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith(" ")]
    return lines[-1] if lines else type(error).__name__
