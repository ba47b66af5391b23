"""Tells whether a file compressed its pixels with loss: only such pixels become a JPEG where bytes are not kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from imagebeam.transforms.images import image_formats, webp_structure

if TYPE_CHECKING:
    import PIL.Image

_LOSSY = frozenset({image_formats.JPEG, "avif", "heic", "jxl"})  # nearly always; the last three also know another way
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
    if format == image_formats.WEBP:
        return not _has_chunk(data, webp_structure.LOSSLESS)
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
    position, size = webp_structure.RIFF_HEADER_BYTES, len(riff)
    while position + 8 <= size:
        kind, length = webp_structure.unpack_chunk(riff, position)
        if kind == wanted:
            return True
        position += 8 + (16 if kind == b"ANMF" else length + length % 2)
    return False
