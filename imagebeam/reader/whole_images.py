"""Whole images decoded one by one: for single examples, and for formats that the decoder of batches does not know.

An error says what is wrong; the caller says of which image.
"""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np

from imagebeam import errors
from imagebeam.reader import bare_pixels

try:
    from imagebeam import _native
except ImportError:  # installed without a compiler, or without libjpeg-turbo
    _native = None  # type: ignore[assignment]

_NOT_OF_IMAGES = (errors.ImagebeamError, MemoryError)

Size = tuple[int, int]  # height and width, in pixels


def decode_rgb(encoded: bytes | memoryview, size: Size | None = None) -> np.ndarray:
    """Returns the pixels of an image as RGB, uint8 [height, width, 3]; transparency is dropped, as TensorFlow does.

    Sound JPEGs in gray or color are decoded in C, to the same pixels in three quarters of the time. Pillow decodes all
    others, and says what is wrong with an image.

    Args:
        encoded: the bytes of the image.
        size: height and width that its record says; None if it says nothing.

    Raises:
        ValueError: if it cannot be decoded, or has another size.
    """
    if _native is not None:
        found = _native.decode_whole(encoded, import_pillow().MAX_IMAGE_PIXELS or sys.maxsize, *(size or ()))
        if found is not None:
            pixels, height, width = found
            return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
    return decode_reduced(encoded, size, 1)


def decode_reduced(encoded: bytes | memoryview, size: Size | None, reduction: int) -> np.ndarray:
    """Returns as `decode_rgb`, by Pillow, an image of which libjpeg reduces both sides by a factor as it decodes.

    Raises:
        ValueError: if it cannot be decoded, or has another size.
    """
    pillow = import_pillow()
    try:
        with pillow.open(io.BytesIO(encoded)) as picture:
            if size is not None and size != (picture.height, picture.width):  # before memory is taken for the pixels
                sides = f"{picture.height} x {picture.width} pixels"
                raise ValueError(f"the image has {sides}, its record says {size[0]} x {size[1]}")
            if reduction > 1:
                picture.draft("RGB", (picture.width // reduction, picture.height // reduction))
            if picture.mode.startswith("I;16"):  # gray of 16 bits, which Pillow would clip at 255
                gray = (np.asarray(picture) >> 8).astype(np.uint8)
                return np.repeat(gray[:, :, None], 3, axis=2)
            return np.array(picture.convert("RGB"))  # a copy: PyTorch warns about read-only arrays
    except _NOT_OF_IMAGES:
        raise
    except Exception as e:  # plugins raise any type
        raise ValueError(f"Pillow: {_reason(e)}") from e


def measure(encoded: bytes | memoryview) -> Size:
    """Returns height and width of an image by its header.

    Raises:
        ValueError: if it has none.
    """
    pillow = import_pillow()
    try:
        with pillow.open(io.BytesIO(encoded)) as picture:
            return picture.height, picture.width
    except _NOT_OF_IMAGES:
        raise
    except Exception as e:  # plugins raise any type
        raise ValueError(f"Pillow: {_reason(e)}") from e


def decode_numbers(encoded: bytes | memoryview, form: bare_pixels.PixelForm, size: Size | None) -> np.ndarray:
    """Returns the numbers of an image that are no colors of 8 bits: [height, width, channels] of the form's type.

    Args:
        encoded: a PNG of uint8 or uint16, or of float32 the values one after the other, little-endian.
        form: type and channels of the numbers; 0 channels allow any.
        size: height and width that the record says; None if it says nothing, which bare values need.

    Raises:
        ValueError: if it cannot be decoded, or is of another size or form.
    """
    if form.dtype == "float32":
        if size is None or len(encoded) != size[0] * size[1] * form.channels * form.value_bytes:
            raise ValueError(f"it is {len(encoded):,} bytes, its record says {size} pixels")
        return np.frombuffer(encoded, "<f4").reshape(*size, form.channels)
    try:
        with import_pillow().open(io.BytesIO(encoded)) as picture:
            # Pillow takes the upper 8 bits of colors of 16.
            is_exact = picture.mode in ("L", "P") or picture.mode.startswith("I;16")
            found = np.array(picture) if is_exact else _import_codecs().png_decode(bytes(encoded))
    except _NOT_OF_IMAGES:
        raise
    except Exception as e:  # plugins raise any type
        raise ValueError(_reason(e)) from e
    found = found if found.ndim == 3 else found[:, :, None]
    fits = np.can_cast(found.dtype, form.dtype) and form.channels in (0, found.shape[2])
    if not fits or (size is not None and found.shape[:2] != size):
        shown = f"{form.dtype} of {size[0]} x {size[1]}" if size else form.dtype
        height, width, channels = found.shape
        raise ValueError(
            f"the image is {found.dtype} of {height} x {width} pixels and {channels} channels, its record says {shown}"
        )
    return found


def of_pixels(pixels: bare_pixels.Pixels, form: bare_pixels.PixelForm) -> np.ndarray:
    """Returns uint8 [height, width, 3], as `decode_rgb`; pixels of another form as they are stored."""
    stored = pixels.to_array(form)
    if not form.is_usual:
        return stored.astype(form.dtype)
    return stored[:, :, :3].copy() if pixels.channels >= 3 else np.repeat(stored[:, :, :1], 3, axis=2)


def _reason(error: Exception) -> str:
    """Returns why an image cannot be decoded; the text of UnidentifiedImageError holds a memory address."""
    return "cannot identify the image" if isinstance(error, import_pillow().UnidentifiedImageError) else str(error)


def _import_codecs() -> Any:
    with errors.imports_for("the reader, of a PNG of 16 bits a color,", "bands"):
        import imagecodecs
    return imagecodecs


def import_pillow() -> Any:
    """Imports Pillow.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError as e:
        raise errors.missing_package(e, "the reader", "numpy", otherwise="give as_grain decode=False") from e
    return Image
