from __future__ import annotations

import base64
import io
import pickle
import random
import re
import subprocess
import sys
from typing import Any

import numpy as np
import PIL.Image
import PIL.PngImagePlugin
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PillowImage
from PIL import ImageCms

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, image_formats, png_structure, prepare, structure
from imagebeam.transforms.images.prepare import ImagePolicy
from tests import encoded_images, image_sets, pictures
from tests.encoded_images import (
    DHT,
    DQT,
    IDAT,
    IEND,
    JPEG,
    JPEGS,
    PLTE,
    PNGS,
    ROWS,
    SOF,
    SOS,
    WHOLE,
    assert_rejected,
    chunk,
    encode,
    ihdr,
    insert,
    overwrite,
    png,
    rejection,
    with_right_crcs,
    without,
)

COLORS_OF_MODE = {
    "1": (1, "GRAY"),
    "L": (1, "GRAY"),
    "I;16": (1, "GRAY"),
    "LA": (2, "GRAY_ALPHA"),
    "RGB": (3, "RGB"),
    "RGBA": (4, "RGBA"),
    "CMYK": (4, "CMYK"),
}


def test_check_image_of_whole_image_says_what_pillow_says() -> None:
    for check in ["structure", "decode"]:
        for name in WHOLE:
            data = WHOLE[name]
            with PillowImage.open(io.BytesIO(data)) as picture:
                mode = picture.mode
                if mode == "P":
                    mode = "RGBA" if "transparency" in picture.info else "RGB"
                width, height = picture.size
                expected = checked_image.Image(data, name.split()[0], height, width, *COLORS_OF_MODE[mode])
                expected = expected._replace(dtype="uint16" if mode == "I;16" else "uint8")
            assert structure.check_image(data, check) == expected
            assert structure.check_image(data, check).data is data


@pytest.mark.slow
def test_check_image_of_whole_image_says_what_tensorflow_says() -> None:
    tf = pytest.importorskip("tensorflow")
    for name, data in WHOLE.items():
        image = structure.check_image(data)
        channels = 3 if image.colorspace == "CMYK" else image.channels  # which TensorFlow converts to RGB
        assert tf.io.decode_image(data, expand_animations=False).shape == (image.height, image.width, channels), name


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
        ihdr(8, 8), chunk(b"IDAT"), chunk(b"IDAT", ROWS[:5]), chunk(b"IDAT", ROWS[5:]), IEND
    ),
    "png, unknown ancillary chunks": png(ihdr(8, 8), chunk(b"abCd", b"x"), IDAT, chunk(b"abcd"), IEND),
    "png, suggested palette": png(ihdr(8, 8), PLTE, IDAT, IEND),
}


def test_check_image_accepts_what_decoders_tolerate() -> None:
    for name in TOLERATED:
        image = structure.check_image(TOLERATED[name], "decode")
        assert (image.height, image.width) == ((8, 8) if b"IHDR\0\0\0\x08" in image.data else (17, 23))


def test_check_image_of_multi_picture_jpeg_returns_the_first_picture() -> None:
    data = encode("MPO", save_all=True, append_images=[PillowImage.new("RGB", (5, 5))])
    assert structure.check_image(data, "decode") == checked_image.Image(data, "jpeg", 17, 23, 3, "RGB")


def test_check_image_of_every_truncation_is_rejected() -> None:
    for name in WHOLE:
        data = WHOLE[name]
        reasons = [rejection(data[:size]).reason for size in range(len(data))]
        num_sniffed = 3 if name.startswith("jpeg") else 8
        assert reasons[0] is Reason.EMPTY_FILE
        assert set(reasons[1:num_sniffed]) == {Reason.NOT_AN_IMAGE}
        assert set(reasons[num_sniffed:]) == {Reason.TRUNCATED}


def test_check_image_of_truncation_padded_with_zeros_is_rejected() -> None:
    for name in WHOLE:
        data = WHOLE[name]
        last = len(data) - 2 if name.startswith("jpeg") else len(data) - 4
        for size in range(last):
            assert rejection(data[:size] + bytes(4096)).reason in (
                Reason.NOT_AN_IMAGE,
                Reason.TRUNCATED,
                Reason.CORRUPT,
            )
        if name.startswith("jpeg"):
            assert_rejected(data[:last] + bytes(4096), Reason.TRUNCATED, "no end-of-image marker from byte")


def test_check_image_of_no_image_says_what_it_looks_like() -> None:
    for data, found in [
        (b"<!DOCTYPE HTML><p>404", "HTML, perhaps a download's error page"),
        (b"\xef\xbb\xbf\n <html lang=en>", "HTML, perhaps a download's error page"),
        (b"<?xml version='1.0'?><svg/>", "XML"),
        (b' {"error": 403}', "JSON"),
        (b"[]", "JSON"),
        (b"a list of names\n", "text"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "a pointer of Git LFS instead of the image (git lfs pull fetches it)",
        ),
        (bytes(100), "no known image format"),
        (b"\r\n", "no known image format"),
        (b"\x93NUMPY\1\0v\0{'descr': ", "no known image format"),
    ]:
        assert_rejected(
            data,
            Reason.NOT_AN_IMAGE,
            "^" + re.escape(f"{found}: the first of {len(data)} bytes are {data[:16]!r}") + "$",
        )


def test_check_image_of_more_bytes_than_an_example_holds_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    assert structure.MAX_IMAGE_BYTES == 2**31 - 2**20
    monkeypatch.setattr(structure, "MAX_IMAGE_BYTES", len(JPEG))
    assert structure.check_image(JPEG).data is JPEG
    expected = f"^{len(JPEG) + 1} bytes, a tf.train.Example takes up to {len(JPEG)}$"
    assert_rejected(JPEG + b"x", Reason.TOO_LARGE, expected)


def test_check_image_with_unknown_check_raises_value_error() -> None:
    with pytest.raises(ValueError, match=r"^image\.check is 'full', expected 'header', 'structure' or 'decode'$"):
        structure.check_image(JPEG, "full")


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


def assert_image_or_bad_image_error(data: bytes, check: str) -> None:
    try:
        image = structure.check_image(data, check)
    except checked_image.BadImageError as e:
        assert isinstance(e.reason, Reason)
        assert e.detail
    else:
        assert image.data is data
        assert image.height > 0
        assert image.width > 0
        assert image.format == image_formats.sniff_format(data)


HEADS = st.sampled_from([b"", b"\xff\xd8\xff", JPEG[: JPEG.index(SOS) + 14], png_structure.SIGNATURE, png(ihdr(8, 8))])


@settings(max_examples=300, deadline=None)
@given(st.builds(bytes.__add__, HEADS, st.binary(max_size=300)))
def test_check_image_of_any_bytes_raises_only_bad_image_error(data: bytes) -> None:
    assert_image_or_bad_image_error(data, "structure")


@settings(max_examples=500, deadline=None)
@given(mutated_images(), st.booleans(), st.sampled_from(["structure", "decode"]))
def test_check_image_of_mutated_image_raises_only_bad_image_error(data: bytes, fix_crcs: bool, check: str) -> None:
    assert_image_or_bad_image_error(with_right_crcs(data) if fix_crcs else data, check)


def test_import_of_structure_brings_no_beam_pillow_or_numpy() -> None:
    heavy = {"apache_beam", "PIL", "numpy", "tensorflow"}
    code = f"import sys, imagebeam.transforms.images.structure; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.split() == [b"set()"]


# --- base64 ----------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=80))
def test_both_alphabets_are_decoded_and_measured(data: bytes) -> None:
    for encoded in (base64.b64encode(data), base64.urlsafe_b64encode(data)):
        assert structure.decode_base64(encoded) == data
        assert structure.base64_size(encoded) == len(data)


def test_other_bytes_are_corrupt() -> None:
    for data in [b"abc", b"ab cd===", b"\xff\xd8\xff\xe0", b"ab=c"]:
        with pytest.raises(checked_image.BadImageError, match=r"no base64 .*, which source.tfrecord.base64 says"):
            structure.decode_base64(data)


def test_pixels_of_any_shape_are_prepared_by_the_expected_size() -> None:
    policy = prepare.ImagePolicy(is_raw=True, is_base64=True)
    image = policy.prepare(base64.b64encode(bytes(range(24))), (2, 4))
    assert (image.format, image.height, image.width, image.channels) == ("raw", 2, 4, 3)
    assert image.data == bytes(range(24))
    for num_bytes in (0, 23, 40):
        with pytest.raises(checked_image.BadImageError, match=f"{num_bytes} bytes are no 2 x 4 pixels"):
            policy.prepare(base64.b64encode(bytes(num_bytes)), (2, 4))


# --- errors ----------------------------------------------------------------------------------------------------------


def test_bad_image_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(checked_image.BadImageError(Reason.CORRUPT, "why")))
    assert (error.reason, error.detail, str(error)) == (Reason.CORRUPT, "why", "corrupt: why")


# --- without metadata ------------------------------------------------------------------------------------------------


PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
NOTES = (b"here I live", b"a comment", b"<x:xmpmeta", b"after the end")


def noted(format: str, **options: Any) -> bytes:
    exif = PIL.Image.Exif()
    exif[0x010E] = "here I live"
    if format == "PNG":
        texts = PIL.PngImagePlugin.PngInfo()
        texts.add_text("Comment", "a comment")
        texts.add_itxt("XML:com.adobe.xmp", "<x:xmpmeta/>")
        options |= {"pnginfo": texts}
    else:
        options |= {"comment": b"a comment", "xmp": b"<x:xmpmeta/>"}
    options |= {"exif": exif, "icc_profile": PROFILE, "dpi": (300, 300)}
    return image_sets.save(pictures.photo(40, 30), format, **options) + b"after the end"


def test_notes_go_and_pixels_and_profile_stay() -> None:
    for format, options in [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"restart_marker_blocks": 2}),
        ("PNG", {}),
    ]:
        data = noted(format, **options)
        assert [note for note in NOTES if note not in data] == []
        stored = ImagePolicy(metadata="strip").prepare(data)
        assert [note for note in NOTES if note in stored.data] == []
        before, after = (PIL.Image.open(io.BytesIO(each)) for each in (data, stored.data))
        assert np.array_equal(np.asarray(before), np.asarray(after))
        assert after.info["icc_profile"] == PROFILE and after.info["dpi"] == before.info["dpi"]
        assert stored.reencoded == ""
        assert ImagePolicy(metadata="strip").prepare(stored.data).data == stored.data
        assert ImagePolicy().prepare(data).data == data


@given(st.sampled_from(sorted(encoded_images.WHOLE.values())))
def test_any_checked_image_stays_whole(data: bytes) -> None:
    image = structure.check_image(data)
    stripped = structure.strip_metadata(image)
    assert structure.check_image(stripped.data)._replace(orientation=1) == stripped._replace(orientation=1)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_broken_jpeg_that_passes_the_check_passes_it_again_without_notes(seed: int) -> None:
    rng = random.Random(seed)
    try:
        image = structure.check_image(pictures.damage(noted("JPEG", quality=90), rng))
    except checked_image.BadImageError:
        return
    assert structure.check_image(structure.strip_metadata(image).data)[1:4] == image[1:4]


def test_notes_whose_length_is_too_small_go_with_what_it_leaves_out() -> None:
    for after in [b"", b"\xff", b"stray"]:
        for length in [0, 1, 2]:
            for code in [0xE5, 0xFE]:
                plain = structure.strip_metadata(structure.check_image(noted("JPEG"))).data
                note = bytes((0xFF, code, 0, length)) + after
                at = plain.index(b"\xff\xdb")  # before the tables, where nothing else may be
                stripped = structure.strip_metadata(structure.check_image(plain[:at] + note + plain[at:])).data
                assert stripped == plain[:at] + after.strip(b"stray") + plain[at:]
