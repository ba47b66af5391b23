"""Files of several pictures, and what Pillow shows of each."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import PIL.Image

from tests import image_sets

SAVED = {  # by our name of a format: how Pillow saves several pictures in it, without loss but for AVIF
    "gif": ("GIF", {"disposal": 2, "optimize": False}),
    "webp": ("WEBP", {"lossless": True}),
    "apng": ("PNG", {"disposal": 1}),
    "avif": ("AVIF", {"quality": 60}),
    "tiff": ("TIFF", {}),
}


def draw(seed: int, count: int, size: tuple[int, int] = (24, 16), mode: str = "RGBA") -> list[PIL.Image.Image]:
    """Returns pictures that all differ, a colored box on nothing or black; `size` is (width, height)."""
    rng = random.Random(seed)
    frames = []
    for number in range(count):
        picture = PIL.Image.new(mode, size)
        color = (40 + number * 29 % 200, rng.randrange(256), number % 256, 255)
        box = (number % 8, number % 5, number % 8 + rng.randrange(3, 14), number % 5 + rng.randrange(3, 10))
        picture.paste(color[: len(picture.getbands())], box)
        frames.append(picture)
    return frames


def save(frames: Sequence[PIL.Image.Image], kind: str, **options: Any) -> bytes:
    """Returns a file that holds pictures; `kind` is one of `SAVED`."""
    format, usual = SAVED[kind]
    first, *others = frames
    return image_sets.save(first, format, save_all=True, append_images=others, **usual | options)


def shown(data: bytes) -> list[np.ndarray]:
    """Returns what Pillow shows of each picture of a file: uint8 [height, width, 4]."""
    found = []
    with PIL.Image.open(io.BytesIO(data)) as opened:
        for number in range(getattr(opened, "n_frames", 1)):
            opened.seek(number)
            found.append(np.asarray(opened.convert("RGBA")))
    return found


def pixels_of(data: bytes) -> np.ndarray:
    """Returns the pixels of a still picture: uint8 [height, width, 4]."""
    (found,) = shown(data)
    return found
