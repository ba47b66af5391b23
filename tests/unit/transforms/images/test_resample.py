"""Pictures scaled in C: the same bits as Pillow."""

from __future__ import annotations

import random
from typing import Any

import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam import _resize
from imagebeam.transforms.images import pillow_decoder, resample

NOISE = PIL.Image.frombytes("RGB", (301, 200), random.Random(5).randbytes(3 * 301 * 200))
ON_THIS_PROCESSOR = _resize.resize_pixels(NOISE.__arrow_c_array__()[1], NOISE.size, (1, 1), 0) is not None


def by_pillow(picture: PIL.Image.Image, size: tuple[int, int], name: str) -> PIL.Image.Image:
    return picture.resize(size, getattr(PIL.Image.Resampling, resample.FILTERS[name]))


@given(
    st.integers(1, 301),
    st.integers(1, 200),
    st.integers(1, 400),
    st.integers(1, 300),
    st.sampled_from([*resample.FILTERS]),
)
@settings(max_examples=200, deadline=None)
def test_pixels_are_those_of_pillow(width: int, height: int, to_width: int, to_height: int, name: str) -> None:
    picture, size = NOISE.crop((0, 0, width, height)), (to_width, to_height)
    found = resample.resize(picture, size, name)
    assert (found.mode, found.size) == ("RGB", size)
    assert found.tobytes() == by_pillow(picture, size, name).tobytes()


@given(
    st.sampled_from([1, 3]),
    st.integers(1, 70),
    st.integers(1, 70),
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from([*resample.FILTERS]),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_bare_pixels_are_those_of_pillow(
    channels: int, width: int, height: int, to_width: int, to_height: int, name: str, is_extreme: bool
) -> None:
    mode, size = {1: "L", 3: "RGB"}[channels], (to_width, to_height)
    picture = NOISE.crop((3, 5, 3 + width, 5 + height)).convert(mode)
    picture = picture.point(lambda value: 255 * (value > 127)) if is_extreme else picture
    for wanted in (size, (width, to_height), (to_width, height), (width, height)):
        found = resample.resize_bytes(picture.tobytes(), (height, width, channels), wanted, name)
        expected = by_pillow(picture, wanted, name).tobytes() if ON_THIS_PROCESSOR else None
        assert found == expected


def test_bare_pixels_of_a_larger_picture_are_those_of_pillow() -> None:
    for mode, channels in (("L", 1), ("RGB", 3)):
        picture = NOISE.convert(mode)
        found = resample.resize_bytes(picture.tobytes(), (200, 301, channels), (99, 401), "lanczos")
        assert found == (by_pillow(picture, (99, 401), "lanczos").tobytes() if ON_THIS_PROCESSOR else None)


@pytest.mark.parametrize("height", [200, 201, 300])
@pytest.mark.parametrize("to", [(2, 150), (16, 16), (1, 1), (5, 400)])
def test_very_tall_pictures_are_those_of_pillow_which_scales_their_height_first(
    height: int, to: tuple[int, int]
) -> None:
    picture = NOISE.convert("RGB").resize((2, height))
    expected = by_pillow(picture, to, "bilinear").tobytes()
    assert resample.resize(picture, to, "bilinear").tobytes() == expected
    assert resample.resize_bytes(picture.tobytes(), (height, 2, 3), to, "bilinear") in (None, expected)


@pytest.mark.parametrize("channels", [2, 4])
def test_bare_pixels_with_alpha_are_left_to_pillow(channels: int) -> None:
    assert resample.resize_bytes(bytes(4 * channels), (2, 2, channels), (1, 1), "area") is None


@pytest.mark.parametrize(
    "arguments",
    [
        (b"1234", 2, (1, 2), (1, 1), 0),
        (b"1234", 1, (2, 3), (1, 1), 0),
        (b"", 1, (0, 2), (1, 1), 0),
        (b"", 1, (2, 0), (1, 1), 0),
        (b"1234", 1, (2, 2), (0, 1), 0),
        (b"1234", 1, (2, 2), (1, 0), 0),
        (b"1234", 1, (2, 2), (1, 1), 4),
        (b"1234", 1, (2, 2), (1, 1), -1),
    ],
)
def test_bare_pixels_out_of_range_are_refused(arguments: Any) -> None:
    message = "channels, size, target or filter is out of range, or the bytes are of another size"
    with pytest.raises(ValueError, match=message):
        _resize.resize_bytes(*arguments)


@pytest.mark.parametrize("name", resample.FILTERS)
@pytest.mark.parametrize("size", [(301, 90), (90, 200), (1, 1), (301, 200), (1200, 900)])
def test_pixels_of_extremes_are_those_of_pillow(name: str, size: tuple[int, int]) -> None:
    black_or_white = NOISE.point(lambda value: 255 * (value > 127))
    assert resample.resize(black_or_white, size, name).tobytes() == by_pillow(black_or_white, size, name).tobytes()


def test_rgb_is_scaled_in_c_and_the_rest_by_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(PIL.Image.Image, "resize", lambda picture, *_: calls.append(picture.mode) or picture)
    for mode in ("RGB", "L", "LA", "RGBA"):
        resample.resize(NOISE.convert(mode), (20, 10), "bicubic")
    assert calls == [*([] if ON_THIS_PROCESSOR else ["RGB"]), "L", "LA", "RGBA"]


def test_picture_in_several_blocks_of_memory_is_scaled_by_pillow() -> None:
    picture = NOISE.resize((2500, 2000))
    with pytest.raises(ValueError, match="multiple"):
        picture.__arrow_c_array__()
    assert resample.resize(picture, (30, 20), "area").tobytes() == by_pillow(picture, (30, 20), "area").tobytes()


@pytest.mark.parametrize("without", ["extension", "pillow"])
def test_another_pillow_or_no_extension_leaves_it_to_pillow(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if without == "extension":
        monkeypatch.setattr(resample, "_resize", None)
    else:
        monkeypatch.setattr(pillow_decoder, "pillow_version", lambda: "12.1.1.post0")
    resample._has_same_pixels.cache_clear()
    try:
        monkeypatch.setattr(PIL.Image.Image, "resize", lambda picture, *_: "of Pillow")
        assert resample.resize(NOISE, (20, 10), "bicubic") == "of Pillow"
        assert resample.resize_bytes(b"1", (1, 1, 1), (2, 2), "bicubic") is None
    finally:
        resample._has_same_pixels.cache_clear()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((0, 200), (5, 5), 0), "size, target or filter is out of range"),
        (((301, 200), (5, 0), 0), "size, target or filter is out of range"),
        (((301, 200), (5, 5), 4), "size, target or filter is out of range"),
        (((301, 201), (5, 5), 0), "the array has not four bytes for each of the pixels"),
    ],
    ids=["no-width", "no-height", "no-filter", "other-size"],
)
def test_arguments_out_of_range_are_refused(arguments: Any, message: str) -> None:
    if not ON_THIS_PROCESSOR and "array" in message:
        return
    with pytest.raises(ValueError, match=message):
        _resize.resize_pixels(NOISE.__arrow_c_array__()[1], *arguments)


def test_array_of_another_kind_is_refused() -> None:
    if ON_THIS_PROCESSOR:
        with pytest.raises(ValueError, match="the array has not four bytes for each of the pixels"):
            _resize.resize_pixels(NOISE.convert("L").__arrow_c_array__()[1], NOISE.size, (5, 5), 0)
