"""Scales images: in C by default, by Pillow on request.

A JPEG that stays a JPEG is decoded, scaled and encoded in one call: its planes are scaled as they are stored,
brightness and color apart, without a conversion to RGB and back. The pixels of other images are scaled once they are
decoded. Both are the same on every processor. The picture is the one that Pillow makes with the same filter, up to
rounding and, for a JPEG, the noise of encoding.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from imagebeam import errors
from imagebeam.transforms.images import checked_image, image_formats, pillow_decoder, structure
from imagebeam.transforms.images.pillow_decoder import pillow

if TYPE_CHECKING:
    import PIL.Image

    from imagebeam.transforms.images import pixels

try:
    from imagebeam import _writer
except ImportError:  # installed without a compiler
    _writer = None  # type: ignore[assignment]

NATIVE, PILLOW = "native", "pillow"  # values of image.resampler
FILTERS = {"bicubic": "BICUBIC", "lanczos": "LANCZOS", "area": "BOX", "bilinear": "BILINEAR"}  # Pillow's names
_NUMBERS = {"area": 0, "bilinear": 1, "bicubic": 2, "lanczos": 3}  # numbers that `_writer` gives the filters
# Modes of Pillow: colors multiplied by alpha, so that what is hidden counts 0.
_MULTIPLIED = {"LA": "La", "RGBA": "RGBa"}
# Sampling factors of Y, across and down.
_SAMPLINGS = {"source": (0, 0), "4:4:4": (1, 1), "4:2:2": (2, 1), "4:2:0": (2, 2)}
_CHANNELS = {"GRAY": 1, "RGB": 3}


def resize(picture: PIL.Image.Image, size: tuple[int, int], filter: str, resampler: str = NATIVE) -> PIL.Image.Image:
    """Returns `picture` scaled.

    Args:
        picture: in mode L, LA, RGB or RGBA.
        size: width and height in pixels.
        filter: a key of FILTERS; all are antialiased.
        resampler: NATIVE or PILLOW.

    Raises:
        ConfigError: if the C extension is missing.
    """
    module = pillow_decoder.pillow()
    if resampler == PILLOW:
        return picture.resize(size, getattr(module.Resampling, FILTERS[filter]))
    mode = picture.mode
    source = picture.convert(_MULTIPLIED[mode]) if mode in _MULTIPLIED else picture
    shape = source.height, source.width, len(source.getbands())
    scaled: PIL.Image.Image = module.frombytes(source.mode, size, resize_bytes(source.tobytes(), shape, size, filter))
    return scaled.convert(mode) if mode in _MULTIPLIED else scaled


def resize_bytes(data: bytes, shape: tuple[int, int, int], size: tuple[int, int], filter: str) -> bytes:
    """Returns bare pixels scaled in C.

    Args:
        data: rows of pixels, one byte for each channel, none of which is alpha.
        shape: height, width and channels.
        size: width and height in pixels.
        filter: a key of FILTERS.

    Raises:
        ConfigError: if the C extension is missing.
    """
    height, width, channels = shape
    pixels: bytes = require().resize_pixels(data, channels, (width, height), size, _NUMBERS[filter])
    return pixels


def resize_jpeg(
    image: checked_image.Image,
    size: tuple[int, int],
    part: tuple[int, int, int, int],
    reduction: int,
    filter: str,
    encoding: pixels.Encoding,
    is_gray: bool = False,
) -> checked_image.Image | None:
    """Returns a part of a JPEG resized in C.

    Args:
        image: a checked JPEG. Its EXIF orientation is ignored.
        size: width and height in pixels to which the whole image is scaled.
        part: left, upper, width and height of what is stored of it, in pixels.
        reduction: 1, 2, 4 or 8: the JPEG is decoded at this part of its size.
        filter: a key of FILTERS.
        encoding: of the result.
        is_gray: whether to store brightness (ITU-R 601) alone.

    Returns:
        None for a JPEG whose pixels must be decoded first: neither gray nor YCbCr, damaged in a way that libjpeg
            notices, or longer than a JPEG once it is scaled.

    Raises:
        ConfigError: if the C extension is missing.
    """
    if image.colorspace not in _CHANNELS:
        return None
    if max(size) > checked_image.MAX_SIDE_PX[image_formats.JPEG]:  # cropped afterwards, or refused
        return None
    data = require().resize_jpeg(
        image.data,
        size,
        part,
        reduction,
        _NUMBERS[filter],
        encoding.quality,
        _SAMPLINGS[encoding.chroma],
        encoding.progressive,
        is_gray,
    )
    if data is None:
        return None
    channels = 1 if is_gray else _CHANNELS[image.colorspace]
    return checked_image.Image(
        data, image_formats.JPEG, part[3], part[2], channels, structure.RAW_COLORSPACES[channels]
    )


def require() -> Any:
    """Returns the C extension.

    Raises:
        ConfigError: if it is missing, or was built without libjpeg: other code would write other bytes.
    """
    if library() is None:
        raise errors.ConfigError(
            "extension-missing",
            "images are to be resized, and this installation of imagebeam has no resizer in C: install a C compiler "
            "and libjpeg-turbo (apt-get install gcc python3-dev libjpeg-dev) and then imagebeam again, or set "
            "image.resampler: pillow, which stores other pixels",
        )
    return _writer


def library() -> str | None:
    """Returns name and version of what resizes; None where it was not built. The bytes depend on it."""
    return getattr(_writer, "RESIZER", None)


BLACK = (0, 0, 0)
# A JPEG is decoded at 1/2, 1/4 or 1/8 of its size where that leaves so many times the pixels per side that are wanted:
# the filter after it then decides what is seen. tests/unit/transforms/images/test_resample.py holds the bound.
_SPARE = 2
_WITH_ALPHA = (2, 4)  # channels of bare pixels
_MAX_BARE_PIXELS = 1 << 24  # whether larger pictures fit into an example is checked where they are encoded


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
    resampler: str = NATIVE  # or resample.PILLOW

    @property
    def is_native(self) -> bool:
        """Whether any image may be scaled in C."""
        is_sized = any(side is not None for side in (self.size, self.shortest_side, self.longest_side, self.max_pixels))
        return is_sized and self.resampler == NATIVE

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

    def apply_to_bare(self, image: checked_image.Image) -> checked_image.Image | None:
        """Returns an image of bare pixels scaled; None if a picture of Pillow is needed for that."""
        width, height = self.scaled(image.width, image.height)
        if max(width * height, image.width * image.height) > _MAX_BARE_PIXELS:
            return None
        if (width, height) == (image.width, image.height):
            return image
        if not self.is_native or image.channels in _WITH_ALPHA:
            return None
        data = resize_bytes(image.data, (image.height, image.width, image.channels), (width, height), self.filter)
        return image._replace(data=data, height=height, width=width)

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
            picture = resize(picture, target, self.filter, self.resampler)
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
