"""Conversions on a real Prism, Beam's runner for one machine."""

from __future__ import annotations

import json
import os
import pathlib
import signal

import pytest

from tests import command_line, datasets, patience
from tests.golden import test_golden
from tests.servers import go_programs

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def prism() -> list[str]:
    """The options that choose Prism."""
    return ["--runner=PrismRunner", f"--prism_location={go_programs.prism()}"]


def convert(output: pathlib.Path, prism: list[str], *more: str) -> command_line.Completed:
    arguments = ("convert", "--quiet", "--input", test_golden.IMAGES, "--output", output)
    return command_line.run(*arguments, "--set", "output.num_shards=3", *prism, *more)


def write_classes(path: pathlib.Path, *first: str) -> str:
    """A vocabulary that is long enough to be staged; returns the setting for it."""
    path.write_text("".join(f"{name}\n" for name in (*first, *(f"class {index:06d}" for index in range(2_000)))))
    return f"label.vocabulary={path}"


def test_prism_writes_the_golden_bytes_and_prints_nothing(prism: list[str], tmp_path: pathlib.Path) -> None:
    classes = write_classes(tmp_path / "classes.txt", "cat", "dog", "owl")  # with the ids that they have by themselves
    done = convert(tmp_path / "out", prism, "--set", classes)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    test_golden.assert_golden(datasets.shard_digests(tmp_path / "out"))
    assert not (tmp_path / "out" / ".imagebeam").exists()


def test_refused_job_on_prism_ends_with_its_error_alone(prism: list[str], tmp_path: pathlib.Path) -> None:
    done = convert(tmp_path / "out", prism, "--set", write_classes(tmp_path / "classes.txt"))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("imagebeam: all 20 images were rejected (unknown_label 20)")
    assert len(done.stderr.splitlines()) == 1
    assert not list((tmp_path / "out" / ".imagebeam").glob("names-*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_signal_leaves_no_process(prism: list[str], tmp_path: pathlib.Path, number: signal.Signals) -> None:
    worker = tmp_path / "worker"  # one that never answers, so that the job waits
    worker.write_text(f"#!/bin/sh\necho $$ $PPID > {tmp_path}/new\nmv {tmp_path}/new {tmp_path}/pids\nexec sleep 600\n")
    worker.chmod(0o755)
    environment = ["--environment_type=PROCESS", f"--environment_config={json.dumps({'command': str(worker)})}"]
    arguments = ("convert", "--quiet", "--input", test_golden.IMAGES, "--output", tmp_path / "out")
    process = command_line.start(*arguments, *prism, *environment)
    try:
        patience.wait_until((tmp_path / "pids").exists)
        os.kill(process.pid, number)
    finally:
        done = command_line.finish(process, 128 + number)
    assert len(done.stderr.splitlines()) == 1
    pids = (tmp_path / "pids").read_text().split()
    patience.wait_until(lambda: not any(map(patience.is_running, pids)))
    assert not (tmp_path / "out").exists()
