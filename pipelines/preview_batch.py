"""Draws a batch as a model gets it: one image file to look at before training."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import imagebeam
from imagebeam import errors, features, plural
from imagebeam.pipelines.messages import terminal

if TYPE_CHECKING:
    import PIL.Image
    import PIL.ImageFont

_MARGIN = 16
_GAP = 8
_MIN_TILE = 112  # pixels a side; smaller images are enlarged, to have room for a caption
_MIN_WIDTH = 480  # width of the sheet in pixels, for the heading
_PAPER, _INK = (255, 255, 255), (32, 32, 32)
_BOX, _BOX_WIDTH = (255, 0, 220), 2  # a color that is rare in photos
_SIDES = tuple(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
_ELLIPSIS = "…"
_NO_CHARACTER = "\U0010fffd"  # is in no font: drawn as the font's glyph for missing characters


def write_preview(
    dataset: imagebeam.ImageDataset,
    split: str,
    path: str | os.PathLike[str],
    count: int = 32,
    crop: str = "random",
    image_size: int = 224,
    seed: int = 0,
) -> int:
    """Writes a PNG of the first images of a training, cropped, resized and flipped; returns their number.

    The same arguments give the same images.

    Args:
        dataset: the dataset.
        split: "train", or a part such as "train[:10%]".
        path: path of the PNG, which is replaced.
        count: number of images; fewer if the split has fewer.
        crop: "random" as in training (with the flip), "center" as in evaluation, "squash" with the boxes of objects.
        image_size: side of an image, in pixels.
        seed: seed of the order, the crops and the flips.

    Raises:
        ConfigError: if TensorFlow is not installed, the options do not fit the split, or `path` does not end in .png
            or cannot be written.
        ExampleError: if an image that cannot be read or decoded.
    """
    path = os.fspath(path)
    if not path.lower().endswith(".png"):
        raise errors.ConfigError(f"the preview is a PNG, and {path!r} does not end in .png: give such a name")
    total = dataset.num_examples(split)
    count = min(count, total)
    key = next((feature.key for feature in dataset.catalog.features if feature.source == "image/key"), None)
    sides = _box_keys(dataset) if crop == "squash" else ()  # the only crop that keeps boxes in place
    batches = dataset.as_tf(
        split,
        count,
        image_size=image_size,
        crop=crop,
        seed=seed,
        num_epochs=1,
        drop_remainder=False,
        features=((key,) if key else ()) + sides,
    )
    from imagebeam.reader import numpy_iterator

    batch = next(numpy_iterator.NumpyIterator(batches))
    options = f"{crop} crop{' and flip' if crop == 'random' else ''}, {image_size} x {image_size} px, seed {seed}"
    heading = f"{dataset.catalog.name}, {split}: {count:,} of {plural.count(total, 'image')}, {options}"
    boxes = [np.stack(rows, axis=1) for rows in zip(*(batch[side] for side in sides))]
    sheet = draw_sheet(batch["image"], _captions(dataset, batch, key), heading, boxes)
    try:
        sheet.save(path, "PNG")
    except OSError as e:
        raise errors.ConfigError(
            f"--preview {path!r} cannot be written ({e.strerror or e}); give a file in a local folder that exists"
        ) from e
    return count


def _box_keys(dataset: imagebeam.ImageDataset) -> tuple[str, ...]:
    """Returns the keys of the boxes' sides in the order of `_SIDES`, none if there are no boxes."""
    keys = {feature.source: feature.key for feature in dataset.catalog.features}
    found = tuple(keys[side] for side in _SIDES if side in keys)
    return found if len(found) == len(_SIDES) else ()


def _captions(dataset: imagebeam.ImageDataset, batch: Mapping[str, Any], key: str | None) -> list[str]:
    """Returns for each image the names of its classes, or its target, or without labels the end of its key."""
    if "label" in batch and batch["label"].ndim == 2:
        return [
            ", ".join(_name_class(int(each), dataset.labels) for each in np.flatnonzero(row)) for row in batch["label"]
        ]
    if "label" in batch and dataset.labels:
        return [_name_class(label, dataset.labels) for label in batch["label"].tolist()]
    if "label" in batch:
        kind = next(each.kind for each in dataset.catalog.features if each.source == features.LABEL)
        return [f"{label:.4g}" if kind == features.FLOAT else str(label) for label in batch["label"].tolist()]
    if key is not None:
        return [each.decode("utf-8", "replace").rpartition("/")[2] for each in batch[key].tolist()]
    return [""] * len(batch["image"])


def _name_class(label: int, names: Sequence[str]) -> str:
    """Returns the name of a class, with its id if the font lacks characters of the name."""
    drawn = drawable(names[label])
    return f"{label}: {drawn}" if drawn.count("?") > names[label].count("?") else drawn


@dataclasses.dataclass(frozen=True)
class SheetLayout:
    """The places of images and captions on a sheet of images of one size, in pixels."""

    num_pictures: int
    height: int  # of an image as the model gets it
    width: int

    @property
    def scale(self) -> int:
        """Side of an image's pixel, in pixels of the sheet."""
        return max(1, math.ceil(_MIN_TILE / min(self.height, self.width)))

    @property
    def font_size(self) -> int:
        return min(24, max(13, self.width * self.scale // 16))

    @property
    def columns(self) -> int:
        """Number of columns: about twice the number of rows, because screens are wide."""
        return min(self.num_pictures, math.ceil(math.sqrt(2 * self.num_pictures)))

    @property
    def line_height(self) -> int:
        return self.font_size * 3 // 2

    @property
    def sheet_width(self) -> int:
        tiles = self.columns * self.width * self.scale + (self.columns - 1) * _GAP
        return max(_MIN_WIDTH, tiles + 2 * _MARGIN)

    def sheet_height(self, num_heading_lines: int) -> int:
        rows = -(-self.num_pictures // self.columns)
        return self.top(num_heading_lines) + rows * self._row_height + _MARGIN - _GAP

    def top(self, num_heading_lines: int) -> int:
        """Returns the vertical offset of the first row of images."""
        return _MARGIN + num_heading_lines * self.line_height + _GAP

    def corner(self, index: int, num_heading_lines: int) -> tuple[int, int]:
        """Returns left and top of an image, whose caption is below it."""
        row, column = divmod(index, self.columns)
        left = _MARGIN + column * (self.width * self.scale + _GAP)
        return left, self.top(num_heading_lines) + row * self._row_height

    @property
    def _row_height(self) -> int:
        return self.height * self.scale + self.line_height + _GAP


def draw_sheet(
    images: np.ndarray, captions: Sequence[str], heading: str, boxes: Sequence[np.ndarray] = ()
) -> PIL.Image.Image:
    """Returns a sheet with the images in rows, each above its caption, under a heading.

    Args:
        images: uint8 [n, height, width, 3], RGB.
        captions: one for each image; one that is too long ends in an ellipsis.
        heading: wrapped into lines.
        boxes: for each image float [k, 4], left, top, right and bottom, from 0 to 1; empty to draw none.
    """
    import PIL.Image
    import PIL.ImageDraw
    import PIL.ImageFont

    layout = SheetLayout(*images.shape[:3])
    font = _font(layout.font_size)
    if layout.scale > 1:
        heading += f", drawn {layout.scale} times as large"
    lines = _wrap(drawable(heading), font, layout.sheet_width - 2 * _MARGIN)
    sheet = PIL.Image.new("RGB", (layout.sheet_width, layout.sheet_height(len(lines))), _PAPER)
    draw = PIL.ImageDraw.Draw(sheet)
    for number, line in enumerate(lines):
        draw.text((_MARGIN, _MARGIN + number * layout.line_height), line, _INK, font)
    for index, (pixels, caption) in enumerate(zip(images, captions)):
        left, top = layout.corner(index, len(lines))
        enlarged = pixels.repeat(layout.scale, 0).repeat(layout.scale, 1)
        sheet.paste(PIL.Image.fromarray(enlarged), (left, top))
        height, width = enlarged.shape[:2]
        for box in boxes[index] if boxes else ():
            place = box * (width - 1, height - 1, width - 1, height - 1) + (left, top, left, top)
            draw.rectangle([round(side) for side in place.tolist()], outline=_BOX, width=_BOX_WIDTH)
        text = _cut(drawable(caption), font, enlarged.shape[1])
        draw.text((left, top + enlarged.shape[0] + 2), text, _INK, font)
    return sheet


def drawable(text: str) -> str:
    """Returns `text` in characters of Pillow's own font: accents are dropped, other missing characters become "?".

    Fonts of the system are not used, so that a sheet looks the same everywhere and needs no package.
    """
    return "".join(_drawable_character(char) for char in terminal.printable(text))


@functools.lru_cache(maxsize=4096)
def _drawable_character(char: str) -> str:
    if _has_glyph(char):
        return char
    plain = "".join(part for part in unicodedata.normalize("NFKD", char) if not unicodedata.combining(part))
    return plain if plain and all(map(_has_glyph, plain)) else "?"


@functools.lru_cache(maxsize=4096)
def _has_glyph(char: str) -> bool:
    return char.isascii() or _bitmap(char) != _bitmap(_NO_CHARACTER)


def _bitmap(char: str) -> tuple[tuple[int, int], bytes]:
    mask = _font(24).getmask(char)
    return mask.size, bytes(mask)


@functools.lru_cache(maxsize=8)
def _font(size: int) -> PIL.ImageFont.FreeTypeFont:
    import PIL.ImageFont

    return PIL.ImageFont.load_default(size)  # type: ignore[return-value]


def _cut(text: str, font: PIL.ImageFont.FreeTypeFont, width: int) -> str:
    """Returns as much of `text` as fits into `width`, with an ellipsis for the rest."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + _ELLIPSIS) > width:
        text = text[:-1]
    return text.rstrip() + _ELLIPSIS


def _wrap(text: str, font: PIL.ImageFont.FreeTypeFont, width: int) -> list[str]:
    """Returns `text` wrapped between words; a word that is too long for a line is cut."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if font.getlength(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return [_cut(line, font, width) for line in lines]
