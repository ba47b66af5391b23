from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import class_masks, structure
from tests import image_sets

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
    """A PNG of 1 x 1 pixels in Adam7, which has one pass then."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 3, 0, 0, 1)
    parts = (chunk(b"IHDR", header), chunk(b"PLTE", bytes(768)), chunk(b"IDAT", zlib.compress(b"\0\x63")))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b""), np.array([[0x63]], np.uint8)


@pytest.mark.parametrize("mode", ["L", "RGB", "I;16"])
def test_mask_without_a_palette_is_stored_as_it_is(mode: str) -> None:
    values = pixels().astype(np.uint16) if mode == "I;16" else pixels()
    mask = png(Image.fromarray(values) if mode != "RGB" else Image.fromarray(values).convert("RGB"))
    assert class_masks.with_mask(IMAGE, mask) == IMAGE._replace(mask=mask)


@pytest.mark.parametrize(
    ("num_classes", "options"),
    [
        (256, {}),
        (256, {"transparency": 3, "gamma": 0.5}),
        (16, {"bits": 4}),
        (4, {"bits": 2}),
        (2, {"bits": 1}),
        (3, {"bits": 8, "optimize": True}),
    ],
    ids=str,
)
def test_palette_becomes_gray_of_its_indices(num_classes: int, options: dict[str, Any]) -> None:
    mask = palette_png(pixels(num_classes), **options)
    stored = class_masks.with_mask(IMAGE, mask, "decode").mask
    assert structure.check_image(stored, "decode")[1:6] == ("png", SIZE[1], SIZE[0], 1, "GRAY")
    np.testing.assert_array_equal(np.array(Image.open(io.BytesIO(stored))), pixels(num_classes))


def test_interlaced_palette_becomes_gray_of_its_indices() -> None:
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


@pytest.mark.parametrize(
    ("mask", "reason", "detail"),
    [
        (b"", Reason.EMPTY_FILE, "0 bytes"),
        (b"class", Reason.NOT_AN_IMAGE, "text"),
        (image_sets.make_image(1, size=SIZE), Reason.UNSUPPORTED_FORMAT, "jpeg, which blurs classes"),
        (png(Image.new("L", SIZE))[:-1], Reason.TRUNCATED, "no IEND chunk"),
        (png(Image.new("L", (29, 17))), Reason.BAD_VALUE, "17 x 29 pixels, and the image has 18 x 29 (height x width)"),
        (png(Image.new("L", (18, 29))), Reason.BAD_VALUE, "29 x 18 pixels, and the image has 18 x 29 (height x width)"),
    ],
    ids=["empty", "text", "jpeg", "cut", "row-less", "turned"],
)
def test_mask_that_does_not_fit_is_a_bad_image(mask: bytes, reason: Reason, detail: str) -> None:
    with pytest.raises(structure.BadImageError) as caught:
        class_masks.with_mask(IMAGE, mask)
    assert caught.value.reason is reason
    assert caught.value.detail.startswith(detail)


def test_broken_pixels_of_few_bits_are_a_bad_image() -> None:
    mask = bytearray(palette_png(pixels(4), bits=2))
    start = mask.index(b"IDAT")
    (length,) = struct.unpack_from(">I", mask, start - 4)
    mask[start + 4 : start + 4 + length] = bytes(length)  # no zlib stream, in a chunk that is whole
    struct.pack_into(">I", mask, start + 4 + length, zlib.crc32(mask[start : start + 4 + length]))
    with pytest.raises(structure.BadImageError, match=r"undecodable: Pillow: "):
        class_masks.with_mask(IMAGE, bytes(mask))


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
        stored = class_masks.with_mask(IMAGE, _with_checksums(mask) if mend else mask).mask
    except structure.BadImageError as e:
        assert e.detail
        return
    found = structure.check_image(stored)
    assert (found.format, found.height, found.width) == ("png", IMAGE.height, IMAGE.width)


def _with_checksums(data: bytes) -> bytes:
    """`data` with the checksums of its chunks made right, so that damage gets beyond them."""
    mended, position = bytearray(data), 8
    while position + 12 <= len(mended):
        (length,) = struct.unpack_from(">I", mended, position)
        end = position + 8 + length
        if end + 4 > len(mended):
            break
        struct.pack_into(">I", mended, end, zlib.crc32(mended[position + 4 : end]))
        position = end + 4
    return bytes(mended)
