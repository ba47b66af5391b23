"""Which Beam runner runs a job, and with which options."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import gc
import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from imagebeam import errors

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

# What Beam imports if it can and a local job on local files never calls: half of Beam's import time (1.03 s -> 0.48 s)
# and a third of its memory (157 MB -> 104 MB).
_UNUSED_LOCALLY = ("google.cloud", "google.auth", "google.api_core", "apitools", "pymongo", "pyarrow", "pandas")
# Types of the graph are checked by the tests, which build the same one: checking them again takes 0.1 s of every run.
TRUSTED_GRAPH = ("--no_pipeline_type_check",)

_LOGGERS_OF_ERRORS = (
    "apache_beam.runners.common",
    "apache_beam.runners.portability.local_job_service",  # what worker processes log, as text
    "apache_beam.runners.worker.sdk_worker",
)
_SAMPLING_PERIOD_MS = 2
_LOCAL_RUNNERS = ("directrunner", "fnapirunner", "bundlebaseddirectrunner")


def import_beam_lightly(beam_arguments: Sequence[str], addresses: Sequence[str | None]) -> None:
    """Imports Beam without the clients of services that this job cannot call; for a process that runs this job alone.

    Does nothing when Beam is imported already, when another runner is asked for, or when an address is not local.
    """
    local = is_local(beam_arguments) and not any("://" in text for text in (*beam_arguments, *filter(None, addresses)))
    if not local or "apache_beam" in sys.modules:
        return
    hidden = [name for name in _UNUSED_LOCALLY if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None makes the import fail
    gc.disable()  # nothing of what is imported goes away again: looking for garbage takes 0.1 s
    try:
        from apache_beam.runners.portability import fn_api_runner  # noqa: F401
        from apache_beam.runners.worker import statesampler

        # A stage ends when its sampling thread next wakes: after up to 200 ms, in all 0.2 s of a small job.
        statesampler.StateSampler.__init__.__defaults__ = (_SAMPLING_PERIOD_MS,)
    finally:
        for name in hidden:
            del sys.modules[name]
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def without_tracebacks() -> Iterator[None]:
    """Keeps tracebacks of Beam out of the log: what a step raises is raised to the caller, with its cause.

    Logs at INFO, which somebody asked for, stay whole. Only Beam's own loggers are touched, and only meanwhile.
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


def take_hdfs_user(beam_arguments: Sequence[str]) -> None:
    """Makes --hdfs_user, as Beam calls it, the user of every hdfs:// address that names none.

    In this process and those it starts. The host and the port are in the address itself.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--hdfs_user")
    user = parser.parse_known_args(list(beam_arguments))[0].hdfs_user
    if user:
        os.environ["HADOOP_USER_NAME"] = user


def is_local(beam_arguments: Sequence[str]) -> bool:
    """Whether the job runs in this process: Beam's Python FnApiRunner, in memory."""
    known = _parse_runner(beam_arguments)
    return _is_fn_api(known.runner) and known.direct_running_mode == "in_memory"


def is_direct(beam_arguments: Sequence[str]) -> bool:
    """Whether the job runs on this machine, in this process or in some that it starts."""
    return _is_fn_api(_parse_runner(beam_arguments).runner)


def _is_fn_api(runner: str) -> bool:
    """Whether Beam would take the name for its direct runner: in any case, with or without "Runner"."""
    name = runner.lower()
    return name in _LOCAL_RUNNERS or f"{name}runner" in _LOCAL_RUNNERS


def _parse_runner(beam_arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--runner", default="DirectRunner")
    parser.add_argument("--direct_running_mode", default="in_memory")
    return parser.parse_known_args(list(beam_arguments))[0]


def runner_name(beam_arguments: Sequence[str]) -> str:
    """The runner's name as the user is told it."""
    known = _parse_runner(beam_arguments)
    if not _is_fn_api(known.runner):
        return known.runner
    return "FnApiRunner" if known.direct_running_mode == "in_memory" else f"FnApiRunner ({known.direct_running_mode})"


def make_options(beam_arguments: Sequence[str], workers: int) -> PipelineOptions:
    """Beam's options from the arguments that are not ours.

    DirectRunner here means the Python FnApiRunner: Beam's own DirectRunner first looks for Prism, a Go program, and
    falls back without a word (apache_beam/runners/direct/direct_runner.py).

    Raises:
        ConfigError: if an argument is none that Beam knows.
    """
    from apache_beam.options import pipeline_options

    arguments = list(beam_arguments)
    known = _parse_runner(arguments)
    if _is_fn_api(known.runner):
        arguments += ["--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"]
        if known.direct_running_mode != "in_memory" and not any("direct_num_workers" in text for text in arguments):
            arguments += [f"--direct_num_workers={workers}"]
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for group in pipeline_options.PipelineOptions.__subclasses__():
        if hasattr(group, "_add_argparse_args"):
            with contextlib.suppress(argparse.ArgumentError):
                group._add_argparse_args(parser)
    flags = {option for action in parser._actions for option in action.option_strings}
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            _, unknown = parser.parse_known_args(arguments)
    except SystemExit as e:
        cause = complaint.getvalue().rpartition("error: ")[2].strip()
        raise errors.ConfigError(f"Beam cannot use its options: {cause}") from e
    if unknown:
        flag = unknown[0].partition("=")[0]
        near = difflib.get_close_matches(flag, [*flags, *_OWN_FLAGS], n=1)
        hint = f"; did you mean {near[0]}?" if near else "; see imagebeam convert --help, and Beam's pipeline options"
        raise errors.ConfigError(f"unknown option {flag}{hint}")
    return pipeline_options.PipelineOptions(arguments)


_OWN_FLAGS = ("--config", "--input", "--output", "--set", "--workers", "--overwrite", "--verbose", "--quiet")
