"""Turns encoded images and masks upright, as their EXIF orientation asks for.

Cameras store the pixels as the sensor reads them, and note in EXIF data how to turn them. Readers of datasets ignore
EXIF data, so the turn must be in the pixels. A JPEG is turned by moving its compressed blocks where possible, elsewhere
by decoding and encoding it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import (
    checked_image,
    image_formats,
    jpeg_structure,
    orientations,
    pillow_decoder,
    pixels,
    png_structure,
)
from imagebeam.transforms.images.checked_image import BadImageError, Image

if TYPE_CHECKING:
    import PIL.Image

try:
    from imagebeam import _writer
except ImportError:  # it was not built
    _writer = None  # type: ignore[assignment]

_MAX_VALUES = 2**28  # values of all components: coefficients take 4 bytes each. Pillow decodes no more either.

_SOI, _EOI, _SOS, _APP1, _APP14 = b"\xff\xd8", 0xD9, 0xDA, 0xE1, 0xEE
_PROGRESSIVE = frozenset({0xC2, 0xCA})
_ADOBE = b"Adobe"
_ADOBE_TRANSFORM = 11  # offset of the color transform in the segment's content: 0 for RGB or CMYK, 1 YCbCr, 2 YCCK
_RGB_NUMBERS = b"RGB"  # numbers of the components
# By the size of a luma sample's chroma samples, width and height: Pillow's name. It writes no others.
_SUBSAMPLINGS = {(2, 1): 1, (2, 2): 2}
_NO_SUBSAMPLING = 0


class _Segment(NamedTuple):
    code: int  # second byte of the marker
    start: int  # byte offset of the content, after the length
    end: int


def library() -> str | None:
    """Returns name and version of the library that turns without loss; None where it was not built in."""
    return getattr(_writer, "TURNER", None)


def turn_without_loss(image: Image) -> bytes | None:
    """Returns a checked JPEG turned upright, or None where only `encode_turned` can turn it."""
    if library() is None or image.height * image.width * image.channels > _MAX_VALUES:
        return None
    segments = _read_segments(image.data)
    if _has_metadata_between_scans(image.data, segments[-1].end):
        return None  # it would move before the first scan, where an Adobe or JFIF segment changes the colors
    data = _with_upright_exif(image, segments)
    # Without stray bytes between segments, which are no damage to the image but would make libjpeg warn.
    parts = [data[start - 4 : end] for _, start, end in segments]
    is_progressive = any(segment.code in _PROGRESSIVE for segment in segments)
    whole = b"".join((_SOI, *parts, data[segments[-1].end :]))
    turned: bytes | None = _writer.turn_jpeg(whole, image.orientation, is_progressive)
    return turned


def _has_metadata_between_scans(data: bytes, position: int) -> bool:
    """Returns whether segments APPn or COM follow a scan; ends where the image does, also if it was cut short."""
    while (marker := jpeg_structure.find_marker(data, position)) >= 0 and data[marker + 1] != _EOI:
        if data[marker + 1] in jpeg_structure.METADATA:
            return True
        position = jpeg_structure.segment_end(data, marker)
    return False


def encode_turned(image: Image) -> bytes:
    """Returns a checked JPEG turned upright after decoding it, with its own tables and subsampling.

    Where Pillow cannot write the subsampling, such as 4:4:0, chroma is stored in full. Arithmetic coding becomes
    Huffman coding, YCCK becomes CMYK.

    Raises:
        BadImageError: if Pillow cannot decode it.
        ConfigError: if Pillow is not installed.
    """
    opened: Any = pillow_decoder.open_lazily(image.data, image_formats.JPEG)
    keeps_rgb = _is_rgb(opened)
    if not keeps_rgb:
        opened.draft("YCbCr", None)
    pillow_decoder.load(opened)
    swaps = orientations.swaps_sides(image.orientation)
    tables = {number: _transpose(table) if swaps else [*table] for number, table in opened.quantization.items()}
    options = {
        "qtables": _without_repeats([tables[number] for *_, number in opened.layer]),
        "subsampling": _subsampling([(high, wide) if swaps else (wide, high) for _, wide, high, _ in opened.layer]),
        "keep_rgb": keeps_rgb,
    }
    encoded = _encode(pixels.turn_upright(opened, image.orientation), options, "progressive" in opened.info)
    # The encoder's own metadata make way for the source's.
    pictured = next(each for each in _read_segments(encoded) if each.code not in jpeg_structure.METADATA)
    segments = _read_segments(image.data)
    metadata = _with_upright_exif(image, segments)
    kept = [_SOI]
    for code, start, end in segments:
        if code in jpeg_structure.METADATA:
            is_adobe = code == _APP14 and end - start > _ADOBE_TRANSFORM and image.data.startswith(_ADOBE, start)
            if image.channels == 4 and is_adobe:
                metadata[start + _ADOBE_TRANSFORM] = 0
            kept.append(bytes(metadata[start - 4 : end]))
    return b"".join((*kept, encoded[pictured.start - 4 :]))


def _read_segments(data: bytes) -> list[_Segment]:
    """Returns the segments of a checked JPEG up to the first scan, which is the last of them."""
    segments: list[_Segment] = []
    position = len(_SOI)
    while not segments or segments[-1].code != _SOS:
        marker = jpeg_structure.find_marker(data, position)
        position = jpeg_structure.segment_end(data, marker)
        segments.append(_Segment(data[marker + 1], marker + 4, position))
    return segments


def _with_upright_exif(image: Image, segments: list[_Segment]) -> bytearray:
    """Returns the JPEG with orientation 1 in its EXIF data, and the sizes there as after the turn."""
    data = bytearray(image.data)
    for code, start, end in segments:
        if code == _APP1 and data.startswith(orientations.EXIF_HEADER, start):
            orientations.set_upright(
                data, start + len(orientations.EXIF_HEADER), end, orientations.swaps_sides(image.orientation)
            )
    return data


def _is_rgb(opened: Any) -> bool:
    """Returns whether three components are RGB and not YCbCr: default_decompress_parms in jdapimin.c of libjpeg."""
    if len(opened.layer) != 3 or "jfif" in opened.info:
        return False
    if "adobe_transform" in opened.info:
        return bool(opened.info["adobe_transform"] == 0)
    return bytes(number for number, *_ in opened.layer) == _RGB_NUMBERS


def _transpose(table: Sequence[int]) -> list[int]:
    """Exchanges rows and columns of 8 x 8 values, row by row."""
    return [table[8 * column + row] for row in range(8) for column in range(8)]


def _without_repeats(tables: list[list[int]]) -> list[list[int]]:
    """Returns the quantization tables of the components as Pillow takes them: the last one is for the rest."""
    while len(tables) > 1 and tables[-1] == tables[-2]:
        tables.pop()
    return tables


def _subsampling(factors: list[tuple[int, int]]) -> int:
    """Returns the chroma subsampling by Pillow's name, from the sampling factors of the components."""
    if len(factors) != 3 or factors[1:] != [(1, 1), (1, 1)]:
        return _NO_SUBSAMPLING
    return _SUBSAMPLINGS.get(factors[0], _NO_SUBSAMPLING)


def _encode(picture: PIL.Image.Image, options: dict[str, Any], is_progressive: bool) -> bytes:
    picture.info = {}  # else Pillow stores the metadata of the source file
    for is_best in (True, False):
        buffer = io.BytesIO()
        try:
            picture.save(
                buffer, pillow_decoder.DECODED_FORMATS[image_formats.JPEG], optimize=is_best,
                progressive=is_best and is_progressive, **options,
            )  # fmt: skip
        except OSError as e:
            # Pillow reserves 2 bytes a pixel for both options, too few for noise that is stored without any loss.
            if not is_best:
                raise BadImageError(Reason.UNDECODABLE, f"Pillow: cannot encode it turned upright: {e}") from e
        else:
            break
    return buffer.getvalue()


_EXIF, _GRAY_ALPHA = b"eXIf", 4
_ANIMATION = frozenset({b"acTL", b"fcTL", b"fdAT"})  # chunks of the other images of an animated PNG
_OF_DEPTH = frozenset({b"bKGD", b"sBIT", b"tRNS"})  # chunks whose numbers have the bits of a pixel


class Upright(NamedTuple):
    """An image turned upright."""

    image: Image
    is_lossless: bool  # False if it was decoded, turned and encoded again, which changes pixels slightly


def turn_upright(image: Image) -> Upright:
    """Returns a checked JPEG or PNG turned as `image.orientation` asks for; any other image as it is.

    The result has `data`, `height` and `width` of the upright image, orientation 1 in its EXIF data, and
    `orientation` 1. `mask`, `record` and `sums` stay: turn the mask with `turn_mask`, and sum the pixels afterwards.

    A JPEG is turned without loss where possible: its compressed blocks are moved and mirrored, as jpegtran does. It
    needs TurboJPEG, and each side that is mirrored must be a multiple of 8 or 16 pixels (32 for 4:1:1). Otherwise
    Pillow decodes and encodes it with the quantization tables of the source, turned likewise, and with its chroma
    subsampling, or none where Pillow cannot write the turned one. Both ways keep the segments APPn and COM, except for
    the EXIF orientation, and the sizes in EXIF data. A thumbnail in EXIF data stays as it was. Bytes after the end of
    the image are dropped.

    Raises:
        BadImageError: if the pixels are damaged so that they cannot be turned.
        ConfigError: if Pillow is needed and not installed.
    """
    if image.orientation == checked_image.UPRIGHT or image.format not in (image_formats.JPEG, image_formats.PNG):
        return Upright(image, is_lossless=True)
    if image.format == image_formats.PNG:
        data, is_lossless = _turn_png(image.data, image.orientation)
    else:
        turned = turn_without_loss(image)
        data, is_lossless = encode_turned(image) if turned is None else turned, turned is not None
    height, width = orientations.turn_size(image.height, image.width, image.orientation)
    upright = image._replace(data=data, height=height, width=width, orientation=checked_image.UPRIGHT)
    if not is_lossless:
        upright = upright._replace(dtype="uint8")
    return Upright(upright, is_lossless)


def turn_mask(mask: bytes, orientation: int) -> bytes:
    """Returns the mask of an image, a complete PNG, turned as the image: the same values and palette.

    Args:
        mask: the bytes of a checked PNG: gray of 8 or 16 bits, a palette, or colors. Its own EXIF orientation is not
            read; it becomes 1.
        orientation: 1 to 8, of the image before it was turned.

    Raises:
        BadImageError: if the pixels cannot be decoded, or have colors of 16 bits.
        ConfigError: if Pillow is not installed.
        ValueError: if `orientation` is not 1 to 8.
    """
    orientations.check_orientation(orientation)
    data, is_lossless = _turn_png(mask, orientation)
    if not is_lossless:
        raise checked_image.unsupported("a mask with colors of 16 bits", "save it with 8 bits a channel")
    return data


def _turn_png(png: bytes, orientation: int) -> tuple[bytes, bool]:
    """Returns a checked PNG turned, and whether no pixel lost anything: colors of 16 bits keep their upper 8.

    Gray of 2 and 4 bits gets 8, for the same picture. Palette and other chunks stay. The EXIF orientation becomes 1. An
    interlaced PNG becomes a plain one; of an animated PNG the first image stays.
    """
    color_type, depth = (
        png[png_structure.HEADER_START + each] for each in (png_structure.COLOR_TYPE_BYTE, png_structure.DEPTH_BYTE)
    )
    picture = pixels.turn_upright(pillow_decoder.decode_any(png, image_formats.PNG), orientation)
    if color_type == _GRAY_ALPHA:  # Pillow makes RGBA of it if it has 16 bits
        picture = pixels.in_mode(picture, "LA")
    picture.info = {}
    encoded = io.BytesIO()
    picture.save(encoded, pillow_decoder.DECODED_FORMATS[image_formats.PNG])
    own = {png_structure.HEADER: b"", png_structure.PIXELS: b""}
    for chunk in png_structure.read_chunks(encoded.getvalue()):
        if chunk.kind in own:
            own[chunk.kind] += chunk.whole
    has_other_depth = encoded.getvalue()[png_structure.HEADER_START + png_structure.DEPTH_BYTE] != depth
    has_other_numbers = has_other_depth and color_type != png_structure.PALETTE_INDEX
    dropped = _ANIMATION | (_OF_DEPTH if has_other_numbers else frozenset())
    turned = [png_structure.SIGNATURE]
    for kind, data, whole in png_structure.read_chunks(png):
        if kind in own:
            turned.append(own.pop(kind))
            own[kind] = b""  # the first of several chunks of pixels makes way for all
        elif kind == _EXIF:
            upright = bytearray(data)
            orientations.set_upright(upright, 0, len(upright), orientations.swaps_sides(orientation))
            turned.append(png_structure.encode_chunk(kind, bytes(upright)))
        elif kind not in dropped:
            turned.append(whole)
    return b"".join(turned), depth < 16 or color_type == png_structure.GRAY
