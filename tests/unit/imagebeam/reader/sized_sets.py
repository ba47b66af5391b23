"""Datasets of images of many sizes, with labels, boxes and masks of classes, and the batches of each feed."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

import imagebeam
from imagebeam import features
from tests import case_tables, image_sets, pictures
from tests.unit.imagebeam.reader import written
from tests.unit.imagebeam.reader.feeding import one_device

Batch = Mapping[str, Any]
SIDES = [(40, 30), (30, 40), (64, 64), (20, 61), (33, 47), (90, 25), (50, 50), (48, 32), (14, 13), (31, 70), (64, 20)]
COUNT = 22
MASK = features.Feature("image/segmentation/class/encoded", "image/segmentation/class/encoded", features.BYTES)
FORMATS = ("jpeg", "png", "raw")
LABELS = ("cat", "dog", "cow")


def sides_of(index: int) -> tuple[int, int]:
    """Returns height and width of an image."""
    return SIDES[index % len(SIDES)]


def example_of(index: int, image_format: str) -> dict[str, Any]:
    height, width = sides_of(index)
    pixels = np.roll(np.asarray(pictures.photo(width, height)), index, axis=1)
    if image_format == "raw":
        values = written.raw_values(pixels, index)
    else:
        picture = Image.fromarray(pixels)
        encoded = pictures.encode(picture) if image_format == "jpeg" else image_sets.save(picture)
        shape = {"image/height": height, "image/width": width, "image/channels": 3}
        values = {features.ENCODED: encoded, "image/format": image_format.encode(), "image/key": f"{index}".encode()}
        values |= shape
    classes = (np.indices((height, width)).sum(axis=0) // 4 % 5).astype(np.uint8)
    objects = written.object_values(1 + index % 3, index)
    objects["image/object/class/label"] = tuple(each % 3 for each in objects["image/object/class/label"])
    mask = image_sets.save(Image.fromarray(classes))
    return {**values, features.LABEL: index % 3, MASK.source: mask, **objects}


def write(
    folder: pathlib.Path,
    image_format: str = "jpeg",
    count: int = COUNT,
    broken: Sequence[int] = (),
    first: int = 0,
    **options: Any,
) -> imagebeam.ImageDataset:
    """Writes `count` images from number `first` on, of which those in `broken` cannot be decoded."""
    examples = [example_of(index, image_format) for index in range(first, first + count)]
    for index in broken:
        examples[index][features.ENCODED] = examples[index][features.ENCODED][:-150]
    wanted = (*written.IMAGE, written.LABEL, MASK, *written.OBJECTS)
    return written.write(folder, wanted, examples, labels=LABELS, **options)


def of_jax(read: Any, size: int | None, **options: Any) -> Iterator[Batch]:
    import jax

    for batch in read.as_jax(one_device(), size, **options):
        assert all(isinstance(each, jax.Array) or each.dtype == object for each in batch.values())
        yield batch


FEEDS: dict[str, Callable[..., Iterator[Batch]]] = {
    "as_tf": lambda read, size, **options: read.as_tf(size, **options).as_numpy_iterator(),
    "as_grain_batches": lambda read, size, **options: iter(read.as_grain_batches(size, **options)),
    "as_jax": of_jax,
}


class OfSplit:
    """Feeds of a split, with the arguments of those of a mixture."""

    def __init__(self, dataset: imagebeam.ImageDataset, split: str = "train"):
        self._dataset, self._split = dataset, split

    def __getattr__(self, name: str) -> Any:
        return functools.partial(getattr(self._dataset, name), self._split)

    def as_distributed(self, strategy: Any, size: int, **options: Any) -> Any:
        return self._dataset.as_distributed(strategy, self._split, size, **options)


def check_feeds(read: Any, size: int, has_singles: bool = True, **options: Any) -> None:
    """Checks that every feed of a split or mixture, and its single examples, have what `as_numpy` has."""
    tf = pytest.importorskip("tensorflow")
    expected = list(read.as_numpy(size, **options))
    assert expected
    feeds = {name: feed(read, size, **options) for name, feed in FEEDS.items()}
    feeds["as_distributed"] = iter(read.as_distributed(tf.distribute.OneDeviceStrategy("cpu:0"), size, **options))
    if has_singles:
        singles = read.as_tf(**options).batch(size, drop_remainder=options.get("shuffle", "") is not None)
        feeds["single examples"] = singles.as_numpy_iterator()
    for name, batches in feeds.items():
        for found, batch in zip(batches, expected, strict=True):
            with case_tables.named(name):
                check_equal(found, batch)


def check_equal(found: Batch, expected: Batch) -> None:
    """Checks that two batches have the same names and values."""
    assert sorted(found) == sorted(expected)
    for name, values in expected.items():
        other = found[name]
        if values.dtype == object:
            assert list(map(np.ndarray.tolist, map(np.asarray, other))) == list(
                map(np.ndarray.tolist, map(np.asarray, values))
            ), name
        else:
            np.testing.assert_array_equal(np.asarray(other), values, err_msg=name)


def by_record(batches: Iterator[Batch] | Sequence[Batch], drop: Sequence[str] = ()) -> dict[tuple[int, int], Any]:
    """Returns the values of each example that is no padding by its record and epoch, each of which comes once."""
    found: dict[tuple[int, int], Any] = {}
    for batch in batches:
        real = np.asarray(batch.get("mask", np.ones(len(batch["record"]), bool)))
        for row in np.flatnonzero(real).tolist():
            place = int(batch["record"][row]), int(batch["epoch"][row])
            assert place not in found
            found[place] = {name: np.asarray(each[row]) for name, each in batch.items() if name not in ("mask", *drop)}
    return found
