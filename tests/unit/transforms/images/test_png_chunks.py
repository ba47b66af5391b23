from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
from PIL import Image

from imagebeam.transforms.images import png_structure


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "I;16"])
def test_chunks_that_pillow_writes_are_read_and_encoded_to_the_same_bytes(mode: str) -> None:
    buffer = io.BytesIO()
    Image.new(mode, (7, 5)).save(buffer, "PNG")
    data = buffer.getvalue()
    chunks = list(png_structure.read_chunks(data + b"bytes after the end"))
    assert data == png_structure.SIGNATURE + b"".join(chunk.whole for chunk in chunks)
    assert [chunk.whole for chunk in chunks] == [
        png_structure.encode_chunk(kind, content) for kind, content, _ in chunks
    ]
    kinds = [chunk.kind for chunk in chunks]
    assert (kinds[0], kinds[-1]) == (png_structure.HEADER, png_structure.END)
    assert png_structure.PIXELS in kinds
    assert (png_structure.PALETTE in kinds) == (mode == "P")
    width, height, depth, color_type, *rest = png_structure.unpack_header(data, png_structure.HEADER_START)
    assert (width, height) == (7, 5)
    assert png_structure.encode_header(height, width, depth, color_type, *rest) == png_structure.encode_chunk(
        *chunks[0][:2]
    )
    header = chunks[0].data
    assert len(header) == png_structure.HEADER_BYTES
    assert (header[png_structure.DEPTH_BYTE], header[png_structure.COLOR_TYPE_BYTE]) == (depth, color_type)
    assert (color_type == png_structure.PALETTE_INDEX) == (mode == "P")
    assert (color_type == png_structure.GRAY) == (mode in ("1", "L", "I;16"))


def test_png_of_encoded_chunks_is_what_pillow_decodes() -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    data = png_structure.SIGNATURE + png_structure.encode_header(3, 4)
    data += png_structure.encode_chunk(png_structure.PIXELS, zlib.compress(rows)) + png_structure.encode_chunk(
        png_structure.END
    )
    with Image.open(io.BytesIO(data)) as picture:
        assert (picture.format, picture.mode) == ("PNG", "L")
        np.testing.assert_array_equal(np.asarray(picture), pixels)
