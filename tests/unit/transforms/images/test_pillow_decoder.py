from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, pillow_decoder, structure
from tests import error_texts
from tests.encoded_images import DHT, IDAT, IEND, JPEG, SIZE, assert_rejected, chunk, encode, ihdr, overwrite, png, psd


def test_decode_of_jpeg_that_libjpeg_refuses_is_undecodable() -> None:
    lengths = bytes([3, *[0] * 10, 9, *[0] * 4])  # of the 12 codes of a Huffman table: no three codes have one bit
    data = overwrite(JPEG, JPEG.index(DHT) + 5, lengths)
    assert structure.check_image(data).height == 17
    assert_rejected(data, Reason.UNDECODABLE, "^Pillow: broken data stream when reading image file$", "decode")


def test_decode_of_what_pillow_does_not_identify_names_no_address() -> None:
    data = png(ihdr(8, 8), chunk(b"zTXt", b"a\0\1"), chunk(b"pHYs", b""), IDAT, IEND)
    assert structure.check_image(data).height == 8
    assert_rejected(data, Reason.UNDECODABLE, "^Pillow: broken, or of a kind that it does not read$", "decode")


def test_decode_of_broken_tiff_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    for compression in ["tiff_adobe_deflate", "tiff_lzw", "jpeg"]:
        data = encode("TIFF", compression=compression)
        start = data.index(DHT) + 5 if compression == "jpeg" else 20  # in a Huffman table, or in the pixels
        with pytest.raises(checked_image.BadImageError, match=r"^undecodable: Pillow: "):
            pillow_decoder.decode_any(overwrite(data, start, b"\xff" * 16), "tiff")
        assert capfd.readouterr() == ("", "")
        assert any(isinstance(each, logging.NullHandler) for each in logging.getLogger("PIL").handlers)


def test_decode_of_decompression_bomb_is_too_large() -> None:
    data = png(ihdr(13_400, 13_400, 1), IDAT, IEND)
    assert_rejected(
        data, Reason.TOO_LARGE, r"^Pillow: Image size \(179560000 pixels\), it opens up to 178,956,970 pixels", "decode"
    )


def test_decode_of_another_size_than_the_header_says_is_undecodable() -> None:
    image = structure.check_image(JPEG)._replace(height=99)
    with pytest.raises(
        checked_image.BadImageError, match=r"undecodable: Pillow: 17 x 23 pixels, the header says 99 x 23$"
    ):
        pillow_decoder.decode(image)


def test_decode_without_pillow_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    pillow_decoder.pillow.cache_clear()
    with error_texts.raises("package-missing"):
        structure.check_image(JPEG, "decode")
    assert structure.check_image(JPEG).height == 17


def test_decode_where_pillow_warns_writes_nothing_to_the_terminal() -> None:
    data = png(ihdr(10_000, 10_000, 1), IDAT, IEND)  # large enough for a DecompressionBombWarning
    code = f"""
from imagebeam.transforms.images import checked_image, structure
try:
    structure.check_image({data!r}, "decode")
except checked_image.BadImageError as e:
    print(e.reason.value)
"""
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, check=False)
    assert (done.stdout.split(), done.stderr) == ([b"undecodable"], b"")


def test_decode_any_of_every_format_returns_its_pixels() -> None:
    for format in sorted(pillow_decoder.DECODED_FORMATS):
        name = pillow_decoder.DECODED_FORMATS[format]
        data = psd(*SIZE) if name == "PSD" else encode(name, **({"sizes": [SIZE]} if name == "ICO" else {}))
        picture = pillow_decoder.decode_any(data, format)
        assert (picture.format, picture.size) == (name, SIZE)
