"""Decodes the file of a mask to the numbers, or the colors, that its pixels have in the file.

Decoders for pictures return what is to be seen: they stretch 1, 2 and 4 bits to 0 to 255, and show a palette's colors.
A mask is made of the numbers in the file.
"""

from __future__ import annotations

import collections
import io
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, image_formats, pillow_decoder, png_structure, structure
from imagebeam.transforms.images.checked_image import BadImageError

if TYPE_CHECKING:
    import numpy as np
    import PIL.Image

NPY = "npy"
NPY_SIGNATURE = b"\x93NUMPY"
_NUMBERS = "biuf"  # NumPy's kinds of types that are numbers
_LOSSY = (image_formats.JPEG, image_formats.WEBP, "heic", "avif", "jp2", "jxl")
_INDEXED = ("gif", "bmp", "tiff")
_GRAY = ("1", "L")  # modes of Pillow
_WIDE = ("I;16", "I;16L", "I;16B", "I;16N", "I")
# Tags of TIFF: the bits of a number, and whether 0 is white or black.
_BITS_PER_SAMPLE, _PHOTOMETRIC = 258, 262
_WHITE_IS_ZERO = 0
_BMP_FILE_HEADER_BYTES = 14
_BMP_DEPTH = 28  # byte offset
_BMP_OLD_HEADER_BYTES = 12  # header of OS/2, whose palette has three bytes a color


class MaskPixels(NamedTuple):
    """The pixels of a mask: numbers, numbers with a palette, or colors."""

    numbers: np.ndarray | None = None  # integers [height, width]
    palette: np.ndarray | None = None  # uint8 [number of colors, 3], RGB; of gray, its shades; None for wide numbers
    colors: np.ndarray | None = None  # uint8 [height, width, 3], RGB, without alpha


class OpenedMask(NamedTuple):
    """A mask whose header was read."""

    format: str
    height: int  # pixels
    width: int
    data: bytes
    picture: PIL.Image.Image | None = None  # not yet decoded; None for a PNG or .npy
    array: np.ndarray | None = None  # the pixels of a .npy


def open_mask(data: bytes, check: str) -> OpenedMask:
    """Returns a mask with its size, before its pixels are decoded.

    Args:
        data: the bytes of the file.
        check: of a PNG, one of structure.CHECKS.

    Raises:
        BadImageError: if it is no file that can hold classes.
    """
    if data.startswith(NPY_SIGNATURE):
        array = _read_npy(data)
        if array.ndim == 3 and array.shape[2] == 1:
            array = array[..., 0]
        is_colors = array.ndim == 3 and array.shape[2] == 3 and array.dtype.itemsize == 1
        if (array.ndim != 2 and not is_colors) or 0 in array.shape:
            raise BadImageError(Reason.BAD_VALUE, f"a .npy file of the shape {array.shape}, expected (height, width)")
        if array.dtype.kind == "f":
            raise checked_image.unsupported(
                f"a .npy file of {array.dtype}", "save the classes as integers, such as array.astype('uint8')"
            )
        return OpenedMask(NPY, array.shape[0], array.shape[1], data, array=array)
    format = image_formats.sniff_format(data)
    if format in _LOSSY:
        raise _lossy(format)
    if format not in _INDEXED:
        found = structure.check_image(data, check)
        return OpenedMask(found.format, found.height, found.width, data)
    structure.check_size(data)
    picture = pillow_decoder.open_lazily(data, str(format))
    if image_formats.is_lossy(picture, data, str(format)):
        raise _lossy(f"{format} compressed with loss")
    return OpenedMask(str(format), picture.height, picture.width, data, picture)


def _read_npy(data: bytes) -> np.ndarray:
    """Returns the array of numbers in a .npy file, without a copy.

    Raises:
        BadImageError: if the file is no plain array of numbers, or has another length than its header says.
    """
    import numpy as np

    from imagebeam.transforms import npy_header  # late: a writer process needs 15 MB more with NumPy

    file = io.BytesIO(data)
    try:
        header = npy_header.read(file)
    except ValueError as e:
        raise checked_image.corrupt(f"its .npy header cannot be read: {e}") from e
    dtype = header.dtype
    if dtype.kind not in _NUMBERS:
        what = "Python objects, which are never unpickled" if dtype.hasobject else str(dtype)
        raise checked_image.unsupported(f"a .npy file of {what}", "save an array of integers")
    rest = len(data) - file.tell()
    if rest != header.num_bytes:
        found = f"{rest:,} bytes follow the .npy header, its shape {header.shape} of {dtype} takes {header.num_bytes:,}"
        raise BadImageError(Reason.TRUNCATED if rest < header.num_bytes else Reason.CORRUPT, found)
    array = np.frombuffer(data, dtype, offset=file.tell())
    return array.reshape(header.shape, order="F" if header.is_fortran else "C")


def _lossy(format: str) -> BadImageError:
    return BadImageError(
        Reason.UNSUPPORTED_FORMAT,
        f"{format}, which blurs classes at their edges: masks must be png, exported again from where they were drawn",
    )


def read_pixels(mask: OpenedMask) -> MaskPixels:
    """Returns the pixels of an opened mask.

    Raises:
        BadImageError: if they cannot be decoded, or there are several pictures.
    """
    checked_image.NO_LIMITS.check_decoded(mask.height, mask.width, f"a {mask.format} mask")
    if mask.array is not None:
        return MaskPixels(colors=mask.array) if mask.array.ndim == 3 else MaskPixels(mask.array)
    if mask.picture is None:
        return _read_png(mask.data)
    if pillow_decoder.is_animated(mask.picture):
        raise BadImageError(Reason.SEVERAL_FRAMES, f"a {mask.format} of several pictures, expected one: split it")
    if mask.format == "bmp":
        return _read_bmp(mask.data, mask.picture)
    return _read_picture(mask.picture)


def _read_png(png: bytes) -> MaskPixels:
    import numpy as np

    _, _, depth, color_type, *_ = png_structure.unpack_header(png, png_structure.HEADER_START)
    if color_type == png_structure.GRAY:
        return MaskPixels(gray_numbers(png), _shades(depth) if depth <= 8 else None)
    picture = pillow_decoder.decode_any(png, image_formats.PNG)
    if depth == 16:
        raise checked_image.unsupported("a png with colors of 16 bits", "save it with 8 bits a channel")
    if color_type != png_structure.PALETTE_INDEX:
        return _read_picture(picture)
    entries = next(chunk.data for chunk in png_structure.read_chunks(png) if chunk.kind == png_structure.PALETTE)
    return MaskPixels(np.asarray(picture), np.frombuffer(entries, np.uint8).reshape(-1, 3))


def read_indices(png: bytes) -> np.ndarray:
    """Returns the indices in a checked PNG with a palette, uint8 [height, width].

    Raises:
        BadImageError: if the pixels cannot be decoded.
    """
    import numpy as np

    return np.asarray(pillow_decoder.decode_any(png, image_formats.PNG))


def gray_numbers(png: bytes) -> np.ndarray:
    """Returns the numbers of a checked gray PNG of any depth, uint8 or uint16 [height, width].

    Raises:
        BadImageError: if the pixels cannot be decoded.
    """
    import numpy as np

    depth = png[png_structure.HEADER_START + png_structure.DEPTH_BYTE]
    numbers = np.asarray(pillow_decoder.decode_any(png, image_formats.PNG))
    if depth == 16:
        return numbers.astype(np.uint16)
    highest = (1 << depth) - 1
    return numbers.astype(np.uint8) // (1 if depth == 1 else 255 // highest)  # Pillow stretches 2 and 4 bits to 255


def _read_picture(picture: PIL.Image.Image) -> MaskPixels:
    """Returns the pixels of a TIFF or GIF, or of a PNG with 8 bits a channel."""
    import numpy as np

    pillow_decoder.load(picture)
    mode = picture.mode
    if mode == "P":
        entries = picture.getpalette() or []
        return MaskPixels(np.asarray(picture), np.array(entries, np.uint8).reshape(-1, 3))
    if mode in _WIDE:
        return MaskPixels(np.asarray(picture))
    if mode in _GRAY:
        return _read_gray(picture)
    if mode not in ("RGB", "RGBA", "LA"):
        raise checked_image.unsupported(
            f"{(picture.format or '').lower()} of Pillow's mode {mode}, which is neither a class nor a color a pixel",
            "save it as a png of 8-bit classes",
        )
    return MaskPixels(colors=np.asarray(picture.convert("RGB")))


def _read_gray(picture: PIL.Image.Image) -> MaskPixels:
    """Returns the numbers in a gray GIF or TIFF: of TIFF's, Pillow stretches 1, 2 and 4 bits, and inverts some."""
    import numpy as np

    numbers = np.asarray(picture).astype(np.uint8)
    tags = getattr(picture, "tag_v2", None)
    if tags is None:
        return MaskPixels(numbers, _shades(1 if picture.mode == "1" else 8))
    bits = tags.get(_BITS_PER_SAMPLE, 1)
    depth = bits[0] if isinstance(bits, tuple) else bits
    highest = (1 << depth) - 1
    if picture.mode == "L":
        numbers //= 255 // highest
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        return MaskPixels(np.uint8(highest) - numbers, _shades(depth)[::-1])
    return MaskPixels(numbers, _shades(depth))


def _shades(depth: int) -> np.ndarray:
    """Returns the colors as which gray numbers of up to 8 bits are shown: uint8 [2**depth, 3]."""
    import numpy as np

    highest = (1 << depth) - 1
    return np.repeat((np.arange(highest + 1) * (255 // highest)).astype(np.uint8)[:, None], 3, axis=1)


def _read_bmp(data: bytes, picture: PIL.Image.Image) -> MaskPixels:
    """Returns the pixels of a BMP.

    Pillow takes a palette that looks gray for none, and then 4-bit numbers for 8-bit ones (tried with 12.3). With a
    color in its place it keeps the palette and returns its indices.
    """
    import numpy as np

    if not data.startswith(b"BM") or picture.mode not in (*_GRAY, "P"):
        return _read_picture(picture)
    (header_bytes,) = struct.unpack_from("<I", data, _BMP_FILE_HEADER_BYTES)
    start = _BMP_FILE_HEADER_BYTES + header_bytes
    entry = 3 if header_bytes == _BMP_OLD_HEADER_BYTES else 4
    (pixels_start,) = struct.unpack_from("<I", data, 10)
    palette = np.frombuffer(data[start : max(start, pixels_start)][: 256 * entry], np.uint8)
    palette = palette[: len(palette) // entry * entry].reshape(-1, entry)[:, 2::-1]  # it is stored as BGR
    colored = data[:start] + b"\1\2\3" + data[start + 3 :]
    indexed = pillow_decoder.decode_any(colored, "bmp")
    if indexed.mode != "P":
        raise checked_image.corrupt(f"a bmp without a palette, which Pillow takes for its mode {indexed.mode}")
    return MaskPixels(np.asarray(indexed), palette)


# --- masks in black and white ----------------------------------------------------------------------------------------

_BLACK, _WHITE = 0, 255
# What source.masks.colors must be for such masks.
BLACK_AND_WHITE = {"background": [_BLACK] * 3, "foreground": [_WHITE] * 3}
BLACK_AND_WHITE_TEXT = "{background: [0, 0, 0], foreground: [255, 255, 255]}"  # the same in YAML
MAX_CLASSES = 64  # different numbers of a gray mask, at most; a gray picture has more
_DARK, _LIGHT = range(32), range(224, 256)  # nearly black, nearly white
_MIN_GRAYS = 16  # different numbers between them
_SHARE = 0.9  # share of the pixels that are nearly black or nearly white, at least
_MAX_PIXELS = 1 << 24


def are_black_and_white(masks: Sequence[Mapping[int, int]]) -> bool:
    """Returns whether masks are gray with 8 bits, and have pixels of 0 and of 255 and of no other number.

    Args:
        masks: of each, the numbers of its pixels: see `count_numbers`.
    """
    return all(masks) and set().union(*masks) == {_BLACK, _WHITE}


def are_smoothed(masks: Sequence[Mapping[int, int]]) -> bool:
    """Returns whether gray masks of 8 bits are together of black and white with all kinds of gray between them.

    Such are masks that were compressed with loss or resized: most pixels are nearly black or nearly white, and the
    others have many different numbers.

    Args:
        masks: of each, the numbers of its pixels: see `count_numbers`.
    """
    counts: collections.Counter[int] = collections.Counter()
    for mask in masks:
        counts.update(mask)
    dark, light = (sum(counts[number] for number in numbers) for numbers in (_DARK, _LIGHT))
    num_grays = sum(_DARK.stop <= number < _LIGHT.start for number in counts)
    return num_grays >= _MIN_GRAYS and min(dark, light) > 0 and dark + light >= _SHARE * counts.total()


def count_numbers(mask: bytes, all_modes: bool = False) -> dict[int, int]:
    """Returns the numbers of the pixels of a gray mask of 8 bits, each with how many pixels have it.

    Empty for a mask with colors, for a file that is broken or larger than 16 million pixels, and for one that is
    neither PNG, BMP nor TIFF.

    Args:
        mask: bytes of the file.
        all_modes: also count those of a mask with a palette, of 16 bits, or in a .npy file.
    """
    if all_modes and mask.startswith(NPY_SIGNATURE):
        try:
            return _count(_read_npy(mask))
        except BadImageError:
            return {}
    format = image_formats.sniff_format(mask)
    if format not in ("png", "bmp", "tiff"):
        return {}
    try:
        picture = pillow_decoder.open_lazily(mask, format)
        is_gray = picture.mode == "L" and _bits_of(mask, format, picture) == 8
        if not is_gray and not (all_modes and picture.mode in ("P", *_WIDE)):
            return {}
        if picture.width * picture.height > _MAX_PIXELS:
            return {}
        pillow_decoder.load(picture)
    except checked_image.BadImageError:
        return {}
    if picture.mode in _WIDE:
        return _count(picture)
    return {number: count for number, count in enumerate(picture.histogram()) if count}


def _count(pixels: np.ndarray | PIL.Image.Image) -> dict[int, int]:
    import numpy as np

    numbers, counts = np.unique(np.asarray(pixels), return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist()))


def _bits_of(mask: bytes, format: str, picture: PIL.Image.Image) -> int:
    """Returns the bits of a number in the file: of fewer than 8, Pillow stretches the numbers to 255."""
    if format == "png":
        return mask[png_structure.HEADER_START + png_structure.DEPTH_BYTE]
    if format == "bmp":
        bits: int = struct.unpack_from("<H", mask, _BMP_DEPTH)[0]
        return bits
    found = getattr(picture, "tag_v2", {}).get(_BITS_PER_SAMPLE, 1)
    return int(found[0] if isinstance(found, tuple) else found)
