"""Conversions of color, held against their definition and against Pillow's and LittleCMS' own."""

from __future__ import annotations

import io
import types

import numpy as np
import PIL.Image
import pytest
from PIL import ImageCms

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, pixels
from imagebeam.transforms.images.prepare import ImagePolicy
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
