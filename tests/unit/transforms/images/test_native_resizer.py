"""JPEGs resized in C, held against the same sizes and filters of Pillow."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import PIL.Image
import pytest

from imagebeam import _resize, errors
from imagebeam.transforms.images import checked_image, encoders, limits, native_resizer
from imagebeam.transforms.images.prepare import ImagePolicy
from imagebeam.transforms.images.resample import FILTERS
from imagebeam.transforms.images.scaling import NATIVE, Scaling
from tests import pictures

_ON_ITS_SIDE = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"  # orientation 6
MIN_PSNR = 35  # of two JPEGs of quality 95 of the same picture, rounded in other places


def policies(encode: str = "jpeg", scaling: dict[str, Any] | None = None, **options: Any) -> tuple[ImagePolicy, ...]:
    """Returns the policy that resizes by Pillow, and the one that does so in C."""
    sizes = scaling or {"shortest_side": 100}
    return tuple(
        ImagePolicy(encode=encode, scaling=Scaling(**sizes, resampler=resampler), **options)
        for resampler in ("pillow", NATIVE)
    )


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(PIL.Image.open(io.BytesIO(data)))


def jpeg(width: int = 301, height: int = 203, mode: str = "RGB", **options: Any) -> bytes:
    return pictures.encode(pictures.photo(width, height).convert(mode), **options)


def check_alike(data: bytes, two: tuple[ImagePolicy, ...], min_psnr: float = MIN_PSNR) -> bytes:
    """Checks that both policies store the same picture; returns the bytes of the one in C."""
    by_pillow, in_c = (policy.prepare(data) for policy in two)
    assert in_c._replace(data=b"") == by_pillow._replace(data=b"")
    assert pixels(in_c.data).shape == pixels(by_pillow.data).shape
    assert in_c.data != by_pillow.data  # not by Pillow
    assert pictures.psnr(pixels(in_c.data), pixels(by_pillow.data)) > min_psnr
    return in_c.data


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("shorter", [20, 77, 150, 240], ids=["by-8", "by-2", "by-less-than-2", "enlarged"])
def test_picture_is_that_of_pillow(name: str, subsampling: str, shorter: int) -> None:
    scaling = {"shortest_side": shorter, "enlarge": True, "filter": name}
    # a smaller JPEG has more noise for each pixel of the picture, and half as many pixels of color
    check_alike(jpeg(subsampling=subsampling), policies(scaling=scaling), 33 if shorter == 20 else MIN_PSNR)


@pytest.mark.parametrize(
    ("scaling", "source", "options"),
    [
        pytest.param({"size": (90, 120)}, {}, {}, id="stretch"),
        pytest.param({"size": (90, 91), "fit": "crop"}, {}, {}, id="crop-columns"),
        pytest.param({"size": (60, 201), "fit": "crop"}, {"subsampling": "4:2:0"}, {}, id="crop-rows"),
        pytest.param({"max_pixels": 5000}, {"progressive": True}, {}, id="progressive-source"),
        pytest.param({"longest_side": 99}, {"mode": "L"}, {}, id="gray-source"),
        pytest.param({"longest_side": 99}, {}, {"color": "gray"}, id="to-gray"),
        pytest.param({"longest_side": 99}, {}, {"color": "rgb"}, id="rgb"),
        pytest.param({"longest_side": 99}, {}, {"encode": "keep"}, id="bytes-kept-elsewhere"),
        pytest.param({"longest_side": 99}, {}, {"profile": "srgb"}, id="srgb"),
        pytest.param({"size": (1, 1)}, {}, {}, id="one-pixel"),
        pytest.param({"size": (300, 1)}, {"subsampling": "4:2:0"}, {}, id="one-column"),
    ],
)
def test_sizes_and_colors_are_those_of_pillow(
    scaling: dict[str, Any], source: dict[str, Any], options: dict[str, Any]
) -> None:
    data = jpeg(**{"mode": "RGB", **source})
    two = policies(scaling=scaling, **options)
    by_pillow, in_c = (policy.prepare(data) for policy in two)
    assert in_c._replace(data=b"") == by_pillow._replace(data=b"")
    assert np.abs(pixels(in_c.data).astype(float) - pixels(by_pillow.data)).mean() < 3


@pytest.mark.parametrize("source", ["4:4:4", "4:2:0"])
@pytest.mark.parametrize("wanted", ["source", "4:4:4", "4:2:2", "4:2:0"])
def test_chroma_subsampling_is_the_wanted_one(source: str, wanted: str) -> None:
    encoding = encoders.Encoding(quality=80, chroma=wanted, progressive=wanted == "4:2:2")
    found = check_alike(jpeg(subsampling=source), policies(encoding=encoding), 30)
    opened = PIL.Image.open(io.BytesIO(found))
    assert encoders.chroma_of(opened) == (source if wanted == "source" else wanted)
    assert bool(opened.info.get("progressive")) is encoding.progressive


@pytest.mark.parametrize("color", [(255, 0, 0), (0, 0, 255), (17, 130, 200), (255, 255, 255)])
@pytest.mark.parametrize("name", FILTERS)
def test_plain_area_keeps_its_color(color: tuple[int, int, int], name: str) -> None:
    data = pictures.encode(PIL.Image.new("RGB", (97, 61), color), subsampling="4:2:0", quality=100)
    encoding = encoders.Encoding(quality=100)
    found = policies(scaling={"shortest_side": 30, "filter": name}, encoding=encoding)[1].prepare(data)
    assert np.abs(pixels(found.data).astype(int) - pixels(data)[0, 0]).max() <= 2


def other_kinds() -> list[Any]:
    photo = pictures.photo(301, 203)
    whole = jpeg()
    return [
        pytest.param(pictures.encode(photo.convert("CMYK")), {}, id="cmyk"),
        pytest.param(pictures.encode(photo.convert("L")), {"color": "rgb"}, id="gray-to-rgb"),
        pytest.param(jpeg(exif=_ON_ITS_SIDE), {}, id="turned"),
        pytest.param(whole[: len(whole) // 2] + whole[-2:], {}, id="damaged"),
        pytest.param(jpeg(80, 60), {}, id="small"),
        pytest.param(jpeg(1000, 2), {"scaling": {"size": (200, 10), "fit": "crop"}}, id="cropped-from-a-long-one"),
        pytest.param(jpeg(), {"encode": "png"}, id="to-png"),
    ]


@pytest.mark.parametrize(("data", "options"), other_kinds())
def test_what_is_not_resized_in_c_is_stored_as_by_pillow(data: bytes, options: dict[str, Any]) -> None:
    by_pillow, in_c = (policy.prepare(data) for policy in policies(**options))
    assert in_c == by_pillow


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


def test_same_bytes_on_every_call() -> None:
    policy, data = policies()[1], jpeg(subsampling="4:2:0")
    assert len({policy.prepare(data).data for _ in range(5)}) == 1


def test_result_longer_than_a_jpeg_is_a_reject() -> None:
    for policy in policies(scaling={"shortest_side": 200, "enlarge": True}):
        with pytest.raises(checked_image.BadImageError, match="200 x 100000 pixels are more than decoders take"):
            policy.prepare(jpeg(1000, 2))


def test_great_reduction_has_the_mean_of_the_picture() -> None:
    data = jpeg(3000, 9)
    found = policies(scaling={"size": (9, 1), "filter": "area"})[1].prepare(data)
    assert np.abs(pixels(found.data).mean((0, 1)) - pixels(data).mean((0, 1))).max() < 4


def test_limit_on_pixels_holds() -> None:
    for policy in policies(limits=limits.Limits(max_pixels=301 * 203 - 1)):
        with pytest.raises(checked_image.BadImageError, match="too_large"):
            policy.prepare(jpeg())


@pytest.mark.parametrize(
    "changes",
    [
        {"full_size": (0, 10)},
        {"part": (0, 0, 11, 10)},
        {"part": (-1, 0, 5, 5)},
        {"part": (6, 0, 5, 5)},
        {"full_size": (70_000, 10)},
        {"reduction": 3},
        {"filter": 4},
        {"filter": -1},
        {"sampling": (1, 2)},
        {"sampling": (2, 0)},
    ],
    ids=str,
)
def test_arguments_out_of_range_are_refused(changes: dict[str, Any]) -> None:
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
    assert _resize.resize_jpeg(jpeg(), *arguments.values())
    with pytest.raises(ValueError, match="size, part, reduction, filter or sampling is out of range"):
        _resize.resize_jpeg(jpeg(), *(arguments | changes).values())


def test_missing_extension_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "libjpeg-turbo" in str(native_resizer.library())
    monkeypatch.setattr(native_resizer, "_resize", None)
    assert native_resizer.library() is None
    with pytest.raises(errors.ConfigError, match="has no C extension _resize: install a C compiler"):
        policies()[1].prepare(jpeg())
