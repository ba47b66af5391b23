"""Random changes of the colors of an image, and a random part that is erased: pure functions of its random numbers."""

from __future__ import annotations

import math

import numpy as np

from imagebeam.reader import options as options_lib

NUM_ORDERS = 24  # of the four changes of colors
SAME_COLORS = (1, 1, 1, 0, 0)  # as of `colors`, of an image whose colors do not change
_NUM_COLORS = 5  # random numbers: four changes and their order
_NUM_TRIALS = 10  # to find a part that fits, as torchvision's RandomErasing
_AREA, _RATIO = (0.02, 0.33), (0.3, 3.3)  # of the erased part, as torchvision's
NUM_UNIFORMS = _NUM_COLORS + 2 * _NUM_TRIALS + 3


def colors(uniforms: np.ndarray, options: options_lib.ReadOptions) -> np.ndarray | None:
    """Returns how the colors of each image change; None if they do not.

    Source: torchvision.transforms.ColorJitter.

    Args:
        uniforms: float32 [n, NUM_UNIFORMS] in [0, 1).
        options: options of the reader.

    Returns:
        float32 [n, 5]: factors of brightness, contrast and saturation, the turn of the hue as a part of the circle, and
        which of the 24 orders of these changes is taken.
    """
    if options.color_jitter is None:
        return None
    low, high = np.array([*options.color_jitter, (0, NUM_ORDERS)], np.float64).T
    drawn = low + (high - low) * uniforms[:, :_NUM_COLORS].astype(np.float64)
    drawn[:, 4] = np.floor(drawn[:, 4])
    return np.ascontiguousarray(drawn.astype(np.float32))


def erased(uniforms: np.ndarray, options: options_lib.ReadOptions) -> np.ndarray | None:
    """Returns the part of each image of a batch that is erased; None if none is.

    Source: Zhong et al., Random Erasing Data Augmentation, 2017; torchvision.transforms.RandomErasing.

    Args:
        uniforms: as of `colors`.
        options: options of the reader, with a crop.

    Returns:
        int32 [n, 4]: top, left, height, width; zeros of an image of which nothing is erased.
    """
    if not options.erasing:
        return None
    is_erased, areas, ratios, place = np.split(
        uniforms[:, _NUM_COLORS:].astype(np.float64), [1, 1 + _NUM_TRIALS, 1 + 2 * _NUM_TRIALS], axis=1
    )
    rows, columns = options.size
    areas = rows * columns * (_AREA[0] + (_AREA[1] - _AREA[0]) * areas)
    ratios = np.exp(math.log(_RATIO[0]) + (math.log(_RATIO[1]) - math.log(_RATIO[0])) * ratios)
    heights, widths = np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))
    fits = (heights < rows) & (widths < columns)
    each, first = np.arange(len(uniforms)), fits.argmax(axis=1)
    height, width = heights[each, first], widths[each, first]
    top, left = np.floor(place[:, 0] * (rows - height + 1)), np.floor(place[:, 1] * (columns - width + 1))
    found = np.stack([top, left, height, width], axis=1)
    found[~fits.any(axis=1) | (is_erased[:, 0] >= options.erasing)] = 0
    return np.ascontiguousarray(found.astype(np.int32))
