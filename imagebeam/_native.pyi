"""In C: reads records, finds features in them, and decodes JPEGs."""

from typing import Any

import numpy as np

LIBRARY: str
DECODES_PNG: int

def find_features(
    records: list[bytes], keys: tuple[bytes, ...], columns: tuple[np.ndarray, ...], found: np.ndarray
) -> list[tuple[int, str]]: ...
def read_records(descriptor: int, starts: np.ndarray, stops: np.ndarray) -> list[bytes | None]: ...
def decode(
    images: list[Any],
    parts: np.ndarray,
    flips: np.ndarray,
    out: np.ndarray | list[np.ndarray],
    threads: int,
    points: list[Any] = ...,
    frames: np.ndarray | None = ...,
    filter: int = ...,
    antialias: bool = ...,
    accurate_dct: bool = ...,
    values: np.ndarray | None = ...,
    sizes: np.ndarray | None = ...,
    shapes: np.ndarray | None = ...,
    places: np.ndarray | None = ...,
    colors: np.ndarray | None = ...,
    erased: np.ndarray | None = ...,
    fill: bytes = ...,
    shared: bool = ...,
) -> list[tuple[int, str]]: ...
def decode_whole(
    image: Any, max_pixels: int, height: int = ..., width: int = ...
) -> tuple[bytearray, int, int] | None: ...
def find_entry_points(data: bytes) -> bytes: ...
def cut(
    data: bytes, points: bytes, part: tuple[int, int, int, int]
) -> tuple[bytes, tuple[int, int, int, int]] | None: ...
