"""Checks the job server of a portable runner before the input is listed, and explains why Beam cannot start one."""

from __future__ import annotations

import argparse
import os
import re
import socket
from collections.abc import Sequence

from imagebeam import errors

_JARS = {"flink": "--flink_job_server_jar", "spark": "--spark_job_server_jar"}  # by the runner
_CONNECT_SEC = 10.0


def require_reachable(runner: str, beam_arguments: Sequence[str]) -> None:
    """Refuses options that name no job server, a jar that does not exist, or a server that does not answer.

    Without any of these options, Beam looks for the jar of Flink or Spark in its cache, and then downloads it.

    Args:
        runner: its name in lower case, without "runner".
        beam_arguments: options for Beam.

    Raises:
        ConfigError: with the option to change.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--job_endpoint", *_JARS.values()):
        parser.add_argument(option)
    known = vars(parser.parse_known_args(list(beam_arguments))[0])
    endpoint, jar = known["job_endpoint"], known.get(_JARS.get(runner, "").lstrip("-"))
    if runner == "portable" and not endpoint:
        raise errors.ConfigError(
            "--runner=PortableRunner needs the job server of a runner: give --job_endpoint=HOST:PORT"
        )
    if jar is not None and "://" not in jar and not os.path.isfile(jar):
        raise errors.ConfigError(f"{_JARS[runner]} is {jar!r}, which is no file: give the path of Beam's job server")
    if endpoint:
        _require_answer(endpoint)


def _require_answer(endpoint: str) -> None:
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal():  # a name that Beam knows, such as embed
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SEC).close()
    except (OSError, OverflowError) as e:  # OverflowError: a port above 65535
        reason = getattr(e, "strerror", None) or e
        raise errors.ConfigError(
            f"--job_endpoint is {endpoint!r}, where no job server answers ({reason}): start it, or correct the address"
        ) from e


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
