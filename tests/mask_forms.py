"""Masks in the formats in which data sets come, written byte by byte where Pillow writes other ones."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image

from tests import encoded_images
from tests.encoded_images import IEND, chunk, ihdr

COLORED = [value for index in range(256) for value in (255 - index, index * 5 % 256, 7)]


def indexed(values: np.ndarray, palette: list[int] = COLORED) -> Image.Image:
    picture = Image.frombytes("P", (values.shape[1], values.shape[0]), values.tobytes())
    picture.putpalette(palette)
    return picture


def pack(values: np.ndarray, depth: int) -> list[bytes]:
    """Returns the rows of numbers of `depth` bits, each row in whole bytes."""
    bits = [np.unpackbits(row[:, None], axis=1)[:, 8 - depth :].reshape(-1) for row in values]
    return [np.packbits(row).tobytes() for row in bits]


def gray_png(values: np.ndarray, depth: int) -> bytes:
    rows = zlib.compress(b"".join(b"\0" + row for row in pack(values, depth)))
    header = ihdr(*values.shape, depth, 0)
    return encoded_images.png(header, chunk(b"IDAT", rows), IEND)


def bmp(values: np.ndarray, depth: int, palette: list[int] = COLORED, colors: int = 0) -> bytes:
    """Returns a BMP of indices; `palette` has three levels, red first, for each of 2**depth or `colors` colors."""
    entries = b"".join(
        bytes((palette[3 * i + 2], palette[3 * i + 1], palette[3 * i], 0)) for i in range(colors or 1 << depth)
    )
    rows = b"".join(row + bytes(-len(row) % 4) for row in reversed(pack(values, depth)))
    start = 54 + len(entries)
    height, width = values.shape
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, depth, 0, len(rows), 0, 0, colors, 0)
    return struct.pack("<2sIHHI", b"BM", start + len(rows), 0, 0, start) + info + entries + rows


def tiff(values: np.ndarray, depth: int, photometric: int = 1, sample_format: int = 1) -> bytes:
    """Returns an uncompressed TIFF of gray numbers of up to 8, or of 16 or 32 bits, little-endian."""
    rows = b"".join(pack(values, depth)) if depth <= 8 else values.astype(f"<u{depth // 8}").tobytes()
    height, width = values.shape
    tags = {256: width, 257: height, 258: depth, 259: 1, 262: photometric, 273: 8, 277: 1, 278: height}
    tags |= {279: len(rows), 339: sample_format}
    directory = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return struct.pack("<2sHI", b"II", 42, 8 + len(rows)) + rows + struct.pack("<H", len(tags)) + directory + bytes(4)


def npy(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()
