"""examples/train_jax.py in one and several processes that are killed, and go on from Orbax's checkpoints."""

from __future__ import annotations

import os
import pathlib
import random
import re
import signal
import socket

import pytest

import imagebeam
from tests import command_line

EXAMPLES = command_line.ROOT / "examples"
DEVICES = 8
STEPS, SAVE_EVERY = 12, 2
SEARCHED = {"PYTHONPATH": f"{EXAMPLES}:{command_line.ROOT}"}
MAKE = "import pathlib, shapes, sys; shapes.make(pathlib.Path(sys.argv[1]))"
RUN = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"

Losses = dict[int, float]  # by step


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Returns the folder of the dataset of three shapes."""
    folder = tmp_path_factory.mktemp("shapes")
    command_line.finish(command_line.start_program(MAKE, folder, environment=SEARCHED), 0)
    return folder / "shapes"


def start(dataset: pathlib.Path, checkpoints: pathlib.Path, process_count: int) -> list[command_line.Process]:
    """Starts a job on eight devices, which its processes share."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        coordinator = f"127.0.0.1:{server.getsockname()[1]}"
    flags = f"--xla_force_host_platform_device_count={DEVICES // process_count}"
    options = ("--checkpoints", checkpoints, "--steps", STEPS, "--save-every", SAVE_EVERY, "--print-every", 1)
    return [
        command_line.start_program(
            RUN,
            EXAMPLES / "train_jax.py",
            dataset,
            *options,
            *("--coordinator", coordinator, "--process-count", process_count, "--process-index", index),
            environment={**SEARCHED, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        )
        for index in range(process_count)
    ]


def run(
    dataset: pathlib.Path, checkpoints: pathlib.Path, process_count: int, killed_after: int | None = None
) -> tuple[int, Losses, list[str]]:
    """Runs a job, which is killed when it has printed the loss of a step; returns its first step, losses and text."""
    job = start(dataset, checkpoints, process_count)
    printed = []
    try:
        assert job[0].stdout is not None
        for line in job[0].stdout:
            printed.append(line)
            if line.startswith(f"step {killed_after}:"):
                for process in job:
                    os.kill(process.pid, signal.SIGKILL)
        for process in job:
            command_line.finish(process, 0 if killed_after is None else -signal.SIGKILL)
    finally:
        for process in job:
            process.kill()
    text = "".join(printed)
    losses = {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): loss (\S+)$", text, re.MULTILINE)}
    begins = rf"^{DEVICES} devices \(cpu\), {process_count} processes, (\d+) steps done$"
    [first] = re.findall(begins, text, re.MULTILINE)
    return int(first), losses, printed[-2:]


@pytest.fixture(scope="module")
def whole(dataset: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Losses, str]:
    """Returns the losses of a job of one process that is not killed, and its last line."""
    _, losses, printed = run(dataset, tmp_path_factory.mktemp("whole"), 1)
    return losses, printed[-1]


@pytest.mark.slow
@pytest.mark.parametrize("process_counts", [(4, 2, 1), (1, 4, 2)])
def test_killed_job_has_the_losses_of_one_that_was_not(
    process_counts: tuple[int, int, int], dataset: pathlib.Path, whole: tuple[Losses, str], tmp_path: pathlib.Path
) -> None:
    """Equal to the last bit: they have the same eight devices, whose gradients Gloo adds in the same order."""
    expected, last_line = whole
    assert sorted(expected) == list(range(1, STEPS + 1))
    rng = random.Random(repr(process_counts))
    # A checkpoint is complete by then: Orbax begins none before the last one is written.
    kills = (SAVE_EVERY * 2 + rng.randint(1, 2), SAVE_EVERY * 4 + rng.randint(1, 2), None)
    reached = 0
    for process_count, killed_after in zip(process_counts, kills, strict=True):
        first, losses, printed = run(dataset, tmp_path, process_count, killed_after)
        assert (first > 0) == (reached > 0)
        assert first <= reached
        reached = killed_after or STEPS
        assert losses == {step: expected[step] for step in range(first + 1, reached + 1)}
    assert re.fullmatch(r"(input|step)-bound: \S+ s for batches, \S+ s for steps\n", printed[-2])
    assert printed[-1] == last_line
    [count] = re.findall(r"accuracy \S+ over (\d+) examples", last_line)
    assert int(count) == imagebeam.open_dataset(str(dataset)).num_examples("test")
