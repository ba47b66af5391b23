from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ImageCms

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, orientations, pixels, resample, structure
from imagebeam.transforms.images.checked_image import Limits
from imagebeam.transforms.images.pixels import Encoding
from imagebeam.transforms.images.prepare import ImagePolicy
from imagebeam.transforms.images.resample import Scaling
from tests import encoded_images, image_sets, pictures
from tests.image_sets import save

ENCODINGS = ("jpeg", "png", "raw", "int64_list", "float_list")
MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
NOISE = np.random.default_rng(7).integers(0, 256, (13, 17, 4)).astype(np.uint8)


def picture_of(mode: str) -> PIL.Image.Image:
    """Returns noise of 13 x 17 pixels."""
    if mode == "I;16":
        return PIL.Image.fromarray(NOISE[..., 0].astype(np.uint16) * 257 + NOISE[..., 1] % 3)
    rgba = PIL.Image.fromarray(NOISE)
    return rgba if mode == "RGBA" else rgba.convert("RGB").convert(mode) if mode != "LA" else rgba.convert("LA")


def open_picture(data: bytes) -> PIL.Image.Image:
    return PIL.Image.open(io.BytesIO(data))


def values_of(image: checked_image.Image) -> np.ndarray:
    """Returns the pixels of an image stored as raw: uint8 [height, width, channels]."""
    assert image.format == "raw"
    return np.frombuffer(image.data, np.uint8).reshape(image.height, image.width, image.channels)


def rejection(policy: ImagePolicy, data: bytes) -> checked_image.BadImageError:
    with pytest.raises(checked_image.BadImageError) as caught:
        policy.prepare(data)
    return caught.value


# --- kept ------------------------------------------------------------------------------------------------------------


def test_kept_image_is_its_own_bytes() -> None:
    for check in ["structure", "decode"]:
        for sum_pixels in [False, True]:
            data = image_sets.make_image(1) + b"what follows the end"
            image = ImagePolicy(check=check, sum_pixels=sum_pixels).prepare(data)
            assert image.data is data
            assert (image.format, image.height, image.width, image.sums is None) == ("jpeg", 16, 24, not sum_pixels)


def test_kept_image_that_is_decoded_must_be_decodable() -> None:
    for options in [{"check": "decode"}, {"sum_pixels": True}]:
        data = bytearray(save(picture_of("RGB"), "PNG"))
        at = data.index(b"IDAT") + 4
        length = int.from_bytes(data[at - 8 : at - 4], "big")
        data[at : at + length] = bytes(length)
        damaged = encoded_images.with_right_crcs(bytes(data))
        assert ImagePolicy().prepare(damaged).height == 13
        assert rejection(ImagePolicy(**options), damaged).reason is Reason.UNDECODABLE


def test_other_formats_are_rejected_where_that_is_wanted() -> None:
    for format in ["GIF", "BMP", "WEBP", "TIFF", "PPM"]:
        error = rejection(ImagePolicy(other_formats="reject"), save(picture_of("RGB"), format))
        assert error.reason is Reason.UNSUPPORTED_FORMAT
        assert error.detail.endswith("expected jpeg or png: set image.other_formats: encode, or convert it first")


# --- re-encoded ------------------------------------------------------------------------------------------------------


def test_colors_of_png_are_those_that_tensorflow_decodes() -> None:
    for mode in MODES:
        data = save(picture_of(mode), "PNG")
        for color, channels in (("rgb", 3), ("keep", 0)):
            expected = tf.io.decode_png(data, channels=channels).numpy()
            assert np.array_equal(values_of(ImagePolicy(encode="raw", color=color).prepare(data)), expected)


def test_cmyk_jpeg_becomes_rgb_as_tensorflow_decodes_it() -> None:
    data = save(pictures.photo(60, 40).convert("CMYK"), "JPEG", quality=95)
    found = values_of(ImagePolicy(encode="raw").prepare(data)).astype(int)
    expected = tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE").numpy()
    assert np.abs(found - expected).max() <= 1


def test_jpeg_has_no_alpha() -> None:
    for mode in ["RGBA", "LA"]:
        data = save(picture_of(mode), "PNG")
        stored = ImagePolicy(encode="jpeg", encoding=Encoding(quality=100, chroma="4:2:0")).prepare(data)
        expected = open_picture(data).convert("RGB" if mode == "RGBA" else "L")
        assert stored.channels == len(expected.getbands())
        assert stored.data == save(expected, "JPEG", quality=100)


def test_mean_averages_three_channels_and_rounds_down() -> None:
    for mode in ["RGB", "RGBA", "P"]:
        data = save(picture_of(mode), "PNG")
        expected = np.floor(np.mean(np.asarray(open_picture(data).convert("RGB")).astype(np.float64), axis=2))
        image = ImagePolicy(encode="int64_list", color="mean").prepare(data)
        assert np.array_equal(values_of(image)[..., 0], expected)
        assert image.colorspace == "GRAY"


def test_gray_is_luma() -> None:
    image = ImagePolicy(encode="raw", color="gray").prepare(save(picture_of("RGB"), "PNG"))
    red, green, blue = np.moveaxis(NOISE[..., :3].astype(float), -1, 0)
    assert np.abs(values_of(image)[..., 0] - (0.299 * red + 0.587 * green + 0.114 * blue)).max() < 1


def test_wide_numbers_of_a_tiff_become_bytes_or_are_rejected() -> None:
    values = np.array([[0, 255, 256, 512, 65_535]], np.int32)
    image = ImagePolicy(encode="raw").prepare(save(PIL.Image.fromarray(values), "TIFF"))
    assert list(image.data) == [0, 0, 1, 2, 255]
    for wrong in (values - 1, values + 1, np.array([[0, 0.5, 1]], np.float32), np.array([[0, 255]], np.float32)):
        with pytest.raises(checked_image.BadImageError, match=r"set image.range: \[LOWEST, HIGHEST\]") as raised:
            ImagePolicy(encode="raw").prepare(save(PIL.Image.fromarray(wrong), "TIFF"))
        assert raised.value.reason == Reason.PIXEL_TYPE


def test_white_level_scales_wide_numbers() -> None:
    for values in [np.uint16, np.int32]:
        picture = PIL.Image.fromarray(np.array([[0, 15, 16, 2048, 4095, 65_535]], values))
        image = ImagePolicy(encode="raw", white_level=4095).prepare(save(picture, "TIFF"))
        assert list(image.data) == [0, 0, 1, 128, 255, 255]


def test_white_level_encodes_gray_pngs_of_16_bits_and_no_others_again() -> None:
    policy = ImagePolicy(white_level=4095)
    image = policy.prepare(save(picture_of("I;16"), "PNG"))
    assert (image.reencoded, open_picture(image.data).mode) == ("png of 16 bits", "L")
    for mode in ("L", "LA", "RGB"):
        data = save(picture_of(mode), "PNG")
        assert policy.prepare(data).data == data
    scaled = ImagePolicy(white_level=4095, scaling=Scaling(size=(5, 5))).prepare(save(picture_of("I;16"), "PNG"))
    assert (scaled.height, scaled.highest) == (5, int(np.asarray(picture_of("I;16")).max()))


def test_white_level_holds_for_pictures_with_a_profile() -> None:
    picture = PIL.Image.fromarray(np.full((8, 8), 4095, np.uint16))
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    data = save(picture, "TIFF", icc_profile=profile)
    assert set(ImagePolicy(encode="raw", white_level=4095, profile="srgb").prepare(data).data) == {255}


def test_bytes_of_no_complete_image_are_rejected() -> None:
    for data, reason, detail in [
        (b"", Reason.EMPTY_FILE, "0 bytes"),  # empty
        (b"hello, world", Reason.NOT_AN_IMAGE, "text: "),  # text
        (b"v/1\x01" + bytes(30), Reason.UNSUPPORTED_FORMAT, "exr (first bytes"),  # exr
        (b"DDS |\0" + bytes(30), Reason.UNSUPPORTED_FORMAT, "dds (first bytes"),  # dds
        (image_sets.make_image(1)[:-30], Reason.TRUNCATED, "no end-of-image marker"),  # truncated-jpeg
        (image_sets.make_image(1, "GIF")[:-100], Reason.UNDECODABLE, "Pillow: image file is truncated"),
        (image_sets.make_image(1, "BMP")[:-30], Reason.UNDECODABLE, "Pillow: image file is truncated"),  # truncated-bmp
    ]:
        for encoding in ENCODINGS:
            error = rejection(ImagePolicy(encode=encoding), data)
            assert error.reason is reason
            assert error.detail.startswith(detail)


def test_re_encoded_image_has_no_metadata() -> None:
    for format in ["JPEG", "PNG"]:
        exif = PIL.Image.Exif()
        exif[0x010E] = "a description"
        options = {"comment": b"a comment"} if format == "JPEG" else {}
        data = save(picture_of("RGB"), format, icc_profile=b"a profile" * 20, exif=exif, dpi=(300, 300), **options)
        for encoding in ("jpeg", "png"):
            stored = ImagePolicy(encode=encoding).prepare(data).data
            assert not [word for word in (b"profile", b"description", b"comment", b"tRNS", b"pHYs") if word in stored]


# --- scaled ----------------------------------------------------------------------------------------------------------


def test_resize_by_pillow_is_its_bicubic() -> None:
    for color in ["keep", "mean"]:
        photo = pictures.photo(60, 40)
        image = ImagePolicy(encode="raw", color=color, scaling=Scaling((25, 20), resampler="pillow")).prepare(
            save(photo, "PNG")
        )
        mean = PIL.Image.fromarray((np.asarray(photo).astype(int).sum(2) // 3).astype(np.uint8))
        expected = np.asarray((photo if color == "keep" else mean).resize((20, 25)))  # bicubic is Pillow's default
        assert np.array_equal(values_of(image).squeeze(), expected)
        assert (image.height, image.width) == (25, 20)


@settings(deadline=None)
@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 10_000))
def test_scaled_sides_are_the_nearest_pixels(width: int, height: int, shortest_side: int) -> None:
    found = Scaling(shortest_side=shortest_side, enlarge=True).scaled(width, height)
    assert min(found) >= shortest_side == found[width > height]
    assert abs(max(found) - max(width, height) * shortest_side / min(width, height)) <= 0.5


def test_picture_that_the_format_cannot_hold_is_too_large() -> None:
    for encoding, side in [("jpeg", 65_501), ("webp", 16_384)]:
        data = save(PIL.Image.new("L", (side, 1)), "PNG")
        assert ImagePolicy(encode="png").prepare(data).width == side
        error = rejection(ImagePolicy(encode=encoding), data)
        assert error.reason is Reason.TOO_LARGE
        assert error.detail == f"1 x {side} pixels are more than decoders take: scale it down"


def test_pixels_that_an_example_cannot_hold_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    data = save(PIL.Image.new("L", (40, 30)), "PNG")
    monkeypatch.setattr(structure, "MAX_IMAGE_BYTES", 1500)
    assert ImagePolicy(encode="raw").prepare(data).width == 40
    for encoding in ("int64_list", "float_list"):
        error = rejection(ImagePolicy(encode=encoding), data)
        assert error.reason is Reason.TOO_LARGE
        assert "30 x 40 x 1 pixels are up to " in error.detail


# --- bare pixels -----------------------------------------------------------------------------------------------------


def test_bare_pixels_are_prepared_like_other_images() -> None:
    for channels in [1, 2, 3, 4]:
        array = np.ascontiguousarray(NOISE[..., :channels])
        shape = (13, 17, channels)
        data = array.tobytes()
        kept = ImagePolicy(raw_shape=shape).prepare(data)
        assert kept.data is data
        for encoding in ("raw", "int64_list", "float_list"):
            image = ImagePolicy(raw_shape=shape, encode=encoding).prepare(data)
            assert image == kept
            assert (image.format, image.height, image.width, image.channels) == ("raw", *shape)
        png = ImagePolicy(raw_shape=shape, encode="png").prepare(data)
        assert np.array_equal(tf.io.decode_png(png.data).numpy(), array)
        jpeg = ImagePolicy(raw_shape=shape, encode="jpeg").prepare(data)
        assert jpeg.channels == (1 if channels < 3 else 3)
        resized = ImagePolicy(raw_shape=shape, encode="raw", color="mean", scaling=Scaling((4, 5))).prepare(data)
        assert (resized.height, resized.width, resized.channels) == (4, 5, 1)


def test_bare_pixels_are_scaled_as_pictures_are() -> None:
    for resampler in ["native", "pillow"]:
        for fields in [
            {"size": (4, 5)},
            {"size": (40, 5), "filter": "lanczos"},
            {"shortest_side": 7},
            {"max_pixels": 9},
        ]:
            how = Scaling(**fields, resampler=resampler)
            for channels in (1, 2, 3, 4):
                array = np.ascontiguousarray(NOISE[:13, :17, :channels])
                found = ImagePolicy(raw_shape=(13, 17, channels), encode="raw", scaling=how).prepare(array.tobytes())
                picture = pixels.from_bytes(array.tobytes(), (13, 17, channels))
                expected = resample.resize(picture, how.scaled(17, 13), how.filter, resampler)
                assert found.data == expected.tobytes()
                assert (found.width, found.height) == expected.size


def test_wrong_number_of_bare_pixels_is_rejected() -> None:
    for encoding in ["keep", *ENCODINGS]:
        error = rejection(ImagePolicy(raw_shape=(4, 5, 3), encode=encoding), bytes(59))
        assert (error.reason, error.detail) == (Reason.TRUNCATED, "59 bytes, 4 x 5 x 3 pixels are 60")


# --- sums ------------------------------------------------------------------------------------------------------------


def test_sums_are_those_of_the_stored_pixels_as_a_reader_decodes_them() -> None:
    for encoding in ["keep", *ENCODINGS]:
        for mode in MODES:
            image = ImagePolicy(encode=encoding, sum_pixels=True).prepare(save(picture_of(mode), "PNG"))
            if image.format == "raw":
                stored = values_of(image)[..., : 1 if image.channels < 3 else 3]
                stored = np.broadcast_to(stored, (13, 17, 3))
            elif image.format == "jpeg":
                stored = np.asarray(open_picture(image.data).convert("RGB"))
            else:
                stored = tf.io.decode_png(image.data, channels=3).numpy()
            expected = stored.reshape(-1, 3).astype(np.int64)
            assert image.sums == (13 * 17, tuple(expected.sum(0)), tuple((expected**2).sum(0)))
            assert image._replace(sums=None) == ImagePolicy(encode=encoding).prepare(save(picture_of(mode), "PNG"))


# --- damaged ---------------------------------------------------------------------------------------------------------

_SEEDS = [
    *(save(pictures.photo(24, 18), format) for format in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")),
    save(pictures.photo(24, 18), "TIFF", compression="tiff_lzw"),
    save(pictures.photo(24, 18).convert("P"), "GIF", save_all=True, append_images=[pictures.photo(24, 18)]),
    save(pictures.photo(24, 18).convert("CMYK"), "JPEG"),
    save(picture_of("I;16"), "PNG"),
    save(pictures.photo(24, 18), "JPEG2000"),
    save(pictures.photo(24, 18), "AVIF"),
    save(pictures.photo(24, 18), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\1\x01\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"),
]


def mutate(data: bytes, seed: int) -> bytes:
    """Changes, removes, inserts or cuts off some bytes, mostly in the head, where the structure is."""
    rng = random.Random(seed)
    mutated = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = min(int(rng.expovariate(1 / 60)), len(mutated) - 1) if rng.random() < 0.7 else rng.randrange(len(mutated))
        what = rng.random()
        if what < 0.6:
            mutated[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif what < 0.75:
            del mutated[at : at + rng.randint(1, 8)]
        elif what < 0.9:
            mutated[at:at] = rng.randbytes(rng.randint(1, 8))
        else:
            del mutated[max(at, 12) :]
        if not mutated:
            return b""
    return bytes(mutated)


@pytest.mark.parametrize("encoding", ["keep", *ENCODINGS])
@settings(max_examples=200, deadline=None)
@given(which=st.integers(0, len(_SEEDS) - 1), seed=st.integers(0, 2**32))
def test_broken_bytes_become_an_image_or_a_reject(encoding: str, which: int, seed: int) -> None:
    policy = ImagePolicy(
        encode=encoding, scaling=Scaling(shortest_side=None if encoding == "keep" else 10), sum_pixels=True
    )
    try:
        image = policy.prepare(mutate(_SEEDS[which], seed))
    except checked_image.BadImageError as e:
        assert e.detail
    else:
        assert min(image.height, image.width) > 0
        assert image.sums is not None
        if image.format == "raw":
            assert len(image.data) == image.height * image.width * image.channels


# --- policies --------------------------------------------------------------------------------------------------------


PHOTO = pictures.photo(48, 32)


def decoded(data: bytes) -> np.ndarray:
    return np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


LOSSLESS = {
    "bmp": ("BMP", {}),
    "gif": ("GIF", {}),
    "ppm": ("PPM", {}),
    "tiff": ("TIFF", {}),
    "tiff-lzw": ("TIFF", {"compression": "tiff_lzw"}),
    "webp": ("WEBP", {"lossless": True}),
    "jp2": ("JPEG2000", {"irreversible": False}),
    "ico": ("ICO", {"sizes": [(48, 32)]}),
}
LOSSY = {
    "tiff": ("TIFF", {"compression": "jpeg", "quality": 90}),
    "webp": ("WEBP", {"quality": 80}),
    "avif": ("AVIF", {"quality": 80}),
    "jp2": ("JPEG2000", {"irreversible": True, "quality_layers": [20]}),
}


def test_what_was_compressed_without_loss_becomes_a_png_of_the_same_pixels() -> None:
    for kind in LOSSLESS:
        format, options = LOSSLESS[kind]
        data = save(PHOTO, format, **options)
        image = ImagePolicy().prepare(data)
        assert (image.format, image.reencoded) == ("png", f"{kind.partition('-')[0]} to png")
        assert np.array_equal(decoded(image.data), decoded(data))
        assert tf.io.decode_image(image.data).shape == (image.height, image.width, image.channels)
        assert ImagePolicy(other_formats="encode", check="tensorflow").prepare(data) == image


def test_what_was_compressed_with_loss_becomes_a_jpeg() -> None:
    for kind in LOSSY:
        format, options = LOSSY[kind]
        data = save(PHOTO, format, **options)
        image = ImagePolicy().prepare(data)
        assert (image.format, image.reencoded) == ("jpeg", f"{kind} to jpeg")
        assert pictures.psnr(decoded(image.data), decoded(data)) > 35
        assert structure.check_image(image.data, "decode").height == 32


def test_bitmap_without_a_file_header_is_taken_and_a_cursor_is_no_image() -> None:
    image = ImagePolicy().prepare(save(PHOTO, "BMP")[14:])
    assert (image.reencoded, image.height) == ("bmp to png", 32)
    assert np.array_equal(decoded(image.data), np.asarray(PHOTO).astype(int))
    with pytest.raises(checked_image.BadImageError, match=r"^unsupported_format: cur \(first bytes"):
        ImagePolicy().prepare(b"\0\0\2\0\1\0" + bytes(40))


def test_raw_photo_is_not_taken_for_its_preview() -> None:
    for tags in [{254: 1}, {50706: b"\1\4\0\0"}]:
        with pytest.raises(checked_image.BadImageError, match=r"^unsupported_format: a camera's raw photo"):
            ImagePolicy().prepare(save(PHOTO, "TIFF", tiffinfo=tags))
        assert ImagePolicy().prepare(save(PHOTO, "TIFF", tiffinfo={254: 0})).format == "png"


def test_jpeg_2000_whose_colors_pillow_decodes_wrong_is_refused() -> None:
    data = save(PHOTO, "JPEG2000")
    depth = data.index(b"\xff\x4f\xff\x51") + 42
    with pytest.raises(checked_image.BadImageError, match=r"^unsupported_format: colors of more than 8 bits"):
        ImagePolicy().prepare(encoded_images.overwrite(data, depth, b"\x0f"))
    gray = PIL.Image.fromarray(np.full((9, 9), 0xFFFF, np.uint16))
    assert decoded(ImagePolicy().prepare(save(gray, "JPEG2000")).data).min() == 255


def test_jpeg_of_many_scans_is_refused() -> None:
    data = save(PHOTO, "JPEG", progressive=True)
    last = data.rindex(encoded_images.SOS)
    assert ImagePolicy().prepare(data).height == 32
    with pytest.raises(checked_image.BadImageError, match=r"^too_large: more than 200 scans"):
        ImagePolicy().prepare(data[:-2] + data[last:-2] * 200 + data[-2:])


def test_turned_image_that_is_cut_is_rejected_with_every_check() -> None:
    for format in ["JPEG", "PNG"]:
        data = save(PHOTO, format, exif=image_sets.turned())
        for check in ("header", "structure", "decode", "tensorflow"):
            with pytest.raises(checked_image.BadImageError, match=r"^truncated: "):
                ImagePolicy(check=check).prepare(data[:-6])


def test_first_of_several_frames_is_stored_or_the_file_rejected() -> None:
    for format in ["GIF", "TIFF", "WEBP", "PNG"]:
        options: dict[str, Any] = {
            "save_all": True,
            "append_images": [PIL.Image.new("RGB", PHOTO.size, each) for each in ("red", "blue")],
        }
        data = save(PHOTO, format, **options | ({"lossless": True} if format == "WEBP" else {}))
        first = ImagePolicy().prepare(data)
        assert np.array_equal(decoded(first.data), decoded(data))
        note = f"{format.lower()} to {first.format}, the first of several images in the file"
        assert first.reencoded == ("" if format == "PNG" else note)  # the bytes of a PNG are kept, with all its images
        with pytest.raises(checked_image.BadImageError, match=r"^several_frames: .*set image\.frames: first") as e:
            ImagePolicy(frames="reject").prepare(data)
        assert e.value.reason is Reason.SEVERAL_FRAMES
        with pytest.raises(checked_image.BadImageError, match=r"^too_large: 3 frames, image\.limits\.max_frames is 2$"):
            ImagePolicy(limits=Limits(max_frames=2)).prepare(data)
        assert ImagePolicy(limits=Limits(max_frames=3)).prepare(data) == first


def test_image_beyond_a_limit_is_rejected() -> None:
    for limits, reason, detail in [
        (Limits(max_bytes=10), Reason.TOO_LARGE, r"^[\d,]+ bytes, image.limits.max_bytes is 10$"),  # bytes
        (Limits(max_pixels=1000), Reason.TOO_LARGE, r"^32 x 48 pixels, image.limits.max_pixels is 1,000$"),  # pixels
        (Limits(max_side=40), Reason.TOO_LARGE, r"^32 x 48 pixels, image.limits.max_side is 40$"),  # longer-side
        (Limits(min_side=33), Reason.TOO_SMALL, r"^32 x 48 pixels, image.limits.min_side is 33$"),  # shorter-side
        (
            Limits(max_aspect_ratio=1.4),
            Reason.ASPECT_RATIO,
            r"^32 x 48 pixels have the ratio 1.5, image.limits.max_aspect_ratio is 1.4$",
        ),  # aspect
    ]:
        for format in ["JPEG", "PNG", "BMP", "TIFF", "WEBP"]:
            data = save(PHOTO, format)
            with pytest.raises(checked_image.BadImageError) as e:
                ImagePolicy(limits=limits).prepare(data)
            assert e.value.reason is reason
            with pytest.raises(checked_image.BadImageError, match=detail.replace("^", f"^{reason.value}: ")):
                ImagePolicy(limits=limits, encode="raw").prepare(data)
            just_within = Limits(10**6, 32 * 48, 32, 48, 1.5, 1)
            assert ImagePolicy(limits=just_within).prepare(data).height == 32


def test_bomb_is_rejected_by_its_header_unless_its_bytes_are_kept() -> None:
    bomb = encoded_images.png(
        encoded_images.ihdr(20_000, 20_000), encoded_images.chunk(b"IDAT", b"x"), encoded_images.IEND
    )
    assert ImagePolicy().prepare(bomb).data == bomb
    for policy in (ImagePolicy(encode="jpeg"), ImagePolicy(scaling=Scaling(shortest_side=256))):
        with pytest.raises(checked_image.BadImageError, match=r"more than 100,000,000: .*image.limits.max_pixels$"):
            policy.prepare(bomb)


def test_checks_find_what_they_name() -> None:
    for check in ["header", "structure", "decode", "tensorflow"]:
        whole = save(PHOTO, "JPEG")
        broken_scan = encoded_images.overwrite(
            whole, whole.rindex(encoded_images.SOS) + 60, b"\xff\xc0"
        )  # a marker in the middle of the pixels
        inflates_not = encoded_images.png(
            encoded_images.ihdr(8, 8), encoded_images.chunk(b"IDAT", encoded_images.ROWS[:-6]), encoded_images.IEND
        )
        policy = ImagePolicy(check=check)
        assert policy.prepare(whole).data == whole
        found = []
        for data in (whole[:-40], broken_scan, inflates_not):
            try:
                policy.prepare(data)
            except checked_image.BadImageError:
                found.append(True)
            else:
                found.append(False)
        expected = {"header": [False, False, False], "structure": [True, True, False]}
        assert found == expected.get(check, [True, True, True])


def test_eight_orientations_give_the_same_upright_picture() -> None:
    for orientation in range(1, 9):
        for format in ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"]:
            for sides in [(48, 32), (43, 29)]:
                upright = pictures.photo(*sides)
                stored = pixels.turn_upright(upright, orientations.inverse(orientation))
                options = {"quality": 95} if format in ("JPEG", "AVIF") else {"lossless": True}
                data = save(stored, format, exif=image_sets.turned(orientation), **options)
                image = ImagePolicy().prepare(data)
                as_stored = ImagePolicy(orientation="keep", encode="raw").prepare(data)
                assert (as_stored.width, as_stored.height, as_stored.orientation) == (*stored.size, orientation)
                if format in ("JPEG", "PNG"):
                    assert ImagePolicy(orientation="keep").prepare(data).data == data
                assert (image.width, image.height, image.orientation, image.turned) == (*sides, 1, orientation)
                limit = 24 if format in ("JPEG", "AVIF") else 99
                assert pictures.psnr(decoded(image.data), np.asarray(upright).astype(int)) > limit
                if orientation > 1:
                    with pytest.raises(
                        checked_image.BadImageError, match=f"^not_upright: its EXIF orientation is {orientation}"
                    ):
                        ImagePolicy(orientation="reject").prepare(data)
