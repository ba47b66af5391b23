"""Decoding as the reader does, held against TensorFlow."""

from __future__ import annotations

import io
import random
import struct
import sys
import zlib

import hypothesis
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from hypothesis import strategies

from imagebeam.transforms import elements
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, reader_decoder, structure
from imagebeam.transforms.images.pixels import Encoding
from imagebeam.transforms.images.prepare import ImagePolicy
from imagebeam.transforms.shard import image_hashes
from tests import encoded_images, error_texts, image_sets, pictures
from tests.image_sets import save
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
def test_damaged_images_are_accepted_as_tensorflow_does(decoder: reader_decoder.ImageDecoder, seed: int) -> None:
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


# --- WebP ------------------------------------------------------------------------------------------------------------


PHOTO = pictures.photo(48, 33)


def with_alpha(mode: str = "RGB") -> PIL.Image.Image:
    picture = PHOTO.convert(mode)
    picture.putalpha(PIL.Image.linear_gradient("L").resize(PHOTO.size))
    return picture


SOURCES = {
    "jpeg": save(PHOTO, "JPEG", quality=90),
    "gray jpeg": save(PHOTO.convert("L"), "JPEG"),
    "png": save(PHOTO, "PNG"),
    "png with alpha": save(with_alpha(), "PNG"),
    "gray png with alpha": save(with_alpha("L"), "PNG"),
    "palette gif": save(PHOTO.quantize(16), "GIF"),
    "lossy webp with alpha": save(with_alpha(), "WEBP", quality=80),
    "lossless webp": save(PHOTO, "WEBP", lossless=True),
}


def rgb(data: bytes) -> np.ndarray:
    return np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB"))


def test_webp_has_three_channels_that_tensorflow_and_pillow_read_alike() -> None:
    for how in ["lossy", "lossless", "source"]:
        for source in SOURCES:
            data = SOURCES[source]
            policy = ImagePolicy(
                encode="webp", encoding=Encoding(quality=90, webp=how), check="tensorflow", sum_pixels=True
            )
            image = policy.prepare(data)
            assert image[1:6] == ("webp", 33, 48, 3, "RGB")
            read = tf.io.decode_image(
                image.data, channels=3, expand_animations=False
            ).numpy()  # as the reader and TFDS do
            assert np.array_equal(read, rgb(image.data))
            is_lossless = how == "lossless" or (how == "source" and "jpeg" not in source and "lossy" not in source)
            assert np.array_equal(read, rgb(data)) == is_lossless
            assert (
                pictures.psnr(read, rgb(data)) > 25
            )  # this picture has hard colors, and a lossy WebP half of their resolution
            assert image.sums is not None and image.sums.totals == tuple(read.reshape(-1, 3).astype(int).sum(0))
            assert reader_decoder.check_webp(image.data)[1:6] == image[1:6]
            assert image_hashes.hash_image(image)


def test_header_of_a_webp_with_alpha_is_read() -> None:
    assert reader_decoder.check_webp(SOURCES["lossy webp with alpha"])[1:6] == ("webp", 33, 48, 4, "RGBA")
    assert reader_decoder.check_webp(save(with_alpha(), "WEBP", lossless=True)).colorspace == "RGBA"


WEBP, WEBP_L = save(PHOTO, "WEBP"), SOURCES["lossless webp"]
ANIMATED = save(PHOTO, "WEBP", save_all=True, append_images=[PIL.Image.new("RGB", PHOTO.size)])


def test_webp_that_is_no_whole_still_picture_never_reaches_tensorflow() -> None:
    for data, reason, match in [
        (WEBP[:-3], Reason.TRUNCATED, r"^the RIFF header says [\d,]+ bytes, the file has \d+ bytes"),  # cut
        (encoded_images.overwrite(WEBP, 16, b"\xff\xff"), Reason.TRUNCATED, r"^the chunk b'VP8 ' at byte 12 ends at"),
        (encoded_images.overwrite(WEBP, 23, b"\0"), Reason.CORRUPT, r"^the chunk b'VP8 ' at byte 12 begins with"),
        (encoded_images.overwrite(WEBP_L, 20, b"\0"), Reason.CORRUPT, r"^the chunk b'VP8L' at byte 12 begins with"),
        (b"RIFF\x04\0\0\0WEBP", Reason.CORRUPT, r"^no picture: there is no VP8 or VP8L chunk$"),  # empty
        (ANIMATED, Reason.UNSUPPORTED_FORMAT, r"^an animated WebP, on which TensorFlow 2.21 fails"),  # animated
    ]:
        with pytest.raises(checked_image.BadImageError) as e:
            reader_decoder.ImageDecoder().check(data)
        assert e.value.reason is reason
        assert e.match(match.replace("^", f"^{reason.value}: "))


def test_webp_whose_record_has_another_size_is_found() -> None:
    reader_decoder.ImageDecoder().check(WEBP, (33, 48))
    with pytest.raises(checked_image.BadImageError, match="33 x 48 pixels, its record says 48 x 33"):
        reader_decoder.ImageDecoder().check(WEBP, (48, 33))
