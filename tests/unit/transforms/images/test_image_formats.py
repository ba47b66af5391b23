from __future__ import annotations

from imagebeam.transforms.images import image_formats, png_structure
from tests import encoded_images


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
