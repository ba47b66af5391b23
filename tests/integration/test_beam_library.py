"""A script of a user with imagebeam.beam, in a process of its own: on other runners, killed, and twice at once."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import time

import pytest

from imagebeam.pipelines import convert
from tests import captured_jobs, command_line, datasets, image_sets, patience
from tests.servers import go_programs

pytestmark = pytest.mark.integration

NUM_SHARDS = 40
SCRIPT = """
import json, pathlib, sys
import apache_beam as beam
import imagebeam.beam

def rows(folder):
    root = pathlib.Path(folder)
    for path in sorted(root.rglob("*.*")):
        yield imagebeam.beam.EncodedImage(str(path.relative_to(root)), path.read_bytes())

if __name__ == "__main__":
    folder, config, *options = sys.argv[1:]
    with beam.Pipeline(argv=options) as pipeline:
        images = pipeline | beam.Create([folder]) | beam.FlatMap(rows) | beam.Reshuffle()
        _ = images | imagebeam.beam.WriteDataset(json.loads(config))
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("images")
    image_sets.write_folder(folder, per_label=100)
    return folder


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("script") / "write.py"
    path.write_text(SCRIPT)
    return path


def config_of(output: pathlib.Path) -> str:
    return json.dumps({"output": {"uri": str(output), "num_shards": NUM_SHARDS}})


def start(script: pathlib.Path, images: pathlib.Path, output: pathlib.Path, *options: str) -> command_line.Process:
    code = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    return command_line.start_program(code, script, images, config_of(output), *options, cwd=script.parent)


@pytest.fixture(scope="module")
def digests(images: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of the shards that `convert` makes of the same images."""
    output = tmp_path_factory.mktemp("converted") / "out"
    config = {"source": {"uri": str(images)}, "output": {"uri": str(output), "num_shards": NUM_SHARDS}}
    convert.convert(config, workers=1)
    return datasets.shard_digests(output)


@pytest.mark.parametrize("environment", ["LOOPBACK", "PROCESS"])
def test_prism_writes_the_bytes_of_convert(
    script: pathlib.Path, images: pathlib.Path, digests: dict[str, str], tmp_path: pathlib.Path, environment: str
) -> None:
    options = ["--runner=PrismRunner", f"--prism_location={go_programs.prism()}", "--environment_type=LOOPBACK"]
    if environment == "PROCESS":
        options = captured_jobs.prism_with_processes(tmp_path / "worker" / "start", python_path="")
    command_line.finish(start(script, images, tmp_path / "out", *options), 0)
    assert datasets.shard_digests(tmp_path / "out") == digests
    assert not (tmp_path / "out" / ".imagebeam").exists()


def test_run_after_a_killed_one_keeps_its_shards(
    script: pathlib.Path, images: pathlib.Path, digests: dict[str, str], tmp_path: pathlib.Path
) -> None:
    output = tmp_path / "out"
    for _ in patience.again():
        process = start(script, images, output)
        while process.poll() is None and not any(output.glob(".imagebeam/staging-*/*.done.json")):
            time.sleep(0.005)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(patience.HANG_SEC)
        if any(output.glob(".imagebeam/staging-*/*.done.json")):
            break
        shutil.rmtree(output)
    kept = {each: each.stat().st_ino for each in output.glob(".imagebeam/staging-*/*-of-*.tfrecord")}
    finished = {each.name.removesuffix(".done.json") for each in output.glob(".imagebeam/staging-*/*.done.json")}
    assert finished and (output / ".imagebeam" / "lock").exists()
    command_line.finish(start(script, images, output), 0)
    assert datasets.shard_digests(output) == digests
    assert {(output / each.name).stat().st_ino for each in kept if each.name in finished} == {
        inode for each, inode in kept.items() if each.name in finished
    }
    assert not (output / ".imagebeam").exists()


def test_run_that_is_killed_beside_another_leaves_the_next_one_a_dataset_to_write(
    script: pathlib.Path, images: pathlib.Path, digests: dict[str, str], tmp_path: pathlib.Path
) -> None:
    output = tmp_path / "out"
    killed, other = [start(script, images, output) for _ in range(2)]
    while killed.poll() is None and not any(output.glob(".imagebeam/staging-*/*-of-*")):
        time.sleep(0.005)
    if killed.poll() is None:
        os.killpg(killed.pid, signal.SIGKILL)
    killed.wait(patience.HANG_SEC)
    _, text = other.communicate(timeout=patience.HANG_SEC)
    assert not other.returncode or "imagebeam.errors.BusyError: " in text
    command_line.finish(start(script, images, output), 0)
    assert datasets.shard_digests(output) == digests


def test_of_two_runs_at_once_one_commits(
    script: pathlib.Path, images: pathlib.Path, digests: dict[str, str], tmp_path: pathlib.Path
) -> None:
    output = tmp_path / "out"
    processes = [start(script, images, output) for _ in range(2)]
    ended = [(each.communicate(timeout=patience.HANG_SEC)[1], each.returncode) for each in processes]
    failed = [text for text, code in ended if code]
    assert len(failed) < 2, failed
    assert all("imagebeam.errors.BusyError: " in text for text in failed), failed
    assert datasets.shard_digests(output) == digests
    assert not [each.name for each in output.glob(".imagebeam/*") if not each.name.startswith("spill-")]
