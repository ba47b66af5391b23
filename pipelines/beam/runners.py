"""Chooses the Beam runner of a job, imports Beam for it, and makes Beam's options."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import gc
import importlib
import io
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from imagebeam import errors
from imagebeam.pipelines.beam import beam_shortcuts, hold_signals, job_servers, late_modules, prism

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
# Imports that Beam requires, of which the graph and the run of such a job use nothing.
_USED_ELSEWHERE = (
    "apache_beam.runners.dataflow.dataflow_runner",
    "apache_beam.runners.dataflow.test_dataflow_runner",
    "apache_beam.runners.direct.direct_runner",
    "apache_beam.runners.direct.test_direct_runner",
    "apache_beam.runners.worker.channel_factory",
    "apache_beam.runners.worker.worker_id_interceptor",
    "beartype",
    "beartype.door",
    "beartype.roar",
    "bson",
    "bson.objectid",
    "cProfile",
    "cryptography",
    "cryptography.fernet",
    "dateutil",
    "dateutil.parser",
    "fastavro",
    "fastavro.read",
    "fastavro.write",
    "google.protobuf.internal.python_message",  # of messages without C
    "google.protobuf.text_format",
    "grpc",
    "httplib2",
    "importlib.metadata",
    "multiprocessing.pool",
    "numpy._core._add_newdocs",  # texts for help(), a tenth of the import of numpy
    "numpy._core._add_newdocs_scalars",
    "numpy._typing",
    "packaging",
    "packaging.version",
    "proto",
    "pstats",
    "regex",
    "requests",
    "urllib.request",
    "yaml",
)
# Skips type checks of the graph, which take 0.1 s of every run: the tests build the same graph with the checks.
TRUSTED_GRAPH = ("--no_pipeline_type_check",)

# numpy, which Beam imports, starts a thread for each core when it is imported. This process multiplies no matrices.
_NUMPY_THREADS = "OPENBLAS_NUM_THREADS"

_GC_THRESHOLD = 300_000  # new objects before garbage is collected, instead of 700: a tenth of the time for MNIST

_RUNNER = "apache_beam.runners.portability.fn_api_runner"
_LOCAL_RUNNERS = ("directrunner", "fnapirunner", "bundlebaseddirectrunner")


def import_beam_lightly(beam_arguments: Sequence[str], addresses: Sequence[str | None]) -> None:
    """Imports Beam without the clients of services that this job cannot call, in a process that runs only this job.

    Does nothing if Beam is imported already, if the runner is another one, or if an address is not local.
    """
    local = is_local(beam_arguments) and not any("://" in text for text in (*beam_arguments, *filter(None, addresses)))
    if not local or "apache_beam" in sys.modules:
        return
    threads = os.environ.get(_NUMPY_THREADS)
    os.environ.setdefault(_NUMPY_THREADS, "1")
    try:
        # A signal in the middle of the import of an extension in C can end the process with SIGSEGV.
        with hold_signals.held_back(), late_modules.quick_imports():  # the latter spares 0.1 s
            if not _try_import_in_part():
                for name in [name for name in sys.modules if f"{name}.".startswith("apache_beam.")]:
                    del sys.modules[name]
                with contextlib.suppress(ModuleNotFoundError):  # reported when the options are made
                    importlib.import_module(_RUNNER)
    finally:
        gc.set_threshold(_GC_THRESHOLD)  # references are many objects, and in no cycle
        if threads is None:
            del os.environ[_NUMPY_THREADS]


def _try_import_in_part() -> bool:
    """Imports Beam's local runner without the modules that it does not use; returns whether this Beam allows it."""
    hidden = [name for name in _UNUSED_LOCALLY if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None makes the import fail
    try:
        with late_modules.imported_late(_USED_ELSEWHERE), _without_stacks():
            importlib.import_module(_RUNNER)
    except (ImportError, AttributeError, TypeError):
        return False
    finally:
        for name in hidden:
            del sys.modules[name]
    return True


@contextlib.contextmanager
def _without_stacks() -> Iterator[None]:
    """Spares Beam the stack that it formats for each of its type hints, with lines of source, to show in errors."""
    format_stack = traceback.format_stack
    traceback.format_stack = lambda f=None, limit=None: []
    try:
        yield
    finally:
        traceback.format_stack = format_stack


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
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--hdfs_user")
    user = parser.parse_known_args(list(beam_arguments))[0].hdfs_user
    if user:
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
    return _is_named(beam_arguments, "dataflow")


def is_prism(beam_arguments: Sequence[str]) -> bool:
    """Returns whether the job runs on Prism, by any name that Beam takes for its runner."""
    return _is_named(beam_arguments, "prism")


def _is_named(beam_arguments: Sequence[str], name: str) -> bool:
    return _short_name(beam_arguments) == name


def _short_name(beam_arguments: Sequence[str]) -> str:
    """Returns the runner in lower case, without its package and "runner", such as "flink"."""
    return _parse_runner(beam_arguments).runner.lower().rpartition(".")[2].removesuffix("runner")


def require_supported(beam_arguments: Sequence[str], writer: str) -> None:
    """Refuses runners that are known to lose images, for the given `output.writer`, or whose job server is missing.

    Raises:
        ConfigError: with the reason, and what to choose instead.
    """
    instead = "--runner=DirectRunner --direct_running_mode=multi_processing uses all cores of this machine"
    if _is_named(beam_arguments, "dask"):
        raise errors.ConfigError(
            f"--runner is {runner_name(beam_arguments)}: on Dask, Beam mixes the rejects of a step into its images, "
            f"since elements of tagged outputs come out of the main output too; choose another runner: {instead}"
        )
    if writer == "beam" and is_prism(beam_arguments):
        raise errors.ConfigError(
            f"output.writer is 'beam' and --runner is {runner_name(beam_arguments)}: Prism loses the names of the "
            "files that Beam's own writer has written, so nothing could be committed; leave output.writer out, or "
            "choose another runner"
        )
    if not is_dataflow(beam_arguments):
        job_servers.require_reachable(_short_name(beam_arguments), beam_arguments)


def leaves_job(beam_arguments: Sequence[str]) -> bool:
    """Returns whether Beam's options ask to leave a job while it runs, or to write a template instead of a job."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--no_wait_until_finish", action="store_true")
    parser.add_argument("--template_location")
    known = parser.parse_known_args(list(beam_arguments))[0]
    return known.no_wait_until_finish or known.template_location is not None


def _is_fn_api(runner: str) -> bool:
    """Returns whether Beam knows the name as its direct runner, in upper or lower case, with or without "Runner"."""
    name = runner.lower()
    return name in _LOCAL_RUNNERS or f"{name}runner" in _LOCAL_RUNNERS


def _parse_runner(beam_arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--runner", default="DirectRunner")
    parser.add_argument("--direct_running_mode", default="in_memory")
    return parser.parse_known_args(list(beam_arguments))[0]


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
        if is_prism(arguments):
            arguments += prism.added_arguments(arguments)
    parser = _parser_of(tuple(pipeline_options.PipelineOptions.__subclasses__()))
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            _, unknown = parser.parse_known_args(arguments)
    except SystemExit as e:
        cause = complaint.getvalue().rpartition("error: ")[2].strip()
        raise errors.ConfigError(f"Beam cannot use its options: {cause}") from e
    if unknown and not unknown[0].startswith("-"):
        raise errors.ConfigError(
            f"unexpected argument {unknown[0]!r}; a folder or file of images is given by --input, to convert and plan"
        )
    if unknown:
        refuse_own_flags(unknown)
        flag = unknown[0].partition("=")[0]
        flags = {option for action in parser._actions for option in action.option_strings}
        near = difflib.get_close_matches(flag, [*flags, *_OWN_FLAGS], n=1)
        hint = f"; did you mean {near[0]}?" if near else "; see imagebeam convert --help, and Beam's pipeline options"
        raise errors.ConfigError(f"unknown option {flag}{hint}")
    return pipeline_options.PipelineOptions(arguments)


def refuse_own_flags(beam_arguments: Sequence[str]) -> None:
    """Checks that no option of `convert` is among those that Beam is to take.

    Raises:
        ConfigError: if one is.
    """
    for flag in (text.partition("=")[0] for text in beam_arguments):
        if flag in _OWN_FLAGS:
            raise errors.ConfigError(
                f"unknown option {flag}: it is one of imagebeam convert, and neither one of this command nor of Beam"
            )


@functools.lru_cache(1)
def _parser_of(groups: tuple[type, ...]) -> argparse.ArgumentParser:
    """Returns a parser of Beam's options, 350 of them: to make it takes longer than to read the arguments."""
    make_formatter = beam_shortcuts.make_formatter
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, formatter_class=make_formatter)
    for group in groups:
        if hasattr(group, "_add_argparse_args"):
            with contextlib.suppress(argparse.ArgumentError):
                group._add_argparse_args(parser)
    return parser


_OWN_FLAGS = (
    "--config",
    "--input",
    "--output",
    "--set",
    "--workers",
    "--overwrite",
    "--update",
    "--retry-rejects",
    "--fail-on-drift",
    "--keep-snapshots",
    "--verbose",
    "--quiet",
    "--no-wait",
    "--cancel-on-interrupt",
)
