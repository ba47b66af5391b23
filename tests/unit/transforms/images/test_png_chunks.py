from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
from PIL import Image

from imagebeam.transforms.images import png_chunks


def chunks_of(data: bytes) -> list[tuple[bytes, bytes, int]]:
    """Returns type, data and CRC of every chunk."""
    found, position = [], len(png_chunks.SIGNATURE)
    while position < len(data):
        length, kind = png_chunks.unpack_head(data, position)
        start = position + png_chunks.HEAD_BYTES
        found.append((kind, data[start : start + length], png_chunks.unpack_crc(data, start + length)[0]))
        position = start + length + png_chunks.CRC_BYTES
    return found


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "I;16"])
def test_chunks_that_pillow_writes_are_read_and_encoded_to_the_same_bytes(mode: str) -> None:
    buffer = io.BytesIO()
    Image.new(mode, (7, 5)).save(buffer, "PNG")
    data = buffer.getvalue()
    chunks = chunks_of(data)
    assert data == png_chunks.SIGNATURE + b"".join(
        png_chunks.encode_chunk(kind, content) for kind, content, _ in chunks
    )
    assert [crc for _, _, crc in chunks] == [zlib.crc32(kind + content) for kind, content, _ in chunks]
    kinds = [kind for kind, _, _ in chunks]
    assert (kinds[0], kinds[-1]) == (png_chunks.HEADER, png_chunks.END)
    assert png_chunks.PIXELS in kinds
    assert (png_chunks.PALETTE in kinds) == (mode == "P")
    width, height, depth, color_type, *rest = png_chunks.unpack_header(data, png_chunks.HEADER_START)
    assert (width, height) == (7, 5)
    assert png_chunks.encode_header(height, width, depth, color_type, *rest) == png_chunks.encode_chunk(*chunks[0][:2])
    header = chunks[0][1]
    assert len(header) == png_chunks.HEADER_BYTES
    assert (header[png_chunks.DEPTH_BYTE], header[png_chunks.COLOR_TYPE_BYTE]) == (depth, color_type)
    assert (color_type == png_chunks.PALETTE_INDEX) == (mode == "P")
    assert (color_type == png_chunks.GRAY) == (mode in ("1", "L", "I;16"))


def test_png_of_encoded_chunks_is_what_pillow_decodes() -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    data = png_chunks.SIGNATURE + png_chunks.encode_header(3, 4)
    data += png_chunks.encode_chunk(png_chunks.PIXELS, zlib.compress(rows)) + png_chunks.encode_chunk(png_chunks.END)
    with Image.open(io.BytesIO(data)) as picture:
        assert (picture.format, picture.mode) == ("PNG", "L")
        np.testing.assert_array_equal(np.asarray(picture), pixels)
