"""In C: reads records, finds features in them, and decodes JPEGs."""

from typing import Any

import numpy.typing as npt

LIBRARY: str
DECODES_PNG: int

def find_features(
    records: list[bytes], keys: tuple[bytes, ...], columns: tuple[npt.NDArray[Any], ...], found: npt.NDArray[Any]
) -> list[tuple[int, str]]: ...
def read_records(descriptor: int, starts: npt.NDArray[Any], stops: npt.NDArray[Any]) -> list[bytes | None]: ...
def decode(
    images: list[Any],
    parts: npt.NDArray[Any],
    flips: npt.NDArray[Any],
    out: npt.NDArray[Any] | list[npt.NDArray[Any]],
    threads: int,
    points: list[Any] = ...,
    frames: npt.NDArray[Any] | None = ...,
    filter: int = ...,
    antialias: bool = ...,
    accurate_dct: bool = ...,
    values: npt.NDArray[Any] | None = ...,
    sizes: npt.NDArray[Any] | None = ...,
    shapes: npt.NDArray[Any] | None = ...,
    places: npt.NDArray[Any] | None = ...,
    colors: npt.NDArray[Any] | None = ...,
    erased: npt.NDArray[Any] | None = ...,
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
