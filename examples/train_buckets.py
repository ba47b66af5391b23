"""A small diffusion model learns to draw in three aspect ratios: batches in buckets, with Flax, Optax and Orbax.

    python examples/train_buckets.py [DATASET] [--checkpoints FOLDER]
    python examples/train_buckets.py DATASET --coordinator HOST:PORT --process-count 4 --process-index 0

Devices, processes and checkpoints are those of train_jax.py. Each step has a batch of one bucket, the same in all
processes, so XLA compiles the step once for each bucket. It prints the mean loss over images that it was not trained
on, each counted once.
"""

from __future__ import annotations

from typing import Any

import train_jax  # first: it sets the number of devices

# isort: split
import jax
import jax.numpy as jnp
import optax
import shapes
from flax import nnx

import imagebeam

BATCH_SIZE = 32  # for all processes together
PATCH = 8  # side in pixels
BUCKETS = imagebeam.aspect_buckets(64 * 64, step=2 * PATCH)  # (80, 48), (64, 64) and (48, 80)
WIDTH, NUM_BLOCKS = 96, 2
# Levels from -1 to 1. `metadata` gives a seed of each image and epoch, whatever process reads it.
PICTURES: dict[str, Any] = {"buckets": BUCKETS, "dtype": "float32", "normalize": (127.5, 127.5), "metadata": True}


def waves(values: jax.Array, width: int) -> jax.Array:
    """Returns sines and cosines of numbers at several frequencies: float32 [..., width]."""
    angles = values[..., None] * jnp.pi * 100.0 ** -jnp.linspace(0, 1, width // 2)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)


class Block(nnx.Module):
    """Attention over the patches of an image, and a layer for each patch."""

    def __init__(self, rngs: nnx.Rngs):
        self.norm, self.inner_norm = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, WIDTH, decode=False, rngs=rngs)
        self.inner, self.outer = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, hidden: jax.Array) -> jax.Array:
        hidden += self.attention(self.norm(hidden))
        return hidden + self.outer(nnx.gelu(self.inner(self.inner_norm(hidden))))


class Denoiser(nnx.Module):
    """A ViT that takes images of any whole number of patches: its positions are computed, not learned."""

    def __init__(self, rngs: nnx.Rngs):
        numbers = 3 * PATCH * PATCH
        self.enter, self.time = nnx.Linear(numbers, WIDTH, rngs=rngs), nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.blocks = nnx.Sequential(*[Block(rngs) for _ in range(NUM_BLOCKS)])
        self.norm, self.leave = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.Linear(WIDTH, numbers, rngs=rngs)

    def __call__(self, image: jax.Array, time: jax.Array) -> jax.Array:
        """Returns the images without noise: float32 [batch, height, width, 3].

        Args:
            image: float32 [batch, height, width, 3].
            time: float32 [batch], the part of noise in each image.
        """
        count, height, width, _ = image.shape
        rows, columns = height // PATCH, width // PATCH
        patches = image.reshape(count, rows, PATCH, columns, PATCH, 3).swapaxes(2, 3)
        places = jnp.meshgrid(jnp.arange(rows), jnp.arange(columns), indexing="ij")
        positions = jnp.concatenate([waves(each.ravel(), WIDTH // 2) for each in places], -1)
        hidden = self.enter(patches.reshape(count, rows * columns, -1)) + positions
        hidden += self.time(waves(10 * time, WIDTH))[:, None]
        patches = self.leave(self.norm(self.blocks(hidden))).reshape(count, rows, columns, PATCH, PATCH, 3)
        return patches.swapaxes(2, 3).reshape(image.shape)


def losses(model: train_jax.Model, batch: train_jax.Batch) -> jax.Array:
    """Returns the squared error of each image that was mixed with a random part of noise: float32 [batch]."""

    def draw(seed: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
        of_noise, of_time = jax.random.split(jax.random.wrap_key_data(seed))
        return jax.random.normal(of_noise, shape), jax.random.uniform(of_time)

    image = batch["image"]
    noise, time = jax.vmap(draw, (0, None))(batch["seed"], image.shape[1:])
    part = time[:, None, None, None]
    predicted = model((1 - part) * image + part * noise, time)
    return jnp.square(predicted - image).mean((1, 2, 3))


def train_and_test(dataset: imagebeam.ImageDataset, arguments: Any) -> None:
    """Trains on one split, and measures the loss over the other."""
    over_devices, copied = train_jax.make_shardings()
    split, tested = shapes.splits_of(dataset)
    trainer = train_jax.Trainer(lambda: Denoiser(nnx.Rngs(0)), optax.adam(2e-3), losses, losses, copied)
    batches = dataset.as_jax(split, over_devices, BATCH_SIZE, **PICTURES, flip=True, shuffle="global")
    train_jax.train(trainer, batches, arguments)
    rest = dataset.as_jax(tested, over_devices, BATCH_SIZE, **PICTURES, shuffle="global", num_epochs=1, pad=True)
    total, count = sum(float(trainer.sum_scores(batch)) for batch in rest), dataset.num_examples(tested)
    train_jax.say(f"loss {total / count:.3f} over {count} examples in {len(BUCKETS)} buckets")


def main() -> None:
    """Trains, and prints the loss."""
    arguments = train_jax.start_job(steps=100, every=20)
    with shapes.open_dataset(arguments.dataset) as dataset:
        train_and_test(dataset, arguments)


if __name__ == "__main__":
    main()
