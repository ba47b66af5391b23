"""The examples as a user runs them, and what they print."""

from __future__ import annotations

import pathlib
import re
import sys

import pytest

import imagebeam
from tests import command_line
from tests.unit.imagebeam.reader import written

EXAMPLES = command_line.ROOT / "examples"
SCRIPTS = (
    *("demo.py", "eval_exact.py", "train_buckets.py", "train_detection.py", "train_jax.py", "train_keras.py"),
    "train_segmentation.py",
)
LEAST_OVERLAP = 0.7


RUN_SCRIPT = """
import os, runpy, sys
sys.path[0] = os.path.dirname(sys.argv[1])
del sys.argv[0]
{first}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
KEEP_A_COPY = """
import shapes, shutil
make = shapes.make
shapes.make = lambda folder: shutil.copytree(make(folder), {copy!r}) and str(folder / "shapes")
"""


def run(script: str, *arguments: object, folder: pathlib.Path, first: str = "") -> str:
    """Returns what a script of examples/ prints, started in another folder after the code `first`."""
    # The tests' own settings of JAX must not stand in place of the script's.
    environment = {name: "" for name in ("XLA_FLAGS", "JAX_PLATFORMS")}
    code = RUN_SCRIPT.format(first=first)
    environment["TMPDIR"] = str(folder)
    started = command_line.start_program(code, EXAMPLES / script, *arguments, environment=environment, cwd=folder)
    done = command_line.finish(started, 0)
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.slow
def test_training_reaches_95_percent_on_examples_it_has_not_seen(tmp_path: pathlib.Path) -> None:
    scratch, copy = tmp_path / "scratch", tmp_path / "copy"
    scratch.mkdir()
    printed = run("train_keras.py", folder=scratch, first=KEEP_A_COPY.format(copy=str(copy)))
    assert re.search(r"\w+ with \d+ replicas", printed)
    check_accuracy(printed, str(copy))
    left = [path.name for path in scratch.iterdir() if path.name != "__pycache__"]  # of code that TensorFlow generates
    assert left == []  # the dataset that it made is gone
    printed = run("train_jax.py", copy, folder=scratch)
    assert re.search(r"^\d+ devices \(\w+\), 1 processes, 0 steps done$", printed, re.MULTILINE)
    check_accuracy(printed, str(copy))


@pytest.mark.slow
def test_masks_are_predicted_in_images_it_has_not_seen(tmp_path: pathlib.Path) -> None:
    printed = run("train_segmentation.py", folder=tmp_path)
    match = re.search(r"^mIoU (\S+) over (\d+) images$", printed, re.MULTILINE)
    assert match is not None, printed
    assert float(match[1]) >= LEAST_OVERLAP and int(match[2]) == 120


def check_accuracy(printed: str, directory: str) -> None:
    match = re.search(r"accuracy (\S+) over (\d+) examples", printed)
    assert match is not None, printed
    assert float(match[1]) >= 0.95
    assert int(match[2]) == imagebeam.open_dataset(directory).num_examples("test")  # all of them


@pytest.mark.slow
def test_types_of_the_examples_pass_a_strict_check_of_a_user(tmp_path: pathlib.Path) -> None:
    """Of the packages that the examples import, keras, optax, orbax and tensorflow have no types."""
    config = tmp_path / "mypy.ini"
    config.write_text(
        "[mypy]\nstrict = True\n[mypy-keras.*,optax.*,orbax.*,tensorflow.*]\nignore_missing_imports = True\n"
    )
    assert (command_line.ROOT / "imagebeam" / "py.typed").exists()
    (tmp_path / "installed").mkdir()  # as pip installs it: found with its types, and not checked itself
    (tmp_path / "installed" / "imagebeam").symlink_to(command_line.ROOT / "imagebeam")
    scripts = [str(EXAMPLES / name) for name in (*SCRIPTS, "pets.py")]
    options = ["--config-file", str(config), "--cache-dir", str(tmp_path / "cache"), "--follow-imports=silent"]
    searched = f"{tmp_path / 'installed'}:{EXAMPLES}"
    done = command_line.run_other(sys.executable, "-m", "mypy", *options, *scripts, cwd=tmp_path, MYPYPATH=searched)
    assert done.returncode == 0, done.stdout + done.stderr


HELP_OF_ALL = """
import contextlib
first, *others = sys.argv
for name in others:
    sys.argv = [name, "--help"]
    with contextlib.suppress(SystemExit):
        runpy.run_path(os.path.join(os.path.dirname(first), name), run_name="__main__")
sys.argv = [first, "--help"]
"""


@pytest.mark.slow
def test_help_of_each_example_is_its_usage(tmp_path: pathlib.Path) -> None:
    """In one process: to import what they import takes longer than anything else."""
    first, *others = SCRIPTS
    helps = run(first, *others, folder=tmp_path, first=HELP_OF_ALL).split("usage: ")[1:]
    for script, printed in zip([*others, first], helps, strict=True):
        assert printed.startswith(f"{script} [-h]")
        assert ("[dataset]" in printed) == (script != "demo.py")


@pytest.mark.slow
def test_exact_evaluation_counts_each_example_once(tmp_path: pathlib.Path) -> None:
    written.write(tmp_path / "out", written.IMAGE, [written.jpeg_values(index) for index in range(410)])
    printed = run("eval_exact.py", "out", folder=tmp_path).splitlines()
    assert printed[0] == "41 examples for 3 processes in batches of 16"  # a tenth of the only split
    processes = [
        re.fullmatch(r"process \d: (\d+) batches, (\d+) examples, (\d+) of padding", line) for line in printed[1:4]
    ]
    numbers = [[int(number) for number in match.groups()] for match in processes if match]
    assert numbers == [[1, 13, 3], [1, 14, 2], [1, 14, 2]]
    assert printed[4] == "counted 41 examples, 41 different ones"
