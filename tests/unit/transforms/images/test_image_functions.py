"""What a function of the user sees of each kind of image, and what is stored of what it returns."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterator

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

from imagebeam.transforms import elements, user_code
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, image_functions, pixels
from imagebeam.transforms.images.prepare import ImagePolicy
from imagebeam.transforms.images.resample import Scaling
from tests import animations, case_tables, image_sets, medical_files, pictures, user_functions
from tests.image_sets import save

REF = elements.ImageRef("a/b.jpg", "/images/a/b.jpg")
SIZE = (260, 172)  # width and height: so large that a JPEG could be decoded at a part of it
PHOTO = pictures.photo(*SIZE)
RAW = PHOTO.tobytes()
WIDE = np.asarray(PHOTO.convert("L")).astype(np.uint16) * 256 + 77
FILES = {
    "jpeg": save(PHOTO, "JPEG", quality=95),
    "gray jpeg": save(PHOTO.convert("L"), "JPEG", quality=95),
    "turned jpeg": save(PHOTO, "JPEG", quality=95, exif=image_sets.turned(6)),
    "gray png": save(PHOTO.convert("L"), "PNG"),
    "rgba png": save(PHOTO.convert("RGBA"), "PNG"),
    "palette png": save(PHOTO.quantize(64), "PNG"),
    "16 bits": save(PIL.Image.fromarray(WIDE), "PNG"),
    "turned png": save(PHOTO, "PNG", exif=image_sets.turned(5)),
    "webp": save(PHOTO, "WEBP", lossless=True),
    "bare pixels": RAW,
}
LOSSY = ("jpeg", "gray jpeg", "turned jpeg")
EDITS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda image: image,
    "crop": lambda image: image[user_functions.CROP],
    "gray": lambda image: image[..., :1],
}


def view(data: bytes) -> np.ndarray:
    """Returns the upright pixels of a file by Pillow: uint8 [height, width, channels]."""
    if data is RAW:
        return np.asarray(PHOTO)
    picture = PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(data)))
    if picture.mode == "P":
        picture = picture.convert("RGB")
    values = np.asarray(picture)
    values = (values >> 8).astype(np.uint8) if values.dtype == np.uint16 else values
    return values if values.ndim == 3 else values[..., np.newaxis]


def stored(image: checked_image.Image) -> np.ndarray:
    if image.format == "raw":
        return np.frombuffer(image.data, np.uint8).reshape(image.height, image.width, image.channels)
    return view(image.data)


def policy(data: bytes, function: str = "", keep_if: str = "", **options: object) -> ImagePolicy:
    functions = image_functions.ImageFunctions(
        user_code.find("image.function", f"tests.user_functions:{function}") if function else None,
        user_code.find("image.keep_if", f"tests.user_functions:{keep_if}") if keep_if else None,
        keeps_size=bool(options.pop("keeps_size", False)),
    )
    shape = (SIZE[1], SIZE[0], 3) if data is RAW else None
    return dataclasses.replace(ImagePolicy(raw_shape=shape, functions=functions), **options)  # type: ignore[arg-type]


def run(data: bytes, *functions: str, **options: object) -> checked_image.Image:
    user_functions.seen.clear()
    return policy(data, *functions, **options).for_image(REF).prepare(data)


def refused(data: bytes, *functions: str, **options: object) -> checked_image.BadImageError:
    with pytest.raises(checked_image.BadImageError) as caught:
        run(data, *functions, **options)
    return caught.value


@case_tables.each_case("data", FILES)
@case_tables.each_case("encode", ["keep", "jpeg", "png", "raw"])
@case_tables.each_case("side", [None, 24])
def test_function_sees_all_upright_pixels(data: bytes, encode: str, side: int | None) -> None:
    scaling = Scaling(shortest_side=side)
    for function, keep_if in [("identity", ""), ("", "stays")]:
        if data is RAW and encode == "keep" and (side or function):
            continue  # refused when the job is built
        image = run(data, function, keep_if, encode=encode, scaling=scaling)
        (seen,) = user_functions.seen
        assert seen.dtype == np.uint8
        is_turned_in_place = data is FILES["turned jpeg"] and keep_if and encode == "keep" and not side
        np.testing.assert_array_equal(seen, stored(image) if is_turned_in_place else view(data))


@case_tables.each_case("data", FILES)
@case_tables.each_case("encode", ["keep", "jpeg", "png", "raw"])
@case_tables.each_case("name", [*EDITS])
def test_what_the_function_returns_is_stored(data: bytes, encode: str, name: str) -> None:
    if data is RAW and encode == "keep":
        return
    image = run(data, name, encode=encode)
    expected = EDITS[name](view(data))
    found = stored(image)
    assert (image.height, image.width) == expected.shape[:2] == found.shape[:2]
    is_jpeg = encode == "jpeg" or (encode == "keep" and data[:2] == b"\xff\xd8")
    assert image.format == ("jpeg" if is_jpeg else "raw" if encode == "raw" else "png")
    if is_jpeg:
        assert np.abs(found.astype(int) - expected[..., : found.shape[2]]).mean() < 4
    else:
        np.testing.assert_array_equal(found, expected)


@case_tables.each_case("data", {name: data for name, data in FILES.items() if name != "rgba png"})
@case_tables.each_case("resampler, tolerance", [("pillow", 0), ("native", 4)])
@case_tables.each_case("name", [*EDITS])
def test_what_the_function_returns_is_scaled(data: bytes, resampler: str, tolerance: int, name: str) -> None:
    image = run(data, name, encode="raw", scaling=Scaling(size=(6, 5), resampler=resampler))
    edited = np.ascontiguousarray(EDITS[name](view(data)))
    picture = PIL.Image.fromarray(edited if edited.shape[2] > 1 else edited[..., 0])
    expected = np.asarray(picture.resize((5, 6), PIL.Image.Resampling.BICUBIC)).reshape(6, 5, -1)
    np.testing.assert_allclose(stored(image).astype(int), expected, atol=tolerance)


@case_tables.each_case("data", FILES)
@case_tables.each_case("color, channels", [("rgb", 3), ("gray", 1)])
def test_function_sees_and_stores_the_channels_of_the_config(data: bytes, color: str, channels: int) -> None:
    for function in ["identity", "gray", "with_alpha"]:
        image = run(data, function, encode="png", color=color)
        assert image.channels == channels
    run(data, "identity", encode="png", color=color)
    assert user_functions.seen[0].shape[2] == channels


@case_tables.each_case("encode", ["keep", "png", "raw"])
def test_alpha_that_a_function_adds_to_a_jpeg_is_stored(encode: str) -> None:
    image = run(FILES["jpeg"], "with_alpha", encode=encode)
    assert image.channels == 4
    assert (stored(image)[..., 3] == 200).all()


@case_tables.each_case("data", {name: data for name, data in FILES.items() if name not in ("turned png", "webp")})
def test_image_that_stays_keeps_its_bytes(data: bytes) -> None:
    image = run(data, "", "stays")
    assert image == dataclasses.replace(policy(data), functions=image_functions.NONE).prepare(data)
    assert user_functions.seen


def test_keep_if_goes_first_and_its_changes_are_lost() -> None:
    image = run(FILES["gray png"], "identity", "stays", encode="png")
    assert len(user_functions.seen) == 2
    np.testing.assert_array_equal(stored(image), view(FILES["gray png"]))
    assert refused(FILES["jpeg"], "fails", "leaves").reason is Reason.FILTERED


REFUSED = {  # function, keep_if: the reason, and a part of the detail
    ("nothing", ""): (Reason.FILTERED, "image.function returned None"),
    ("", "leaves"): (Reason.FILTERED, "image.keep_if returned False"),
    ("fails", ""): (
        Reason.FUNCTION,
        "image.function 'tests.user_functions:fails' raised ValueError: no face in it, user_functions.py line ",
    ),
    ("floats", ""): (Reason.FUNCTION, "returned float64 ["),
    ("five_channels", ""): (Reason.FUNCTION, "returned uint8 [2, 3, 5], expected uint8 [height, width, 1 to 4 "),
    ("empty", ""): (Reason.FUNCTION, "returned uint8 [0, "),
    ("", "says_one"): (Reason.FUNCTION, "image.keep_if 'tests.user_functions:says_one' returned 1, expected True or"),
}


@case_tables.each_case("data", FILES)
@case_tables.each_case("functions", [*REFUSED])
def test_image_that_a_function_gives_no_pixels_of_is_rejected(data: bytes, functions: tuple[str, str]) -> None:
    reason, detail = REFUSED[functions]
    for encode in ["jpeg", "raw"] if data is RAW else ["keep", "png"]:
        for scaling in [Scaling(), Scaling(size=(4, 4))]:
            error = refused(data, *functions, encode=encode, scaling=scaling)
            assert (error.reason, detail in error.detail) == (reason, True), error.detail


def test_other_size_is_rejected_where_boxes_refer_to_the_pixels() -> None:
    error = refused(FILES["turned jpeg"], "crop", keeps_size=True)
    assert error.reason is Reason.FUNCTION
    assert "returned 7 x 8 pixels for 260 x 172, and the boxes or masks" in error.detail
    assert run(FILES["turned jpeg"], "identity", keeps_size=True).height == 260


def test_too_many_pixels_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_image, "MAX_DECODED_PIXELS", 172 * 260 - 1)
    assert "more than 44,719" in refused(RAW, "identity", encode="png").detail


@case_tables.each_case("encode", ["keep", "png", "raw"])
def test_function_sees_slices_of_medical_files(encode: str) -> None:
    slices = np.stack([np.asarray(PHOTO.convert("L"))] * 2)
    one, several = medical_files.to_dicom(slices[0]), medical_files.to_dicom(slices)
    expected = slices[0][user_functions.CROP][..., np.newaxis]
    np.testing.assert_array_equal(stored(run(one, "crop", encode=encode)), expected)
    assert refused(one, "", "leaves").reason is Reason.FILTERED
    assert [stored(image).shape for image in frames_of(several, "crop")] == [expected.shape] * 2


def frames_of(data: bytes, function: str, keep_if: str = "") -> Iterator[checked_image.Image]:
    frames = policy(data, function, keep_if, frames="each").for_image(REF).prepare_frames(data)
    assert frames is not None
    for image in frames.images:
        assert isinstance(image, checked_image.Image), image
        yield image


@case_tables.each_case("kind", ["gif", "apng", "tiff"])
def test_function_sees_each_frame(kind: str) -> None:
    data = animations.save(animations.draw(3, 4), kind)
    user_functions.seen.clear()
    for each in (list(frames_of(data, "identity")), list(frames_of(data, "", "stays"))):
        for image, shown in zip(each, animations.shown(data), strict=True):
            np.testing.assert_array_equal(animations.pixels_of(image.data), shown)
    assert len(user_functions.seen) == 8
    for image, shown in zip(frames_of(data, "crop"), animations.shown(data), strict=True):
        np.testing.assert_array_equal(animations.pixels_of(image.data), shown[user_functions.CROP])


def test_modes_of_pictures_have_as_many_channels_as_functions_may_return() -> None:
    assert {channels: len(PIL.Image.new(mode, (1, 1)).getbands()) for channels, mode in pixels.MODES.items()} == {
        channels: channels for channels in range(1, 5)
    }
