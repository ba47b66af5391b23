"""Reads the shards that imagebeam wrote with TensorFlow Datasets, as a user of TFDS would.

Decoding is skipped in the builder; the map draws a window from the JPEG's header and decodes that part alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import reader_measure
import reader_tfdata
import tensorflow as tf
import tensorflow_datasets as tfds

AUTOTUNE = tf.data.AUTOTUNE
SHUFFLE_BUFFER = 1000


def read_example(example: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    encoded = example["image/encoded"]
    return reader_tfdata.crop_and_resize(encoded, tf.io.extract_jpeg_shape(encoded)), example["image/class/label"]


def batches(args: argparse.Namespace) -> Iterator[tf.Tensor]:
    builder = tfds.builder_from_directory(args.dataset)
    dataset = (
        builder.as_dataset(split="train", shuffle_files=True, decoders={"image/encoded": tfds.decode.SkipDecoding()})
        .shuffle(SHUFFLE_BUFFER)
        .repeat()
        .map(read_example, num_parallel_calls=AUTOTUNE)
        .batch(reader_measure.BATCH_SIZE)
        .prefetch(AUTOTUNE)
    )
    return (images for images, _ in dataset)


if __name__ == "__main__":
    reader_measure.run(reader_measure.make_parser(__doc__), batches, "tensorflow", "tensorflow-datasets")
