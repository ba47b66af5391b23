"""Reads with WebDataset from tar files, with Pillow, in one process."""

from __future__ import annotations

import argparse
import io
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import reader_measure
import webdataset as wds
from PIL import Image

SHUFFLE_BUFFER = 1000


def write_shards(images: Path, folder: Path) -> list[str]:
    """Writes tar files of the images once, two members each: NUMBER.jpg and NUMBER.cls."""
    if not folder.exists():
        unfinished = folder.with_suffix(".unfinished")
        unfinished.mkdir(exist_ok=True)
        for shard_index, examples in enumerate(reader_measure.share_out(images)):
            with tarfile.open(unfinished / f"train-{shard_index:06d}.tar", "w") as tar:
                for number, (encoded, label) in enumerate(examples):
                    for suffix, content in (("jpg", encoded), ("cls", str(label).encode())):
                        member = tarfile.TarInfo(f"{shard_index:06d}-{number:06d}.{suffix}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))
        unfinished.rename(folder)
    return sorted(map(str, folder.iterdir()))


def crop_and_resize(image: Image.Image) -> np.ndarray:
    window = reader_measure.random_window(*image.size, random.uniform)
    image = image.resize((reader_measure.SIDE, reader_measure.SIDE), Image.Resampling.BILINEAR, window)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image)


def batches(args: argparse.Namespace) -> Iterator[np.ndarray]:
    shards = write_shards(args.images, args.scratch / "webdataset")
    dataset = (
        wds.WebDataset(shards, shardshuffle=len(shards))
        .shuffle(SHUFFLE_BUFFER)
        .decode("pilrgb")
        .to_tuple("jpg", "cls")
        .map_tuple(crop_and_resize, None)
        .repeat()
        .batched(reader_measure.BATCH_SIZE, partial=False)
    )
    for images, _ in dataset:
        yield images


if __name__ == "__main__":
    args = reader_measure.make_parser(__doc__).parse_args()
    reader_measure.run(batches(args), args.seconds, "webdataset", "pillow")
