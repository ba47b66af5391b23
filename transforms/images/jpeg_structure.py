"""Whether a JPEG is whole: its segments, tables and scans, without decoding them.

Source: ITU-T T.81, annex B, https://www.w3.org/Graphics/JPEG/itu-t81.pdf; what decoders tolerate: jdmarker.c,
jdinput.c, jdhuff.c and jdphuff.c of libjpeg-turbo, and trials with TensorFlow 2.21 and Pillow 12.
"""

from __future__ import annotations

import contextlib
import functools
import re
import struct
from typing import NamedTuple

from imagebeam.transforms.images import checked_image, exif
from imagebeam.transforms.images.checked_image import Image, corrupt

# Markers of two bytes; most begin a segment, whose first two bytes are its length.
_EOI, _SOS, _DHT, _DQT, _APP1 = 0xD9, 0xDA, 0xC4, 0xDB, 0xE1
# Baseline, extended sequential, progressive; the last two arithmetic: TensorFlow 2.21 and Pillow 12 decode all five.
_FRAMES = frozenset({0xC0, 0xC1, 0xC2, 0xC9, 0xCA})
_HUFFMAN_SEQUENTIAL, _HUFFMAN_PROGRESSIVE = frozenset({0xC0, 0xC1}), 0xC2
_OTHER_FRAMES = frozenset({0xC3, 0xC5, 0xC6, 0xC7, 0xCB, 0xCD, 0xCE, 0xCF, 0xDE, 0xF7})  # lossless and hierarchical
_METADATA = frozenset({*range(0xE0, 0xF0), 0xFE})  # APPn, COM
_TABLES = frozenset({_DHT, _DQT})
_SEGMENTS = _FRAMES | _METADATA | _TABLES | {_SOS, 0xCC, 0xDC, 0xDD}  # the last three: DAC, DNL, DRI
_COLORSPACES = {1: "GRAY", 3: "RGB", 4: "CMYK"}  # as decoded: YCbCr becomes RGB, YCCK becomes CMYK

_AC = 0x10  # of a Huffman table: the class in the upper half of its head; the lower is its number, for DC and AC apart
# Those of T.81, annex K.3, each a bit: decoders use them where a sequential JPEG has none, as frames of Motion JPEG.
_STANDARD_HUFFMAN = 1 << 0x00 | 1 << 0x01 | 1 << _AC | 1 << (_AC | 1)

_search_marker = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]").search
_unpack_length = struct.Struct(">H").unpack_from
_unpack_frame = struct.Struct(">BHHB").unpack_from


def _find_marker(data: bytes, position: int) -> int:
    """Where the next marker begins that is neither a restart marker nor, in entropy-coded data, a stuffed 0xFF; or -1.

    Repeated 0xFF is fill. 31 us for 105 KB, of which 400 times FF 00: as fast as counting the bytes 0xFF.
    """
    match = _search_marker(data, position)
    return -1 if match is None else match.start()


with contextlib.suppress(ImportError):  # was not built: the same in Python
    from imagebeam._native import find_marker as _find_marker


class _Frame(NamedTuple):
    """What a frame header says."""

    image: Image
    code: int  # the second byte of its marker
    components: bytes  # three for each: its number, sampling factors, and the number of its quantization table


def check_jpeg(data: bytes) -> Image:
    """Walks segments and scans up to the end-of-image marker; the marker in an EXIF thumbnail is inside a segment.

    Bytes between two segments are tolerated where decoders lose nothing by them: before the first scan, after an APPn
    or COM segment, which some writers state too short. Elsewhere something was overwritten: a legal marker that random
    bytes form in a scan is found out by what follows its "segment". Decoders leave the picture grey from there on.

    Raises:
        BadImageError: if it is not whole, or of a kind that decoders do not take.
    """
    size = len(data)
    frame: _Frame | None = None
    quantization = huffman = 0  # the tables so far, each a bit
    orientation = checked_image.UPRIGHT
    in_scans, may_skip = False, False
    segment, position = 0, 2  # where the last marker is, and where the next is expected
    while True:
        marker = _find_marker(data, position)
        if marker < 0:
            raise checked_image.truncated(f"no end-of-image marker from byte {position} on", size)
        code = data[marker + 1]
        start = marker + 2
        if marker != position and not may_skip and data.count(0xFF, position, marker) != marker - position:
            raise corrupt(f"{marker - position} stray bytes at byte {position}, after the segment at byte {segment}")
        if code == _EOI:
            if frame is None or not in_scans:
                raise corrupt(f"the end-of-image marker at byte {marker} comes before any scan")
            return (
                frame.image if orientation == checked_image.UPRIGHT else frame.image._replace(orientation=orientation)
            )
        if code not in _SEGMENTS:
            if code in _OTHER_FRAMES and not in_scans:
                raise checked_image.unsupported(
                    f"lossless or hierarchical jpeg (marker FF {code:02X} at byte {marker})"
                )
            raise corrupt(f"illegal marker FF {code:02X} at byte {marker}")
        length = _unpack_length(data, start)[0] if start + 2 <= size else 2
        end = start + length
        if end > size:
            if in_scans and data.find(b"\xff\xd9", start) >= 0:
                raise corrupt(f"the segment FF {code:02X} at byte {marker}, of {length} bytes, spans the end of image")
            raise checked_image.truncated(f"the segment FF {code:02X} at byte {marker} ends at byte {end}", size)
        if code in _METADATA:
            may_skip = not in_scans
            if code == _APP1 and data.startswith(exif.HEADER, start + 2) and orientation == checked_image.UPRIGHT:
                orientation = exif.read_orientation(data, start + 2 + len(exif.HEADER), end)
        elif code == _SOS:
            if frame is None:
                raise corrupt(f"the scan at byte {marker} has no frame header")
            if not 8 <= length <= 14 or length != 6 + 2 * data[start + 2]:
                raise corrupt(f"the scan header at byte {marker} has a wrong length, {length} bytes")
            if missing := _find_missing(frame.code, frame.components, data[start + 2 : end], quantization, huffman):
                raise corrupt(f"the scan at byte {marker} needs {missing}")
            in_scans = may_skip = True
        else:
            may_skip = False
            if code in _FRAMES:
                if frame is not None:
                    raise corrupt(f"a second frame header at byte {marker}")
                frame = _read_frame(data, start, length)
            elif code in _TABLES:
                tables = _read_tables(data, code, start + 2, end)
                if tables is None:
                    raise corrupt(f"the tables FF {code:02X} at byte {marker} do not fill their {length} bytes")
                if code == _DQT:
                    quantization |= tables
                else:
                    huffman |= tables
        segment, position = marker, end


def _read_frame(data: bytes, start: int, length: int) -> _Frame:
    """What a frame header says, T.81 B.2.2; `start` is the byte after its marker."""
    precision, height, width, components = _unpack_frame(data, start + 2) if length >= 8 else (0, 0, 0, 0)
    if length != 8 + 3 * components:
        raise corrupt(f"the frame header at byte {start - 2} has a wrong length, {length} bytes")
    if height == 0 or width == 0:
        raise corrupt(f"the frame header at byte {start - 2} says {height} x {width} pixels")
    if precision != 8 or components not in _COLORSPACES:
        raise checked_image.unsupported(
            f"jpeg of {components} components of {precision} bits, expected 1, 3 or 4 of 8 bits"
        )
    if max(height, width) > checked_image.MAX_SIDE_PX["jpeg"] or height * width * components > checked_image.MAX_VALUES:
        raise checked_image.too_many_pixels(height, width)
    image = Image(data, "jpeg", height, width, components, _COLORSPACES[components])
    return _Frame(image, data[start - 1], data[start + 8 : start + length])


def _read_tables(data: bytes, code: int, position: int, end: int) -> int | None:
    """The tables of a DHT or DQT segment, each a bit; None if they do not end where it ends, T.81 B.2.4."""
    found = 0
    while position < end:
        head = data[position]  # class or precision in the upper half, one of four destinations in the lower
        if head & 0x0F > 3:
            return None
        if code == _DQT:
            found |= 1 << (head & 0x0F)
            position += 129 if head >> 4 else 65
        else:
            found |= 1 << head
            position += 17 + sum(data[position + 1 : position + 17])
    return found if position == end else None


@functools.lru_cache(maxsize=4096)  # cameras and programs write the same headers again and again
def _find_missing(code: int, components: bytes, scan: bytes, quantization: int, huffman: int) -> str | None:
    """What a scan needs that no segment before it has, T.81 B.2.3: tables, or a component of the frame.

    Decoders refuse such a JPEG: they have no other tables than its own, but for those of `_STANDARD_HUFFMAN`.

    Args:
        code: of the frame's marker.
        components: of the frame header.
        scan: the scan header, without its length.
        quantization: the tables so far, each a bit.
        huffman: the same.
    """
    is_sequential = code in _HUFFMAN_SEQUENTIAL
    needs_dc = needs_ac = is_sequential
    if is_sequential:
        huffman |= _STANDARD_HUFFMAN
    elif code == _HUFFMAN_PROGRESSIVE:
        first_coefficient, refined_bit = scan[-3], scan[-1] >> 4
        needs_ac = first_coefficient > 0  # 0 is DC
        needs_dc = not needs_ac and not refined_bit  # the bits that a scan adds to an earlier one are not coded
    known = list(zip(components[::3], components[2::3]))
    waiting = known.copy()
    for number, coding in zip(scan[1:-3:2], scan[2:-3:2]):
        component = next((each for each in waiting if each[0] == number), None)
        if component is None:
            is_there = number in dict(known)
            return f"component {number}, which {'it has already' if is_there else 'is not in the frame header'}"
        waiting.remove(component)
        table, dc, ac = component[1], coding >> 4, coding & 0x0F
        if not quantization >> table & 1:
            return f"quantization table {table}, which no segment before it holds"
        if needs_dc and not huffman >> dc & 1:
            return f"Huffman table {dc} for DC, which no segment before it holds"
        if needs_ac and not huffman >> (_AC | ac) & 1:
            return f"Huffman table {ac} for AC, which no segment before it holds"
    return None
