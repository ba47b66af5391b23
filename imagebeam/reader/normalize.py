"""Mean and standard deviation of the pixels: as the options give them, counted by the writer, or measured."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from imagebeam import errors

_LOGGER = logging.getLogger("imagebeam.dataset")
TRAIN = "train"  # training and evaluation must use the same numbers, so those of this split hold for all splits
MAX_EXAMPLES = 1000  # that are measured
_MIN_STD = 1e-3  # for pixels that are all equal

ChannelStatistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of each channel, 0 to 255


def counted_by_writer(statistics: Mapping[str, Any]) -> ChannelStatistics | None:
    """Returns mean and standard deviation over all pixels of the train split; None if the writer did not count them."""
    counted = statistics.get(TRAIN, {}).get("pixels")
    if not counted:
        return None
    mean, std = (tuple(map(float, counted[name])) for name in ("mean", "std"))
    text = _describe(mean, std)
    _LOGGER.info("normalize='dataset': %s, of all %s images of train, by statistics.json", text, counted["images"])
    return mean, tuple(max(each, _MIN_STD) for each in std)


def measure(images: Iterable[np.ndarray], name: str) -> ChannelStatistics:
    """Returns mean and standard deviation of each channel over images.

    Args:
        images: uint8 [n, height, width, 3] each.
        name: what the images are, for the error.

    Raises:
        ExampleError: if there are none.
    """
    total, squares, pixels = np.zeros(3), np.zeros(3), 0
    for image in images:
        values = image.astype(np.float64)
        total += values.sum((0, 1, 2))
        squares += (values**2).sum((0, 1, 2))
        pixels += values.shape[0] * values.shape[1] * values.shape[2]
    if pixels == 0:
        raise errors.ExampleError(
            f"none of {name} could be read or decoded, so their mean is not known: "
            "run imagebeam verify --decode, or give normalize=(mean, std)"
        )
    mean = total / pixels
    std = np.sqrt(np.maximum(squares / pixels - mean**2, _MIN_STD**2))
    return tuple(mean.tolist()), tuple(std.tolist())


def log_measured(measured: ChannelStatistics, num_examples: int) -> None:
    """Logs what was measured, and how to have all images counted instead."""
    _LOGGER.info(
        "normalize='dataset': %s, measured on %s examples of %s; convert with statistics.pixels=true for those of all",
        _describe(*measured),
        f"{min(MAX_EXAMPLES, num_examples):,}",
        TRAIN,
    )


def _describe(mean: Sequence[float], std: Sequence[float]) -> str:
    return " and ".join(
        f"{name} {', '.join(f'{each:.2f}' for each in values)}" for name, values in (("mean", mean), ("std", std))
    )
