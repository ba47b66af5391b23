"""Runs `imagebeam` as a user calls it: in a process of its own."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence

from imagebeam.pipelines import cli
from tests import forked_commands, patience

ROOT = pathlib.Path(__file__).parent.parent
PYTHON = sys.executable
IMAGEBEAM = (PYTHON, "-m", "imagebeam.pipelines.cli")

Completed = subprocess.CompletedProcess[str]


def start(
    *arguments: object,
    environment: Mapping[str, str] = {},
    cwd: str | os.PathLike[str] = ROOT,
    streams: Sequence[int | None] | None = None,
    preloaded: str | None = None,
) -> forked_commands.Process:
    """Starts `imagebeam` with `arguments` in `cwd`, with `environment` added to that of this process.

    `streams` are the descriptors of its standard streams, see `forked_commands.start`.
    `preloaded` is a key of `forked_commands.PRELOADED`; None chooses by the arguments.
    """
    texts = [str(each) for each in arguments]
    kind = preloaded or _kind(texts, environment)
    return forked_commands.start(kind, {"arguments": texts}, {**os.environ, **environment}, cwd, streams)


def start_program(
    code: str, *arguments: object, environment: Mapping[str, str] = {}, preloaded: str = "local"
) -> forked_commands.Process:
    """Starts a Python program whose sys.argv is `arguments` after the first, in a process that has imported much."""
    texts = [str(each) for each in arguments]
    run = {"code": code, "arguments": texts}
    return forked_commands.start(preloaded, run, {**os.environ, **environment})


def run(
    *arguments: object,
    environment: Mapping[str, str] = {},
    cwd: str | os.PathLike[str] = ROOT,
    preloaded: str | None = None,
) -> Completed:
    """Runs `imagebeam` to its end."""
    process = start(*arguments, environment=environment, cwd=cwd, preloaded=preloaded)
    try:
        stdout, stderr = process.communicate(timeout=patience.HANG_SEC)
    finally:
        process.kill()
    return subprocess.CompletedProcess(["imagebeam", *map(str, arguments)], process.wait(), stdout, stderr)


def run_fresh(*arguments: object, environment: Mapping[str, str] = {}) -> Completed:
    """Runs `imagebeam` in a Python that imports all by itself: for tests of what starting and importing does."""
    return _run_fresh([*IMAGEBEAM, *map(str, arguments)], environment)


def run_python(code: str, environment: Mapping[str, str] = {}) -> Completed:
    """Runs a program in a Python that imports all by itself, with `environment` added to that of this process.

    A program that only has to be apart from the tests is quicker with `start_program`.
    """
    return _run_fresh([PYTHON, "-c", code], environment)


def _run_fresh(command: Sequence[str], environment: Mapping[str, str]) -> Completed:
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=patience.HANG_SEC,
        check=False,
    )


def succeed(*arguments: object, fresh: bool = False, here: bool = False, preloaded: str | None = None) -> Completed:
    """Runs `imagebeam` and expects exit code 0; with `fresh` as `run_fresh` does, with `here` as `call` does."""
    if here:
        completed = call(*arguments)
    else:
        completed = run_fresh(*arguments) if fresh else run(*arguments, preloaded=preloaded)
    assert completed.returncode == 0, completed.stderr
    return completed


def call(*arguments: object) -> Completed:
    """Runs `imagebeam` in this process, which has imported all: for tests of what a command does and says.

    How a process starts and ends, and what signals do, is for `run`.
    """
    import apache_beam  # noqa: F401  # before `convert` can import it without its clients, which other tests need

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


def _kind(arguments: list[str], environment: Mapping[str, str]) -> str:
    """Returns which server has imported what the command needs, and for a local one no more than that."""
    if arguments[:1] == ["bench"] or {"--decode", "--preview"} & {*arguments}:
        return "tensorflow"
    if environment or any("://" in each or each.startswith("--runner") for each in arguments):
        return "remote"
    return "local"
