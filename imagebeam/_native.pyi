"""In C: finds features in records, and decodes JPEGs."""

from typing import Any

import numpy as np

LIBRARY: str

def find_features(record: bytes, keys: tuple[bytes, ...]) -> tuple[Any, ...]: ...
def decode(
    images: list[Any], parts: np.ndarray, flips: np.ndarray, out: np.ndarray, threads: int
) -> list[tuple[int, str]]: ...
