from __future__ import annotations

import base64
import io
import pathlib
import pickle
import random
import re
import struct
import subprocess
import sys
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PillowImage

from imagebeam import errors
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import structure
from tests.pictures import without_segments

SIZE = (23, 17)  # width, height
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
SOF, SOS, DQT, DHT, APP0 = b"\xff\xc0", b"\xff\xda", b"\xff\xdb", b"\xff\xc4", b"\xff\xe0"
EOI = b"\xff\xd9"

# 16 x 16 pixels, GRAY, by `cjpeg -arithmetic` of libjpeg-turbo, which Pillow cannot write; the second is progressive.
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
    gradient = PillowImage.linear_gradient("L").resize(SIZE)
    picture = PillowImage.merge("RGB", [gradient, gradient.rotate(90), PillowImage.radial_gradient("L").resize(SIZE)])
    if mode == "P":
        picture = picture.quantize(16)
    elif mode in ("LA", "RGBA"):
        picture.putalpha(gradient)
        picture = picture.convert(mode)
    else:
        picture = picture.convert("L").convert(mode) if mode.startswith("I;16") else picture.convert(mode)
    file = io.BytesIO()
    picture.save(file, image_format, **options)
    return file.getvalue()


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def ihdr(height: int = 8, width: int = 8, depth: int = 8, color_type: int = 0, *rest: int) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color_type, *(rest or (0, 0, 0))))


def png(*chunks: bytes) -> bytes:
    return PNG_SIGNATURE + b"".join(chunks)


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
COLORS_OF_MODE = {
    "1": (1, "GRAY"),
    "L": (1, "GRAY"),
    "I;16": (1, "GRAY"),
    "LA": (2, "GRAY_ALPHA"),
    "RGB": (3, "RGB"),
    "RGBA": (4, "RGBA"),
    "CMYK": (4, "CMYK"),
}


def insert(data: bytes, position: int, extra: bytes) -> bytes:
    return data[:position] + extra + data[position:]


def overwrite(data: bytes, position: int, new: bytes) -> bytes:
    return data[:position] + new + data[position + len(new) :]


def without(data: bytes, first: bytes, until: bytes) -> bytes:
    return data[: data.index(first)] + data[data.index(until) :]


def rejection(data: bytes, check: str = "structure") -> structure.BadImageError:
    with pytest.raises(structure.BadImageError) as caught:
        structure.check_image(data, check)
    return caught.value


def assert_rejected(data: bytes, reason: Reason, match: str, check: str = "structure") -> None:
    error = rejection(data, check)
    assert error.reason is reason
    assert re.search(match, error.detail), error.detail


# ---- whole images


@pytest.mark.parametrize("check", ["structure", "decode"])
@pytest.mark.parametrize("name", WHOLE)
def test_check_image_of_whole_image_says_what_pillow_says(name: str, check: str) -> None:
    data = WHOLE[name]
    with PillowImage.open(io.BytesIO(data)) as picture:
        mode = picture.mode
        if mode == "P":
            mode = "RGBA" if "transparency" in picture.info else "RGB"
        width, height = picture.size
        expected = structure.Image(data, name.split()[0], height, width, *COLORS_OF_MODE[mode])
    assert structure.check_image(data, check) == expected
    assert structure.check_image(data, check).data is data


@pytest.mark.slow
def test_check_image_of_whole_image_says_what_tensorflow_says() -> None:
    tf = pytest.importorskip("tensorflow")
    for name, data in WHOLE.items():
        image = structure.check_image(data)
        channels = 3 if image.colorspace == "CMYK" else image.channels  # which TensorFlow converts to RGB
        assert tf.io.decode_image(data, expand_animations=False).shape == (image.height, image.width, channels), name


JPEG_MIDDLE = (JPEG.index(SOS) + len(JPEG)) // 2
TOLERATED = {
    "bytes after the end": JPEG + b"trailer of a camera" + JPEG,
    "fill bytes before a segment": insert(JPEG, JPEG.index(DQT), b"\xff\xff\xff"),
    "fill bytes before the end": insert(JPEG, len(JPEG) - 2, b"\xff\xff"),
    "fill bytes between scans": JPEGS["progressive"].replace(DHT, b"\xff" + DHT),
    "bytes after metadata": insert(JPEG, JPEG.index(DQT), b"\0\0\xff\0stray"),
    "comment that states no length": insert(JPEG, JPEG.index(SOF), b"\xff\xfe\0\0"),
    "comment after the scan": insert(JPEG, len(JPEG) - 2, b"\xff\xfe\0\4hi"),
    "bytes before the end": insert(JPEG, len(JPEG) - 2, b"stray"),
    "restart marker before the end": insert(JPEG, len(JPEG) - 2, b"\xff\xd0"),
    "number of lines after the scan": insert(JPEG, len(JPEG) - 2, b"\xff\xdc\0\4\0\x11"),
    "no huffman tables": without(JPEG, DHT, SOS),
    "png, bytes after IEND": PNGS["rgb"] + b"trailer",
    "png, IDAT in pieces, one of them empty": png(
        ihdr(), chunk(b"IDAT"), chunk(b"IDAT", ROWS[:5]), chunk(b"IDAT", ROWS[5:]), IEND
    ),
    "png, unknown ancillary chunks": png(ihdr(), chunk(b"abCd", b"x"), IDAT, chunk(b"abcd"), IEND),
    "png, suggested palette": png(ihdr(), PLTE, IDAT, IEND),
}


@pytest.mark.parametrize("name", TOLERATED)
def test_check_image_of_what_decoders_tolerate_returns_image(name: str) -> None:
    image = structure.check_image(TOLERATED[name], "decode")
    assert (image.height, image.width) == ((8, 8) if b"IHDR\0\0\0\x08" in image.data else (17, 23))


def test_check_image_of_multi_picture_jpeg_returns_the_first_picture() -> None:
    data = encode("MPO", save_all=True, append_images=[PillowImage.new("RGB", (5, 5))])
    assert structure.check_image(data, "decode") == structure.Image(data, "jpeg", 17, 23, 3, "RGB")


@pytest.mark.parametrize(
    ("chunks", "channels"),
    [
        ((PLTE, TRNS, IDAT), 4),
        ((TRNS, PLTE, IDAT), 3),
        ((PLTE, IDAT, TRNS), 3),
        ((PLTE, chunk(b"tRNS"), IDAT), 3),
        ((PLTE, chunk(b"tRNS", bytes(17)), IDAT), 3),
    ],
    ids=["in its place", "before the palette", "after the pixels", "empty", "longer than the palette"],
)
def test_check_image_of_palette_png_counts_alpha_where_libpng_does(chunks: tuple[bytes, ...], channels: int) -> None:
    image = structure.check_image(png(ihdr(8, 8, 8, 3), *chunks, IEND))
    assert (image.channels, image.colorspace) == (channels, "RGB" if channels == 3 else "RGBA")


def test_check_image_of_gray_png_with_transparent_gray_has_one_channel() -> None:
    assert structure.check_image(png(ihdr(), TRNS, IDAT, IEND)).channels == 1


# ---- broken images


@pytest.mark.parametrize("name", WHOLE)
def test_check_image_of_every_truncation_is_rejected(name: str) -> None:
    data = WHOLE[name]
    reasons = [rejection(data[:size]).reason for size in range(len(data))]
    num_sniffed = 3 if name.startswith("jpeg") else 8
    assert reasons[0] is Reason.EMPTY_FILE
    assert set(reasons[1:num_sniffed]) == {Reason.NOT_AN_IMAGE}
    assert set(reasons[num_sniffed:]) == {Reason.TRUNCATED}


@pytest.mark.parametrize("name", WHOLE)
def test_check_image_of_truncation_padded_with_zeros_is_rejected(name: str) -> None:
    data = WHOLE[name]
    last = len(data) - 2 if name.startswith("jpeg") else len(data) - 4
    for size in range(last):
        assert rejection(data[:size] + bytes(4096)).reason in (Reason.NOT_AN_IMAGE, Reason.TRUNCATED, Reason.CORRUPT)
    if name.startswith("jpeg"):
        assert_rejected(data[:last] + bytes(4096), Reason.TRUNCATED, "no end-of-image marker from byte")


BROKEN_JPEGS = {
    "metadata past the end": (
        overwrite(JPEG, 4, b"\xff\xf0"),
        Reason.TRUNCATED,
        rf"^the segment FF E0 at byte 2 ends at byte 65524, the file has {len(JPEG)} bytes: it was cut short, fetch it",
    ),
    "bytes after a table": (
        insert(JPEG, JPEG.index(SOF), b"stray"),
        Reason.CORRUPT,
        rf"^5 stray bytes at byte {JPEG.index(SOF)}, after the segment at byte \d+$",
    ),
    "no scan": (
        JPEG[: JPEG.index(SOS)] + EOI,
        Reason.CORRUPT,
        rf"^the end-of-image marker at byte {JPEG.index(SOS)} comes before any scan$",
    ),
    "no segment": (b"\xff\xd8" + EOI, Reason.CORRUPT, "comes before any scan"),
    "marker of no segment": (insert(JPEG, 2, b"\xff\x01"), Reason.CORRUPT, "^illegal marker FF 01 at byte 2$"),
    "second start": (insert(JPEG, 20, b"\xff\xd8"), Reason.CORRUPT, "^illegal marker FF D8 at byte 20$"),
    "scan overwritten": (
        overwrite(JPEG, JPEG_MIDDLE, b"\xff\x05"),
        Reason.CORRUPT,
        f"^illegal marker FF 05 at byte {JPEG_MIDDLE}$",
    ),
    "scan overwritten with a frame": (
        overwrite(JPEG, JPEG_MIDDLE, b"\xff\xc3"),
        Reason.CORRUPT,
        "illegal marker FF C3",
    ),
    "scan overwritten with a comment": (
        overwrite(JPEG, JPEG_MIDDLE, b"\xff\xfe\0\4ab"),
        Reason.CORRUPT,
        rf"stray bytes at byte {JPEG_MIDDLE + 6}, after the segment at byte {JPEG_MIDDLE}$",
    ),
    "scan overwritten with long metadata": (
        overwrite(JPEG, JPEG_MIDDLE, b"\xff\xe5\xff\xf0"),
        Reason.CORRUPT,
        rf"^the segment FF E5 at byte {JPEG_MIDDLE}, of 65520 bytes, spans the end of image$",
    ),
    "no frame": (without(JPEG, SOF, DHT), Reason.CORRUPT, r"^the scan at byte \d+ has no frame header$"),
    "no quantization": (
        without(JPEG, DQT, SOF),
        Reason.CORRUPT,
        r"^the scan at byte \d+ needs quantization table 0, which no segment before it holds$",
    ),
    "quantization table that is not there": (
        overwrite(JPEG, JPEG.index(SOF) + 12, b"\3"),
        Reason.CORRUPT,
        rf"^the scan at byte {JPEG.index(SOS)} needs quantization table 3, which no segment before it holds$",
    ),
    "progressive without huffman tables": (
        without_segments(JPEGS["progressive"], 0xC4),
        Reason.CORRUPT,
        r"^the scan at byte \d+ needs Huffman table 0 for DC, which no segment before it holds$",
    ),
    "huffman table that is not there": (
        overwrite(JPEG, JPEG.index(SOS) + 6, b"\2"),
        Reason.CORRUPT,
        rf"^the scan at byte {JPEG.index(SOS)} needs Huffman table 2 for AC, which no segment before it holds$",
    ),
    "component that is not there": (
        overwrite(JPEG, JPEG.index(SOS) + 7, b"\x55"),
        Reason.CORRUPT,
        rf"^the scan at byte {JPEG.index(SOS)} needs component 85, which is not in the frame header$",
    ),
    "component twice": (
        overwrite(JPEG, JPEG.index(SOS) + 7, b"\1"),
        Reason.CORRUPT,
        rf"^the scan at byte {JPEG.index(SOS)} needs component 1, which it has already$",
    ),
    "scan of no components": (
        overwrite(JPEG, JPEG.index(SOS) + 4, b"\0"),
        Reason.CORRUPT,
        rf"^the scan header at byte {JPEG.index(SOS)} has a wrong length, 12 bytes$",
    ),
    "scan header of no bytes": (
        JPEG[: JPEG.index(SOS)] + b"\xff\xda\0\2",
        Reason.CORRUPT,
        "^the scan header at byte .* 2 bytes$",
    ),
    "second frame": (
        insert(JPEG, JPEG.index(SOF), b"\xff\xc0\0\x0b\x08\0\1\0\1\1\1\x11\0"),
        Reason.CORRUPT,
        "second frame",
    ),
    "huffman table too long": (
        overwrite(JPEG, JPEG.index(DHT) + 5, b"\xff"),
        Reason.CORRUPT,
        rf"^the tables FF C4 at byte {JPEG.index(DHT)} do not fill their \d+ bytes$",
    ),
    "huffman table 4": (overwrite(JPEG, JPEG.index(DHT) + 4, b"\4"), Reason.CORRUPT, "tables FF C4"),
    "quantization table of 16 bits": (overwrite(JPEG, JPEG.index(DQT) + 4, b"\x10"), Reason.CORRUPT, "tables FF DB"),
    "frame header of 3 bytes": (
        overwrite(JPEG, JPEG.index(SOF) + 2, b"\0\3"),
        Reason.CORRUPT,
        rf"^the frame header at byte {JPEG.index(SOF)} has a wrong length, 3 bytes$",
    ),
    "frame of 4 components": (overwrite(JPEG, JPEG.index(SOF) + 9, b"\4"), Reason.CORRUPT, "frame header .* 17 bytes"),
    "height 0": (overwrite(JPEG, JPEG.index(SOF) + 5, b"\0\0"), Reason.CORRUPT, r"frame header .* says 0 x 23 pixels$"),
    "width 0": (overwrite(JPEG, JPEG.index(SOF) + 7, b"\0\0"), Reason.CORRUPT, r"frame header .* says 17 x 0 pixels$"),
    "lossless": (
        JPEG.replace(SOF, b"\xff\xc3"),
        Reason.UNSUPPORTED_FORMAT,
        rf"^lossless or hierarchical jpeg \(marker FF C3 at byte {JPEG.index(SOF)}\): convert it first$",
    ),
    "jpeg-ls": (JPEG.replace(SOF, b"\xff\xf7"), Reason.UNSUPPORTED_FORMAT, "^lossless .* FF F7"),
    "12 bits": (
        overwrite(JPEG, JPEG.index(SOF) + 4, b"\x0c"),
        Reason.UNSUPPORTED_FORMAT,
        "^jpeg of 3 components of 12 bits, expected 1, 3 or 4 of 8 bits: convert it first$",
    ),
    "2 components": (
        insert(JPEG, JPEG.index(SOF), b"\xff\xc0\0\x0e\x08\0\x11\0\x17\2\1\x11\0\2\x11\0"),
        Reason.UNSUPPORTED_FORMAT,
        "^jpeg of 2 components",
    ),
    "side above libjpeg's limit": (
        overwrite(JPEG, JPEG.index(SOF) + 5, struct.pack(">H", 65_501)),
        Reason.TOO_LARGE,
        "^65501 x 23 pixels are more than decoders take: scale it down$",
    ),
    "values above tensorflow's limit": (
        overwrite(JPEG, JPEG.index(SOF) + 5, struct.pack(">HH", 8192, 21846)),
        Reason.TOO_LARGE,
        "^8192 x 21846 pixels",
    ),
}


@pytest.mark.parametrize("name", BROKEN_JPEGS)
def test_check_image_of_broken_jpeg_is_rejected(name: str) -> None:
    assert_rejected(*BROKEN_JPEGS[name])


@pytest.mark.parametrize("name", ["baseline", "optimized", "gray", "cmyk", "rgb", "extended", "restart markers"])
def test_check_image_of_jpeg_without_huffman_tables_takes_it_as_tensorflow_does(name: str) -> None:
    tf = pytest.importorskip("tensorflow")
    frame = without_segments(JPEGS[name], 0xC4)  # a frame of Motion JPEG, but for one that has tables of its own
    assert structure.check_image(frame, "decode").height == 17
    assert tf.io.decode_jpeg(frame).shape[:2] == (17, 23)
    if name != "optimized":
        assert (tf.io.decode_jpeg(frame).numpy() == tf.io.decode_jpeg(JPEGS[name]).numpy()).all()


def test_check_image_of_scan_overwritten_by_random_bytes_is_corrupt() -> None:
    generator = random.Random(0)
    file = io.BytesIO()
    PillowImage.frombytes("L", (200, 200), generator.randbytes(40_000)).save(file, "JPEG")
    data = file.getvalue()
    num_missed = 0
    for _ in range(200):
        position = generator.randrange(data.index(SOS) + 10, len(data) - 4098)
        damaged = overwrite(data, position, generator.randbytes(4096))
        try:
            structure.check_image(damaged)
            num_missed += 1
        except structure.BadImageError as e:
            assert any(position <= int(byte) < position + 4096 for byte in re.findall(r"byte (\d+)", e.detail)), (
                e.detail
            )
    assert num_missed <= 4  # one in 246, where the first marker that chance forms is the end of the image


PALETTE = ihdr(8, 8, 8, 3)
BROKEN_PNGS = {
    "no chunk": (
        png(),
        Reason.TRUNCATED,
        "^no IEND chunk from byte 8 on, the file has 8 bytes: it was cut short, fetch",
    ),
    "chunk past the end": (
        png(ihdr(), struct.pack(">I", 99) + IDAT[4:]),
        Reason.TRUNCATED,
        "^the chunk IDAT at byte 33 ends at byte 144, the file has",
    ),
    "chunk of 2 GiB": (
        png(ihdr(), struct.pack(">I", 2**31) + IDAT[4:]),
        Reason.CORRUPT,
        "^no chunk at byte 33: type b'IDAT', 2147483648 bytes$",
    ),
    "chunk of zeros": (
        png(ihdr(), bytes(50)),
        Reason.CORRUPT,
        r"^no chunk at byte 33: type b'\\x00\\x00\\x00\\x00', 0",
    ),
    "wrong crc of IDAT": (
        png(ihdr(), IDAT[:-1] + b"?", IEND),
        Reason.CORRUPT,
        f"^the chunk IDAT at byte 33, of {len(ROWS)} bytes, has a wrong CRC$",
    ),
    "wrong crc of text": (
        png(ihdr(), chunk(b"tEXt", b"a\0b")[:-1] + b"?", IDAT, IEND),
        Reason.CORRUPT,
        "tEXt .* wrong CRC",
    ),
    "wrong crc of IEND": (png(ihdr(), IDAT, IEND[:-1] + b"?"), Reason.CORRUPT, "IEND .* wrong CRC"),
    "another first chunk": (
        png(IDAT, ihdr(), IEND),
        Reason.CORRUPT,
        f"^the first chunk is IDAT of {len(ROWS)} bytes, expected IHDR of 13$",
    ),
    "header of 14 bytes": (png(chunk(b"IHDR", bytes(14))), Reason.CORRUPT, "^the first chunk is IHDR of 14 bytes"),
    "no palette": (
        png(PALETTE, IDAT, IEND),
        Reason.CORRUPT,
        r"^the chunk IDAT at byte 33 has no palette \(PLTE\) before it$",
    ),
    "palette of 47 bytes": (
        png(PALETTE, chunk(b"PLTE", bytes(47)), IDAT, IEND),
        Reason.CORRUPT,
        "^the palette at byte 33 is a second one or of a wrong length, 47 bytes$",
    ),
    "palette of 0 bytes": (png(PALETTE, chunk(b"PLTE"), IDAT, IEND), Reason.CORRUPT, "palette .* 0 bytes$"),
    "palette of 257 colors": (
        png(PALETTE, chunk(b"PLTE", bytes(771)), IDAT, IEND),
        Reason.CORRUPT,
        "palette .* 771 bytes$",
    ),
    "second palette": (png(PALETTE, PLTE, PLTE, IDAT, IEND), Reason.CORRUPT, "palette at byte 93 is a second one"),
    "pixels in two places": (
        png(ihdr(), chunk(b"IDAT", ROWS[:5]), chunk(b"tEXt", b"a\0b"), chunk(b"IDAT", ROWS[5:]), IEND),
        Reason.CORRUPT,
        "^the chunk IDAT at byte 65 does not follow the other IDAT chunks$",
    ),
    "no pixels": (png(ihdr(), IEND), Reason.CORRUPT, "^no pixels: there is no IDAT chunk$"),
    "second header": (
        png(ihdr(), ihdr(), IDAT, IEND),
        Reason.CORRUPT,
        "^the chunk IHDR at byte 33 is critical and unknown, or a second one$",
    ),
    "unknown critical chunk": (
        png(ihdr(), chunk(b"ABCD"), IDAT, IEND),
        Reason.CORRUPT,
        "chunk ABCD at byte 33 is critical",
    ),
    "color type 5": (
        png(ihdr(8, 8, 8, 5), IDAT, IEND),
        Reason.CORRUPT,
        "^the chunk IHDR says color type 5 with 8 bits$",
    ),
    "rgb of 4 bits": (png(ihdr(8, 8, 4, 2), IDAT, IEND), Reason.CORRUPT, "color type 2 with 4 bits$"),
    "palette of 16 bits": (png(ihdr(8, 8, 16, 3), IDAT, IEND), Reason.CORRUPT, "color type 3 with 16 bits$"),
    "height 0": (png(ihdr(0, 8), IDAT, IEND), Reason.CORRUPT, "^the chunk IHDR says 0 x 8 pixels$"),
    "width 2**31": (png(ihdr(8, 2**31), IDAT, IEND), Reason.CORRUPT, "^the chunk IHDR says 8 x 2147483648 pixels$"),
    "interlace 2": (
        png(ihdr(8, 8, 8, 0, 0, 0, 2), IDAT, IEND),
        Reason.CORRUPT,
        "^the chunk IHDR says compression 0, filter 0, interlace 2$",
    ),
    "compression 1": (png(ihdr(8, 8, 8, 0, 1, 0, 0), IDAT, IEND), Reason.CORRUPT, "says compression 1"),
    "filter 1": (png(ihdr(8, 8, 8, 0, 0, 1, 0), IDAT, IEND), Reason.CORRUPT, "filter 1"),
    "side above libpng's limit": (
        png(ihdr(1, 1_000_001), IDAT, IEND),
        Reason.TOO_LARGE,
        "^1 x 1000001 pixels are more",
    ),
    "pixels above tensorflow's limit": (png(ihdr(8192, 65_536), IDAT, IEND), Reason.TOO_LARGE, "^8192 x 65536 pixels"),
}


@pytest.mark.parametrize("name", BROKEN_PNGS)
def test_check_image_of_broken_png_is_rejected(name: str) -> None:
    assert_rejected(*BROKEN_PNGS[name])


def test_check_image_of_nothing_is_empty_file() -> None:
    assert_rejected(b"", Reason.EMPTY_FILE, "^0 bytes$")


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"<!DOCTYPE HTML><p>404", "HTML, perhaps a download's error page"),
        (b"\xef\xbb\xbf\n <html lang=en>", "HTML, perhaps a download's error page"),
        (b"<?xml version='1.0'?><svg/>", "XML"),
        (b' {"error": 403}', "JSON"),
        (b"[]", "JSON"),
        (b"version https://git-lfs.github.com/spec/v1\n", "text"),
        (bytes(100), "no known image format"),
        (b"\r\n", "no known image format"),
        (b"\x93NUMPY\1\0v\0{'descr': ", "no known image format"),
    ],
)
def test_check_image_of_no_image_says_what_it_looks_like(data: bytes, found: str) -> None:
    assert_rejected(
        data, Reason.NOT_AN_IMAGE, "^" + re.escape(f"{found}: the first of {len(data)} bytes are {data[:16]!r}") + "$"
    )


def test_check_image_of_another_format_is_unsupported() -> None:
    assert_rejected(
        encode("GIF"),
        Reason.UNSUPPORTED_FORMAT,
        r"^gif \(first bytes b'GIF87a\\x17.*'\), expected jpeg or png: set image\.encode, or convert it first$",
    )


def test_check_image_of_more_bytes_than_an_example_holds_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    assert structure.MAX_IMAGE_BYTES == 2**31 - 2**20
    monkeypatch.setattr(structure, "MAX_IMAGE_BYTES", len(JPEG))
    assert structure.check_image(JPEG).data is JPEG
    expected = f"^{len(JPEG) + 1} bytes, a tf.train.Example takes up to {len(JPEG)}$"
    assert_rejected(JPEG + b"x", Reason.TOO_LARGE, expected)


def test_check_image_with_unknown_check_raises_value_error() -> None:
    with pytest.raises(ValueError, match=r"^image\.check is 'full', expected 'structure' or 'decode'$"):
        structure.check_image(JPEG, "full")


def test_bad_image_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(structure.BadImageError(Reason.CORRUPT, "why")))
    assert (error.reason, error.detail, str(error)) == (Reason.CORRUPT, "why", "corrupt: why")


# ---- formats


@pytest.mark.parametrize(
    ("image_format", "expected"),
    [
        ("GIF", "gif"),
        ("BMP", "bmp"),
        ("WEBP", "webp"),
        ("TIFF", "tiff"),
        ("ICO", "ico"),
        ("PPM", "ppm"),
        ("AVIF", "avif"),
    ],
)
def test_sniff_format_of_what_pillow_writes(image_format: str, expected: str) -> None:
    data = encode(image_format)
    assert structure.sniff_format(data) == structure.sniff_format(data[: structure.SNIFF_BYTES]) == expected


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"\xff\xd8\xff\xe1", "jpeg"),
        (PNG_SIGNATURE, "png"),
        (b"MM\0*", "tiff"),
        (b"II+\0", "tiff"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "heic"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic", "heic"),
        (b"\0\0\0\x20ftypmif1\0\0\0\0mif1miafMA1Bavif", "avif"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "jp2"),
        (b"\xff\x4f\xff\x51", "jp2"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "jxl"),
        (b"\xff\x0a\xfa", "jxl"),
        (b"P5\n# made by", "ppm"),
        (b"P7\nWIDTH 3", "ppm"),
        (b"8BPS\0\1", "psd"),
        (b"v/1\x01", "exr"),
        (b"#?RADIANCE\n", "hdr"),
        (b'<svg xmlns="', "svg"),
        (b"", None),
        (b"\xff\xd8", None),
        (b"BMW and other cars, a list", None),
        (b"P1 is the first", None),
        (b"RIFF\x24\0\0\0WAVEfmt ", None),
        (b"\0\0\0\x18ftypisom\0\0\2\0isommp42", None),
        (b"\0\0\2\0\0\0\0\0", None),
        (b"x" * 31 + b"\xff\xd8\xff", None),
    ],
)
def test_sniff_format_of_first_bytes(head: bytes, expected: str | None) -> None:
    assert structure.sniff_format(head) == expected


# ---- decode


def test_decode_of_pixels_that_do_not_inflate_is_undecodable() -> None:
    data = png(ihdr(), chunk(b"IDAT", ROWS[:-6]), IEND)
    assert structure.check_image(data).height == 8
    assert_rejected(data, Reason.UNDECODABLE, r"^Pillow: image file is truncated \(0 bytes not processed\)$", "decode")


def test_decode_of_jpeg_that_libjpeg_refuses_is_undecodable() -> None:
    lengths = bytes([3, *[0] * 10, 9, *[0] * 4])  # of the 12 codes of a Huffman table: no three codes have one bit
    data = overwrite(JPEG, JPEG.index(DHT) + 5, lengths)
    assert structure.check_image(data).height == 17
    assert_rejected(data, Reason.UNDECODABLE, "^Pillow: broken data stream when reading image file$", "decode")


def test_decode_of_what_pillow_does_not_identify_names_no_address() -> None:
    data = png(ihdr(), chunk(b"zTXt", b"a\0\1"), chunk(b"pHYs", b""), IDAT, IEND)
    assert structure.check_image(data).height == 8
    assert_rejected(data, Reason.UNDECODABLE, "^Pillow: cannot identify the image$", "decode")


def test_decode_of_decompression_bomb_is_undecodable() -> None:
    data = png(ihdr(13_400, 13_400, 1), IDAT, IEND)
    assert_rejected(data, Reason.UNDECODABLE, r"^Pillow: Image size \(179560000 pixels\) exceeds limit", "decode")


def test_decode_of_another_size_than_the_header_says_is_undecodable() -> None:
    image = structure.check_image(JPEG)._replace(height=99)
    with pytest.raises(structure.BadImageError, match=r"undecodable: Pillow: 17 x 23 pixels, the header says 99 x 23$"):
        structure.decode(image)


def test_decode_without_pillow_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    structure.pillow.cache_clear()
    expected = (
        r"^image\.check: decode, image\.encode, statistics\.pixels and masks with a palette need Pillow: "
        r"pip install 'imagebeam\[convert\]', or leave them out$"
    )
    with pytest.raises(errors.ConfigError, match=expected):
        structure.check_image(JPEG, "decode")
    assert structure.check_image(JPEG).height == 17


def run_python(code: str, *options: str) -> subprocess.CompletedProcess[bytes]:
    root = pathlib.Path(structure.__file__).parents[2]
    return subprocess.run([sys.executable, *options, "-c", code], cwd=root, capture_output=True, check=False)


def test_decode_where_pillow_warns_writes_nothing_to_the_terminal() -> None:
    data = png(ihdr(10_000, 10_000, 1), IDAT, IEND)  # large enough for a DecompressionBombWarning
    code = f"""
from tests.pictures import without_segments
from imagebeam.transforms.images import structure
try:
    structure.check_image({data!r}, "decode")
except structure.BadImageError as e:
    print(e.reason.value)
"""
    done = run_python(code, "-W", "always")
    assert (done.stdout.split(), done.stderr) == ([b"undecodable"], b"")


def test_importing_images_imports_no_beam_pillow_or_numpy() -> None:
    heavy = {"apache_beam", "PIL", "numpy", "tensorflow"}
    code = f"import sys, imagebeam.transforms.images.structure; print({heavy} & set(sys.modules))"
    assert run_python(code).stdout.split() == [b"set()"]


# ---- any bytes


@st.composite
def mutated_images(draw: st.DrawFn) -> bytes:
    data = draw(st.sampled_from(sorted(WHOLE.values())))
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["truncate", "flip", "overwrite", "insert", "delete", "splice"]))
        if kind == "truncate":
            data = data[:position]
        elif kind == "flip" and position < len(data):
            data = overwrite(data, position, bytes([data[position] ^ 1 << draw(st.integers(0, 7))]))
        elif kind == "overwrite":
            data = overwrite(data, position, draw(st.binary(max_size=20)))
        elif kind == "insert":
            data = insert(data, position, draw(st.binary(max_size=20)))
        elif kind == "delete":
            data = data[:position] + data[position + draw(st.integers(1, 100)) :]
        elif kind == "splice":
            other = draw(st.sampled_from(sorted(WHOLE.values())))
            data = data[:position] + other[draw(st.integers(0, len(other))) :]
    return data


def with_right_crcs(data: bytes) -> bytes:
    """A PNG whose mutations are not found out by the CRC alone; other bytes as they are."""
    fixed = bytearray(data)
    position = 8
    while data.startswith(PNG_SIGNATURE) and position + 12 <= len(data):
        end = position + 8 + struct.unpack_from(">I", data, position)[0]
        if end + 4 > len(data):
            break
        struct.pack_into(">I", fixed, end, zlib.crc32(fixed[position + 4 : end]))
        position = end + 4
    return bytes(fixed)


def assert_image_or_bad_image_error(data: bytes, check: str) -> None:
    try:
        image = structure.check_image(data, check)
    except structure.BadImageError as e:
        assert isinstance(e.reason, Reason)
        assert e.detail
    else:
        assert image.data is data
        assert image.height > 0
        assert image.width > 0
        assert image.format == structure.sniff_format(data)


HEADS = st.sampled_from([b"", b"\xff\xd8\xff", JPEG[: JPEG.index(SOS) + 14], PNG_SIGNATURE, png(ihdr())])


@settings(max_examples=300, deadline=None)
@given(st.builds(bytes.__add__, HEADS, st.binary(max_size=300)))
def test_check_image_of_any_bytes_raises_nothing_else(data: bytes) -> None:
    assert_image_or_bad_image_error(data, "structure")


@settings(max_examples=500, deadline=None)
@given(mutated_images(), st.booleans(), st.sampled_from(["structure", "decode"]))
def test_check_image_of_mutated_image_raises_nothing_else(data: bytes, fix_crcs: bool, check: str) -> None:
    assert_image_or_bad_image_error(with_right_crcs(data) if fix_crcs else data, check)
