"""What is known of an image whose bytes were checked, and the error for one that is turned away."""

from __future__ import annotations

from typing import NamedTuple

from imagebeam.transforms.elements import Reason

# TensorFlow decodes nothing beyond these (tried with 2.21); Pillow refuses more than 178,956,970 pixels.
MAX_SIDE_PX = {"jpeg": 65_500, "png": 1_000_000}  # JPEG_MAX_DIMENSION of libjpeg, PNG_USER_WIDTH_MAX of libpng
MAX_VALUES = 2**29 - 1  # height * width, for a JPEG times components
UPRIGHT = 1  # the orientation of EXIF that asks for no turn


class Image(NamedTuple):
    """What is known of one checked image."""

    data: bytes  # as they are to be stored; where they become numbers, each byte is one
    format: str  # "jpeg", "png" or "raw"
    height: int  # pixels
    width: int
    channels: int  # 1 to 4, as a decoder yields by default; a palette gives 3, with transparency 4
    colorspace: str  # GRAY, GRAY_ALPHA, RGB, RGBA or CMYK
    sums: PixelSums | None = None  # where they are asked for
    mask: bytes = b""  # PNG of the class of each pixel, where there is one
    record: bytes = b""  # the serialized Example that it came in, where features of that are kept
    orientation: int = UPRIGHT  # of EXIF, 2 to 8 where it asks for a turn of the pixels as they are in `data`


class PixelSums(NamedTuple):
    """What mean and deviation of pixels are made of, exactly, by channel: red, green, blue."""

    num_pixels: int
    totals: tuple[int, ...]
    squares: tuple[int, ...]


class BadImageError(ValueError):
    """The bytes are not an image that can be stored; `detail` says what was found, and where."""

    def __init__(self, reason: Reason, detail: str):
        super().__init__(reason, detail)  # both, so that it can be pickled
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}"


CONVERT_FIRST = "convert it first"


def unsupported(found: str, remedy: str = CONVERT_FIRST) -> BadImageError:
    """The error for an image of a kind that is not stored."""
    return BadImageError(Reason.UNSUPPORTED_FORMAT, f"{found}: {remedy}")


def corrupt(found: str) -> BadImageError:
    """The error for bytes that contradict each other."""
    return BadImageError(Reason.CORRUPT, found)


def truncated(found: str, size: int) -> BadImageError:
    """The error for a file of `size` bytes that lacks its end."""
    return BadImageError(Reason.TRUNCATED, f"{found}, the file has {size} bytes: it was cut short, fetch it again")


def too_many_pixels(height: int, width: int) -> BadImageError:
    """The error for a picture that no decoder takes."""
    return BadImageError(Reason.TOO_LARGE, f"{height} x {width} pixels are more than decoders take: scale it down")
