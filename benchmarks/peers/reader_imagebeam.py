"""Reads with imagebeam."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import reader_measure

import imagebeam


def images_of(args: argparse.Namespace) -> Iterator[Any]:
    dataset = imagebeam.open_dataset(str(args.dataset))
    feed = dataset.as_numpy if args.feed == "numpy" else dataset.as_tf
    batches = feed(
        "train",
        reader_measure.BATCH_SIZE,
        image_size=reader_measure.SIDE,
        crop="random",
        flip=True,
        shuffle=args.shuffle,
        decoder=args.decoder,
    )
    return (batch["image"] for batch in batches)


if __name__ == "__main__":
    parser = reader_measure.make_parser(__doc__)
    parser.add_argument("--shuffle", choices=("stream", "global"), default="stream")
    parser.add_argument("--decoder", choices=("native", "pillow"), default="native")
    parser.add_argument("--feed", choices=("tf", "numpy"), default="tf")
    reader_measure.run(parser, images_of, "imagebeam", "numpy")
