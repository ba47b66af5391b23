"""Flax and Optax train on a dataset, each batch cut over all devices of all processes; Orbax keeps checkpoints.

    python examples/train_jax.py [DATASET] [--checkpoints FOLDER]
    python examples/train_jax.py DATASET --coordinator HOST:PORT --process-count 4 --process-index 0

Without DATASET it makes one of three shapes. With FOLDER it goes on after the last step that was saved there, also on
another number of processes. On a machine without TPU or GPU the processor acts as eight devices. On a TPU slice run the
same command on each host with `--coordinator auto`: JAX finds the other hosts itself. It prints the accuracy over
examples that it was not trained on, each counted once.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
from collections.abc import Callable
from typing import Any, TypeAlias

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")  # before JAX is imported

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import shapes
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import imagebeam

BATCH_SIZE = 64  # for all processes together
IMAGE_SIZE = 32  # pixels a side
PICTURES = {"image_size": IMAGE_SIZE, "crop": "squash", "dtype": "bfloat16", "normalize": "imagenet"}

State = dict[str, Any]  # "model" and "optimizer", of float32 arrays that all devices hold
Batch = dict[str, jax.Array]
Model: TypeAlias = Any  # an nnx.Module that is called
OfExamples: TypeAlias = Callable[[Model, Batch], Any]  # returns an array with a value for each example


def make_model(num_classes: int) -> nnx.Module:
    """Returns three convolutions and a dense layer, from images in bfloat16 to logits, float32 [batch, classes].

    The convolutions compute in bfloat16, with weights in float32.
    """
    rngs, he = nnx.Rngs(0), nnx.initializers.he_normal()
    layers: list[Callable[[jax.Array], jax.Array]] = []
    for sizes in ((3, 16), (16, 32), (32, 64)):
        layers.append(nnx.Conv(*sizes, (3, 3), dtype=jnp.bfloat16, kernel_init=he, rngs=rngs))
        layers += [nnx.relu, functools.partial(nnx.max_pool, window_shape=(2, 2), strides=(2, 2))]
    layers.append(lambda hidden: hidden.max((1, 2)).astype(jnp.float32))
    return nnx.Sequential(*layers, nnx.Linear(64, num_classes, rngs=rngs))


def losses(model: Model, batch: Batch) -> Any:
    """Returns the cross-entropy of each example: float32 [batch]."""
    return optax.softmax_cross_entropy_with_integer_labels(model(batch["image"]), batch["label"])


def is_right(model: Model, batch: Batch) -> Any:
    """Returns whether each example is predicted right: bool [batch]."""
    return model(batch["image"]).argmax(1) == batch["label"]


class Trainer:
    """A model and its optimizer, of which all devices hold a copy."""

    def __init__(
        self,
        make_model: Callable[[], nnx.Module],
        optimizer: optax.GradientTransformation,
        losses: OfExamples,
        scores: OfExamples,
        sharding: NamedSharding,
    ):
        """Initializes the same weights in every process.

        Args:
            make_model: returns a model with new weights.
            optimizer: changes them after each step.
            losses: of each example; their mean is minimized.
            scores: of each example, for `sum_scores`.
            sharding: of the weights.
        """
        self._optimizer, self._losses, self._scores = optimizer, losses, scores

        def initialize() -> State:
            weights = nnx.state(make_model())
            return {"model": weights, "optimizer": self._optimizer.init(weights)}

        self._graph = nnx.graphdef(nnx.eval_shape(make_model))
        self.state = jax.jit(initialize, out_shardings=sharding)()
        self._step = jax.jit(self._update, donate_argnums=0)
        self._sum = jax.jit(self._sum_scores)

    def step(self, batch: Batch) -> Any:
        """Takes a step and returns its loss. It does not wait for the devices."""
        self.state, loss = self._step(self.state, batch)
        return loss

    def sum_scores(self, batch: Batch) -> Any:
        """Returns the sum of the scores of the examples; padding does not count."""
        return self._sum(self.state["model"], batch)

    def _update(self, state: State, batch: Batch) -> tuple[State, Any]:
        def loss_of(weights: Any) -> Any:
            return self._losses(nnx.merge(self._graph, weights), batch).mean()

        # The mean is over the batch of all processes, so JAX sums the gradients over all devices.
        loss, gradients = jax.value_and_grad(loss_of)(state["model"])
        updates, optimizer = self._optimizer.update(gradients, state["optimizer"], state["model"])
        return {"model": optax.apply_updates(state["model"], updates), "optimizer": optimizer}, loss

    def _sum_scores(self, weights: Any, batch: Batch) -> Any:
        return jnp.sum(jnp.where(batch["mask"], self._scores(nnx.merge(self._graph, weights), batch), 0))


class Checkpoints:
    """Model, optimizer and reader after some steps. Without a folder nothing is kept."""

    def __init__(self, folder: str | None):
        options = ocp.CheckpointManagerOptions(max_to_keep=2)
        address = os.path.abspath(folder) if folder and "://" not in folder else folder
        self._manager = ocp.CheckpointManager(address, options=options) if address else None

    def restore(self, trainer: Trainer, batches: Any) -> int:
        """Goes on from the last checkpoint, if there is one; returns the number of steps taken."""
        step: int | None = self._manager.latest_step() if self._manager else None
        if self._manager is None or step is None:
            return 0
        wanted = {"state": ocp.args.StandardRestore(trainer.state), "reader": ocp.args.JsonRestore()}
        restored = self._manager.restore(step, args=ocp.args.Composite(**wanted))
        trainer.state = restored.state
        batches.set_state(restored.reader)
        return step

    def save(self, step: int, trainer: Trainer, batches: Any) -> None:
        """Writes a checkpoint while the training goes on. All processes call it; the reader's state is one for all."""
        if self._manager:
            parts = {"state": ocp.args.StandardSave(trainer.state), "reader": ocp.args.JsonSave(batches.get_state())}
            self._manager.save(step, args=ocp.args.Composite(**parts))

    def close(self) -> None:
        """Waits until the last checkpoint is written."""
        if self._manager:
            self._manager.close()


def train(trainer: Trainer, batches: Any, arguments: argparse.Namespace) -> None:
    """Goes on from the last checkpoint to the last step."""
    checkpoints = Checkpoints(arguments.checkpoints)
    first = checkpoints.restore(trainer, batches)
    devices = f"{jax.device_count()} devices ({jax.devices()[0].platform})"
    say(f"{devices}, {jax.process_count()} processes, {first} steps done")
    for step in range(first + 1, arguments.steps + 1):
        loss = trainer.step(next(batches))
        if step % arguments.print_every == 0:
            say(f"step {step}: loss {float(loss)!r}")  # waits for the devices
        if step % arguments.save_every == 0:
            checkpoints.save(step, trainer, batches)
    checkpoints.close()
    waited = batches.metrics()
    say(
        f"{waited['bound']}-bound: {waited['wait_seconds']:.1f} s for batches, {waited['step_seconds']:.1f} s for steps"
    )


def train_and_test(dataset: imagebeam.ImageDataset, arguments: argparse.Namespace) -> None:
    """Trains on one split, and counts what is predicted right in the other."""
    over_devices, copied = make_shardings()
    split, tested = shapes.splits_of(dataset)
    make = functools.partial(make_model, len(dataset.labels))
    trainer = Trainer(make, optax.adam(5e-3), losses, is_right, copied)
    batches = dataset.as_jax(split, over_devices, BATCH_SIZE, **PICTURES, flip=True, shuffle="global")
    train(trainer, batches, arguments)
    rest = dataset.as_jax(tested, over_devices, BATCH_SIZE, **PICTURES, shuffle=None)
    correct, count = sum(int(trainer.sum_scores(batch)) for batch in rest), dataset.num_examples(tested)
    say(f"accuracy {correct / count:.3f} over {count} examples")


def make_shardings() -> tuple[NamedSharding, NamedSharding]:
    """Returns the sharding of batches, cut over all devices, and that of weights, which all devices hold."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    over_devices, copied = (NamedSharding(mesh, spec) for spec in itertools.starmap(PartitionSpec, (("data",), ())))
    return over_devices, copied


def say(text: str) -> None:
    """Prints a line, in one of the processes."""
    if jax.process_index() == 0:
        print(text, flush=True)


def start_job(steps: int, every: int) -> argparse.Namespace:
    """Returns the arguments of the command line, and joins the processes of the job.

    Args:
        steps: default number of steps.
        every: default number of steps between losses, and between checkpoints.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset", nargs="?", help="folder of a dataset (default: a new one of three shapes)")
    parser.add_argument("--checkpoints", help="folder to go on from, and to save to, also at gs://")
    parser.add_argument("--steps", type=int, default=steps, help="steps in all (default: %(default)s)")
    for option, of in (("--save-every", "checkpoints"), ("--print-every", "losses")):
        parser.add_argument(option, type=int, default=every, help=f"steps between {of} (default: %(default)s)")
    parser.add_argument("--coordinator", help="HOST:PORT of process 0, or `auto` on a TPU slice")
    parser.add_argument("--process-count", type=int, help="number of processes")
    parser.add_argument("--process-index", type=int, help="number of this process, from 0")
    arguments = parser.parse_args()
    if arguments.coordinator == "auto":
        jax.distributed.initialize()
    elif arguments.coordinator:
        jax.distributed.initialize(arguments.coordinator, arguments.process_count, arguments.process_index)
    return arguments


def main() -> None:
    """Trains, and prints the accuracy."""
    arguments = start_job(45, 15)
    with shapes.open_dataset(arguments.dataset) as dataset:
        train_and_test(dataset, arguments)


if __name__ == "__main__":
    main()
