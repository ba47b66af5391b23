"""How many images each bucket gets and what is cropped of them, and which buckets fill a batch."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from imagebeam.reader import aspect_buckets


@dataclasses.dataclass(frozen=True, eq=False)
class BucketCounts:
    """What becomes of images in buckets.

    Attributes:
        sizes: of the buckets.
        images: number of images of each bucket: int64 [buckets].
        enlarged: number of those that are enlarged to cover it: int64 [buckets].
        pixels: of the images of each bucket, before they are resized: float64 [buckets].
        cropped: how many of these are cropped away: float64 [buckets].
        num_small: number of images that no bucket takes, because each would enlarge them too much.
        num_unknown: number of images whose size is not known.
    """

    sizes: aspect_buckets.Sizes
    images: np.ndarray
    enlarged: np.ndarray
    pixels: np.ndarray
    cropped: np.ndarray
    num_small: int
    num_unknown: int

    def cropped_part(self) -> np.ndarray:
        """Returns the part of the pixels of each bucket that is cropped away, 0 without images: float64 [buckets]."""
        return self.cropped / np.maximum(self.pixels, 1)

    def cropped_part_of_all(self) -> float:
        """Returns the part of the pixels of all buckets together that is cropped away."""
        return float(self.cropped.sum() / max(self.pixels.sum(), 1))


class ImageSizes(NamedTuple):
    """The sizes of images, each once."""

    sides: np.ndarray  # int64 [sizes, 2], height and width
    counts: np.ndarray  # int64 [sizes]
    num_unknown: int  # images whose size is not known


def image_sizes(sides: np.ndarray) -> ImageSizes:
    """Returns the sizes of images for `count`.

    Args:
        sides: uint16 [n, 2], height and width of each image; 0 where they are not known.
    """
    packed = sides[:, 0].astype(np.uint32) << 16 | sides[:, 1]
    sizes, counts = np.unique(packed[sides.all(1)], return_counts=True)
    found = np.stack([sizes >> 16, sizes & 0xFFFF], 1).astype(np.int64)
    return ImageSizes(found, counts, len(sides) - int(counts.sum()))


def count(given: ImageSizes, sizes: aspect_buckets.Sizes, max_enlarge: float | None) -> BucketCounts:
    """Counts the images of each bucket.

    Args:
        given: sizes of the images.
        sizes: of the buckets.
        max_enlarge: as of `aspect_buckets.choose`.
    """
    chosen = aspect_buckets.choose(given.sides, sizes, max_enlarge)
    fits = chosen >= 0
    buckets, counts, (height, width) = chosen[fits], given.counts[fits], given.sides[fits].astype(np.float64).T
    covered = np.array(sizes, np.float64)[buckets].T
    is_enlarged = aspect_buckets.enlargement(height, width, (covered[0], covered[1])) > 1
    lost = 1 - aspect_buckets.kept_part(height, width, (covered[0], covered[1]))

    def total(numbers: np.ndarray) -> np.ndarray:
        return np.bincount(buckets, counts * numbers, len(sizes))

    images = total(np.ones(len(counts))).astype(np.int64)
    return BucketCounts(
        sizes=sizes,
        images=images,
        enlarged=total(is_enlarged).astype(np.int64),
        pixels=total(height * width),
        cropped=total(height * width * lost),
        num_small=int(given.counts.sum() - images.sum()),
        num_unknown=given.num_unknown,
    )


def propose(given: ImageSizes, sizes: aspect_buckets.Sizes, max_enlarge: float | None, batch_size: int) -> BucketCounts:
    """Returns the counts of those buckets that have a batch of images; of one, if none has.

    The bucket with the fewest images is left out first, and its images go to others.

    Args:
        given: as of `count`.
        sizes: of all buckets.
        max_enlarge: as of `count`.
        batch_size: images in a batch of all processes together.
    """
    found = count(given, sizes, max_enlarge)
    while len(found.sizes) > 1 and found.images.min() < batch_size:
        fewest = int(found.images.argmin())
        found = count(given, [*found.sizes[:fewest], *found.sizes[fewest + 1 :]], max_enlarge)
    return found
