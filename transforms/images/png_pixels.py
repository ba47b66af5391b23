"""The pixels of a PNG of any bit depth and color, as an array, and back.

Pillow reads 16-bit colors with 8 bits, so the bytes are not decoded to colors here.

Source: https://www.w3.org/TR/png-3/, sections 7 to 9.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, image_formats, pillow_decoder, png_chunks
from imagebeam.transforms.images.checked_image import BadImageError

if TYPE_CHECKING:
    import numpy as np

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by color type
_EIGHT_BITS = {1: 0, 2: 4, 3: 2, 4: 6}  # color types of 8 bits, by bytes per pixel
_FOLDED = {1: 1, 2: 2, 3: 3, 4: 4, 6: 3, 8: 4}  # bytes per pixel that Pillow is given, by those of the PNG
# Adam7: column and row of the first pixel of each pass, and the steps to the next ones.
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
_WHOLE = ((0, 0, 1, 1),)
_LEVEL = 6  # of zlib
_MAX_BYTES = 2**29  # of all pixels: they are in memory about six times
_STRIP_BYTES = 1 << 20  # of pixels that are filtered at a time: filtering takes some 20 times as much memory


class Header(NamedTuple):
    """What the header chunk says of the pixels."""

    height: int  # pixels
    width: int
    depth: int  # bits per value: 1, 2, 4, 8 or 16
    color_type: int
    is_interlaced: bool = False

    @property
    def bytes_per_pixel(self) -> int:
        """Those between a byte and the one that filters predict it from: at least 1."""
        return max(1, _CHANNELS[self.color_type] * self.depth // 8)

    @property
    def pixels_per_byte(self) -> int:
        """More than 1 for 1, 2 and 4 bits, which only images of one channel have."""
        return max(1, 8 // self.depth)

    def row_bytes(self, width: int) -> int:
        """Returns the bytes of a row of `width` pixels, without the one that names its filter."""
        return -(-width // self.pixels_per_byte) * self.bytes_per_pixel


def read_header(png: bytes) -> Header:
    """Returns the header of a checked PNG."""
    width, height, depth, color_type, _, _, interlace = png_chunks.unpack_header(png, png_chunks.HEADER_START)
    return Header(height, width, depth, color_type, bool(interlace))


def decompress(compressed: bytes, header: Header) -> np.ndarray:
    """Returns the pixels: uint8 [height, width, bytes per pixel], big-endian; one byte for pixels of less than 8 bits.

    Args:
        compressed: the data of all IDAT chunks.
        header: of the PNG.

    Raises:
        BadImageError: if there are fewer pixels than the header says, more than 512 MiB of them, or damaged ones.
        ConfigError: if Pillow is not installed.
    """
    import numpy as np

    if header.height * header.width * header.bytes_per_pixel > _MAX_BYTES:
        raise checked_image.too_many_pixels(header.height, header.width)
    parts = [
        (left, top, right, down, -(-(header.width - left) // right), -(-(header.height - top) // down))
        for left, top, right, down in (_PASSES if header.is_interlaced else _WHOLE)
        if left < header.width and top < header.height
    ]
    lines = _decompress_lines(compressed, sum(height * (1 + header.row_bytes(width)) for *_, width, height in parts))
    pixels = np.empty((header.height, header.width, header.bytes_per_pixel), np.uint8)
    position = 0
    for left, top, right, down, width, height in parts:
        size = height * (1 + header.row_bytes(width))
        rows = np.frombuffer(lines, np.uint8, size, position).reshape(height, -1)
        position += size
        pixels[top::down, left::right] = _unpack(_unfilter(rows, header.bytes_per_pixel), header, width)
    return pixels


def compress(pixels: np.ndarray, header: Header) -> bytes:
    """Returns the data of an IDAT chunk, not interlaced: the reverse of `decompress`.

    Palettes and pixels of less than 8 bits are not filtered: their values are no amounts, so differences say nothing.
    Other rows have the filter whose result has the smallest sum, as the specification advises.
    """
    import numpy as np

    rows = _pack(pixels, header)
    encoder = zlib.compressobj(_LEVEL)
    parts = []
    height, row_bytes = rows.shape
    is_filtered = header.depth >= 8 and header.color_type != png_chunks.PALETTE_INDEX
    above = np.zeros((1, row_bytes), np.uint8)
    step = max(1, _STRIP_BYTES // row_bytes)
    for start in range(0, height, step):
        strip = rows[start : start + step]
        lines = np.zeros((len(strip), 1 + row_bytes), np.uint8)
        if is_filtered:
            _filter(np.concatenate((above, strip)), header.bytes_per_pixel, lines)
        else:
            lines[:, 1:] = strip
        parts.append(encoder.compress(lines.data))
        above = strip[-1:]
    return b"".join((*parts, encoder.flush()))


def _decompress_lines(compressed: bytes, size: int) -> bytes:
    """Returns the filtered rows of all passes; ignores what comes after them, as libpng does."""
    try:
        lines = zlib.decompressobj().decompress(compressed, size)
    except zlib.error as e:
        raise BadImageError(Reason.UNDECODABLE, f"the pixels cannot be decompressed: {e}") from e
    if len(lines) < size:
        raise BadImageError(Reason.UNDECODABLE, f"{len(lines)} bytes of pixels, the header says {size}")
    return lines


def _unfilter(lines: np.ndarray, bytes_per_pixel: int) -> np.ndarray:
    """Returns the rows without filters: uint8 [height, bytes of a row].

    Pillow does it, in C: filters see bytes, not colors, so the rows pass for pixels of 8 bits with as many bytes. With
    6 or 8 bytes a pixel, of which each is predicted only from the same ones of other pixels, half of the bytes at a
    time.

    Args:
        lines: uint8 [height, 1 + bytes of a row]; the first byte of a row names its filter.
        bytes_per_pixel: 1 to 4, 6 or 8.
    """
    import numpy as np

    height = len(lines)
    pixels = lines[:, 1:].reshape(height, -1, bytes_per_pixel)
    taken = _FOLDED[bytes_per_pixel]
    rows = np.empty_like(pixels)
    for first in range(0, bytes_per_pixel, taken):
        part = pixels[..., first : first + taken].reshape(height, -1)
        png = _png_of(zlib.compress(np.concatenate((lines[:, :1], part), axis=1).data, 0), height, part.shape[1], taken)
        picture = pillow_decoder.decode_any(png, image_formats.PNG)
        rows[..., first : first + taken] = np.asarray(picture).reshape(height, -1, taken)
    return rows.reshape(height, -1)


def _png_of(compressed: bytes, height: int, row_bytes: int, bytes_per_pixel: int) -> bytes:
    """Returns a PNG of 8 bits per value around compressed rows."""
    width, color_type = row_bytes // bytes_per_pixel, _EIGHT_BITS[bytes_per_pixel]
    return b"".join(
        (
            png_chunks.SIGNATURE,
            png_chunks.encode_header(height, width, color_type=color_type),
            png_chunks.encode_chunk(png_chunks.PIXELS, compressed),
            png_chunks.encode_chunk(png_chunks.END),
        )
    )


def _unpack(rows: np.ndarray, header: Header, width: int) -> np.ndarray:
    """Returns the pixels of rows of bytes: uint8 [height, width, bytes per pixel]."""
    import numpy as np

    if header.pixels_per_byte == 1:
        return rows.reshape(len(rows), width, header.bytes_per_pixel)
    shifts = np.arange(8 - header.depth, -1, -header.depth, dtype=np.uint8)  # the first pixel is in the highest bits
    values = rows[..., None] >> shifts & (1 << header.depth) - 1
    return values.reshape(len(rows), -1)[:, :width, None]


def _pack(pixels: np.ndarray, header: Header) -> np.ndarray:
    """Returns rows of bytes, the reverse of `_unpack`: uint8 [height, bytes of a row]."""
    import numpy as np

    height, width, _ = pixels.shape
    count = header.pixels_per_byte
    if count == 1:
        return np.ascontiguousarray(pixels).reshape(height, -1)
    values = np.zeros((height, -(-width // count) * count), np.uint8)
    values[:, :width] = pixels[..., 0]
    rows = np.zeros((height, values.shape[1] // count), np.uint8)
    for index in range(count):
        rows |= values[:, index::count] << (8 - header.depth * (index + 1))
    return rows


def _filter(rows: np.ndarray, bytes_per_pixel: int, lines: np.ndarray) -> None:
    """Writes filtered rows to `lines`.

    Args:
        rows: uint8 [1 + height, bytes of a row]; the first one is above the others.
        bytes_per_pixel: of the image.
        lines: uint8 [height, 1 + bytes of a row].
    """
    import numpy as np

    padded = np.pad(rows, ((0, 0), (bytes_per_pixel, 0))).astype(np.int16)
    row, left = padded[1:, bytes_per_pixel:], padded[1:, :-bytes_per_pixel]
    above, corner = padded[:-1, bytes_per_pixel:], padded[:-1, :-bytes_per_pixel]
    from_left, from_above = np.abs(above - corner), np.abs(left - corner)  # of Paeth's estimate, left + above - corner
    from_corner = np.abs(left + above - 2 * corner)
    is_left = (from_left <= from_above) & (from_left <= from_corner)
    paeth = np.where(is_left, left, np.where(from_above <= from_corner, above, corner))
    predictions = (None, left, above, (left + above) >> 1, paeth)
    filtered = [(row if each is None else row - each).astype(np.uint8) for each in predictions]
    sums = np.stack([np.abs(each.view(np.int8).astype(np.int16)).sum(axis=1) for each in filtered])
    chosen = sums.argmin(axis=0)
    lines[:, 0] = chosen
    for index, each in enumerate(filtered):
        lines[chosen == index, 1:] = each[chosen == index]
