"""The numbers that are stored of images of other types than 8 bits."""

from __future__ import annotations

import io
import sys
from typing import Any

import imagecodecs
import numpy as np
import PIL.Image
import pytest
import tifffile

from imagebeam import errors
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, pixel_type, png_structure
from imagebeam.transforms.images.checked_image import Image
from imagebeam.transforms.images.pixel_type import PixelType
from imagebeam.transforms.images.prepare import ImagePolicy
from imagebeam.transforms.images.resample import FILTERS, Scaling
from tests import case_tables, number_files
from tests.image_sets import save

FLOAT32 = PixelType("float32")
UINT16 = PixelType("uint16")
WIDE = number_files.make_numbers("uint16", 1)
COLORS = number_files.make_numbers("uint16", 3)


def raw(numbers: PixelType = FLOAT32, **options: Any) -> ImagePolicy:
    return ImagePolicy(encode="raw", numbers=numbers, **options)


def values_of(image: Image) -> np.ndarray:
    """Returns the stored numbers, [height, width, bands]."""
    shape = image.height, image.width, image.channels
    found = np.frombuffer(image.data, image.dtype) if image.format == "raw" else imagecodecs.png_decode(image.data)
    return found.reshape(shape)


def refuse(policy: ImagePolicy, data: bytes, reason: Reason = Reason.PIXEL_TYPE) -> str:
    """Returns why an image is rejected."""
    with pytest.raises(checked_image.BadImageError) as raised:
        policy.prepare(data)
    assert raised.value.reason == reason
    return raised.value.detail


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "float16", "float32", "float64"])
def test_numbers_that_fit_into_float32_are_stored_as_they_are(dtype: str) -> None:
    numbers = number_files.make_numbers(dtype, 1)
    image = raw().prepare(number_files.to_tiff(numbers))
    assert (image.dtype, image.channels, image.colorspace) == ("float32", 1, "GRAY")
    np.testing.assert_array_equal(values_of(image), numbers.astype(np.float32))


def test_numbers_that_float32_cannot_hold_are_refused() -> None:
    for numbers, named in [
        (np.full((4, 4, 1), 2**24 + 1, np.int32), "16777217"),
        (np.full((4, 4, 1), 2**32 - 1, np.uint32), "4294967295"),
        (np.full((4, 4, 1), 1e300), "1e+300"),
    ]:
        assert f"float32 cannot hold {named}" in refuse(raw(), number_files.to_tiff(numbers))
        exact = np.full_like(numbers, 2**24)
        np.testing.assert_array_equal(values_of(raw().prepare(number_files.to_tiff(exact))), exact)


def test_nothing_is_scaled_without_a_range() -> None:
    for dtype, given in (("uint16", "uint8"), ("uint16", "int16"), ("uint16", "float32"), ("uint8", "uint16")):
        data = number_files.to_tiff(number_files.make_numbers(given, 1))
        bands = (1,) if dtype == "uint8" else None
        assert "set image.range: [" in refuse(raw(PixelType(dtype, bands=bands)), data)
        raw(PixelType(dtype, (0, 65_535), bands)).prepare(data)


def test_range_is_the_same_for_all_formats() -> None:
    policy = raw(PixelType("uint16", (0, 65_535)))
    gray = (np.arange(24 * 32) % 256).astype(np.uint8).reshape(24, 32)
    for format in ("PNG", "BMP", "TIFF"):
        np.testing.assert_array_equal(values_of(policy.prepare(save(PIL.Image.fromarray(gray), format)))[:, :, 0], gray)
    for data in (save(PIL.Image.fromarray(WIDE[:, :, 0]), "PNG"), number_files.to_tiff(WIDE)):
        np.testing.assert_array_equal(values_of(policy.prepare(data)), WIDE)
    np.testing.assert_array_equal(values_of(policy.prepare(imagecodecs.png_encode(COLORS))), COLORS)


# --- bands -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("planar", ["contig", "separate"])
@pytest.mark.parametrize("compression", [None, "lzw", "deflate", "zstd"])
def test_bands_come_in_the_order_that_is_asked_for(planar: str, compression: str | None) -> None:
    numbers = number_files.make_numbers("uint16", 13)
    there = numbers if planar == "contig" else np.ascontiguousarray(numbers.transpose(2, 0, 1))
    data = number_files.to_tiff(there, planarconfig=planar, compression=compression)
    image = ImagePolicy(numbers=PixelType("uint16", bands=(4, 3, 2))).prepare(data)
    assert (image.format, image.colorspace) == ("png", "RGB")
    np.testing.assert_array_equal(values_of(image), numbers[:, :, [3, 2, 1]])
    policy = raw(PixelType("uint16", bands=pixel_type.ALL))
    assert policy.find_size(data) == numbers.shape[:2]
    image = policy.prepare(data)
    assert image.colorspace == "BANDS_13"
    np.testing.assert_array_equal(values_of(image), numbers)


def test_bands_that_are_not_there_or_not_named_are_refused() -> None:
    data = number_files.to_tiff(number_files.make_numbers("uint16", 4))
    assert refuse(raw(PixelType("uint16", bands=(5,))), data).startswith(
        "an image of 4 bands, and image.bands asks for"
    )
    assert refuse(raw(UINT16), data).startswith("an image of 4 bands: set image.bands, such as [1, 2, 3]")
    assert refuse(ImagePolicy(), data).startswith("a tiff of 4 bands of 16 bits, which Pillow does not read: set")
    alpha = save(PIL.Image.new("RGBA", (4, 4)), "PNG")
    assert refuse(raw(), alpha).startswith("an image of 4 bands")
    assert values_of(raw(PixelType("float32", bands=(1, 2, 3))).prepare(alpha)).shape == (4, 4, 3)


# --- bytes that are kept ---------------------------------------------------------------------------------------------


def test_pngs_of_16_bits_keep_their_bytes() -> None:
    for data in (save(PIL.Image.fromarray(WIDE[:, :, 0]), "PNG"), imagecodecs.png_encode(COLORS)):
        image = ImagePolicy(numbers=UINT16).prepare(data)
        assert (image.data, image.dtype, image.reencoded) == (data, "uint16", "")
        assert ImagePolicy(numbers=UINT16, scaling=Scaling(size=(5, 5))).prepare(data).reencoded == "png scaled"
    for bands in (1, 3):
        numbers = number_files.make_numbers("uint16", bands)
        exif = png_structure.encode_chunk(b"eXIf", b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0")
        png = imagecodecs.png_encode(numbers if bands == 3 else numbers[:, :, 0])
        place = png.index(b"IDAT") - 4
        turned = ImagePolicy(numbers=UINT16).prepare(png[:place] + exif + png[place:])
        assert (turned.turned, turned.reencoded) == (6, "png turned")
        np.testing.assert_array_equal(values_of(turned), numbers.swapaxes(0, 1)[:, ::-1])
    stripped = ImagePolicy(numbers=UINT16, metadata="strip").prepare(imagecodecs.png_encode(COLORS))
    np.testing.assert_array_equal(values_of(stripped), COLORS)


@pytest.mark.parametrize("bands", [1, 3])
def test_tiff_becomes_a_png_of_16_bits(bands: int) -> None:
    numbers = number_files.make_numbers("uint16", bands)
    image = ImagePolicy(numbers=UINT16).prepare(number_files.to_tiff(numbers))
    assert (image.format, image.dtype, image.reencoded, image.source_format) == (
        "png", "uint16", "tiff to png", "tiff",
    )  # fmt: skip
    np.testing.assert_array_equal(values_of(image), numbers)


# --- turns, sizes, pages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", range(1, 9))
def test_numbers_are_turned_upright_as_pictures_are(orientation: int) -> None:
    numbers = number_files.make_numbers("uint8", 3)
    tag = [(274, "H", 1, orientation, True)]
    data = number_files.to_tiff(numbers, extratags=tag)
    exif = PIL.Image.Exif()
    exif[274] = orientation
    png = save(PIL.Image.fromarray(numbers), "PNG", exif=exif.tobytes())
    expected = ImagePolicy(encode="raw").prepare(png)
    upright = np.frombuffer(expected.data, np.uint8).reshape(expected.height, expected.width, 3)
    for each in (data, png):
        image = raw().prepare(each)
        np.testing.assert_array_equal(values_of(image), upright)
        assert (image.turned, image.orientation) == (expected.turned, expected.orientation)
        kept = raw(orientation="keep").prepare(each)
        np.testing.assert_array_equal(values_of(kept), numbers)
        assert kept.orientation == orientation
        if orientation > 1:
            refuse(raw(orientation="reject"), each, Reason.NOT_UPRIGHT)


@pytest.mark.parametrize("filter", ["area", "bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(12, 8), (24, 32), (48, 40)])
def test_resized_numbers_are_those_of_numpy(filter: str, size: tuple[int, int]) -> None:
    for dtype, bands in (("uint16", 3), ("float32", 2)):
        numbers = number_files.make_numbers(dtype, bands)
        policy = raw(PixelType(dtype, bands="all"), scaling=Scaling(size=size, filter=filter))
        found = values_of(policy.prepare(number_files.to_tiff(numbers)))
        expected = number_files.resized(numbers, size, filter)
        if dtype == "uint16":
            assert np.abs(found - expected.clip(0, 65_535)).max() < 0.51
        else:
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)
    assert FILTERS.keys() == {"area", "bilinear", "bicubic", "lanczos"}


def test_fit_cuts_or_pads_numbers() -> None:
    numbers = number_files.make_numbers("float32", 2, size=(24, 32))
    data, all_bands = number_files.to_tiff(numbers), PixelType("float32", bands="all")
    cut = values_of(raw(all_bands, scaling=Scaling(size=(24, 25), fit="crop")).prepare(data))
    np.testing.assert_array_equal(cut, numbers[:, 3:28])
    padded = values_of(raw(all_bands, scaling=Scaling(size=(29, 32), fit="pad")).prepare(data))
    np.testing.assert_array_equal(padded[3:27], numbers)
    assert not padded[:3].any()
    assert not padded[27:].any()


def test_each_page_of_a_stack_is_an_image() -> None:
    pages = [number_files.make_numbers("uint16", 1, seed)[:, :, 0] for seed in range(3)]
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, np.stack(pages), photometric="minisblack")
    data = buffer.getvalue()
    policy = ImagePolicy(numbers=UINT16, frames="each")
    frames = policy.prepare_frames(data)
    assert frames is not None
    assert frames.count == 3
    for image, page in zip(frames.images, pages, strict=True):
        assert isinstance(image, Image)
        np.testing.assert_array_equal(values_of(image)[:, :, 0], page)
    np.testing.assert_array_equal(values_of(ImagePolicy(numbers=UINT16).prepare(data))[:, :, 0], pages[0])
    refuse(ImagePolicy(numbers=UINT16, frames="reject"), data, Reason.SEVERAL_FRAMES)
    assert policy.prepare_frames(number_files.to_tiff(WIDE)) is None


# --- broken files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "lzw", "deflate"])
def test_tiff_that_is_cut_short_is_rejected(compression: str | None) -> None:
    data = number_files.to_tiff(COLORS, compression=compression)
    for end in range(10, len(data), 97):
        refuse(raw(), data[:end], Reason.UNDECODABLE)


@case_tables.each_case(
    "options",
    {
        "white-is-zero": {"photometric": "miniswhite"},
        "palette": {"photometric": "palette", "colormap": np.zeros((3, 256), np.uint16)},
        "cmyk": {"photometric": "separated"},
    },
)
def test_tiff_without_levels_is_unsupported(options: dict[str, Any]) -> None:
    numbers = number_files.make_numbers("uint8", 4 if options["photometric"] == "separated" else 1)
    assert refuse(raw(), number_files.to_tiff(numbers, **options), Reason.UNSUPPORTED_FORMAT).startswith("a tiff of")


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(errors.ConfigError, match=r"pip install 'imagebeam\[bands\]'") as raised:
        raw().prepare(number_files.to_tiff(WIDE))
    assert raised.value.code == "package-missing"
    assert ImagePolicy(numbers=UINT16).prepare(save(PIL.Image.fromarray(WIDE[:, :, 0]), "PNG")).dtype == "uint16"
