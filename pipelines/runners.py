"""Chooses the Beam runner of a job, imports Beam for it, and makes Beam's options."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import gc
import inspect
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from imagebeam import errors

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

# Optional imports of Beam that a local job on local files never calls. Without them Beam's import takes half the time
# (1.03 s -> 0.48 s) and two thirds of the memory (157 MB -> 104 MB).
_UNUSED_LOCALLY = ("google.cloud", "google.auth", "google.api_core", "apitools", "pymongo", "pyarrow", "pandas")
# Skips type checks of the graph, which take 0.1 s of every run: the tests build the same graph with the checks.
TRUSTED_GRAPH = ("--no_pipeline_type_check",)

_SAMPLING_PERIOD_MS = 2
_LOCAL_RUNNERS = ("directrunner", "fnapirunner", "bundlebaseddirectrunner")


def import_beam_lightly(beam_arguments: Sequence[str], addresses: Sequence[str | None]) -> None:
    """Imports Beam without the clients of services that this job cannot call, in a process that runs only this job.

    Does nothing if Beam is imported already, if the runner is another one, or if an address is not local.
    """
    local = is_local(beam_arguments) and not any("://" in text for text in (*beam_arguments, *filter(None, addresses)))
    if not local or "apache_beam" in sys.modules:
        return
    hidden = [name for name in _UNUSED_LOCALLY if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None makes the import fail
    gc.disable()  # modules are never freed: collecting garbage during the import takes 0.1 s
    try:
        from apache_beam.runners.portability import fn_api_runner  # noqa: F401
        from apache_beam.runners.worker import statesampler

        shorten_sampling(statesampler.StateSampler)
    except ModuleNotFoundError as e:
        if e.name != "apache_beam":
            raise
    finally:
        for name in hidden:
            del sys.modules[name]
        gc.freeze()
        gc.enable()


def shorten_sampling(state_sampler: Any) -> bool:
    """Makes Beam's state sampler wake every 2 ms instead of 200 ms; returns whether that was possible.

    A stage ends only when its sampling thread wakes, which costs a small job 0.2 s. The period is a default argument
    that no option of Beam sets. On another Beam, whose constructor differs, nothing is changed.
    """
    constructor = getattr(state_sampler, "__init__", None)
    try:
        parameters = inspect.signature(constructor).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    names = [each.name for each in parameters if each.default is not inspect.Parameter.empty]
    if names != ["sampling_period_ms"] or len(getattr(constructor, "__defaults__", None) or ()) != 1:
        return False
    try:
        constructor.__defaults__ = (_SAMPLING_PERIOD_MS,)  # type: ignore[union-attr]
    except (AttributeError, TypeError):  # compiled without writable defaults
        return False
    return True


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
