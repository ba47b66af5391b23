from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
from PIL import Image

from imagebeam.transforms.images import png_chunks


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "I;16"])
def test_chunks_that_pillow_writes_are_read_and_encoded_to_the_same_bytes(mode: str) -> None:
    buffer = io.BytesIO()
    Image.new(mode, (7, 5)).save(buffer, "PNG")
    data = buffer.getvalue()
    chunks = list(png_chunks.read_chunks(data + b"bytes after the end"))
    assert data == png_chunks.SIGNATURE + b"".join(chunk.whole for chunk in chunks)
    assert [chunk.whole for chunk in chunks] == [png_chunks.encode_chunk(kind, content) for kind, content, _ in chunks]
    kinds = [chunk.kind for chunk in chunks]
    assert (kinds[0], kinds[-1]) == (png_chunks.HEADER, png_chunks.END)
    assert png_chunks.PIXELS in kinds
    assert (png_chunks.PALETTE in kinds) == (mode == "P")
    width, height, depth, color_type, *rest = png_chunks.unpack_header(data, png_chunks.HEADER_START)
    assert (width, height) == (7, 5)
    assert png_chunks.encode_header(height, width, depth, color_type, *rest) == png_chunks.encode_chunk(*chunks[0][:2])
    header = chunks[0].data
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
