"""Reads the pictures of a file that has several: the frames of an animation, the pages of a TIFF.

One picture is decoded at a time, so memory does not grow with their number.
"""

from __future__ import annotations

import contextlib
import dataclasses
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, image_formats, pillow_decoder, png_structure

if TYPE_CHECKING:
    import PIL.Image

TIFF = "tiff"
# Formats of animations, each frame of which Pillow draws on those before it.
ANIMATED = frozenset({"gif", image_formats.PNG, image_formats.WEBP, "avif"})
# A JPEG (the depth or the other eye of a photo), PSD (layers), ICO (sizes) and HEIC count as one picture.
FORMATS = ANIMATED | {TIFF}

_FRAME_CONTROL = b"fcTL"  # chunk of APNG, one for each frame
_ANIMATION_CONTROL = b"acTL"
_SUBFILE_TYPE = 254  # tag of TIFF
_SMALLER, _MASK = 1, 4  # bits of its value
# Of GIF: what begins a block; the bytes of what describes the screen, and of what precedes the pixels of a frame.
_EXTENSION, _FRAME, _TRAILER = 0x21, 0x2C, 0x3B
_GRAPHIC_CONTROL = b"\xf9"
_SCREEN_BYTES, _FRAME_BYTES = 13, 11
_TRUNCATED_GIF = "the file ends in the middle of what precedes this frame: it was cut short, fetch it again"


Picture: TypeAlias = checked_image.Image | checked_image.BadImageError


@dataclasses.dataclass(frozen=True)
class Frames:
    """The pictures of one file that has several."""

    count: int
    images: Iterator[
        checked_image.Image | checked_image.BadImageError
    ]  # one for each picture, prepared when it is asked for


class FrameReader:
    """Reads the pictures of one file in their order."""

    def __init__(self, data: bytes, format: str):
        """Opens a file of one of `FORMATS`.

        Args:
            data: its bytes.
            format: our name of it.

        Raises:
            BadImageError: if its header, or the list of its pictures, cannot be read.
        """
        self._data = data
        self._format = format
        self._broken = -1  # the first frame that cannot be decoded
        self._is_cut = False
        self.opened: PIL.Image.Image = pillow_decoder.open_lazily(data, format)
        self.count = self._count()

    def _count(self) -> int:
        if self._format == TIFF:
            return count_pages(self._data)
        if self._format == "gif":
            count, self._is_cut = count_gif_frames(self._data)
            return count
        count = pillow_decoder.count_frames(self.opened)
        most = self._data.count(_FRAME_CONTROL) + 1  # the first picture may be outside of the animation
        if self._format == image_formats.PNG and count > most:
            raise checked_image.corrupt(f"the chunk acTL says {count:,} frames, the file has {most:,} at most")
        return count

    def seek(self, number: int) -> PIL.Image.Image:
        """Returns the opened file at one of its pictures, the next one or the first, with its size and metadata.

        Raises:
            BadImageError: if the picture cannot be read, or is drawn on one that cannot.
        """
        if self._broken >= 0:
            detail = f"it is drawn on frame {self._broken}, which cannot be decoded"
            raise checked_image.BadImageError(Reason.UNDECODABLE, detail)
        if self._is_cut and number == self.count - 1:
            raise checked_image.BadImageError(Reason.TRUNCATED, _TRUNCATED_GIF)
        if self._format == TIFF and number:
            self.opened.info.clear()  # Pillow would keep the color profile of the page before
        try:
            pillow_decoder.seek(self.opened, number)
        except checked_image.BadImageError:
            self._note_broken(number)
            raise
        if self._format == TIFF:
            kind = self.opened.tag_v2.get(_SUBFILE_TYPE, 0)  # type: ignore[attr-defined]
            if isinstance(kind, int) and kind & (_SMALLER | _MASK):
                what = "a smaller version" if kind & _SMALLER else "the mask"
                raise checked_image.unsupported(f"{what} of another page", "leave it out of the file")
        return self.opened

    def load(self, number: int) -> None:
        """Decodes the picture to which `seek` has gone.

        Raises:
            BadImageError: if it cannot be decoded.
        """
        try:
            pillow_decoder.load(self.opened)
        except checked_image.BadImageError:
            self._note_broken(number)
            raise

    def _note_broken(self, number: int) -> None:
        if self._format != TIFF:
            self._broken = number
        else:  # the other pages do not need it; Pillow may be left between two pages
            self.opened = pillow_decoder.open_lazily(self._data, TIFF)


def each(count: int, encode: Callable[[int], checked_image.Image]) -> Iterator[Picture]:
    """Yields the pictures of a file by their number."""
    for number in range(count):
        try:
            yield encode(number)
        except checked_image.BadImageError as e:
            yield checked_image.BadImageError(e.reason, f"frame {number} of {count}, counted from 0: {e.detail}")


def is_animated_png(data: bytes) -> bool:
    """Returns whether a PNG says before its pixels that it has frames."""
    return data.find(_ANIMATION_CONTROL, 0, max(data.find(png_structure.PIXELS), 0)) >= 0


def count_pages(data: bytes) -> int:
    """Returns the number of pages of a TIFF, by the chain of its directories, without a look at what is in them.

    A page that the chain names and the file does not have counts too.

    Source: TIFF 6.0, section 2; for BigTIFF, https://www.awaresystems.be/imaging/tiff/bigtiff.html.
    """
    order = "<" if data[:2] == b"II" else ">"
    is_big = b"\x2b" in data[2:4]
    number, offset, entry_bytes = ("Q", "Q", 20) if is_big else ("H", "I", 12)
    seen: set[int] = set()
    position = 8 if is_big else 4
    with contextlib.suppress(struct.error, OverflowError):
        (directory,) = struct.unpack_from(order + offset, data, position)
        while directory and directory not in seen:
            seen.add(directory)
            (entries,) = struct.unpack_from(order + number, data, directory)
            position = directory + struct.calcsize(order + number) + entry_bytes * entries
            (directory,) = struct.unpack_from(order + offset, data, position)
    return len(seen)


def count_gif_frames(data: bytes) -> tuple[int, bool]:
    """Returns the number of frames of a GIF, and whether the file ends in what precedes the last one.

    A file that ends after a frame is whole even without the trailer, which some programs do not write. Bytes between
    blocks that begin no block are skipped, as Pillow does.

    Source: GIF89a, sections 15 to 27.
    """
    size, position = len(data), _SCREEN_BYTES + _color_bytes(data[10:11])
    frames, is_announced = 0, False
    while position < size:
        kind, start = data[position], position
        position += 1
        if kind == _TRAILER:
            return frames, False
        if kind == _FRAME:
            if start + _FRAME_BYTES > size:
                return frames + 1, True
            frames, is_announced = frames + 1, False
            position = start + _FRAME_BYTES + _color_bytes(data[start + 9 : start + 10])
        elif kind == _EXTENSION:
            position += 1
            is_announced |= data[start + 1 : position] == _GRAPHIC_CONTROL
        else:
            continue
        while position < size and data[position]:  # blocks of up to 255 bytes
            position += 1 + data[position]
        if kind == _EXTENSION and position >= size:
            is_announced = True
        position += 1
    return (frames + 1, True) if is_announced else (frames, False)


def _color_bytes(flags: bytes) -> int:
    """Returns the bytes of a color table, by the flags that announce it."""
    return 3 << ((flags[0] & 7) + 1) if flags and flags[0] & 0x80 else 0
