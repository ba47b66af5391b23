"""A Flink cluster is asked by its REST API, which a web server answers here."""

from __future__ import annotations

import json
import logging

import pytest

from imagebeam.pipelines.beam import flink_cluster, runners
from tests import case_tables, error_texts
from tests.servers import web

PARENT_FIRST = {"classloader.resolve-order": "parent-first"}


def ask(parallelism: int, settings: dict[str, str], num_slots: int = 4, num_free: int = 4) -> None:
    overview = {"taskmanagers": 2, "slots-total": num_slots, "slots-available": num_free}
    listed = [{"key": key, "value": value} for key, value in settings.items()]
    files = {"/overview": json.dumps(overview).encode(), "/jobmanager/config": json.dumps(listed).encode()}
    with web.serve(files) as url:
        master = f"--flink_master={url.removeprefix('http://')}"
        runners.require_supported(["--runner=FlinkRunner", master, f"--parallelism={parallelism}"], "stream")


@case_tables.each_case(
    "parallelism, settings, num_free, warning",
    {
        "ready": (4, PARENT_FIRST, 4, ""),
        "busy": (4, PARENT_FIRST, 1, "Flink has 1 of 4 slots free: the job waits for 4"),
        "child-first": (4, {}, 4, "classloader.resolve-order: parent-first"),
        "task-managers-come-with-the-job": (8, {**PARENT_FIRST, "kubernetes.cluster-id": "c"}, 4, ""),
    },
)
def test_cluster_with_room_is_taken(
    parallelism: int, settings: dict[str, str], num_free: int, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        ask(parallelism, settings, num_free=num_free)
    assert len(caplog.messages) == bool(warning)
    assert warning in "".join(caplog.messages)


def test_cluster_with_too_few_slots_is_refused() -> None:
    with error_texts.raises("flink-slots"):
        ask(5, PARENT_FIRST)


@case_tables.each_case("overview", {"no-json": b"<html>", "other-json": b"{}"})
def test_address_of_something_else_is_no_flink(overview: bytes) -> None:
    with web.serve({"/overview": overview, "/jobmanager/config": b"[]"}) as url, error_texts.raises("flink-silent"):
        flink_cluster.require_ready([f"--flink_master={url}"])


def test_address_without_a_server_is_no_flink() -> None:
    with error_texts.raises("flink-silent"):
        flink_cluster.require_ready(["--flink_master=127.0.0.1:1"])


@case_tables.each_case("arguments", [[], ["--flink_master=[auto]"], ["--flink_master", "[local]"]])
def test_cluster_that_only_the_job_server_knows_is_not_asked(arguments: list[str]) -> None:
    flink_cluster.require_ready(arguments)
