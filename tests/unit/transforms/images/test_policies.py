"""What each policy of the section `image` makes of each kind of image."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, orientations, pixels, structure
from imagebeam.transforms.images.checked_image import Limits
from imagebeam.transforms.images.prepare import ImagePolicy
from imagebeam.transforms.images.resample import Scaling
from tests import encoded_images, pictures
from tests.mask_forms import save

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


def test_lossy_picture_with_alpha_becomes_a_png_that_has_it() -> None:
    picture = PHOTO.copy()
    picture.putalpha(PIL.Image.linear_gradient("L").resize(PHOTO.size))
    image = ImagePolicy().prepare(save(picture, "WEBP", quality=80))
    assert (image.format, image.channels) == ("png", 4)


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
        exif = PIL.Image.Exif()
        exif[0x0112] = 6
        data = save(PHOTO, format, exif=exif)
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
                exif = PIL.Image.Exif()
                exif[0x0112] = orientation
                stored = pixels.turn_upright(upright, orientations.inverse(orientation))
                data = save(
                    stored, format, exif=exif, **({"quality": 95} if format in ("JPEG", "AVIF") else {"lossless": True})
                )
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
