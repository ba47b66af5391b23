"""Masks that are drawn in black and white."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image
import pytest
import yaml

from imagebeam.transforms.images import black_and_white


def encode(numbers: list[int], format: str = "PNG", mode: str = "L", **options: object) -> bytes:
    """Returns a picture of one row."""
    picture = PIL.Image.fromarray(np.array([numbers], np.uint8), "L").convert(mode)
    file = io.BytesIO()
    picture.save(file, format, **options)
    return file.getvalue()


def count(*masks: bytes) -> list[dict[int, int]]:
    return [black_and_white.count_numbers(mask) for mask in masks]


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF"])
def test_mask_of_0_and_255_is_black_and_white(format: str) -> None:
    assert black_and_white.are_black_and_white(count(encode([0, 255, 255], format)))
    assert black_and_white.are_black_and_white(count(encode([0, 0], format), encode([255, 0], format)))


@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(encode([0, 1, 255]), id="with-a-class"),
        pytest.param(encode([0, 0]), id="all-black"),
        pytest.param(encode([255, 255]), id="all-white"),
        pytest.param(encode([0, 255], mode="1"), id="one-bit"),
        pytest.param(encode([0, 255], mode="RGB"), id="colors"),
        pytest.param(encode([0, 255], mode="P"), id="palette"),
        pytest.param(encode([0, 255], "TIFF", mode="1"), id="tiff-of-one-bit"),
        pytest.param(encode([0, 255], "BMP", mode="1"), id="bmp-of-one-bit"),
        pytest.param(encode([0, 255], "JPEG"), id="jpeg"),
        pytest.param(encode([0, 255])[:43], id="cut-short"),
        pytest.param(b"", id="empty"),
        pytest.param(b"BM", id="signature-alone"),
    ],
)
def test_other_mask_is_not(mask: bytes) -> None:
    assert not black_and_white.are_black_and_white(count(mask))
    assert not black_and_white.are_black_and_white(count(mask, mask))


def test_colors_in_yaml_are_the_colors() -> None:
    assert yaml.safe_load(black_and_white.COLORS_TEXT) == black_and_white.COLORS


@pytest.mark.parametrize(
    ("numbers", "is_smoothed"),
    [
        pytest.param([0] * 500 + [255] * 500 + [*range(20, 120)], True, id="edges"),
        pytest.param([*range(16)] * 30 + [*range(240, 256)] * 30 + [*range(80, 120)], True, id="noise"),
        pytest.param([*range(34)] * 30 + [255] * 400, False, id="34-classes-and-edges-ignored"),
        pytest.param([*range(256)] * 3, False, id="picture"),
        pytest.param([0] * 900 + [*range(1, 182)], False, id="many-classes"),
        pytest.param([*range(0, 182, 6)] * 30 + [255] * 90, False, id="many-classes-and-edges-ignored"),
        pytest.param([0, 255], False, id="exact"),
    ],
)
def test_mask_with_grays_between_black_and_white_was_smoothed(numbers: list[int], is_smoothed: bool) -> None:
    assert black_and_white.are_smoothed(count(encode(numbers))) == is_smoothed
    halves = [encode(numbers[n::2]) for n in range(2)]
    assert black_and_white.are_smoothed(count(*halves)) == is_smoothed
