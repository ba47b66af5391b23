"""Digests of what the feeds give for a product of options: the same with TensorFlow and without it."""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

import imagebeam

_ORDERS: tuple[dict[str, Any], ...] = (
    {"shuffle": "stream", "shuffle_records": 12, "seed": 3},
    {"shuffle": "global", "process_count": 3, "process_index": 1},
    {"shuffle": None, "drop_remainder": False},
)
_IMAGES: tuple[dict[str, Any], ...] = (
    {"crop": "random", "dtype": "bfloat16", "normalize": "imagenet"},
    {"crop": "center", "interpolation": "bicubic", "antialias": True, "dtype": "float32"},
    {"crop": "resize_shorter", "dct": "accurate", "dtype": "float16"},
    {"crop": "squash", "flip": True},
)
_BATCHES: tuple[dict[str, Any], ...] = (
    {"features": ("image/key", "image/height", "image/filename")},
    {"weights": {0: 0.5, 1: 2.0}, "supervised": True},
    {"pad": True, "label_base": 1},
)


def digests(directory: str, feed: str) -> list[str]:
    """Returns a digest of the batches of two epochs for each product of options.

    Args:
        directory: a dataset with two classes.
        feed: "as_numpy" or "as_tf".
    """
    dataset = imagebeam.open_dataset(directory)
    found = []
    for asked in itertools.product(_ORDERS, _IMAGES, _BATCHES):
        options: dict[str, Any] = {"image_size": (24, 20), "num_epochs": 2, "pad": False}
        for each in asked:
            options |= each
        batches: Any = getattr(dataset, feed)("train", 5, **options)
        found.append(_digest(batches.as_numpy_iterator() if feed == "as_tf" else batches))
    return found


def _digest(batches: Iterable[Any]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for batch in batches:
        for name, values in enumerate(batch) if isinstance(batch, tuple) else sorted(batch.items()):
            array = np.asarray(values)
            content = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
            digest.update(repr((name, str(array.dtype), array.shape)).encode() + content)
    return digest.hexdigest()


if __name__ == "__main__":
    print(json.dumps({"digests": digests(sys.argv[1], "as_numpy"), "tensorflow": "tensorflow" in sys.modules}))
