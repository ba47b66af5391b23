"""Recognizes image formats by their first bytes."""

from __future__ import annotations

import re

from imagebeam.transforms.images import png_chunks

JPEG = "jpeg"
PNG = "png"
RAW = "raw"  # bare pixels, without a header

SNIFF_BYTES = 32

_SIGNATURES = {  # in the order in which they are tried
    JPEG: rb"\xff\xd8\xff",
    PNG: re.escape(png_chunks.SIGNATURE),
    "gif": rb"GIF8[79]a",
    "webp": rb"RIFF.{4}WEBP",
    "tiff": rb"II[*+]\0|MM\0[*+]",
    "bmp": rb"BM.{12}[\x0c\x10\x28\x34\x38\x40\x6c\x7c]\0{3}",  # many texts begin with "BM"
    "avif": rb".{4}ftyp(?:avi[fs]|.{8}(?:.{4}){0,3}avi[fs])",
    "heic": rb".{4}ftyp(?:he[iv][cmsx]|mif1|msf1)",
    "jp2": rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    "jxl": rb"\0\0\0\x0cJXL \r\n\x87\n|\xff\x0a",
    "ppm": rb"P[1-6]\s+[\d#]|P7\n",
    "ico": rb"\0\0[\1\2]\0[^\0]\0",
    "psd": rb"8BPS\0",
    "exr": rb"v/1\x01",
    "hdr": rb"#\?RADIANCE",
    "svg": rb"<svg\s",
}
_match_signature = re.compile(
    b"|".join(b"(?P<%b>%b)" % (name.encode(), pattern) for name, pattern in _SIGNATURES.items()), re.DOTALL
).match


def sniff_format(data: bytes) -> str | None:
    """Returns the format whose signature the first `SNIFF_BYTES` bytes match, such as "jpeg", or None."""
    match = _match_signature(data, 0, SNIFF_BYTES)
    return match.lastgroup if match else None
