"""Training programs of examples/ that are killed, and go on from their checkpoints with the same losses.

IMAGEBEAM_KILLS is the number of kills of train_jax.py, IMAGEBEAM_KILLS_SEED what decides when they come.
"""

from __future__ import annotations

import os
import pathlib
import random
import re
import socket

import pytest

import imagebeam
from tests import command_line, killed_jobs

DEVICES = 8
KILLS, SEED = (int(os.environ.get(f"IMAGEBEAM_KILLS{name}", usual)) for name, usual in (("", 4), ("_SEED", 38)))
MOST_STEPS = 6  # before a kill
STEPS = MOST_STEPS * KILLS + 2


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return killed_jobs.make_shapes(tmp_path_factory.mktemp("shapes"))


def start_jax(dataset: pathlib.Path, checkpoints: object, process_count: int) -> list[command_line.Process]:
    """Starts train_jax.py on eight devices, which its processes share."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        coordinator = f"127.0.0.1:{server.getsockname()[1]}"
    flags = f"--xla_force_host_platform_device_count={DEVICES // process_count}"
    options = ("--checkpoints", checkpoints, "--steps", STEPS, "--save-every", 2, "--print-every", 1)
    return [
        command_line.start_program(
            killed_jobs.RUN,
            killed_jobs.EXAMPLES / "train_jax.py",
            dataset,
            *options,
            *("--coordinator", coordinator, "--process-count", process_count, "--process-index", index),
            environment={"PYTHONPATH": killed_jobs.SEARCHED, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        )
        for index in range(process_count)
    ]


@pytest.mark.slow
def test_jax_killed_at_random_steps_has_the_losses_of_a_job_that_was_not(
    dataset: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Equal to the last bit: they have the same eight devices, whose gradients Gloo adds in the same order."""
    expected, whole = killed_jobs.run(start_jax(dataset, tmp_path / "whole", 1))
    assert sorted(expected) == list(range(1, STEPS + 1))
    rng = random.Random(SEED)
    print(f"{KILLS} kills, IMAGEBEAM_KILLS_SEED={SEED}")
    for place in range(KILLS + 1):
        process_count = rng.choice((1, 2, 4))
        num_losses = rng.randint(1, MOST_STEPS) if place < KILLS else None
        losses, text = killed_jobs.run(start_jax(dataset, tmp_path / "killed", process_count), num_losses)
        begins = rf"^{DEVICES} devices \(cpu\), {process_count} processes, (\d+) steps done$"
        [first] = map(int, re.findall(begins, text, re.MULTILINE))
        print(f"{process_count} processes: steps {first + 1} to {max(losses)}")
        assert losses == {step: expected[step] for step in range(first + 1, max(losses) + 1)}
    assert max(losses) == STEPS > len(losses)
    assert text.splitlines()[-1] == whole.splitlines()[-1]
    assert re.search(r"^(input|step)-bound: \S+ s for batches, \S+ s for steps$", text, re.MULTILINE)
    assert f"over {imagebeam.open_dataset(dataset).num_examples('test')} examples" in text


@pytest.mark.slow
def test_keras_killed_in_an_epoch_has_the_losses_of_a_job_that_was_not(
    dataset: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    def run(num_losses: int | None, *options: object) -> tuple[killed_jobs.Losses, str]:
        script, epochs = killed_jobs.EXAMPLES / "train_keras.py", ("--epochs", 5)
        searched = {"PYTHONPATH": killed_jobs.SEARCHED}
        job = command_line.start_program(killed_jobs.RUN, script, dataset, *epochs, *options, environment=searched)
        return killed_jobs.run([job], num_losses)

    expected, whole = run(None)
    for num_losses, epochs in ((1, [1]), (2, [2, 3]), (None, [4, 5])):
        losses, text = run(num_losses, "--checkpoint", tmp_path / "model.keras")
        assert losses == {epoch: expected[epoch] for epoch in epochs}
    assert text == whole.replace(whole[whole.index("epoch 1:") : whole.index("epoch 4:")], "")
