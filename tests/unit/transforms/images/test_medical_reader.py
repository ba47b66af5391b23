"""The numbers of DICOM and NIfTI files, against files whose numbers are known."""

from __future__ import annotations

import gzip
import itertools
import sys
from typing import Any

import nibabel
import numpy as np
import pytest

from imagebeam import errors
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, image_formats
from imagebeam.transforms.images.checked_image import Image
from imagebeam.transforms.images.pixel_type import PixelType
from imagebeam.transforms.images.prepare import ImagePolicy
from tests import case_tables, medical_files, number_files
from tests.medical_files import rescaling, to_dicom, to_nifti

FLOAT32, UINT16 = PixelType("float32"), PixelType("uint16")
LOSSLESS = ("", *medical_files.COMPRESSED)


def gray(dtype: str = "int16", seed: int = 0) -> np.ndarray:
    return number_files.make_numbers(dtype, 1, seed)[:, :, 0]


def raw(numbers: PixelType = FLOAT32, **options: Any) -> ImagePolicy:
    return ImagePolicy(encode="raw", numbers=numbers, **options)


def values_of(image: Any) -> np.ndarray:
    assert isinstance(image, Image), image
    return np.frombuffer(image.data, image.dtype).reshape(image.height, image.width, image.channels).squeeze()


def slices_of(data: bytes, numbers: PixelType = FLOAT32, **options: Any) -> list[np.ndarray]:
    frames = raw(numbers, frames="each", **options).prepare_frames(data)
    assert frames is not None
    found = [values_of(each) for each in frames.images]
    assert len(found) == frames.count
    return found


def refuse(policy: ImagePolicy, data: bytes, reason: Reason) -> str:
    with pytest.raises(checked_image.BadImageError) as raised:
        policy.prepare(data)
    assert raised.value.reason == reason
    return raised.value.detail


# --- DICOM -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", LOSSLESS)
@pytest.mark.parametrize(("dtype", "bits"), [("int16", 16), ("int16", 12), ("uint16", 12), ("uint8", 8)])
def test_dicom_is_stored_in_the_unit_of_its_rescaling(dtype: str, bits: int, compressed: str) -> None:
    numbers = gray(dtype) >> (8 * np.dtype(dtype).itemsize - bits)
    data = to_dicom(numbers, bits, compressed)
    assert image_formats.sniff_format(data) == "dicom"
    assert raw().find_size(data) == numbers.shape
    np.testing.assert_array_equal(values_of(raw().prepare(data)), numbers)
    scaled = to_dicom(numbers, bits, compressed, RescaleSlope="0.5", RescaleIntercept="-1024")
    np.testing.assert_array_equal(values_of(raw().prepare(scaled)), numbers * 0.5 - 1024)
    same = to_dicom(numbers, bits, compressed, RescaleSlope="1", RescaleIntercept="0")
    if dtype != "int16":
        np.testing.assert_array_equal(values_of(raw(PixelType(dtype, bands=(1,))).prepare(same)), numbers)
        white_first = to_dicom(numbers, bits, compressed, PhotometricInterpretation="MONOCHROME1")
        np.testing.assert_array_equal(values_of(raw().prepare(white_first)), (1 << bits) - 1 - numbers.astype(int))


def test_signed_numbers_that_count_from_white_are_inverted() -> None:
    numbers = np.array([[-2048, 2047], [0, -1]], np.int16)
    data = to_dicom(numbers, 12, PhotometricInterpretation="MONOCHROME1")
    np.testing.assert_array_equal(values_of(raw().prepare(data)), [[2047, -2048], [-1, 0]])


@pytest.mark.parametrize("compressed", LOSSLESS)
def test_each_frame_of_dicom_has_its_own_rescaling(compressed: str) -> None:
    frames = np.stack([gray("int16", seed) >> 4 for seed in range(3)])
    np.testing.assert_array_equal(slices_of(to_dicom(frames, 12, compressed)), frames)
    shared = to_dicom(frames, 12, compressed, SharedFunctionalGroupsSequence=[rescaling(2, -1024)])
    np.testing.assert_array_equal(slices_of(shared), frames * 2.0 - 1024)
    each = [rescaling(2**number, number) for number in range(3)]
    own = to_dicom(frames, 12, compressed, PerFrameFunctionalGroupsSequence=each)
    np.testing.assert_array_equal(slices_of(own), [frame * 2.0**n + n for n, frame in enumerate(frames)])


@pytest.mark.parametrize("encode", ["keep", "png", "raw"])
def test_dicom_of_8_bits_is_a_picture(encode: str) -> None:
    for numbers in (gray("uint8"), number_files.make_numbers("uint8", 3)):
        image = ImagePolicy(encode=encode, sum_pixels=True).prepare(to_dicom(numbers))
        assert image.source_format == "dicom" and image.sums is not None
        raw_image = image if encode == "raw" else ImagePolicy(encode="raw").prepare(image.data)
        np.testing.assert_array_equal(values_of(raw_image), numbers)


def test_dicom_of_more_bits_needs_a_range() -> None:
    numbers = gray("uint16") >> 4
    assert "set image.range: [LOWEST, HIGHEST]" in refuse(ImagePolicy(), to_dicom(numbers, 12), Reason.PIXEL_TYPE)
    found = values_of(raw(PixelType(range=(0, 4095))).prepare(to_dicom(numbers, 12)))
    np.testing.assert_array_equal(found, np.rint(numbers / 4095 * 255))


@case_tables.each_case(
    "elements",
    {
        "palette": {"PhotometricInterpretation": "PALETTE COLOR"},
        "inverted-measures": {"PhotometricInterpretation": "MONOCHROME1", "RescaleSlope": 2, "RescaleIntercept": 0},
    },
)
def test_dicom_without_levels_is_unsupported(elements: dict[str, Any]) -> None:
    assert "a DICOM file of " in refuse(raw(), to_dicom(gray(), **elements), Reason.UNSUPPORTED_FORMAT)


# --- NIfTI -----------------------------------------------------------------------------------------------------------


def volume(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-1000, 1000, shape, np.int16)


def planes_of(numbers: np.ndarray, axes: str) -> dict[str, list[np.ndarray]]:
    """Returns the slices of a volume, from an array with the axes right, anterior, superior."""
    order = ["RASLPI".index(letter) % 3 for letter in axes]
    body = np.moveaxis(numbers, range(3), order)
    for axis, letter in zip(order, axes):
        body = np.flip(body, axis) if letter in "LPI" else body
    return {
        "axial": [body[::-1, ::-1, z].T for z in range(body.shape[2])],
        "coronal": [body[::-1, y, ::-1].T for y in reversed(range(body.shape[1]))],
        "sagittal": [body[x, ::-1, ::-1].T for x in reversed(range(body.shape[0]))],
    }


@pytest.mark.parametrize("axes", ["RAS", "LPS", "LAS", "PIR", "SLP"])
@pytest.mark.parametrize("packed", [False, True])
def test_nifti_is_cut_along_the_axes_of_the_body(axes: str, packed: bool) -> None:
    numbers = volume(3, 4, 5)
    for slope, intercept in ((1, 0), (0, 0), (0.5, -3)):
        data = to_nifti(numbers, axes, slope, intercept)
        data = gzip.compress(data) if packed else data
        assert image_formats.sniff_format(data) == "nifti"
        scale = (slope, intercept) if slope else (1, 0)
        for plane, expected in planes_of(numbers * scale[0] + scale[1], axes).items():
            found = slices_of(data, plane=plane)
            assert len(found) == len(expected)
            assert raw(plane=plane).find_size(data) == expected[0].shape
            for one, other in zip(found, expected):
                np.testing.assert_array_equal(one, other)
        stored = slices_of(data, plane="stored")
        np.testing.assert_array_equal(stored, (numbers * scale[0] + scale[1]).transpose(2, 1, 0))


def test_volumes_over_time_follow_each_other() -> None:
    numbers = volume(3, 4, 5, 2)
    expected = [each for time in range(2) for each in planes_of(numbers[..., time], "LAS")["axial"]]
    np.testing.assert_array_equal(slices_of(to_nifti(numbers, "LAS")), expected)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_both_versions_of_nifti_and_both_orders_of_bytes_are_read(kind: Any, order: str) -> None:
    numbers = volume(3, 4, 5)
    data = kind(numbers, np.eye(4), kind.header_class(endianness=order)).to_bytes()
    np.testing.assert_array_equal(slices_of(data), planes_of(numbers, "RAS")["axial"])


def test_volumes_need_each_and_say_how_they_lie() -> None:
    assert "it holds 5 slices: set image.frames: each" in refuse(
        raw(), to_nifti(volume(3, 4, 5), "RAS"), Reason.SEVERAL_FRAMES
    )
    assert "set image.frames: each" in refuse(raw(), to_dicom(volume(2, 4, 5)), Reason.SEVERAL_FRAMES)
    unknown = to_nifti(volume(3, 4, 1), None)
    assert refuse(raw(), unknown, Reason.UNSUPPORTED_FORMAT).endswith("set image.plane: stored")
    assert values_of(raw(plane="stored").prepare(unknown)).shape == (4, 3)
    assert "neither volume" in refuse(raw(), to_nifti(volume(3, 4, 5, 2, 2), "RAS"), Reason.UNSUPPORTED_FORMAT)


# --- broken files ----------------------------------------------------------------------------------------------------


def test_files_that_are_cut_short_are_rejected() -> None:
    one, many = to_dicom(gray()), to_nifti(volume(8, 9, 1), "RAS")
    for data in (one, to_dicom(gray(), compressed=medical_files.RLE), many, gzip.compress(many)):
        # The last eight bytes are the end mark of pixels or of gzip: without them nothing is lost.
        for end in itertools.chain(range(348, len(data) - 9, 97), [len(data) - 9]):
            with pytest.raises(checked_image.BadImageError):
                raw().prepare(data[:end])


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for package, data in [("pydicom", to_dicom(gray())), ("nibabel", to_nifti(volume(2, 2, 1), "RAS"))]:
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(errors.ConfigError, match=r"pip install 'imagebeam\[medical\]'") as raised:
            raw().prepare(data)
        assert raised.value.code == "package-missing"
