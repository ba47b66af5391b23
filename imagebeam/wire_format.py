"""Writes and reads the fields of protocol buffers.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LENGTH_DELIMITED = 2  # wire type
FIXED_SIZES = {1: 8, 5: 4}  # bytes of a field, by wire type
MAX_VARINT_BITS = 70  # ten bytes
_UINT64 = (1 << 64) - 1
_ONE_BYTE = [bytes((value,)) for value in range(0x80)]
_PIECE_BYTES = 1 << 16  # varints that are unpacked at once


def varint(value: int) -> bytes:
    """Returns the varint of a number; of a negative one that of its two's complement in 64 bits."""
    if 0 <= value < 0x80:  # these three cases are the same as the loop, and several times as fast
        return _ONE_BYTE[value]
    if 0 < value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if 0 < value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    value &= _UINT64
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def delimited(tag: bytes, payload: bytes) -> bytes:
    """Returns a length-delimited field."""
    return tag + varint(len(payload)) + payload


def fields_of(data: bytes | memoryview) -> list[tuple[int, int, Any, int]]:
    """Returns the fields of a message: number, wire type, payload and where the payload starts.

    Raises:
        IndexError: if the message is broken.
    """
    view, position = memoryview(data), 0
    found: list[tuple[int, int, Any, int]] = []
    while position < len(view):
        tag, position = read_varint(view, position)
        wire_type = tag & 7
        if wire_type == LENGTH_DELIMITED:
            size, position = read_varint(view, position)
            if position + size > len(view):
                raise IndexError(f"a field of {size} bytes ends beyond the message")
            found.append((tag >> 3, wire_type, view[position : position + size], position))
            position += size
        elif wire_type == 0:
            start = position
            value, position = read_varint(view, position)
            found.append((tag >> 3, wire_type, value, start))
        elif wire_type == 5:
            found.append((tag >> 3, wire_type, view[position : position + 4], position))
            position += 4
        else:
            raise IndexError(f"wire type {wire_type}")
    return found


def read_varint(view: memoryview, position: int) -> tuple[int, int]:
    """Returns the varint at `position`, and the position after it.

    Raises:
        IndexError: if it does not end, or not within ten bytes.
    """
    value = shift = 0
    while True:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _UINT64, position
        shift += 7
        if shift == MAX_VARINT_BITS:
            raise IndexError("a varint of more than ten bytes")


def int_values(wire_type: int, payload: Any) -> Iterator[int]:
    """Yields the values in one field of an Int64List, packed or not."""
    if wire_type == 0:
        yield signed(payload)
        return
    position = 0
    while position < len(payload):
        value, position = read_varint(payload, position)
        yield signed(value)


def signed(value: int) -> int:
    """Decodes a 64-bit two's complement value."""
    return value - (1 << 64) if value >> 63 else value


def unpack_varints(packed: Any) -> Any:
    """Returns consecutive varints, uint8 [m], as int64 [n].

    Raises:
        IndexError: if one does not end, or not within ten bytes.
    """
    import numpy as np

    values = np.empty(np.count_nonzero(packed < 0x80), np.int64)
    first = start = 0
    while start < len(packed):  # in pieces, to bound the memory of intermediate arrays
        ends = np.flatnonzero(packed[start : start + _PIECE_BYTES] < 0x80)
        if not len(ends):
            raise IndexError("a varint is cut short, or has more than ten bytes")
        size = int(ends[-1]) + 1
        values[first : first + len(ends)] = _unpack_piece(packed[start : start + size], ends)
        first, start = first + len(ends), start + size
    return values


def _unpack_piece(packed: Any, ends: Any) -> Any:
    """Returns varints whose last bytes are at `ends`, with one pass for each byte of the longest."""
    import numpy as np

    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if 7 * longest > MAX_VARINT_BITS:
        raise IndexError("a varint of more than ten bytes")
    values = packed[starts].astype(np.uint64) & 0x7F
    for place in range(1, longest):
        here = np.flatnonzero(lengths > place)
        values[here] |= (packed[starts[here] + place] & 0x7F).astype(np.uint64) << np.uint64(7 * place)
    return values.view(np.int64)
