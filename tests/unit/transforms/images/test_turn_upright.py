"""JPEGs and PNGs turned upright: without loss in C, and decoded and encoded again by Pillow."""

from __future__ import annotations

import io
import os
import random
import zlib
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from PIL import Image

from imagebeam import _writer
from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, orientations, pixels, png_structure, structure, turn_upright
from tests import encoded_images, image_sets, jpeg_coefficients, pictures
from tests.encoded_images import chunk, ihdr, png
from tests.pictures import damage, encode, photo, psnr

if os.environ.get("IMAGEBEAM_CI") != "1" and turn_upright.library() is None:  # there it must be built
    pytest.skip("TurboJPEG was not built in: docs/upright.md says what it needs", allow_module_level=True)

WHOLE_BLOCKS, PARTIAL_BLOCKS = (96, 64), (93, 61)  # width, height
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "444": ("RGB", {"subsampling": 0}),
    "422": ("RGB", {"subsampling": 1}),
    "420": ("RGB", {"subsampling": 2}),
    "progressive": ("RGB", {"progressive": True}),
    "gray": ("L", {}),
    "cmyk": ("CMYK", {}),
    "rgb": ("RGB", {"keep_rgb": True}),
}


ENCODED_PROGRESSIVE = encode(photo(*PARTIAL_BLOCKS), progressive=True)


def turned_photo(kind: str, size: tuple[int, int], orientation: int) -> checked_image.Image:
    """Returns a checked JPEG whose EXIF data, in segments before others, ask for this turn."""
    mode, options = KINDS[kind]
    data = Image.Exif()
    data[0x0112], data[0x8769] = orientation, {0xA002: size[0], 0xA003: size[1]}
    image = structure.check_image(
        encode(photo(*size).convert(mode), exif=data, comment=b"hi", icc_profile=b"a profile", **options)
    )
    assert image.orientation == orientation
    return image


def metadata(jpeg: bytes) -> list[tuple[int, bytes]]:
    """Returns code and content of the segments APPn and COM, except EXIF data."""
    found = [each for each in jpeg_coefficients.segments(jpeg) if 0xE0 <= each[0] <= 0xEF or each[0] == 0xFE]
    return [each for each in found if not each[1].startswith(orientations.EXIF_HEADER)]


def decode(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def check_turned(source: checked_image.Image, found: checked_image.Image, least_psnr: float) -> None:
    height, width = orientations.turn_size(source.height, source.width, source.orientation)
    assert found == source._replace(data=found.data, height=height, width=width, orientation=1)
    assert structure.check_image(found.data, "decode") == found
    assert metadata(found.data) == metadata(source.data)
    tags = decode(found.data).getexif()
    assert tags[0x0112] == 1
    assert (tags.get_ifd(0x8769)[0xA002], tags.get_ifd(0x8769)[0xA003]) == (width, height)
    expected = pixels.turn_upright(decode(source.data), source.orientation)
    assert psnr(np.asarray(decode(found.data)), np.asarray(expected)) > least_psnr


def test_whole_blocks_are_turned_without_loss() -> None:
    for orientation in range(2, 9):
        for kind in KINDS:
            source = turned_photo(kind, WHOLE_BLOCKS, orientation)
            found = turn_upright.turn_upright(source)
            assert found.is_lossless
            check_turned(source, found.image, 50)
            assert turn_upright.turn_upright(source) == found


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "progressive"])
def test_turned_coefficients_are_those_of_the_source_mirrored_and_transposed(kind: str) -> None:
    for orientation in range(2, 9):
        source = turned_photo(kind, WHOLE_BLOCKS, orientation)
        found = jpeg_coefficients.read(turn_upright.turn_upright(source).image.data)
        steps = (
            orientations.mirrors_columns(orientation),
            orientations.mirrors_rows(orientation),
            orientations.swaps_sides(orientation),
        )
        expected = [jpeg_coefficients.turn(each, *steps) for each in jpeg_coefficients.read(source.data)]
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            assert (one.table == other.table).all() and (one.blocks == other.blocks).all()


def test_segment_between_scans_is_not_moved_before_them() -> None:
    source = turned_photo("progressive", WHOLE_BLOCKS, 2).data
    second_scan = source.index(b"\xff\xda", source.index(b"\xff\xda") + 2)
    between = structure.check_image(encoded_images.insert(source, second_scan, b"\xff\xfe\0\4hi"))
    assert turn_upright.turn_without_loss(between) is None
    assert turn_upright.turn_upright(between).image.orientation == 1


def test_large_header_takes_no_memory() -> None:
    source = turned_photo("444", WHOLE_BLOCKS, 2)
    assert turn_upright.turn_without_loss(source._replace(height=65_496, width=65_496)) is None


def test_unknown_orientation_is_refused() -> None:
    for orientation in [0, 9, -1]:
        with pytest.raises(ValueError, match=f"EXIF orientation {orientation}, expected 1 to 8"):
            _writer.turn_jpeg(b"", orientation, False)


def test_partial_blocks_are_encoded_again_like_the_source() -> None:
    for orientation in range(2, 9):
        for kind in KINDS:
            source = turned_photo(kind, PARTIAL_BLOCKS, orientation)
            found = turn_upright.turn_upright(source)
            assert found.is_lossless == (orientation == 5)  # which mirrors nothing
            check_turned(source, found.image, 36)
            assert 0.8 < len(found.image.data) / len(source.data) < 1.1


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_c_extension_every_jpeg_is_encoded_again(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (turn_upright.library() or "").startswith("TurboJPEG ")
    monkeypatch.setattr(turn_upright, "_writer", None)
    assert turn_upright.library() is None
    source = turned_photo(kind, WHOLE_BLOCKS, 6)
    found = turn_upright.turn_upright(source)
    assert not found.is_lossless
    check_turned(source, found.image, 41)


def test_encoded_jpeg_has_the_tables_and_subsampling_of_the_source() -> None:
    for kind, orientation, subsampling in [("444", 6, 0), ("422", 2, 1), ("422", 6, 0), ("420", 6, 2), ("420", 3, 2)]:
        from PIL import JpegImagePlugin

        source = turned_photo(kind, PARTIAL_BLOCKS, orientation)
        found = decode(turn_upright.turn_upright(source).image.data)
        assert JpegImagePlugin.get_sampling(found) == subsampling
        tables = [np.reshape(each, (8, 8)) for each in decode(source.data).quantization.values()]
        expected = [each.T if orientation >= 5 else each for each in tables]
        assert np.array_equal([np.reshape(each, (8, 8)) for each in found.quantization.values()], expected)


def test_component_keeps_its_own_quantization_table() -> None:
    source = turned_photo("444", PARTIAL_BLOCKS, 2)
    frame = source.data.index(b"\xff\xc0") + 10  # components of 3 bytes: the last one is the table's number
    swapped = encoded_images.overwrite(source.data, frame + 2, b"\1")
    swapped = encoded_images.overwrite(swapped, frame + 5, b"\0")
    image = structure.check_image(swapped)
    found = [each.table for each in jpeg_coefficients.read(turn_upright.encode_turned(image))]
    assert np.array_equal(found, [each.table for each in jpeg_coefficients.read(swapped)])


def test_ycck_becomes_cmyk() -> None:
    plain = turned_photo("cmyk", PARTIAL_BLOCKS, 2)
    ycck = plain.data.replace(b"Adobe\0\x64\0\0\0\0\0", b"Adobe\0\x64\0\0\0\0\2")
    assert ycck != plain.data
    found = turn_upright.encode_turned(structure.check_image(ycck))
    assert metadata(found) == metadata(plain.data)
    expected = pixels.turn_upright(decode(ycck), 2)
    assert psnr(np.asarray(decode(found)), np.asarray(expected)) > 30


def test_rgb_is_recognized_by_its_component_numbers() -> None:
    source = turned_photo("rgb", PARTIAL_BLOCKS, 3)
    adobe = next(content for code, content in metadata(source.data) if code == 0xEE)
    without = source.data.replace(b"\xff\xee" + (len(adobe) + 2).to_bytes(2, "big") + adobe, b"")
    found = turn_upright.turn_upright(structure.check_image(without))
    check_turned(structure.check_image(without), found.image, 36)


def test_stray_bytes_after_a_segment_are_dropped() -> None:
    for size in [WHOLE_BLOCKS, PARTIAL_BLOCKS]:
        source = turned_photo("420", size, 6)
        tables = source.data.index(b"\xff\xdb")
        stray = structure.check_image(encoded_images.insert(source.data, tables, b"stray"))
        assert turn_upright.turn_upright(stray) == turn_upright.turn_upright(source)


def test_every_exif_segment_becomes_upright() -> None:
    source = turned_photo("420", WHOLE_BLOCKS, 6)
    start = source.data.index(b"\xff\xe1")
    end = start + 2 + int.from_bytes(source.data[start + 2 : start + 4], "big")
    twice = structure.check_image(encoded_images.insert(source.data, end, source.data[start:end]))
    assert structure.check_image(turn_upright.turn_upright(twice).image.data).orientation == 1


def test_noise_stored_without_any_loss_is_encoded() -> None:
    rng = random.Random(0)
    noise = Image.frombytes("RGB", PARTIAL_BLOCKS, rng.randbytes(3 * 93 * 61))
    options = {"quality": 100, "subsampling": 0, "progressive": True}
    source = structure.check_image(encode(noise, exif=image_sets.turned(3), **options))
    found = turn_upright.turn_upright(source)
    assert not found.is_lossless
    assert structure.check_image(found.image.data, "decode").orientation == 1


def test_upright_and_raw_images_stay_the_same_object() -> None:
    upright = turned_photo("420", WHOLE_BLOCKS, 1)
    raw = structure.raw_image(bytes(12), (2, 2, 3))._replace(orientation=6)
    for image in (upright, raw):
        assert turn_upright.turn_upright(image) == (image, True)


def test_damaged_pixels_are_a_reject() -> None:
    for size in [WHOLE_BLOCKS, PARTIAL_BLOCKS]:
        source = turned_photo("420", size, 6)
        cut = source._replace(data=source.data[:-400])
        with pytest.raises(checked_image.BadImageError, match="Pillow: image file is truncated") as raised:
            turn_upright.turn_upright(cut)
        assert raised.value.reason is Reason.UNDECODABLE


@hypothesis.given(strategies.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=100, deadline=None)
def test_broken_jpegs_are_turned_or_rejected(seed: int) -> None:
    rng = random.Random(seed)
    kind, size = rng.choice(list(KINDS)), rng.choice([WHOLE_BLOCKS, PARTIAL_BLOCKS])
    broken = damage(turned_photo(kind, size, rng.randint(2, 8)).data, rng)
    try:
        image = structure.check_image(broken)
        hypothesis.assume(image.height * image.width < 10**6)
        turned = turn_upright.turn_upright(image).image
    except checked_image.BadImageError:
        return
    found = structure.check_image(turned.data)
    assert (found.height, found.width, found.orientation) == (turned.height, turned.width, 1)


def test_metadata_of_an_impossible_length_stay_apart_from_what_follows() -> None:
    for length in [0, 1, 2]:
        for code in [0xE0, 0xE5, 0xEE, 0xFE]:
            for turn in [turn_upright.turn_without_loss, turn_upright.encode_turned]:
                source = turned_photo("444", WHOLE_BLOCKS, 6).data
                turned = turn(structure.check_image(source[:2] + bytes((0xFF, code, 0, length)) + source[2:]))
                expected = turn(structure.check_image(source))
                assert turned is not None and expected is not None
                assert structure.check_image(turned)[1:] == structure.check_image(expected)[1:]
                assert np.array_equal(np.asarray(decode(turned)), np.asarray(decode(expected)))


def test_jpeg_that_pillow_cannot_encode_is_a_reject(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def save(picture: Image.Image, *_: Any, **options: Any) -> None:
        tried.append((options["optimize"], options["progressive"]))
        raise OSError("encoder error -2")

    monkeypatch.setattr(Image.Image, "save", save)
    with pytest.raises(checked_image.BadImageError, match="Pillow: cannot encode it turned upright: encoder error -2"):
        turn_upright.encode_turned(structure.check_image(ENCODED_PROGRESSIVE))
    assert tried == [(True, True), (False, False)]


# --- PNGs ------------------------------------------------------------------------------------------------------------


PNG_KINDS = [(0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (2, 8), (2, 16), (3, 1), (3, 2), (3, 4), (3, 8), (4, 8), (4, 16),
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


def decode_pixels(data: bytes) -> np.ndarray:
    picture = Image.open(io.BytesIO(data))
    return np.asarray(picture if picture.mode.startswith("I;16") else picture.convert("RGBA"))


def turn(data: bytes, orientation: int) -> turn_upright.Upright:
    return turn_upright.turn_upright(structure.check_image(data)._replace(orientation=orientation))


def test_every_pixel_is_at_its_place() -> None:
    for is_interlaced in [False, True]:
        for kind in PNG_KINDS:
            for orientation in range(2, 9):
                height, width = random.Random(orientation).choice([(7, 13), (13, 7), (1, 9), (9, 1), (8, 8), (1, 1)])
                source = random_png(kind, height, width, is_interlaced, orientation)
                turned, is_lossless = turn(source, orientation)
                assert (decode_pixels(turned.data) == pictures.turn_pixels(decode_pixels(source), orientation)).all()
                assert is_lossless == (kind[1] < 16 or kind[0] == 0)
                before, after = structure.check_image(source), structure.check_image(turned.data)
                before = before._replace(dtype="uint16" if is_lossless and kind[1] == 16 else "uint8")
                size = orientations.turn_size(height, width, orientation)
                assert (
                    after == before._replace(data=turned.data, height=size[0], width=size[1], orientation=1) == turned
                )
                back = turn(turned.data, orientations.inverse(orientation)).image
                assert (decode_pixels(back.data) == decode_pixels(source)).all()


def test_other_chunks_are_kept_in_order() -> None:
    for kind in PNG_KINDS:
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
            assert (decode_pixels(turned.data) == pictures.turn_pixels(decode_pixels(source), orientation)).all()
            assert len(turned.data) < 1.3 * len(source)


def test_animated_png_keeps_its_first_image() -> None:
    turned = turn(encoded_images.PNGS["animated"], 6).image.data
    assert {each.kind for each in png_structure.read_chunks(turned)} == {b"IHDR", b"IDAT", b"IEND"}


def test_mask_keeps_classes_and_palette() -> None:
    for kind in [(0, 8), (0, 16), (2, 8), (3, 1), (3, 2), (3, 4), (3, 8)]:
        mask = random_png(kind, 6, 10, False, 1)
        turned = turn_upright.turn_mask(mask, 8)
        assert (decode_pixels(turned) == pictures.turn_pixels(decode_pixels(mask), 8)).all()
        assert (PALETTE in turned) is (kind[0] == 3)


def test_mask_of_wide_colors_is_a_reject() -> None:
    with pytest.raises(checked_image.BadImageError, match="a mask with colors of 16 bits: save it with 8 bits"):
        turn_upright.turn_mask(random_png((2, 16), 6, 10, False, 1), 8)


def test_png_with_damaged_pixels_is_a_reject() -> None:
    for compressed in [b"\0\1\2", zlib.compress(bytes(71)), zlib.compress(bytes([9] * 72))]:
        source = png(ihdr(8, 8), chunk(b"IDAT", compressed), encoded_images.IEND)
        with pytest.raises(checked_image.BadImageError, match="Pillow: ") as raised:
            turn(source, 6)
        assert raised.value.reason is Reason.UNDECODABLE


def test_mask_is_not_turned_by_an_unknown_orientation() -> None:
    with pytest.raises(ValueError, match="EXIF orientation 0, expected 1 to 8"):
        turn_upright.turn_mask(encoded_images.PNGS["gray"], 0)


def test_broken_exif_stays_as_it_is() -> None:
    source = png(ihdr(8, 8), chunk(b"eXIf", TURNED[:12]), encoded_images.IDAT, encoded_images.IEND)
    assert chunk(b"eXIf", TURNED[:12]) in turn(source, 6).image.data
    assert orientations.read_orientation(UPRIGHT, 0, len(UPRIGHT)) == 1
