"""Several `convert` calls at once in threads of one process, as a server or a notebook makes them."""

from __future__ import annotations

import concurrent.futures
import pathlib
import threading

import apache_beam as beam
import pytest

from imagebeam.pipelines import convert
from imagebeam.pipelines import job as job_lib
from tests import datasets, image_sets, patience

THREADS = 3


def test_converts_in_threads_of_one_process_each_end_with_their_own_dataset(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = []
    for index in range(THREADS):
        image_sets.write_folder(tmp_path / f"in{index}", labels=["cat", f"dog{index}"], per_label=6 + index)
        datasets.make(tmp_path / f"in{index}", tmp_path / f"expected{index}", output={"num_shards": 2 + index})
        expected.append(datasets.shard_digests(tmp_path / f"expected{index}"))
    all_started, first_ended = threading.Barrier(THREADS), threading.Event()
    add_steps = convert.add_steps

    def build_together(pipeline: beam.Pipeline, job: job_lib.Job, plan_only: bool = False) -> None:
        add_steps(pipeline, job, plan_only)
        all_started.wait(timeout=patience.HANG_SEC)  # ends the test where another thread failed
        if not job.settings.output.endswith("out0"):  # runs while the first one closes its writers
            first_ended.wait(timeout=patience.HANG_SEC)

    monkeypatch.setattr(convert, "add_steps", build_together)

    def run(index: int) -> convert.ConvertResult:
        output = {"uri": str(tmp_path / f"out{index}"), "num_shards": 2 + index}
        try:
            return convert.convert({"source": {"uri": str(tmp_path / f"in{index}")}, "output": output}, workers=1)
        finally:
            if index == 0:
                first_ended.set()

    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
        results = list(threads.map(run, range(THREADS)))
    assert [result.state for result in results] == ["committed"] * THREADS
    assert [datasets.shard_digests(tmp_path / f"out{index}") for index in range(THREADS)] == expected
