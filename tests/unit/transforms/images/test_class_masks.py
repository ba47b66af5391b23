from __future__ import annotations

import io
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from imagebeam.transforms.images import checked_image, class_masks, png_structure, structure
from tests import encoded_images, image_sets
from tests.encoded_images import IEND, chunk, ihdr, with_right_crcs

SIZE = (29, 18)  # width, height
IMAGE = structure.check_image(image_sets.make_image(1, size=SIZE))
PALETTE = [value for index in range(256) for value in (255 - index, index * 5 % 256, 7)]


def pixels(num_classes: int = 256) -> np.ndarray:
    return np.random.default_rng(1).integers(0, num_classes, (SIZE[1], SIZE[0]), np.uint8)


def png(picture: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", **options)
    return buffer.getvalue()


def palette_png(values: np.ndarray, **options: Any) -> bytes:
    picture = Image.frombytes("P", (values.shape[1], values.shape[0]), values.tobytes())
    picture.putpalette(PALETTE)
    return png(picture, **options)


def interlaced_palette_png() -> tuple[bytes, np.ndarray]:
    """Returns an interlaced PNG of 1 x 1 pixels, which has a single pass, and its indices."""
    header = ihdr(1, 1, 8, png_structure.PALETTE_INDEX, interlace=1)
    pixels_of_one_pass = chunk(b"IDAT", zlib.compress(b"\0\x63"))
    data = encoded_images.png(header, chunk(b"PLTE", bytes(768)), pixels_of_one_pass, IEND)
    return data, np.array([[0x63]], np.uint8)


def test_mask_without_a_palette_is_stored_as_it_is() -> None:
    for mode in ["L", "RGB", "I;16"]:
        values = pixels().astype(np.uint16) if mode == "I;16" else pixels()
        mask = png(Image.fromarray(values) if mode != "RGB" else Image.fromarray(values).convert("RGB"))
        assert class_masks.with_mask(IMAGE, mask) == IMAGE._replace(mask=mask)


def test_palette_is_stored_as_gray_indices() -> None:
    for num_classes, options in [
        (256, {}),
        (256, {"transparency": 3, "gamma": 0.5}),
        (16, {"bits": 4}),
        (4, {"bits": 2}),
        (2, {"bits": 1}),
        (3, {"bits": 8, "optimize": True}),
    ]:
        mask = palette_png(pixels(num_classes), **options)
        stored = class_masks.with_mask(IMAGE, mask, "decode").mask
        assert structure.check_image(stored, "decode")[1:6] == ("png", SIZE[1], SIZE[0], 1, "GRAY")
        np.testing.assert_array_equal(np.array(Image.open(io.BytesIO(stored))), pixels(num_classes))


def test_interlaced_palette_is_stored_as_gray_indices() -> None:
    mask, values = interlaced_palette_png()
    small = IMAGE._replace(height=1, width=1)
    stored = class_masks.with_mask(small, mask).mask
    np.testing.assert_array_equal(np.array(Image.open(io.BytesIO(stored))), values)


def test_mask_of_eight_bits_keeps_its_compressed_pixels() -> None:
    mask = palette_png(pixels())
    stored = class_masks.with_mask(IMAGE, mask).mask
    start = mask.index(b"IDAT")
    assert stored.endswith(mask[start - 4 :])
    assert len(stored) == len(mask) - (12 + 768)  # the palette is gone


def test_broken_pixels_of_few_bits_are_a_bad_image() -> None:
    mask = bytearray(palette_png(pixels(4), bits=2))
    start = mask.index(b"IDAT")
    length, _ = png_structure.unpack_head(mask, start - 4)
    mask[start + 4 : start + 4 + length] = bytes(length)  # no zlib stream, in a chunk with the right length and CRC
    with pytest.raises(checked_image.BadImageError, match=r"undecodable: Pillow: "):
        class_masks.with_mask(IMAGE, with_right_crcs(bytes(mask)))


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([palette_png(pixels()), palette_png(pixels(4), bits=2), png(Image.fromarray(pixels()))]),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 9), st.binary(max_size=4)), min_size=1, max_size=4),
    st.booleans(),
)
def test_damaged_mask_is_a_bad_image_or_one_of_the_images_size(
    mask: bytes, edits: list[tuple[int, int, bytes]], mend: bool
) -> None:
    for place, length, new in edits:
        place %= len(mask)
        mask = mask[:place] + new + mask[place + length :]
    try:
        stored = class_masks.with_mask(IMAGE, with_right_crcs(mask) if mend else mask).mask
    except checked_image.BadImageError as e:
        assert e.detail
        return
    found = structure.check_image(stored)
    assert (found.format, found.height, found.width) == ("png", IMAGE.height, IMAGE.width)


def test_mask_is_checked_with_every_check_of_images() -> None:
    for check in ["header", "structure", "decode", "tensorflow"]:
        mask = palette_png(pixels(5))
        assert class_masks.with_mask(IMAGE, mask, check).mask == class_masks.with_mask(IMAGE, mask).mask
