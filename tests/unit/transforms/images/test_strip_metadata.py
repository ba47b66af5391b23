"""Images without metadata: the same pixels and profile, and no note."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import PIL.Image
import PIL.PngImagePlugin
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ImageCms

from imagebeam.transforms.images import checked_image, structure
from imagebeam.transforms.images.prepare import ImagePolicy
from tests import encoded_images, pictures

PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
NOTES = (b"here I live", b"a comment", b"<x:xmpmeta", b"after the end")


def noted(format: str, **options: Any) -> bytes:
    exif = PIL.Image.Exif()
    exif[0x010E] = "here I live"
    buffer = io.BytesIO()
    if format == "PNG":
        texts = PIL.PngImagePlugin.PngInfo()
        texts.add_text("Comment", "a comment")
        texts.add_itxt("XML:com.adobe.xmp", "<x:xmpmeta/>")
        options |= {"pnginfo": texts}
    else:
        options |= {"comment": b"a comment", "xmp": b"<x:xmpmeta/>"}
    pictures.photo(40, 30).save(buffer, format, exif=exif, icc_profile=PROFILE, dpi=(300, 300), **options)
    return buffer.getvalue() + b"after the end"


def test_notes_go_and_pixels_and_profile_stay() -> None:
    for format, options in [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"restart_marker_blocks": 2}),
        ("PNG", {}),
    ]:
        data = noted(format, **options)
        assert [note for note in NOTES if note not in data] == []
        stored = ImagePolicy(metadata="strip").prepare(data)
        assert [note for note in NOTES if note in stored.data] == []
        before, after = (PIL.Image.open(io.BytesIO(each)) for each in (data, stored.data))
        assert np.array_equal(np.asarray(before), np.asarray(after))
        assert after.info["icc_profile"] == PROFILE and after.info["dpi"] == before.info["dpi"]
        assert stored.reencoded == ""
        assert ImagePolicy(metadata="strip").prepare(stored.data).data == stored.data
        assert ImagePolicy().prepare(data).data == data


@given(st.sampled_from(sorted(encoded_images.WHOLE.values())))
def test_any_checked_image_stays_whole(data: bytes) -> None:
    image = structure.check_image(data)
    stripped = structure.strip_metadata(image)
    assert structure.check_image(stripped.data)._replace(orientation=1) == stripped._replace(orientation=1)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_broken_jpeg_that_passes_the_check_passes_it_again_without_notes(seed: int) -> None:
    rng = random.Random(seed)
    try:
        image = structure.check_image(pictures.damage(noted("JPEG", quality=90), rng))
    except checked_image.BadImageError:
        return
    assert structure.check_image(structure.strip_metadata(image).data)[1:4] == image[1:4]


def test_notes_whose_length_is_too_small_go_with_what_it_leaves_out() -> None:
    for after in [b"", b"\xff", b"stray"]:
        for length in [0, 1, 2]:
            for code in [0xE5, 0xFE]:
                plain = structure.strip_metadata(structure.check_image(noted("JPEG"))).data
                note = bytes((0xFF, code, 0, length)) + after
                at = plain.index(b"\xff\xdb")  # before the tables, where nothing else may be
                stripped = structure.strip_metadata(structure.check_image(plain[:at] + note + plain[at:])).data
                assert stripped == plain[:at] + after.strip(b"stray") + plain[at:]
