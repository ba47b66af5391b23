"""Reads the numbers of an image as its file has them: Pillow's pictures lose what is beyond 8 bits and four bands."""

from __future__ import annotations

import contextlib
import io
import logging
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import (
    checked_image,
    image_formats,
    orientations,
    pillow_decoder,
    pixel_type,
    pixels,
    structure,
)

if TYPE_CHECKING:
    import PIL.Image

MAX_BYTES = 400_000_000  # of one image's numbers: a worker stays under 1 GB
_NUMBERS = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")  # modes of Pillow
# What TIFF calls the meaning of numbers: they grow with the light, or are red, green and blue.
_BLACK_IS_ZERO, _RGB, _YCBCR = 1, 2, 6
_JPEG = 7  # a compression of TIFF, whose YCbCr is decoded to RGB
_AXES = {"YX": (0, 1), "YXS": (0, 1, 2), "SYX": (1, 2, 0)}  # tifffile's names; where height, width and bands are
_SMALLER, _MASK = 1, 4  # bits of what a page is for
_DNG_VERSION = 50706  # a tag

logging.getLogger("tifffile").addHandler(logging.NullHandler())  # else it prints what it raises, too


def of_picture(picture: PIL.Image.Image, data: bytes) -> np.ndarray:
    """Returns the numbers of a decoded image, [height, width, bands].

    Args:
        picture: as Pillow decoded it, not from a TIFF. A palette becomes colors, alpha is a band.
        data: the bytes of the file.

    Raises:
        BadImageError: if they cannot be decoded.
    """
    is_png = picture.format == "PNG" and picture.mode not in _NUMBERS
    if is_png and structure.check_format(data, image_formats.PNG, "header").dtype == pixel_type.UINT16:
        codecs = pixel_type.imagecodecs()
        try:
            found = np.asarray(codecs.png_decode(data))
        except RuntimeError as e:  # of which those of imagecodecs are
            raise checked_image.BadImageError(Reason.UNDECODABLE, f"imagecodecs: {e}") from e
    else:
        found = np.asarray(picture if picture.mode in _NUMBERS else pixels.to_eight_bits(picture))
    return found if found.ndim == 3 else found[:, :, None]


class Page(Protocol):
    """One picture of a file: its size, the EXIF orientation of its pixels, and its numbers."""

    height: int
    width: int
    orientation: int

    def read(self) -> np.ndarray:
        """Returns the numbers, [height, width, bands]."""


class TiffPage:
    """One page of a TIFF: what is known of it before it is decoded.

    Attributes:
        height: pixels as they are stored.
        width: the same.
        orientation: EXIF's, 1 (no turn) to 8.
    """

    def __init__(self, data: bytes, number: int = 0):
        """Reads the header of a page.

        Args:
            data: the bytes of the file.
            number: of the page, from 0.

        Raises:
            BadImageError: if it cannot be read, or has no numbers that can be stored.
            ConfigError: if tifffile is not installed.
        """
        module = pixel_type.tifffile()
        with _as_bad_image():
            self._page: Any = module.TiffFile(io.BytesIO(data)).pages[number]
            self._check(number)
            self.height, self.width = (self._page.shape[each] for each in _AXES[self._page.axes][:2])
            turn = self._page.tags.valueof(orientations.ORIENTATION_TAG)
            self.orientation: int = turn if turn in range(1, 9) else checked_image.UPRIGHT

    def _check(self, number: int) -> None:
        page = self._page
        kind = int(page.subfiletype)
        if number and kind & (_SMALLER | _MASK):
            what = "a smaller version" if kind & _SMALLER else "the mask"
            raise checked_image.unsupported(f"{what} of another page", "leave it out of the file")
        if _DNG_VERSION in page.tags or kind & _SMALLER:
            raise checked_image.unsupported("a camera's raw photo (DNG, NEF or the like), which begins with a preview")
        is_light = page.photometric in (_BLACK_IS_ZERO, _RGB) or (
            page.photometric == _YCBCR and page.compression == _JPEG
        )
        if not is_light or page.dtype is None or page.dtype.kind not in "buif" or page.axes not in _AXES:
            found = f"a tiff of {getattr(page.photometric, 'name', page.photometric)}, {page.dtype}, {page.axes}"
            raise checked_image.unsupported(f"{found}, whose numbers are neither levels nor colors")
        num_bytes = math.prod(page.shape) * page.dtype.itemsize
        if max(num_bytes, math.prod(page.chunks) * page.dtype.itemsize) > MAX_BYTES:
            detail = f"a tiff of {page.shape} numbers of {page.dtype}, expected up to {MAX_BYTES:,} bytes: cut it"
            raise checked_image.BadImageError(Reason.TOO_LARGE, detail)

    def read(self) -> np.ndarray:
        """Returns the numbers of the page, [height, width, bands].

        Raises:
            BadImageError: if they cannot be decoded.
        """
        with _as_bad_image():
            found: np.ndarray = self._page.asarray()
            found = found.transpose(_AXES[self._page.axes])
            if found.dtype.kind == "b":
                found = found.astype(np.uint8) * np.uint8(255)  # as a picture of 1 bit
            return found if found.ndim == 3 else found[:, :, None]


@contextlib.contextmanager
def _as_bad_image() -> Iterator[None]:
    try:
        yield
    except checked_image.BadImageError:
        raise
    # For tifffile 2025 and older, the last ones for Python 3.10, its own error is no ValueError.
    except (pixel_type.tifffile().TiffFileError, *pillow_decoder.FAILURES) as e:
        raise checked_image.BadImageError(Reason.UNDECODABLE, f"tifffile: {e}") from e
