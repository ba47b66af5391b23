from __future__ import annotations

import numpy as np
import pytest

from imagebeam.transforms.packed import found_array, packed_file
from tests import array_sets


def pieces_of(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "HWCN", "NWHC", "NCWH", "NHW", "HWN", "NWH"])
@pytest.mark.parametrize("piece_bytes", [7, 10_000])
def test_to_rows_of_any_layout_yields_height_width_channels(layout: str, order: str, piece_bytes: int) -> None:
    images = array_sets.pictures(0, 5, 4, 6, 3 if "C" in layout else 1)  # N, H, W, C
    given = images if "C" in layout else images[..., 0]
    values = given.transpose(["NHWC".replace("C", "C" * ("C" in layout)).index(axis) for axis in layout])
    array = found_array.FoundArray("x", values.shape, "|u1", order)
    axes = found_array.ImageAxes.parse(str(found_array.ImageAxes(layout)))
    assert (axes.num_images(values.shape), axes.image_shape(values.shape)) == (5, images.shape[1:])
    pieces = pieces_of(values.tobytes(order=order), piece_bytes)  # type: ignore[arg-type]
    assert b"".join(found_array.to_rows(pieces, array, axes)) == images.tobytes()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "NCWH"])
def test_to_rows_of_images_of_one_axis_unfolds_them(layout: str, order: str) -> None:
    images = array_sets.pictures(0, 5, 4, 6, 3)
    values = images.transpose(["NHWC".index(axis) for axis in layout]).reshape(5, -1)
    array = found_array.FoundArray("x", values.shape, "|u1", order)
    axes = found_array.ImageAxes.parse(str(found_array.ImageAxes(layout, (4, 6, 3))))
    assert (axes.num_images(values.shape), axes.image_shape(values.shape)) == (5, (4, 6, 3))
    rows = found_array.to_rows([values.tobytes(order=order)], array, axes)  # type: ignore[arg-type]
    assert b"".join(rows) == images.tobytes()


def test_to_rows_of_scattered_images_takes_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_file, "PIECE_BYTES", 16)
    images = array_sets.pictures(0, 50, 4, 6, 3)
    array = found_array.FoundArray("x", (4, 6, 3, 50), "|u1")
    rows = list(found_array.to_rows([np.moveaxis(images, 0, -1).tobytes()], array, found_array.ImageAxes("HWCN")))
    assert (len(rows), b"".join(rows)) == (50, images.tobytes())


@pytest.mark.parametrize(
    ("shape", "is_matlab", "expected"),
    [
        pytest.param((9, 28, 28), False, "NHW", id="gray"),
        pytest.param((9, 28, 28, 3), False, "NHWC", id="color"),
        pytest.param((9, 3, 28, 28), False, "NCHW", id="planes"),
        pytest.param((9, 784), False, "NHWC-28x28x1", id="square-rows"),
        pytest.param((32, 32, 3, 9), True, "HWCN", id="matlab"),
        pytest.param((9, 32, 32, 3), True, "NHWC", id="matlab-by-python"),
        pytest.param((28, 28, 9), True, "HWN", id="matlab-gray"),
        pytest.param((9, 3072), False, None, id="color-rows"),
        pytest.param((9, 28, 28, 28), False, None, id="volume"),
        pytest.param((9,), False, None, id="list"),
        pytest.param((), False, None, id="number"),
    ],
)
def test_guess_takes_what_leaves_no_doubt(shape: tuple[int, ...], is_matlab: bool, expected: str | None) -> None:
    axes = found_array.guess(shape, is_matlab)
    assert (None if axes is None else str(axes)) == expected
