"""Pixels after a change, compared with the definition; that a whole image is changed rightly: test_prepare.py."""

from __future__ import annotations

import io
import types

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, encoders, pixels, resample

NOISE = np.random.default_rng(3).integers(0, 256, (5, 4, 4), np.uint8)
SHAPES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


@pytest.mark.parametrize(("channels", "mode"), SHAPES.items())
def test_from_bytes_keeps_the_order_of_rows_pixels_and_channels(channels: int, mode: str) -> None:
    values = np.ascontiguousarray(NOISE[..., :channels])
    picture = pixels.from_bytes(values.tobytes(), values.shape)
    assert (picture.mode, picture.size) == (mode, (4, 5))
    np.testing.assert_array_equal(np.asarray(picture).reshape(values.shape), values)


@pytest.mark.parametrize(
    ("orientation", "turned"),
    [
        (1, NOISE),
        (2, NOISE[:, ::-1]),
        (3, NOISE[::-1, ::-1]),
        (4, NOISE[::-1]),
        (5, NOISE.transpose(1, 0, 2)),
        (6, NOISE.transpose(1, 0, 2)[:, ::-1]),
        (7, NOISE.transpose(1, 0, 2)[::-1, ::-1]),
        (8, NOISE.transpose(1, 0, 2)[::-1]),
    ],
)
def test_turn_upright_moves_pixels_as_exif_defines(orientation: int, turned: np.ndarray) -> None:
    picture = pixels.turn_upright(PIL.Image.fromarray(NOISE), orientation)
    np.testing.assert_array_equal(np.asarray(picture), turned)


def test_orientation_outside_one_to_eight_counts_as_upright() -> None:
    for stated, expected in ((0, 1), (9, 1), (6, 6)):
        exif = PIL.Image.Exif()
        exif[0x0112] = stated
        buffer = io.BytesIO()
        PIL.Image.fromarray(NOISE).save(buffer, "PNG", exif=exif)
        assert pixels.orientation(PIL.Image.open(buffer)) == expected


def test_sixteen_bits_keep_the_upper_eight() -> None:
    values = np.array([[0, 255, 256, 0x7FFF, 0xFFFF]], np.uint16)
    np.testing.assert_array_equal(
        np.asarray(pixels.to_eight_bits(PIL.Image.fromarray(values))), np.array([[0, 0, 1, 0x7F, 0xFF]])
    )


def test_mode_without_a_rule_is_a_bad_image() -> None:
    with pytest.raises(checked_image.BadImageError, match=r"of Pillow's mode BGR;15: convert it to 8 bits a") as e:
        pixels.to_eight_bits(types.SimpleNamespace(mode="BGR;15", format="BMP"))
    assert e.value.reason is Reason.UNSUPPORTED_FORMAT


@pytest.mark.parametrize("mode", SHAPES.values())
@pytest.mark.parametrize(
    ("color", "expected"),
    [
        ("keep", {"L": "L", "LA": "LA", "RGB": "RGB", "RGBA": "RGBA"}),
        ("rgb", dict.fromkeys(SHAPES.values(), "RGB")),
        ("gray", dict.fromkeys(SHAPES.values(), "L")),
        ("mean", dict.fromkeys(SHAPES.values(), "L")),
    ],
)
def test_recolor_gives_the_channels_of_the_option(color: str, expected: dict[str, str], mode: str) -> None:
    channels = {name: number for number, name in SHAPES.items()}[mode]
    values = np.ascontiguousarray(NOISE[..., :channels])
    picture = pixels.from_bytes(values.tobytes(), values.shape)
    found = pixels.recolor(picture, color)
    assert found.mode == expected[mode]
    if color == "rgb":
        opaque = values[..., : 1 if channels < 3 else 3]
        np.testing.assert_array_equal(np.asarray(found), np.broadcast_to(opaque, (5, 4, 3)))


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60), st.booleans())
def test_resize_never_enlarges_to_a_shortest_side(width: int, height: int, side: int, has_size: bool) -> None:
    picture = PIL.Image.new("L", (width, height))
    found = resample.Scaling((7, 9) if has_size else None, shortest_side=side).apply(picture)
    if has_size:
        assert found.size == (9, 7)
    elif min(width, height) <= side:
        assert found is picture
    else:
        assert min(found.size) == side


def test_encode_leaves_out_the_alpha_that_jpeg_cannot_store() -> None:
    found = {
        encoding: encoders.USUAL.encode(PIL.Image.fromarray(NOISE), encoding, 90)
        for encoding in ("jpeg", "png", "raw", "int64_list", "float_list")
    }
    assert [(image.format, image.channels) for image in found.values()] == [
        ("jpeg", 3),
        ("png", 4),
        ("raw", 4),
        ("raw", 4),
        ("raw", 4),
    ]
    assert found["raw"].data == NOISE.tobytes()


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_sum_up_counts_gray_three_times_and_leaves_alpha_out(channels: int) -> None:
    values = np.ascontiguousarray(NOISE[..., :channels])
    sums = pixels.sum_up(pixels.from_bytes(values.tobytes(), values.shape))
    opaque = np.broadcast_to(values[..., : 1 if channels < 3 else 3], (5, 4, 3)).reshape(-1, 3).astype(int)
    assert sums == (20, tuple(opaque.sum(0)), tuple((opaque**2).sum(0)))
