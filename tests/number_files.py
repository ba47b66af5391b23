"""TIFFs of any numbers and bands, and a reference in NumPy for what is stored and read of them."""

from __future__ import annotations

import io
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tifffile


def make_numbers(dtype: str, bands: int, seed: int = 0, size: tuple[int, int] = (24, 32)) -> np.ndarray:
    """Returns numbers [height, width, bands] over the whole range of a type; heights in meters of a float type."""
    random = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return random.normal(500, 300, (*size, bands)).astype(dtype)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, (*size, bands), dtype, endpoint=True)


def to_tiff(numbers: np.ndarray, **options: Any) -> bytes:
    """Returns a TIFF of [height, width, bands], without a color in three of them."""
    buffer = io.BytesIO()
    values = numbers[:, :, 0] if numbers.shape[2] == 1 else numbers
    usual = {"photometric": "minisblack"} | ({} if numbers.shape[2] == 1 else {"planarconfig": "contig"})
    tifffile.imwrite(buffer, values, **(usual | options))
    return buffer.getvalue()


def write_folder(folder: pathlib.Path, images: Sequence[np.ndarray]) -> None:
    """Writes images as 0.tif, 1.tif and so on into the folder of one class."""
    (folder / "a").mkdir(parents=True)
    for number, numbers in enumerate(images):
        (folder / "a" / f"{number}.tif").write_bytes(to_tiff(numbers))


def _bicubic(x: np.ndarray) -> np.ndarray:
    """Keys, 1981, with a = -0.5."""
    x = np.abs(x)
    return np.where(x < 1, 1.5 * x**3 - 2.5 * x**2 + 1, np.where(x < 2, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2, 0))


_KERNELS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "area": lambda x: ((x > -0.5) & (x <= 0.5)).astype(float),
    "bilinear": lambda x: np.maximum(1 - np.abs(x), 0),
    "bicubic": _bicubic,
}


def resized(numbers: np.ndarray, size: tuple[int, int], filter: str) -> np.ndarray:
    """Returns numbers scaled to height and width with an antialiased filter, in float64, not rounded."""
    found = numbers.astype(np.float64)
    for axis in (0, 1):
        found = np.moveaxis(np.tensordot(_weights(found.shape[axis], size[axis], filter), found, (1, axis)), 0, axis)
    return found


def _weights(old: int, new: int, filter: str) -> np.ndarray:
    scale = old / new
    middles = (np.arange(new) + 0.5) * scale
    distances = (np.arange(old)[None] + 0.5 - middles[:, None]) / max(scale, 1)
    weights = _KERNELS[filter](distances)
    return weights / weights.sum(axis=1, keepdims=True)
