"""Metrics of the last run, read by Prometheus' own parser."""

from __future__ import annotations

from typing import Any

from prometheus_client import parser

from imagebeam.pipelines.messages import run_outputs

SUMMARY: dict[str, Any] = {
    "command": "convert",
    "output": 'gs://b/a "quoted" \\ name\n',
    "name": "pets",
    "state": "committed",
    "exit_code": 0,
    "counts": {"listed": 12, "written": 9, "rejected": {"truncated": 2, "empty_file": 1}, "skipped": {}},
    "bytes": 1234567890123,
    "durations": {
        "starting": 0.5,
        "listing": 1.25,
        "planning": None,
        "writing": None,
        "committing": None,
        "total": 2.0,
    },
    "ended": "2025-01-02T03:04:05.678+00:00",
}
ENDED = 1735787045.678


def samples(text: bytes) -> dict[tuple[str, str], float]:
    """The value of each sample by its name and its own label."""
    found = {}
    for family in parser.text_string_to_metric_families(text.decode()):
        assert family.type == "gauge" and family.documentation
        for sample in family.samples:
            assert sample.labels["output"] == SUMMARY["output"] and sample.labels["name"] in ("pets", "")
            own = sample.labels.get("reason") or sample.labels.get("stage") or ""
            found[sample.name.removeprefix("imagebeam_"), own] = sample.value
    return found


def test_committed_run_has_all_gauges() -> None:
    assert samples(run_outputs.format_metrics(SUMMARY)) == {
        ("last_run_timestamp_seconds", ""): ENDED,
        ("last_run_success", ""): 1,
        ("last_run_exit_code", ""): 0,
        ("last_run_images_listed", ""): 12,
        ("last_run_images_written", ""): 9,
        ("last_run_images_rejected", "truncated"): 2,
        ("last_run_images_rejected", "empty_file"): 1,
        ("last_run_bytes", ""): 1234567890123,
        ("last_run_seconds", "starting"): 0.5,
        ("last_run_seconds", "listing"): 1.25,
        ("last_run_seconds", "total"): 2.0,
        ("last_success_timestamp_seconds", ""): ENDED,
    }


def test_run_that_failed_keeps_the_time_of_the_last_success() -> None:
    failure = {**SUMMARY, "name": None, "state": "refused", "exit_code": 2, "counts": None, "bytes": None}
    failure["ended"] = "2025-01-03T00:00:00.000+00:00"
    first = run_outputs.format_metrics(failure)
    assert ("last_success_timestamp_seconds", "") not in samples(first)
    second = run_outputs.format_metrics(failure, run_outputs.format_metrics(SUMMARY).decode())
    third = samples(run_outputs.format_metrics(failure, second.decode()))
    assert third["last_success_timestamp_seconds", ""] == ENDED
    assert third["last_run_success", ""] == 0 and third["last_run_exit_code", ""] == 2
    assert ("last_run_images_listed", "") not in third


def test_earlier_file_that_holds_no_metrics_is_replaced() -> None:
    failure = {**SUMMARY, "output": "\udcff", "exit_code": 1}
    assert b"last_success" not in run_outputs.format_metrics(failure, "no {metrics")


def test_plan_that_would_be_refused_is_no_success() -> None:
    refused = run_outputs.format_metrics({**SUMMARY, "command": "plan", "state": "refused", "exit_code": 2})
    assert samples(refused)["last_run_success", ""] == 0
