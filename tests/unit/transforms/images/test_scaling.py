"""Sizes after scaling, cropping and padding, held against their definition."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.transforms.images.prepare import ImagePolicy
from imagebeam.transforms.images.resample import FILTERS, Scaling
from tests import pictures

SIDES = st.integers(1, 3000)


def test_scaled_size_of_400_x_200() -> None:
    for scaling, expected in [
        (Scaling(shortest_side=100), (200, 100)),  # shorter
        (Scaling(longest_side=100), (100, 50)),  # longer
        (Scaling(shortest_side=100, longest_side=100), (100, 50)),  # both-hold
        (Scaling(max_pixels=20_000), (200, 100)),  # pixels
        (Scaling(max_pixels=20_000, longest_side=100), (100, 50)),  # pixels-and-longer
        (Scaling(shortest_side=300), (400, 200)),  # small-stays
        (Scaling(shortest_side=300, enlarge=True), (600, 300)),  # small-is-enlarged
        (Scaling(shortest_side=300, enlarge=True, max_pixels=20_000), (200, 100)),  # never-above-pixels
        (Scaling((50, 60)), (60, 50)),  # exact
        (Scaling((50, 60), "crop"), (100, 50)),  # crop
        (Scaling((50, 60), "pad"), (60, 30)),  # pad
    ]:
        assert scaling.scaled(400, 200) == expected
        assert scaling.scaled(200, 400) == expected[::-1] or scaling.size is not None


@given(SIDES, SIDES, st.integers(1, 10**6))
def test_max_pixels_is_never_exceeded_and_almost_reached(width: int, height: int, max_pixels: int) -> None:
    found = Scaling(max_pixels=max_pixels).scaled(width, height)
    assert found[0] * found[1] <= max(max_pixels, max(found))  # a line of one pixel may be longer
    if width * height <= max_pixels:
        assert found == (width, height)


@given(SIDES, SIDES, st.integers(1, 300), st.integers(1, 300), st.sampled_from(["stretch", "crop", "pad"]))
def test_exact_size_is_reached(width: int, height: int, to_height: int, to_width: int, fit: str) -> None:
    scaling = Scaling((to_height, to_width), fit)
    between = scaling.scaled(width, height)
    if fit == "crop":
        assert between[0] >= to_width and between[1] >= to_height and (between[0], between[1])[0:2] != (0, 0)
    elif fit == "pad":
        assert between[0] <= to_width and between[1] <= to_height
    assert to_width in between or to_height in between


def test_crop_keeps_the_middle_and_padding_has_the_background() -> None:
    for mode in ["L", "LA", "RGB", "RGBA"]:
        picture = PIL.Image.new("RGB", (90, 30), (200, 0, 0))
        picture.paste((0, 0, 200), (30, 0, 60, 30))
        picture = picture.convert(mode)
        cropped = Scaling((30, 30), "crop").apply(picture)
        assert len(cropped.getcolors()) == 1 and cropped.getpixel((0, 0)) == picture.getpixel((45, 15))
        padded = Scaling((90, 90), "pad").apply(picture, (10, 20, 30))
        assert padded.size == (90, 90)
        assert padded.getpixel((45, 45)) == picture.getpixel((45, 15))
        corner = PIL.Image.new("RGB", (1, 1), (10, 20, 30)).convert(mode).getpixel((0, 0))
        assert padded.getpixel((0, 0)) == padded.getpixel((89, 89)) == corner


def test_jpeg_decoded_at_a_part_of_its_size_looks_like_one_decoded_whole() -> None:
    for name in FILTERS:
        for target in [64, 150, 240]:
            data = pictures.encode(pictures.photo(720, 540), quality=95)
            scaling = Scaling(shortest_side=target, filter=name)
            found = ImagePolicy(encode="raw", scaling=scaling).prepare(data)
            whole = np.asarray(scaling.apply(PIL.Image.open(io.BytesIO(data))))
            assert (found.height, found.width) == whole.shape[:2]
            pixels = np.frombuffer(found.data, np.uint8).reshape(whole.shape)
            assert pictures.psnr(pixels, whole) > 38
