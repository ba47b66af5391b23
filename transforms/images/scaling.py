"""Scales, crops and pads decoded pixels."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from imagebeam.transforms.images import resample
from imagebeam.transforms.images.pillow_decoder import pillow

if TYPE_CHECKING:
    import PIL.Image

BLACK = (0, 0, 0)
# A JPEG is decoded at 1/2, 1/4 or 1/8 of its size where that leaves so many times the pixels per side that are wanted:
# the filter after it then decides what is seen. tests/unit/transforms/images/test_scaling.py holds the bound.
_SPARE = 2


@dataclasses.dataclass(frozen=True)
class Scaling:
    """The size of stored images. All filters are antialiased."""

    size: tuple[int, int] | None = None  # exact height and width in pixels
    fit: str = "stretch"  # how `size` is reached: stretch, crop (the middle is kept) or pad
    shortest_side: int | None = None  # at most, in pixels; so for the next two
    longest_side: int | None = None
    max_pixels: int | None = None  # height * width
    enlarge: bool = False  # whether smaller images are enlarged to `shortest_side` or `longest_side`
    filter: str = "bicubic"  # a key of resample.FILTERS
    resampler: str = resample.NATIVE  # or resample.PILLOW

    @property
    def is_native(self) -> bool:
        """Whether any image may be scaled in C."""
        is_sized = any(side is not None for side in (self.size, self.shortest_side, self.longest_side, self.max_pixels))
        return is_sized and self.resampler == resample.NATIVE

    def is_needed(self, width: int, height: int) -> bool:
        """Returns whether an image of this size in pixels is changed."""
        return (width, height) != (self.size[::-1] if self.size else self.scaled(width, height))

    def scaled(self, width: int, height: int) -> tuple[int, int]:
        """Returns the width and height to which an image is scaled, before it is cropped or padded."""
        if self.size is not None:
            target_height, target_width = self.size
            if self.fit == "stretch":
                return target_width, target_height
            is_wider = width * target_height >= height * target_width
            # by the side that fills the target: with crop the other one is longer than wanted, with pad shorter
            if is_wider == (self.fit == "crop"):
                return max(1, _divide(width * target_height, height)), target_height
            return target_width, max(1, _divide(height * target_width, width))
        limits = []
        if self.shortest_side is not None:
            limits.append((self.shortest_side, min(width, height)))
        if self.longest_side is not None:
            limits.append((self.longest_side, max(width, height)))
        if self.max_pixels is not None and width * height > self.max_pixels:
            limits.append((_side_within(width, height, self.max_pixels), max(width, height)))
        if not limits:
            return width, height
        wanted, side = min(limits, key=lambda limit: limit[0] / limit[1])
        if wanted == side or (wanted > side and not self.enlarge):
            return width, height
        return _in_proportion(width, height, wanted, side)

    def draft_size(self, width: int, height: int) -> tuple[int, int]:
        """Returns the least width and height to decode a JPEG to, so that scaling it gives the same to the eye."""
        scaled_width, scaled_height = self.scaled(width, height)
        return min(width, scaled_width * _SPARE), min(height, scaled_height * _SPARE)

    def reduction(self, width: int, height: int) -> int:
        """Returns 1, 2, 4 or 8: at which part of its size in pixels a JPEG is decoded, like Pillow's draft mode."""
        draft_width, draft_height = self.draft_size(width, height)
        spare = min(width // draft_width, height // draft_height)
        return max(part for part in (1, 2, 4, 8) if part <= max(spare, 1))

    def part(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Returns left, upper, width and height of what remains, in pixels of the scaled image; `fit` is not "pad"."""
        scaled_width, scaled_height = self.scaled(width, height)
        if self.size is None:
            return 0, 0, scaled_width, scaled_height
        height, width = self.size
        return (scaled_width - width) // 2, (scaled_height - height) // 2, width, height

    def apply(
        self,
        picture: PIL.Image.Image,
        background: tuple[int, int, int] | None = None,
        size: tuple[int, int] | None = None,
    ) -> PIL.Image.Image:
        """Returns `picture` scaled, and cropped or padded if `fit` asks for it.

        Args:
            picture: of any of the four modes.
            background: red, green and blue of the padding; None is black.
            size: width and height in pixels of the whole image, if `picture` was decoded at a part of it.
        """
        target = self.scaled(*(size or picture.size))
        if target != picture.size:
            picture = resample.resize(picture, target, self.filter, self.resampler)
        if self.size is None or target == self.size[::-1]:
            return picture
        height, width = self.size
        left, upper = (target[0] - width) // 2, (target[1] - height) // 2
        if self.fit == "crop":
            return picture.crop((left, upper, left + width, upper + height))
        padded = pillow().new(picture.mode, (width, height), _in_channels(background or BLACK, picture.mode))
        padded.paste(picture, (-left, -upper))
        return padded


UNSCALED = Scaling()


def _in_proportion(width: int, height: int, wanted: int, side: int) -> tuple[int, int]:
    """Returns both sides multiplied by `wanted / side`, rounded to the nearest pixel, halves up; at least 1."""
    return max(1, _divide(width * wanted, side)), max(1, _divide(height * wanted, side))


def _divide(number: int, by: int) -> int:
    return (2 * number + by) // (2 * by)


def _side_within(width: int, height: int, max_pixels: int) -> int:
    """Returns the longer side, in pixels, of the largest image in proportion that has no more pixels."""
    longer = max(width, height)
    side = max(1, math.isqrt(max_pixels * longer // min(width, height)))
    while side > 1 and math.prod(_in_proportion(width, height, side, longer)) > max_pixels:
        side -= 1
    return side


def _in_channels(color: tuple[int, int, int], mode: str) -> tuple[int, ...]:
    opaque = (pillow().new("RGB", (1, 1), color).convert("L").getpixel((0, 0)),) if mode in ("L", "LA") else color
    return (*opaque, 255) if mode in ("LA", "RGBA") else (*opaque,)
