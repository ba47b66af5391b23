"""Checks that a PNG is complete and well-formed without decoding its pixels.

Source: PNG, https://www.w3.org/TR/png-3/; what decoders tolerate: pngrutil.c of libpng, and trials with TensorFlow 2.21
and Pillow 12.
"""

from __future__ import annotations

import zlib

from imagebeam.transforms.images import checked_image, exif, image_formats, png_chunks
from imagebeam.transforms.images.checked_image import Image, corrupt, truncated

# By color type: channels and color space. Type 3 holds indices of a palette.
_COLORS = {0: (1, "GRAY"), 2: (3, "RGB"), 3: (3, "RGB"), 4: (2, "GRAY_ALPHA"), 6: (4, "RGBA")}
_DEPTHS = {0: (1, 2, 4, 8, 16), 3: (1, 2, 4, 8)}  # bits per value; the other color types allow 8 and 16
_MAX_UINT31 = 2**31 - 1  # PNG allows no larger length, width or height
_MAX_COLORS = 256  # of a palette, 3 bytes each
_IS_ANCILLARY = 0x20  # bit of the first letter of a chunk's type: decoders may ignore the chunk


def check_png(data: bytes, only_header: bool = False) -> Image:
    """Checks the chunks up to IEND: lengths, CRCs, and the order that libpng requires.

    Args:
        data: the bytes of the file.
        only_header: whether to stop at the first pixels.

    Raises:
        BadImageError: if the PNG is truncated, broken, or larger than decoders accept.
    """
    size = len(data)
    view = memoryview(data)
    image: Image | None = None
    has_palette, palette_bytes, pixel_bytes = False, 0, 0
    previous = b""
    position = len(png_chunks.SIGNATURE)
    while True:
        start = position + png_chunks.HEAD_BYTES  # of the chunk's data
        if start + png_chunks.CRC_BYTES > size:
            raise truncated(f"no IEND chunk from byte {position} on", size)
        length, kind = png_chunks.unpack_head(data, position)
        end = start + length
        if not kind.isalpha() or length > _MAX_UINT31:
            raise corrupt(f"no chunk at byte {position}: type {kind!r}, {length} bytes")
        if end + png_chunks.CRC_BYTES > size:
            raise truncated(f"the chunk {kind.decode()} at byte {position} ends at byte {end + 4}", size)
        if zlib.crc32(view[position + 4 : end]) != png_chunks.unpack_crc(data, end)[0]:
            raise corrupt(f"the chunk {kind.decode()} at byte {position}, of {length} bytes, has a wrong CRC")
        if image is None:
            if kind != png_chunks.HEADER or length != png_chunks.HEADER_BYTES:
                raise corrupt(f"the first chunk is {kind.decode()} of {length} bytes, expected IHDR of 13")
            image = _read_header(data, start)
            has_palette = data[start + png_chunks.COLOR_TYPE_BYTE] == png_chunks.PALETTE_INDEX
        elif kind == png_chunks.PIXELS:
            if has_palette and not palette_bytes:
                raise corrupt(f"the chunk IDAT at byte {position} has no palette (PLTE) before it")
            if only_header:
                return image
            if pixel_bytes and previous != png_chunks.PIXELS:
                raise corrupt(f"the chunk IDAT at byte {position} does not follow the other IDAT chunks")
            pixel_bytes += length
        elif kind == png_chunks.PALETTE:
            if has_palette and (palette_bytes or length % 3 or not 3 <= length <= 3 * _MAX_COLORS):
                raise corrupt(f"the palette at byte {position} is a second one or of a wrong length, {length} bytes")
            palette_bytes = length
        elif (
            kind == png_chunks.TRANSPARENCY and has_palette
        ):  # with other color types decoders return no alpha by default
            if not pixel_bytes and 0 < length <= palette_bytes // 3:  # libpng ignores any other
                image = image._replace(channels=4, colorspace="RGBA")
        elif kind == b"eXIf":
            image = image._replace(orientation=exif.read_orientation(data, start, end))
        elif kind == png_chunks.END:
            if not pixel_bytes:
                raise corrupt("no pixels: there is no IDAT chunk")
            return image
        elif not kind[0] & _IS_ANCILLARY:
            raise corrupt(f"the chunk {kind.decode()} at byte {position} is critical and unknown, or a second one")
        previous = kind
        position = end + png_chunks.CRC_BYTES


def _read_header(data: bytes, start: int) -> Image:
    """Returns the image that the header chunk describes; `start` is the byte offset of the chunk's data."""
    width, height, depth, color_type, compression, filtering, interlace = png_chunks.unpack_header(data, start)
    if color_type not in _COLORS or depth not in _DEPTHS.get(color_type, (8, 16)):
        raise corrupt(f"the chunk IHDR says color type {color_type} with {depth} bits")
    if not 0 < width <= _MAX_UINT31 or not 0 < height <= _MAX_UINT31:
        raise corrupt(f"the chunk IHDR says {height} x {width} pixels")
    if compression or filtering or interlace > 1:
        raise corrupt(f"the chunk IHDR says compression {compression}, filter {filtering}, interlace {interlace}")
    if max(height, width) > checked_image.MAX_SIDE_PX["png"] or height * width > checked_image.MAX_VALUES:
        raise checked_image.too_many_pixels(height, width)
    return Image(data, image_formats.PNG, height, width, *_COLORS[color_type])
