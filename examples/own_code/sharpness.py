"""Leaves out blurred images: those whose second derivative varies little."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import imagebeam


def is_sharp(image: npt.NDArray[np.uint8], reference: imagebeam.Reference, *, min_variance: float = 100) -> bool:
    """Returns whether the variance of the image's Laplacian is at least `min_variance`."""
    gray = image[..., :3].mean(axis=2)
    laplacian = gray[:-2, 1:-1] + gray[2:, 1:-1] + gray[1:-1, :-2] + gray[1:-1, 2:] - 4 * gray[1:-1, 1:-1]
    return bool(laplacian.size) and float(laplacian.var()) >= min_variance
