"""Points, boxes and sizes of turned images, compared with turned pixels."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from PIL import Image

from imagebeam.transforms.images import orientations, pixels
from imagebeam.transforms.images.orientations import Box
from tests import pictures

ORIENTATIONS = range(1, 9)
fractions = strategies.floats(0, 1)


def test_box_holds_the_same_pixels() -> None:
    for orientation in ORIENTATIONS:
        picture = Image.fromarray(np.arange(8 * 16, dtype=np.uint8).reshape(8, 16))
        turned = pixels.turn_upright(picture, orientation)
        assert turned.size[::-1] == orientations.turn_size(8, 16, orientation)
        assert (np.asarray(turned) == pictures.turn_pixels(np.asarray(picture), orientation)).all()

        def cut(image: Image.Image, box: Box) -> np.ndarray:
            width, height = image.size
            return np.asarray(image.crop([round(side) for side in (
                box.xmin * width, box.ymin * height, box.xmax * width, box.ymax * height)]))  # fmt: skip

        box = Box(xmin=2 / 16, xmax=7 / 16, ymin=1 / 8, ymax=4 / 8)
        expected = pictures.turn_pixels(cut(picture, box), orientation)
        assert cut(turned, orientations.turn_box(box, orientation)).tolist() == expected.tolist()


def test_point_is_at_the_same_pixel() -> None:
    for orientation in ORIENTATIONS:
        for row in [0, 3, 7]:
            for column in [0, 5, 15]:
                image = np.zeros((8, 16), np.uint8)
                image[row, column] = 1
                turned = pictures.turn_pixels(image, orientation)
                x, y = orientations.turn_point((column + 0.5) / 16, (row + 0.5) / 8, orientation)
                assert turned[int(y * turned.shape[0]), int(x * turned.shape[1])] == 1


@hypothesis.given(fractions, fractions, fractions, fractions, strategies.sampled_from(ORIENTATIONS))
@hypothesis.settings(deadline=None)
def test_turning_there_and_back_is_the_identity(xmin: float, xmax: float, ymin: float, ymax: float, turn: int) -> None:
    box = Box(min(xmin, xmax), max(xmin, xmax), min(ymin, ymax), max(ymin, ymax))
    turned = orientations.turn_box(box, turn)
    assert turned.xmin <= turned.xmax
    assert turned.ymin <= turned.ymax
    back = orientations.turn_box(turned, orientations.inverse(turn))
    assert back == pytest.approx(box, rel=0, abs=2**-53)
    assert np.float32(back).tolist() == pytest.approx(np.float32(box).tolist(), rel=0, abs=2**-53)
    corner = orientations.turn_point(box.xmin, box.ymin, turn)
    assert corner[0] in (turned.xmin, turned.xmax)
    assert corner[1] in (turned.ymin, turned.ymax)
    point = orientations.turn_point(*corner, orientations.inverse(turn))
    assert point == pytest.approx((box.xmin, box.ymin), rel=0, abs=2**-53)


def test_unknown_orientation_is_refused() -> None:
    for orientation in (0, 9):
        with pytest.raises(ValueError, match=f"EXIF orientation {orientation}, expected 1 to 8"):
            orientations.turn_box(Box(0, 1, 0, 1), orientation)
        with pytest.raises(ValueError, match=f"EXIF orientation {orientation}, expected 1 to 8"):
            orientations.turn_point(0, 0, orientation)
