"""Reads the orientation in EXIF data: cameras store pixels as the sensor reads them, and state the turn.

Source: CIPA DC-008 (Exif 2.32), 4.5.2 and 4.6.4, and TIFF 6.0, section 2.
"""

from __future__ import annotations

import struct

from imagebeam.transforms.images import checked_image

HEADER = b"Exif\0\0"  # before the EXIF data in an APP1 segment of a JPEG; a PNG's eXIf chunk has none
ORIENTATION_TAG = 0x0112
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_COUNTS = {order: struct.Struct(f"{order}H").unpack_from for order in "<>"}  # number of entries
_OFFSETS = {order: struct.Struct(f"{order}I").unpack_from for order in "<>"}
_ENTRIES = {order: struct.Struct(f"{order}HHI4s") for order in "<>"}  # tag, type, count, value
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
    first = start + _OFFSETS[order](data, start + 4)[0]
    if first + 2 > end:
        return checked_image.UPRIGHT
    entry = _ENTRIES[order]
    count = min(_COUNTS[order](data, first)[0], (end - first - 2) // entry.size)
    for tag, kind, number, value in entry.iter_unpack(data[first + 2 : first + 2 + count * entry.size]):
        if tag == ORIENTATION_TAG and number == 1 and kind in _VALUES:
            found = _VALUES[kind][order].unpack_from(value)[0]
            return found if 1 <= found <= 8 else checked_image.UPRIGHT
    return checked_image.UPRIGHT
