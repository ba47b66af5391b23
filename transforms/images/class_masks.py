"""Turns the mask of an image into the PNG that is stored: one gray value per pixel, its class."""

from __future__ import annotations

import io

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import (
    checked_image,
    image_formats,
    orientations,
    pillow_decoder,
    png_chunks,
    structure,
    turn_upright,
)

_DEPTH = png_chunks.HEADER_START + png_chunks.DEPTH_BYTE
_COLOR_TYPE = png_chunks.HEADER_START + png_chunks.COLOR_TYPE_BYTE
_HEADER_END = png_chunks.HEADER_START + png_chunks.HEADER_BYTES


def with_mask(image: checked_image.Image, mask: bytes, check: str = "structure") -> checked_image.Image:
    """Returns `image` with its mask as a PNG, which is turned upright as the image was.

    A mask with a palette (Pascal VOC) is stored as gray with the palette's indices as values: a decoder would return
    the palette's colors, or their brightness, in place of classes. Other masks are stored unchanged.

    Args:
        image: the image as it is stored.
        mask: the bytes of a PNG file.
        check: as for the image itself; "tensorflow" decodes a mask by Pillow.

    Raises:
        BadImageError: if `mask` is not a complete PNG of the image's size.
    """
    found = structure.check_image(mask, check if check in structure.CHECKS else "decode")
    if found.format != image_formats.PNG:
        raise checked_image.BadImageError(
            Reason.UNSUPPORTED_FORMAT, f"{found.format}, which blurs classes at their edges: masks must be png"
        )
    turn = image.annotation_turn
    size, expected = (found.height, found.width), orientations.turn_size(image.height, image.width, turn)
    if size != expected:
        detail = f"{size[0]} x {size[1]} pixels, and the image has {expected[0]} x {expected[1]} (height x width)"
        if turn != checked_image.UPRIGHT and size == (image.height, image.width):
            detail += ", as it is stored: the mask fits the picture turned upright; set image.annotations: upright"
        raise checked_image.BadImageError(Reason.BAD_VALUE, detail)
    if turn != checked_image.UPRIGHT:
        mask = turn_upright.turn_mask(mask, turn)
    return image._replace(mask=_palette_to_gray(mask) if mask[_COLOR_TYPE] == png_chunks.PALETTE_INDEX else mask)


def _palette_to_gray(png: bytes) -> bytes:
    """Converts a checked PNG with a palette to gray, with the palette's indices as values."""
    if png[_DEPTH] != 8:
        return _decode_to_gray(png)
    # 8-bit indices are stored, filtered and compressed exactly as 8-bit gray values are: only the header differs.
    header = bytearray(png[png_chunks.HEADER_START : _HEADER_END])
    header[png_chunks.COLOR_TYPE_BYTE] = png_chunks.GRAY
    kinds = (png_chunks.PIXELS, png_chunks.END)
    kept = [chunk.whole for chunk in png_chunks.read_chunks(png) if chunk.kind in kinds]
    return b"".join((png_chunks.SIGNATURE, png_chunks.encode_chunk(png_chunks.HEADER, bytes(header)), *kept))


def _decode_to_gray(png: bytes) -> bytes:
    """Converts indices of less than 8 bits, which decoders would stretch to 255 if the header said gray."""
    picture = pillow_decoder.decode_any(png, image_formats.PNG)
    gray = pillow_decoder.pillow().frombytes("L", picture.size, picture.tobytes())
    stored = io.BytesIO()
    gray.save(stored, "PNG")
    return stored.getvalue()
