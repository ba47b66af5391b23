"""Masks that are drawn in black and white."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image
import yaml

from imagebeam.transforms.images import mask_pixels


def encode(numbers: list[int], format: str = "PNG", mode: str = "L", **options: object) -> bytes:
    """Returns a picture of one row."""
    picture = PIL.Image.fromarray(np.array([numbers], np.uint8), "L").convert(mode)
    file = io.BytesIO()
    picture.save(file, format, **options)
    return file.getvalue()


def count(*masks: bytes) -> list[dict[int, int]]:
    return [mask_pixels.count_numbers(mask) for mask in masks]


def test_mask_of_0_and_255_is_black_and_white() -> None:
    for format in ["PNG", "BMP", "TIFF"]:
        assert mask_pixels.are_black_and_white(count(encode([0, 255, 255], format)))
        assert mask_pixels.are_black_and_white(count(encode([0, 0], format), encode([255, 0], format)))


def test_other_mask_is_not() -> None:
    for mask in [
        encode([0, 1, 255]),  # with-a-class
        encode([0, 0]),  # all-black
        encode([255, 255]),  # all-white
        encode([0, 255], mode="1"),  # one-bit
        encode([0, 255], mode="RGB"),  # colors
        encode([0, 255], mode="P"),  # palette
        encode([0, 255], "TIFF", mode="1"),  # tiff-of-one-bit
        encode([0, 255], "BMP", mode="1"),  # bmp-of-one-bit
        encode([0, 255], "JPEG"),  # jpeg
        encode([0, 255])[:43],  # cut-short
        b"",  # empty
        b"BM",  # signature-alone
    ]:
        assert not mask_pixels.are_black_and_white(count(mask))
        assert not mask_pixels.are_black_and_white(count(mask, mask))


def test_colors_in_yaml_are_the_colors() -> None:
    assert yaml.safe_load(mask_pixels.BLACK_AND_WHITE_TEXT) == mask_pixels.BLACK_AND_WHITE


def test_mask_with_grays_between_black_and_white_was_smoothed() -> None:
    for numbers, is_smoothed in [
        ([0] * 500 + [255] * 500 + [*range(20, 120)], True),  # edges
        ([*range(16)] * 30 + [*range(240, 256)] * 30 + [*range(80, 120)], True),  # noise
        ([*range(34)] * 30 + [255] * 400, False),  # 34-classes-and-edges-ignored
        ([*range(256)] * 3, False),  # picture
        ([0] * 900 + [*range(1, 182)], False),  # many-classes
        ([*range(0, 182, 6)] * 30 + [255] * 90, False),  # many-classes-and-edges-ignored
        ([0, 255], False),  # exact
    ]:
        assert mask_pixels.are_smoothed(count(encode(numbers))) == is_smoothed
        halves = [encode(numbers[n::2]) for n in range(2)]
        assert mask_pixels.are_smoothed(count(*halves)) == is_smoothed
