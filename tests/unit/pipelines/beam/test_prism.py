"""Where Prism is found, and the options that a run on it adds."""

from __future__ import annotations

import logging
import os
import pathlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from imagebeam import errors
from imagebeam.pipelines.beam import job_servers

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
    with pytest.raises(errors.ConfigError, match=rf"no Prism on PATH: {INSTALL}, .* or give --prism_location=PATH$"):
        job_servers.added_arguments([])


@pytest.mark.parametrize("text", ["echo mock server for OpenAPI", "exec /nowhere"])
def test_another_program_of_this_name_is_an_error(folder: pathlib.Path, text: str) -> None:
    program = write_program(folder / "prism", text)
    with pytest.raises(errors.ConfigError, match=rf"^{program} on PATH is another program.*: {INSTALL}"):
        job_servers.added_arguments([])


def test_location_that_is_no_file_is_an_error(folder: pathlib.Path) -> None:
    for location in (folder / "absent", folder):
        with pytest.raises(errors.ConfigError, match=rf"--prism_location is '{location}', which is no file; {INSTALL}"):
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
