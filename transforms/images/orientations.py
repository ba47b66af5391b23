"""The eight EXIF orientations: how they are read and reset, and how sizes, points and boxes change by a turn.

Cameras store pixels as the sensor reads them, and state in EXIF data where they belong. 1 is upright. 2, 3 and 4 mirror
the columns, both sides and the rows. 5 to 8 exchange rows and columns: 5 alone, 6 after mirroring the rows (a quarter
turn clockwise), 7 after mirroring both, 8 after mirroring the columns (a quarter turn counterclockwise).

Source: CIPA DC-008 (Exif 2.32), 4.5.2, 4.6.4 and 4.6.4.A, tag Orientation; TIFF 6.0, section 2.
"""

from __future__ import annotations

import struct
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
    xmin, _, ymin, _ = turn_box(Box(x, x, y, y), orientation)
    return xmin, ymin


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


EXIF_HEADER = b"Exif\0\0"  # before the EXIF data in an APP1 segment of a JPEG; a PNG's eXIf chunk has none
ORIENTATION_TAG = 0x0112
_MAIN_SIZES = 0x0100, 0x0101  # tags of width and height; some cameras write these too
_EXIF_TAG = 0x8769  # its value is the offset of the second folder of entries
_EXIF_SIZES = 0xA002, 0xA003
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_COUNTS = {order: struct.Struct(f"{order}H").unpack_from for order in "<>"}  # number of entries
_OFFSETS = {order: struct.Struct(f"{order}I").unpack_from for order in "<>"}
_ENTRIES = {order: struct.Struct(f"{order}HHI4s") for order in "<>"}  # tag, type, count, value
_VALUE_BYTE = 8  # offset of the value in an entry
_VALUES = {  # by TIFF type of an unsigned integer: 8, 16 and 32 bits
    1: {order: struct.Struct("B") for order in "<>"},
    3: {order: struct.Struct(f"{order}H") for order in "<>"},
    4: {order: struct.Struct(f"{order}I") for order in "<>"},
}


def read_orientation(data: bytes, start: int, end: int) -> int:
    """Returns the orientation, 1 to 8, in the EXIF data at `data[start:end]`, which begin with a TIFF header.

    Returns 1, which asks for no turn, if the EXIF data state none or are broken.
    """
    order = _BYTE_ORDERS.get(data[start : start + 4])
    if order is None or start + 8 > end:
        return checked_image.UPRIGHT
    entries = _find_entries(data, order, start + _OFFSETS[order](data, start + 4)[0], end)
    for tag, kind, number, value in _ENTRIES[order].iter_unpack(data[entries.start : entries.stop]):
        if tag == ORIENTATION_TAG and number == 1 and kind in _VALUES:
            found = _VALUES[kind][order].unpack_from(value)[0]
            return found if 1 <= found <= 8 else checked_image.UPRIGHT
    return checked_image.UPRIGHT


def set_upright(data: bytearray, start: int, end: int, swaps_sides: bool) -> None:
    """Sets the orientation in the EXIF data at `data[start:end]` to 1, in place; broken EXIF data stay as they are.

    Args:
        data: a file, or EXIF data alone.
        start: offset of the TIFF header, in bytes.
        end: offset after the EXIF data, in bytes.
        swaps_sides: whether the turn exchanges height and width; the sizes that the EXIF data state are then exchanged
            too. The thumbnail and its entries stay.
    """
    order = _BYTE_ORDERS.get(bytes(data[start : start + 4]))
    if order is None or start + 8 > end:
        return
    main = _find_entries(data, order, start + _OFFSETS[order](data, start + 4)[0], end)
    for position in main:
        tag, kind, number, _ = _ENTRIES[order].unpack_from(data, position)
        if number != 1 or kind not in _VALUES:
            continue
        if tag == ORIENTATION_TAG:
            _VALUES[kind][order].pack_into(data, position + _VALUE_BYTE, checked_image.UPRIGHT)
        elif tag == _EXIF_TAG and swaps_sides:
            offset = _VALUES[kind][order].unpack_from(data, position + _VALUE_BYTE)[0]
            _swap_entries(data, order, _find_entries(data, order, start + offset, end), _EXIF_SIZES)
    if swaps_sides:
        _swap_entries(data, order, main, _MAIN_SIZES)


def _find_entries(data: bytes | bytearray, order: str, first: int, end: int) -> range:
    """Returns the byte offsets of the entries in the folder at `first`; an empty range if it begins after `end`."""
    size = _ENTRIES[order].size
    count = min(_COUNTS[order](data, first)[0], (end - first - 2) // size) if first + 2 <= end else 0
    return range(first + 2, first + 2 + count * size, size)


def _swap_entries(data: bytearray, order: str, entries: range, tags: tuple[int, int]) -> None:
    """Exchanges all but the tags of two entries: type, count and value; changes nothing if one of them is missing."""
    found = {_COUNTS[order](data, position)[0]: slice(position + 2, position + entries.step) for position in entries}
    if found.keys() >= {*tags}:
        one, other = (found[tag] for tag in tags)
        data[one], data[other] = data[other], data[one]
