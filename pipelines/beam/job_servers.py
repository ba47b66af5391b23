"""The job server of a portable runner: whether it can be reached, its options, and how it ends.

Importing this module imports no Beam.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import errno
import functools
import gc
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from imagebeam import errors

_JARS = {"flink": "--flink_job_server_jar", "spark": "--spark_job_server_jar"}  # by the runner
_CONNECT_SEC = 10.0


def given(beam_arguments: Sequence[str], *options: str) -> argparse.Namespace:
    """Returns the values of some of Beam's options; None for those that are not given."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in options:
        parser.add_argument(option)
    return parser.parse_known_args(list(beam_arguments))[0]


def require_reachable(runner: str, beam_arguments: Sequence[str]) -> None:
    """Refuses options that name no job server, a jar that does not exist, or a server that does not answer.

    Without any of these options, Beam looks for the jar of Flink or Spark in its cache, and then downloads it.

    Args:
        runner: its name in lower case, without "runner".
        beam_arguments: options for Beam.

    Raises:
        ConfigError: with the option to change.
    """
    known = vars(given(beam_arguments, "--job_endpoint", *_JARS.values()))
    jar = known.get(_JARS.get(runner, "").lstrip("-"))
    if runner == "portable" and not known["job_endpoint"]:
        raise errors.ConfigError(
            "job-server-missing",
            "--runner=PortableRunner needs the job server of a runner: give --job_endpoint=HOST:PORT",
        )
    if jar is not None and "://" not in jar and not os.path.isfile(jar):
        raise errors.ConfigError(
            "job-server-no-jar", f"{_JARS[runner]} is {jar!r}, which is no file: give the path of Beam's job server"
        )
    if endpoint := endpoint_of(beam_arguments):
        _require_answer(endpoint)


def endpoint_of(beam_arguments: Sequence[str]) -> str:
    """Returns HOST:PORT of the job server that the options name; "" without one, or for a name that Beam knows."""
    endpoint = given(beam_arguments, "--job_endpoint").job_endpoint or ""
    host, _, port = endpoint.rpartition(":")
    return endpoint if host and port.isdecimal() else ""  # not "embed"


def _require_answer(endpoint: str) -> None:
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SEC).close()
    except (OSError, OverflowError) as e:  # OverflowError: a port above 65535
        reason = getattr(e, "strerror", None) or e
        raise errors.ConfigError(
            "job-server-silent",
            f"--job_endpoint is {endpoint!r}, where no job server answers ({reason}): start it, or correct the address",
        ) from e


def add_options(parser: argparse.ArgumentParser, endpoint: str) -> None:
    """Adds the options that a job server lists to a parser of Beam's own, as Beam does when it submits a job.

    Args:
        parser: knows Beam's own options, which stay as they are.
        endpoint: the server's address, as HOST:PORT.

    Raises:
        ConfigError: if the server does not answer.
    """
    import grpc
    from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

    with grpc.insecure_channel(endpoint) as channel:
        try:
            listed = beam_job_api_pb2_grpc.JobServiceStub(channel).DescribePipelineOptions(
                beam_job_api_pb2.DescribePipelineOptionsRequest(), timeout=_CONNECT_SEC
            )
        except grpc.RpcError as e:
            raise errors.ConfigError(
                "job-server-without-options",
                f"--job_endpoint is {endpoint!r}, which does not say which options it has ({e.details()}): is it a "
                "job server of Beam?",
            ) from e
    kinds = beam_job_api_pb2.PipelineOptionType
    for option in listed.options:
        settings: dict[str, Any] = {}
        if option.type == kinds.BOOLEAN:
            settings["action"] = "store_false" if option.default_value == "true" else "store_true"
        elif option.type == kinds.ARRAY:
            settings["action"] = "append"
        elif option.type == kinds.INTEGER:
            settings["type"] = int
        with contextlib.suppress(argparse.ArgumentError):  # Beam has it already
            parser.add_argument(f"--{option.name}", **settings)


@dataclasses.dataclass(frozen=True)
class ServedJob:
    """A job of a job server.

    Attributes:
        endpoint: HOST:PORT of the server; "" if Beam has started it.
        name: of the job.
    """

    endpoint: str
    name: str

    def state(self) -> str:
        """Returns the state of the job, such as "RUNNING"; "" for a server without an endpoint.

        Raises:
            FileNotFoundError: if the server knows no such job.
            OSError: if the server does not answer, or lists no jobs.
        """
        if not self.endpoint:
            return ""
        import grpc
        from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

        with grpc.insecure_channel(self.endpoint) as channel:
            try:
                listed = beam_job_api_pb2_grpc.JobServiceStub(channel).GetJobs(
                    beam_job_api_pb2.GetJobsRequest(), timeout=_CONNECT_SEC
                )
            except grpc.RpcError as e:
                raise OSError(errno.EIO, f"the job server {self.endpoint} does not answer ({e.details()})") from e
        for job in listed.job_info:  # it calls each job "job", whatever the option
            if dict(job.pipeline_options).get("beam:option:job_name:v1") == self.name:
                return str(beam_job_api_pb2.JobState.Enum.Name(job.state))
        raise FileNotFoundError(errno.ENOENT, f"the job server {self.endpoint} knows no job {self.name}")

    def describe_silence(self, seconds: float, state: str) -> str:
        """Returns what may be wrong with a job whose workers have not begun after some time in this state."""
        server = f"the job server {self.endpoint}" if self.endpoint else "the job server"
        return (
            f"no worker has begun after {seconds:.0f} s, and {server} says {state or 'nothing of the job'}: it may not "
            "reach its cluster, the cluster may have no free slots, or --environment_config may not start its workers "
            "(docs/runners.md)"
        )


@contextlib.contextmanager
def ended(runner: Any) -> Iterator[None]:
    """Ends the job server that a runner of Beam starts for itself, at the end of the context instead of the process.

    Beam's job servers take SIGINT over, to end before anybody could cancel their job. Here the handler stays.

    Args:
        runner: of the pipeline; one without a job server stays as it is.
    """
    make: Callable[[Any], Any] | None = getattr(runner, "default_job_server", None)
    if make is None:
        yield
        return
    from apache_beam.runners.portability import job_server

    class KeptHandler(job_server.JobServer):
        def __init__(self, server: Any):
            self._server = server

        def start(self) -> Any:
            handler = signal.getsignal(signal.SIGINT)
            try:
                return self._server.start()
            finally:
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGINT, handler)

        def stop(self) -> None:
            self._server.stop()

    servers: list[job_server.JobServer] = []

    def default_job_server(options: Any) -> job_server.JobServer:
        servers.append(KeptHandler(make(options)))
        return servers[-1]

    runner.default_job_server = default_job_server
    try:
        yield
    finally:
        runner.default_job_server = make
        for server in servers:
            server.stop()


def explain_missing_jar(cause: str) -> str | None:
    """Returns the error text for a job server that Beam could not download; None if `cause` is something else.

    Args:
        cause: what Beam says, which names both addresses that it tried.
    """
    found = re.search(r"job server jar at \S*/beam-runners-(flink|spark)\S*-job-server-\S*\.jar", cause)
    if found is None:
        return None
    runner = found[1].capitalize()
    return (
        f"there is no job server for {runner}Runner: Beam has none in its cache and cannot download it here; give "
        f"{_JARS[found[1]]}=PATH, or --job_endpoint=HOST:PORT of one that runs (docs/runners.md)"
    )


_NO_SPARK = "the job server does not reach its cluster: start that, or correct the server's --spark-master-url"
# What Flink and Spark say of a cluster that cannot run a job, and what to do about it.
_REMEDIES = {
    "java.net.ConnectException": "the job server does not reach its cluster: start that, or correct the server's "
    "--flink-master",
    "All masters are unresponsive": _NO_SPARK,
    # After its three attempts Spark 3.5 stops the context while another thread still makes it, which then fails here or
    # there.
    "No active SparkContext": _NO_SPARK,
    'because the return value of "org.apache.spark.Spark': _NO_SPARK,
    "Insufficient number of network buffers": "give a lower --parallelism, or Flink a higher "
    "taskmanager.memory.network.max",
    "NoResourceAvailableException": "the cluster has too few free slots: start more TaskManagers, or give a lower "
    "--parallelism",
}


def remedy_of(cause: str, endpoint: str = "") -> str:
    """Returns what to do about the failure of a job, to append to its text; "" if nothing is known."""
    where = f"job server {endpoint}: " if endpoint else ""
    return "".join(f" ({where}{remedy}; docs/runners.md)" for text, remedy in _REMEDIES.items() if text in cause)


_PROGRAM = "prism"
_HELP_SEC = 30.0
_THREADS_SEC = 0.2  # threads of Beam notice in this time that Prism has ended


def added_arguments(beam_arguments: Sequence[str]) -> list[str]:
    """Returns options for Beam that a run on Prism needs beside its own: the program, and a quiet log.

    Raises:
        ConfigError: if there is no Prism, or --prism_location is no file.
    """
    known = given(beam_arguments, "--prism_location", "--prism_log_kind", "--job_endpoint")
    if known.job_endpoint:  # a Prism that runs already
        return []
    added = ["--experiments=disable_prism_server_singleton"]  # each run ends its own Prism
    if known.prism_location is None:
        added.append(f"--prism_location={_find()}")
    elif "://" not in known.prism_location and not os.path.isfile(known.prism_location):
        raise errors.ConfigError(
            "prism-no-file",
            f"--prism_location is {known.prism_location!r}, which is no file; {install_command()}, and give the path "
            "of the program",
        )
    # Beam's own kind, "console", shows two lines of Prism's log whatever level the loggers of this process have.
    if known.prism_log_kind is None and not logging.getLogger().isEnabledFor(logging.INFO):
        added.append("--prism_log_kind=json")
    return added


@contextlib.contextmanager
def broken_streams_ignored() -> Iterator[None]:
    """Stops threads of Beam from printing a traceback when Prism ends while they talk to it.

    Prism ends when the result is known. A thread of Beam then fails inside gRPC: with an RpcError, or with a ValueError
    at a channel that is closed. The same holds for generators of Beam that are collected afterwards. Waits for threads
    that were started in the context, then restores the hooks.
    """
    before = {*threading.enumerate()}
    hooks = threading.excepthook, sys.unraisablehook

    def show_others(hook: Callable[[Any], Any], failed: Any) -> None:
        if not _is_broken_stream(failed.exc_type, failed.exc_traceback):
            hook(failed)

    threading.excepthook, sys.unraisablehook = (functools.partial(show_others, hook) for hook in hooks)
    try:
        yield
    finally:
        give_up = time.monotonic() + _THREADS_SEC
        for thread in {*threading.enumerate()} - before:
            thread.join(max(0.0, give_up - time.monotonic()))
        gc.collect()  # generators may hold a stream
        threading.excepthook, sys.unraisablehook = hooks


def _is_broken_stream(kind: type[BaseException], trace: types.TracebackType | None) -> bool:
    """Returns whether an error comes from gRPC, in code that Beam called."""
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(trace)]
    is_beams = any(name.startswith("apache_beam.") for name in modules)
    is_raised_by_grpc = bool(modules) and modules[-1].partition(".")[0] == "grpc"
    return is_beams and (is_raised_by_grpc or any(each.__name__ == "RpcError" for each in kind.__mro__))


def install_command() -> str:
    """Returns how to install the Prism of this Beam."""
    import importlib.metadata  # late: 15 ms

    version = importlib.metadata.version("apache-beam")
    return f"go install github.com/apache/beam/sdks/v2/go/cmd/prism@v{version}"


def _find() -> str:
    """Returns the path of the Prism on PATH. Other programs have the same name: only Beam's knows --job_port."""
    found = shutil.which(_PROGRAM)
    if found is None:
        raise errors.ConfigError(
            "prism-missing",
            f"there is no Prism on PATH: {install_command()}, add $(go env GOPATH)/bin to PATH, or give "
            "--prism_location=PATH",
        )
    if not _is_prism(found):
        text = f"{found} on PATH is another program, not Beam's Prism: {install_command()}, and give --prism_location="
        raise errors.ConfigError("prism-other-program", f"{text}PATH")
    return found


def _is_prism(path: str) -> bool:
    try:
        shown = subprocess.run([path, "--help"], capture_output=True, timeout=_HELP_SEC, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"-job_port" in shown.stdout + shown.stderr
