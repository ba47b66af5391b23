"""Keras trains on a dataset: `python examples/train_keras.py [DATASET]`, on a TPU, on GPUs or on this machine's cores.

Without DATASET it makes one of three shapes. It prints the accuracy over examples that it was not trained on, each
counted once.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported: hides messages about missing GPUs

import keras
import shapes
import tensorflow as tf

BATCH_SIZE = 64  # for all replicas together
IMAGE_SIZE = 32  # pixels a side
EPOCHS = 2


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


def main() -> None:
    """Trains, and prints the accuracy."""
    folder = shapes.parse_arguments()
    strategy = find_strategy()
    print(f"{type(strategy).__name__} with {strategy.num_replicas_in_sync} replicas")
    keras.utils.set_random_seed(0)
    with shapes.open_dataset(folder) as dataset:
        train, test = shapes.splits_of(dataset)
        with strategy.scope():
            model = make_model(len(dataset.labels))
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(5e-3), loss, weighted_metrics=["accuracy"])

        # crop="random" could crop the corners by which the shapes differ.
        size = {"image_size": IMAGE_SIZE, "crop": "squash"}
        batches = dataset.as_distributed(strategy, train, BATCH_SIZE, **size, flip=True, supervised=True)
        steps = dataset.num_examples(train) // BATCH_SIZE
        model.fit(batches, epochs=EPOCHS, steps_per_epoch=steps, shuffle=False, verbose=2)

        padded = dataset.as_tf(test, BATCH_SIZE, **size, shuffle=None, supervised=True)
        accuracy = model.evaluate(padded, verbose=0, return_dict=True)["accuracy"]
        print(f"accuracy {accuracy:.3f} over {dataset.num_examples(test)} examples")


if __name__ == "__main__":
    main()
