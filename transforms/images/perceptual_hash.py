"""Computes the perceptual hash of an image: 64 bits, few of which change when it is saved again, scaled or recolored.

It is pHash: gray, scaled to 32 x 32, two-dimensional DCT-II, and one bit for each of the 8 x 8 lowest frequencies,
whether it is above their median. All sums are of integers, so that the bits are the same on every machine.

Source: https://www.hackerfactor.com/blog/index.php?/archives/432-Looks-Like-It.html; `phash` of
https://github.com/JohannesBuchner/imagehash does the same with floats.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from imagebeam.transforms.images import checked_image, image_formats, pillow_decoder, pixels

if TYPE_CHECKING:
    import numpy as np
    import PIL.Image

HASH_BYTES = 8
_SIDE_PX = 32
_DRAFT_PX = 2 * _SIDE_PX  # a JPEG is decoded at a part of its size, but not below this
_NUM_FREQUENCIES = 8
_SCALE = 1 << 12  # of the cosines: 32 * 32 * 255 * _SCALE**2 is far below 2**63


def hash_image(image: checked_image.Image, allowed: checked_image.Limits = checked_image.NO_LIMITS) -> bytes:
    """Returns the perceptual hash of an image as it is stored, turned upright; 8 bytes.

    Returns b"" if its pixels cannot be decoded, or would take too much memory: such an image is like no other.

    Args:
        image: the result of a check.
        allowed: limits of what is decoded.
    """
    if image.format not in (image_formats.JPEG, image_formats.PNG, image_formats.WEBP):
        return hash_picture(pixels.from_bytes(image.data, (image.height, image.width, image.channels)))
    try:
        picture = pillow_decoder.open_lazily(image.data, image.format)
        picture.draft("L", (_DRAFT_PX, _DRAFT_PX))  # luma alone, scaled while it is decoded; PNGs stay as they are
        allowed.check_decoded(picture.height, picture.width, image.format)
        pillow_decoder.load(picture)
        return hash_picture(picture, image.orientation)
    except checked_image.BadImageError:
        return b""


def hash_picture(picture: PIL.Image.Image, orientation: int = checked_image.UPRIGHT) -> bytes:
    """Returns the perceptual hash of decoded pixels.

    Args:
        picture: in any mode.
        orientation: the EXIF orientation that is applied first.
    """
    import numpy as np  # late: a writer process needs 15 MB more with it

    gray = pixels.to_eight_bits(picture).convert("L")
    small = gray.resize((_SIDE_PX, _SIDE_PX), pillow_decoder.pillow().Resampling.LANCZOS)
    values = np.asarray(pixels.turn_upright(small, orientation)).astype(np.int64)
    lowest = (_cosines() @ values @ _cosines().T).reshape(-1)
    lower, upper = np.sort(lowest)[lowest.size // 2 - 1 : lowest.size // 2 + 1]
    return np.packbits(2 * lowest > lower + upper).tobytes()


@functools.cache
def _cosines() -> np.ndarray:
    """Returns int64 [8, 32]: by frequency and place, the cosines of the DCT-II times `_SCALE`."""
    import numpy as np

    angle = math.pi / (2 * _SIDE_PX)
    return np.array(
        [
            [round(_SCALE * math.cos((2 * place + 1) * frequency * angle)) for place in range(_SIDE_PX)]
            for frequency in range(_NUM_FREQUENCIES)
        ],
        dtype=np.int64,
    )
