"""What batches in buckets and in patches cost beside batches of one size, and what it takes to plan them.

The second table is of a dataset; all feeds read the same records in turn, and its figures are processor time of this
process::

    .venv/bin/python -m benchmarks.buckets [--millions 1 3 10] [--batch 256] [DATASET] [--side 512]

The size of the others is the mean area of the batches in buckets.

The first table is of datasets that have a catalog, files of sizes like those of photographs, and no records: none is
read before the first batch. Each number of images has a process of its own. Its figures are seconds of its processor
and megabytes of its memory, from before the dataset is opened until the first step of a job is known: at the peak, and
held. Linux only.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import pathlib
import re
import statistics
import tempfile
import time
from typing import Any

import numpy as np

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import features, records
from imagebeam.reader import batch_schedule, bucket_order

_BATCH = 16
_PATCH = 16
_IN_SHARD = 10_000
_PHASES = ("open", "sizes", "plan", "first step")


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


def _compare_feeds(dataset: imagebeam.ImageDataset, side: int, batches: int, rounds: int) -> None:
    """Prints the processor time of each feed."""
    every = _feeds(side)
    found: dict[str, list[float]] = {name: [] for name in every}
    for _ in range(rounds):
        for name, options in every.items():
            found[name].append(_milliseconds_a_megapixel(dataset, batches, options))
    usual = statistics.median(found["one size"])
    for name, each in found.items():
        middle = statistics.median(each)
        print(f"{name:10} {middle:6.2f} ms of processor time a megapixel, {usual / middle:.2f} of the pixels a second")


# --- the plan ---------------------------------------------------------------------------------------------------------


def _draw_sides(num_images: int, side: int) -> np.ndarray:
    """Returns heights and widths like those of photographs: uint16 [num_images, 2]."""
    random, count = np.random.default_rng(0), 1 << 20
    aspects = random.choice([3 / 2, 4 / 3, 2 / 3, 3 / 4, 1, 16 / 9], count) * random.uniform(0.97, 1.03, count)
    height = random.integers(side, 3 * side, count)
    drawn = np.stack([height, np.minimum(height * aspects, 65535)], axis=1).astype("<u2")
    return np.resize(drawn, (num_images, 2))


def _write_dataset(folder: pathlib.Path, num_images: int, side: int) -> None:
    """Writes the catalog and the sizes of a dataset of so many images, without its shards."""
    sides, shards = _draw_sides(num_images, side), []
    (folder / "index").mkdir()
    for number in range(count := -(-num_images // _IN_SHARD)):
        data = sides[number * _IN_SHARD : (number + 1) * _IN_SHARD].tobytes()
        shard = catalog_lib.Shard(f"train-{number:05d}-of-{count:05d}.tfrecord", len(data) // 4, len(data), 0, 0)
        shard = dataclasses.replace(shard, sizes_crc32c=records.extend_crc(0, data))
        (folder / shard.sizes_name).write_bytes(data)
        with open(folder / shard.name, "wb") as file:
            file.truncate(shard.bytes)
        shards.append(shard)
    catalog = catalog_lib.Catalog(
        name="planned",
        fingerprint="0" * 32,
        compression="none",
        splits={"train": catalog_lib.Split(tuple(shards))},
        labels=(),
        label_kind=None,
        label_base=0,
        features=tuple(features.resolve_features({}, None, {})),
        config={},
        counts=catalog_lib.Counts(num_images, num_images, {}, {}),
        versions={},
        created="2026-01-01T00:00:00+00:00",
    )
    (folder / catalog_lib.CATALOG_FILE).write_text(catalog.to_json())
    (folder / catalog_lib.STATISTICS_FILE).write_text(json.dumps({"train": {"formats": {"jpeg": num_images}}}))


def _megabytes(name: str) -> float:
    """Returns VmRSS, the memory that this process has, or VmHWM, the most since `_forget_peak`."""
    [found] = re.findall(rf"{name}:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    return int(found) / 1000


def _forget_peak() -> None:
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def _measure(folder: str, side: int, batch_size: int) -> dict[str, Any]:
    """Returns the processor seconds of each phase, the megabytes at the peak and held, and the bytes of a state."""
    buckets = tuple(imagebeam.aspect_buckets(side * side, 64))
    asked = imagebeam.ReadOptions(batch_size=batch_size, buckets=buckets, shuffle="global", crop="cover")
    before = _megabytes("VmRSS")
    _forget_peak()
    times = [time.process_time()]
    dataset = imagebeam.open_dataset(folder)
    times.append(time.process_time())
    dataset.image_sizes("train[:1]")
    times.append(time.process_time())
    planned = batch_schedule.make_schedule(dataset.epochs("train", asked), asked)
    times.append(time.process_time())
    assert isinstance(planned.calendar, bucket_order.BucketOrder)
    first = planned.calendar.batch_at(0)
    planned.calendar.records[first.bucket].locate(np.arange(first.first, first.end))
    times.append(time.process_time())
    peak, held = (_megabytes(name) - before for name in ("VmHWM", "VmRSS"))
    state = len(json.dumps(planned.state_after(1000).to_dict()))
    return {**dict(zip(_PHASES, np.diff(times).tolist())), "peak": peak, "held": held, "state": state}


def _plan(millions: list[float], side: int, batch_size: int) -> None:
    """Prints what it takes to plan an epoch of so many million images."""
    columns = ("CPU s", *_PHASES, "peak MB", "held MB", "state B", "CPU s / M", "peak MB / M", "held MB / M")
    print(f"{'images':>12}", *(f"{each:>11}" for each in columns))
    context = multiprocessing.get_context("spawn")
    for number in millions:
        with tempfile.TemporaryDirectory() as folder:
            _write_dataset(pathlib.Path(folder), round(number * 1e6), side)
            with context.Pool(1) as pool:
                found = pool.apply(_measure, (folder, side, batch_size))
        seconds = sum(found[each] for each in _PHASES)
        shown = [f"{each:11.2f}" for each in (seconds, *(found[each] for each in _PHASES))]
        shown += [f"{found['peak']:11.1f}", f"{found['held']:11.1f}", f"{found['state']:11,}"]
        shown += [f"{each / number:11.3f}" for each in (seconds, found["peak"], found["held"])]
        print(f"{number * 1e6:12,.0f}", *shown, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", help="a dataset to read; without it nothing is read")
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 3, 10], help="images to plan")
    parser.add_argument("--batch", type=int, default=256, help="images in a batch of all processes of a plan")
    args = parser.parse_args()
    _plan(args.millions, args.side, args.batch)
    if args.dataset is not None:
        _compare_feeds(imagebeam.open_dataset(args.dataset), args.side, args.batches, args.rounds)


if __name__ == "__main__":
    main()
