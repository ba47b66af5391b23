"""Flax and Optax train a small detector without anchors.

    python examples/train_detection.py [DATASET] [--results FILE]

Without DATASET it draws images of three shapes, writes their boxes as COCO does, and converts them: a minute on two
cores. Boxes are cropped and mirrored with their images. It prints AP50 over images that it was not trained on, and
writes what it found to FILE in the format of COCO's results, in pixels of the stored images.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
import scenes
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import imagebeam

BATCH_SIZE = 16  # for all devices together
IMAGE_SIZE = 96  # pixels a side
STRIDE = 4  # pixels for each cell of the detector
STEPS = 300
CHANNELS = 48
MAX_FOUND = 20  # boxes in an image

Batch = dict[str, Any]


class Block(nnx.Module):
    """A residual convolution that sees further than its kernel."""

    def __init__(self, dilation: int, rngs: nnx.Rngs):
        self.conv = nnx.Conv(CHANNELS, CHANNELS, (3, 3), kernel_dilation=(dilation, dilation), rngs=rngs)
        self.norm = nnx.GroupNorm(CHANNELS, num_groups=8, rngs=rngs)

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Returns an array of the same shape."""
        return hidden + nnx.relu(self.norm(self.conv(hidden)))


def make_model(num_classes: int) -> nnx.Sequential:
    """Returns a network from images to [batch, rows, columns, num_classes + 4], one cell for STRIDE x STRIDE pixels.

    A cell has a logit for each class, and the distances from its middle to the four sides of a box, as FCOS (Tian et
    al., 2019).
    """
    rngs = nnx.Rngs(0)
    down = functools.partial(nnx.Conv, kernel_size=(3, 3), strides=(2, 2), rngs=rngs)
    layers: list[Callable[[jax.Array], jax.Array]] = [down(3, 16), nnx.relu, down(16, CHANNELS), nnx.relu]
    layers += [Block(dilation, rngs) for dilation in (1, 2, 3, 4)]
    return nnx.Sequential(*layers, nnx.Conv(CHANNELS, num_classes + 4, (1, 1), rngs=rngs))


def split_output(output: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns logits [batch, rows, columns, classes], and left, top, right and bottom of a box for each cell."""
    logits, distances = output[..., :-4] - 4.0, STRIDE * jax.nn.softplus(4 + 4 * output[..., -4:])  # rare objects
    middles = STRIDE * (jnp.stack(jnp.meshgrid(*map(jnp.arange, output.shape[2:0:-1])), axis=-1) + 0.5)
    return logits, jnp.concatenate([middles - distances[..., :2], middles + distances[..., 2:]], axis=-1)


def overlap(boxes: Any, others: Any) -> Any:
    """Returns the intersection over union of boxes in the same places."""
    upper, lower = jnp.maximum(boxes[..., :2], others[..., :2]), jnp.minimum(boxes[..., 2:], others[..., 2:])
    both = jnp.prod(jnp.maximum(lower - upper, 0), axis=-1)
    areas = [jnp.prod(each[..., 2:] - each[..., :2], axis=-1) for each in (boxes, others)]
    return both / jnp.maximum(areas[0] + areas[1] - both, 1e-6)


def loss_of(output: jax.Array, batch: Batch) -> Any:
    """Returns the loss of a batch: quality focal loss (Li et al., 2020) for classes, intersection over union for boxes.

    An object is most wanted in the cell of its middle, and less around it: a Gaussian (CenterNet, Zhou et al., 2019).
    """
    logits, boxes = split_output(output)
    corners = batch["boxes"]  # [batch, objects, 4]
    cells = jnp.floor((corners[..., :2] + corners[..., 2:]) / 2 / STRIDE)
    widths = jnp.maximum((corners[..., 2:] - corners[..., :2]) / STRIDE / 6, 0.5)
    grid = jnp.stack(jnp.meshgrid(*map(jnp.arange, output.shape[2:0:-1])), axis=-1)[None, :, :, None]
    far = (grid - cells[:, None, None]) / widths[:, None, None]  # [batch, rows, columns, objects, 2]
    wanted = jnp.exp(-jnp.sum(far**2, axis=-1) / 2) * batch["valid"][:, None, None]
    heat = jnp.max(wanted[..., None] * jax.nn.one_hot(batch["labels"], logits.shape[-1])[:, None, None], axis=3)
    focal = jnp.abs(heat - jax.nn.sigmoid(logits)) ** 2 * optax.sigmoid_binary_cross_entropy(logits, heat)

    weight, nearest = wanted.max(axis=-1), wanted.argmax(axis=-1)
    targets = jax.vmap(lambda each, number: each[number])(corners, nearest)
    missing = weight * (1 - overlap(boxes, targets))
    return focal.sum() / jnp.maximum(batch["valid"].sum(), 1) + missing.sum() / jnp.maximum(weight.sum(), 1)


def find(output: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns boxes [batch, MAX_FOUND, 4], labels and scores: the cells that are no worse than those beside them."""
    logits, boxes = split_output(output)
    scores = jax.nn.sigmoid(logits)
    best = jax.lax.reduce_window(scores, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")
    num_classes = scores.shape[-1]
    flat = jnp.where(scores == best, scores, 0).reshape(len(scores), -1)
    found, places = jax.lax.top_k(flat, MAX_FOUND)
    chosen = jax.vmap(lambda each, place: each.reshape(-1, 4)[place])(boxes, places // num_classes)
    return chosen, places % num_classes, found


def to_stored(boxes: npt.NDArray[Any], transform: npt.NDArray[Any]) -> Any:
    """Returns boxes [N, 4] of an image of a batch in pixels of the stored image."""
    points = np.concatenate([boxes.reshape(-1, 2), np.ones((2 * len(boxes), 1))], axis=1) @ transform.T
    return points[:, :2].reshape(-1, 4)


def train(
    dataset: imagebeam.ImageDataset, reading: dict[str, Any], sharding: NamedSharding, copied: NamedSharding
) -> Callable[[Any], Any]:
    """Trains, and returns a function from images to what is in them."""
    num_classes = len(dataset.catalog.object_classes)
    graph, weights = nnx.split(make_model(num_classes))
    optimizer = optax.adamw(optax.cosine_onecycle_schedule(STEPS, 4e-3))

    @jax.jit
    def step(weights: Any, state: Any, batch: Batch) -> tuple[Any, Any, Any]:
        loss, gradients = jax.value_and_grad(lambda each: loss_of(nnx.merge(graph, each)(batch["image"]), batch))(
            weights
        )
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    weights, state = jax.device_put((weights, optimizer.init(weights)), copied)
    cropped = {**reading, "crop": "random", "area": (0.4, 1.0), "flip": True}
    batches = dataset.as_jax("train", sharding, BATCH_SIZE, **cropped, shuffle="global")
    for number, batch in zip(range(1, STEPS + 1), batches):
        weights, state, loss = step(weights, state, batch)
        if number % 50 == 0:
            print(f"step {number}: loss {loss:.4f}", flush=True)
    return jax.jit(lambda image: find(nnx.merge(graph, weights)(image)))


def test(
    dataset: imagebeam.ImageDataset, reading: dict[str, Any], sharding: Any, find_in: Callable[[Any], Any]
) -> tuple[dict[str, scenes.Boxes], dict[str, scenes.Boxes]]:
    """Returns what is found in the images of validation, and what is annotated there, by the id of the image."""
    found, annotated = {}, {}
    whole = {**reading, "crop": "letterbox", "features": ("image/source_id",), "shuffle": None}
    for batch in dataset.as_jax("validation", sharding, BATCH_SIZE, **whole):
        results = map(np.asarray, find_in(batch["image"]))
        named = {name: np.asarray(batch[name]) for name in ("boxes", "labels", "valid", "transform", "mask")}
        for row, (boxes, labels, scores) in enumerate(zip(*results, strict=True)):
            if not named["mask"][row]:
                continue
            image_id, valid = batch["image/source_id"][row].decode(), named["valid"][row]
            move = functools.partial(to_stored, transform=named["transform"][row])
            found[image_id] = scenes.Boxes(move(boxes), labels, scores)
            annotated[image_id] = scenes.Boxes(
                move(named["boxes"][row][valid]), named["labels"][row][valid], np.ones(valid.sum())
            )
    return found, annotated


def write_results(path: pathlib.Path, found: dict[str, scenes.Boxes], ids: list[int]) -> None:
    """Writes boxes as COCO's evaluation reads them: [left, top, width, height], with the ids of the annotations."""
    results = [
        {
            "image_id": int(image_id),
            "category_id": ids[label],
            "bbox": [float(each) for each in (*box[:2], *(box[2:] - box[:2]))],
            "score": float(score),
        }
        for image_id, boxes in found.items()
        for box, label, score in zip(*boxes, strict=True)
    ]
    path.write_text(json.dumps(results))


def main() -> None:
    """Trains, and prints AP50."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset", nargs="?", help="folder of a dataset with boxes (default: a new one)")
    parser.add_argument("--results", type=pathlib.Path, help="file for the boxes that were found, as COCO's results")
    arguments = parser.parse_args()
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding, copied = (NamedSharding(mesh, spec) for spec in itertools.starmap(PartitionSpec, (("data",), ())))
    with tempfile.TemporaryDirectory() as folder:
        dataset = imagebeam.open_dataset(arguments.dataset or scenes.make(pathlib.Path(folder)))
        ids = sorted(dataset.catalog.object_classes)  # COCO's have gaps
        objects = imagebeam.Objects(boxes="xyxy", labels={each: number for number, each in enumerate(ids)}, max=50)
        reading = {"image_size": IMAGE_SIZE, "dtype": "float32", "normalize": "imagenet", "objects": objects}
        find_in = train(dataset, reading, sharding, copied)
        found, annotated = test(dataset, reading, sharding, find_in)
        if arguments.results:
            write_results(arguments.results, found, ids)
        precision = scenes.average_precision(list(found.values()), list(annotated.values()))
        print(f"AP50 {precision:.3f} over {len(found)} images")


if __name__ == "__main__":
    main()
