"""Identifies an image and checks that it is complete, without decoding it; decodes it on request.

Every image passes through `check_image`. It reads headers in Python and searches for markers in C: 15 us for a JPEG of
105 KB, 43 us where the C extension is missing and a regular expression searches. What it rejects, TensorFlow 2.21 or
Pillow 12 refuses, or decodes with a part of the image lost. Wrong pixel data without an illegal marker pass;
`check="decode"` finds some of these.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, image_formats, jpeg_structure, pillow_decoder, png_structure
from imagebeam.transforms.images.checked_image import BadImageError, Image

MAX_IMAGE_BYTES = 2**31 - 2**20  # a tf.train.Example holds less than 2 GiB; the rest is for the other features

RAW_COLORSPACES = {1: "GRAY", 2: "GRAY_ALPHA", 3: "RGB", 4: "RGBA"}

# To support another format, add its check here and its signature to image_formats.
_STRUCTURE_CHECKS: dict[str | None, Callable[[bytes, bool], Image]] = {
    image_formats.JPEG: jpeg_structure.check_jpeg,
    image_formats.PNG: png_structure.check_png,
}
CHECKED_FORMATS = (image_formats.JPEG, image_formats.PNG)  # those whose bytes may be stored
CHECKS = ("header", "structure", "decode")
_TEXT_BYTES = 32  # of a file that is no image, to say what it is


def check_image(data: bytes, check: str = "structure") -> Image:
    """Returns the format, size and colors of the image in `data` after checking that it is complete.

    Args:
        data: the bytes of one image file. Bytes after the end of the image are kept and not checked.
        check: "header" reads what precedes the pixels; "structure" checks every segment or chunk (and the CRCs of PNG);
            "decode" also decodes all pixels.

    Raises:
        BadImageError: if the image is to be rejected.
        ConfigError: if `check` is "decode" and Pillow is not installed.
        ValueError: if `check` is none of them.
    """
    if check not in CHECKS:
        raise ValueError(f"image.check is {check!r}, expected 'header', 'structure' or 'decode'")
    check_size(data)
    return check_format(data, image_formats.sniff_format(data), check)


def check_format(data: bytes, format: str | None, check: str) -> Image:
    """Checks an image like `check_image`, after its size and format were found."""
    check_structure = _STRUCTURE_CHECKS.get(format)
    if check_structure is None:
        raise refusal(data, format, CHECKED_FORMATS)
    image = check_structure(data, check == "header")
    if check == "decode":
        pillow_decoder.decode(image)
    return image


def check_size(data: bytes) -> None:
    """Checks the number of bytes alone.

    Raises:
        BadImageError: if there are none, or more than an example can hold.
    """
    if not data:
        raise BadImageError(Reason.EMPTY_FILE, "0 bytes")
    if len(data) > MAX_IMAGE_BYTES:
        raise BadImageError(Reason.TOO_LARGE, f"{len(data)} bytes, a tf.train.Example takes up to {MAX_IMAGE_BYTES}")


def raw_image(data: bytes, shape: tuple[int, int, int]) -> Image:
    """Returns an image of bare 8-bit pixels.

    Args:
        data: the rows from top to bottom, in each the pixels from left to right, in each the channels.
        shape: height and width in pixels, and the number of channels.

    Raises:
        BadImageError: if the number of bytes does not match the shape.
    """
    height, width, channels = shape
    if len(data) != height * width * channels:
        expected = f"{height} x {width} x {channels} pixels are {height * width * channels:,}"
        raise BadImageError(Reason.TRUNCATED, f"{len(data):,} bytes, {expected}")
    return Image(data, image_formats.RAW, height, width, channels, RAW_COLORSPACES[channels])


def refusal(data: bytes, format: str | None, supported: Iterable[str | None]) -> BadImageError:
    """Returns the error for bytes of no supported format.

    Args:
        data: the bytes of the file.
        format: the format that they announce; None for an unknown one.
        supported: the formats that were expected.
    """
    head = data[:16]
    if format is not None:
        found = f"{format} (first bytes {head!r}), expected {' or '.join(map(str, supported))}"
        if format in pillow_decoder.DECODED_FORMATS:
            remedy = "set image.other_formats: encode, or convert it first"
        elif plugin := pillow_decoder.plugin_for(format):
            remedy = f"pip install {plugin}, or convert it first"
        else:
            remedy = checked_image.CONVERT_FIRST
        return checked_image.unsupported(found, remedy)
    if name := image_formats.name_unread(data):
        return checked_image.unsupported(f"{name} (first bytes {head!r})")
    text = data[:_TEXT_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        found = "HTML, perhaps a download's error page"
    elif text.startswith(b"version https://git-lfs"):
        found = "a pointer of Git LFS instead of the image (git lfs pull fetches it)"
    elif text.startswith(b"<"):
        found = "XML"
    elif text.startswith((b"{", b"[")):
        found = "JSON"
    elif text and all(byte in b"\t\n\r" or 0x20 <= byte < 0x7F for byte in text):
        found = "text"
    else:
        found = "no known image format"
    return BadImageError(Reason.NOT_AN_IMAGE, f"{found}: the first of {len(data)} bytes are {head!r}")


_EOI = 0xD9
# What decides the colors stays: JFIF (APP0), the color profile (APP2, which also holds other things), Adobe (APP14).
_APP0, _APP2, _APP14, _LAST_APP, _COMMENT = 0xE0, 0xE2, 0xEE, 0xEF, 0xFE
_PROFILE = b"ICC_PROFILE\0"
_NOTES = frozenset({b"eXIf", b"tEXt", b"zTXt", b"iTXt", b"tIME"})


def strip_metadata(image: Image) -> Image:
    """Returns a checked JPEG or PNG without EXIF, XMP and IPTC data, comments, texts, and bytes after its end.

    Color profile, gamma and resolution stay. Any other image is returned as it is.
    """
    if image.format == image_formats.JPEG:
        return image._replace(data=_strip_jpeg(image.data))
    return image._replace(data=_strip_png(image.data)) if image.format == image_formats.PNG else image


def _strip_jpeg(data: bytes) -> bytes:
    kept = [data[:2]]
    position, is_note = 2, False
    while True:
        marker = jpeg_structure.find_marker(data, position)
        between = data[position:marker]  # the pixels of a scan, fill bytes, or more of a note than its length says
        if not is_note or not between.strip(b"\xff"):
            kept.append(between)
        code = data[marker + 1]
        if code == _EOI:
            kept.append(data[marker : marker + 2])
            return b"".join(kept)
        position = jpeg_structure.segment_end(data, marker)
        is_note = _is_note(code, data[marker + 4 : marker + 4 + len(_PROFILE)])
        if not is_note:
            kept.append(data[marker:position])


def _is_note(code: int, head: bytes) -> bool:
    if code == _APP2:
        return head != _PROFILE
    return code == _COMMENT or (_APP0 < code <= _LAST_APP and code != _APP14)


def _strip_png(data: bytes) -> bytes:
    kept = [chunk.whole for chunk in png_structure.read_chunks(data) if chunk.kind not in _NOTES]
    return b"".join((png_structure.SIGNATURE, *kept))


_TO_USUAL = bytes.maketrans(b"-_", b"+/")


def base64_size(data: bytes) -> int:
    """Returns how many bytes some base64 stands for; a size that it cannot be if it is none."""
    padding = data[-2:].count(b"=")
    return len(data) // 4 * 3 - padding if len(data) % 4 == 0 else -1


def decode_base64(data: bytes) -> bytes:
    """Returns the bytes that some base64 stands for.

    Raises:
        BadImageError: if it is none.
    """
    try:
        return base64.b64decode(data.translate(_TO_USUAL), validate=True)
    except binascii.Error as e:
        raise checked_image.corrupt(f"no base64 ({e}), which source.tfrecord.base64 says") from e
