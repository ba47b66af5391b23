"""Removes what cameras and programs note about a picture, such as the place, without touching its pixels."""

from __future__ import annotations

from imagebeam.transforms.images import image_formats, jpeg_structure, png_chunks
from imagebeam.transforms.images.checked_image import Image

_EOI = 0xD9
# What decides the colors stays: JFIF (APP0), the color profile (APP2, which also holds other things), Adobe (APP14).
_APP0, _APP2, _APP14, _LAST_APP, _COMMENT = 0xE0, 0xE2, 0xEE, 0xEF, 0xFE
_PROFILE = b"ICC_PROFILE\0"
_NOTES = frozenset({b"eXIf", b"tEXt", b"zTXt", b"iTXt", b"tIME"})


def strip(image: Image) -> Image:
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
    kept = [chunk.whole for chunk in png_chunks.read_chunks(data) if chunk.kind not in _NOTES]
    return b"".join((png_chunks.SIGNATURE, *kept))
