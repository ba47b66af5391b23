from __future__ import annotations

import struct

import pytest

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import structure
from tests.encoded_images import IDAT, IEND, PLTE, ROWS, TRNS, chunk, ihdr, png
from tests.image_rejections import assert_rejected


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
    assert structure.check_image(png(ihdr(8, 8), TRNS, IDAT, IEND)).channels == 1


PALETTE = ihdr(8, 8, 8, 3)
BROKEN_PNGS = {
    "no chunk": (
        png(),
        Reason.TRUNCATED,
        "^no IEND chunk from byte 8 on, the file has 8 bytes: it was cut short, fetch",
    ),
    "chunk past the end": (
        png(ihdr(8, 8), struct.pack(">I", 99) + IDAT[4:]),
        Reason.TRUNCATED,
        "^the chunk IDAT at byte 33 ends at byte 144, the file has",
    ),
    "chunk of 2 GiB": (
        png(ihdr(8, 8), struct.pack(">I", 2**31) + IDAT[4:]),
        Reason.CORRUPT,
        "^no chunk at byte 33: type b'IDAT', 2147483648 bytes$",
    ),
    "chunk of zeros": (
        png(ihdr(8, 8), bytes(50)),
        Reason.CORRUPT,
        r"^no chunk at byte 33: type b'\\x00\\x00\\x00\\x00', 0",
    ),
    "wrong crc of IDAT": (
        png(ihdr(8, 8), IDAT[:-1] + b"?", IEND),
        Reason.CORRUPT,
        f"^the chunk IDAT at byte 33, of {len(ROWS)} bytes, has a wrong CRC$",
    ),
    "wrong crc of text": (
        png(ihdr(8, 8), chunk(b"tEXt", b"a\0b")[:-1] + b"?", IDAT, IEND),
        Reason.CORRUPT,
        "tEXt .* wrong CRC",
    ),
    "wrong crc of IEND": (png(ihdr(8, 8), IDAT, IEND[:-1] + b"?"), Reason.CORRUPT, "IEND .* wrong CRC"),
    "another first chunk": (
        png(IDAT, ihdr(8, 8), IEND),
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
        png(ihdr(8, 8), chunk(b"IDAT", ROWS[:5]), chunk(b"tEXt", b"a\0b"), chunk(b"IDAT", ROWS[5:]), IEND),
        Reason.CORRUPT,
        "^the chunk IDAT at byte 65 does not follow the other IDAT chunks$",
    ),
    "no pixels": (png(ihdr(8, 8), IEND), Reason.CORRUPT, "^no pixels: there is no IDAT chunk$"),
    "second header": (
        png(ihdr(8, 8), ihdr(8, 8), IDAT, IEND),
        Reason.CORRUPT,
        "^the chunk IHDR at byte 33 is critical and unknown, or a second one$",
    ),
    "unknown critical chunk": (
        png(ihdr(8, 8), chunk(b"ABCD"), IDAT, IEND),
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
