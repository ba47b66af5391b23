"""Metrics of the last run in Prometheus' text format, for the textfile collector of node_exporter."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from imagebeam.pipelines.messages import run_journal

_PREFIX = "imagebeam_last_run_"
_LAST_SUCCESS = "imagebeam_last_success_timestamp_seconds"
_HELP = {
    "timestamp_seconds": "When the last run ended.",
    "success": "Whether the last run ended well (1) or not (0).",
    "exit_code": "Exit code of the last run.",
    "images_listed": "Images that the last run listed.",
    "images_written": "Images in the dataset that the last run committed or found.",
    "images_rejected": "Images that the last run rejected, by reason.",
    "bytes": "Bytes of the dataset's shards.",
    "seconds": "Seconds of each stage of the last run, and in total.",
}


def format_metrics(summary: Mapping[str, Any], earlier: str = "") -> bytes:
    """Returns the content of the file for the summary of a run.

    Args:
        summary: see `run_summary.summarize`.
        earlier: content of the file that is replaced. The time of the last success is taken from it if this run failed.
    """
    import prometheus_client

    labels = {  # file names can hold lone surrogates
        name: (summary[name] or "").encode("utf-8", "replace").decode() for name in ("command", "output", "name")
    }
    ended = datetime.datetime.fromisoformat(summary["ended"]).timestamp()
    is_success = summary["state"] in run_journal.ENDED_WELL and summary["exit_code"] == 0
    counts = summary["counts"]
    values: dict[str, list[tuple[dict[str, str], float]]] = {
        "timestamp_seconds": [({}, ended)],
        "success": [({}, int(is_success))],
        "exit_code": [({}, summary["exit_code"])],
        "images_listed": [] if counts is None else [({}, counts["listed"])],
        "images_written": [] if counts is None else [({}, counts["written"])],
        "images_rejected": []
        if counts is None
        else [({"reason": reason}, number) for reason, number in counts["rejected"].items()],
        "bytes": [] if summary["bytes"] is None else [({}, summary["bytes"])],
        "seconds": [({"stage": stage}, sec) for stage, sec in summary["durations"].items() if sec is not None],
    }
    registry = prometheus_client.CollectorRegistry()

    def add(name: str, text: str, samples: Sequence[tuple[dict[str, str], float]]) -> None:
        gauge = prometheus_client.Gauge(name, text, [*labels, *(samples[0][0] if samples else ())], registry=registry)
        for more, value in samples:
            gauge.labels(**labels, **more).set(value)

    for name, samples in values.items():
        add(f"{_PREFIX}{name}", _HELP[name], samples)
    success = ended if is_success else _find_success(earlier)
    if success is not None:
        add(_LAST_SUCCESS, "When a run last ended well.", [({}, success)])
    return prometheus_client.generate_latest(registry)


def _find_success(text: str) -> float | None:
    """Returns the time of the last success in the text of metrics; None if there is none."""
    from prometheus_client import parser

    try:
        samples = [each for family in parser.text_string_to_metric_families(text) for each in family.samples]
    except (LookupError, ValueError):  # the file is not of this command
        return None
    return next((each.value for each in samples if each.name == _LAST_SUCCESS), None)
