"""An array in a file, and how it holds images.

A layout names the axes of an array in their order: N images, H height, W width, C channels; without C, one channel.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from imagebeam.transforms.packed import packed_file

if TYPE_CHECKING:
    import numpy as np

MAX_ARRAYS = 10_000  # in one file
LABEL = "label"  # cell with the label, if the files give it no other name
ONLY = "array"  # name of the array of a file that has one without a name
TEXT = "text"  # type of an array of texts without a fixed length; its values are UTF-8, each followed by a zero byte
MAX_CHANNELS = 4
ROWS = "NHWC"  # the layout of rows of pixels
Shape: TypeAlias = tuple[int, int, int]  # height and width in pixels, and channels


class FoundArray(NamedTuple):
    """One array in a file."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as NumPy writes it, such as |u1 or <i8, or TEXT
    order: str = "C"  # C: the last index varies fastest; F: the first
    start: int = -1  # byte offset of the values, if they lie in the file as they are; else -1

    @property
    def num_values(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


def check_size(array: FoundArray, item_bytes: int, num_bytes: int, what: str) -> None:
    """Checks that the file has the bytes of an array's values, and no others.

    Args:
        array: as its header says.
        item_bytes: of one value.
        num_bytes: in the file.
        what: begins the error, such as `is a .npy file that`.

    Raises:
        BrokenContentError: if it has not.
    """
    expected = array.num_values * item_bytes
    if num_bytes < expected:
        raise packed_file.cut_short(f"{what} has {num_bytes:,} bytes of values, its header says {expected:,}: it")
    if num_bytes > expected:
        raise packed_file.broken(
            f"{what} has {num_bytes:,} bytes of values, its header says {expected:,}; save it again"
        )


# --- images in arrays -------------------------------------------------------------------------------------------------


class ImageAxes(NamedTuple):
    """How an array holds images.

    Attributes:
        layout: names of the axes.
        flat: height, width and channels of images whose pixels are one axis of the array; None if they are not.
    """

    layout: str
    flat: Shape | None = None

    def __str__(self) -> str:
        """Returns a text of few characters that `parse` takes."""
        return self.layout if self.flat is None else f"{self.layout}-{'x'.join(map(str, self.flat))}"

    @classmethod
    def parse(cls, text: str) -> ImageAxes:
        """Returns the axes that `str` wrote."""
        layout, _, flat = text.partition("-")
        height, width, channels = map(int, flat.split("x")) if flat else (0, 0, 0)
        return cls(layout, (height, width, channels) if flat else None)

    def unfold(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of an array with an axis for each letter of the layout.

        Raises:
            ValueError: if the array does not have such axes.
        """
        if self.flat is not None:
            sides = dict(zip("HWC", self.flat))
            if len(shape) != 2 or shape[1] != math.prod(self.flat):
                raise ValueError(f"rows of {' x '.join(map(str, self.flat))} values")
            return tuple(shape[0] if axis == "N" else sides[axis] for axis in self.layout)
        if len(shape) != len(self.layout):
            raise ValueError(f"{len(self.layout)} axes, {self.layout}")
        return shape

    def image_shape(self, shape: tuple[int, ...]) -> Shape:
        """Returns height, width and channels of the images in an array of this shape."""
        sides = dict(zip(self.layout, self.unfold(shape)))
        return sides["H"], sides["W"], sides.get("C", 1)

    def num_images(self, shape: tuple[int, ...]) -> int:
        """Returns the number of images in an array of this shape."""
        return self.unfold(shape)[self.layout.index("N")]

    def are_rows(self, order: str) -> bool:
        """Returns whether the values of an array in this order are rows of pixels as they are."""
        return order == "C" and self.layout in (ROWS, "NHW")


def to_rows(pieces: Iterable[bytes], array: FoundArray, axes: ImageAxes) -> Iterator[bytes]:
    """Yields rows of pixels of an array's values.

    Memory is bounded: an array whose images do not follow each other goes through an unnamed temporary file.

    Args:
        pieces: the values in their order in the file, one byte each.
        array: what the values are.
        axes: how they hold images.
    """
    import numpy as np  # takes 15 MB in a process, and is needed only here

    if axes.are_rows(array.order):
        yield from pieces
        return
    shape = axes.unfold(array.shape)
    in_memory = axes.layout if array.order == "C" else axes.layout[::-1]
    if axes.flat is not None and array.order != "C":
        in_memory = ""  # rows as columns: one value of each image follows another
    if in_memory[:1] == "N":
        sides = dict(zip(axes.layout, shape))
        yield from _turn_images(pieces, tuple(sides[axis] for axis in in_memory[1:]), in_memory[1:])
        return
    with tempfile.TemporaryFile(prefix="imagebeam-") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        values: Any = np.memmap(file, np.uint8, "r", shape=array.shape, order=array.order)  # type: ignore[call-overload]
        if axes.flat is None:
            values = np.moveaxis(values, axes.layout.index("N"), 0)
        per_image = axes.layout.replace("N", "")
        sides = dict(zip(axes.layout, shape))
        inner = tuple(sides[axis] for axis in per_image)
        at_once = max(1, 4 * packed_file.PIECE_BYTES // max(1, math.prod(inner)))
        for start in range(0, len(values), at_once):
            chunk = np.ascontiguousarray(values[start : start + at_once]).reshape(-1, *inner)
            yield _to_height_width_channels(chunk, per_image)


def _turn_images(pieces: Iterable[bytes], shape: tuple[int, ...], axes: str) -> Iterator[bytes]:
    """Yields rows of pixels of images whose values follow each other, each with these axes."""
    import numpy as np

    size = math.prod(shape)
    rest = b""
    for piece in pieces:
        data = rest + piece
        whole = len(data) // size * size
        if whole:
            yield _to_height_width_channels(np.frombuffer(data, np.uint8, whole).reshape(-1, *shape), axes)
        rest = data[whole:]


def _to_height_width_channels(images: np.ndarray, axes: str) -> bytes:
    return images.transpose(0, *(1 + axes.index(axis) for axis in "HWC" if axis in axes)).tobytes()


def guess(shape: tuple[int, ...], is_matlab: bool) -> ImageAxes | None:
    """Returns the axes of an array that leaves no doubt; None if there is no such array of images."""
    if len(shape) == 2:
        side = math.isqrt(shape[1])
        return ImageAxes(ROWS, (side, side, 1)) if side * side == shape[1] and side > 1 else None
    wanted: tuple[str, ...] = ("HWN", "NHW") if is_matlab else ("NHW",)
    if len(shape) == 4:
        wanted = ("HWCN", "NHWC", "NCHW") if is_matlab else ("NHWC", "NCHW")
    candidates = (ImageAxes(layout) for layout in wanted if len(layout) == len(shape))
    return next((axes for axes in candidates if 1 <= axes.image_shape(shape)[2] <= MAX_CHANNELS), None)
