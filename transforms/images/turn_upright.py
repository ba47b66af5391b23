"""Turns encoded images and masks upright, as their EXIF orientation asks for.

Cameras store the pixels as the sensor reads them, and note in EXIF data how to turn them. Readers of datasets ignore
EXIF data, so the turn must be in the pixels.
"""

from __future__ import annotations

from typing import NamedTuple

from imagebeam.transforms.images import checked_image, image_formats, orientations, turn_jpeg, turn_png
from imagebeam.transforms.images.checked_image import Image


class Upright(NamedTuple):
    """An image turned upright."""

    image: Image
    is_lossless: bool  # False if it was decoded, turned and encoded again, which changes pixels slightly


def turn_upright(image: Image) -> Upright:
    """Returns a checked JPEG or PNG turned as `image.orientation` asks for; any other image as it is.

    The result has `data`, `height` and `width` of the upright image, orientation 1 in its EXIF data, and
    `orientation` 1. `mask`, `record` and `sums` stay: turn the mask with `turn_mask`, and sum the pixels afterwards.

    Raises:
        BadImageError: if the pixels are damaged so that they cannot be turned.
        ConfigError: if Pillow is needed and not installed.
    """
    if image.orientation == checked_image.UPRIGHT:
        return Upright(image, is_lossless=True)
    turn = _TURNS.get(image.format)
    return Upright(image, is_lossless=True) if turn is None else turn(image)


def upright_jpeg(image: Image) -> Upright:
    """Returns a checked JPEG turned upright: without loss where possible, else decoded and encoded again.

    Without loss means that the compressed blocks are moved and mirrored, as jpegtran does. It needs the C extension,
    and each side that is mirrored must be a multiple of 8 or 16 pixels (32 for 4:1:1). Otherwise Pillow decodes and
    encodes with the quantization tables of the source, turned likewise, and with its chroma subsampling, or none where
    Pillow cannot write the turned one.

    Both ways keep the segments APPn and COM byte for byte, except for the EXIF orientation, which becomes 1, and the
    sizes in EXIF data. A thumbnail in EXIF data stays as it was. Bytes after the end of the image are dropped.

    Raises:
        BadImageError: if the pixels are damaged so that they cannot be turned.
        ConfigError: if Pillow is needed and not installed.
    """
    data = turn_jpeg.turn_without_loss(image)
    if data is not None:
        return Upright(_turned(image, data), is_lossless=True)
    return Upright(_turned(image, turn_jpeg.encode_turned(image)), is_lossless=False)


def upright_png(image: Image) -> Upright:
    """Returns a checked PNG turned upright, always without loss: the same bit depth, palette and other chunks.

    The EXIF orientation becomes 1. An interlaced PNG becomes a plain one; of an animated PNG the first image stays.

    Raises:
        BadImageError: if the pixels cannot be decoded.
        ConfigError: if Pillow is not installed.
    """
    return Upright(_turned(image, turn_png.turn_png(image.data, image.orientation)), is_lossless=True)


def turn_mask(mask: bytes, orientation: int) -> bytes:
    """Returns the mask of an image, a complete PNG, turned as the image: the same values, bit depth and palette.

    Args:
        mask: the bytes of a checked PNG. Its own EXIF orientation is not read; it becomes 1.
        orientation: 1 to 8, of the image before it was turned.

    Raises:
        BadImageError: if the pixels cannot be decoded.
        ConfigError: if Pillow is not installed.
        ValueError: if `orientation` is not 1 to 8.
    """
    return turn_png.turn_png(mask, orientation)


def library() -> str | None:
    """Returns name and version of the library that turns JPEGs without loss; None where the C extension is missing.

    The bytes of a turned JPEG depend on it: without the extension every turned JPEG is encoded again.
    """
    return turn_jpeg.library()


def _turned(image: Image, data: bytes) -> Image:
    height, width = orientations.turn_size(image.height, image.width, image.orientation)
    return image._replace(data=data, height=height, width=width, orientation=checked_image.UPRIGHT)


_TURNS = {image_formats.JPEG: upright_jpeg, image_formats.PNG: upright_png}
