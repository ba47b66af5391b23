"""How the images of a dataset would fall into aspect-ratio buckets: the figures and the bars that the page shows.

They come from the sizes beside the shards, of at most `_MAX_SHARDS` shards that are spread evenly over a split.
"""

from __future__ import annotations

import array
import functools
import itertools
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import concurrency
from imagebeam.reader import aspect_buckets, bucket_counts, image_sizes
from imagebeam.transforms.html_report import sample_records

_MAX_SHARDS = 32
_SIDES = (1024, 512, 256, 128, 64)  # pixels; the area of a bucket is the square of one of them
_STEPS = 16  # a side of a square bucket is so many steps
_LARGE_ENOUGH = 0.9  # part of the images that have at least the area of a bucket
_BATCH_SIZE, _LEAST_PART = 256, 0.02  # a bucket needs so many images, or this part of all if that is less

OCTAVES = (-2, -1, 0, 1, 2)  # binary logarithms of the ratios below the bars, each in the middle of its bars
_BARS = 11  # for each of them
HEIGHT, MARKS = 100, 8  # of the bars and of the marks below them, in units of the drawing
WIDTH = 2 * _BARS * len(OCTAVES)


class Bar(NamedTuple):
    """Images whose width / height is from one ratio to the next."""

    left: int
    height: float
    title: str


class BucketChart(NamedTuple):
    """What buckets make of the images of one split."""

    split: str
    num_images: int  # of the split
    num_counted: int  # of them in the shards whose sizes were read, with a known size
    side: int  # the area of the buckets is the square of it
    batch_size: int  # images that each bucket has at least
    counts: bucket_counts.BucketCounts
    cropped_in_square: float  # part of the pixels that is cropped away if all images are squares of `side`
    bars: list[Bar]
    marks: list[float]  # where the buckets are below the bars

    @property
    def step(self) -> int:
        return self.side // _STEPS

    @property
    def rows(self) -> list[tuple[str, int, float, int]]:
        """Size, number of images, part of their pixels that is cropped away, and enlarged images of each bucket."""
        counts = self.counts
        names = [f"{height} x {width}" for height, width in counts.sizes]
        columns = (counts.images.tolist(), counts.cropped_part().tolist(), counts.enlarged.tolist())
        return list(zip(names, *columns, strict=True))


def read_chart(
    catalog: catalog_lib.Catalog, files: sample_records.ShardFiles, removed: Mapping[str, array.array[int]] | None
) -> BucketChart | None:
    """Returns the chart of the train split, or of the first one; None if it would say nothing.

    That is so if no file has the sizes of its images, if all are equal, or if they are smaller than any bucket.

    Args:
        catalog: of the dataset.
        files: where its files are.
        removed: indexes of removed records by the name of their shard.

    Raises:
        OSError: if a file of sizes cannot be read.
        ValueError: if one is not the file that the catalog names.
    """
    names = [name for name, split in catalog.splits.items() if split.num_examples]
    if not names:
        return None
    name = "train" if "train" in names else names[0]
    shards = [shard for shard in catalog.splits[name].shards if shard.num_examples and shard.sizes_file is not None]
    count = min(len(shards), _MAX_SHARDS)
    picked = [shards[index * len(shards) // count] for index in range(count)]
    read = functools.partial(_read_sizes, files, removed or {})
    parts = [np.zeros((0, 2), np.uint16), *concurrency.map_ahead(read, picked, files.num_at_once)]
    return make_chart(name, catalog.splits[name].num_examples, bucket_counts.image_sizes(np.concatenate(parts)))


def _read_sizes(
    files: sample_records.ShardFiles, removed: Mapping[str, array.array[int]], shard: catalog_lib.Shard
) -> np.ndarray:
    """Returns height and width of the images of a shard that are not removed: uint16 [n, 2]."""
    assert shard.sizes_file is not None
    data = files.read(shard.sizes_name, 0, shard.sizes_file.bytes)
    if catalog_lib.entry_of(data) != shard.sizes_file:
        raise ValueError(f"{shard.sizes_name} is not the file that the catalog names")
    return np.delete(image_sizes.decode(data), np.array(removed.get(shard.name, ()), np.int64), axis=0)


def make_chart(split: str, num_images: int, given: bucket_counts.ImageSizes) -> BucketChart | None:
    """Returns the chart of images of these sizes, as `read_chart`."""
    num_counted, areas = int(given.counts.sum()), given.sides.prod(axis=1)
    large = (side for side in _SIDES if given.counts[areas >= side * side].sum() >= _LARGE_ENOUGH * num_counted)
    side = next(large, None)
    if len(given.sides) < 2 or side is None:
        return None
    batch_size = min(_BATCH_SIZE, math.ceil(_LEAST_PART * num_counted))
    sizes = aspect_buckets.aspect_buckets(side * side, side // _STEPS)
    counts = bucket_counts.propose(given, sizes, None, batch_size)
    in_square = bucket_counts.count(given, [(side, side)], None).cropped_part_of_all()
    marks = [_place(np.log2(width / height)) for height, width in counts.sizes]
    return BucketChart(split, num_images, num_counted, side, batch_size, counts, in_square, _bars(given), marks)


def _bars(given: bucket_counts.ImageSizes) -> list[Bar]:
    """Returns a bar for each step of the ratio; the first and the last one have also what is beyond."""
    places = np.array([_place(each) for each in np.log2(given.sides[:, 1] / given.sides[:, 0])])
    total = _BARS * len(OCTAVES)
    counts = np.bincount(np.floor(places / 2).astype(int).clip(0, total - 1), given.counts, total)
    edges = [f"{2 ** (number / _BARS + OCTAVES[0] - 0.5):.2f}" for number in range(total + 1)]
    edges[0], edges[-1] = "0", "more"
    scale = HEIGHT / float(counts.max())
    return [
        Bar(2 * number, max(count * scale, 1), f"{low} to {high}: {int(count):,}")
        for number, (count, (low, high)) in enumerate(zip(counts.tolist(), itertools.pairwise(edges), strict=True))
        if count
    ]


def _place(octave: float) -> float:
    """Returns where a binary logarithm of width / height is, from left to right."""
    return float(round((octave - OCTAVES[0] + 0.5) * 2 * _BARS, 2))
