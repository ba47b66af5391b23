"""Small images and folders of them; the same bytes in every run with the same Pillow."""

from __future__ import annotations

import io
import pathlib
import random
from collections.abc import Sequence

from PIL import Image


def make_image(
    seed: int, image_format: str = "JPEG", mode: str = "RGB", size: tuple[int, int] = (24, 16), **options: object
) -> bytes:
    """Returns an encoded image of colored noise; `size` is (width, height) in pixels."""
    rng = random.Random(seed)
    image = Image.frombytes("RGB", (4, 4), rng.randbytes(48)).resize(size, Image.Resampling.BICUBIC).convert(mode)
    return save(image, image_format, **options)


def save(picture: Image.Image, image_format: str = "PNG", **options: object) -> bytes:
    """Returns a picture in a format."""
    buffer = io.BytesIO()
    picture.save(buffer, image_format, **options)
    return buffer.getvalue()


def turned(orientation: int = 6) -> Image.Exif:
    """Returns EXIF data that ask for a turn."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def write_folder(root: pathlib.Path, labels: Sequence[str] = ("cat", "dog"), per_label: int = 10) -> list[str]:
    """Writes a label/image folder in which every fifth image is a PNG; returns the keys."""
    keys = []
    for label_index, label in enumerate(labels):
        (root / label).mkdir(parents=True, exist_ok=True)
        for index in range(per_label):
            png = index % 5 == 4
            key = f"{label}/{index}.{'png' if png else 'jpg'}"
            data = make_image(label_index * 1000 + index, "PNG" if png else "JPEG")
            (root / key).write_bytes(data)
            keys.append(key)
    return keys
