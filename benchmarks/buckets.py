"""What batches in buckets and in patches cost beside batches of one size, and what it takes to plan them.

All feeds read the same records in turn; the figures are processor time of this process::

    .venv/bin/python -m benchmarks.buckets DATASET [--side 512] [--planned 10000000]

The size of the others is the mean area of the batches in buckets. The plan is made of sides drawn like those of
photographs, without a dataset: the bucket of each image, and the records of each bucket.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from typing import Any

import numpy as np

import imagebeam
from imagebeam.reader import aspect_buckets, bucket_order

_BATCH = 16
_PATCH = 16


def _milliseconds_a_megapixel(dataset: imagebeam.ImageDataset, batches: int, options: dict[str, Any]) -> float:
    """Returns the processor time of a feed for a million pixels in its batches, from its second batch on."""
    feed = dataset.as_numpy("train", _BATCH, shuffle="global", seed=1, prefetch=1, **options)
    next(feed)
    start, pixels = time.process_time(), 0
    for _ in range(batches):
        batch = next(feed)
        is_whole = "image" in batch
        pixels += batch["image"][..., 0].size if is_whole else int(batch["patch_valid"].sum()) * _PATCH**2
    return (time.process_time() - start) * 1e9 / pixels


def _feeds(side: int) -> dict[str, dict[str, Any]]:
    sizes = imagebeam.aspect_buckets(side * side, 64)
    return {
        "one size": {"image_size": side, "crop": "cover"},
        "buckets": {"buckets": sizes},
        "patches": {"patches": _PATCH, "max_patches": (side // _PATCH) ** 2},
    }


def _plan(num_images: int, side: int) -> None:
    """Prints what it takes to plan an epoch of so many images."""
    random = np.random.default_rng(0)
    aspects = random.choice([3 / 2, 4 / 3, 2 / 3, 3 / 4, 1, 16 / 9], 1 << 20) * random.uniform(0.97, 1.03, 1 << 20)
    height = random.integers(side, 3 * side, 1 << 20)
    drawn = np.stack([height, np.minimum(height * aspects, 65535)], axis=1).astype(np.uint16)
    sides = np.resize(drawn, (num_images, 2))
    sizes = imagebeam.aspect_buckets(side * side, 64)
    everything = bucket_order.BucketRecords(np.arange(num_images, dtype=np.int32))
    found: list[np.ndarray] = []
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    for limit in (None, 1.0):
        found.clear()
        found = aspect_buckets.members(sides, everything, sizes, limit, False)
        seconds, start = time.process_time() - start, time.process_time()
        kept = sum(map(len, found))
        print(f"{num_images:,} images in {len(sizes)} buckets, max_enlarge {limit}: {seconds:.2f} s, {kept:,} kept")
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    held = sum(each.nbytes for each in found) / 1e6
    own = sides.nbytes / 1e6
    print(f"{megabytes:.0f} MB more at the peak, {held:.0f} MB of them held, besides {own:.0f} MB of sides")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--planned", type=int, default=10_000_000)
    args = parser.parse_args()
    _plan(args.planned, args.side)
    dataset = imagebeam.open_dataset(args.dataset)
    every = _feeds(args.side)
    found: dict[str, list[float]] = {name: [] for name in every}
    for _ in range(args.rounds):
        for name, options in every.items():
            found[name].append(_milliseconds_a_megapixel(dataset, args.batches, options))
    usual = statistics.median(found["one size"])
    for name, each in found.items():
        middle = statistics.median(each)
        print(f"{name:10} {middle:6.2f} ms of processor time a megapixel, {usual / middle:.2f} of the pixels a second")


if __name__ == "__main__":
    main()
