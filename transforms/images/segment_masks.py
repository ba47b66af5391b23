"""Turns a panoptic PNG, whose colors are the ids of segments, into the category of each pixel.

Source: https://cocodataset.org/#format-data: id = R + 256 G + 256**2 B, and 0 is no segment.
"""

from __future__ import annotations

import array
from typing import TYPE_CHECKING, Any

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import mask_colors
from imagebeam.transforms.images.checked_image import BadImageError

if TYPE_CHECKING:
    import numpy as np

COLUMN = "panoptic/segments"  # of the packed segments of an image; not stored
_MAX_ID = 2**24 - 1
_MAX_CATEGORY = 2**16 - 1
_KIND = "I"  # ids and categories by turns, sorted by id


def pack(segments: list[Any]) -> bytes:
    """Packs `segments_info` into 8 bytes a segment.

    Raises:
        ValueError: if a segment has no id or category, or two have the same id.
    """
    found: dict[int, int] = {}
    for segment in segments:
        fields = segment if isinstance(segment, dict) else {}
        number, category = fields.get("id"), fields.get("category_id")
        if type(number) is not int or type(category) is not int:
            raise ValueError(f"a segment has the id {str(number)[:40]} and the category {str(category)[:40]}")
        if not 0 < number <= _MAX_ID or not 0 <= category <= _MAX_CATEGORY or number in found:
            raise ValueError(
                f"a segment has the id {number} and the category {category}, expected ids from 1 to {_MAX_ID:,}, each "
                f"once, and categories to {_MAX_CATEGORY:,}"
            )
        found[number] = category
    return array.array(_KIND, [value for pair in sorted(found.items()) for value in pair]).tobytes()


def classes_of(colors: np.ndarray, packed: bytes) -> np.ndarray:
    """Returns the category of each pixel, uint16 [height, width]; 255 without a segment.

    Args:
        colors: uint8 [height, width, 3], RGB.
        packed: the result of `pack`.

    Raises:
        BadImageError: if a pixel has an id of no segment.
    """
    import numpy as np

    pairs = np.frombuffer(packed, np.uint32).reshape(-1, 2)
    ids = np.concatenate(([0], pairs[:, 0])).astype(np.uint32)
    categories = np.concatenate(([mask_colors.IGNORED], pairs[:, 1])).astype(np.uint16)
    wide = colors.astype(np.uint32)
    found = wide[..., 0] | wide[..., 1] << 8 | wide[..., 2] << 16
    places = np.minimum(np.searchsorted(ids, found), len(ids) - 1)
    if (unknown := ids[places] != found).any():
        row, column = np.argwhere(unknown)[0].tolist()
        raise BadImageError(
            Reason.BAD_VALUE,
            f"the pixel in row {row}, column {column} (from 0) has the id {found[row, column]}, which is no segment of "
            "its annotation",
        )
    return categories[places]
