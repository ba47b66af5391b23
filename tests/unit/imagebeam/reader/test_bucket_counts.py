"""The counts of images in buckets, compared with sums over single images."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.reader import aspect_buckets, bucket_counts

SIZES = [(48, 16), (32, 24), (32, 32), (24, 32), (16, 48)]
EACH_SIDE = st.integers(1, 90)
SIDES = st.lists(st.one_of(st.tuples(EACH_SIDE, EACH_SIDE), st.just((0, 0)), st.just((65535, 20000))), max_size=60)
ENLARGE = st.sampled_from([None, 0.5, 1.0, 2.0])


def to_array(sides: list[tuple[int, int]]) -> np.ndarray:
    return np.array(sides, np.uint16).reshape(-1, 2)


@given(SIDES, ENLARGE)
def test_counts_are_sums_over_the_images(sides: list[tuple[int, int]], max_enlarge: float | None) -> None:
    found = bucket_counts.count(bucket_counts.image_sizes(to_array(sides)), SIZES, max_enlarge)
    known = [each for each in sides if all(each)]
    chosen = aspect_buckets.choose(to_array(known), SIZES, max_enlarge).tolist()
    assert (found.num_small, found.num_unknown) == (chosen.count(-1), len(sides) - len(known))
    pixels, cropped = Fraction(0), Fraction(0)
    for number, (bucket_height, bucket_width) in enumerate(SIZES):
        inside = [each for each, bucket in zip(known, chosen, strict=True) if bucket == number]
        scales = [max(Fraction(bucket_height, height), Fraction(bucket_width, width)) for height, width in inside]
        kept = sum(Fraction(bucket_height * bucket_width) / scale**2 for scale in scales)
        area = sum(height * width for height, width in inside)
        assert (found.images[number], found.pixels[number]) == (len(inside), area)
        assert found.enlarged[number] == sum(scale > 1 for scale in scales)
        assert np.isclose(found.cropped_part()[number], float((area - kept) / max(area, 1)), atol=1e-9)
        pixels, cropped = pixels + area, cropped + area - kept
    assert np.isclose(found.cropped_part_of_all(), float(cropped / max(pixels, 1)), atol=1e-9)


@given(SIDES, ENLARGE, st.integers(1, 8))
def test_proposed_buckets_have_a_batch_of_images_and_keep_their_order(
    sides: list[tuple[int, int]], max_enlarge: float | None, batch_size: int
) -> None:
    sizes = bucket_counts.image_sizes(to_array(sides))
    found = bucket_counts.propose(sizes, SIZES, max_enlarge, batch_size)
    assert len(found.sizes) == 1 or found.images.min() >= batch_size
    assert list(found.sizes) == [each for each in SIZES if each in found.sizes]
    whole = bucket_counts.count(sizes, SIZES, max_enlarge)
    if whole.images.min() >= batch_size:
        assert list(found.sizes) == SIZES
    again = bucket_counts.count(sizes, found.sizes, max_enlarge)
    assert again.images.tolist() == found.images.tolist() and again.num_small == found.num_small >= whole.num_small
