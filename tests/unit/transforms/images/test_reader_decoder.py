"""Decoding as the reader does, held against TensorFlow."""

from __future__ import annotations

import random
import struct
import sys
import zlib

import hypothesis
import pytest
from hypothesis import strategies

from imagebeam.transforms import elements
from imagebeam.transforms.images import checked_image, reader_decoder, structure
from tests import error_texts, image_sets
from tests.pictures import damage, encode, photo, without_segments

JPEG = encode(photo(70, 50))
PNG = image_sets.make_image(1, "PNG")


def with_chunk(png: bytes, kind: bytes, data: bytes) -> bytes:
    """Returns a PNG with one more chunk after its header."""
    chunk = struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return png[:33] + chunk + png[33:]


# By Pillow; TensorFlow and libjpeg take them.
REFUSED_BY_PILLOW = {
    "jpeg with a short JFIF header": b"\xff\xd8\xff\xe0\0\6JFIF" + without_segments(JPEG, 0xE0)[2:],
    "png with a short pHYs": with_chunk(PNG, b"pHYs", b""),
    "png with a short zTXt": with_chunk(PNG, b"zTXt", b"a\0\1"),
}


def refusal(decoder: reader_decoder.ImageDecoder, data: bytes) -> checked_image.BadImageError | None:
    try:
        decoder.check(data)
    except checked_image.BadImageError as e:
        return e
    return None


@pytest.fixture(params=["in C", "by TensorFlow"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> reader_decoder.ImageDecoder:
    pytest.importorskip("tensorflow")
    if request.param == "by TensorFlow":
        monkeypatch.setattr(reader_decoder, "_native", None)
    return reader_decoder.ImageDecoder()


def test_image_that_only_pillow_refuses_is_accepted(decoder: reader_decoder.ImageDecoder) -> None:
    for name in REFUSED_BY_PILLOW:
        with pytest.raises(checked_image.BadImageError, match="Pillow"):
            structure.check_image(REFUSED_BY_PILLOW[name], "decode")
        assert refusal(decoder, REFUSED_BY_PILLOW[name]) is None


@hypothesis.given(strategies.integers(0, 2**32 - 1))
@hypothesis.settings(
    max_examples=200, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_damaged_images_are_accepted_if_tensorflow_accepts_them(
    decoder: reader_decoder.ImageDecoder, seed: int
) -> None:
    tf = pytest.importorskip("tensorflow")
    rng = random.Random(seed)
    data = damage(
        rng.choice([JPEG, encode(photo(70, 50), progressive=True), encode(photo(70, 50).convert("CMYK"))]), rng
    )
    found = refusal(decoder, data)
    if found is not None and found.reason is not elements.Reason.UNDECODABLE:
        return  # by its structure; tests/unit/transforms holds that against TensorFlow
    try:
        tf.io.decode_image(data, channels=3)
    except tf.errors.InvalidArgumentError:
        assert found is not None
    else:
        assert found is None, found


def test_undecodable_image_names_the_decoder(decoder: reader_decoder.ImageDecoder) -> None:
    table = JPEG.index(b"\xff\xc4") + 5
    broken = JPEG[:table] + bytes([3, *[0] * 10, 9, *[0] * 4]) + JPEG[table + 16 :]  # three codes of one bit
    error = refusal(decoder, broken)
    assert error is not None and error.reason is elements.Reason.UNDECODABLE
    assert error.detail in (
        "libjpeg: Bogus Huffman table definition",
        "TensorFlow: jpeg::Uncompress failed. Invalid JPEG data or crop window.",
    )
    pixels = with_chunk(PNG[:33] + PNG[-12:], b"IDAT", bytes(30))
    error = refusal(decoder, pixels)
    assert error is not None and error.detail.startswith("TensorFlow: Invalid PNG data")


def test_pillow_decodes_if_there_is_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_decoder, "_native", None)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    decoder = reader_decoder.ImageDecoder()
    assert not reader_decoder.has_decoder_in_c()
    assert refusal(decoder, JPEG) is None
    error = refusal(decoder, REFUSED_BY_PILLOW["png with a short pHYs"])
    assert error is not None and error.detail == "Pillow: Truncated pHYs chunk"


def test_check_by_tensorflow_refuses_to_go_on_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    decoder = reader_decoder.ImageDecoder(pillow_may_decode=False)
    for use in (reader_decoder.require, lambda: decoder.check(PNG)):
        with error_texts.raises("package-missing"):
            use()
