"""Reads with NVIDIA DALI on the CPU: its TFRecord reader over the same shards, with its own index format."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali.fn as fn
import nvidia.dali.tfrecord as tfrec
import nvidia.dali.types as types
import reader_measure
from nvidia.dali import pipeline_def

SHUFFLE_BUFFER = 1000


def write_indexes(dataset: Path, folder: Path) -> list[str]:
    """Writes DALI's index of each shard, a line "offset size" per record, from the offsets that imagebeam wrote."""
    folder.mkdir(exist_ok=True)
    paths = []
    for shard in reader_measure.shards(dataset):
        stem = Path(shard).stem
        offsets = np.fromfile(dataset / "index" / f"{stem}.index", "<u8").astype(np.int64)
        path = folder / f"{stem}.idx"
        path.write_text("".join(f"{offset} {size}\n" for offset, size in zip(offsets[:-1], np.diff(offsets))))
        paths.append(str(path))
    return paths


@pipeline_def(device_id=None)
def training_pipeline(shards: list[str], indexes: list[str]) -> tuple[Any, Any]:
    inputs = fn.readers.tfrecord(
        path=shards,
        index_path=indexes,
        features={
            "image/encoded": tfrec.FixedLenFeature((), tfrec.string, ""),
            "image/class/label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
        },
        random_shuffle=True,
        initial_fill=SHUFFLE_BUFFER,
        name="Reader",
    )
    images = fn.decoders.image_random_crop(
        inputs["image/encoded"],
        device="cpu",
        output_type=types.RGB,
        random_area=reader_measure.AREA,
        random_aspect_ratio=reader_measure.ASPECT_RATIO,
    )
    # Bilinear as the others' is: DALI's default would smooth before it shrinks, which takes longer.
    images = fn.resize(
        images, size=(reader_measure.SIDE, reader_measure.SIDE), interp_type=types.INTERP_LINEAR, antialias=False
    )
    return fn.flip(images, horizontal=fn.random.coin_flip()), inputs["image/class/label"]


def batches(args: argparse.Namespace) -> Iterator[np.ndarray]:
    pipeline = training_pipeline(
        reader_measure.shards(args.dataset),
        write_indexes(args.dataset, args.scratch / "dali"),
        batch_size=reader_measure.BATCH_SIZE,
        num_threads=args.threads,
        prefetch_queue_depth=2,
    )
    pipeline.build()
    while True:
        images, _ = pipeline.run()
        yield np.asarray(images.as_tensor())  # no copy: the next batch but one overwrites it


if __name__ == "__main__":
    reader_measure.run(reader_measure.make_parser(__doc__), batches, "nvidia-dali-cuda120")
