from __future__ import annotations

import io
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from imagebeam.transforms.images import object_masks

# Polygons, and the run lengths that COCO's own C code made of them (maskApi.c: rleFrPoly, rleMerge, rleToString).
REFERENCE = json.loads((pathlib.Path(__file__).parent / "coco_masks.json").read_text())


def decode(png: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(png)) as image:
        assert (image.format, image.mode) == ("PNG", "L")
        return np.asarray(image)


def draw(segmentation: Any, height: int, width: int) -> np.ndarray:
    return decode(object_masks.render(object_masks.pack(segmentation, height, width), (height, width)))


def from_runs(runs: list[int], height: int, width: int) -> np.ndarray:
    """Draws run lengths by their definition: outside, inside, outside, ..., down the columns."""
    pixels = [index % 2 for index, count in enumerate(runs) for _ in range(count)]
    return np.array([[pixels[x * height + y] for x in range(width)] for y in range(height)])


def test_polygons_and_run_lengths_are_drawn_as_by_the_reference_implementation() -> None:
    for case in REFERENCE:
        height, width = case["size"]
        expected = from_runs(case["runs"], height, width)
        assert expected.sum() == case["area"]
        for segmentation in (
            case["polygons"],
            {"size": [height, width], "counts": case["runs"]},
            {"size": [height, width], "counts": case["counts"]},
        ):
            np.testing.assert_array_equal(draw(segmentation, height, width), expected)


def test_coordinates_of_more_than_16_bits_are_drawn_right() -> None:
    mask = draw([[7000, 0, 7010, 0, 7010, 3, 7000, 3]], 3, 8000)
    assert mask.sum() == 30
    assert mask[:, 7000:7010].all()


@given(
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.lists(st.lists(st.floats(-1, 2), min_size=6, max_size=14), min_size=1, max_size=3),
)
def test_several_polygons_cover_what_each_of_them_covers(size: tuple[int, int], shares: list[list[float]]) -> None:
    height, width = size
    polygons = [
        [share * (height if index % 2 else width) for index, share in enumerate(polygon[: len(polygon) // 2 * 2])]
        for polygon in shares
    ]
    together = draw(polygons, height, width)
    alone = [draw([polygon], height, width) for polygon in polygons]
    np.testing.assert_array_equal(together, np.maximum.reduce(alone))


@given(st.integers(1, 12), st.integers(1, 12), st.floats(-1, 2), st.floats(-1, 2), st.floats(-1, 2), st.floats(-1, 2))
def test_rectangle_covers_the_pixels_whose_middle_is_inside(
    height: int, width: int, x1: float, x2: float, y1: float, y2: float
) -> None:
    left, right = sorted((round(x1 * width * 5) / 5, round(x2 * width * 5) / 5))
    top, bottom = sorted((round(y1 * height * 5) / 5, round(y2 * height * 5) / 5))
    found = draw([[left, top, right, top, right, bottom, left, bottom]], height, width)
    columns = np.arange(width) + 0.5
    rows = np.arange(height) + 0.5
    is_inside = ((rows > top) & (rows < bottom))[:, None] & ((columns > left) & (columns < right))
    is_near = ((abs(rows - top) < 0.5) | (abs(rows - bottom) < 0.5))[:, None] | (
        (abs(columns - left) < 0.5) | (abs(columns - right) < 0.5)
    )
    assert (found[~is_near] == is_inside[~is_near]).all()


def test_mask_of_a_scaled_picture_is_scaled_to_the_nearest_pixel() -> None:
    packed = object_masks.pack([[4, 2, 12, 2, 12, 6, 4, 6]], 8, 16)
    half = decode(object_masks.render(packed, (8, 16), (4, 8)))
    assert half.tolist() == [[0] * 8, [0, 0, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 0, 0], [0] * 8]
    twice = decode(object_masks.render(packed, (8, 16), (16, 32)))
    assert twice.tolist() == np.kron(decode(object_masks.render(packed, (8, 16))), np.ones((2, 2), int)).tolist()


def test_segmentation_that_cannot_be_drawn_is_an_error() -> None:
    for segmentation, message in [
        (None, "neither a list of polygons nor an object"),  # missing
        ([], "neither a list of polygons nor an object"),  # no-polygon
        ([[1, 2, 3, 4]], "a polygon of 4 numbers; it needs an even count of at least 6"),  # two-corners
        ([[1, 2, 3, 4, 5, 6, 7]], "a polygon of 7 numbers"),  # odd
        ([1, 2, 3, 4, 5, 6], "a polygon that is not a list of numbers"),  # flat
        ([[1, 2, "3", 4, 5, 6]], "a polygon that is not a list of numbers"),  # text
        ([[1, 2, True, 4, 5, 6]], "a polygon that is not a list of numbers"),  # true
        ([[1, 2, 1e9, 4, 5, 6]], "is far outside of the 10 x 8 px"),  # far
        ([[1, 2, float("inf"), 4, 5, 6]], "is far outside of the 10 x 8 px"),  # infinite
        ([[0, 0, 10, 0, 0, 0] * 60_000], "whose outline is 1,"),  # endless
        ({"counts": [80]}, r"segmentation.size is None, the image's is \[8, 10\]"),  # no-size
        ({"counts": [80], "size": [10, 8]}, r"segmentation.size is \[10, 8\]"),  # turned
        ({"counts": [79], "size": [8, 10]}, "counts sum to 79, the image has 80 pixels"),  # short
        ({"counts": [-1, 81], "size": [8, 10]}, "neither a list of run lengths"),  # negative
        ({"counts": [80.0], "size": [8, 10]}, "neither a list of run lengths"),  # float
        ({"size": [8, 10]}, "neither a list of run lengths"),  # no-counts
        ({"counts": "\x7f", "size": [8, 10]}, "which is invalid in compressed run lengths"),  # character
        ({"counts": "o" * 20, "size": [8, 10]}, "which is invalid in compressed run lengths"),  # endless-number
        ({"counts": "P", "size": [8, 10]}, "ends in the middle of a run length"),  # cut
    ]:
        with pytest.raises(ValueError, match=message):
            object_masks.pack(segmentation, 8, 10)


def test_picture_too_large_for_masks_is_an_error() -> None:
    with pytest.raises(ValueError, match="has 400,000,000 pixels; masks are drawn for up to 268,435,456"):
        object_masks.pack([[1, 2, 3, 4, 5, 6]], 20_000, 20_000)
