"""Reads the shards that imagebeam wrote with TensorFlow Datasets, as a user of TFDS would.

Decoding is skipped in the builder; the map draws a window from the JPEG's header and decodes that part alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import reader_measure
import tensorflow as tf
import tensorflow_datasets as tfds

AUTOTUNE = tf.data.AUTOTUNE
SIZE = [reader_measure.SIDE, reader_measure.SIDE]
SHUFFLE_BUFFER = 1000


def crop_and_resize(example: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    encoded = example["image/encoded"]
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(encoded),
        tf.zeros([1, 0, 4]),
        area_range=reader_measure.AREA,
        aspect_ratio_range=reader_measure.ASPECT_RATIO,
        min_object_covered=0,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], size[:2]], axis=0)
    image = tf.io.decode_and_crop_jpeg(encoded, window, channels=3)
    image = tf.image.resize(image, SIZE)
    image = tf.image.random_flip_left_right(image)
    return tf.cast(image, tf.uint8), example["image/class/label"]


def batches(args: argparse.Namespace) -> Iterator[tf.Tensor]:
    builder = tfds.builder_from_directory(args.dataset)
    dataset = (
        builder.as_dataset(split="train", shuffle_files=True, decoders={"image/encoded": tfds.decode.SkipDecoding()})
        .shuffle(SHUFFLE_BUFFER)
        .repeat()
        .map(crop_and_resize, num_parallel_calls=AUTOTUNE)
        .batch(reader_measure.BATCH_SIZE)
        .prefetch(AUTOTUNE)
    )
    for images, _ in dataset:
        yield images


if __name__ == "__main__":
    args = reader_measure.make_parser(__doc__).parse_args()
    reader_measure.run(batches(args), args.seconds, "tensorflow", "tensorflow-datasets")
