"""WebP that is written: its pixels, and what TensorFlow and Pillow read of it."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, reader_decoder
from imagebeam.transforms.images.pixels import Encoding
from imagebeam.transforms.images.prepare import ImagePolicy
from imagebeam.transforms.shard import image_hashes
from tests import encoded_images, pictures
from tests.mask_forms import save

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


def test_image_of_a_longer_side_than_webp_has_is_rejected() -> None:
    data = save(PIL.Image.new("RGB", (16_384, 1)), "PNG")
    with pytest.raises(checked_image.BadImageError, match=r"^too_large: 1 x 16384 pixels are more than decoders take"):
        ImagePolicy(encode="webp").prepare(data)


def test_header_of_a_webp_with_alpha_is_read() -> None:
    assert reader_decoder.check_webp(SOURCES["lossy webp with alpha"])[1:6] == ("webp", 33, 48, 4, "RGBA")
    assert reader_decoder.check_webp(save(with_alpha(), "WEBP", lossless=True)).colorspace == "RGBA"


LOSSY, LOSSLESS = save(PHOTO, "WEBP"), SOURCES["lossless webp"]
ANIMATED = save(PHOTO, "WEBP", save_all=True, append_images=[PIL.Image.new("RGB", PHOTO.size)])


def test_webp_that_is_no_whole_still_picture_never_reaches_tensorflow() -> None:
    for data, reason, match in [
        (LOSSY[:-3], Reason.TRUNCATED, r"^the RIFF header says [\d,]+ bytes, the file has \d+ bytes"),  # cut
        (
            encoded_images.overwrite(LOSSY, 16, b"\xff\xff"),
            Reason.TRUNCATED,
            r"^the chunk b'VP8 ' at byte 12 ends at",
        ),  # long-chunk
        (
            encoded_images.overwrite(LOSSY, 23, b"\0"),
            Reason.CORRUPT,
            r"^the chunk b'VP8 ' at byte 12 begins with",
        ),  # lossy
        (
            encoded_images.overwrite(LOSSLESS, 20, b"\0"),
            Reason.CORRUPT,
            r"^the chunk b'VP8L' at byte 12 begins with",
        ),  # lossless
        (b"RIFF\x04\0\0\0WEBP", Reason.CORRUPT, r"^no picture: there is no VP8 or VP8L chunk$"),  # empty
        (ANIMATED, Reason.UNSUPPORTED_FORMAT, r"^an animated WebP, on which TensorFlow 2.21 fails"),  # animated
    ]:
        with pytest.raises(checked_image.BadImageError) as e:
            reader_decoder.ImageDecoder().check(data)
        assert e.value.reason is reason
        assert e.match(match.replace("^", f"^{reason.value}: "))


def test_webp_whose_record_has_another_size_is_found() -> None:
    reader_decoder.ImageDecoder().check(LOSSY, (33, 48))
    with pytest.raises(checked_image.BadImageError, match="33 x 48 pixels, its record says 48 x 33"):
        reader_decoder.ImageDecoder().check(LOSSY, (48, 33))
