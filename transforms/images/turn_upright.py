"""Turns encoded images and masks upright, as their EXIF orientation asks for.

Cameras store the pixels as the sensor reads them, and note in EXIF data how to turn them. Readers of datasets ignore
EXIF data, so the turn must be in the pixels.
"""

from __future__ import annotations

import io
from typing import NamedTuple

from imagebeam.transforms.images import (
    checked_image,
    colors,
    exif,
    image_formats,
    orientations,
    pillow_decoder,
    pixels,
    png_chunks,
    turn_jpeg,
)
from imagebeam.transforms.images.checked_image import Image

_EXIF, _GRAY_ALPHA = b"eXIf", 4
_ANIMATION = frozenset({b"acTL", b"fcTL", b"fdAT"})  # chunks of the other images of an animated PNG
_OF_DEPTH = frozenset({b"bKGD", b"sBIT", b"tRNS"})  # chunks whose numbers have the bits of a pixel


class Upright(NamedTuple):
    """An image turned upright."""

    image: Image
    is_lossless: bool  # False if it was decoded, turned and encoded again, which changes pixels slightly


def turn_upright(image: Image) -> Upright:
    """Returns a checked JPEG or PNG turned as `image.orientation` asks for; any other image as it is.

    The result has `data`, `height` and `width` of the upright image, orientation 1 in its EXIF data, and
    `orientation` 1. `mask`, `record` and `sums` stay: turn the mask with `turn_mask`, and sum the pixels afterwards.

    A JPEG is turned without loss where possible: its compressed blocks are moved and mirrored, as jpegtran does. It
    needs TurboJPEG, and each side that is mirrored must be a multiple of 8 or 16 pixels (32 for 4:1:1). Otherwise
    Pillow decodes and encodes it with the quantization tables of the source, turned likewise, and with its chroma
    subsampling, or none where Pillow cannot write the turned one. Both ways keep the segments APPn and COM, except for
    the EXIF orientation, and the sizes in EXIF data. A thumbnail in EXIF data stays as it was. Bytes after the end of
    the image are dropped.

    Raises:
        BadImageError: if the pixels are damaged so that they cannot be turned.
        ConfigError: if Pillow is needed and not installed.
    """
    if image.orientation == checked_image.UPRIGHT or image.format not in (image_formats.JPEG, image_formats.PNG):
        return Upright(image, is_lossless=True)
    if image.format == image_formats.PNG:
        data, is_lossless = _turn_png(image.data, image.orientation)
    else:
        turned = turn_jpeg.turn_without_loss(image)
        data, is_lossless = turn_jpeg.encode_turned(image) if turned is None else turned, turned is not None
    height, width = orientations.turn_size(image.height, image.width, image.orientation)
    upright = image._replace(data=data, height=height, width=width, orientation=checked_image.UPRIGHT)
    return Upright(upright, is_lossless)


def turn_mask(mask: bytes, orientation: int) -> bytes:
    """Returns the mask of an image, a complete PNG, turned as the image: the same values and palette.

    Args:
        mask: the bytes of a checked PNG: gray of 8 or 16 bits, a palette, or colors. Its own EXIF orientation is not
            read; it becomes 1.
        orientation: 1 to 8, of the image before it was turned.

    Raises:
        BadImageError: if the pixels cannot be decoded, or have colors of 16 bits.
        ConfigError: if Pillow is not installed.
        ValueError: if `orientation` is not 1 to 8.
    """
    orientations.check_orientation(orientation)
    data, is_lossless = _turn_png(mask, orientation)
    if not is_lossless:
        raise checked_image.unsupported("a mask with colors of 16 bits", "save it with 8 bits a channel")
    return data


def library() -> str | None:
    """Returns name and version of the library that turns JPEGs without loss; None where it was not built in.

    The bytes of a turned JPEG depend on it: without it every turned JPEG is encoded again.
    """
    return turn_jpeg.library()


def _turn_png(png: bytes, orientation: int) -> tuple[bytes, bool]:
    """Returns a checked PNG turned, and whether no pixel lost anything: colors of 16 bits keep their upper 8.

    Gray of 2 and 4 bits gets 8, for the same picture. Palette and other chunks stay. The EXIF orientation becomes 1. An
    interlaced PNG becomes a plain one; of an animated PNG the first image stays.
    """
    color_type, depth = (
        png[png_chunks.HEADER_START + each] for each in (png_chunks.COLOR_TYPE_BYTE, png_chunks.DEPTH_BYTE)
    )
    picture = pixels.turn_upright(pillow_decoder.decode_any(png, image_formats.PNG), orientation)
    if color_type == _GRAY_ALPHA:  # of which Pillow makes RGBA if it has 16 bits
        picture = colors.in_mode(picture, "LA")
    picture.info = {}
    encoded = io.BytesIO()
    picture.save(encoded, pillow_decoder.DECODED_FORMATS[image_formats.PNG])
    own = {png_chunks.HEADER: b"", png_chunks.PIXELS: b""}
    for chunk in png_chunks.read_chunks(encoded.getvalue()):
        if chunk.kind in own:
            own[chunk.kind] += chunk.whole
    has_other_depth = encoded.getvalue()[png_chunks.HEADER_START + png_chunks.DEPTH_BYTE] != depth
    has_other_numbers = has_other_depth and color_type != png_chunks.PALETTE_INDEX
    dropped = _ANIMATION | (_OF_DEPTH if has_other_numbers else frozenset())
    turned = [png_chunks.SIGNATURE]
    for kind, data, whole in png_chunks.read_chunks(png):
        if kind in own:
            turned.append(own.pop(kind))
            own[kind] = b""  # of several chunks of pixels, the first makes way for all
        elif kind == _EXIF:
            upright = bytearray(data)
            exif.set_upright(upright, 0, len(upright), orientations.swaps_sides(orientation))
            turned.append(png_chunks.encode_chunk(kind, bytes(upright)))
        elif kind not in dropped:
            turned.append(whole)
    return b"".join(turned), depth < 16 or color_type == png_chunks.GRAY
