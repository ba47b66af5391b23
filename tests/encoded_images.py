"""JPEG and PNG images of every kind, functions that damage them, and the check that an image is rejected."""

from __future__ import annotations

import base64
import re
import struct
import zlib

import pytest
from PIL import Image as PillowImage

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, png_structure, structure
from tests import image_sets

SIZE = (23, 17)  # width, height
SOF, SOS, DQT, DHT = b"\xff\xc0", b"\xff\xda", b"\xff\xdb", b"\xff\xc4"
EOI = b"\xff\xd9"

# 16 x 16 gray pixels, by `cjpeg -arithmetic` of libjpeg-turbo, because Pillow cannot write these; the second is
# progressive.
_ARITHMETIC = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wCDEAAoABwAHgAjAB4AGQAoACMAIQAjAC0AKwAoADAAPABkAEEAPAA3ADcAPAB7AFgAXQBJAGQAkQCAAJkAlgCPAIAAj"
    "ACKAKAAtADmAMMAoACqANoArQCKAIwAyAERAMsA2gDuAPUBAgEEAQIAmwDBARsBLwEYAPoBLADmAP0BAgD4/8"
)
ARITHMETIC = base64.b64decode(
    _ARITHMETIC + "kACwgAEAAQAQERAP/MAAYAEBAF/9oACAEBAAA/AP3A3OjcJH7rynpjy/QfVZ3r5JFEIzEnES78TtILSlwdi/XX0Ty//9k="
)
ARITHMETIC_PROGRESSIVE = base64.b64decode(
    _ARITHMETIC
    + "oACwgAEAAQAQERAP/MAAQAEP/aAAgBAQAAAAH7gFAd/8wABBAF/9oACAEBAAEFAhy3IGcS/8wABBAF/9oACAEBAAY/AtaA/8wABBA"
    "F/9oACAEBAAE/IdDs3+Z68Wug/9oACAEBAAAAEGD/zAAEEAX/2gAIAQEAAT8QUT9OxgQTm4+EBJtrDZ5A/9k="
)


def encode(image_format: str, mode: str = "RGB", **options: object) -> bytes:
    """Encodes a picture of gradients in one of Pillow's modes."""
    gradient = PillowImage.linear_gradient("L").resize(SIZE)
    picture = PillowImage.merge("RGB", [gradient, gradient.rotate(90), PillowImage.radial_gradient("L").resize(SIZE)])
    if mode == "P":
        picture = picture.quantize(16)
    elif mode in ("LA", "RGBA"):
        picture.putalpha(gradient)
        picture = picture.convert(mode)
    else:
        picture = picture.convert("L").convert(mode) if mode.startswith("I;16") else picture.convert(mode)
    return image_sets.save(picture, image_format, **options)


def png(*chunks: bytes) -> bytes:
    """Returns a PNG of these chunks."""
    return png_structure.SIGNATURE + b"".join(chunks)


chunk = png_structure.encode_chunk
ihdr = png_structure.encode_header

ROWS = zlib.compress((b"\0" + bytes(8)) * 8)
IDAT, IEND, PLTE, TRNS = chunk(b"IDAT", ROWS), chunk(b"IEND"), chunk(b"PLTE", bytes(48)), chunk(b"tRNS", b"\0\xff")
ADAM7 = [(1, 1), (1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (8, 4)]  # width, height of the passes of 8 x 8 pixels
INTERLACED = png(
    ihdr(8, 8, 8, 0, 0, 0, 1),
    chunk(b"IDAT", zlib.compress(b"".join((b"\0" + bytes(range(width))) * height for width, height in ADAM7))),
    IEND,
)
JPEG = encode("JPEG")
JPEGS = {
    "baseline": JPEG,
    "progressive": encode("JPEG", progressive=True),
    "optimized": encode("JPEG", optimize=True, subsampling=0),
    "gray": encode("JPEG", "L"),
    "cmyk": encode("JPEG", "CMYK"),
    "rgb": encode("JPEG", keep_rgb=True),
    "extended": JPEG.replace(SOF, b"\xff\xc1"),
    "restart markers": encode("JPEG", restart_marker_blocks=1),
    "thumbnail in exif": encode(
        "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0" + encode("JPEG", "L"), comment=b"c"
    ),
    "arithmetic": ARITHMETIC,
    "arithmetic progressive": ARITHMETIC_PROGRESSIVE,
}
PNGS = {
    "gray": encode("PNG", "L"),
    "gray and alpha": encode("PNG", "LA"),
    "rgb": encode("PNG"),
    "rgba": encode("PNG", "RGBA"),
    "palette": encode("PNG", "P"),
    "palette with transparency": encode("PNG", "P", transparency=3),
    "16 bits": encode("PNG", "I;16"),
    "1 bit": encode("PNG", "1"),
    "interlaced": INTERLACED,
    "animated": encode("PNG", save_all=True, append_images=[PillowImage.new("RGB", SIZE)]),
}
WHOLE = {f"{kind} {name}": data for kind, group in (("jpeg", JPEGS), ("png", PNGS)) for name, data in group.items()}


def insert(data: bytes, position: int, extra: bytes) -> bytes:
    return data[:position] + extra + data[position:]


def overwrite(data: bytes, position: int, new: bytes) -> bytes:
    return data[:position] + new + data[position + len(new) :]


def without(data: bytes, first: bytes, until: bytes) -> bytes:
    return data[: data.index(first)] + data[data.index(until) :]


def with_right_crcs(data: bytes) -> bytes:
    """Corrects the CRCs of a damaged PNG, so that checks behind them are reached; returns other bytes unchanged."""
    fixed = bytearray(data)
    position = 8
    while data.startswith(png_structure.SIGNATURE) and position + 12 <= len(data):
        end = position + 8 + struct.unpack_from(">I", data, position)[0]
        if end + 4 > len(data):
            break
        struct.pack_into(">I", fixed, end, zlib.crc32(fixed[position + 4 : end]))
        position = end + 4
    return bytes(fixed)


def psd(width: int, height: int) -> bytes:
    """Encodes a flat gray ramp as a PSD of RGB without layers; Pillow cannot write these."""
    header = struct.pack(">4sH6xHIIHH", b"8BPS", 1, 3, height, width, 8, 3)
    ramp = bytes(column * 255 // width for column in range(width)) * height
    return header + bytes(12) + struct.pack(">H", 0) + ramp * 3


def rejection(data: bytes, check: str = "structure") -> checked_image.BadImageError:
    with pytest.raises(checked_image.BadImageError) as caught:
        structure.check_image(data, check)
    return caught.value


def assert_rejected(data: bytes, reason: Reason, match: str, check: str = "structure") -> None:
    error = rejection(data, check)
    assert error.reason is reason
    assert re.search(match, error.detail), error.detail
