"""Chooses the Beam runner of a job, imports Beam for it, and makes Beam's options. Holds back signals meanwhile."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import io
import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from imagebeam import errors
from imagebeam.pipelines.beam import flink_cluster, job_servers

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

# Optional imports of Beam that a local job on local files never calls.
_UNUSED_LOCALLY = (
    "absl",
    "apache_beam.io.aws.s3filesystem",
    "apache_beam.io.azure.blobstoragefilesystem",
    "apache_beam.io.gcp.bigquery",
    "apitools",
    "boto3",
    "botocore",
    "dill",
    "google.api_core",
    "google.auth",
    "google.cloud",
    "pandas",
    "pyarrow",
    "pymongo",
)
_RUNNER = "apache_beam.runners.portability.fn_api_runner"
_LOCAL_RUNNERS = ("directrunner", "fnapirunner", "bundlebaseddirectrunner")
_KEPT_WORKERS_MILLIS = 60_000  # otherwise Flink and Spark start Python workers for each stage
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def import_beam_lightly(beam_arguments: Sequence[str], addresses: Sequence[str | None]) -> None:
    """Imports Beam without the clients of services that this job cannot call, in half of the time.

    This is for a process that runs only this job. Does nothing if Beam is imported already, if the runner is another
    one, or if an address is not local.
    """
    local = is_local(beam_arguments) and not any("://" in text for text in (*beam_arguments, *filter(None, addresses)))
    if not local or "apache_beam" in sys.modules:
        return
    hidden = [name for name in _UNUSED_LOCALLY if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None makes the import fail
    try:
        # a signal in the middle of the import of an extension in C can end the process with SIGSEGV
        with held_back():
            importlib.import_module(_RUNNER)
    except ImportError:  # a Beam that needs one of them, or none, which is reported when the options are made
        for name in [name for name in sys.modules if f"{name}.".startswith("apache_beam.")]:
            del sys.modules[name]
    finally:
        for name in hidden:
            del sys.modules[name]


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Calls the handlers of SIGINT, SIGTERM and SIGHUP at the end of the context, not in the middle of it.

    A second signal of a kind ends the process at once. A signal without a handler in Python does what it always does,
    and in another thread than the main one this changes nothing: Python calls handlers in the main thread alone.
    Restores the previous handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {each: handler for each in _ENDING if callable(handler := signal.getsignal(each))}
    came: list[int] = []

    def note(number: int, _: object) -> None:
        came.append(number)
        signal.signal(number, signal.SIG_DFL)

    for each in handlers:
        signal.signal(each, note)
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        for number in came:
            handlers[signal.Signals(number)](number, None)


@contextlib.contextmanager
def relative_paths() -> Iterator[None]:
    """Makes Beam pickle its own lambdas with paths relative to sys.path, without the launcher's folders.

    Tracebacks alone show these paths. Changes nothing in a Beam whose pickler has no setting for it.
    """
    from apache_beam.internal import cloudpickle_pickler

    config: Any = getattr(cloudpickle_pickler, "DEFAULT_CONFIG", None)
    relative = getattr(getattr(cloudpickle_pickler, "cloudpickle", None), "get_relative_path", None)
    before = getattr(config, "filepath_interceptor", None)
    if before is None or relative is None:
        yield
        return
    config.filepath_interceptor = relative
    try:
        yield
    finally:
        config.filepath_interceptor = before


def take_hdfs_user(beam_arguments: Sequence[str]) -> None:
    """Makes Beam's option --hdfs_user the user of every hdfs:// address without one.

    This holds in this process and those it starts. The host and the port are in the address itself.
    """
    if user := job_servers.given(beam_arguments, "--hdfs_user").hdfs_user:
        os.environ["HADOOP_USER_NAME"] = user


def is_local(beam_arguments: Sequence[str]) -> bool:
    """Returns whether the job runs in this process: Beam's Python FnApiRunner, in memory."""
    known = _parse_runner(beam_arguments)
    return _is_fn_api(known.runner) and known.direct_running_mode == "in_memory"


def is_direct(beam_arguments: Sequence[str]) -> bool:
    """Returns whether the job runs on this machine, in this process or in processes that it starts."""
    return _is_fn_api(_parse_runner(beam_arguments).runner)


def is_dataflow(beam_arguments: Sequence[str]) -> bool:
    """Returns whether the job runs on Dataflow, by any name that Beam takes for its runner."""
    return _short_name(beam_arguments) == "dataflow"


def is_prism(beam_arguments: Sequence[str]) -> bool:
    """Returns whether the job runs on Prism, by any name that Beam takes for its runner."""
    return _short_name(beam_arguments) == "prism"


def _short_name(beam_arguments: Sequence[str]) -> str:
    """Returns the runner in lower case, without its package and "runner", such as "flink"."""
    return _parse_runner(beam_arguments).runner.lower().rpartition(".")[2].removesuffix("runner")


def require_supported(beam_arguments: Sequence[str], writer: str) -> None:
    """Refuses runners that are known to lose images, for the given `output.writer`, or whose job server is missing.

    Raises:
        ConfigError: with the reason, and what to choose instead.
    """
    instead = "--runner=DirectRunner --direct_running_mode=multi_processing uses all cores of this machine"
    if _short_name(beam_arguments) == "dask":
        raise errors.ConfigError(
            "runner-dask",
            f"--runner is {runner_name(beam_arguments)}: on Dask, Beam mixes the rejects of a step into its images, "
            f"since elements of tagged outputs come out of the main output too; choose another runner: {instead}",
        )
    if writer == "beam" and is_prism(beam_arguments):
        raise errors.ConfigError(
            "beam-writer-on-prism",
            f"output.writer is 'beam' and --runner is {runner_name(beam_arguments)}: Prism loses the names of the "
            "files that Beam's own writer has written, so nothing could be committed; leave output.writer out, or "
            "choose another runner",
        )
    if not is_dataflow(beam_arguments):
        job_servers.require_reachable(_short_name(beam_arguments), beam_arguments)
    if _short_name(beam_arguments) == "flink":
        flink_cluster.require_ready(beam_arguments)


def leaves_job(beam_arguments: Sequence[str]) -> bool:
    """Returns whether Beam's options ask to leave a job while it runs, or to write a template instead of a job."""
    is_template = job_servers.given(beam_arguments, "--template_location").template_location is not None
    return is_template or "--no_wait_until_finish" in beam_arguments


def _is_fn_api(runner: str) -> bool:
    """Returns whether Beam knows the name as its direct runner, in upper or lower case, with or without "Runner"."""
    name = runner.lower()
    return name in _LOCAL_RUNNERS or f"{name}runner" in _LOCAL_RUNNERS


def _parse_runner(beam_arguments: Sequence[str]) -> argparse.Namespace:
    known = job_servers.given(beam_arguments, "--runner", "--direct_running_mode")
    known.runner = known.runner or "DirectRunner"
    known.direct_running_mode = known.direct_running_mode or "in_memory"
    return known


def runner_name(beam_arguments: Sequence[str]) -> str:
    """Returns the runner's name as printed for the user."""
    known = _parse_runner(beam_arguments)
    if not _is_fn_api(known.runner):
        return known.runner
    return "FnApiRunner" if known.direct_running_mode == "in_memory" else f"FnApiRunner ({known.direct_running_mode})"


def make_options(beam_arguments: Sequence[str], workers: int) -> PipelineOptions:
    """Returns Beam's options from the arguments that are not imagebeam's.

    DirectRunner here means the Python FnApiRunner: Beam's own DirectRunner first looks for Prism, a Go program, and
    falls back silently (apache_beam/runners/direct/direct_runner.py).

    Raises:
        ConfigError: if Beam does not know an argument.
    """
    from apache_beam.options import pipeline_options

    arguments = list(beam_arguments)
    known = _parse_runner(arguments)
    if _is_fn_api(known.runner):
        arguments += ["--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"]
        if known.direct_running_mode != "in_memory" and not any("direct_num_workers" in text for text in arguments):
            arguments += [f"--direct_num_workers={workers}"]
    elif not is_dataflow(arguments):  # whose options are completed elsewhere
        # otherwise Beam asks pip for all packages of this environment, and stages their names and paths
        arguments.append("--experiments=disable_logging_submission_environment")
        if job_servers.given(arguments, "--job_name").job_name is None:
            arguments.append(f"--job_name=imagebeam-{secrets.token_hex(4)}")
        if is_prism(arguments):
            arguments += job_servers.added_arguments(arguments)
        elif job_servers.given(arguments, "--environment_cache_millis").environment_cache_millis is None:
            arguments.append(f"--environment_cache_millis={_KEPT_WORKERS_MILLIS}")
    parsers: list[argparse.ArgumentParser] = []
    # a parser of all of Beam's options
    pipeline_options.PipelineOptions([]).get_all_options(add_extra_args_fn=parsers.append)
    parser = parsers[0]
    unknown = _unknown_options(parser, arguments)
    if unknown and unknown[0].startswith("-") and (endpoint := job_servers.endpoint_of(arguments)):
        job_servers.add_options(parser, endpoint)
        unknown = _unknown_options(parser, arguments)
    if unknown and not unknown[0].startswith("-"):
        raise errors.ConfigError(
            "argument-unexpected",
            f"unexpected argument {unknown[0]!r}; a folder or file of images is given by --input, to convert and plan",
        )
    if unknown:
        refuse_own_flags(unknown)
        flag = unknown[0].partition("=")[0]
        flags = [f"--{name}" for name in vars(parser.parse_args([]))]
        near = difflib.get_close_matches(flag, [*flags, *_OWN_FLAGS], n=1)
        hint = f"; did you mean {near[0]}?" if near else "; see imagebeam convert --help, and Beam's pipeline options"
        raise errors.ConfigError("option-unknown", f"unknown option {flag}{hint}")
    return pipeline_options.PipelineOptions(arguments)


def refuse_own_flags(beam_arguments: Sequence[str]) -> None:
    """Checks that no option of `convert` is among those that Beam is to take.

    Raises:
        ConfigError: if one is.
    """
    for flag in (text.partition("=")[0] for text in beam_arguments):
        if flag in _OWN_FLAGS:
            raise errors.ConfigError(
                "option-of-convert",
                f"unknown option {flag}: it is one of imagebeam convert, and neither one of this command nor of Beam",
            )


def _unknown_options(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """Returns the arguments that the parser does not know.

    Raises:
        ConfigError: if it cannot use the value of one that it knows.
    """
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return parser.parse_known_args(arguments)[1]
    except SystemExit as e:
        cause = complaint.getvalue().rpartition("error: ")[2].strip()
        raise errors.ConfigError("beam-option-value", f"Beam cannot use its options: {cause}") from e


_OWN_FLAGS = tuple(
    f"--{name}"
    for name in (
        *("config", "input", "output", "set", "workers", "overwrite", "update", "retry-rejects", "fail-on-drift"),
        *("keep-snapshots", "verbose", "quiet", "no-wait", "cancel-on-interrupt"),
    )
)
