"""PNGs of every kind, turned: the pixels that decoders of 8 bits return are turned, and other chunks stay."""

from __future__ import annotations

import io
import random
import zlib

import numpy as np
import pytest
from PIL import Image

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, orientations, png_structure, structure, turn_upright
from tests import encoded_images, pictures
from tests.encoded_images import chunk, ihdr, png
from tests.pictures import photo

KINDS = [(0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (2, 8), (2, 16), (3, 1), (3, 2), (3, 4), (3, 8), (4, 8), (4, 16),
    (6, 8), (6, 16)]  # fmt: skip
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
PALETTE = chunk(b"PLTE", bytes(range(256)) * 3)
BEFORE = [chunk(b"gAMA", b"\0\0\xb1\x8f"), chunk(b"iCCP", b"a profile\0\0" + zlib.compress(b"b"))]
AFTER = [chunk(b"tEXt", b"Comment\0hi"), encoded_images.IEND]
TURNED = b"MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"  # EXIF data: orientation 6
UPRIGHT = TURNED.replace(b"\0\6", b"\0\1")


def passes(height: int, width: int, is_interlaced: bool) -> list[tuple[range, range]]:
    """Rows and columns of each pass that has pixels."""
    found = [
        (range(top, height, down), range(left, width, right))
        for left, top, right, down in (PASSES if is_interlaced else [(0, 0, 1, 1)])
    ]
    return [each for each in found if all(each)]


def random_png(kind: tuple[int, int], height: int, width: int, is_interlaced: bool, seed: int) -> bytes:
    """Returns a PNG of random bytes under random filters; any such bytes are pixels."""
    rng, (color_type, depth) = random.Random(seed), kind
    lines = b""
    for rows, columns in passes(height, width, is_interlaced):
        for _ in rows:
            lines += bytes([rng.randrange(5)]) + rng.randbytes(-(-len(columns) * CHANNELS[color_type] * depth // 8))
    palette = [PALETTE] if color_type == 3 else []
    return png(ihdr(height, width, depth, color_type, 0, 0, int(is_interlaced)), *BEFORE, *palette,
        chunk(b"eXIf", TURNED), chunk(b"IDAT", zlib.compress(lines)), *AFTER)  # fmt: skip


def decode(data: bytes) -> np.ndarray:
    picture = Image.open(io.BytesIO(data))
    return np.asarray(picture if picture.mode.startswith("I;16") else picture.convert("RGBA"))


def turn(data: bytes, orientation: int) -> turn_upright.Upright:
    return turn_upright.turn_upright(structure.check_image(data)._replace(orientation=orientation))


def test_every_pixel_is_at_its_place() -> None:
    for is_interlaced in [False, True]:
        for kind in KINDS:
            for orientation in range(2, 9):
                height, width = random.Random(orientation).choice([(7, 13), (13, 7), (1, 9), (9, 1), (8, 8), (1, 1)])
                source = random_png(kind, height, width, is_interlaced, orientation)
                turned, is_lossless = turn(source, orientation)
                assert (decode(turned.data) == pictures.turn_pixels(decode(source), orientation)).all()
                assert is_lossless == (kind[1] < 16 or kind[0] == 0)
                before, after = structure.check_image(source), structure.check_image(turned.data)
                size = orientations.turn_size(height, width, orientation)
                assert (
                    after == before._replace(data=turned.data, height=size[0], width=size[1], orientation=1) == turned
                )
                back = turn(turned.data, orientations.inverse(orientation)).image
                assert (decode(back.data) == decode(source)).all()


def test_other_chunks_are_kept_in_order() -> None:
    for kind in KINDS:
        source = random_png(kind, 5, 9, False, 0)
        found = turn(source, 6)
        before, after = (list(png_structure.read_chunks(each)) for each in (source, found.image.data))
        assert [each.kind for each in before] == [each.kind for each in after]
        kept = [content for name, content, _ in before if name not in (b"IHDR", b"IDAT")]
        expected = [UPRIGHT if content == TURNED else content for content in kept]
        assert [content for name, content, _ in after if name not in (b"IHDR", b"IDAT")] == expected


def test_transparent_gray_stays_where_the_depth_stays() -> None:
    for depth, is_kept in ((1, True), (2, False), (8, True), (16, True)):
        source = random_png((0, depth), 8, 8, False, 0)
        position = source.index(b"IDAT") - 4
        turned = turn(encoded_images.insert(source, position, chunk(b"tRNS", b"\0\1")), 6).image
        assert png_structure.has_transparency(turned.data) is is_kept


def test_png_of_pillow_is_turned_as_pillow_turns_it() -> None:
    for name in encoded_images.PNGS:
        source = encoded_images.PNGS[name]
        for orientation in range(2, 9):
            turned = turn(source, orientation).image
            structure.check_image(turned.data, "decode")
            assert (decode(turned.data) == pictures.turn_pixels(decode(source), orientation)).all()
            assert len(turned.data) < 1.3 * len(source)


def test_photo_is_as_small_as_before() -> None:
    file = io.BytesIO()
    photo(300, 200).save(file, "PNG")
    assert len(turn(file.getvalue(), 6).image.data) < 1.05 * len(file.getvalue())


def test_animated_png_keeps_its_first_image() -> None:
    turned = turn(encoded_images.PNGS["animated"], 6).image.data
    assert {each.kind for each in png_structure.read_chunks(turned)} == {b"IHDR", b"IDAT", b"IEND"}


def test_mask_keeps_classes_and_palette() -> None:
    for kind in [(0, 8), (0, 16), (2, 8), (3, 1), (3, 2), (3, 4), (3, 8)]:
        mask = random_png(kind, 6, 10, False, 1)
        turned = turn_upright.turn_mask(mask, 8)
        assert (decode(turned) == pictures.turn_pixels(decode(mask), 8)).all()
        assert (PALETTE in turned) is (kind[0] == 3)


def test_mask_of_wide_colors_is_a_reject() -> None:
    with pytest.raises(checked_image.BadImageError, match="a mask with colors of 16 bits: save it with 8 bits"):
        turn_upright.turn_mask(random_png((2, 16), 6, 10, False, 1), 8)


def test_damaged_pixels_are_a_reject() -> None:
    for compressed in [b"\0\1\2", zlib.compress(bytes(71)), zlib.compress(bytes([9] * 72))]:
        source = png(ihdr(8, 8), chunk(b"IDAT", compressed), encoded_images.IEND)
        with pytest.raises(checked_image.BadImageError, match="Pillow: ") as raised:
            turn(source, 6)
        assert raised.value.reason is Reason.UNDECODABLE


def test_unknown_orientation_is_refused() -> None:
    with pytest.raises(ValueError, match="EXIF orientation 0, expected 1 to 8"):
        turn_upright.turn_mask(encoded_images.PNGS["gray"], 0)


def test_broken_exif_stays_as_it_is() -> None:
    source = png(ihdr(8, 8), chunk(b"eXIf", TURNED[:12]), encoded_images.IDAT, encoded_images.IEND)
    assert chunk(b"eXIf", TURNED[:12]) in turn(source, 6).image.data
    assert orientations.read_orientation(UPRIGHT, 0, len(UPRIGHT)) == 1
