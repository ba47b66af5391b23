"""JAX trains on a dataset, with each batch cut over all devices: `python examples/train_jax.py [DATASET]`.

On a machine without TPU or GPU the processor acts as eight devices, so this is what runs on a TPU slice, where
each process reads the rows of its own devices. Without DATASET it makes one of three shapes. It prints the accuracy
over examples that it was not trained on, each counted once.
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")  # before JAX is imported
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import shapes
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding, PartitionSpec

BATCH_SIZE = 64  # for all processes together
IMAGE_SIZE = 32  # pixels a side
STEPS = 45
LEARNING_RATE = 5e-3

Parameters = dict[str, Any]  # float32 arrays by name
Batch = dict[str, Any]


def make_parameters(num_classes: int) -> Parameters:
    """Returns weights of three convolutions and a dense layer, initialised as in He et al., 2015.

    NumPy draws them: XLA would compile a program for each shape, seconds in all. All processes draw the same ones.
    """
    sizes = {"conv0": (3, 3, 3, 16), "conv1": (3, 3, 16, 32), "conv2": (3, 3, 32, 64), "dense": (64, num_classes)}
    rng = np.random.default_rng(1)
    parameters = {}
    for name, shape in sizes.items():
        deviation = math.sqrt(2 / math.prod(shape[:-1]))
        parameters[name] = rng.normal(0, deviation, shape).astype(np.float32)
        parameters[f"{name}_bias"] = np.zeros(shape[-1], np.float32)
    return parameters


def predict(parameters: Parameters, image: jax.Array) -> jax.Array:
    """Returns logits, float32 [batch, classes], of images in bfloat16."""
    hidden = image
    for name in ("conv0", "conv1", "conv2"):
        kernel = parameters[name].astype(hidden.dtype)
        hidden = jax.lax.conv_general_dilated(
            hidden, kernel, window_strides=(1, 1), padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        hidden = jax.nn.relu(hidden + parameters[f"{name}_bias"].astype(hidden.dtype))
        hidden = jax.lax.reduce_window(hidden, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    logits: jax.Array = hidden.max((1, 2)).astype(jnp.float32) @ parameters["dense"] + parameters["dense_bias"]
    return logits


def loss_of(parameters: Parameters, batch: Batch) -> jax.Array:
    """Returns the mean cross entropy of a batch."""
    log_probabilities = jax.nn.log_softmax(predict(parameters, batch["image"]))
    return -jnp.take_along_axis(log_probabilities, batch["label"][:, None], axis=1).mean()


@jax.jit
def train_step(parameters: Parameters, moments: tuple[Parameters, Parameters], step: int, batch: Batch) -> Any:
    """Takes one step of Adam (Kingma and Ba, 2015). The mean in the loss makes JAX sum gradients over the devices."""
    loss, gradients = jax.value_and_grad(loss_of)(parameters, batch)
    first = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, moments[0], gradients)
    second = jax.tree.map(lambda old, new: 0.999 * old + 0.001 * new**2, moments[1], gradients)
    rate = LEARNING_RATE * jnp.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
    updated = jax.tree.map(
        lambda value, mean, square: value - rate * mean / (jnp.sqrt(square) + 1e-8), parameters, first, second
    )
    return updated, (first, second), loss


@jax.jit
def count_correct(parameters: Parameters, batch: Batch) -> jax.Array:
    """Returns the number of examples that are predicted right; padding does not count."""
    is_right: jax.Array = predict(parameters, batch["image"]).argmax(1) == batch["label"]
    return jnp.sum(is_right & batch["mask"])


def main() -> None:
    """Trains, and prints the accuracy."""
    folder = shapes.parse_arguments()
    tf.config.set_visible_devices([], "GPU")  # TensorFlow only reads; it would take the memory that JAX needs
    mesh = Mesh(np.array(jax.devices()), ("data",))
    over_devices, copied = (NamedSharding(mesh, spec) for spec in map(PartitionSpec, ("data", None)))
    print(f"{jax.device_count()} devices ({jax.devices()[0].platform}) in {jax.process_count()} processes")
    with shapes.open_dataset(folder) as dataset:
        train, test = shapes.splits_of(dataset)
        pictures = {"image_size": IMAGE_SIZE, "crop": "squash", "dtype": "bfloat16", "normalize": "imagenet"}
        parameters = jax.device_put(make_parameters(len(dataset.labels)), copied)
        moments = (jax.tree.map(jnp.zeros_like, parameters), jax.tree.map(jnp.zeros_like, parameters))
        batches = dataset.as_jax(train, over_devices, BATCH_SIZE, **pictures, flip=True, shuffle="global")
        for step, batch in zip(range(STEPS), batches):
            parameters, moments, loss = train_step(parameters, moments, step, batch)
            if step % 15 == 14:
                print(f"step {step + 1}: loss {loss:.4f}")
        print(f"a checkpoint would hold {batches.state().to_dict()}")

        tested = dataset.as_jax(test, over_devices, BATCH_SIZE, **pictures, shuffle=None)
        correct = sum(int(count_correct(parameters, batch)) for batch in tested)
        count = dataset.num_examples(test)
        print(f"accuracy {correct / count:.3f} over {count} examples")


if __name__ == "__main__":
    main()
