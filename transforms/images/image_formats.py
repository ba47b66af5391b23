"""Recognizes image formats by their first bytes."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

JPEG = "jpeg"
PNG = "png"
WEBP = "webp"
RAW = "raw"  # bare pixels, without a header

SNIFF_BYTES = 32

_EXTENSIONS = {  # by format
    JPEG: ("jpg", "jpeg", "jpe", "jfif"),
    PNG: ("png", "apng"),
    "gif": ("gif",),
    "bmp": ("bmp", "dib"),
    WEBP: ("webp",),
    "tiff": ("tif", "tiff"),
    "heic": ("heic", "heif"),
    "avif": ("avif",),
    "jp2": ("jp2", "j2k"),
    "jxl": ("jxl",),
    "ppm": ("ppm", "pgm", "pbm", "pnm"),
    "psd": ("psd",),
    "ico": ("ico",),
}
BY_EXTENSION = {extension: name for name, extensions in _EXTENSIONS.items() for extension in extensions}

_SIGNATURES = {  # in the order in which they are tried
    JPEG: rb"\xff\xd8\xff",
    PNG: rb"\x89PNG\r\n\x1a\n",
    "gif": rb"GIF8[79]a",
    WEBP: rb"RIFF.{4}WEBP",
    "tiff": rb"II[*+]\0|MM\0[*+]",
    # many texts begin with "BM"; the second is a DIB: the same without the file header, as on a clipboard
    "bmp": rb"BM.{12}[\x0c\x10\x28\x34\x38\x40\x6c\x7c]\0{3}"
    rb"|[\x28\x40\x6c\x7c]\0{3}.{8}\x01\0[\x01\x04\x08\x10\x18\x20]\0",
    "avif": rb".{4}ftyp(?:avi[fs]|.{8}(?:.{4}){0,3}avi[fs])",
    "heic": rb".{4}ftyp(?:he[iv][cmsx]|mif1|msf1)",
    "jp2": rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    "jxl": rb"\0\0\0\x0cJXL \r\n\x87\n|\xff\x0a",
    "ppm": rb"P[1-6]\s+[\d#]|P7\n",
    "ico": rb"\0\0\x01\0[^\0]\0",
    "psd": rb"8BPS\0",
    "exr": rb"v/1\x01",
    "hdr": rb"#\?RADIANCE",
    "svg": rb"<svg\s",
}
# Formats that are not read. They are named where a file cannot be used; a listing skips files under such names.
_UNREAD_SIGNATURES = {
    "blp": rb"BLP[12]",
    "cur": rb"\0\0\x02\0[^\0]\0",
    "dds": rb"DDS \x7c\0",
    "djvu": rb"AT&TFORM",
    "eps": rb"%!PS-Adobe|\xc5\xd0\xd3\xc6",
    "fits": rb"SIMPLE  =",
    "fli": rb".{4}[\x11\x12]\xaf",
    "icns": rb"icns",
    "pcx": rb"\x0a[\0\x02-\x05]\x01[\x01\x02\x04\x08]",
    "pdf": rb"%PDF-",
    "qoi": rb"qoif",
    "sgi": rb"\x01\xda[\0\x01][\x01\x02]",
    "sun": rb"\x59\xa6\x6a\x95",
    "wmf": rb"\xd7\xcd\xc6\x9a",
    "xpm": rb"/\* XPM \*/",
}


def _compile(signatures: Mapping[str, bytes]) -> re.Pattern[bytes]:
    groups = (b"(?P<%b>%b)" % (name.encode(), pattern) for name, pattern in signatures.items())
    return re.compile(b"|".join(groups), re.DOTALL)


@functools.cache  # takes 2 ms, and the launcher looks at no image
def _signatures() -> re.Pattern[bytes]:
    return _compile(_SIGNATURES)


@functools.cache
def _unread_signatures() -> re.Pattern[bytes]:
    return _compile(_UNREAD_SIGNATURES)


def sniff_format(data: bytes) -> str | None:
    """Returns the format whose signature the first `SNIFF_BYTES` bytes match, such as "jpeg", or None."""
    match = _signatures().match(data, 0, SNIFF_BYTES)
    return match.lastgroup if match else None


def name_unread(data: bytes) -> str | None:
    """Returns the name of a format that is known and not read, such as "pdf", or None."""
    match = _unread_signatures().match(data, 0, SNIFF_BYTES)
    return match.lastgroup if match else None
