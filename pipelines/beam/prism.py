"""Finds Prism, Beam's runner for one machine: a Go program that Beam would otherwise download."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Iterator, Sequence
from typing import Any

from imagebeam import errors

_PROGRAM = "prism"
_HELP_SEC = 30.0
_THREADS_SEC = 0.2  # for threads of Beam to notice that Prism has ended


def added_arguments(beam_arguments: Sequence[str]) -> list[str]:
    """Returns options for Beam that a run on Prism needs beside its own: the program, and a quiet log.

    Raises:
        ConfigError: if there is no Prism, or --prism_location is no file.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--prism_location", "--prism_log_kind", "--job_endpoint"):
        parser.add_argument(option)
    known = parser.parse_known_args(list(beam_arguments))[0]
    if known.job_endpoint:  # a Prism that runs already
        return []
    added = ["--experiments=disable_prism_server_singleton"]  # each run ends its own Prism
    if known.prism_location is None:
        added.append(f"--prism_location={_find()}")
    elif not _is_url(known.prism_location) and not os.path.isfile(known.prism_location):
        raise errors.ConfigError(
            f"--prism_location is {known.prism_location!r}, which is no file; {install_command()}, and give the path "
            "of the program"
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

    def show(args: Any) -> None:
        if not _is_broken_stream(args.exc_type, args.exc_traceback):
            hooks[0](args)

    def show_unraisable(args: Any) -> None:
        if not _is_broken_stream(args.exc_type, args.exc_traceback):
            hooks[1](args)

    threading.excepthook, sys.unraisablehook = show, show_unraisable
    try:
        yield
    finally:
        give_up = time.monotonic() + _THREADS_SEC
        for thread in {*threading.enumerate()} - before:
            thread.join(max(0.0, give_up - time.monotonic()))
        gc.collect()  # of generators that hold a stream
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
            f"there is no Prism on PATH: {install_command()}, add $(go env GOPATH)/bin to PATH, or give "
            "--prism_location=PATH"
        )
    if not _is_prism(found):
        raise errors.ConfigError(
            f"{found} on PATH is another program, not Beam's Prism: {install_command()}, and give --prism_location=PATH"
        )
    return found


def _is_prism(path: str) -> bool:
    try:
        shown = subprocess.run([path, "--help"], capture_output=True, timeout=_HELP_SEC, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"-job_port" in shown.stdout + shown.stderr


def _is_url(location: str) -> bool:
    return re.match("[a-z0-9]+://", location) is not None
