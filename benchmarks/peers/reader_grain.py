"""Reads with Grain from ArrayRecord files, with Pillow, in as many processes as the others have threads."""

from __future__ import annotations

import argparse
import functools
import io
from collections.abc import Iterator
from pathlib import Path

import grain
import numpy as np
import reader_measure
from absl import flags
from array_record.python import array_record_module
from PIL import Image

LABEL_BYTES = 4  # before the JPEG in a record


def write_shards(images: Path, folder: Path) -> None:
    """Writes ArrayRecord files of the images, with one record per group, as Grain's manual requires."""
    shards = reader_measure.share_out(images)
    for shard_index, examples in enumerate(shards):
        path = folder / f"train-{shard_index:05d}-of-{len(shards):05d}.array_record"
        writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
        for encoded, label in examples:
            writer.write(label.to_bytes(LABEL_BYTES, "little") + encoded)
        writer.close()


class CropAndResize(grain.transforms.RandomMap):
    def random_map(self, record: bytes, rng: np.random.Generator) -> dict[str, np.ndarray]:
        image = Image.open(io.BytesIO(memoryview(record)[LABEL_BYTES:])).convert("RGB")
        label = np.int32(int.from_bytes(record[:LABEL_BYTES], "little"))
        return {"image": reader_measure.random_crop(image, rng.uniform), "label": label}


def batches(args: argparse.Namespace) -> Iterator[np.ndarray]:
    write = functools.partial(write_shards, args.images)
    files = reader_measure.written_once(args.scratch / "array_record", write)
    dataset = (
        grain.MapDataset.source(grain.sources.ArrayRecordDataSource(files))
        .seed(0)
        .shuffle()
        .repeat()
        .random_map(CropAndResize())
        # Pillow keeps each process busy: of the 16 threads that are the default, most would wait for Python's lock.
        .to_iter_dataset(grain.ReadOptions(num_threads=2))
        .batch(reader_measure.BATCH_SIZE, drop_remainder=True)
        .mp_prefetch(grain.MultiprocessingOptions(num_workers=args.threads))
    )
    return (batch["image"] for batch in dataset)


if __name__ == "__main__":
    flags.FLAGS(["reader_grain"])  # Grain reads flags of absl, which must be parsed
    reader_measure.run(reader_measure.make_parser(__doc__), batches, "grain", "array_record", "pillow")
