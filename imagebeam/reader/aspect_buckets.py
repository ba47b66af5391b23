"""The sizes of batches by the aspect ratio of their images, and which of them loses least of an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from imagebeam.reader import option_values, record_order

Sizes: TypeAlias = Sequence[tuple[int, int]]  # height and width of each bucket, in pixels

_AT_ONCE = 1 << 16  # images whose numbers fit into the cache of a core
_ROUNDING = 1e-9


def aspect_buckets(area: int, step: int = 64, max_aspect: float = 2.0) -> list[tuple[int, int]]:
    """Returns the sizes for `buckets` that have about the same number of pixels, from tall to wide.

    For each side that is a multiple of `step`, the other one is the greatest multiple with which the size has at most
    `area` pixels. Source: NovelAI, Novel AI Improvements on Stable Diffusion, 2022; kohya-ss/sd-scripts has the same.

    Args:
        area: greatest number of pixels of a size, such as 1024 * 1024.
        step: number of pixels that all sides are multiples of.
        max_aspect: greatest quotient of the longer and the shorter side.

    Returns:
        (height, width) of each size.

    Raises:
        ConfigError: if no size has so few pixels and such an aspect ratio.
    """
    area, step = option_values.whole(1)("area", area), option_values.whole(1)("step", step)
    if not (max_aspect := option_values.number("max_aspect", max_aspect)) >= 1:
        raise option_values.bad_value("max_aspect", max_aspect, "it must be at least 1")
    if area < step * step:
        raise option_values.bad_value("area", area, f"it must be at least {step} * {step}, the square of step")
    found = set()
    for side in range(step, area // step + 1, step):
        other = area // side // step * step
        if max(side, other) <= max_aspect * min(side, other):
            found |= {(side, other), (other, side)}
    if not found:
        raise option_values.bad_value(
            "max_aspect",
            max_aspect,
            f"no two multiples of {step} with at most {area:,} pixels have it: give a greater one",
        )
    return sorted(found, key=lambda size: (size[1] / size[0], size))


def kept_part(height: np.ndarray, width: np.ndarray, size: tuple[np.ndarray | int, np.ndarray | int]) -> np.ndarray:
    """Returns the part of each image that is left when it covers a size and is cropped to it: float64 [n], 0 to 1."""
    across, down = height * np.float64(size[1]), width * np.float64(size[0])
    return np.minimum(across, down) / np.maximum(across, down)


def enlargement(height: np.ndarray, width: np.ndarray, size: tuple[np.ndarray | int, np.ndarray | int]) -> np.ndarray:
    """Returns by how much the sides of each image are multiplied until it covers a size: float64 [n]."""
    return np.maximum(size[0] / height, size[1] / width)


def choose(sides: np.ndarray, sizes: Sizes, max_enlarge: float | None, may_be_small: bool = False) -> np.ndarray:
    """Returns the bucket of each image: that which loses the smallest part of it when the image is cropped.

    Of buckets of one aspect ratio it is the largest for which the image is not enlarged, else the smallest.

    Args:
        sides: int [n, 2], height and width of each image, from 1 on.
        sizes: of the buckets.
        max_enlarge: buckets for which the sides of an image would have to be multiplied by more do not count.
        may_be_small: whether all buckets count for an image for which else none would.

    Returns:
        int16 [n]: the index of each bucket; -1 for an image that is too small for all.
    """
    table = np.array(sizes, np.int64)
    aspects = table[:, 1] / table[:, 0]
    order = np.argsort(aspects, kind="stable")
    has_twins = len(np.unique(aspects)) < len(sizes)
    every = range(len(sizes))
    found = np.empty(len(sides), np.int16)
    for start in range(0, len(sides), _AT_ONCE):
        height, width = sides[start : start + _AT_ONCE].astype(np.float64).T
        if has_twins:
            found[start : start + _AT_ONCE] = _best(height, width, table, every, max_enlarge)
            continue
        # Of different aspect ratios only the two nearest can be the best, unless one of them is too large.
        place = np.searchsorted(aspects[order], width / height).clip(1, max(1, len(sizes) - 1))
        nearest = [order[place - 1], order[place.clip(max=len(sizes) - 1)]]
        best = _best(height, width, table, nearest, None)
        if max_enlarge is not None:
            again = np.any([~_fits(height, width, table[each].T, max_enlarge) for each in nearest], axis=0)
            best[again] = _best(height[again], width[again], table, every, max_enlarge)
        found[start : start + _AT_ONCE] = best
    if may_be_small and (small := found < 0).any():
        found[small] = choose(sides[small], sizes, None)
    return found


def _fits(height: np.ndarray, width: np.ndarray, size: Sequence[np.ndarray], max_enlarge: float) -> np.ndarray:
    return enlargement(height, width, (size[0], size[1])) <= max_enlarge * (1 + _ROUNDING)


def _best(
    height: np.ndarray,
    width: np.ndarray,
    table: np.ndarray,
    candidates: Sequence[np.ndarray | int],
    max_enlarge: float | None,
) -> np.ndarray:
    """Returns the best of some buckets for each image: int16 [n], -1 if none fits.

    Args:
        height: float64 [n].
        width: float64 [n].
        table: int64 [buckets, 2].
        candidates: indexes of buckets, each of all images or int [n].
        max_enlarge: as in `choose`.
    """
    best, most = np.full(len(height), -1, np.int16), np.full(len(height), -1.0)
    for each in candidates:
        size = table[each].T
        kept = kept_part(height, width, (size[0], size[1]))
        is_better, rows = kept > most, np.flatnonzero(kept == most)
        if len(rows):
            sizes = table[best[rows]].T, np.broadcast_to(size.T, (len(height), 2))[rows].T
            before, now = (_closeness(height[rows], width[rows], one) for one in sizes)
            is_better[rows] = now > before
        if max_enlarge is not None:
            is_better &= _fits(height, width, size, max_enlarge)
        np.copyto(best, np.asarray(each, np.int16), where=is_better)
        np.copyto(most, kept, where=is_better)
    return best


def _closeness(height: np.ndarray, width: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Returns a number that is greater the closer each image is to a size: float64 [n], positive if it is larger."""
    times = enlargement(height, width, (size[0], size[1]))
    return np.where(times > 1, -times, times)


def members(
    sides: np.ndarray,
    selected: record_order.Records,
    sizes: Sizes,
    max_enlarge: float | None,
    may_be_small: bool,
) -> list[np.ndarray]:
    """Returns the records of each bucket, ascending: int32 [n], or int64 if there are many.

    Args:
        sides: int [records, 2], height and width of all images; 0 of records that cannot be read, which the reader of
            the first bucket reports.
        selected: those that are read.
        sizes: as of `choose`.
        max_enlarge: as of `choose`.
        may_be_small: as of `choose`.
    """
    dtype = np.int32 if len(sides) <= np.iinfo(np.int32).max else np.int64
    parts: list[list[np.ndarray]] = [[] for _ in sizes]
    for start in range(0, len(selected), _AT_ONCE):
        records = selected.records_at(np.arange(start, min(start + _AT_ONCE, len(selected))))
        known = sides[records]
        if not known.all():
            known = np.where(known == 0, np.array(sizes[0], sides.dtype), known)
        chosen = choose(known, sizes, max_enlarge, may_be_small)
        for bucket, part in enumerate(parts):
            part.append(records[chosen == bucket].astype(dtype))
    return [np.concatenate([np.zeros(0, dtype), *parts.pop(0)]) for _ in sizes]
