from __future__ import annotations

import numpy as np
import pytest

from imagebeam.reader import crops, record_order
from imagebeam.reader import options as options_lib

HEIGHTS = np.array([375, 500, 1, 3000, 20, 7])
WIDTHS = np.array([500, 333, 400, 20, 3000, 7])


def uniforms(count: int, seed: int = 0) -> np.ndarray:
    return record_order.uniforms(
        np.arange(count), np.zeros(count, np.int64), record_order.make_key(seed), crops.NUM_UNIFORMS
    )


@pytest.mark.parametrize("crop", ["random", "center", "resize_shorter", "squash"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_window_is_inside_an_image_of_any_shape(crop: str, dtype: type) -> None:
    height, width = np.repeat(HEIGHTS, 200).astype(dtype), np.repeat(WIDTHS, 200).astype(dtype)
    options = options_lib.ReadOptions(crop=crop, image_size=(224, 160))
    found = crops.windows(height, width, uniforms(len(height)), options)
    top, left, rows, columns = found.T
    assert found.dtype == np.int32 and found.flags.c_contiguous
    assert (top >= 0).all() and (left >= 0).all() and (rows >= 1).all() and (columns >= 1).all()
    assert (top + rows <= height).all() and (left + columns <= width).all()
    if crop == "squash":
        assert (rows == height).all() and (columns == width).all()


@pytest.mark.parametrize("crop", ["random", "center", "resize_shorter", "squash"])
def test_windows_of_no_images_are_empty(crop: str) -> None:
    nothing = np.zeros(0, np.int64)
    options = options_lib.ReadOptions(crop=crop)
    assert crops.windows(nothing, nothing, uniforms(0), options).shape == (0, 4)


def test_random_windows_have_the_requested_areas_ratios_and_places() -> None:
    count = 20_000
    height, width = np.full(count, 400), np.full(count, 500)
    top, left, rows, columns = crops.random_windows(height, width, uniforms(count), (0.08, 1.0), (0.75, 4 / 3)).T
    areas, ratios = rows * columns / 200_000, columns / rows
    assert 0.079 < areas.min() < 0.09 and 0.95 < areas.max() <= 1.0
    assert 0.74 < ratios.min() < 0.76 and 1.32 < ratios.max() < 1.35
    assert abs(np.log(ratios[areas < 0.5]).mean()) < 0.02
    free = rows < 400
    assert abs((top[free] / (400 - rows[free])).mean() - 0.5) < 0.02
    assert (left == 0).any() and (left + columns == 500).any()


def test_image_too_narrow_for_a_random_window_gives_its_middle() -> None:
    part = crops.random_windows(np.array([10]), np.array([1000]), uniforms(1), (0.9, 1.0), (0.75, 4 / 3))
    assert part.tolist() == [[0, 493, 10, 13]]


def test_center_window_is_the_middle_of_the_shorter_side() -> None:
    part = crops.center_windows(np.array([375]), np.array([500]), (224, 224), 224 / 256)
    assert part.tolist() == [[23, 86, 328, 328]]


@pytest.mark.parametrize(
    ("part", "reduction", "of_antialias"),
    [
        ((448, 448), 2, 1),
        ((447, 2000), 1, 1),
        ((896, 900), 4, 2),
        ((1792, 1792), 8, 4),
        ((9999, 9999), 8, 8),
        ((224, 224), 1, 1),
        ((7, 9), 1, 1),
    ],
)
def test_reduction_leaves_a_part_as_large_as_wanted(part: tuple[int, int], reduction: int, of_antialias: int) -> None:
    for antialias, expected in [(False, reduction), (True, of_antialias)]:
        options = options_lib.ReadOptions(crop="squash", antialias=antialias)
        parts = np.array([[0, 0, *part]], np.int32)
        frames = crops.frames(*parts[:, 2:].T, parts, options) if options.filters else None
        [index] = crops.reductions(parts, frames, options)
        assert crops.REDUCTIONS[index] == expected
