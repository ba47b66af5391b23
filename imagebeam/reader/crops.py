"""The part of each image that a batch takes: the window of its crop."""

from __future__ import annotations

import math

import numpy as np

from imagebeam.reader import options as options_lib

NUM_TRIALS = 10  # to find a random part inside the image, as torchvision's RandomResizedCrop
NUM_UNIFORMS = 2 * NUM_TRIALS + 3  # random numbers for one example


def windows(
    height: np.ndarray, width: np.ndarray, uniforms: np.ndarray, options: options_lib.ReadOptions
) -> np.ndarray:
    """Returns the part of each image that `options` ask for.

    Args:
        height: int [n], pixels.
        width: int [n], pixels.
        uniforms: float32 [n, NUM_UNIFORMS] in [0, 1).
        options: options of the reader, with a crop.

    Returns:
        int32 [n, 4]: top, left, height, width.
    """
    if options.crop == "random":
        return random_windows(height, width, uniforms, options.area, options.aspect_ratio)
    if options.crop == "center":
        return center_windows(height, width, options.size, options.center_fraction)
    zeros = np.zeros(len(height), np.int32)
    return np.stack([zeros, zeros, height, width], axis=1).astype(np.int32)


def random_windows(
    height: np.ndarray, width: np.ndarray, uniforms: np.ndarray, area: tuple[float, float], ratio: tuple[float, float]
) -> np.ndarray:
    """Returns a part of each image with random area, aspect ratio and place.

    Tries ten times; if no try fits into the image, takes the largest part in the middle with an allowed ratio.
    Source: Szegedy et al., Going Deeper with Convolutions, 2014; torchvision.transforms.RandomResizedCrop.

    Args:
        height: int [n], pixels.
        width: int [n], pixels.
        uniforms: float32 [n, NUM_UNIFORMS] in [0, 1).
        area: least and greatest, as a fraction of the image's area.
        ratio: least and greatest, width over height.

    Returns:
        int32 [n, 4]: top, left, height, width.
    """
    rows, columns = height.astype(np.float64), width.astype(np.float64)
    drawn = uniforms.astype(np.float64)  # float64, whose functions round alike on every processor
    areas = (rows * columns)[:, None] * (area[0] + (area[1] - area[0]) * drawn[:, :NUM_TRIALS])
    log_low, log_high = math.log(ratio[0]), math.log(ratio[1])
    ratios = np.exp(log_low + (log_high - log_low) * drawn[:, NUM_TRIALS : 2 * NUM_TRIALS])
    heights, widths = np.rint(np.sqrt(areas / ratios)), np.rint(np.sqrt(areas * ratios))
    fits = (heights >= 1) & (widths >= 1) & (heights <= rows[:, None]) & (widths <= columns[:, None])
    each, first, inside = np.arange(len(rows)), fits.argmax(axis=1), fits.any(axis=1)
    part_height = np.where(inside, heights[each, first], np.rint(np.minimum(rows, columns / ratio[0])))
    part_width = np.where(inside, widths[each, first], np.rint(np.minimum(columns, rows * ratio[1])))
    part_height, part_width = np.maximum(part_height, 1), np.maximum(part_width, 1)
    down = np.where(inside, drawn[:, 2 * NUM_TRIALS] * (rows - part_height + 1), (rows - part_height) / 2)
    right = np.where(inside, drawn[:, 2 * NUM_TRIALS + 1] * (columns - part_width + 1), (columns - part_width) / 2)
    return np.stack([np.floor(down), np.floor(right), part_height, part_width], axis=1).astype(np.int32)


def center_windows(height: np.ndarray, width: np.ndarray, size: tuple[int, int], fraction: float) -> np.ndarray:
    """Returns the largest part in the middle with the aspect ratio of `size`, less the border that `fraction` drops."""
    scale = fraction * np.minimum(height / size[0], width / size[1])
    part_height = np.clip(np.rint(scale * size[0]), 1, np.maximum(height, 1))
    part_width = np.clip(np.rint(scale * size[1]), 1, np.maximum(width, 1))
    top, left = (height - part_height) // 2, (width - part_width) // 2
    return np.stack([top, left, part_height, part_width], axis=1).astype(np.int32)
