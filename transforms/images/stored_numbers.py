"""Makes the stored image of the numbers in a file: their bands, type, turn, size and encoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from imagebeam.reader import bare_pixels
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import (
    checked_image,
    image_formats,
    orientations,
    pixel_type,
    pixels,
    resample,
    structure,
)
from imagebeam.transforms.images.pillow_decoder import pillow

_ROWS_AT_ONCE = 256  # converted in float64: a whole image at once would take eight times its memory
_KINDS = {"u": "whole numbers", "i": "signed numbers", "f": "floating-point numbers"}
# By EXIF orientation: how an array [height, width, bands] is turned upright.
_TURNS: Mapping[int, Callable[[np.ndarray], np.ndarray]] = {
    2: lambda values: values[:, ::-1],
    3: lambda values: values[::-1, ::-1],
    4: lambda values: values[::-1],
    5: lambda values: values.swapaxes(0, 1),
    6: lambda values: values.swapaxes(0, 1)[:, ::-1],
    7: lambda values: values.swapaxes(0, 1)[::-1, ::-1],
    8: lambda values: values.swapaxes(0, 1)[::-1],
}


def convert(numbers: np.ndarray, wanted: pixel_type.PixelType) -> np.ndarray:
    """Returns the bands of a file that are stored, of the type in which they are.

    Args:
        numbers: [height, width, bands] as the file has them, whole or floating-point numbers of any size.
        wanted: what is stored.

    Raises:
        BadImageError: if there are other bands than expected, or the numbers do not fit into the type unscaled.
    """
    numbers = _choose(numbers, wanted.bands)
    if wanted.range is not None:
        return _scale(numbers, np.dtype(wanted.dtype), *wanted.range)
    given = numbers.dtype
    found = f"{_KINDS[given.kind]} of {8 * given.itemsize} bits"
    if wanted.dtype == pixel_type.FLOAT32:
        return _to_float32(numbers, found)
    if given == np.dtype(wanted.dtype):
        return numbers
    if given == np.uint8:
        remedy = f"set {wanted.section}.range: [0, 65535] to keep the numbers of all files, or [0, 255] to scale them"
    else:
        remedy = pixel_type.set_range(wanted.section) + (" or uint16" if given == np.uint16 else "")
    raise checked_image.other_numbers(f"{found}, and {wanted.section}.dtype is {wanted.dtype}", remedy)


def _choose(numbers: np.ndarray, bands: tuple[int, ...] | str | None) -> np.ndarray:
    there = numbers.shape[2]
    if isinstance(bands, tuple):
        if max(bands) > there:
            found = f"an image of {there} band{'s' * (there > 1)}, and image.bands asks for band {max(bands)}"
            raise checked_image.other_numbers(found, "leave it out, or name bands that all files have, counted from 1")
        return numbers[:, :, [band - 1 for band in bands]]
    if bands is None and there not in pixel_type.PICTURE_BANDS:
        raise checked_image.other_numbers(f"an image of {there} bands", pixel_type.several_bands(there))
    return numbers


def _scale(numbers: np.ndarray, dtype: np.dtype, low: float, high: float) -> np.ndarray:
    """Maps `low` to 0 and `high` to the largest value, rounded to the nearest; not-a-number becomes 0."""
    largest = np.iinfo(dtype).max
    found = np.empty(numbers.shape, dtype)
    for start in range(0, len(numbers), _ROWS_AT_ONCE):
        rows = (numbers[start : start + _ROWS_AT_ONCE].astype(np.float64) - low) * largest / (high - low)
        rows = np.nan_to_num(rows, nan=0, posinf=largest, neginf=0)
        found[start : start + _ROWS_AT_ONCE] = np.rint(rows).clip(0, largest)
    return found


def _to_float32(numbers: np.ndarray, found: str) -> np.ndarray:
    """Rounds fractions to the nearest; refuses whole numbers that are not exact, and what becomes infinite."""
    with np.errstate(over="ignore"):  # looked at below
        stored = numbers.astype(np.float32)
    if numbers.dtype.itemsize > 2:
        is_whole = numbers.dtype.kind in "iu"
        lost = stored.astype(np.float64) != numbers if is_whole else np.isinf(stored) & np.isfinite(numbers)
        if lost.any():
            raise checked_image.other_numbers(
                f"{found}: float32 cannot hold {numbers[lost][0]}", checked_image.CONVERT_FIRST
            )
    return stored


def turn_upright(values: np.ndarray, done: int, wanted: int) -> np.ndarray:
    """Returns an array [height, width, bands] turned.

    Args:
        values: the pixels.
        done: the EXIF orientation that the decoder has applied already; UPRIGHT if it does not do so.
        wanted: the EXIF orientation that is to be applied.
    """
    if done == wanted:
        return values
    return _TURNS[wanted if done == checked_image.UPRIGHT else orientations.inverse(done)](values)


def resize(values: np.ndarray, scaling: resample.Scaling) -> np.ndarray:
    """Returns an array [height, width, bands] scaled by Pillow in float32, and cropped or padded with 0.

    Whole numbers are rounded to the nearest.
    """
    height, width, bands = values.shape
    target = scaling.scaled(width, height)
    if target != (width, height):
        filter = getattr(pillow().Resampling, resample.FILTERS[scaling.filter])
        scaled = np.empty((target[1], target[0], bands), values.dtype)
        for band in range(bands):
            one = pillow().fromarray(values[:, :, band].astype(np.float32)).resize(target, filter)
            scaled[:, :, band] = _round(np.asarray(one), values.dtype)
        values = scaled
    if scaling.size is None or target == scaling.size[::-1]:
        return values
    left, upper, width, height = scaling.part(width, height)
    if scaling.fit == "crop":
        return values[upper : upper + height, left : left + width]
    padded = np.zeros((height, width, bands), values.dtype)
    padded[-upper : target[1] - upper, -left : target[0] - left] = values
    return padded


def _round(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return values if dtype.kind == "f" else np.rint(values).clip(0, np.iinfo(dtype).max)


def encode(values: np.ndarray, format: str, encoding: pixels.Encoding) -> checked_image.Image:
    """Returns the stored image of pixels.

    Args:
        values: [height, width, bands] of uint8, uint16 or float32.
        format: "raw", or one that holds them: a PNG holds 1 or 3 bands of uint8 or uint16.
        encoding: settings of the format.

    Raises:
        BadImageError: if the image is larger than the format or an example allows.
    """
    values = np.ascontiguousarray(values)
    height, width, bands = values.shape
    if format == image_formats.RAW:
        if values.nbytes > structure.MAX_IMAGE_BYTES:
            found = f"{height} x {width} x {bands} numbers of {values.dtype} are {values.nbytes:,} bytes"
            detail = f"{found}, a tf.train.Example takes {structure.MAX_IMAGE_BYTES:,}"
            raise checked_image.BadImageError(Reason.TOO_LARGE, detail)
        data, colorspace = values.astype(values.dtype.newbyteorder("<")).tobytes(), bare_pixels.colorspace_of(bands)
    elif values.dtype == np.uint8:
        return encoding.encode(pillow().fromarray(values[:, :, 0] if bands == 1 else values), format)
    else:
        if max(height, width) > checked_image.MAX_SIDE_PX[format]:
            raise checked_image.too_many_pixels(height, width)
        data, colorspace = _to_png(values, encoding.png_level), structure.RAW_COLORSPACES[bands]
    return checked_image.Image(data, format, height, width, bands, colorspace, dtype=values.dtype.name)


def _to_png(values: np.ndarray, level: int) -> bytes:
    if values.shape[2] == 1:
        return pixels.save(pillow().fromarray(values[:, :, 0]), image_formats.PNG, {"compress_level": level})
    encoded: Any = pixel_type.imagecodecs().png_encode(values, level=level)
    return bytes(encoded)
