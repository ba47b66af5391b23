"""Reads with a well-tuned tf.data pipeline, as an expert user would write it for these shards.

Many shards are read at once and in any order, records are mixed while encoded, the window is drawn from the stored
height and width, only its part is decoded, and a private pool has as many threads as there are cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import reader_measure
import tensorflow as tf

AUTOTUNE = tf.data.AUTOTUNE
SIZE = [reader_measure.SIDE, reader_measure.SIDE]
CYCLE_LENGTH = 16
SHUFFLE_BUFFER = 1000
READ_BUFFER_BYTES = 8 << 20
FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/height": tf.io.FixedLenFeature([], tf.int64),
    "image/width": tf.io.FixedLenFeature([], tf.int64),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}


def crop_and_resize(encoded: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Decodes a random window of a JPEG of this shape alone; returns uint8 [SIDE, SIDE, 3]."""
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        shape,
        tf.zeros([1, 0, 4]),
        area_range=reader_measure.AREA,
        aspect_ratio_range=reader_measure.ASPECT_RATIO,
        min_object_covered=0,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.cast(tf.concat([begin[:2], size[:2]], axis=0), tf.int32)
    image = tf.image.resize(tf.io.decode_and_crop_jpeg(encoded, window, channels=3), SIZE)
    return tf.cast(tf.image.random_flip_left_right(image), tf.uint8)


def read_example(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    example = tf.io.parse_single_example(serialized, FEATURES)
    shape = tf.stack([example["image/height"], example["image/width"], 3])
    return crop_and_resize(example["image/encoded"], shape), tf.cast(example["image/class/label"], tf.int32)


def batches(args: argparse.Namespace) -> Iterator[tf.Tensor]:
    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = args.threads
    options.threading.max_intra_op_parallelism = 1
    files = reader_measure.shards(args.dataset)
    dataset = (
        tf.data.Dataset.from_tensor_slices(files)
        .shuffle(len(files))
        .repeat()
        .interleave(
            lambda file: tf.data.TFRecordDataset(file, buffer_size=READ_BUFFER_BYTES),
            cycle_length=CYCLE_LENGTH,
            num_parallel_calls=AUTOTUNE,
            deterministic=False,
        )
        .shuffle(SHUFFLE_BUFFER)
        .map(read_example, num_parallel_calls=AUTOTUNE, deterministic=False)
        .batch(reader_measure.BATCH_SIZE, drop_remainder=True)
        .prefetch(AUTOTUNE)
        .with_options(options)
    )
    return (images for images, _ in dataset)


if __name__ == "__main__":
    reader_measure.run(reader_measure.make_parser(__doc__), batches, "tensorflow")
