from __future__ import annotations

import struct

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import image_formats, png_structure, structure
from tests import encoded_images
from tests.encoded_images import IDAT, IEND, PLTE, ROWS, TRNS, assert_rejected, chunk, ihdr, png


def test_check_image_of_palette_png_counts_alpha_where_libpng_does() -> None:
    for chunks, channels in [
        ((PLTE, TRNS, IDAT), 4),  # in its place
        ((TRNS, PLTE, IDAT), 3),  # before the palette
        ((PLTE, IDAT, TRNS), 3),  # after the pixels
        ((PLTE, chunk(b"tRNS"), IDAT), 3),  # empty
        ((PLTE, chunk(b"tRNS", bytes(17)), IDAT), 3),  # longer than the palette
    ]:
        image = structure.check_image(png(ihdr(8, 8, 8, 3), *chunks, IEND))
        assert (image.channels, image.colorspace) == (channels, "RGB" if channels == 3 else "RGBA")


def test_check_image_of_gray_png_with_transparent_gray_has_one_channel() -> None:
    assert structure.check_image(png(ihdr(8, 8), TRNS, IDAT, IEND)).channels == 1


PALETTE = ihdr(8, 8, 8, 3)
CORRUPT_PNGS = [
    (png(ihdr(8, 8), struct.pack(">I", 2**31) + IDAT[4:]), "^no chunk at byte 33: type b'IDAT', 2147483648 bytes$"),
    (png(ihdr(8, 8), bytes(50)), r"^no chunk at byte 33: type b'\\x00\\x00\\x00\\x00', 0"),  # chunk of zeros
    (png(ihdr(8, 8), IDAT[:-1] + b"?", IEND), f"^the chunk IDAT at byte 33, of {len(ROWS)} bytes, has a wrong CRC$"),
    (png(ihdr(8, 8), chunk(b"tEXt", b"a\0b")[:-1] + b"?", IDAT, IEND), "tEXt .* wrong CRC"),  # wrong crc of text
    (png(ihdr(8, 8), IDAT, IEND[:-1] + b"?"), "IEND .* wrong CRC"),  # wrong crc of IEND
    (png(IDAT, ihdr(8, 8), IEND), f"^the first chunk is IDAT of {len(ROWS)} bytes, expected IHDR of 13$"),
    (png(chunk(b"IHDR", bytes(14))), "^the first chunk is IHDR of 14 bytes"),  # header of 14 bytes
    (png(PALETTE, IDAT, IEND), r"^the chunk IDAT at byte 33 has no palette \(PLTE\) before it$"),  # no palette
    (
        png(PALETTE, chunk(b"PLTE", bytes(47)), IDAT, IEND),
        "^the palette at byte 33 is a second one or of a wrong length, 47 bytes$",
    ),
    (png(PALETTE, chunk(b"PLTE"), IDAT, IEND), "palette .* 0 bytes$"),  # palette of 0 bytes
    (png(PALETTE, chunk(b"PLTE", bytes(771)), IDAT, IEND), "palette .* 771 bytes$"),  # palette of 257 colors
    (png(PALETTE, PLTE, PLTE, IDAT, IEND), "palette at byte 93 is a second one"),  # second palette
    (
        png(ihdr(8, 8), chunk(b"IDAT", ROWS[:5]), chunk(b"tEXt", b"a\0b"), chunk(b"IDAT", ROWS[5:]), IEND),
        "^the chunk IDAT at byte 65 does not follow the other IDAT chunks$",
    ),
    (png(ihdr(8, 8), IEND), "^no pixels: there is no IDAT chunk$"),  # no pixels
    (png(ihdr(8, 8), ihdr(8, 8), IDAT, IEND), "^the chunk IHDR at byte 33 is critical and unknown, or a second one$"),
    (png(ihdr(8, 8), chunk(b"ABCD"), IDAT, IEND), "chunk ABCD at byte 33 is critical"),  # unknown critical chunk
    (png(ihdr(8, 8, 8, 5), IDAT, IEND), "^the chunk IHDR says color type 5 with 8 bits$"),  # color type 5
    (png(ihdr(8, 8, 4, 2), IDAT, IEND), "color type 2 with 4 bits$"),  # rgb of 4 bits
    (png(ihdr(8, 8, 16, 3), IDAT, IEND), "color type 3 with 16 bits$"),  # palette of 16 bits
    (png(ihdr(0, 8), IDAT, IEND), "^the chunk IHDR says 0 x 8 pixels$"),  # height 0
    (png(ihdr(8, 2**31), IDAT, IEND), "^the chunk IHDR says 8 x 2147483648 pixels$"),  # width 2**31
    (png(ihdr(8, 8, 8, 0, 0, 0, 2), IDAT, IEND), "^the chunk IHDR says compression 0, filter 0, interlace 2$"),
    (png(ihdr(8, 8, 8, 0, 1, 0, 0), IDAT, IEND), "says compression 1"),  # compression 1
    (png(ihdr(8, 8, 8, 0, 0, 1, 0), IDAT, IEND), "filter 1"),  # filter 1
]
BROKEN_PNGS = [
    *((data, Reason.CORRUPT, text) for data, text in CORRUPT_PNGS),
    (png(), Reason.TRUNCATED, "^no IEND chunk from byte 8 on, the file has 8 bytes: it was cut short, fetch"),
    (
        png(ihdr(8, 8), struct.pack(">I", 99) + IDAT[4:]),
        Reason.TRUNCATED,
        "^the chunk IDAT at byte 33 ends at byte 144, the file has",
    ),
    (png(ihdr(1, 1_000_001), IDAT, IEND), Reason.TOO_LARGE, "^1 x 1000001 pixels are more"),
    (png(ihdr(8192, 65_536), IDAT, IEND), Reason.TOO_LARGE, "^8192 x 65536 pixels"),  # pixels above tensorflow's limit
]


def test_check_image_of_broken_png_is_rejected() -> None:
    for case in BROKEN_PNGS:
        assert_rejected(*case)


# --- formats by their first bytes ------------------------------------------------------------------------------------


def test_sniff_format_of_what_pillow_writes() -> None:
    for image_format, expected in [
        ("GIF", "gif"),
        ("BMP", "bmp"),
        ("WEBP", "webp"),
        ("TIFF", "tiff"),
        ("ICO", "ico"),
        ("PPM", "ppm"),
        ("AVIF", "avif"),
    ]:
        data = encoded_images.encode(image_format)
        assert (
            image_formats.sniff_format(data)
            == image_formats.sniff_format(data[: image_formats.SNIFF_BYTES])
            == expected
        )


def test_sniff_format_of_first_bytes() -> None:
    for head, expected in [
        (b"\xff\xd8\xff\xe1", "jpeg"),
        (png_structure.SIGNATURE, "png"),
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
    ]:
        assert image_formats.sniff_format(head) == expected
