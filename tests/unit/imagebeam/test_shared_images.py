"""Rows of a batch that share an image: decoded once, with the pixels of the whole image whatever parts they take."""

from __future__ import annotations

import os
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tests import image_sets
from tests.pictures import encode, photo

if os.environ.get("IMAGEBEAM_CI") != "1":  # there it must be built
    pytest.importorskip("imagebeam._native", reason="was not built: docs/reader-speed.md says what it needs")
from imagebeam import _native

KINDS: list[tuple[str, dict[str, Any]]] = [("L", {}), ("RGB", {"progressive": True})]
KINDS += [(mode, {"subsampling": each}) for mode in ("RGB", "CMYK") for each in (0, 1, 2)]  # 4:4:4, 4:2:2, 4:2:0
KINDS.append(("PNG", {}))


def decode(
    images: list[bytes],
    parts: list[tuple[int, int, int, int]],
    out: Any,
    *,
    shared: bool,
    points: list[bytes] | None = None,
    flips: Any = None,
    sizes: Any = None,
    shapes: Any = None,
    threads: int = 2,
) -> list[tuple[int, str]]:
    rows = len(images)
    return _native.decode(
        images,
        np.array(parts, np.int32),
        np.zeros(rows, bool) if flips is None else flips,
        out,
        threads,
        [b""] * rows if points is None else points,
        None,
        1,
        False,
        False,
        None,
        sizes,
        shapes,
        None,
        None,
        None,
        bytes(3),
        shared,
    )


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    data=st.data(),
    kind=st.sampled_from(KINDS),
    sides=st.tuples(st.integers(16, 250), st.integers(16, 250)),
    num_images=st.integers(1, 3),
    num_views=st.integers(1, 4),
    repeats=st.integers(1, 2),
    has_points=st.booleans(),
)
def test_parts_of_a_shared_image_are_those_of_the_whole_image(
    data: st.DataObject,
    kind: tuple[str, dict[str, Any]],
    sides: tuple[int, int],
    num_images: int,
    num_views: int,
    repeats: int,
    has_points: bool,
) -> None:
    """Parts of one, two, four and eight times their size in the batch are cut from images that were reduced so."""
    mode, options = kind
    height, width = sides
    is_png = mode == "PNG"
    pictures = [photo(width, height).rotate(90 * turn) for turn in range(num_images)]
    if is_png:
        encoded = [image_sets.save(each, "PNG") for each in pictures]
    else:
        encoded = [encode(each.convert(mode), **options) for each in pictures]
    points = [_native.find_entry_points(each) if has_points else b"" for each in encoded]
    whole: dict[tuple[int, int], np.ndarray] = {}

    def whole_of(image: int, reduction: int) -> np.ndarray:
        if (image, reduction) not in whole:
            rows, columns = height // reduction, width // reduction
            out = np.zeros((1, rows, columns, 3), np.uint8)
            part = (0, 0, rows * reduction, columns * reduction)
            assert decode([encoded[image]], [part], out, shared=True) == []
            whole[image, reduction] = out[0]
        return whole[image, reduction]

    count = num_images * repeats
    sizes_of_views = [
        (data.draw(st.integers(1, height // 8), "rows"), data.draw(st.integers(1, width // 8), "columns"))
        for _ in range(num_views)
    ]
    outs = [np.full((count, 2, *size, 3), 77, np.uint8) for size in sizes_of_views]
    parts, flips, expected = [], [], []
    for index in range(count):
        for rows, columns in sizes_of_views:
            reduction = 1 if is_png else data.draw(st.sampled_from([1, 2, 4, 8]), "reduction")
            top = data.draw(st.integers(0, height // reduction - rows), "top")
            left = data.draw(st.integers(0, width // reduction - columns), "left")
            parts.append((top * reduction, left * reduction, rows * reduction, columns * reduction))
            flips.append(data.draw(st.booleans(), "flip"))
            pixels = whole_of(index // repeats, reduction)[top : top + rows, left : left + columns]
            expected.append(pixels[:, ::-1] if flips[-1] else pixels)
    of_rows = np.repeat(np.arange(num_images), repeats * num_views)
    failures = decode(
        [encoded[each] for each in of_rows],
        parts,
        [out[:, 1] for out in outs],
        shared=True,
        points=[points[each] for each in of_rows],
        flips=np.array(flips),
        sizes=np.tile(np.array([sides], np.int32), (len(of_rows), 1)),
    )
    assert failures == []
    for row, pixels in enumerate(expected):
        np.testing.assert_array_equal(outs[row % num_views][row // num_views, 1], pixels)
    assert all((out[:, 0] == 77).all() for out in outs)


def test_failure_of_a_shared_image_is_that_of_all_its_rows() -> None:
    good, bad = encode(photo(40, 30)), encode(photo(40, 30))[:-200]
    sizes = np.tile(np.array([[30, 40]], np.int32), (6, 1))
    outs = [np.full((3, 8, 8, 3), 77, np.uint8), np.full((3, 4, 4, 3), 77, np.uint8)]
    images, parts = [good, good, bad, bad, good, good], [(0, 0, 30, 40)] * 6
    failures = decode(images, parts, outs, shared=True, sizes=sizes)
    assert [row for row, _ in failures] == [2, 3] and failures[0][1] == failures[1][1]
    for out in outs:
        assert (out[1] == 77).all() and (out[[0, 2]] != 77).any()
    parts[1] = (0, 0, 31, 40)  # of one row alone
    assert [row for row, _ in decode(images, parts, outs, shared=True, sizes=sizes)] == [0, 1, 2, 3]


def test_bare_pixels_are_shared() -> None:
    pixels = np.random.default_rng(0).integers(256, size=(9, 7, 3), dtype=np.uint8)
    content = pixels.tobytes()
    outs = [np.zeros((1, 4, 5, 3), np.uint8), np.zeros((1, 2, 2, 3), np.uint8)]
    shapes = np.array([[9, 7, 3]] * 2, np.int32)
    assert decode([content] * 2, [(1, 2, 4, 5), (5, 0, 2, 2)], outs, shared=True, shapes=shapes) == []
    np.testing.assert_array_equal(outs[0][0], pixels[1:5, 2:7])
    np.testing.assert_array_equal(outs[1][0], pixels[5:7, 0:2])
