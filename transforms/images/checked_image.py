"""The result of an image check: a description of the image, or the error for a rejected one."""

from __future__ import annotations

import dataclasses
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
    """Hashes that equal images share."""

    content: bytes  # digest of the bytes of the source; b"" if they are not compared
    picture: bytes  # see perceptual_hash; b"" if pictures are not compared, or this one cannot be decoded


class Image(NamedTuple):
    """One image that passed its check."""

    data: bytes  # to be stored; one byte for each number where the feature is a list of numbers
    format: str  # "jpeg", "png", "webp" or "raw"
    height: int  # pixels
    width: int
    channels: int  # 1 to 4, as a decoder returns by default: 3 for a palette, 4 with transparency; or number of bands
    colorspace: str  # GRAY, GRAY_ALPHA, RGB, RGBA or CMYK; BANDS_n of n bands
    sums: PixelSums | None = None  # None where pixel statistics are off
    mask: bytes = b""  # PNG with the class of each pixel; empty where the image has no mask
    record: bytes = b""  # the serialized Example that held the image, where its other features are kept
    orientation: int = UPRIGHT  # EXIF orientation of the pixels in `data`; 2 to 8 ask for a turn
    turned: int = UPRIGHT  # EXIF orientation of the file's pixels, if they were turned upright
    annotation_turn: int = UPRIGHT  # the same, for boxes and masks: UPRIGHT if they are of the upright picture
    source_format: str = ""  # format of the file, where the image was encoded again; "" where it is `format`
    reencoded: str = ""  # why the pixels were encoded again where bytes are kept, such as "gif to png"; "" if not
    hashes: ImageHashes | None = None  # None unless duplicates are looked for
    objects: tuple[tuple[float | bytes, ...], ...] = ()  # by column of ImagePolicy.objects, for the file's pixels
    annotated: tuple[int, int] | None = None  # height and width in pixels that `objects` are for; None if not known
    extra_images: tuple[Image, ...] = ()  # extra images of the example, in the order of ImageRef.extra_images
    highest: int | None = None  # number of a gray picture that was stored with 8 bits of 16; None for others
    dtype: str = "uint8"  # type of the stored numbers: uint8, uint16 or float32
    computed: tuple[bytes, ...] = ()  # features that the user's functions compute, as they are stored
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


def other_numbers(found: str, remedy: str) -> BadImageError:
    """Returns the error for numbers or bands that the config's dtype, range and bands do not store."""
    return BadImageError(Reason.PIXEL_TYPE, f"{found}: {remedy}")


def several_frames() -> BadImageError:
    """Returns the error for a file of several pictures where image.frames rejects it."""
    return BadImageError(Reason.SEVERAL_FRAMES, "it holds several images: set image.frames: first, or split it")


def several_slices(count: int) -> BadImageError:
    """Returns the error for a volume where image.frames does not store each slice."""
    return BadImageError(Reason.SEVERAL_FRAMES, f"it holds {count:,} slices: set image.frames: each, or split it")


def corrupt(found: str) -> BadImageError:
    """Returns the error for bytes that contradict each other."""
    return BadImageError(Reason.CORRUPT, found)


def truncated(found: str, size: int) -> BadImageError:
    """Returns the error for a file of `size` bytes whose end is missing."""
    return BadImageError(Reason.TRUNCATED, f"{found}, the file has {size} bytes: it was cut short, fetch it again")


def too_many_pixels(height: int, width: int) -> BadImageError:
    """Returns the error for an image larger than decoders accept."""
    return BadImageError(Reason.TOO_LARGE, f"{height} x {width} pixels are more than decoders take: scale it down")


# Decoding takes up to some 8 bytes of memory per pixel: with these limits, a worker stays under 1 GB. They hold for
# images that are decoded while they are converted; those whose bytes are kept are limited by what decoders accept.
MAX_DECODED_PIXELS = 100_000_000
_MAX_DECODED_PIXELS_OF = {  # formats that take more memory
    "jp2": 40_000_000,
    "webp": 60_000_000,
    "turned png": 60_000_000,
    "tiff": 80_000_000,
}


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits on the images of a dataset, as their files are; None allows any."""

    max_bytes: int | None = None
    max_pixels: int | None = None  # height * width; without it `MAX_DECODED_PIXELS` holds where pixels are decoded
    min_side: int | None = None  # least length of the shorter side, in pixels
    max_side: int | None = None  # greatest length of the longer side, in pixels
    max_aspect_ratio: float | None = None  # longer side / shorter side
    max_frames: int | None = None
    max_seconds: float | None = None  # to check, decode and encode one image; see transforms.shard.read_images

    def check_bytes(self, num_bytes: int) -> None:
        """Raises BadImageError if a file is larger than allowed."""
        if self.max_bytes is not None and num_bytes > self.max_bytes:
            raise _too_large(f"{num_bytes:,} bytes", "max_bytes", f"{self.max_bytes:,}")

    def check_size(self, height: int, width: int) -> None:
        """Raises BadImageError if an image has too many or too few pixels, or sides out of proportion."""
        shorter, longer = min(height, width), max(height, width)
        if self.max_pixels is not None and height * width > self.max_pixels:
            raise _too_large(f"{height} x {width} pixels", "max_pixels", f"{self.max_pixels:,}")
        if self.max_side is not None and longer > self.max_side:
            raise _too_large(f"{height} x {width} pixels", "max_side", str(self.max_side))
        if self.min_side is not None and shorter < self.min_side:
            detail = f"{height} x {width} pixels, image.limits.min_side is {self.min_side}"
            raise BadImageError(Reason.TOO_SMALL, detail)
        if self.max_aspect_ratio is not None and longer > self.max_aspect_ratio * shorter:
            ratio = f"{height} x {width} pixels have the ratio {longer / shorter:.4g}"
            detail = f"{ratio}, image.limits.max_aspect_ratio is {self.max_aspect_ratio:g}"
            raise BadImageError(Reason.ASPECT_RATIO, detail)

    def check_decoded(self, height: int, width: int, format: str) -> None:
        """Raises BadImageError if an image that is to be decoded would take too much memory."""
        limit = self.max_pixels or _MAX_DECODED_PIXELS_OF.get(format, MAX_DECODED_PIXELS)
        if height * width > limit:
            found = f"{height} x {width} pixels of {format}, which are decoded while they are converted"
            raise BadImageError(
                Reason.TOO_LARGE, f"{found}, are more than {limit:,}: scale it down, or set image.limits.max_pixels"
            )

    def check_frames(self, frames: int) -> None:
        """Raises BadImageError if a file holds too many images."""
        if self.max_frames is not None and frames > self.max_frames:
            raise _too_large(f"{frames} frames", "max_frames", str(self.max_frames))


def _too_large(found: str, option: str, limit: str) -> BadImageError:
    return BadImageError(Reason.TOO_LARGE, f"{found}, image.limits.{option} is {limit}")


NO_LIMITS = Limits()
