"""Mean and standard deviation of the pixels: as they are given, counted by the writer, or measured."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from imagebeam import errors
from imagebeam.reader import options as options_lib

if TYPE_CHECKING:
    from imagebeam import dataset as dataset_lib

_LOGGER = logging.getLogger("imagebeam.dataset")
_TRAIN = "train"
_MAX_EXAMPLES = 1000
_MIN_STD = 1e-3  # of pixels that are all alike


def mean_and_std(dataset: dataset_lib.ImageDataset, asked: options_lib.ReadOptions) -> options_lib.MeanAndStd | None:
    """What pixels from 0 to 255 are normalised with.

    Raises:
        ConfigError: if it is not known what is asked for.
    """
    if asked.normalize == "imagenet":
        return options_lib.IMAGENET_MEAN, options_lib.IMAGENET_STD
    if asked.normalize == "dataset":
        return _counted(dataset) or _measured(dataset.unfiltered, asked)
    assert not isinstance(asked.normalize, str), "options refuse other names"
    return asked.normalize


def measure(
    dataset: dataset_lib.ImageDataset, split: str, asked: options_lib.ReadOptions | None = None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, of pixels from 0 to 255, over 1,000 examples of the split.

    Args:
        dataset: that is measured.
        split: "train", or a part of it.
        asked: say what becomes of examples that cannot be read; by default they are errors.

    Raises:
        ExampleError: if none can be read.
    """
    count = min(_MAX_EXAMPLES, dataset.num_examples(split))
    total, squares, pixels = np.zeros(3), np.zeros(3), 0
    shuffle = "global" if dataset.catalog.compression == "none" else "stream"
    errors_of = {name: getattr(asked, name) for name in ("on_error", "max_error_fraction") if asked is not None}
    options = {"crop": "squash", "image_size": 64, "shuffle": shuffle, "num_epochs": 1, "drop_remainder": False}
    examples = dataset.as_tf(split, 1, **options, **errors_of)
    for batch in examples.take(count).as_numpy_iterator():
        image = batch["image"].astype(np.float64)
        total += image.sum((0, 1, 2))
        squares += (image**2).sum((0, 1, 2))
        pixels += image.shape[1] * image.shape[2]
    if pixels == 0:
        raise errors.ExampleError(
            f"none of {count:,} examples of {split} could be read or decoded, so their mean is not known: "
            "run imagebeam verify --decode, or give normalize=(mean, std)"
        )
    mean = total / pixels
    std = np.sqrt(np.maximum(squares / pixels - mean**2, _MIN_STD**2))
    return tuple(mean.tolist()), tuple(std.tolist())


def _counted(dataset: dataset_lib.ImageDataset) -> options_lib.MeanAndStd | None:
    """Of every pixel in the train split, where the writer looked at them."""
    counted = dataset.statistics.get(_TRAIN, {}).get("pixels")
    if not counted:
        return None
    mean, std = (tuple(map(float, counted[name])) for name in ("mean", "std"))
    text = _text(mean, std)
    _LOGGER.info("normalize='dataset': %s, of all %s images of train, by statistics.json", text, counted["images"])
    return mean, tuple(max(each, _MIN_STD) for each in std)


def _measured(dataset: dataset_lib.ImageDataset, asked: options_lib.ReadOptions) -> options_lib.MeanAndStd:
    """Of the train split, whatever split is read: training and evaluation must see the same numbers.

    Raises:
        ConfigError: if there is no such split.
    """
    if asked.on_error not in dataset.measured:  # else from an earlier call: it takes seconds
        if _TRAIN not in dataset.splits:
            first = next(iter(dataset.splits))
            raise errors.ConfigError(
                f"normalize='dataset' takes mean and deviation of the split {_TRAIN!r}, and {dataset.directory} has "
                f"{', '.join(dataset.splits)}: give normalize=dataset.pixel_statistics({first!r})"
            )
        measured = dataset.measured[asked.on_error] = measure(dataset, _TRAIN, asked)
        _LOGGER.info(
            "normalize='dataset': %s, measured on %s examples of %s; convert with statistics.pixels=true for those of "
            "all",
            _text(*measured),
            f"{min(_MAX_EXAMPLES, dataset.num_examples(_TRAIN)):,}",
            _TRAIN,
        )
    return dataset.measured[asked.on_error]


def _text(mean: Sequence[float], std: Sequence[float]) -> str:
    return " and ".join(
        f"{name} {', '.join(f'{each:.2f}' for each in values)}" for name, values in (("mean", mean), ("std", std))
    )
