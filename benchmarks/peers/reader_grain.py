"""Reads with Grain from ArrayRecord files, with Pillow, in as many processes as the others have threads."""

from __future__ import annotations

import argparse
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


def write_shards(images: Path, folder: Path) -> list[str]:
    """Writes ArrayRecord files of the images once, with one record per group, as Grain's manual requires."""
    if not folder.exists():
        unfinished = folder.with_suffix(".unfinished")
        unfinished.mkdir(exist_ok=True)
        shards = reader_measure.share_out(images)
        for shard_index, examples in enumerate(shards):
            path = unfinished / f"train-{shard_index:05d}-of-{len(shards):05d}.array_record"
            writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
            for encoded, label in examples:
                writer.write(label.to_bytes(LABEL_BYTES, "little") + encoded)
            writer.close()
        unfinished.rename(folder)
    return sorted(map(str, folder.iterdir()))


class CropAndResize(grain.transforms.RandomMap):
    def random_map(self, record: bytes, rng: np.random.Generator) -> dict[str, np.ndarray]:
        image = Image.open(io.BytesIO(memoryview(record)[LABEL_BYTES:])).convert("RGB")
        window = reader_measure.random_window(*image.size, rng.uniform)
        image = image.resize((reader_measure.SIDE, reader_measure.SIDE), Image.Resampling.BILINEAR, window)
        if rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return {"image": np.asarray(image), "label": np.int32(int.from_bytes(record[:LABEL_BYTES], "little"))}


def batches(args: argparse.Namespace) -> Iterator[np.ndarray]:
    source = grain.sources.ArrayRecordDataSource(write_shards(args.images, args.scratch / "array_record"))
    dataset = (
        grain.MapDataset.source(source)
        .seed(0)
        .shuffle()
        .repeat()
        .random_map(CropAndResize())
        # Pillow keeps each process busy: of the 16 threads that are the default, most would wait for Python's lock.
        .to_iter_dataset(grain.ReadOptions(num_threads=2))
        .batch(reader_measure.BATCH_SIZE, drop_remainder=True)
        .mp_prefetch(grain.MultiprocessingOptions(num_workers=args.threads))
    )
    for batch in dataset:
        yield batch["image"]


if __name__ == "__main__":
    flags.FLAGS(["reader_grain"])  # Grain reads flags of absl, which must be parsed
    args = reader_measure.make_parser(__doc__).parse_args()
    reader_measure.run(batches(args), args.seconds, "grain", "array_record", "pillow")
