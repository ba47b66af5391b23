"""Limits on images, checked by their headers before any pixel is decoded."""

from __future__ import annotations

import dataclasses

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images.checked_image import BadImageError

# Decoding takes up to some 8 bytes of memory per pixel: with these limits, a worker stays under 1 GB. They hold for
# images that are decoded while they are converted; those whose bytes are kept are limited by what decoders accept.
MAX_DECODED_PIXELS = 100_000_000
_MAX_DECODED_PIXELS_OF = {  # of kinds that take more
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
    min_side: int | None = None  # of the shorter side, in pixels
    max_side: int | None = None  # of the longer side
    max_aspect_ratio: float | None = None  # longer side / shorter side
    max_frames: int | None = None
    max_seconds: float | None = None  # to check, decode and encode one image; see transforms.shard.time_limit

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
