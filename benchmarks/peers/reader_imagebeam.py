"""Reads with imagebeam."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import reader_measure
import tensorflow as tf

import imagebeam


def batches(args: argparse.Namespace) -> Iterator[tf.Tensor]:
    dataset = imagebeam.open_dataset(str(args.dataset)).as_tf(
        "train",
        reader_measure.BATCH_SIZE,
        image_size=reader_measure.SIDE,
        crop="random",
        flip=True,
        shuffle=args.shuffle,
        decoder=args.decoder,
    )
    for batch in dataset:
        yield batch["image"]


if __name__ == "__main__":
    parser = reader_measure.make_parser(__doc__)
    parser.add_argument("--shuffle", choices=("stream", "global"), default="stream")
    parser.add_argument("--decoder", choices=("native", "tensorflow"), default="native")
    args = parser.parse_args()
    reader_measure.run(batches(args), args.seconds, "tensorflow")
