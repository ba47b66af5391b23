"""Reads with WebDataset from tar files, with Pillow, in one process."""

from __future__ import annotations

import argparse
import functools
import io
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import reader_measure
import webdataset as wds

SHUFFLE_BUFFER = 1000


def write_shards(images: Path, folder: Path) -> None:
    """Writes tar files of the images, two members each: NUMBER.jpg and NUMBER.cls."""
    for shard_index, examples in enumerate(reader_measure.share_out(images)):
        with tarfile.open(folder / f"train-{shard_index:06d}.tar", "w") as tar:
            for number, (encoded, label) in enumerate(examples):
                for suffix, content in (("jpg", encoded), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{shard_index:06d}-{number:06d}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def batches(args: argparse.Namespace) -> Iterator[np.ndarray]:
    write = functools.partial(write_shards, args.images)
    shards = reader_measure.written_once(args.scratch / "webdataset", write)
    dataset = (
        wds.WebDataset(shards, shardshuffle=len(shards))
        .shuffle(SHUFFLE_BUFFER)
        .decode("pilrgb")
        .to_tuple("jpg", "cls")
        .map_tuple(lambda image: reader_measure.random_crop(image, random.uniform), None)
        .repeat()
        .batched(reader_measure.BATCH_SIZE, partial=False)
    )
    return (images for images, _ in dataset)


if __name__ == "__main__":
    reader_measure.run(reader_measure.make_parser(__doc__), batches, "webdataset", "pillow")
