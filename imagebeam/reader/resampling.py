"""Resizes a part of an image of any type and number of channels with NumPy, as the code in C does for RGB of 8 bits."""

from __future__ import annotations

import numpy as np

from imagebeam.reader import options as options_lib

_SUPPORT = {"bilinear": 1.0, "bicubic": 2.0}  # pixels on each side of the middle that a filter takes


def resize(image: np.ndarray, frame: np.ndarray, options: options_lib.ReadOptions) -> np.ndarray:
    """Returns an image resized with the filter of the options; whole numbers are rounded to the nearest.

    Args:
        image: [height, width, channels], the part of an image that is resized.
        frame: float64 [4]: top, row step, left, column step, as of `crops.frames`, in pixels of `image`.
        options: options of the reader, with a crop.

    Returns:
        [size of the options, channels], of the type of `image`.
    """
    down = _weights(frame[0], frame[1], options.size[0], image.shape[0], options)
    across = _weights(frame[2], frame[3], options.size[1], image.shape[1], options)
    rows = np.tensordot(down, image.astype(np.float32), axes=(1, 0))
    resized = np.tensordot(across, rows, axes=(1, 1)).transpose(1, 0, 2)
    if image.dtype.kind == "f":
        return resized.astype(image.dtype)
    return np.rint(resized).clip(0, np.iinfo(image.dtype).max).astype(image.dtype)


def _weights(start: float, step: float, size: int, side: int, options: options_lib.ReadOptions) -> np.ndarray:
    """Returns the weight of each pixel of a side for each pixel of the resized side: float32 [size, side]."""
    middles = start + (np.arange(size) + 0.5) * step
    scale = max(step, 1.0) if options.antialias else 1.0
    distances = np.abs(np.arange(side) + 0.5 - np.clip(middles, 0.5, side - 0.5)[:, None]) / scale
    weights = _FILTERS[options.interpolation](distances) * (distances < _SUPPORT[options.interpolation])
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def _triangle(x: np.ndarray) -> np.ndarray:
    return 1 - x


def _cubic(x: np.ndarray) -> np.ndarray:
    """Keys' kernel with a = -0.5, as Pillow and TensorFlow have it."""
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, far)


_FILTERS = {"bilinear": _triangle, "bicubic": _cubic}
