"""Functions of the user on runners and in workers: the same bytes, and errors that say what is wrong."""

from __future__ import annotations

import pathlib
import shutil

import pytest

from tests import captured_jobs, command_line, datasets, image_sets
from tests.servers import go_programs

pytestmark = pytest.mark.integration

OWN_CODE = """
import os, signal, time

import numpy as np

_now = time.monotonic

def crop(image, reference):
    return image[1:, ::-1]

def even(image, reference):
    return int(image.sum()) % 3 > 0

def spread(images, references):
    return np.stack([[image.mean(), image.std()] for image in images])

def kind(reference):
    return reference.key.split("/")[0]

def misbehave(image, reference):
    if reference.key == "cat/1.jpg":
        os.kill(os.getpid(), signal.SIGKILL)
    if reference.key == "cat/2.jpg":
        time.monotonic = lambda: _now() + 600  # as after ten minutes
        time.sleep(600)
    if reference.key == "cat/3.jpg":
        bytearray(1 << 60)
    return image

def misbehave_in_batch(images, references):
    for image, reference in zip(images, references):
        misbehave(image, reference)
    return [1] * len(images)

def fail(image, reference):
    if reference.key.startswith("cat/1"):
        raise ValueError
    return image
"""
CONFIG = """
label: {by: function, function: "own_code:kind"}
image: {function: "own_code:crop", keep_if: "own_code:even", encode: png}
features: {functions: {image/spread: {function: "own_code:spread", shape: [2], batch: 3}}}
output: {num_shards: 4}
"""
MULTI = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with images, the module `own_code` and a config."""
    image_sets.write_folder(tmp_path / "in")
    (tmp_path / "own_code.py").write_text(OWN_CODE)
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


def convert(folder: pathlib.Path, output: str, *more: str, code: int = 0) -> str:
    """Runs the command in the folder; returns what it printed."""
    arguments = ("convert", "--config", "config.yaml", "--input", "in", "--output", output, *more)
    done = command_line.finish(command_line.start(*arguments, cwd=folder), code)
    return done.stdout + done.stderr


def test_each_runner_writes_the_same_bytes(folder: pathlib.Path) -> None:
    prism = ("--runner=PrismRunner", f"--prism_location={go_programs.prism()}")
    processes = captured_jobs.prism_with_processes(folder / "worker" / "start", python_path=str(folder))
    runs = {"one": ("--workers=1",), "two": ("--workers=2",), "multi": MULTI, "prism": prism, "processes": processes}
    for name, options in runs.items():
        convert(folder, name, *options)
    assert datasets.rejects(folder / "one")
    for name in runs:
        datasets.assert_same(folder / name, folder / "one")


RUN = """
import sys
sys.path.insert(0, "here")
from imagebeam.pipelines import cli
if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "there, found",
    [("", "there is no module 'own_code' here: install its package"), ("# changed\n", "is not that of the command")],
    ids=["missing", "differs"],
)
def test_worker_without_the_same_module_says_so(folder: pathlib.Path, there: str, found: str) -> None:
    for name in ["here", "there"]:
        (folder / name).mkdir()
    (folder / "own_code.py").rename(folder / "here" / "own_code.py")
    if there:
        (folder / "there" / "own_code.py").write_text(there + OWN_CODE)
    arguments = ("convert", "--config", "config.yaml", "--input", "in", "--output", "out", *MULTI)
    environment = {"PYTHONPATH": str(folder / "there")}
    started = command_line.start_program(RUN, *arguments, environment=environment, cwd=folder)
    done = command_line.finish(started, 2)
    assert found in done.stderr
    assert not (folder / "out" / "catalog.json").exists()


@pytest.mark.parametrize(
    "config",
    [
        "image: {function: 'own_code:misbehave', encode: png, limits: {max_seconds: 16}}",
        "features: {functions: {x: {function: 'own_code:misbehave_in_batch', type: int, batch: 4}}}\n"
        "image: {limits: {max_seconds: 16}}",
    ],
    ids=["image", "batch"],
)
def test_function_that_ends_its_process_or_hangs_is_a_reject_of_its_image(folder: pathlib.Path, config: str) -> None:
    (folder / "config.yaml").write_text(f"{config}\noutput: {{num_shards: 2}}\nrejects: {{max_fraction: 0.5}}\n")
    convert(folder, "out", "--workers=1")
    expected = {"cat/1.jpg": "crashed", "cat/2.jpg": "too_slow", "cat/3.jpg": "function"}
    assert datasets.rejects(folder / "out") == expected
    assert sum(datasets.shard_sizes(folder / "out")) == 17


def test_same_code_keeps_finished_shards_and_other_code_writes_them_again(folder: pathlib.Path) -> None:
    (folder / "config.yaml").write_text("image: {function: 'own_code:fail'}\noutput: {num_shards: 4}\n")
    allowed = ("--set", "rejects.max_fraction=0.5")
    assert "1 of 20 images were rejected" in convert(folder, "out", code=3)
    shutil.copytree(folder / "out", folder / "other")
    assert "4 of 4 shards were finished by an earlier run" in convert(folder, "out", *allowed)
    (folder / "own_code.py").write_text(OWN_CODE + "# changed\n")
    assert "finished by an earlier run" not in convert(folder, "other", *allowed)
