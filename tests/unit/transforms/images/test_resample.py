"""Images scaled in C, held against the same sizes and filters of Pillow."""

from __future__ import annotations

import io
import random
import zlib
from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam import _writer
from imagebeam.transforms.images import checked_image, pixels, resample
from imagebeam.transforms.images.prepare import ImagePolicy
from imagebeam.transforms.images.resample import FILTERS, Scaling
from tests import error_texts, pictures

_ON_ITS_SIDE = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"  # orientation 6
MIN_PSNR = 35  # of two JPEGs of quality 95 of the same picture, rounded in other places
NOISE = PIL.Image.frombytes("RGBA", (301, 200), random.Random(5).randbytes(4 * 301 * 200))
_CHANNELS = {"L": 1, "RGB": 3}


def by_pillow(picture: PIL.Image.Image, size: tuple[int, int], name: str) -> np.ndarray:
    return np.asarray(resample.resize(picture, size, name, resample.PILLOW)).astype(int)


# --- bare pixels -----------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(["L", "RGB"]),
    st.integers(1, 301),
    st.integers(1, 200),
    st.integers(1, 400),
    st.integers(1, 300),
    st.sampled_from([*FILTERS]),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_pixels_are_those_of_pillow_up_to_rounding(
    mode: str, width: int, height: int, to_width: int, to_height: int, name: str, is_extreme: bool
) -> None:
    picture, size = NOISE.crop((0, 0, width, height)).convert(mode), (to_width, to_height)
    picture = picture.point(lambda value: 255 * (value > 127)) if is_extreme else picture
    found = resample.resize(picture, size, name)
    assert (found.mode, found.size) == (mode, size)
    # Both round and clip between the two sides, which C does in the other order: more where a filter overshoots.
    differences = np.abs(np.asarray(found).astype(int) - by_pillow(picture, size, name))
    if name in ("area", "bilinear"):
        is_rounding = differences.size <= 3 and differences.max() == 1  # in the only pixel
        assert differences.mean() < 0.8 or is_rounding
    elif not is_extreme and min(*picture.size, *size) > 8:
        assert differences.mean() < 3
    data = resample.resize_bytes(picture.tobytes(), (height, width, _CHANNELS[mode]), size, name)
    assert data == found.tobytes()


def test_what_is_transparent_adds_no_color() -> None:
    for mode in ["LA", "RGBA"]:
        for name in FILTERS:
            photo = pictures.photo(301, 200).convert(mode)
            hidden = PIL.Image.new("L", photo.size, 255)
            hidden.paste(0, (0, 0, 150, 200))
            photo.putalpha(hidden)
            found, expected = np.asarray(resample.resize(photo, (90, 77), name)), by_pillow(photo, (90, 77), name)
            assert np.abs(found.astype(int) - expected)[expected[..., -1] > 200].max() <= 4
            assert np.abs(found.astype(int) - expected)[..., -1].max() <= 1


def test_photo_is_that_of_pillow() -> None:
    for mode in ["L", "RGB", "LA", "RGBA"]:
        for name in FILTERS:
            photo = pictures.photo(301, 203).convert(mode)
            for size in ((90, 77), (301, 50), (40, 203), (640, 480), (1, 1), (301, 203)):
                found = np.asarray(resample.resize(photo, size, name)).astype(int)
                difference = np.abs(found - by_pillow(photo, size, name))
                assert (
                    difference.max() <= 8
                )  # at edges, where a filter overshoots: both cut it off between the two sides
                assert difference.mean() < 0.5


def test_plain_pixels_stay_plain() -> None:
    for value, name in ((0, "lanczos"), (255, "bicubic"), (77, "area"), (78, "bilinear")):
        for shape in ((1, 1, 1), (5, 9, 3), (64, 33, 2), (2, 40, 4)):
            data = bytes([value]) * (shape[0] * shape[1] * shape[2])
            assert set(resample.resize_bytes(data, shape, (31, 17), name)) == {value}


def test_bytes_are_those_of_every_processor() -> None:
    """Holds the bytes, which are in datasets: where they change, the number of the resizer counts up."""
    data = NOISE.convert("RGB").tobytes()
    found = {
        name: [zlib.crc32(resample.resize_bytes(data, (200, 301, 3), size, name)) for size in ((99, 401), (20, 10))]
        for name in FILTERS
    }
    assert found == {
        "bicubic": [405519067, 3007524775],
        "lanczos": [3526769403, 833050977],
        "area": [6740610, 1569828978],
        "bilinear": [4196465854, 2200964543],
    }
    assert _writer.RESIZER.startswith("resizer 2, libjpeg-turbo ")


def test_bare_pixels_out_of_range_are_refused() -> None:
    for arguments in [
        (b"1234", 5, (1, 2), (1, 1), 0),
        (b"1234", 0, (2, 2), (1, 1), 0),
        (b"1234", 1, (2, 3), (1, 1), 0),
        (b"", 1, (0, 2), (1, 1), 0),
        (b"", 1, (2, 0), (1, 1), 0),
        (b"1234", 1, (2, 2), (0, 1), 0),
        (b"1234", 1, (2, 2), (1 << 25, 1), 0),
        (b"1234", 1, (2, 2), (1, 1), 4),
        (b"1234", 1, (2, 2), (1, 1), -1),
    ]:
        message = "channels, size, target or filter is out of range, or the bytes are of another size"
        with pytest.raises(ValueError, match=message):
            _writer.resize_pixels(*arguments)


# --- JPEGs -----------------------------------------------------------------------------------------------------------


def policies(encode: str = "jpeg", scaling: dict[str, Any] | None = None, **options: Any) -> tuple[ImagePolicy, ...]:
    """Returns the policy that resizes by Pillow, and the one that does so in C."""
    sizes = scaling or {"shortest_side": 100}
    return tuple(
        ImagePolicy(encode=encode, scaling=Scaling(**sizes, resampler=resampler), **options)
        for resampler in (resample.PILLOW, resample.NATIVE)
    )


def decoded(data: bytes) -> np.ndarray:
    return np.asarray(PIL.Image.open(io.BytesIO(data)))


def jpeg(width: int = 301, height: int = 203, mode: str = "RGB", **options: Any) -> bytes:
    return pictures.encode(pictures.photo(width, height).convert(mode), **options)


def check_alike(data: bytes, two: tuple[ImagePolicy, ...], min_psnr: float = MIN_PSNR) -> bytes:
    """Checks that both policies store the same picture; returns the bytes of the one in C."""
    by_pillow, in_c = (policy.prepare(data) for policy in two)
    assert in_c._replace(data=b"") == by_pillow._replace(data=b"")
    assert decoded(in_c.data).shape == decoded(by_pillow.data).shape
    assert in_c.data != by_pillow.data  # not by Pillow
    assert pictures.psnr(decoded(in_c.data), decoded(by_pillow.data)) > min_psnr
    return in_c.data


def test_picture_is_that_of_pillow() -> None:
    for name in FILTERS:
        for subsampling in ["4:4:4", "4:2:2", "4:2:0"]:
            for shorter in [20, 77, 150, 240]:
                scaling = {"shortest_side": shorter, "enlarge": True, "filter": name}
                # a smaller JPEG has more noise for each pixel of the picture, and half as many pixels of color
                check_alike(jpeg(subsampling=subsampling), policies(scaling=scaling), 33 if shorter == 20 else MIN_PSNR)


def test_sizes_and_colors_are_those_of_pillow() -> None:
    for scaling, source, options in [
        ({"size": (90, 120)}, {}, {}),  # stretch
        ({"size": (90, 91), "fit": "crop"}, {}, {}),  # crop-columns
        ({"size": (60, 201), "fit": "crop"}, {"subsampling": "4:2:0"}, {}),  # crop-rows
        ({"size": (60, 60), "fit": "pad"}, {}, {}),  # pad
        ({"max_pixels": 5000}, {"progressive": True}, {}),  # progressive-source
        ({"longest_side": 99}, {"mode": "L"}, {}),  # gray-source
        ({"longest_side": 99}, {"mode": "L"}, {"color": "rgb"}),  # gray-to-rgb
        ({"longest_side": 99}, {"mode": "CMYK"}, {}),  # cmyk
        ({"longest_side": 99}, {}, {"color": "gray"}),  # to-gray
        ({"longest_side": 99}, {}, {"color": "mean"}),  # to-mean
        ({"longest_side": 99}, {}, {"color": "rgb"}),  # rgb
        ({"longest_side": 99}, {}, {"encode": "keep"}),  # bytes-kept-elsewhere
        ({"longest_side": 99}, {"exif": _ON_ITS_SIDE}, {}),  # turned
        ({"longest_side": 99}, {}, {"profile": "srgb"}),  # srgb
        ({"size": (200, 10), "fit": "crop"}, {"width": 1000, "height": 2}, {}),  # from-a-long-one
        ({"size": (1, 1)}, {}, {}),  # one-pixel
        ({"size": (300, 1)}, {"subsampling": "4:2:0"}, {}),  # one-column
    ]:
        data = jpeg(**{"mode": "RGB", **source})
        two = policies(scaling=scaling, **options)
        by_pillow, in_c = (policy.prepare(data) for policy in two)
        assert in_c._replace(data=b"") == by_pillow._replace(data=b"")
        assert np.abs(decoded(in_c.data).astype(float) - decoded(by_pillow.data)).mean() < 3


def test_chroma_subsampling_is_the_wanted_one() -> None:
    for source in ["4:4:4", "4:2:0"]:
        for wanted in ["source", "4:4:4", "4:2:2", "4:2:0"]:
            encoding = pixels.Encoding(quality=80, chroma=wanted, progressive=wanted == "4:2:2")
            found = check_alike(jpeg(subsampling=source), policies(encoding=encoding), 30)
            opened = PIL.Image.open(io.BytesIO(found))
            assert pixels.chroma_of(opened) == (source if wanted == "source" else wanted)
            assert bool(opened.info.get("progressive")) is encoding.progressive


def test_damaged_files_end_as_by_pillow() -> None:
    rng = random.Random(7)
    whole = jpeg(subsampling="4:2:0")
    two = policies()
    num_rejected = 0
    for _ in range(150):
        data = pictures.damage(whole, rng)
        found = []
        for policy in two:
            try:
                found.append(policy.prepare(data)._replace(data=b""))
            except checked_image.BadImageError as e:
                found.append(str(e))
        assert found[0] == found[1]
        num_rejected += isinstance(found[0], str)
    assert 10 < num_rejected < 150


def test_noise_that_needs_more_output_is_encoded() -> None:
    data = pictures.encode(NOISE.convert("RGB"), subsampling="4:4:4", quality=100)
    policy = policies(scaling={"size": (199, 301)}, encoding=pixels.Encoding(quality=100))[1]
    found = policy.prepare(data)
    assert len(found.data) > 1 << 17  # of which 64 KiB are there at first
    assert decoded(found.data).shape == (199, 301, 3)
    assert len({policy.prepare(data).data for _ in range(5)}) == 1


def test_result_longer_than_a_jpeg_is_a_reject() -> None:
    for policy in policies(scaling={"shortest_side": 200, "enlarge": True}):
        with pytest.raises(checked_image.BadImageError, match="200 x 100000 pixels are more than decoders take"):
            policy.prepare(jpeg(1000, 2))


def test_great_reduction_has_the_mean_of_the_picture() -> None:
    data = jpeg(3000, 9)
    found = policies(scaling={"size": (9, 1), "filter": "area"})[1].prepare(data)
    assert np.abs(decoded(found.data).mean((0, 1)) - decoded(data).mean((0, 1))).max() < 4


def test_limit_on_pixels_holds() -> None:
    for policy in policies(limits=checked_image.Limits(max_pixels=301 * 203 - 1)):
        with pytest.raises(checked_image.BadImageError, match="too_large"):
            policy.prepare(jpeg())


def test_arguments_out_of_range_are_refused() -> None:
    for changes in [
        {"full_size": (0, 10)},
        {"part": (0, 0, 11, 10)},
        {"part": (-1, 0, 5, 5)},
        {"part": (6, 0, 5, 5)},
        {"full_size": (70_000, 10)},
        {"full_size": (-(2**31), 10), "part": (6, 0, 5, 5)},
        {"reduction": 3},
        {"filter": 4},
        {"filter": -1},
        {"sampling": (1, 2)},
        {"sampling": (2, 0)},
        {"sampling": (2**31 - 1, -(2**31))},
    ]:
        arguments = {
            "full_size": (10, 10),
            "part": (0, 0, 10, 10),
            "reduction": 1,
            "filter": 2,
            "quality": 95,
            "sampling": (0, 0),
            "is_progressive": False,
            "is_gray": False,
        }
        assert _writer.resize_jpeg(jpeg(), *arguments.values())
        with pytest.raises(ValueError, match="size, part, reduction, filter or sampling is out of range"):
            _writer.resize_jpeg(jpeg(), *(arguments | changes).values())


def test_without_the_extension_only_pillow_resizes(monkeypatch: pytest.MonkeyPatch) -> None:
    two = policies()
    expected = two[0].prepare(jpeg())
    monkeypatch.setattr(resample, "_writer", None)
    assert resample.library() is None
    for data in (jpeg(), jpeg(mode="CMYK")):
        with error_texts.raises("extension-missing"):
            two[1].prepare(data)
    assert two[0].prepare(jpeg()) == expected


# --- sizes -----------------------------------------------------------------------------------------------------------


SIDES = st.integers(1, 3000)


def test_scaled_size_of_400_x_200() -> None:
    for scaling, expected in [
        (Scaling(shortest_side=100), (200, 100)),  # shorter
        (Scaling(longest_side=100), (100, 50)),  # longer
        (Scaling(shortest_side=100, longest_side=100), (100, 50)),  # both-hold
        (Scaling(max_pixels=20_000), (200, 100)),  # pixels
        (Scaling(max_pixels=20_000, longest_side=100), (100, 50)),  # pixels-and-longer
        (Scaling(shortest_side=300), (400, 200)),  # small-stays
        (Scaling(shortest_side=300, enlarge=True), (600, 300)),  # small-is-enlarged
        (Scaling(shortest_side=300, enlarge=True, max_pixels=20_000), (200, 100)),  # never-above-pixels
        (Scaling((50, 60)), (60, 50)),  # exact
        (Scaling((50, 60), "crop"), (100, 50)),  # crop
        (Scaling((50, 60), "pad"), (60, 30)),  # pad
    ]:
        assert scaling.scaled(400, 200) == expected
        assert scaling.scaled(200, 400) == expected[::-1] or scaling.size is not None


@given(SIDES, SIDES, st.integers(1, 10**6))
def test_max_pixels_is_never_exceeded_and_almost_reached(width: int, height: int, max_pixels: int) -> None:
    found = Scaling(max_pixels=max_pixels).scaled(width, height)
    assert found[0] * found[1] <= max(max_pixels, max(found))  # a line of one pixel may be longer
    if width * height <= max_pixels:
        assert found == (width, height)


@given(SIDES, SIDES, st.integers(1, 300), st.integers(1, 300), st.sampled_from(["stretch", "crop", "pad"]))
def test_exact_size_is_reached(width: int, height: int, to_height: int, to_width: int, fit: str) -> None:
    scaling = Scaling((to_height, to_width), fit)
    between = scaling.scaled(width, height)
    if fit == "crop":
        assert between[0] >= to_width and between[1] >= to_height and (between[0], between[1])[0:2] != (0, 0)
    elif fit == "pad":
        assert between[0] <= to_width and between[1] <= to_height
    assert to_width in between or to_height in between


def test_crop_keeps_the_middle_and_padding_has_the_background() -> None:
    for mode in ["L", "LA", "RGB", "RGBA"]:
        picture = PIL.Image.new("RGB", (90, 30), (200, 0, 0))
        picture.paste((0, 0, 200), (30, 0, 60, 30))
        picture = picture.convert(mode)
        cropped = Scaling((30, 30), "crop").apply(picture)
        assert len(cropped.getcolors()) == 1 and cropped.getpixel((0, 0)) == picture.getpixel((45, 15))
        padded = Scaling((90, 90), "pad").apply(picture, (10, 20, 30))
        assert padded.size == (90, 90)
        assert padded.getpixel((45, 45)) == picture.getpixel((45, 15))
        corner = PIL.Image.new("RGB", (1, 1), (10, 20, 30)).convert(mode).getpixel((0, 0))
        assert padded.getpixel((0, 0)) == padded.getpixel((89, 89)) == corner


def test_jpeg_decoded_at_a_part_of_its_size_looks_like_one_decoded_whole() -> None:
    for name in FILTERS:
        for target in [64, 150, 240]:
            data = pictures.encode(pictures.photo(720, 540), quality=95)
            scaling = Scaling(shortest_side=target, filter=name)
            found = ImagePolicy(encode="raw", scaling=scaling).prepare(data)
            whole = np.asarray(scaling.apply(PIL.Image.open(io.BytesIO(data))))
            assert (found.height, found.width) == whole.shape[:2]
            pixels = np.frombuffer(found.data, np.uint8).reshape(whole.shape)
            assert pictures.psnr(pixels, whole) > 38
