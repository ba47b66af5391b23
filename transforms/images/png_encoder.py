"""Encodes small pictures as PNG with Pillow's compressor, without the rest of `save`, which takes half of the time."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from imagebeam.transforms.images.pillow_decoder import pillow

if TYPE_CHECKING:
    import PIL.Image

_MAX_PIXELS = 1 << 16  # of a small picture: of a larger one, the compressor takes nearly all of the time
_CHUNK_BYTES = 1 << 16  # of compressed pixels, at most, as Pillow cuts them; its rows must fit
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">IIBBBBB")
_COLOR_TYPES = {"L": 0, "RGB": 2, "LA": 4, "RGBA": 6}
_LENGTH = struct.Struct(">I")


def encode_png(picture: PIL.Image.Image, level: int) -> bytes:
    """Returns `picture` as PNG without metadata: the bytes are those of Pillow's `save` with `compress_level`.

    Args:
        picture: of mode L, LA, RGB or RGBA, without anything in its `info`.
        level: of zlib, 0 to 9.
    """
    width, height = picture.size
    get_encoder = getattr(pillow(), "_getencoder", None)
    if get_encoder is None or width * height > _MAX_PIXELS or 4 * width > _CHUNK_BYTES:
        buffer = io.BytesIO()
        picture.save(buffer, "PNG", compress_level=level)
        return buffer.getvalue()
    parts = [_SIGNATURE, _chunk(b"IHDR", _HEADER.pack(width, height, 8, _COLOR_TYPES[picture.mode], 0, 0, 0))]
    parts += [_chunk(b"IDAT", data) for data in _compress(get_encoder, picture, level)]
    return b"".join((*parts, _chunk(b"IEND", b"")))


def _compress(get_encoder: Callable[..., Any], picture: PIL.Image.Image, level: int) -> list[bytes]:
    """Returns the filtered and compressed rows in chunks. Source: `_encode_tile` of PIL/ImageFile.py."""
    picture.load()
    # the arguments: do not try harder, zlib's level, its usual strategy, no dictionary
    encoder = get_encoder(picture.mode, "zip", picture.mode, (False, level, -1, b""))
    try:
        encoder.setimage(picture.im, (0, 0, *picture.size))
        chunks, status = [], 0
        while not status:
            _, status, data = encoder.encode(_CHUNK_BYTES)
            chunks.append(data)
    finally:
        encoder.cleanup()
    if status < 0:
        raise OSError(f"Pillow's PNG encoder ended with status {status}")
    return chunks


def _chunk(kind: bytes, data: bytes) -> bytes:
    return b"".join((_LENGTH.pack(len(data)), kind, data, _LENGTH.pack(zlib.crc32(data, zlib.crc32(kind)))))
