"""Pictures as photos are, and how alike two are."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
from PIL import Image, ImageFilter


@functools.cache
def photo(width: int, height: int) -> Image.Image:
    """A picture with soft and hard edges, as photos have them."""
    base = Image.effect_mandelbrot((width, height), (-2.2, -1.3, 0.8, 1.3), 60).convert("L")
    bands = [base, base.rotate(180), base.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    return Image.merge("RGB", bands).filter(ImageFilter.GaussianBlur(width / 400))


def encode(image: Image.Image, **options: Any) -> bytes:
    """As a JPEG."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **{"quality": 95, **options})
    return buffer.getvalue()


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    """How alike they are, in dB; infinite where they are the same."""
    error = np.mean((one.astype(float) - other.astype(float)) ** 2)
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))
