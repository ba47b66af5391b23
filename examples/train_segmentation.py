"""Keras trains a small network that gives each pixel a class: `python examples/train_segmentation.py [DATASET]`.

Without DATASET it draws images of three shapes with their masks and converts them. Masks are cropped and mirrored with
their images. It prints the mean intersection over union of the classes, over images that it was not trained on.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported: hides messages about missing GPUs

import argparse
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import scenes
import tensorflow as tf

import imagebeam

BATCH_SIZE = 16
IMAGE_SIZE = 96  # pixels a side
EPOCHS = 6
IGNORE = 255  # class of the pixels beside an image, which do not count
NUM_CLASSES = len(scenes.CATEGORIES) + 1


def make_model() -> keras.Model:
    """Returns a U-Net of three levels: uint8 [batch, side, side, 3] -> logits [batch, side, side, classes]."""
    layers = keras.layers

    def convolve(hidden: tf.Tensor, channels: int) -> tf.Tensor:
        for _ in range(2):
            hidden = layers.Conv2D(channels, 3, padding="same", use_bias=False)(hidden)
            hidden = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(hidden))
        return hidden

    image = layers.Input([IMAGE_SIZE, IMAGE_SIZE, 3], dtype="uint8")
    levels = [convolve(layers.Rescaling(1 / 127.5, -1)(image), 12)]
    for channels in (24, 48):
        levels.append(convolve(layers.MaxPooling2D()(levels[-1]), channels))
    hidden = levels.pop()
    for channels in (24, 12):
        hidden = layers.Concatenate()([layers.UpSampling2D()(hidden), levels.pop()])
        hidden = convolve(hidden, channels)
    return keras.Model(image, layers.Conv2D(NUM_CLASSES, 1)(hidden))


def to_pair(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns images and masks."""
    return batch["image"], batch["segmentation"]


def mean_overlap(model: keras.Model, batches: Iterator[dict[str, npt.NDArray[Any]]]) -> float:
    """Returns the mean over all classes of intersection over union, each pixel of each image counted once."""
    counts = np.zeros((NUM_CLASSES, NUM_CLASSES), np.int64)  # true class, predicted class
    for batch in batches:
        predicted = np.asarray(model.predict_on_batch(batch["image"])).argmax(-1)
        true = batch["segmentation"][..., 0]
        is_counted = (true != IGNORE) & batch["mask"][:, None, None]
        np.add.at(counts, (true[is_counted], predicted[is_counted]), 1)
    both = np.diag(counts)
    return float(np.mean(both / np.maximum(counts.sum(0) + counts.sum(1) - both, 1)))


def main() -> None:
    """Trains, and prints the mean intersection over union."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", nargs="?")
    args = parser.parse_args()
    keras.utils.set_random_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        dataset = imagebeam.open_dataset(args.dataset or scenes.make_masks(pathlib.Path(folder)))
        masks = {"image_size": IMAGE_SIZE, "segmentation": imagebeam.Segmentation(ignore=IGNORE)}
        train = dataset.as_tf("train", BATCH_SIZE, **masks, crop="random", area=(0.5, 1.0)).map(to_pair)
        model = make_model()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=IGNORE)
        model.compile(keras.optimizers.Adam(3e-3), loss)
        steps = dataset.num_batches("train", BATCH_SIZE)
        model.fit(train, epochs=EPOCHS, steps_per_epoch=steps, shuffle=False, verbose=2)
        test = dataset.as_numpy("validation", BATCH_SIZE, **masks, crop="letterbox", flip=False, shuffle=None)
        print(f"mIoU {mean_overlap(model, test):.3f} over {dataset.num_examples('validation')} images")


if __name__ == "__main__":
    main()
