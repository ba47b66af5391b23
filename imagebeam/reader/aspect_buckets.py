"""The sizes of batches by the aspect ratio of their images, and which of them loses least of an image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from imagebeam.reader import option_values, record_order

Sizes: TypeAlias = Sequence[tuple[int, int]]  # height and width of each bucket, in pixels

_AT_ONCE = 1 << 16  # images whose numbers fit into the cache of a core
_ROUNDING = 1e-9


def aspect_buckets(area: int, step: int = 64, max_aspect: float = 2.0) -> list[tuple[int, int]]:
    """Returns the sizes for `buckets` that have about the same number of pixels, from tall to wide.

    For each side that is a multiple of `step`, the other one is the greatest multiple with which the size has at most
    `area` pixels. Source: NovelAI, Novel AI Improvements on Stable Diffusion, 2022. With max_aspect=4 and the area of a
    square, the list is that of kohya-ss/sd-scripts for sides from half of the square's to twice as long.

    Args:
        area: greatest number of pixels of a size, such as 1024 * 1024.
        step: number of pixels that all sides are multiples of.
        max_aspect: greatest quotient of the longer and the shorter side. Of an image beyond it, more is cropped away.

    Returns:
        (height, width) of each size.

    Raises:
        ConfigError: if no size has so few pixels and such an aspect ratio.

    Examples:
        >>> imagebeam.aspect_buckets(256 * 256, step=64, max_aspect=2.0)
        [(320, 192), (256, 256), (192, 320)]
    """
    return list_sizes(area, step, max_aspect, ("area", "step", "max_aspect"))


def list_sizes(area: int, step: int, max_aspect: float, names: tuple[str, str, str]) -> list[tuple[int, int]]:
    """Returns the sizes as `aspect_buckets`. An error has the names of area, step and aspect that the user knows."""
    longest = option_values.MAX_SIDE
    area, step = option_values.whole(1, longest**2)(names[0], area), option_values.whole(1, longest)(names[1], step)
    if not (max_aspect := option_values.number(names[2], max_aspect)) >= 1:
        raise option_values.bad_value(names[2], max_aspect, "it must be at least 1")
    if area < step * step:
        raise option_values.bad_value(names[0], area, f"it must be at least {step} * {step}, the square of {names[1]}")
    found = set()
    for side in range(step, min(area // step, longest) + 1, step):
        other = area // side // step * step
        if max(side, other) <= min(max_aspect * min(side, other), longest):
            found |= {(side, other), (other, side)}
    if not found:
        raise option_values.bad_value(
            names[2],
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
    aspects, order, counts = np.unique(table[:, 1] / table[:, 0], return_index=True, return_counts=True)
    # Where two neighbours keep equal parts of an image there are two lines, and rounding could decide between them.
    lines = np.outer(np.sqrt(aspects[1:] * aspects[:-1]), (1 - _ROUNDING, 1 + _ROUNDING)).ravel()
    is_close = not (np.diff(lines) > 0).all()
    found = np.empty(len(sides), np.int16)
    for start in range(0, len(sides), _AT_ONCE):
        height, width = sides[start : start + _AT_ONCE].astype(np.float64).T
        places = np.searchsorted(lines, width / height)
        best = order[places // 2]
        unsure = (places % 2 == 1) | (counts[places // 2] > 1) | is_close
        if max_enlarge is not None:
            unsure |= ~_fits(height, width, table[best].T, max_enlarge)
        best[unsure] = _best(height[unsure], width[unsure], table, max_enlarge)
        found[start : start + _AT_ONCE] = best
    if may_be_small and (small := found < 0).any():
        found[small] = choose(sides[small], sizes, None)
    return found


def _fits(height: np.ndarray, width: np.ndarray, size: Sequence[np.ndarray], max_enlarge: float) -> np.ndarray:
    return enlargement(height, width, (size[0], size[1])) <= max_enlarge * (1 + _ROUNDING)


def _best(height: np.ndarray, width: np.ndarray, table: np.ndarray, max_enlarge: float | None) -> np.ndarray:
    """Returns the best of all buckets for each image: int16 [n], -1 if none fits.

    Args:
        height: float64 [n].
        width: float64 [n].
        table: int64 [buckets, 2].
        max_enlarge: as in `choose`.
    """
    best, most = np.full(len(height), -1, np.int16), np.full(len(height), -1.0)
    for bucket, size in enumerate(table):
        kept = kept_part(height, width, (size[0], size[1]))
        is_better, rows = kept > most, np.flatnonzero(kept == most)
        if len(rows):
            before, now = (_closeness(height[rows], width[rows], each) for each in (table[best[rows]].T, size))
            is_better[rows] = now > before
        if max_enlarge is not None:
            is_better &= _fits(height, width, size, max_enlarge)
        best[is_better], most[is_better] = bucket, kept[is_better]
    return best


def _closeness(height: np.ndarray, width: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Returns a number that is greater the closer each image is to a size: float64 [n], positive if it is larger."""
    times = enlargement(height, width, (size[0], size[1]))
    return np.where(times > 1, -times, times)


def choose_selected(
    sides: np.ndarray,
    selected: record_order.Records,
    sizes: Sizes,
    max_enlarge: float | None,
    may_be_small: bool,
) -> np.ndarray:
    """Returns the bucket of each record that is read, as `choose`.

    Args:
        sides: int [records, 2], height and width of all images; 0 of records that cannot be read, which the reader of
            the first bucket reports.
        selected: those that are read.
        sizes: as of `choose`.
        max_enlarge: as of `choose`.
        may_be_small: as of `choose`.
    """
    chosen = np.empty(len(selected), np.int16)
    for rows, records in _parts_of(selected):
        known = sides[records]
        if not known.all():
            known = np.where(known == 0, np.array(sizes[0], sides.dtype), known)
        chosen[rows] = choose(known, sizes, max_enlarge, may_be_small)
    return chosen


def members(chosen: np.ndarray, selected: record_order.Records, num_buckets: int, num_records: int) -> list[np.ndarray]:
    """Returns the records of each bucket, ascending: int32 [n], or int64 if there are many.

    Args:
        chosen: int16 [n], the bucket of each record of `selected`; -1 of those that are left out.
        selected: those that are read.
        num_buckets: number of buckets.
        num_records: number of records of the splits.
    """
    edges = np.arange(num_buckets + 1)
    counts = np.zeros(num_buckets, np.int64)
    for rows, _ in _parts_of(selected):
        counts += np.bincount(chosen[rows] + 1, minlength=num_buckets + 1)[1:]
    dtype = np.int32 if num_records <= np.iinfo(np.int32).max else np.int64
    found = [np.empty(count, dtype) for count in counts.tolist()]
    ends = np.zeros(num_buckets, np.int64)
    for rows, records in _parts_of(selected):
        order = np.argsort(chosen[rows], kind="stable")
        bounds = np.searchsorted(chosen[rows][order], edges)
        for bucket in np.flatnonzero(np.diff(bounds)).tolist():
            part = records[order[bounds[bucket] : bounds[bucket + 1]]]
            found[bucket][ends[bucket] : ends[bucket] + len(part)] = part
            ends[bucket] += len(part)
    return found


def _parts_of(selected: record_order.Records) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields some records after the other: their indexes, and their numbers in the split."""
    for start in range(0, len(selected), _AT_ONCE):
        rows = slice(start, min(start + _AT_ONCE, len(selected)))
        yield rows, selected.records_at(np.arange(rows.start, rows.stop))
