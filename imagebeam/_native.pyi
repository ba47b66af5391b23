"""In C: reads records, finds features in them, and decodes JPEGs."""

from typing import Any

import numpy as np

LIBRARY: str
DECODES_PNG: int

def find_features(record: bytes, keys: tuple[bytes, ...]) -> tuple[Any, ...]: ...
def read_record(descriptor: int, start: int, stop: int) -> bytes | None: ...
def decode(
    images: list[Any],
    parts: np.ndarray,
    flips: np.ndarray,
    out: np.ndarray,
    threads: int,
    points: list[Any] = ...,
    frames: np.ndarray | None = ...,
    filter: int = ...,
    antialias: bool = ...,
    accurate_dct: bool = ...,
) -> list[tuple[int, str]]: ...
def decode_whole(image: Any, max_pixels: int) -> tuple[bytearray, int, int] | None: ...
def find_entry_points(data: bytes) -> bytes: ...
def cut(
    data: bytes, points: bytes, part: tuple[int, int, int, int]
) -> tuple[bytes, tuple[int, int, int, int]] | None: ...
