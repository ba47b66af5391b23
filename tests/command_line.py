"""Runs `imagebeam`: in the process of the tests, or as a user calls it, in a process of its own."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence

from imagebeam.pipelines import cli
from tests import patience

ROOT = pathlib.Path(__file__).parent.parent
PYTHON = sys.executable
IMAGEBEAM = (PYTHON, "-m", "imagebeam.pipelines.cli")

Completed = subprocess.CompletedProcess[str]
Process = subprocess.Popen[str]


def call(*arguments: object) -> Completed:
    """Runs `imagebeam` in this process: for tests of what a command does and says.

    How a process starts and ends, and what signals do, is for `run`.
    """
    # before `convert` can import it without its clients, which other tests need
    import apache_beam.runners.portability.fn_api_runner  # noqa: F401

    texts = [str(each) for each in arguments]
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", errors="surrogateescape") for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            code = cli.main(texts)
        except SystemExit as e:  # of the parser
            code = int(e.code or 0)
    written = []
    for stream in streams:
        stream.seek(0)
        written.append(stream.read())
    return subprocess.CompletedProcess(["imagebeam", *texts], code, *written)


def end(exit_code: int, *arguments: object) -> Completed:
    """Runs `imagebeam` in this process and expects this exit code."""
    completed = call(*arguments)
    assert completed.returncode == exit_code, completed.stderr
    return completed


def succeed(*arguments: object) -> Completed:
    """Runs `imagebeam` in this process and expects exit code 0."""
    return end(0, *arguments)


def start(*arguments: object, environment: Mapping[str, str] = {}, cwd: str | os.PathLike[str] = ROOT) -> Process:
    """Starts `imagebeam` with `arguments` in `cwd`, with `environment` added to that of this process."""
    return _start([*IMAGEBEAM, *map(str, arguments)], environment, cwd)


def start_program(
    code: str,
    *arguments: object,
    environment: Mapping[str, str] = {},
    cwd: str | os.PathLike[str] = ROOT,
    streams: Sequence[int] | None = None,
) -> Process:
    """Starts a Python program whose sys.argv is `arguments` after the first.

    `streams` are the descriptors of its standard streams; by default pipes for output and errors.
    """
    return _start([PYTHON, "-c", code, *map(str, arguments)], environment, cwd, streams)


def _start(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: str | os.PathLike[str],
    streams: Sequence[int] | None = None,
) -> Process:
    stdin, stdout, stderr = streams or (subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE)
    variables = {"PYTHONPATH": str(ROOT), **os.environ, **environment}
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        env=variables,
        text=True,
        start_new_session=True,  # a process group of its own, as a shell gives a command
    )


def run(
    *arguments: object,
    environment: Mapping[str, str] = {},
    cwd: str | os.PathLike[str] = ROOT,
    exit_code: int | None = None,
) -> Completed:
    """Runs `imagebeam` to its end, in a process of its own; expects the exit code if there is one given."""
    return finish(start(*arguments, environment=environment, cwd=cwd), exit_code)


def run_python(code: str, environment: Mapping[str, str] = {}, exit_code: int | None = None) -> Completed:
    """Runs a program to its end, with `environment` added to that of this process."""
    return finish(start_program(code, environment=environment), exit_code)


def run_other(*command: object, cwd: str | os.PathLike[str] = ROOT, **environment: str) -> Completed:
    """Runs another program to its end, with `environment` added to that of this process."""
    words, variables = list(map(str, command)), {**os.environ, **environment}
    return subprocess.run(
        words, cwd=cwd, env=variables, capture_output=True, text=True, timeout=10 * patience.HANG_SEC, check=False
    )


def finish(process: Process, exit_code: int | None = None) -> Completed:
    """Waits for the end of a program, and expects this exit code if there is one given."""
    try:
        stdout, stderr = process.communicate(timeout=patience.HANG_SEC)
    finally:
        process.kill()
    assert exit_code in (None, process.wait()), stderr
    return subprocess.CompletedProcess(process.args, process.wait(), stdout, stderr)
