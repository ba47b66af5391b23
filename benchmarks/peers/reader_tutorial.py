"""Reads with tf.data as in TensorFlow's tutorials: decodes the whole image, then crops, resizes and flips it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import reader_measure
import tensorflow as tf

AUTOTUNE = tf.data.AUTOTUNE
SIZE = [reader_measure.SIDE, reader_measure.SIDE]
SHUFFLE_BUFFER = 1000
FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}


def read_example(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    example = tf.io.parse_single_example(serialized, FEATURES)
    image = tf.io.decode_jpeg(example["image/encoded"], channels=3)
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.shape(image),
        tf.zeros([1, 0, 4]),
        area_range=reader_measure.AREA,
        aspect_ratio_range=reader_measure.ASPECT_RATIO,
        min_object_covered=0,
        use_image_if_no_bounding_boxes=True,
    )
    image = tf.slice(image, begin, size)
    image.set_shape([None, None, 3])
    image = tf.image.resize(image, SIZE)
    image = tf.image.random_flip_left_right(image)
    return tf.cast(image, tf.uint8), example["image/class/label"]


def batches(args: argparse.Namespace) -> Iterator[tf.Tensor]:
    dataset = (
        tf.data.TFRecordDataset(reader_measure.shards(args.dataset))
        .shuffle(SHUFFLE_BUFFER)
        .repeat()
        .map(read_example, num_parallel_calls=AUTOTUNE)
        .batch(reader_measure.BATCH_SIZE)
        .prefetch(AUTOTUNE)
    )
    for images, _ in dataset:
        yield images


if __name__ == "__main__":
    args = reader_measure.make_parser(__doc__).parse_args()
    reader_measure.run(batches(args), args.seconds, "tensorflow")
