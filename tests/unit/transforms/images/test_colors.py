"""Conversions of color, held against their definition and against Pillow's and LittleCMS' own."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import types

import numpy as np
import PIL.Image
import pytest
from PIL import ImageCms

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, pillow_decoder, pixels, structure
from imagebeam.transforms.images.prepare import ImagePolicy
from tests import error_texts
from tests.encoded_images import DHT, IDAT, IEND, JPEG, SIZE, assert_rejected, chunk, encode, ihdr, overwrite, png, psd
from tests.image_sets import save

NOISE = np.random.default_rng(5).integers(0, 256, (6, 7, 4), np.uint8)


def pixels_of(policy: ImagePolicy, data: bytes) -> np.ndarray:
    image = policy.prepare(data)
    opened = PIL.Image.open(io.BytesIO(image.data))
    assert (opened.height, opened.width, len(opened.getbands())) == (image.height, image.width, image.channels)
    return np.asarray(opened)


def test_transparent_pixels_are_blended_with_the_background() -> None:
    for background in [(255, 255, 255), (10, 200, 30)]:
        found = pixels_of(ImagePolicy(background=background), save(PIL.Image.fromarray(NOISE), "PNG"))
        alpha = NOISE[..., 3:].astype(float) / 255
        expected = NOISE[..., :3] * alpha + np.array(background) * (1 - alpha)
        assert np.abs(found - expected).max() <= 1


def test_gray_stays_gray_on_a_gray_background() -> None:
    for background, channels in [((0, 0, 0), 1), ((9, 9, 9), 1), ((1, 2, 3), 3)]:
        data = save(PIL.Image.fromarray(NOISE[..., :2], "LA"), "PNG")
        assert ImagePolicy(background=background).prepare(data).channels == channels


def test_other_color_spaces_become_rgb() -> None:
    for mode in ["LAB", "HSV", "CMYK", "YCbCr"]:
        srgb = PIL.Image.new("RGB", (4, 4), (30, 120, 200))
        if mode == "LAB":
            picture = ImageCms.profileToProfile(
                srgb, ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), outputMode="LAB"
            )
        else:
            picture = srgb.convert(mode)
        found = np.asarray(pixels.to_eight_bits(picture))
        assert found.shape == (4, 4, 3)
        assert np.abs(found.astype(int) - (30, 120, 200)).max() <= 8  # 8 bits of L*a*b* are coarse


def test_profile_is_converted_to_srgb_on_request() -> None:
    linear = ImageCms.ImageCmsProfile(ImageCms.createProfile("XYZ")).tobytes()
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    swapped = srgb.replace(b"rXYZ", b"tmp0").replace(b"bXYZ", b"rXYZ").replace(b"tmp0", b"bXYZ")  # still named sRGB
    picture = PIL.Image.fromarray(NOISE[..., :3])
    for profile, keeps in (
        (srgb, True),
        (None, True),
        (b"nonsense", True),
        (lab, True),
        (linear, True),
        (swapped, False),
    ):
        data = save(picture, "PNG", icc_profile=profile)
        assert ImagePolicy().prepare(data).data == data
        converted = ImagePolicy(profile="srgb").prepare(data)
        assert (converted.data == data) is keeps
    assert not np.array_equal(np.asarray(PIL.Image.open(io.BytesIO(converted.data))), NOISE[..., :3])


TRANSPARENT = {"P": bytes([255, 0, 255]), "L": 7, "RGB": (7, 7, 7), "1": 0}  # of the first pixels; see clear_corner


def clear_corner(mode: str, profile: str | None) -> bytes:
    """Returns a PNG whose upper left pixel is transparent, and no other one of another color."""
    picture = PIL.Image.new(mode, (6, 4), {"P": 0, "L": 90, "RGB": (200, 90, 30), "1": 255}[mode])
    picture.putpixel((0, 0), {"P": 1, "L": 7, "RGB": (7, 7, 7), "1": 0}[mode])
    if mode == "P":
        picture.putpalette([200, 90, 30, 7, 7, 7, 1, 2, 3])
    icc = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    icc = icc.replace(b"rXYZ", b"tmp0").replace(b"bXYZ", b"rXYZ").replace(b"tmp0", b"bXYZ")
    options = {"icc_profile": icc} if profile == "srgb" and mode in ("P", "RGB") else {}
    return save(picture, "PNG", transparency=TRANSPARENT[mode], **options)


def test_transparent_colors_show_the_background() -> None:
    for profile in ["keep", "srgb"]:
        for mode in TRANSPARENT:
            data = clear_corner(mode, profile)
            found = pixels_of(ImagePolicy(profile=profile, background=(0, 255, 0)), data)
            assert found.shape == (4, 6, 3) and found[0, 0].tolist() == [0, 255, 0]
            assert len(np.unique(found.reshape(-1, 3), axis=0)) == 2
            assert ImagePolicy(profile="keep").prepare(data).data == data


def test_profile_keeps_the_transparency_of_a_palette_and_of_one_color() -> None:
    for mode in ["P", "RGB"]:
        found = pixels_of(ImagePolicy(profile="srgb"), clear_corner(mode, "srgb"))
        assert found.shape == (4, 6, 4)
        assert found[..., 3].tolist() == [[0, *[255] * 5], *[[255] * 6] * 3]


def test_bytes_are_kept_where_the_colors_are_as_wanted() -> None:
    for mode in ["L", "RGB", "LA", "RGBA"]:
        for color, kept in [("keep", "L RGB LA RGBA"), ("rgb", "RGB"), ("gray", "L"), ("mean", "L")]:
            data = save(PIL.Image.fromarray(NOISE).convert(mode), "PNG")
            image = ImagePolicy(color=color).prepare(data)
            assert (image.data == data) is (mode in kept.split())
            assert image.reencoded == ("" if image.data == data else "png recolored")
            assert image.channels == {"keep": len(mode), "rgb": 3, "gray": 1, "mean": 1}[color]


def test_mode_without_a_rule_is_a_bad_image() -> None:
    with pytest.raises(checked_image.BadImageError, match=r"of Pillow's mode BGR;15: convert it to 8 bits a") as e:
        pixels.to_eight_bits(types.SimpleNamespace(mode="BGR;15", format="BMP"))
    assert e.value.reason is Reason.UNSUPPORTED_FORMAT


# --- Pillow's decoder ------------------------------------------------------------------------------------------------


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
