"""Turns a PNG upright without loss, whatever its colors and bit depth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagebeam.transforms.images import exif, orientations, png_chunks, png_pixels

if TYPE_CHECKING:
    import numpy as np

_EXIF = b"eXIf"
_ANIMATION = frozenset({b"acTL", b"fcTL", b"fdAT"})  # chunks of the other images of an animated PNG


def turn_png(png: bytes, orientation: int) -> bytes:
    """Returns a checked PNG turned as `orientation` asks for: the same bit depth, colors, palette and other chunks.

    Raises:
        BadImageError: if the pixels are damaged.
        ConfigError: if Pillow is not installed.
        ValueError: if `orientation` is not 1 to 8.
    """
    orientations.check_orientation(orientation)
    chunks = list(png_chunks.read_chunks(png))
    header = png_pixels.read_header(png)
    compressed = b"".join(chunk.data for chunk in chunks if chunk.kind == png_chunks.PIXELS)
    pixels = turn_pixels(png_pixels.decompress(compressed, header), orientation)
    header = header._replace(height=pixels.shape[0], width=pixels.shape[1], is_interlaced=False)
    turned = [png_chunks.SIGNATURE]
    has_pixels = False
    for kind, data, _ in chunks:
        if kind in _ANIMATION or (kind == png_chunks.PIXELS and has_pixels):
            continue
        if kind == png_chunks.HEADER:
            turned.append(png_chunks.encode_header(*header[:4]))
        elif kind == png_chunks.PIXELS:
            has_pixels = True
            turned.append(png_chunks.encode_chunk(kind, png_pixels.compress(pixels, header)))
        elif kind == _EXIF:
            upright = bytearray(data)
            exif.set_upright(upright, 0, len(upright), orientations.swaps_sides(orientation))
            turned.append(png_chunks.encode_chunk(kind, bytes(upright)))
        else:
            turned.append(png_chunks.encode_chunk(kind, data))
    return b"".join(turned)


def turn_pixels(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Returns pixels, [height, width, ...], turned as `orientation` asks for."""
    if orientations.mirrors_columns(orientation):
        pixels = pixels[:, ::-1]
    if orientations.mirrors_rows(orientation):
        pixels = pixels[::-1]
    return pixels.swapaxes(0, 1) if orientations.swaps_sides(orientation) else pixels
