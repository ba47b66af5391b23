"""Each picture of a file that has several, as it is stored."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageCms
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, frame_reader, pillow_decoder, png_structure
from imagebeam.transforms.images.checked_image import Limits
from imagebeam.transforms.images.pixels import Encoding
from imagebeam.transforms.images.prepare import ImagePolicy
from tests import animations, encoded_images, image_sets, pictures

EACH = ImagePolicy(frames="each")
FRAMES = animations.draw(1, 5)


def images_of(data: bytes, policy: ImagePolicy = EACH) -> list[checked_image.Image | checked_image.BadImageError]:
    frames = policy.prepare_frames(data)
    assert frames is not None
    images = list(frames.images)
    assert len(images) == frames.count
    return images


def whole(data: bytes, policy: ImagePolicy = EACH) -> list[checked_image.Image]:
    images = images_of(data, policy)
    assert all(isinstance(image, checked_image.Image) for image in images), images
    return [image for image in images if isinstance(image, checked_image.Image)]


def failures(data: bytes, policy: ImagePolicy = EACH) -> dict[int, str]:
    images = images_of(data, policy)
    return {number: str(each) for number, each in enumerate(images) if isinstance(each, checked_image.BadImageError)}


ANIMATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "gif": ("gif", {}),
    "gif-kept-frames": ("gif", {"disposal": 1}),
    "gif-previous-frame": ("gif", {"disposal": [1, 3, 2, 3, 0]}),
    "webp": ("webp", {}),
    "apng": ("apng", {}),
    "apng-blend-over": ("apng", {"disposal": 0, "blend": 1}),
    "apng-previous-frame": ("apng", {"disposal": [0, 2, 1, 2, 0], "blend": [0, 1, 1, 0, 1]}),
    "apng-with-another-first-picture": ("apng", {"default_image": True}),
    "tiff": ("tiff", {}),
    "tiff-lzw": ("tiff", {"compression": "tiff_lzw"}),
}


def test_each_frame_is_the_picture_that_pillow_composes() -> None:
    for name in ANIMATIONS:
        kind, options = ANIMATIONS[name]
        data = animations.save(FRAMES, kind, **options)
        images = whole(data)
        expected = animations.shown(data)
        assert len(images) == len(expected) == 5
        for image, picture in zip(images, expected):
            assert np.array_equal(animations.pixels_of(image.data), picture)
            assert (image.format, image.height, image.width) == ("png", 16, 24)
            assert image.reencoded == {"apng": "png frame"}.get(kind, f"{kind} to png")
        assert len({image.data for image in images}) == 5


def test_frame_that_was_compressed_with_loss_becomes_a_jpeg() -> None:
    for kind, options in [
        ("webp", {"lossless": False, "quality": 90}),
        ("avif", {}),
        ("tiff", {"compression": "jpeg"}),
    ]:
        data = animations.save([pictures.photo(48, 32), pictures.photo(48, 32).rotate(180)], kind, **options)
        for image, picture in zip(whole(data), animations.shown(data), strict=True):
            assert (image.format, image.reencoded) == ("jpeg", f"{kind} to jpeg")
            assert pictures.psnr(animations.pixels_of(image.data), picture) > 30


def test_frames_are_changed_as_a_still_picture_is() -> None:
    for encode in ["jpeg", "png", "webp", "raw"]:
        frames = [frame.convert("RGB") for frame in FRAMES]
        policy = ImagePolicy(
            frames="each", encode=encode, color="rgb", encoding=Encoding(webp="lossless"), sum_pixels=True
        )
        for image, frame in zip(whole(animations.save(frames, "tiff"), policy), frames, strict=True):
            still = image_sets.save(frame, "TIFF")
            assert policy.prepare_frames(still) is None
            assert image == policy.prepare(still)


def test_file_of_one_picture_is_no_animation() -> None:
    for kind in animations.SAVED:
        data = animations.save(FRAMES[:1], kind)
        assert EACH.prepare_frames(data) is None
        assert ImagePolicy().prepare_frames(animations.save(FRAMES, kind)) is None
        assert EACH.prepare(data) == ImagePolicy().prepare(data)


def test_phone_s_second_picture_and_the_layers_of_a_psd_are_no_frames() -> None:
    data = image_sets.save(pictures.photo(48, 32), "MPO", save_all=True, append_images=[pictures.photo(24, 16)])
    assert EACH.prepare_frames(data) is None
    assert EACH.prepare(data).data == data
    assert EACH.prepare_frames(encoded_images.psd(40, 30)) is None


def test_only_apng_is_taken_where_other_formats_are_rejected() -> None:
    policy = ImagePolicy(frames="each", other_formats="reject")
    assert policy.prepare_frames(animations.save(FRAMES, "gif")) is None
    with pytest.raises(checked_image.BadImageError, match=r"^unsupported_format: gif"):
        policy.prepare(animations.save(FRAMES, "gif"))
    assert len(whole(animations.save(FRAMES, "apng"), policy)) == 5


# --- pages of a TIFF -------------------------------------------------------------------------------------------------


def test_pages_have_their_own_size_mode_turn_and_color_profile() -> None:
    srgb = PIL.ImageCms.ImageCmsProfile(PIL.ImageCms.createProfile("sRGB")).tobytes()
    pages = [pictures.photo(30, 20), pictures.photo(40, 10).convert("L"), pictures.photo(16, 50).convert("1")]
    first = pages[0].copy()
    first.info["icc_profile"] = srgb
    turned = pages[1].copy()
    turned.encoderinfo = {"tiffinfo": {274: 6}}
    data = image_sets.save(first, "TIFF", save_all=True, append_images=[turned, pages[2]])
    images = whole(data)
    assert [(image.height, image.width, image.channels) for image in images] == [(20, 30, 3), (40, 10, 1), (50, 16, 1)]
    assert [image.turned for image in images] == [1, 6, 1]
    assert np.array_equal(
        animations.pixels_of(images[1].data), np.asarray(pages[1].rotate(-90, expand=True).convert("RGBA"))
    )
    reader = frame_reader.FrameReader(data, "tiff")
    assert "icc_profile" in reader.opened.info and "icc_profile" not in reader.seek(1).info
    assert {image.turned for image in whole(data, ImagePolicy(frames="each", orientation="keep"))} == {1}


def test_page_that_belongs_to_another_one_is_rejected_alone() -> None:
    pages = animations.draw(3, 3)
    for number, kind in ((1, 1), (2, 4)):
        pages[number].encoderinfo = {"tiffinfo": {254: kind}}
    found = failures(animations.save(pages, "tiff"))
    remedy = "of another page: leave it out of the file"
    assert found == {
        1: f"unsupported_format: frame 1 of 3, counted from 0: a smaller version {remedy}",
        2: f"unsupported_format: frame 2 of 3, counted from 0: the mask {remedy}",
    }


def test_page_beyond_a_limit_is_rejected_alone() -> None:
    data = animations.save([pictures.photo(30, 20), pictures.photo(60, 20), pictures.photo(30, 21)], "tiff")
    found = failures(data, ImagePolicy(frames="each", limits=Limits(max_side=40)))
    assert found == {1: "too_large: frame 1 of 3, counted from 0: 20 x 60 pixels, image.limits.max_side is 40"}


def test_broken_page_is_rejected_alone() -> None:
    data = animations.save(animations.draw(3, 4), "tiff")
    reader = frame_reader.FrameReader(data, "tiff")
    tag = data.index(b"\x06\x01\x03\x00", reader.seek(1).tag_v2._offset)  # PhotometricInterpretation
    found = failures(encoded_images.overwrite(data, tag + 8, b"\x99"))
    assert list(found) == [1] and found[1].startswith("undecodable: frame 1 of 4, counted from 0: Pillow: ")
    packed = animations.save(animations.draw(3, 4), "tiff", compression="tiff_adobe_deflate")
    start = frame_reader.FrameReader(packed, "tiff").seek(2).tag_v2[273][0]  # StripOffsets
    found = failures(encoded_images.overwrite(packed, start, b"\xff" * 20))
    assert list(found) == [2] and found[2].startswith("undecodable: frame 2 of 4, counted from 0: Pillow: ")


def test_pages_are_counted_by_the_chain_of_directories() -> None:
    for big in [False, True]:
        data = animations.save(FRAMES, "tiff", big_tiff=big)
        assert frame_reader.count_pages(data) == 5
        reader = frame_reader.FrameReader(data, "tiff")
        last = reader.seek(4).tag_v2._offset
        assert frame_reader.count_pages(data[: last + 1]) == 5  # the chain names it
        assert list(failures(data[: last + 1])) == [4]


# --- broken animations -----------------------------------------------------------------------------------------------


def test_frame_that_is_broken_is_rejected_with_those_drawn_on_it() -> None:
    for kind in ["gif", "apng"]:
        data = animations.save(FRAMES, kind)
        if kind == "gif":
            data = data[: data.index(b"\x2c", len(animations.save(FRAMES[:3], kind))) + 14]
            (number,) = (failed := failures(data))
            assert failed[number].startswith(f"undecodable: frame {number} of {number + 1}, counted from 0: Pillow: ")
            assert len(images_of(data)) == number + 1 >= 3
            continue
        position = [each for each in range(len(data)) if data[each : each + 4] == b"fdAT"][1]
        length = int.from_bytes(data[position - 4 : position], "big")
        broken = encoded_images.overwrite(data, position + 8, b"\xff" * (length - 4))
        failed = failures(broken, ImagePolicy(frames="each", check="header"))
        assert list(failed) == [2, 3, 4] and failed[2].startswith("undecodable: frame 2 of 5, counted from 0: Pillow: ")
        later = "counted from 0: it is drawn on frame 2, which cannot be decoded"
        assert failed[4] == f"undecodable: frame 4 of 5, {later}"
        with pytest.raises(checked_image.BadImageError, match=r"^corrupt: the chunk fdAT .* has a wrong CRC"):
            EACH.prepare_frames(broken)


def test_png_that_announces_more_frames_than_it_has_is_rejected_whole() -> None:
    data = animations.save(FRAMES, "apng")
    start = data.index(b"acTL")
    chunk = png_structure.encode_chunk(b"acTL", (2**30).to_bytes(4, "big") + bytes(4))
    data = encoded_images.overwrite(data, start - 4, chunk)
    with pytest.raises(
        checked_image.BadImageError, match=r"^corrupt: the chunk acTL says 1,073,741,824 frames, .* 6 at"
    ):
        EACH.prepare_frames(data)


def test_animation_that_is_cut_is_rejected_or_its_last_frames_are() -> None:
    for kind in ["webp", "avif"]:
        data = animations.save(FRAMES, kind)
        for end in range(len(data) // 2, len(data) - 1, 7):
            try:
                frames = EACH.prepare_frames(data[:end])
            except checked_image.BadImageError as e:
                assert e.reason is Reason.UNDECODABLE
                continue
            assert frames is not None and frames.count == 5
            images = list(frames.images)
            assert len(images) == 5 and isinstance(images[-1], checked_image.BadImageError)


def test_animation_beyond_a_limit_is_rejected_whole() -> None:
    for limits, match in [
        (Limits(max_frames=4), r"^too_large: 5 frames, image\.limits\.max_frames is 4$"),
        (Limits(max_side=23), r"^too_large: 16 x 24 pixels, image\.limits\.max_side is 23$"),
        (Limits(max_bytes=10), r"^too_large: [\d,]+ bytes, image\.limits\.max_bytes is 10$"),
    ]:
        for kind in ["gif", "webp", "apng", "avif"]:
            with pytest.raises(checked_image.BadImageError, match=match):
                ImagePolicy(frames="each", limits=limits).prepare_frames(animations.save(FRAMES, kind))


@pytest.mark.parametrize("kind", ["gif", "webp", "apng", "avif", "tiff"])
def test_one_frame_is_decoded_at_a_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    load = pillow_decoder.load
    monkeypatch.setattr(pillow_decoder, "load", lambda picture: (decoded.append(picture.tell()), load(picture)))
    frames = EACH.prepare_frames(animations.save(FRAMES, kind))
    assert frames is not None and decoded == []
    for number in range(5):
        next(frames.images)
        assert decoded == list(range(number + 1))


# --- frames of a GIF are counted without decoding --------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(0, 3),
    st.booleans(),
    st.floats(0, 1),
    st.sampled_from([b"", b";", b"\0\0;", b"!\xfe\2ab\0"]),
)
def test_no_frame_of_a_cut_gif_is_missed(count: int, disposal: int, comment: bool, share: float, end: bytes) -> None:
    options: dict[str, Any] = {"comment": b"about"} if comment else {}
    data = animations.save(animations.draw(count, count), "gif", disposal=disposal, **options)[:-1] + end
    whole_count, is_cut = frame_reader.count_gif_frames(data)
    with PIL.Image.open(io.BytesIO(data)) as opened:
        assert (whole_count, is_cut) == (opened.n_frames, False) == (count, False)
    cut = data[: int(share * len(data))]
    found, is_cut = frame_reader.count_gif_frames(cut)
    try:
        with PIL.Image.open(io.BytesIO(cut)) as opened:
            readable = opened.n_frames
    except (OSError, IndexError):  # cut before the pixels of the first frame
        return
    except struct.error:  # cut in what describes a frame
        readable = found - 1
    assert readable <= found <= count + (end[:1] == b"!")
    assert is_cut == (found > readable)


@pytest.mark.parametrize("count", [1, 3])
def test_cut_or_damaged_gif_is_read_or_rejected_where_its_frames_are_counted(count: int) -> None:
    """Pillow looks for a second picture, and raises IndexError or struct.error where the file ends too early."""
    gif = animations.save(animations.draw(1, count), "gif") if count > 1 else image_sets.make_image(1, "GIF")
    damaged = [gif[:end] for end in range(7, len(gif))]
    damaged += [gif[:at] + bytes([value]) + gif[at + 1 :] for at in range(6, 60) for value in (0, 0x21, 0x2C, 255)]
    policies = [ImagePolicy(frames="reject"), ImagePolicy(frames="reject", limits=Limits(max_frames=2))]
    reasons = set[Reason]()
    for data in damaged:
        for policy in policies:
            try:
                policy.prepare(data)
            except checked_image.BadImageError as e:
                reasons.add(e.reason)
    assert Reason.UNDECODABLE in reasons and (count == 1 or Reason.SEVERAL_FRAMES in reasons)
