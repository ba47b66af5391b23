"""Runs that are killed at any moment: the dataset appears whole or not at all, and the next run ends with the same bytes."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from imagebeam import catalog as catalog_lib
from imagebeam import errors
from pipelines import convert, verify
from tests import command_line, datasets, image_sets
from transforms import commit

NUM_SHARDS = 12
NUM_KILLED_RUNS = 20  # in half as many outputs
DEADLINE_SEC = 60.0


@dataclasses.dataclass(frozen=True)
class Uninterrupted:
    """A run that nothing disturbed."""

    images: pathlib.Path
    output: pathlib.Path
    seconds: float


def command(images: pathlib.Path, output: pathlib.Path) -> list[str]:
    where = ["--input", str(images), "--output", str(output), "--set", f"output.num_shards={NUM_SHARDS}"]
    return [*command_line.IMAGEBEAM, "convert", "--workers", "2", *where]


def start(images: pathlib.Path, output: pathlib.Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(images, output),
        cwd=command_line.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], exit_code: int = 0) -> str:
    """Waits for the end; returns what was written to standard error."""
    _, complaint = process.communicate(timeout=DEADLINE_SEC)
    assert process.returncode == exit_code, complaint
    return complaint


def paths_below(folder: pathlib.Path) -> set[str]:
    return {os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SEC
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for did not happen"
        time.sleep(0.001)


def assert_whole_or_not_there(output: pathlib.Path) -> None:
    if (output / catalog_lib.CATALOG_FILE).exists():
        assert verify.run_verify(str(output)).problems == ()


def assert_same_dataset(output: pathlib.Path, expected: pathlib.Path) -> None:
    assert datasets.shard_digests(output) == datasets.shard_digests(expected)
    assert_whole_or_not_there(output)
    found = {path.relative_to(output) for path in output.rglob("*")}
    assert found == {path.relative_to(expected) for path in expected.rglob("*")}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    """600 images of 100 kB, so that the writing takes a while."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    keys = image_sets.write_folder(folder / "in", labels=["cat", "dog", "owl"], per_label=200)
    filler = random.Random(0).randbytes(100_000)
    for key in keys:
        with open(folder / "in" / key, "ab") as file:
            file.write(filler)  # what follows the end of an image is kept
    begin = time.monotonic()
    finish(start(folder / "in", folder / "out"))
    return Uninterrupted(folder / "in", folder / "out", time.monotonic() - begin)


# --- kill -9 ---------------------------------------------------------------------------------------------------------


def kill_at_random_moment(process: subprocess.Popen[str], output: pathlib.Path, longest: float, rng: random.Random) -> None:
    """Kills the main process alone, after a while or, as often, after some number of files was written."""
    if rng.random() < 0.5:
        time.sleep(rng.uniform(0.3, longest))
    else:
        seen: set[str] = set()
        number = rng.randint(1, 6 * NUM_SHARDS)
        wait_until(lambda: process.poll() is not None or len(seen.union(paths_below(output))) >= number or bool(seen.update(paths_below(output))))
    process.kill()
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(NUM_KILLED_RUNS // 2))
def test_killed_runs_end_with_the_shards_of_an_uninterrupted_one(
    uninterrupted: Uninterrupted, tmp_path: pathlib.Path, seed: int
) -> None:
    rng = random.Random(seed)
    output = tmp_path / "out"
    for _ in range(2):
        process = start(uninterrupted.images, output)
        kill_at_random_moment(process, output, uninterrupted.seconds, rng)
        assert_whole_or_not_there(output)
    finish(start(uninterrupted.images, output))
    assert_same_dataset(output, uninterrupted.output)
