"""Pictures that resemble photos, and functions that compare and damage them."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from imagebeam.transforms.images import orientations
from tests import image_sets


@functools.cache
def photo(width: int, height: int) -> Image.Image:
    """Returns a picture with soft and hard edges, like a photo."""
    base = Image.effect_mandelbrot((width, height), (-2.2, -1.3, 0.8, 1.3), 60).convert("L")
    bands = [base, base.rotate(180), base.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    return Image.merge("RGB", bands).filter(ImageFilter.GaussianBlur(width / 400))


def encode(image: Image.Image, **options: Any) -> bytes:
    """Returns the picture as a JPEG."""
    return image_sets.save(image, "JPEG", **{"quality": 95, **options})


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the peak signal-to-noise ratio of two pictures in dB; infinite if they are equal."""
    error = np.mean((one.astype(float) - other.astype(float)) ** 2)
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))


def turn_pixels(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Returns pixels, [height, width, ...], turned as an EXIF orientation asks for."""
    if orientations.mirrors_columns(orientation):
        pixels = pixels[:, ::-1]
    if orientations.mirrors_rows(orientation):
        pixels = pixels[::-1]
    return pixels.swapaxes(0, 1) if orientations.swaps_sides(orientation) else pixels


def without_segments(jpeg: bytes, marker: int) -> bytes:
    """Removes the segments of one kind before the first scan of a JPEG, such as 0xC4, Huffman tables."""
    kept, position = jpeg[:2], 2
    while (code := jpeg[position + 1]) != 0xDA:
        end = position + 2 + int.from_bytes(jpeg[position + 2 : position + 4], "big")
        kept += b"" if code == marker else jpeg[position:end]
        position = end
    return kept + jpeg[position:]


def damage(jpeg: bytes, rng: random.Random, start: int = 3) -> bytes:
    """Changes, removes or cuts off bytes of a JPEG from byte `start` on, or removes the segments of one kind."""
    kind = rng.choice(["change", "change", "change header", "lose", "cut", "no segment"])
    if kind == "no segment":
        return without_segments(jpeg, rng.choice([0xC4, 0xDB, 0xDD, 0xE0, 0xEE]))
    position = rng.randrange(start, len(jpeg))
    if kind == "cut":
        return jpeg[:position]
    if kind == "lose":
        return jpeg[:position] + jpeg[position + rng.randint(1, 40) :]
    end = jpeg.index(b"\xff\xda") + 14 if kind == "change header" else len(jpeg)
    changed = bytearray(jpeg)
    for _ in range(rng.randint(1, 6)):
        changed[rng.randrange(start, end)] = rng.randrange(256)
    return bytes(changed)
