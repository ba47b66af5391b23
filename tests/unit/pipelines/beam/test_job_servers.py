"""Job servers on loopback: their options, how they end, and who gets Ctrl-C meanwhile; and where Prism is found."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from apache_beam.portability.api import beam_job_api_pb2
from apache_beam.runners.portability import job_server, local_job_service

from imagebeam.pipelines import convert, status
from imagebeam.pipelines.beam import job_servers, runners
from imagebeam.transforms.publish import run_records
from tests import case_tables, datasets, error_texts
from tests.golden import test_golden

_KINDS = beam_job_api_pb2.PipelineOptionType
GONE = 2**22 + 1  # no process has this id
_OPTIONS = (
    ("number_of_execution_retries", _KINDS.INTEGER, "-1"),
    ("object_reuse", _KINDS.BOOLEAN, "false"),
    ("user_jars", _KINDS.ARRAY, ""),
    ("job_name", _KINDS.STRING, ""),  # one of Beam's own, too
)


class Server(local_job_service.LocalJobServicer):  # type: ignore[misc]
    """Beam's own job server, with options of its own as Flink's has."""

    def __init__(self, folder: str):
        super().__init__(folder)
        self.prepared: list[dict[str, Any]] = []  # options of each job
        self.state: int | None = None  # of all jobs; None for what it is

    def DescribePipelineOptions(self, request: Any, context: Any = None, timeout: Any = None) -> Any:
        return beam_job_api_pb2.DescribePipelineOptionsResponse(
            options=[
                beam_job_api_pb2.PipelineOptionDescriptor(name=name, type=kind, default_value=default)
                for name, kind, default in _OPTIONS
            ]
        )

    def Prepare(self, request: Any, context: Any = None, timeout: Any = None) -> Any:
        options = dict(request.pipeline_options)
        self.prepared.append({name.split(":")[2]: value for name, value in options.items()})
        return super().Prepare(request, context, timeout)

    def GetJobs(self, request: Any, context: Any = None, timeout: Any = None) -> Any:
        jobs = super().GetJobs(request, context, timeout)
        for job in jobs.job_info if self.state is not None else ():
            job.state = self.state
        return jobs


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[tuple[Server, str]]:
    """A job server and its address."""
    servicer = Server(str(tmp_path / "staged"))
    port = servicer.start_grpc_server()
    yield servicer, f"localhost:{port}"
    servicer.stop()


def test_options_that_the_server_lists_reach_it(server: tuple[Server, str], tmp_path: pathlib.Path) -> None:
    servicer, endpoint = server
    beam_options = [
        "--runner=PortableRunner",
        f"--job_endpoint={endpoint}",
        "--environment_type=LOOPBACK",
        "--number_of_execution_retries=5",
        "--object_reuse",
        "--user_jars=a.jar",
        "--user_jars=b.jar",
    ]
    config = {"source": {"uri": str(test_golden.IMAGES)}, "output": {"uri": str(tmp_path / "out"), "num_shards": 3}}
    convert.convert(config, beam_options)
    (options,) = servicer.prepared
    assert (options["number_of_execution_retries"], options["object_reuse"]) == ("5", True)
    assert list(options["user_jars"]) == ["a.jar", "b.jar"]
    test_golden.assert_golden(datasets.shard_digests(tmp_path / "out"))
    assert job_servers.ServedJob(endpoint, options["job_name"]).state() == "DONE"


def test_job_that_the_server_does_not_know_has_no_state(server: tuple[Server, str]) -> None:
    with pytest.raises(FileNotFoundError, match="knows no job imagebeam-1"):
        job_servers.ServedJob(server[1], "imagebeam-1").state()
    with pytest.raises(OSError, match=r"127\.0\.0\.1:1 does not answer"):
        job_servers.ServedJob("127.0.0.1:1", "imagebeam-1").state()


@case_tables.each_case(
    "process, state, endpoint, expected, text",
    {
        "runs": (0, "RUNNING", "", "running", "is RUNNING at the job server"),
        "goes-on": (GONE, "RUNNING", "", "running", "is gone"),
        "failed": (GONE, "FAILED", "", "stopped", "is FAILED at the job server"),
        "done": (GONE, "DONE", "", "committed", ""),
        "silent-server": (GONE, "RUNNING", "127.0.0.1:1", "stopped", "ask the cluster for the job"),
    },
)
def test_status_asks_the_job_server(
    server: tuple[Server, str],
    tmp_path: pathlib.Path,
    process: int,
    state: str,
    endpoint: str,
    expected: str,
    text: str,
) -> None:
    servicer, own_endpoint = server
    beam_options = ["--runner=PortableRunner", f"--job_endpoint={own_endpoint}", "--environment_type=LOOPBACK"]
    output = tmp_path / "out"
    config = {"source": {"uri": str(test_golden.IMAGES)}, "output": {"uri": str(output), "num_shards": 1}}
    convert.convert(config, [*beam_options, "--job_name=cats"])
    record = run_records.RunRecord.of_this_process("r", job_server=endpoint or own_endpoint, job_name="cats")
    (output / ".imagebeam").mkdir()
    lock = dataclasses.replace(record, process=process or record.process)
    (output / ".imagebeam" / "lock").write_bytes(lock.encode())
    servicer.state = beam_job_api_pb2.JobState.Enum.Value(state)
    found = status.status(str(output))
    assert found.state == expected
    assert text in " ".join([found.doing, *found.causes])


@pytest.mark.parametrize(
    ("argument", "code"),
    [
        pytest.param("--number_of_execution_retry=5", "option-unknown", id="near"),
        pytest.param("--number_of_execution_retries=x", "beam-option-value", id="value"),
    ],
)
def test_options_that_the_server_cannot_use_are_refused(server: tuple[Server, str], argument: str, code: str) -> None:
    with error_texts.raises(code):
        runners.make_options(["--runner=FlinkRunner", f"--job_endpoint={server[1]}", argument], workers=1)


def test_address_of_something_else_is_no_job_server() -> None:
    with error_texts.raises("job-server-without-options"):
        job_servers.add_options(argparse.ArgumentParser(), "127.0.0.1:1")


@pytest.mark.parametrize(
    ("cause", "option"),
    [
        ("Pipeline a failed in state FAILED: java.net.ConnectException: Connection refused", "--flink-master"),
        ("org.apache.spark.SparkException: All masters are unresponsive! Giving up.", "--spark-master-url"),
        ("No active SparkContext.", "--spark-master-url"),
        ('because the return value of "org.apache.spark.SparkContext._taskScheduler()" is null', "--spark-master-url"),
        ("Insufficient number of network buffers: required 512, but only 508 available.", "network.max"),
        ("NoResourceAvailableException: Slot request bulk is not fulfillable!", "--parallelism"),
    ],
)
def test_failure_for_want_of_a_cluster_has_its_remedy(cause: str, option: str) -> None:
    assert option in job_servers.remedy_of(cause)
    assert job_servers.remedy_of(cause[:10]) == ""


class StartedServer(job_server.JobServer):  # type: ignore[misc]
    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self) -> str:
        self.calls.append("start")
        return "the service"

    def stop(self) -> None:
        self.calls.append("stop")


class Runner:
    """The part of a runner of Beam that starts a job server, which takes over SIGINT."""

    def __init__(self) -> None:
        self.started = StartedServer()

    def default_job_server(self, _: object) -> job_server.JobServer:
        return job_server.StopOnExitJobServer(self.started)


def test_server_ends_with_the_run_and_sigint_stays_with_the_launcher() -> None:
    runner, handler = Runner(), signal.getsignal(signal.SIGINT)
    with job_servers.ended(runner):
        assert runner.default_job_server(None).start() == "the service"
        assert signal.getsignal(signal.SIGINT) is handler
        assert runner.started.calls == ["start"]
    assert runner.started.calls == ["start", "stop"]
    assert signal.getsignal(signal.SIGINT) is handler
    with job_servers.ended(object()):  # a runner without a server
        pass


# --- Prism -----------------------------------------------------------------------------------------------------------


INSTALL = r"go install github\.com/apache/beam/sdks/v2/go/cmd/prism@v2\.\d+\.\d+"


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The only folder on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def write_program(path: pathlib.Path, text: str) -> pathlib.Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_prism_on_path_is_used_and_quiet(folder: pathlib.Path) -> None:
    program = write_program(folder / "prism", "echo '  -job_port int' >&2; exit 2")
    assert job_servers.added_arguments([])[1:] == [f"--prism_location={program}", "--prism_log_kind=json"]


def test_missing_prism_is_an_error_with_the_command_that_installs_it() -> None:
    with error_texts.raises("prism-missing"):
        job_servers.added_arguments([])


@pytest.mark.parametrize("text", ["echo mock server for OpenAPI", "exec /nowhere"])
def test_another_program_of_this_name_is_an_error(folder: pathlib.Path, text: str) -> None:
    write_program(folder / "prism", text)
    with error_texts.raises("prism-other-program"):
        job_servers.added_arguments([])


def test_location_that_is_no_file_is_an_error(folder: pathlib.Path) -> None:
    for location in (folder / "absent", folder):
        with error_texts.raises("prism-no-file"):
            job_servers.added_arguments([f"--prism_location={location}"])


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--prism_location={program}"], id="file"),
        pytest.param(["--prism_location", "https://example.com/prism.zip"], id="url"),
        pytest.param(["--job_endpoint=localhost:8073"], id="server-that-runs"),
    ],
)
def test_prism_of_the_user_is_not_looked_for(folder: pathlib.Path, arguments: list[str]) -> None:
    program = write_program(folder / "my-prism", "exit 1")
    given = [each.format(program=program) for each in arguments]
    assert not [each for each in job_servers.added_arguments(given) if "location" in each]


def test_log_of_prism_is_shown_if_asked_for(folder: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    location = f"--prism_location={write_program(folder / 'prism', '')}"
    assert not [each for each in job_servers.added_arguments([location, "--prism_log_kind=text"]) if "log" in each]
    with caplog.at_level(logging.INFO):
        assert not [each for each in job_servers.added_arguments([location]) if "log" in each]
    assert os.access(folder / "prism", os.X_OK)


class RpcError(Exception):
    """Named as gRPC's."""


def fail_in_thread(function: Callable[..., object], *arguments: object) -> None:
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    thread.join()


def test_broken_streams_of_beam_are_not_shown_and_the_hooks_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, type[BaseException]]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(("thread", args.exc_type)))
    monkeypatch.setattr(sys, "unraisablehook", lambda args: shown.append(("collected", args.exc_type)))
    hooks = threading.excepthook, sys.unraisablehook
    modules: dict[str, dict[str, Any]] = {
        name: {"__name__": name} for name in ("grpc._channel", "apache_beam.runners.worker.data_plane", "user")
    }
    channel, beams, user = modules.values()
    exec("def invoke(error): raise error", channel)
    for names in (beams, user):
        names["invoke"] = channel["invoke"]
        exec("def fail(error): raise error", names)
        exec("def fail_in_grpc(error): invoke(error)", names)
        exec("class Stream:\n    def __del__(self): invoke(ValueError('closed channel'))", names)
    with job_servers.broken_streams_ignored():
        fail_in_thread(beams["fail"], RpcError())
        fail_in_thread(beams["fail_in_grpc"], ValueError("Cannot invoke RPC on closed channel!"))
        beams["Stream"]()
        assert shown == []
        fail_in_thread(beams["fail"], ValueError())
        fail_in_thread(user["fail"], RpcError())
        fail_in_thread(user["fail_in_grpc"], ValueError())
        user["Stream"]()
    assert shown == [("thread", ValueError), ("thread", RpcError), ("thread", ValueError), ("collected", ValueError)]
    assert (threading.excepthook, sys.unraisablehook) == hooks
