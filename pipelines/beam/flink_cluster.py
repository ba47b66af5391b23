"""A Flink cluster, as its REST API describes it: whether a job has room there, and whether it would be slow.

Importing this module imports no Beam.
"""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Sequence
from typing import Any

from imagebeam import errors
from imagebeam.pipelines.beam import job_servers

_LOGGER = logging.getLogger(__name__)
_ANSWER_SEC = 10.0
_STARTS_WORKERS = ("kubernetes.cluster-id", "yarn.application.id")  # then TaskManagers come with a job


def require_ready(beam_arguments: Sequence[str]) -> None:
    """Refuses a cluster that does not answer, or that has fewer slots than the job needs.

    Without --flink_master=HOST:PORT only the job server knows the cluster, and nothing is checked.

    Raises:
        ConfigError: with the option to change.
    """
    given = job_servers.given(beam_arguments, "--flink_master", "--parallelism")
    if given.flink_master is None or given.flink_master.startswith("["):  # [local], [auto]
        return
    master = given.flink_master if "://" in given.flink_master else f"http://{given.flink_master}"
    try:
        overview, listed = _ask(f"{master}/overview"), _ask(f"{master}/jobmanager/config")
        settings = {each["key"]: each["value"] for each in listed}
        num_slots, num_free = int(overview["slots-total"]), int(overview["slots-available"])
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise errors.ConfigError(
            "flink-silent",
            f"--flink_master is {given.flink_master!r}, where no Flink answers ({getattr(e, 'reason', None) or e}): "
            "give HOST:PORT of its REST API, or leave the option out if only the job server reaches it",
        ) from e
    needed = int(given.parallelism) if (given.parallelism or "").isdecimal() else 1
    if num_slots < needed and not any(key in settings for key in _STARTS_WORKERS):
        raise errors.ConfigError(
            "flink-slots",
            f"the job needs {needed} slots (--parallelism), and Flink at {given.flink_master} has {num_slots} on "
            f"{overview['taskmanagers']} TaskManagers: start more of them, or give a lower --parallelism",
        )
    if num_free < min(needed, num_slots):
        _LOGGER.warning("Flink has %d of %d slots free: the job waits for %d", num_free, num_slots, needed)
    if settings.get("classloader.resolve-order") != "parent-first":
        _LOGGER.warning(
            "Flink ends the Python workers after each stage: Beam's jar in its lib/ and classloader.resolve-order: "
            "parent-first in its configuration make a job faster (docs/runners.md)"
        )


def _ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=_ANSWER_SEC) as answer:
        return json.load(answer)
