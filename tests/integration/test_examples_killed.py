"""Training programs of examples/ that are killed, and go on from their checkpoints with the same losses.

IMAGEBEAM_KILLS is the number of kills of train_jax.py, IMAGEBEAM_KILLS_SEED what decides when they come.
"""

from __future__ import annotations

import os
import pathlib
import random
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence

import jax
import pytest

import imagebeam
from tests import command_line, killed_jobs

DEVICES = 8
KILLS, SEED = (int(os.environ.get(f"IMAGEBEAM_KILLS{name}", usual)) for name, usual in (("", 2), ("_SEED", 517)))
MOST_STEPS = 6  # before a kill
STEPS = MOST_STEPS * KILLS + 2
SAVE_EVERY = 2
# JAX 0.6, the last one on Python 3.10, adds the losses of several processes in another order than those of one, so the
# mean that is printed may be rounded otherwise. The losses of the following steps show that the weights are the same.
ROUNDING = 1e-6 if jax.__version_info__ < (0, 7) else 0


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return killed_jobs.make_shapes(tmp_path_factory.mktemp("shapes"))


def start_jax(
    script: str,
    dataset: pathlib.Path,
    checkpoints: pathlib.Path,
    process_count: int,
    steps: int,
    environment: Mapping[str, str] = {},
    streams: Sequence[int] | None = None,
) -> list[command_line.Process]:
    """Starts an example on eight devices, which its processes share."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        coordinator = f"127.0.0.1:{server.getsockname()[1]}"
    # Without optimization XLA compiles in a third of the time.
    flags = f"--xla_force_host_platform_device_count={DEVICES // process_count} --xla_backend_optimization_level=0"
    searched = {"PYTHONPATH": killed_jobs.SEARCHED, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    options = ("--checkpoints", checkpoints, "--steps", steps, "--save-every", SAVE_EVERY, "--print-every", 1)
    return [
        command_line.start_program(
            killed_jobs.RUN,
            killed_jobs.EXAMPLES / script,
            dataset,
            *options,
            *("--coordinator", coordinator, "--process-count", process_count, "--process-index", index),
            environment={**searched, **environment},
            streams=streams,
        )
        for index in range(process_count)
    ]


def first_step(text: str, process_count: int) -> int:
    """Returns the first step that a job took, from what it printed."""
    begins = rf"^{DEVICES} devices \(cpu\), {process_count} processes, (\d+) steps done$"
    [done] = map(int, re.findall(begins, text, re.MULTILINE))
    return done + 1


@pytest.mark.slow
def test_jax_killed_at_random_steps_has_the_losses_of_a_job_that_was_not(
    dataset: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Equal to the last bit: they have the same eight devices, whose gradients Gloo adds in the same order."""
    expected, whole = killed_jobs.run(start_jax("train_jax.py", dataset, tmp_path / "whole", 1, STEPS))
    assert sorted(expected) == list(range(1, STEPS + 1))
    rng = random.Random(SEED)
    print(f"{KILLS} kills, IMAGEBEAM_KILLS_SEED={SEED}")
    for place in range(KILLS + 1):
        process_count = rng.choice((1, 2, 4))
        num_losses = rng.randint(1, MOST_STEPS) if place < KILLS else None
        job = start_jax("train_jax.py", dataset, tmp_path / "killed", process_count, STEPS)
        losses, text = killed_jobs.run(job, num_losses)
        first = first_step(text, process_count)
        print(f"{process_count} processes: steps {first} to {max(losses)}")
        assert losses == {step: expected[step] for step in range(first, max(losses) + 1)}
    assert max(losses) == STEPS > len(losses)
    assert text.splitlines()[-1] == whole.splitlines()[-1]
    assert re.search(r"^(input|step)-bound: \S+ s for batches, \S+ s for steps$", text, re.MULTILINE)
    assert f"over {imagebeam.open_dataset(dataset).num_examples('test')} examples" in text


@pytest.mark.slow
def test_buckets_killed_and_on_other_processes_have_the_losses_of_a_job_that_was_not(
    dataset: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """A checkpoint is whole when the next one begins, so each job that follows takes only some of the steps."""
    steps, num_losses = 8 * SAVE_EVERY, 3 * SAVE_EVERY + 1
    with (tmp_path / "log").open("w") as log:
        streams = (subprocess.DEVNULL, subprocess.PIPE, log.fileno())
        logs = {"JAX_LOG_COMPILES": "1"}
        job = start_jax("train_buckets.py", dataset, tmp_path / "whole", 1, steps, logs, streams)
    expected, whole = killed_jobs.run(job)
    assert sorted(expected) == list(range(1, steps + 1))
    ending = whole.splitlines()[-1]
    compiled = re.findall(r"Finished XLA compilation of jit\(_update\) in \S+ sec", (tmp_path / "log").read_text())
    assert len(set(compiled)) == 3  # JAX 0.6 writes each line twice
    assert ending.endswith(f" over {imagebeam.open_dataset(dataset).num_examples('test')} examples in 3 buckets")
    least_first = 1
    for process_count, killed_after in ((2, num_losses), (1, None)):
        job = start_jax("train_buckets.py", dataset, tmp_path / "killed", process_count, steps)
        losses, text = killed_jobs.run(job, killed_after)
        first = first_step(text, process_count)
        assert first >= least_first
        same = {step: expected[step] for step in range(first, max(losses) + 1)}
        assert losses == pytest.approx(same, rel=ROUNDING, abs=0)
        least_first = max(losses) - SAVE_EVERY
    assert max(losses) == steps and text.splitlines()[-1] == ending


@pytest.mark.slow
def test_keras_killed_in_an_epoch_has_the_losses_of_a_job_that_was_not(
    dataset: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    def run(num_losses: int | None, *options: object) -> tuple[killed_jobs.Losses, str]:
        script, epochs = killed_jobs.EXAMPLES / "train_keras.py", ("--epochs", 3)
        searched = {"PYTHONPATH": killed_jobs.SEARCHED}
        job = command_line.start_program(killed_jobs.RUN, script, dataset, *epochs, *options, environment=searched)
        return killed_jobs.run([job], num_losses)

    expected, whole = run(None)
    for num_losses, epochs in ((1, [1]), (1, [2]), (None, [3])):
        losses, text = run(num_losses, "--checkpoint", tmp_path / "model.keras")
        assert losses == {epoch: expected[epoch] for epoch in epochs}
    assert text == whole.replace(whole[whole.index("epoch 1:") : whole.index("epoch 3:")], "")
