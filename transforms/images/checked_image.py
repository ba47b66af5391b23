"""The result of an image check: a description of the image, or the error for a rejected one."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import NamedTuple

from imagebeam.transforms.elements import Reason

# TensorFlow decodes nothing beyond these limits (tried with 2.21); Pillow refuses more than 178,956,970 pixels.
# JPEG_MAX_DIMENSION of libjpeg, PNG_USER_WIDTH_MAX of libpng, WEBP_MAX_DIMENSION of libwebp.
MAX_SIDE_PX = {"jpeg": 65_500, "png": 1_000_000, "webp": 16_383}
MAX_VALUES = 2**29 - 1  # height * width, for a JPEG also times its components
UPRIGHT = 1  # the EXIF orientation of pixels that need no turn
CONVERT_FIRST = "convert it first"


class PixelSums(NamedTuple):
    """Exact sums over all pixels, from which mean and deviation are computed; by channel: red, green, blue."""

    num_pixels: int
    totals: tuple[int, ...]
    squares: tuple[int, ...]


class ImageHashes(NamedTuple):
    """What equal images have in common."""

    content: bytes  # digest of the bytes of the source; b"" if they are not compared
    picture: bytes  # see perceptual_hash; b"" if pictures are not compared, or this one cannot be decoded


class Image(NamedTuple):
    """One image that passed its check."""

    data: bytes  # to be stored; one byte for each number where the feature is a list of numbers
    format: str  # "jpeg", "png", "webp" or "raw"
    height: int  # pixels
    width: int
    channels: int  # 1 to 4, as a decoder returns by default: 3 for a palette, 4 for a palette with transparency
    colorspace: str  # GRAY, GRAY_ALPHA, RGB, RGBA or CMYK
    sums: PixelSums | None = None  # None where pixel statistics are off
    mask: bytes = b""  # PNG with the class of each pixel; empty where the image has no mask
    record: bytes = b""  # the serialized Example that held the image, where its other features are kept
    orientation: int = UPRIGHT  # EXIF orientation of the pixels in `data`; 2 to 8 ask for a turn
    turned: int = UPRIGHT  # EXIF orientation of the file's pixels, if they were turned upright
    annotation_turn: int = UPRIGHT  # the same, for boxes and masks: UPRIGHT if they are of the upright picture
    source_format: str = ""  # of the file, where the image was encoded again; "" where it is `format`
    reencoded: str = ""  # why the pixels were encoded again where bytes are kept, such as "gif to png"; "" if not
    hashes: ImageHashes | None = None  # None unless duplicates are looked for
    objects: tuple[tuple[float | bytes, ...], ...] = ()  # by column of ImagePolicy.objects, for the file's pixels
    annotated: tuple[int, int] | None = None  # height and width in pixels that `objects` are for; None if not known
    further: tuple[Image, ...] = ()  # further images of the example, in the order of ImageRef.further
    highest: int | None = None  # number of a gray picture that was stored with 8 bits of 16; None for others
    dropped_objects: Mapping[str, int] = types.MappingProxyType({})  # by kind, see transforms.images.image_objects


class BadImageError(ValueError):
    """The bytes are not an image that can be stored; `detail` says what was found, and where."""

    def __init__(self, reason: Reason, detail: str):
        super().__init__(reason, detail)  # both, so that the error can be pickled
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}"


def unsupported(found: str, remedy: str = CONVERT_FIRST) -> BadImageError:
    """Returns the error for an image of a kind that cannot be stored."""
    return BadImageError(Reason.UNSUPPORTED_FORMAT, f"{found}: {remedy}")


def corrupt(found: str) -> BadImageError:
    """Returns the error for bytes that contradict each other."""
    return BadImageError(Reason.CORRUPT, found)


def truncated(found: str, size: int) -> BadImageError:
    """Returns the error for a file of `size` bytes whose end is missing."""
    return BadImageError(Reason.TRUNCATED, f"{found}, the file has {size} bytes: it was cut short, fetch it again")


def too_many_pixels(height: int, width: int) -> BadImageError:
    """Returns the error for an image larger than decoders accept."""
    return BadImageError(Reason.TOO_LARGE, f"{height} x {width} pixels are more than decoders take: scale it down")
