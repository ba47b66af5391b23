"""Checks that a JPEG is complete and well-formed without decoding it: its segments, tables and scans.

Source: ITU-T T.81, annex B, https://www.w3.org/Graphics/JPEG/itu-t81.pdf; what decoders tolerate: jdmarker.c,
jdinput.c, jdhuff.c and jdphuff.c of libjpeg-turbo, and trials with TensorFlow 2.21 and Pillow 12.
"""

from __future__ import annotations

import contextlib
import functools
import re
import struct
from typing import NamedTuple

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, image_formats, orientations
from imagebeam.transforms.images.checked_image import Image, corrupt

# A marker is 0xFF and one of these codes. Most markers begin a segment, whose first two bytes are its length.
_EOI, _SOS, _DHT, _DQT, _APP1 = 0xD9, 0xDA, 0xC4, 0xDB, 0xE1
# Baseline, extended sequential, progressive, and the last two with arithmetic coding: TensorFlow 2.21 and Pillow 12
# decode all five.
FRAMES = frozenset({0xC0, 0xC1, 0xC2, 0xC9, 0xCA})
_HUFFMAN_SEQUENTIAL, _HUFFMAN_PROGRESSIVE = frozenset({0xC0, 0xC1}), 0xC2
_OTHER_FRAMES = frozenset({0xC3, 0xC5, 0xC6, 0xC7, 0xCB, 0xCD, 0xCE, 0xCF, 0xDE, 0xF7})  # lossless and hierarchical
METADATA = frozenset({*range(0xE0, 0xF0), 0xFE})  # APPn, COM
_TABLES = frozenset({_DHT, _DQT})
_SEGMENTS = FRAMES | METADATA | _TABLES | {_SOS, 0xCC, 0xDC, 0xDD}  # the last three: DAC, DNL, DRI
COLORSPACES = {1: "GRAY", 3: "RGB", 4: "CMYK"}  # as decoded: YCbCr becomes RGB, YCCK becomes CMYK

_MAX_SCANS = 200  # encoders write up to some 20; a decoder goes through the whole image for each

# First byte of a Huffman table: class in the upper half (this bit is set for AC, clear for DC), number in the lower.
_AC = 0x10
# The tables of T.81, annex K.3, one bit each. Decoders use them for a sequential JPEG that has none, such as a frame of
# Motion JPEG.
_STANDARD_HUFFMAN = 1 << 0x00 | 1 << 0x01 | 1 << _AC | 1 << (_AC | 1)

_search_marker = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]").search
_unpack_length = struct.Struct(">H").unpack_from
_unpack_frame = struct.Struct(">BHHB").unpack_from


def find_marker(data: bytes, position: int) -> int:
    """Returns the offset of the next marker, or -1; skips restart markers and stuffed bytes (FF 00).

    Repeated 0xFF bytes before a marker are fill. Takes 31 us for 105 KB with 400 stuffed bytes, as long as counting the
    bytes 0xFF.
    """
    match = _search_marker(data, position)
    return -1 if match is None else match.start()


def segment_end(data: bytes, marker: int) -> int:
    """Returns where the segment of a marker ends. Decoders take a length below 2, which includes itself, for 2."""
    return marker + 2 + max(2, int.from_bytes(data[marker + 2 : marker + 4], "big"))


def _check_in_c(data: bytes) -> tuple[int, int, int, int, int] | None:
    """Returns None: the C extension was not built."""
    return None


with contextlib.suppress(ImportError):
    from imagebeam._writer import check_jpeg as _check_in_c
    from imagebeam._writer import find_marker


class _Frame(NamedTuple):
    """The content of a frame header."""

    image: Image
    code: int  # the second byte of its marker
    components: bytes  # 3 bytes each: number, sampling factors, number of the quantization table


def check_jpeg(data: bytes, only_header: bool = False) -> Image:
    """Checks segments and scans up to the end-of-image marker; the one in an EXIF thumbnail is inside a segment.

    Stray bytes between two segments are accepted where decoders lose nothing: before the first scan after an APPn or
    COM segment, whose length some writers state too small. Anywhere else they show that data were overwritten, and
    decoders leave the image gray from there on. Random bytes in a scan may form a legal marker; the stray bytes after
    its "segment" reveal that.

    Args:
        data: the bytes of the file.
        only_header: whether to stop where the first scan begins.

    Raises:
        BadImageError: if the JPEG is truncated, broken, or of a kind that decoders refuse.
    """
    found = None if only_header else _check_in_c(data)
    if found is None:  # something is wrong or rare
        return _check_segments(data, only_header)
    height, width, components, exif_start, exif_end = found
    image = Image(data, image_formats.JPEG, height, width, components, COLORSPACES[components])
    if not exif_start:
        return image
    return _with_orientation(image, orientations.read_orientation(data, exif_start, exif_end))


def _with_orientation(image: Image, orientation: int) -> Image:
    return image if orientation == checked_image.UPRIGHT else image._replace(orientation=orientation)


def _check_segments(data: bytes, only_header: bool) -> Image:
    """Checks a JPEG like `check_jpeg`, which leaves the usual ones to C."""
    size = len(data)
    frame: _Frame | None = None
    quantization = huffman = 0  # the tables so far, one bit each
    orientation = checked_image.UPRIGHT
    in_scans, may_skip, scans = False, False, 0
    segment, position = 0, 2  # byte offsets of the last marker, and of the next one as expected
    while True:
        marker = find_marker(data, position)
        if marker < 0:
            raise checked_image.truncated(f"no end-of-image marker from byte {position} on", size)
        code = data[marker + 1]
        start = marker + 2
        if marker != position and not may_skip and data.count(0xFF, position, marker) != marker - position:
            raise corrupt(f"{marker - position} stray bytes at byte {position}, after the segment at byte {segment}")
        is_header_read = only_header and code == _SOS and frame is not None
        if code == _EOI or is_header_read:
            if frame is None or not (in_scans or is_header_read):
                raise corrupt(f"the end-of-image marker at byte {marker} comes before any scan")
            return _with_orientation(frame.image, orientation)
        if code not in _SEGMENTS:
            if code in _OTHER_FRAMES and not in_scans:
                raise checked_image.unsupported(
                    f"lossless or hierarchical jpeg (marker FF {code:02X} at byte {marker})"
                )
            raise corrupt(f"illegal marker FF {code:02X} at byte {marker}")
        length = _unpack_length(data, start)[0] if start + 2 <= size else 2
        end = start + length
        if end > size:
            if in_scans and data.find(bytes((0xFF, _EOI)), start) >= 0:
                raise corrupt(f"the segment FF {code:02X} at byte {marker}, of {length} bytes, spans the end of image")
            raise checked_image.truncated(f"the segment FF {code:02X} at byte {marker} ends at byte {end}", size)
        if code in METADATA:
            may_skip = not in_scans
            if (
                code == _APP1
                and data.startswith(orientations.EXIF_HEADER, start + 2)
                and orientation == checked_image.UPRIGHT
            ):
                orientation = orientations.read_orientation(data, start + 2 + len(orientations.EXIF_HEADER), end)
        elif code == _SOS:
            if frame is None:
                raise corrupt(f"the scan at byte {marker} has no frame header")
            if not 8 <= length <= 14 or length != 6 + 2 * data[start + 2]:
                raise corrupt(f"the scan header at byte {marker} has a wrong length, {length} bytes")
            if missing := _find_missing(frame.code, frame.components, data[start + 2 : end], quantization, huffman):
                raise corrupt(f"the scan at byte {marker} needs {missing}")
            in_scans = may_skip = True
            scans += 1
            if scans > _MAX_SCANS:
                raise checked_image.BadImageError(
                    Reason.TOO_LARGE, f"more than {_MAX_SCANS} scans, for which decoders take minutes: encode it again"
                )
        else:
            may_skip = False
            if code in FRAMES:
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
    """Reads a frame header, T.81 B.2.2; `start` is the byte offset after its marker."""
    precision, height, width, components = _unpack_frame(data, start + 2) if length >= 8 else (0, 0, 0, 0)
    if length != 8 + 3 * components:
        raise corrupt(f"the frame header at byte {start - 2} has a wrong length, {length} bytes")
    if height == 0 or width == 0:
        raise corrupt(f"the frame header at byte {start - 2} says {height} x {width} pixels")
    if precision != 8 or components not in COLORSPACES:
        raise checked_image.unsupported(
            f"jpeg of {components} components of {precision} bits, expected 1, 3 or 4 of 8 bits"
        )
    if max(height, width) > checked_image.MAX_SIDE_PX["jpeg"] or height * width * components > checked_image.MAX_VALUES:
        raise checked_image.too_many_pixels(height, width)
    image = Image(data, image_formats.JPEG, height, width, components, COLORSPACES[components])
    return _Frame(image, data[start - 1], data[start + 8 : start + length])


def _read_tables(data: bytes, code: int, position: int, end: int) -> int | None:
    """Returns the tables of a DHT or DQT segment, one bit each, or None if they do not fill the segment, T.81 B.2.4."""
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


@functools.lru_cache(maxsize=4096)  # cameras and programs write the same few headers
def _find_missing(code: int, components: bytes, scan: bytes, quantization: int, huffman: int) -> str | None:
    """Returns what a scan needs and no earlier segment defines, T.81 B.2.3: a table, or a component of the frame.

    Decoders refuse such a JPEG: apart from `_STANDARD_HUFFMAN` they have only the tables in the file.

    Args:
        code: the second byte of the frame's marker.
        components: from the frame header.
        scan: the scan header, without its length.
        quantization: the quantization tables so far, one bit each.
        huffman: the Huffman tables so far, one bit each.

    Returns:
        A description for the error; None if nothing is missing.
    """
    is_sequential = code in _HUFFMAN_SEQUENTIAL
    needs_dc = needs_ac = is_sequential
    if is_sequential:
        huffman |= _STANDARD_HUFFMAN
    elif code == _HUFFMAN_PROGRESSIVE:
        first_coefficient, refined_bit = scan[-3], scan[-1] >> 4
        needs_ac = first_coefficient > 0  # 0 is DC
        needs_dc = not needs_ac and not refined_bit  # a refining scan adds single bits, which are not Huffman-coded
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
