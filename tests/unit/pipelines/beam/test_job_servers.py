"""Job servers on loopback: their options, how they end, and who gets Ctrl-C meanwhile."""

from __future__ import annotations

import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from apache_beam.portability.api import beam_job_api_pb2
from apache_beam.runners.portability import job_server, local_job_service

from imagebeam import errors
from imagebeam.pipelines import convert
from imagebeam.pipelines.beam import job_servers, runners
from tests import datasets
from tests.golden import test_golden

_KINDS = beam_job_api_pb2.PipelineOptionType
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


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        pytest.param("--number_of_execution_retry=5", "; did you mean --number_of_execution_retries", id="near"),
        pytest.param("--number_of_execution_retries=x", "invalid int value: 'x'$", id="value"),
    ],
)
def test_options_that_the_server_cannot_use_are_refused(
    server: tuple[Server, str], argument: str, message: str
) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        runners.make_options(["--runner=FlinkRunner", f"--job_endpoint={server[1]}", argument], workers=1)


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
