"""Writes IDX files like those of MNIST, with reproducible pictures and labels."""

from __future__ import annotations

import gzip
import pathlib
import struct
from collections.abc import Sequence

import numpy as np


def encode(array: np.ndarray) -> bytes:
    """Encodes an array of uint8 as IDX."""
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def pictures(seed: int, *shape: int) -> np.ndarray:
    """Returns `shape[0]` different pictures of the other two sides."""
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def digits(seed: int, count: int) -> np.ndarray:
    """Returns random labels from 0 to 9."""
    return np.random.default_rng(1000 + seed).integers(0, 10, count, np.uint8)


def write(path: pathlib.Path, array: np.ndarray) -> None:
    """Writes an array, compressed if the name ends in .gz."""
    data = encode(array)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_mnist(
    folder: pathlib.Path, train: int, test: int, side: int = 28, zipped: Sequence[str] = ()
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Writes the four files of MNIST, those whose names begin with one of `zipped` as .gz.

    Returns:
        Pictures and labels by the name that the files give the split, train and t10k.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for seed, (name, count) in enumerate({"train": train, "t10k": test}.items()):
        written[name] = pictures(seed, count, side, side), digits(seed, count)
        for what, array in zip(("images-idx3", "labels-idx1"), written[name]):
            path = f"{name}-{what}-ubyte"
            write(folder / (path + ".gz" * path.startswith(tuple(zipped))), array)
    return written
