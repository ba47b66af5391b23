"""Turns the mask of an image into the PNG that is stored: one gray value per pixel, its class."""

from __future__ import annotations

import dataclasses
import io
from typing import TYPE_CHECKING

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import (
    checked_image,
    image_formats,
    mask_colors,
    mask_pixels,
    orientations,
    pillow_decoder,
    png_chunks,
    segment_masks,
    structure,
    turn_upright,
)

if TYPE_CHECKING:
    import numpy as np

VERSION = 2  # raised whenever the same mask is stored in another way

_DEPTH = png_chunks.HEADER_START + png_chunks.DEPTH_BYTE
_COLOR_TYPE = png_chunks.HEADER_START + png_chunks.COLOR_TYPE_BYTE
_HEADER_END = png_chunks.HEADER_START + png_chunks.HEADER_BYTES


@dataclasses.dataclass(frozen=True)
class MaskPolicy:
    """Says what the pixels of masks mean, and how their classes are stored."""

    colors: mask_colors.MaskColors | None = None  # of the classes; None takes the numbers in the file
    bits: int = 8  # of a class; 16 stores every mask with 16, 8 keeps a gray PNG of 16 bits
    segments: int = -1  # place in ImageRef.columns of the packed segments of panoptic masks; -1 for other masks


NUMBERS = MaskPolicy()


def with_mask(
    image: checked_image.Image,
    mask: bytes,
    check: str = "structure",
    policy: MaskPolicy = NUMBERS,
    segments: bytes | None = None,
) -> checked_image.Image:
    """Returns `image` with its mask as a PNG, which is turned upright as the image was.

    The class of a pixel is its number in the file. A mask with a palette (Pascal VOC) is stored as gray with the
    palette's indices as values: a decoder would return the palette's colors, or their brightness, in place of classes.
    So is a gray one of less than 8 bits, whose values decoders stretch to 255. Other PNGs are stored unchanged.

    Args:
        image: the image as it is stored.
        mask: the bytes of a PNG, GIF, TIFF, BMP or .npy file.
        check: as for the image itself; "tensorflow" decodes a mask by Pillow.
        policy: what the pixels mean.
        segments: of a panoptic mask, see segment_masks; None for other masks.

    Raises:
        BadImageError: if `mask` is no complete file of the image's size that holds classes.
    """
    found = mask_pixels.open_mask(mask, check if check in structure.CHECKS else "decode")
    turn = image.annotation_turn
    size, expected = (found.height, found.width), orientations.turn_size(image.height, image.width, turn)
    if size != expected:
        detail = f"{size[0]} x {size[1]} pixels, and the image has {expected[0]} x {expected[1]} (height x width)"
        if turn != checked_image.UPRIGHT and size == (image.height, image.width):
            detail += ", as it is stored: the mask fits the picture turned upright; set image.annotations: upright"
        raise checked_image.BadImageError(Reason.BAD_VALUE, detail)
    if found.format != image_formats.PNG or policy != NUMBERS:
        mask = _encode(_classes(mask_pixels.read_pixels(found), policy, segments), policy)
    elif mask[_COLOR_TYPE] == png_chunks.GRAY and mask[_DEPTH] < 8:
        mask = _encode(mask_pixels.gray_numbers(mask), policy)
    if turn != checked_image.UPRIGHT:
        mask = turn_upright.turn_mask(mask, turn)
    return image._replace(mask=_palette_to_gray(mask) if mask[_COLOR_TYPE] == png_chunks.PALETTE_INDEX else mask)


def _classes(pixels: mask_pixels.MaskPixels, policy: MaskPolicy, segments: bytes | None) -> np.ndarray:
    """Returns the class of each pixel, integers [height, width]."""
    if segments is not None:
        if pixels.colors is None:
            raise checked_image.unsupported("its pixels are numbers, not the colors of panoptic segments")
        return segment_masks.classes_of(pixels.colors, segments)
    colors = policy.colors
    if colors is None:
        if pixels.numbers is None:
            raise checked_image.unsupported(
                "its pixels are colors, not classes", "list the colors of the classes in source.masks.colors"
            )
        return pixels.numbers
    if pixels.colors is not None:
        return colors.classes_of(pixels.colors)
    assert pixels.numbers is not None
    if pixels.palette is None:
        raise checked_image.unsupported(
            f"its pixels are numbers ({pixels.numbers.dtype}), and source.masks.colors expects colors",
            "leave source.masks.colors out",
        )
    return colors.classes_of_indices(pixels.numbers, pixels.palette)


def _encode(classes: np.ndarray, policy: MaskPolicy) -> bytes:
    """Returns classes, integers [height, width], as a gray PNG.

    Raises:
        BadImageError: if a class does not fit into its bits.
    """
    import numpy as np

    highest = (1 << policy.bits) - 1
    lowest_found, highest_found = int(classes.min()), int(classes.max())
    if lowest_found < 0 or highest_found > highest:
        wrong = lowest_found if lowest_found < 0 else highest_found
        row, column = np.argwhere(classes == wrong)[0].tolist()
        detail = f"the pixel in row {row}, column {column} (from 0) has the value {wrong}, expected 0 to {highest:,}"
        if lowest_found < 0:
            detail += ": store pixels without a class as 255"
        elif highest_found < 1 << 16:
            detail += ": set source.masks.bits: 16"
        raise checked_image.BadImageError(Reason.BAD_VALUE, detail)
    kind, mode = (np.uint8, "L") if policy.bits == 8 else (np.dtype("<u2"), "I;16")
    height, width = classes.shape
    gray = pillow_decoder.pillow().frombytes(mode, (width, height), classes.astype(kind).tobytes())
    stored = io.BytesIO()
    gray.save(stored, "PNG")
    return stored.getvalue()


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
