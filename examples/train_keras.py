"""Keras trains on a dataset, on a TPU, on GPUs or on this machine's cores.

    python examples/train_keras.py [DATASET] [--checkpoint FILE.keras]

Without DATASET it makes one of three shapes. With FILE it saves the model after each epoch, and goes on after the last
epoch that was saved there: with the same losses, since the reader goes on where the model does. It prints the accuracy
over examples that it was not trained on, each counted once.
"""

from __future__ import annotations

import argparse
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported: hides messages about missing GPUs

import keras
import shapes
import tensorflow as tf

import imagebeam

BATCH_SIZE = 64  # for all replicas together
IMAGE_SIZE = 32  # pixels a side


def find_strategy() -> tf.distribute.Strategy:
    """Returns a strategy for a TPU if there is one, else for all GPUs, else for the default device."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, tf.errors.NotFoundError):  # the environment names no TPU, or the TPU does not exist
        has_gpus = len(tf.config.list_physical_devices("GPU")) > 1
        return tf.distribute.MirroredStrategy() if has_gpus else tf.distribute.get_strategy()


def make_model(num_classes: int) -> keras.Model:
    """Returns a small convolutional network. Pixels reach the device as uint8, a quarter of the bytes of floats."""
    layers = keras.layers
    model = keras.Sequential(
        [layers.Input([IMAGE_SIZE, IMAGE_SIZE, 3], dtype="uint8"), layers.Rescaling(1 / 127.5, -1)]
    )
    for filters in (16, 32, 64):
        model.add(layers.Conv2D(filters, 3, padding="same", use_bias=False))
        model.add(layers.BatchNormalization(momentum=0.8))  # few steps
        model.add(layers.ReLU())
        model.add(layers.MaxPooling2D())
    model.add(layers.GlobalMaxPooling2D())
    model.add(layers.Dense(num_classes))
    return model


class AfterEpoch(keras.callbacks.Callback):  # type: ignore[misc]
    """Prints the loss of each epoch, and saves model and optimizer."""

    def __init__(self, checkpoint: pathlib.Path | None):
        super().__init__()
        self._checkpoint = checkpoint

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Writes the file under another name first: one that was cut short would be lost."""
        if self._checkpoint is not None:
            new = self._checkpoint.with_suffix(".new.keras")
            self.model.save(new)
            new.replace(self._checkpoint)
        print(f"epoch {epoch + 1}: loss {logs['loss']!r}", flush=True)


def main() -> None:
    """Trains, and prints the accuracy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset", nargs="?", help="folder of a dataset (default: a new one of three shapes)")
    parser.add_argument("--checkpoint", type=pathlib.Path, help="file FILE.keras to go on from, and to save to")
    parser.add_argument("--epochs", type=int, default=2, help="epochs in all (default: %(default)s)")
    arguments = parser.parse_args()
    strategy = find_strategy()
    print(f"{type(strategy).__name__} with {strategy.num_replicas_in_sync} replicas")
    keras.utils.set_random_seed(0)
    with shapes.open_dataset(arguments.dataset) as dataset:
        train_and_test(dataset, strategy, arguments.checkpoint, arguments.epochs)


def train_and_test(
    dataset: imagebeam.ImageDataset, strategy: tf.distribute.Strategy, checkpoint: pathlib.Path | None, epochs: int
) -> None:
    """Trains on one split, and counts what is predicted right in the other."""
    train, test = shapes.splits_of(dataset)
    # crop="random" could crop the corners by which the shapes differ.
    size = {"image_size": IMAGE_SIZE, "crop": "squash"}
    order = {"shuffle": "global", "num_epochs": 1, "next_epoch_each_iteration": True}
    steps = dataset.num_batches(train, BATCH_SIZE, shuffle="global")  # in an epoch
    with strategy.scope():
        if checkpoint is not None and checkpoint.exists():
            model = keras.saving.load_model(checkpoint)
        else:
            model = make_model(len(dataset.labels))
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(5e-3), loss, weighted_metrics=["accuracy"])
    done = int(model.optimizer.iterations) // steps  # epochs
    batches = dataset.as_distributed(
        strategy, train, BATCH_SIZE, **size, **order, flip=True, supervised=True, first_epoch=done
    )
    callbacks = [AfterEpoch(checkpoint)]
    model.fit(batches, initial_epoch=done, epochs=epochs, steps_per_epoch=steps, callbacks=callbacks, verbose=0)

    padded = dataset.as_tf(test, BATCH_SIZE, **size, shuffle=None, supervised=True)
    accuracy = model.evaluate(padded, verbose=0, return_dict=True)["accuracy"]
    print(f"accuracy {accuracy:.3f} over {dataset.num_examples(test)} examples")


if __name__ == "__main__":
    main()
