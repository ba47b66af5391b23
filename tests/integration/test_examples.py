"""The examples as a user runs them, and what they print."""

from __future__ import annotations

import os
import pathlib
import re

import pytest

from tests import command_line, datasets, forked_commands, image_sets, patience

EXAMPLES = command_line.ROOT / "examples"


RUN_SCRIPT = """
import os, runpy, sys
sys.path[0] = os.path.dirname(sys.argv[1])
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(script: str, *arguments: object, folder: pathlib.Path) -> str:
    """Returns what a script of examples/ prints, started in another folder."""
    # The tests' own settings of JAX must not stand in place of the script's.
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    program = {"code": RUN_SCRIPT, "arguments": [str(EXAMPLES / script), *map(str, arguments)]}
    process = forked_commands.start("tensorflow", program, {**environment, "TMPDIR": str(folder)}, folder)
    try:
        stdout, stderr = process.communicate(timeout=patience.HANG_SEC)
    finally:
        process.kill()
    assert process.returncode == 0, stderr
    assert "Traceback" not in stderr
    return stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "device"),
    [("train_keras.py", r"\w+ with \d+ replicas"), ("train_jax.py", r"\d+ devices \(\w+\) in 1 processes")],
    ids=["keras", "jax"],
)
def test_training_reaches_95_percent_on_examples_it_has_not_seen(
    script: str, device: str, tmp_path: pathlib.Path
) -> None:
    printed = run(script, folder=tmp_path)
    assert re.search(device, printed)
    match = re.search(r"accuracy (\S+) over (\d+) examples", printed)
    assert match is not None, printed
    assert float(match[1]) >= 0.95
    test_split = re.search(r"test +(\d+) images", printed)
    assert test_split is not None
    assert match[2] == test_split[1]  # all of them
    assert list(tmp_path.iterdir()) == []  # what it made is gone


@pytest.mark.slow
@pytest.mark.parametrize("script", ["demo.py", "eval_exact.py", "train_jax.py", "train_keras.py"])
def test_help_of_an_example_is_its_usage(script: str, tmp_path: pathlib.Path) -> None:
    printed = run(script, "--help", folder=tmp_path)
    assert printed.startswith(f"usage: {script} [-h]")
    assert ("[dataset]" in printed) == (script != "demo.py")


@pytest.mark.slow
def test_exact_evaluation_counts_each_example_once(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=205)
    datasets.make(tmp_path / "in", tmp_path / "out", output={"num_shards": 2})
    printed = run("eval_exact.py", "out", folder=tmp_path).splitlines()
    assert printed[0] == "41 examples for 3 processes in batches of 16"  # a tenth of the only split
    processes = [
        re.fullmatch(r"process \d: (\d+) batches, (\d+) examples, (\d+) of padding", line) for line in printed[1:4]
    ]
    numbers = [[int(number) for number in match.groups()] for match in processes if match]
    assert numbers == [[1, 13, 3], [1, 14, 2], [1, 14, 2]]
    assert printed[4] == "counted 41 examples, 41 different ones"
