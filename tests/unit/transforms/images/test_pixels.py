"""Pixels after a change, compared with the definition; that a whole image is changed rightly: test_prepare.py."""

from __future__ import annotations

import types

import numpy as np
import PIL.Image
import pytest

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, colors, pixels

NOISE = np.random.default_rng(3).integers(0, 256, (5, 4, 4), np.uint8)


def test_turn_upright_moves_pixels_as_exif_defines() -> None:
    for orientation, turned in [
        (1, NOISE),
        (2, NOISE[:, ::-1]),
        (3, NOISE[::-1, ::-1]),
        (4, NOISE[::-1]),
        (5, NOISE.transpose(1, 0, 2)),
        (6, NOISE.transpose(1, 0, 2)[:, ::-1]),
        (7, NOISE.transpose(1, 0, 2)[::-1, ::-1]),
        (8, NOISE.transpose(1, 0, 2)[::-1]),
    ]:
        picture = pixels.turn_upright(PIL.Image.fromarray(NOISE), orientation)
        np.testing.assert_array_equal(np.asarray(picture), turned)


def test_mode_without_a_rule_is_a_bad_image() -> None:
    with pytest.raises(checked_image.BadImageError, match=r"of Pillow's mode BGR;15: convert it to 8 bits a") as e:
        colors.to_eight_bits(types.SimpleNamespace(mode="BGR;15", format="BMP"))
    assert e.value.reason is Reason.UNSUPPORTED_FORMAT
