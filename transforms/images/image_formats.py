"""Recognizes image formats by their first bytes, and how a file compresses its pixels."""

from __future__ import annotations

import functools
import re
import struct
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import PIL.Image

JPEG = "jpeg"
PNG = "png"
WEBP = "webp"
RAW = "raw"  # bare pixels, without a header
DICOM, NIFTI = "dicom", "nifti"
MEDICAL = (DICOM, NIFTI)  # measurements, and files of many slices: read by `medical_reader`, not by Pillow

SNIFF_BYTES = 348  # NIfTI's signature is at byte 344
_GZIP, _GZIP_WRAPPER = b"\x1f\x8b\x08", 31
_COMPRESSED_HEAD_BYTES = 4096

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
    DICOM: ("dcm", "dicom"),
    NIFTI: ("nii", "nii.gz"),
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
    DICOM: rb".{128}DICM",
    NIFTI: rb"(?:\x5c\x01\0\0|\0\0\x01\x5c).{340}n\+1\0|(?:\x1c\x02\0\0|\0\0\x02\x1c)n\+2\0",
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
    if match is None and data[: len(_GZIP)] == _GZIP:
        return _sniff_compressed(data)
    return match.lastgroup if match else None


def _sniff_compressed(data: bytes) -> str | None:
    """Returns the format of a file in gzip, which NIfTI alone may be."""
    try:
        head = zlib.decompressobj(_GZIP_WRAPPER).decompress(data[:_COMPRESSED_HEAD_BYTES], SNIFF_BYTES)
    except zlib.error:
        return None
    match = _signatures().match(head)
    return NIFTI if match and match.lastgroup == NIFTI else None


def extension_of(name: str) -> str:
    """Returns the extension of a file in lower case without a dot, "nii.gz" as one; "" if there is none."""
    stem, _, extension = name.lower().rpartition(".")
    return "nii.gz" if extension == "gz" and stem.endswith(".nii") else extension if stem else ""


def name_unread(data: bytes) -> str | None:
    """Returns the name of a format that is known and not read, such as "pdf", or None."""
    match = _unread_signatures().match(data, 0, SNIFF_BYTES)
    return match.lastgroup if match else None


RIFF_HEADER_BYTES = 12  # "RIFF", the size of what follows it, "WEBP"
WEBP_LOSSY, WEBP_LOSSLESS = b"VP8 ", b"VP8L"  # kinds of chunks
unpack_chunk = struct.Struct("<4sI").unpack_from  # kind of a chunk of a WebP, bytes of its data
_LOSSY = frozenset({JPEG, "avif", "heic", "jxl"})  # nearly always; the last three also know another way
_LOSSY_TIFF = frozenset({"jpeg", "tiff_jpeg", "webp"})  # Pillow's names of compressions
# TIFF tags: what the first picture is for (bit 0: a smaller version of another one), and the version of DNG.
_SUBFILE_TYPE, _DNG_VERSION = 254, 50706
_SIZ = b"\xff\x4f\xff\x51"  # start of the codestream, and marker of its size
_COD = b"\xff\x52"  # marker of JPEG 2000's coding style
_TRANSFORMATION_BYTE = 13  # after the marker: 0 is the irreversible wavelet


def is_lossy(opened: PIL.Image.Image, data: bytes, format: str) -> bool:
    """Returns whether the pixels of a file were compressed with loss.

    Args:
        opened: the image as Pillow opened it.
        data: the bytes of the file.
        format: our name of its format.
    """
    if format == WEBP:
        return not _has_chunk(data, WEBP_LOSSLESS)
    if format == "tiff":
        return opened.info.get("compression") in _LOSSY_TIFF
    if format == "jp2":
        start = data.find(_COD)
        return start < 0 or data[start + _TRANSFORMATION_BYTE : start + _TRANSFORMATION_BYTE + 1] == b"\0"
    return format in _LOSSY


def is_wide_jp2(data: bytes) -> bool:
    """Returns whether a JPEG 2000 has several channels of more than 8 bits: Pillow 12 turns white black there.

    Source: ITU-T T.800, A.5.1.
    """
    start = data.find(_SIZ)
    if start < 0:
        return False
    channels = int.from_bytes(data[start + 40 : start + 42], "big")
    depths = data[start + 42 : start + 42 + 3 * channels : 3]  # minus 1; the upper bit says signed
    return channels > 1 and any(depth & 0x7F > 7 for depth in depths)


def is_raw_photo(opened: Any) -> bool:
    """Returns whether a TIFF is a camera's raw photo: its first picture is then a small preview."""
    tags = getattr(opened, "tag_v2", {})
    kind = tags.get(_SUBFILE_TYPE, 0)
    return _DNG_VERSION in tags or (isinstance(kind, int) and bool(kind & 1))


def _has_chunk(riff: bytes, wanted: bytes) -> bool:
    """Returns whether a WebP has a chunk of a kind, in its frames too."""
    position, size = RIFF_HEADER_BYTES, len(riff)
    while position + 8 <= size:
        kind, length = unpack_chunk(riff, position)
        if kind == wanted:
            return True
        position += 8 + (16 if kind == b"ANMF" else length + length % 2)
    return False
