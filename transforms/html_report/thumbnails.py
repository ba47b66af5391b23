"""Makes a small picture of an example, with its boxes and masks, as a JPEG."""

from __future__ import annotations

import dataclasses
import io
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import example, features
from imagebeam.reader import bare_pixels
from imagebeam.transforms.images import image_formats, pillow_decoder, pixels

if TYPE_CHECKING:
    import numpy as np
    import PIL.Image

MAX_CHARS = 80  # length of a text in a table or under a picture
_ESCAPED = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))  # invisible, or changes the order of other characters
_JOINERS = "\u200c\u200d"  # invisible characters that scripts and emoji need
_FIRST_SURROGATE, _BYTE = 0xDC80, 0xFF  # surrogates for bytes that are no UTF-8


def decode(value: bytes) -> str:
    """Returns the text in a feature; bytes that are no UTF-8 become lone surrogates, which `visible` shows by code."""
    return value.decode("utf-8", "surrogateescape")


def visible(value: object) -> str:
    """Returns a text in which characters that cannot be seen, or that would reorder others, are shown by their code."""
    return "".join(map(_visible, str(value)))


def shorten(value: object, max_chars: int = MAX_CHARS) -> str:
    """Returns a text cut to `max_chars`. It keeps the beginning and the end: names often differ in the end."""
    text = str(value)
    if len(text) <= max_chars:
        return text
    end = max_chars // 3
    return f"{text[: max_chars - end - 1]}…{text[-end:]}"


def _visible(char: str) -> str:
    if char.isascii() and char.isprintable():
        return char
    if unicodedata.category(char) not in _ESCAPED or char in _JOINERS:
        return char
    code = ord(char)
    if _FIRST_SURROGATE <= code < _FIRST_SURROGATE + 0x80:
        return f"\\x{code & _BYTE:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


SIDE_PX = 96  # longer side of a picture, at most
_QUALITY = 78
_MAX_DECODED_PX = 32_000_000  # files other than JPEGs: those are decoded at a fraction of its size
_MAX_OBJECTS = 24  # drawn of one picture
_MASK_SHARE = 0.5  # opacity of a mask's color
_VOID = 255  # the class of pixels without one, as in Pascal VOC
_BOX_WIDTH = 1
_BOX = tuple(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
_MASKS, _CLASSES = "image/object/mask", "image/segmentation/class/encoded"
_COLORS = (  # colors of objects and classes: easy to tell apart, also for the color-blind (Okabe and Ito, without gray)
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (213, 94, 0),
    (204, 121, 167),
    (0, 114, 178),
    (255, 255, 255),
)


class Thumbnail(NamedTuple):
    """A small picture of one example."""

    data: bytes  # JPEG; b"" where none can be made
    height: int  # pixels of the JPEG
    width: int
    caption: str  # names of its classes or objects, its target, or the end of its key
    key: str
    size: str  # size of the image as it is stored; "" if not known
    problem: str = ""  # why there is no picture


@dataclasses.dataclass(frozen=True)
class ThumbnailMaker:
    """Makes the thumbnails of one dataset. Thread-safe."""

    catalog: catalog_lib.Catalog
    is_raw: bool  # whether images are stored as bare pixels

    @property
    def _keys(self) -> dict[str, str]:
        return {feature.source: feature.key for feature in self.catalog.features}

    def make(self, record: bytes) -> Thumbnail:
        """Returns the thumbnail of a serialized Example; one without a picture if the image cannot be decoded."""
        keys = self._keys
        encoded = keys.get(features.ENCODED, "")
        try:
            values = example.parse_example(record, (encoded,))
        except ValueError as e:
            return Thumbnail(b"", 0, 0, "", "", "", f"not an Example: {e}")
        known = {source: values.get(key, ()) for source, key in keys.items()}
        key = _text(known.get("image/key", ()))
        caption = self._caption(known) or key.rpartition("/")[2]
        size = " x ".join(
            str(known[source][0]) for source in ("image/width", "image/height") if len(known.get(source, ())) == 1
        )
        if not encoded:
            return Thumbnail(b"", 0, 0, caption, key, size, "no image in the example")
        try:
            picture = self._draw(values, known)
            data = io.BytesIO()
            picture.save(data, "JPEG", quality=_QUALITY, optimize=True)
        except Exception as e:  # whatever a decoder raises: one picture is missing, and the commit goes on
            return Thumbnail(b"", 0, 0, caption, key, size, _describe(e))
        return Thumbnail(data.getvalue(), picture.height, picture.width, caption, key, size)

    def _caption(self, known: Mapping[str, Sequence[Any]]) -> str:
        if names := _texts(known.get(features.TEXT, ())):
            return ", ".join(names)
        if labels := list(known.get(features.LABEL, ())):
            base, classes = self.catalog.label_base, self.catalog.labels
            if self.catalog.label_kind == "class":
                return ", ".join(
                    classes[label - base] if 0 <= label - base < len(classes) else str(label) for label in labels
                )
            return ", ".join(f"{label:.4g}" if isinstance(label, float) else str(label) for label in labels)
        objects = _texts(known.get("image/object/class/text", ()))
        return ", ".join(dict.fromkeys(objects))

    def _draw(self, values: Mapping[str, Any], known: Mapping[str, Sequence[Any]]) -> PIL.Image.Image:
        picture = self._pixels_of(values) if self.is_raw else _decode(known[features.ENCODED][0])
        picture = _shrink(_flatten(picture))
        for mask, color in _masks(known):
            picture = _blend(picture, mask, color)
        _draw_boxes(picture, known)
        return picture

    def _pixels_of(self, values: Mapping[str, Any]) -> PIL.Image.Image:
        found, form = bare_pixels.PixelReader(self.catalog).read(values), bare_pixels.form_of(self.catalog)
        if not form.is_usual:
            return _view(found.to_array(form))
        return pixels.from_bytes(found.data, (found.height, found.width, found.channels))


def maker_of(catalog: catalog_lib.Catalog, statistics: Mapping[str, Any]) -> ThumbnailMaker:
    """Returns the maker for a dataset.

    Args:
        catalog: of the dataset.
        statistics: as in `statistics.json`.
    """
    return ThumbnailMaker(catalog, bare_pixels.is_raw(catalog, bare_pixels.formats_in(statistics)))


def _describe(error: Exception) -> str:
    """Returns why there is no picture. Pillow names an address in memory, which differs from run to run."""
    return f"{type(error).__name__}: {error}".partition(" <_io.")[0]


def _texts(values: Sequence[Any]) -> list[str]:
    return [decode(value) for value in values if isinstance(value, bytes)]


def _text(values: Sequence[Any]) -> str:
    return next(iter(_texts(values)), "")


def _decode(data: bytes) -> PIL.Image.Image:
    """Decodes an image; a JPEG at the smallest fraction of its size that is large enough."""
    found = image_formats.sniff_format(data)
    if found not in pillow_decoder.DECODED_FORMATS:
        raise ValueError(f"{found or 'its format'} is not decoded here")
    picture = pillow_decoder.pillow().open(io.BytesIO(data), formats=(pillow_decoder.DECODED_FORMATS[found],))
    if found == image_formats.JPEG:
        longer = max(picture.size)
        picture.draft(None, (2 * SIDE_PX * picture.width // longer or 1, 2 * SIDE_PX * picture.height // longer or 1))
    if picture.width * picture.height > _MAX_DECODED_PX:
        raise ValueError(f"{picture.width * picture.height:,} pixels, too many for a thumbnail")
    picture.load()
    return picture


def _view(values: np.ndarray) -> PIL.Image.Image:
    """Returns a picture of the first band of an image, or of three: its finite values from black to white."""
    import numpy as np  # late, as above

    bands = values[:, :, : 3 if values.shape[2] == 3 else 1].astype(np.float64)
    finite = bands[np.isfinite(bands)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    levels = np.nan_to_num((bands - low) * 255 / ((high - low) or 1), nan=0, posinf=255, neginf=0).astype(np.uint8)
    return pillow_decoder.pillow().fromarray(levels if levels.shape[2] == 3 else levels[:, :, 0])


def _flatten(picture: PIL.Image.Image) -> PIL.Image.Image:
    """Returns the picture in RGB: deep pixels scaled to 8 bits, transparent ones on white."""
    return pixels.recolor(pixels.to_eight_bits(pixels.with_alpha(picture)), "rgb", background=(255, 255, 255))


def _shrink(picture: PIL.Image.Image) -> PIL.Image.Image:
    """Returns the picture with its longer side at most `SIDE_PX`; a small one is enlarged, with its pixels visible."""
    module = pillow_decoder.pillow()
    width, height = picture.size
    longer = max(width, height)
    if 2 * longer <= SIDE_PX:
        factor = SIDE_PX // longer
        return picture.resize((width * factor, height * factor), module.Resampling.NEAREST)
    if longer <= SIDE_PX:
        return picture
    scaled_width, scaled_height = (max(1, round(side * SIDE_PX / longer)) for side in (width, height))
    return picture.resize((scaled_width, scaled_height), module.Resampling.LANCZOS, reducing_gap=2.0)


def _masks(known: Mapping[str, Sequence[Any]]) -> list[tuple[np.ndarray, tuple[int, int, int]]]:
    """Returns masks, bool [height, width], each with its color: of the objects, and of the classes of pixels."""
    objects, classes_of_pixels = list(known.get(_MASKS, ()))[:_MAX_OBJECTS], list(known.get(_CLASSES, ()))[:1]
    if not objects and not classes_of_pixels:
        return []
    import numpy as np  # late, as above

    found = []
    for number, data in enumerate(objects):
        found.append((np.asarray(_decode(data)) > 0, _COLORS[number % len(_COLORS)]))
    for data in classes_of_pixels:
        classes = np.asarray(_decode(data))
        present = [int(each) for each in np.unique(classes) if each not in (0, _VOID)]
        found += [(classes == each, _COLORS[(each - 1) % len(_COLORS)]) for each in present[:_MAX_OBJECTS]]
    return found


def _blend(picture: PIL.Image.Image, mask: np.ndarray, color: tuple[int, int, int]) -> PIL.Image.Image:
    module = pillow_decoder.pillow()
    share = module.fromarray(mask.astype("uint8") * round(255 * _MASK_SHARE))
    share = share.resize(picture.size, module.Resampling.NEAREST)
    return module.composite(module.new("RGB", picture.size, color), picture, share)


def _draw_boxes(picture: PIL.Image.Image, known: Mapping[str, Sequence[Any]]) -> None:
    boxes = list(zip(*(known.get(side, ()) for side in _BOX)))[:_MAX_OBJECTS]
    if not boxes:
        return
    import PIL.ImageDraw  # late: 5 ms

    draw = PIL.ImageDraw.Draw(picture)
    width, height = picture.width - 1, picture.height - 1
    for number, (left, top, right, bottom) in enumerate(boxes):
        corners = [round(left * width), round(top * height), round(right * width), round(bottom * height)]
        if corners[0] <= corners[2] and corners[1] <= corners[3]:
            draw.rectangle(corners, outline=_COLORS[number % len(_COLORS)], width=_BOX_WIDTH)
