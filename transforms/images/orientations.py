"""The eight EXIF orientations: how sizes, points and boxes change when an image is turned upright.

An orientation states where the stored pixels belong. 1 is upright. 2, 3 and 4 mirror the columns, both sides and the
rows. 5 to 8 exchange rows and columns: 5 alone, 6 after mirroring the rows (a quarter turn clockwise), 7 after
mirroring both, 8 after mirroring the columns (a quarter turn counterclockwise).

Source: CIPA DC-008 (Exif 2.32), 4.6.4.A, tag Orientation.
"""

from __future__ import annotations

from typing import NamedTuple

from imagebeam.transforms.images import checked_image

_MIRROR_COLUMNS = frozenset({2, 3, 7, 8})  # left and right of the stored image change places
_MIRROR_ROWS = frozenset({3, 4, 6, 7})
_SWAP_SIDES = frozenset({5, 6, 7, 8})
_INVERSES = {6: 8, 8: 6}  # each of the others undoes itself


class Box(NamedTuple):
    """A box in an image, in fractions of its width and height: 0 is left or top, 1 is right or bottom."""

    xmin: float
    xmax: float
    ymin: float
    ymax: float


def check_orientation(orientation: int) -> None:
    """Refuses anything but 1 to 8.

    Raises:
        ValueError: if `orientation` is no EXIF orientation.
    """
    if not 1 <= orientation <= 8:
        raise ValueError(f"EXIF orientation {orientation!r}, expected 1 to 8")


def mirrors_columns(orientation: int) -> bool:
    """Returns whether turning upright exchanges left and right of the stored image, before sides are exchanged."""
    return orientation in _MIRROR_COLUMNS


def mirrors_rows(orientation: int) -> bool:
    """Returns whether turning upright exchanges top and bottom of the stored image, before sides are exchanged."""
    return orientation in _MIRROR_ROWS


def swaps_sides(orientation: int) -> bool:
    """Returns whether turning upright exchanges height and width."""
    return orientation in _SWAP_SIDES


def inverse(orientation: int) -> int:
    """Returns the orientation that undoes `orientation`."""
    return _INVERSES.get(orientation, orientation)


def turn_size(height: int, width: int, orientation: int) -> tuple[int, int]:
    """Returns height and width of the upright image, in pixels."""
    return (width, height) if swaps_sides(orientation) else (height, width)


def turn_point(x: float, y: float, orientation: int) -> tuple[float, float]:
    """Returns where a point of the stored image is in the upright image: x and y in fractions of width and height.

    Raises:
        ValueError: if `orientation` is not 1 to 8.
    """
    check_orientation(orientation)
    if orientation == checked_image.UPRIGHT:
        return x, y
    if mirrors_columns(orientation):
        x = 1 - x
    if mirrors_rows(orientation):
        y = 1 - y
    return (y, x) if swaps_sides(orientation) else (x, y)


def turn_box(box: Box, orientation: int) -> Box:
    """Returns where a box of the stored image is in the upright image.

    A box with xmin <= xmax and ymin <= ymax keeps that order. Turning a box back with `inverse` returns its numbers up
    to 2**-53, because 1 - x is rounded.

    Raises:
        ValueError: if `orientation` is not 1 to 8.
    """
    check_orientation(orientation)
    xmin, xmax, ymin, ymax = box
    if mirrors_columns(orientation):
        xmin, xmax = 1 - xmax, 1 - xmin
    if mirrors_rows(orientation):
        ymin, ymax = 1 - ymax, 1 - ymin
    return Box(ymin, ymax, xmin, xmax) if swaps_sides(orientation) else Box(xmin, xmax, ymin, ymax)
