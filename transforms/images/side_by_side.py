"""Aligned images that lie side by side in one file, as pix2pix stores its pairs: which of them is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images.checked_image import BadImageError


class Part(NamedTuple):
    """The part of each file that is stored."""

    number: int = 0  # from the left
    total: int = 1  # of images of equal width in a file

    @property
    def is_whole(self) -> bool:
        return self.total == 1

    def others(self) -> Iterator[Part]:
        """Yields the other parts of a file, from the left."""
        return (Part(number, self.total) for number in range(self.total) if number != self.number)

    def columns_of(self, width: int) -> tuple[int, int]:
        """Returns the first column of this part, and the one after its last, in a picture of some width in pixels.

        Raises:
            BadImageError: if the picture cannot be divided.
        """
        part_width, left_over = divmod(width, self.total)
        if left_over or not part_width:
            found = f"its width of {width} pixels is not that of {self.total} images of one width"
            raise BadImageError(Reason.BAD_VALUE, f"{found}, which source.pairs.side_by_side names")
        return self.number * part_width, (self.number + 1) * part_width


WHOLE = Part()
