"""Crops the face that a table names for each image: `x`, `y`, `width`, `height` in pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import imagebeam


def crop(image: npt.NDArray[np.uint8], reference: imagebeam.Reference) -> npt.NDArray[np.uint8] | None:
    """Returns the pixels of the face; None for an image without one, which is left out."""
    box: dict[str, Any] = dict(reference.columns)
    if not box["width"] or not box["height"]:
        return None
    height, width = image.shape[:2]
    if box["x"] + box["width"] > width or box["y"] + box["height"] > height:
        raise ValueError(f"the box {box} does not lie in the image, {width} x {height} pixels")
    return image[box["y"] : box["y"] + box["height"], box["x"] : box["x"] + box["width"]]
