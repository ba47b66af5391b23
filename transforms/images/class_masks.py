"""Turns the mask of an image into the PNG that is stored: one gray value per pixel, its class.

The pixels of a mask are numbers of classes, colors of classes (`MaskColors`), or the ids of panoptic segments.

Source of panoptic masks: https://cocodataset.org/#format-data: id = R + 256 G + 256**2 B, and 0 is no segment.
"""

from __future__ import annotations

import array
import dataclasses
import functools
import io
from typing import TYPE_CHECKING, Any

from imagebeam.transforms import elements
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import (
    checked_image,
    image_formats,
    mask_pixels,
    orientations,
    pillow_decoder,
    png_structure,
    structure,
    turn_upright,
)
from imagebeam.transforms.images.checked_image import BadImageError

if TYPE_CHECKING:
    import numpy as np

SEGMENTS_COLUMN = "panoptic/segments"  # holds the packed segments of an image; not stored
_MAX_ID = 2**24 - 1
_MAX_CATEGORY = 2**16 - 1
_KIND = "I"  # ids and categories by turns, sorted by id


def pack_segments(segments: list[Any]) -> bytes:
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


def classes_of_segments(colors: np.ndarray, packed: bytes) -> np.ndarray:
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
    categories = np.concatenate(([IGNORED], pairs[:, 1])).astype(np.uint16)
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


IGNORED = 255  # what losses ignore by convention: the edges of objects in Pascal VOC
_NO_CLASS = 2**16 - 1
_NUM_COLORS = 2**24
_ROWS_AT_ONCE = 256  # the numbers of all colors of a large mask would take four bytes a pixel


@dataclasses.dataclass(frozen=True)
class MaskColors(elements.PickledFields):
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
                raise _unknown_color(rows[row, column].tolist(), start + row, column)
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

        if (beyond := indices >= len(palette)).any():
            row, column = np.argwhere(beyond)[0].tolist()
            where = f"the pixel in row {row}, column {column} (from 0)"
            detail = f"{where} has the index {indices[row, column]}, and the palette {len(palette)} colors"
            raise BadImageError(Reason.CORRUPT, detail)
        return self.classes_of(palette[indices])


def _unknown_color(color: list[int], row: int, column: int) -> BadImageError:
    return BadImageError(
        Reason.BAD_VALUE,
        f"the pixel in row {row}, column {column} (from 0) has the color {color}, which is none of "
        "source.masks.colors: add it there, or, if edges were smoothed, export the mask without smoothing",
    )


VERSION = 2  # raised whenever the same mask is stored in another way

_DEPTH = png_structure.HEADER_START + png_structure.DEPTH_BYTE
_COLOR_TYPE = png_structure.HEADER_START + png_structure.COLOR_TYPE_BYTE
_HEADER_END = png_structure.HEADER_START + png_structure.HEADER_BYTES


@dataclasses.dataclass(frozen=True)
class MaskPolicy:
    """Says what the pixels of masks mean, and how their classes are stored."""

    colors: MaskColors | None = None  # colors of the classes; None takes the numbers in the file
    bits: int = 8  # bits of a class; 16 stores every mask with 16, 8 keeps a gray PNG of 16 bits
    segments: int = -1  # place in ImageRef.columns of the packed segments of panoptic masks; -1 for other masks


NUMBERS = MaskPolicy()


def with_mask(
    image: checked_image.Image,
    mask: bytes,
    check: str = "structure",
    policy: MaskPolicy = NUMBERS,
    segments: bytes | None = None,
) -> checked_image.Image:
    """Returns `image` with its mask as a PNG, which is turned upright as the image was.

    The class of a pixel is its number in the file. A mask with a palette (Pascal VOC) is stored as gray with the
    palette's indices as values: a decoder would return the palette's colors, or their brightness, in place of classes.
    So is a gray one of less than 8 bits, whose values decoders stretch to 255. Other PNGs are stored unchanged.

    Args:
        image: the image as it is stored.
        mask: the bytes of a PNG, GIF, TIFF, BMP or .npy file.
        check: as for the image itself; "tensorflow" decodes a mask by Pillow.
        policy: what the pixels mean.
        segments: of a panoptic mask, see segment_masks; None for other masks.

    Raises:
        BadImageError: if `mask` is no complete file of the image's size that holds classes.
    """
    found = mask_pixels.open_mask(mask, check if check in structure.CHECKS else "decode")
    turn = image.annotation_turn
    size, expected = (found.height, found.width), orientations.turn_size(image.height, image.width, turn)
    if size != expected:
        detail = f"{size[0]} x {size[1]} pixels, and the image has {expected[0]} x {expected[1]} (height x width)"
        if turn != checked_image.UPRIGHT and size == (image.height, image.width):
            detail += ", as it is stored: the mask fits the picture turned upright; set image.annotations: upright"
        raise checked_image.BadImageError(Reason.BAD_VALUE, detail)
    if found.format != image_formats.PNG or policy != NUMBERS:
        mask = _encode(_classes(mask_pixels.read_pixels(found), policy, segments), policy)
    elif mask[_COLOR_TYPE] == png_structure.GRAY and mask[_DEPTH] < 8:
        mask = _encode(mask_pixels.gray_numbers(mask), policy)
    if turn != checked_image.UPRIGHT:
        mask = turn_upright.turn_mask(mask, turn)
    return image._replace(mask=_palette_to_gray(mask) if mask[_COLOR_TYPE] == png_structure.PALETTE_INDEX else mask)


def _classes(pixels: mask_pixels.MaskPixels, policy: MaskPolicy, segments: bytes | None) -> np.ndarray:
    """Returns the class of each pixel, integers [height, width]."""
    if segments is not None:
        if pixels.colors is None:
            raise checked_image.unsupported("its pixels are numbers, not the colors of panoptic segments")
        return classes_of_segments(pixels.colors, segments)
    colors = policy.colors
    if colors is None:
        if pixels.numbers is None:
            raise checked_image.unsupported(
                "its pixels are colors, not classes", "list the colors of the classes in source.masks.colors"
            )
        return pixels.numbers
    if pixels.colors is not None:
        return colors.classes_of(pixels.colors)
    assert pixels.numbers is not None
    if pixels.palette is None:
        raise checked_image.unsupported(
            f"its pixels are numbers ({pixels.numbers.dtype}), and source.masks.colors expects colors",
            "leave source.masks.colors out",
        )
    return colors.classes_of_indices(pixels.numbers, pixels.palette)


def _encode(classes: np.ndarray, policy: MaskPolicy) -> bytes:
    """Returns classes, integers [height, width], as a gray PNG.

    Raises:
        BadImageError: if a class does not fit into its bits.
    """
    import numpy as np

    highest = (1 << policy.bits) - 1
    lowest_found, highest_found = int(classes.min()), int(classes.max())
    if lowest_found < 0 or highest_found > highest:
        wrong = lowest_found if lowest_found < 0 else highest_found
        row, column = np.argwhere(classes == wrong)[0].tolist()
        detail = f"the pixel in row {row}, column {column} (from 0) has the value {wrong}, expected 0 to {highest:,}"
        if lowest_found < 0:
            detail += ": store pixels without a class as 255"
        elif highest_found < 1 << 16:
            detail += ": set source.masks.bits: 16"
        raise checked_image.BadImageError(Reason.BAD_VALUE, detail)
    kind, mode = (np.uint8, "L") if policy.bits == 8 else (np.dtype("<u2"), "I;16")
    height, width = classes.shape
    gray = pillow_decoder.pillow().frombytes(mode, (width, height), classes.astype(kind).tobytes())
    stored = io.BytesIO()
    gray.save(stored, "PNG")
    return stored.getvalue()


def _palette_to_gray(png: bytes) -> bytes:
    """Converts a checked PNG with a palette to gray, with the palette's indices as values."""
    if png[_DEPTH] != 8:  # decoders would stretch the indices to 255 if the header said gray
        return _encode(mask_pixels.read_indices(png), NUMBERS)
    # 8-bit indices are stored, filtered and compressed exactly as 8-bit gray values are: only the header differs.
    header = bytearray(png[png_structure.HEADER_START : _HEADER_END])
    header[png_structure.COLOR_TYPE_BYTE] = png_structure.GRAY
    kinds = (png_structure.PIXELS, png_structure.END)
    kept = [chunk.whole for chunk in png_structure.read_chunks(png) if chunk.kind in kinds]
    return b"".join((png_structure.SIGNATURE, png_structure.encode_chunk(png_structure.HEADER, bytes(header)), *kept))
