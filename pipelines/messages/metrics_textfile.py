"""Metrics of the last run in Prometheus' text format, for the textfile collector of node_exporter."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
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


def format_metrics(summary: Mapping[str, Any], earlier: str = "") -> str:
    """Returns the content of the file for the summary of a run.

    Args:
        summary: see `run_summary.summarize`.
        earlier: content of the file that is replaced. The time of the last success is taken from it if this run failed.
    """
    labels = {"command": summary["command"], "output": summary["output"] or "", "name": summary["name"] or ""}
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
    lines = []
    for name, samples in values.items():
        lines += [f"# HELP {_PREFIX}{name} {_HELP[name]}", f"# TYPE {_PREFIX}{name} gauge"]
        lines += [f"{_PREFIX}{name}{_format_labels({**labels, **more})} {value!r}" for more, value in samples]
    success = f"{_LAST_SUCCESS}{_format_labels(labels)} {ended!r}" if is_success else _find_success(earlier)
    if success is not None:
        lines += [f"# HELP {_LAST_SUCCESS} When a run last ended well.", f"# TYPE {_LAST_SUCCESS} gauge", success]
    return "\n".join(lines) + "\n"


def _format_labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    value = value.encode("utf-8", "replace").decode()  # file names can hold lone surrogates
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _find_success(text: str) -> str | None:
    """Returns the line of the last success in the text of metrics; None if there is none."""
    match = re.search(rf"^{_LAST_SUCCESS}\{{.*\}} [0-9.e+]+$", text, re.MULTILINE)
    return match[0] if match else None
