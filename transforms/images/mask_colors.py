"""Turns the colors in which a mask is drawn into the numbers of classes."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from imagebeam.transforms import pickled_fields
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images.checked_image import BadImageError

if TYPE_CHECKING:
    import numpy as np

IGNORED = 255  # what losses ignore by convention: the edges of objects in Pascal VOC
_NO_CLASS = 2**16 - 1
_NUM_COLORS = 2**24
_ROWS_AT_ONCE = 256  # the numbers of all colors of a large mask would take four bytes a pixel


@dataclasses.dataclass(frozen=True)
class MaskColors(pickled_fields.PickledFields):
    """The colors of the classes. A class has the number of its place, without those that are ignored."""

    colors: tuple[tuple[str, tuple[int, int, int]], ...]  # name; red, green, blue
    ignored: frozenset[str] = frozenset()  # names of colors whose pixels become `IGNORED`

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes in the order of their numbers."""
        return tuple(name for name, _ in self.colors if name not in self.ignored)

    def as_json(self) -> list[Any]:
        """Returns what decides the numbers in masks, for the fingerprint of a dataset."""
        return [[name, *color, name in self.ignored] for name, color in self.colors]

    @functools.cached_property
    def _table(self) -> np.ndarray:
        """The class of each possible color, uint16 [2**24]: a look-up takes a fifth of the time of a search."""
        import numpy as np

        table = np.full(_NUM_COLORS, _NO_CLASS, np.uint16)
        numbers = {name: number for number, name in enumerate(self.names)}
        for name, (red, green, blue) in self.colors:
            table[red << 16 | green << 8 | blue] = numbers.get(name, IGNORED)
        return table

    def classes_of(self, colors: np.ndarray) -> np.ndarray:
        """Returns the class of each pixel, uint16 [height, width].

        Args:
            colors: uint8 [height, width, 3], RGB.

        Raises:
            BadImageError: if a pixel has a color of no class.
        """
        import numpy as np

        classes = np.empty(colors.shape[:2], np.uint16)
        for start in range(0, len(colors), _ROWS_AT_ONCE):
            rows = colors[start : start + _ROWS_AT_ONCE].astype(np.uint32)
            found = self._table[rows[..., 0] << 16 | rows[..., 1] << 8 | rows[..., 2]]
            classes[start : start + _ROWS_AT_ONCE] = found
            if (unknown := found == _NO_CLASS).any():
                row, column = np.argwhere(unknown)[0].tolist()
                raise _unknown(rows[row, column].tolist(), start + row, column)
        return classes

    def classes_of_indices(self, indices: np.ndarray, palette: np.ndarray) -> np.ndarray:
        """Returns the class of each pixel, uint16 [height, width].

        Args:
            indices: uint8 [height, width].
            palette: uint8 [number of colors, 3], RGB.

        Raises:
            BadImageError: if a pixel has a color of no class, or of no entry of the palette.
        """
        import numpy as np

        classes = np.full(256, _NO_CLASS, np.uint16)
        shades = palette[:256].astype(np.uint32)
        classes[: len(shades)] = self._table[shades[:, 0] << 16 | shades[:, 1] << 8 | shades[:, 2]]
        found = classes[indices]
        if (unknown := found == _NO_CLASS).any():
            row, column = np.argwhere(unknown)[0].tolist()
            index = int(indices[row, column])
            if index >= len(palette):
                where = f"the pixel in row {row}, column {column} (from 0)"
                raise BadImageError(
                    Reason.CORRUPT, f"{where} has the index {index}, and the palette {len(palette)} colors"
                )
            raise _unknown(palette[index].tolist(), row, column)
        return found


def _unknown(color: list[int], row: int, column: int) -> BadImageError:
    return BadImageError(
        Reason.BAD_VALUE,
        f"the pixel in row {row}, column {column} (from 0) has the color {color}, which is none of "
        "source.masks.colors: add it there, or, if edges were smoothed, export the mask without smoothing",
    )
