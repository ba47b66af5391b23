from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import PIL.Image
import pytest
import yaml
from PIL import Image

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, class_masks, mask_pixels, png_structure, structure
from tests import encoded_images, image_sets
from tests.encoded_images import IEND, chunk, ihdr, with_right_crcs
from tests.image_sets import save
from tests.mask_forms import bmp, gray_png, indexed, npy, tiff


def pixels(num_classes: int = 256) -> np.ndarray:
    return np.random.default_rng(1).integers(0, num_classes, (SIZE[1], SIZE[0]), np.uint8)


def palette_png(values: np.ndarray, **options: Any) -> bytes:
    return save(indexed(values), "PNG", **options)


def test_mask_without_a_palette_is_stored_as_it_is() -> None:
    for mode in ["L", "RGB", "I;16"]:
        values = pixels().astype(np.uint16) if mode == "I;16" else pixels()
        mask = save(Image.fromarray(values) if mode != "RGB" else Image.fromarray(values).convert("RGB"))
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
    header = ihdr(1, 1, 8, png_structure.PALETTE_INDEX, interlace=1)  # of 1 x 1 pixels, which are a single pass
    mask = encoded_images.png(header, chunk(b"PLTE", bytes(768)), chunk(b"IDAT", zlib.compress(b"\0\x63")), IEND)
    stored = class_masks.with_mask(IMAGE._replace(height=1, width=1), mask).mask
    np.testing.assert_array_equal(np.array(Image.open(io.BytesIO(stored))), [[0x63]])


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


def test_mask_is_checked_with_every_check_of_images() -> None:
    for check in ["header", "structure", "decode", "tensorflow"]:
        mask = palette_png(pixels(5))
        assert class_masks.with_mask(IMAGE, mask, check).mask == class_masks.with_mask(IMAGE, mask).mask


# --- masks in every format -------------------------------------------------------------------------------------------


SIZE = (29, 18)  # width, height; no whole bytes in a row of less than 8 bits
IMAGE = structure.check_image(image_sets.make_image(1, size=SIZE))
ROAD, SKY, EDGE = (128, 64, 128), (70, 130, 180), (224, 224, 192)
COLORS = class_masks.MaskColors((("road", ROAD), ("edge", EDGE), ("sky", SKY)), frozenset({"edge"}))
DRAWN = class_masks.MaskPolicy(COLORS)
SIXTEEN = class_masks.MaskPolicy(bits=16)


def classes(num_classes: int = 256, dtype: type = np.uint8) -> np.ndarray:
    values = np.random.default_rng(1).integers(0, num_classes, (SIZE[1], SIZE[0])).astype(dtype)
    values[0, :2] = 0, num_classes - 1
    return values


def stored(mask: bytes, policy: class_masks.MaskPolicy = class_masks.NUMBERS) -> np.ndarray:
    data = class_masks.with_mask(IMAGE, mask, policy=policy).mask
    found = structure.check_image(data, "decode")
    assert (found.format, found.colorspace) == ("png", "GRAY")
    assert data[24] == policy.bits
    return np.array(Image.open(io.BytesIO(data)))


def ramp(depth: int) -> list[int]:
    return [level for index in range(1 << depth) for level in [index * 255 // ((1 << depth) - 1)] * 3]


def numbers_ramp(depth: int) -> list[int]:
    """A palette that shows each number as itself: Pillow takes it for none."""
    return [level for index in range(1 << depth) for level in [index] * 3]


NUMBERS: dict[str, tuple[Callable[[np.ndarray], bytes], int]] = {
    "png 1 bit": (lambda v: gray_png(v, 1), 2),
    "png 2 bits": (lambda v: gray_png(v, 2), 4),
    "png 4 bits": (lambda v: gray_png(v, 4), 16),
    "png 8 bits": (lambda v: gray_png(v, 8), 256),
    "png palette": (lambda v: save(indexed(v), "PNG"), 256),
    "png palette 2 bits": (lambda v: save(indexed(v), "PNG", bits=2), 4),
    "gif of carvana": (lambda v: save(indexed(v, [0, 0, 0, 255, 255, 255]), "GIF"), 2),
    "gif colored": (lambda v: save(indexed(v), "GIF", optimize=False), 256),
    "gif gray": (lambda v: save(Image.fromarray(v), "GIF", optimize=False), 256),
    "gif interlaced": (lambda v: save(indexed(v), "GIF", interlace=1, optimize=False), 64),
    "bmp 1 bit": (lambda v: bmp(v, 1), 2),
    "bmp 1 bit black and white": (lambda v: bmp(v, 1, ramp(1)), 2),
    "bmp 4 bits": (lambda v: bmp(v, 4), 16),
    "bmp 4 bits gray": (lambda v: bmp(v, 4, ramp(4)), 16),
    "bmp 4 bits gray by number": (lambda v: bmp(v, 4, numbers_ramp(4)), 16),
    "bmp 8 bits": (lambda v: bmp(v, 8), 256),
    "bmp 8 bits gray": (lambda v: bmp(v, 8, ramp(8)), 256),
    "bmp 8 bits two colors": (lambda v: bmp(v, 8, ramp(1), colors=2), 2),
    "bmp of pillow": (lambda v: save(Image.fromarray(v), "BMP"), 256),
    "tiff 1 bit": (lambda v: tiff(v, 1), 2),
    "tiff 2 bits": (lambda v: tiff(v, 2), 4),
    "tiff 4 bits": (lambda v: tiff(v, 4), 16),
    "tiff 8 bits": (lambda v: tiff(v, 8), 256),
    "tiff 1 bit white is zero": (lambda v: tiff(v, 1, photometric=0), 2),
    "tiff 2 bits white is zero": (lambda v: tiff(v, 2, photometric=0), 4),
    "tiff 8 bits white is zero": (lambda v: tiff(v, 8, photometric=0), 256),
    "tiff 16 bits": (lambda v: tiff(v, 16), 256),
    "tiff 32 bits": (lambda v: tiff(v, 32), 256),
    "tiff palette": (lambda v: save(indexed(v), "TIFF"), 256),
    "tiff lzw": (lambda v: save(Image.fromarray(v), "TIFF", compression="tiff_lzw"), 256),
    "tiff fax": (lambda v: save(Image.fromarray(v > 0), "TIFF", compression="group4"), 2),
    "npy uint8": (npy, 256),
    "npy bool": (lambda v: npy(v > 0), 2),
    "npy int64": (lambda v: npy(v.astype(np.int64)), 256),
    "npy big-endian": (lambda v: npy(v.astype(">u2")), 256),
    "npy by columns": (lambda v: npy(np.asfortranarray(v)), 256),
    "npy with an axis of 1": (lambda v: npy(v[..., None]), 256),
}


def test_class_is_the_number_in_the_file() -> None:
    for name in NUMBERS:
        encode, num_classes = NUMBERS[name]
        values = classes(num_classes)
        np.testing.assert_array_equal(stored(encode(values)), values)
        wide = stored(encode(values), SIXTEEN)
        np.testing.assert_array_equal(wide, values)
        assert wide.dtype == np.uint16


def test_classes_above_255_take_sixteen_bits() -> None:
    for encode in [lambda v: tiff(v, 16), npy]:
        values = classes(40_000, np.uint16)
        np.testing.assert_array_equal(stored(encode(values), SIXTEEN), values)
        with pytest.raises(
            checked_image.BadImageError, match=r"bad_value: the pixel .* 39999, .* 0 to 255: set .*bits: 16"
        ):
            stored(encode(values))


def test_mask_turns_with_its_image() -> None:
    for name in ["gif colored", "tiff 4 bits", "npy int64", "png 1 bit"]:
        encode, num_classes = NUMBERS[name]
        values = classes(num_classes)
        turned = IMAGE._replace(height=SIZE[0], width=SIZE[1], turned=6, annotation_turn=6)
        found = class_masks.with_mask(turned, encode(values)).mask
        np.testing.assert_array_equal(np.array(Image.open(io.BytesIO(found))), np.rot90(values, -1))
        upright = np.ascontiguousarray(np.rot90(values, -1))
        with pytest.raises(checked_image.BadImageError, match=r"set image.annotations: upright"):
            class_masks.with_mask(turned, encode(upright))
        found = class_masks.with_mask(turned._replace(annotation_turn=1), encode(upright)).mask
        np.testing.assert_array_equal(np.array(Image.open(io.BytesIO(found))), upright)


# --- colors ----------------------------------------------------------------------------------------------------------

CHOICE = np.random.default_rng(2).integers(0, 3, (SIZE[1], SIZE[0]))  # places in COLORS
RGB = np.array([ROAD, EDGE, SKY], np.uint8)[CHOICE]
EXPECTED = np.array([0, 255, 1])[CHOICE]
TONES = [9, 9, 9, *ROAD, *SKY, *EDGE, *bytes(3 * 252)]
INDICES = np.array([1, 3, 2], np.uint8)[CHOICE]
CLEAR = np.dstack([RGB, np.arange(RGB[..., 0].size).reshape(SIZE[::-1]) % 256]).astype(np.uint8)


def test_class_is_the_place_of_the_color() -> None:
    for mask in [
        save(Image.fromarray(RGB), "PNG"),  # png
        save(Image.fromarray(CLEAR, "RGBA"), "PNG"),  # png with alpha, which is not read
        save(indexed(INDICES, TONES), "PNG", bits=8),  # png with a palette
        save(indexed(INDICES, TONES[:12]), "PNG", bits=2),  # png with a palette of 2 bits
        save(Image.fromarray(RGB), "BMP"),  # bmp
        bmp(INDICES, 4, TONES[:48]),  # bmp with a palette
        save(Image.fromarray(RGB), "TIFF"),  # tiff
        save(indexed(INDICES, TONES), "TIFF"),  # tiff with a palette
        save(indexed(INDICES, TONES), "GIF"),  # gif
        npy(RGB),  # npy
    ]:
        np.testing.assert_array_equal(stored(mask, DRAWN), EXPECTED)


def test_black_and_white_are_colors() -> None:
    for encode in [
        lambda v: gray_png(v, 1),  # png
        lambda v: tiff(v, 1),  # tiff
        lambda v: tiff(v, 1, 0),  # tiff white is zero
        lambda v: bmp(v, 1, ramp(1)),  # bmp
        lambda v: save(Image.fromarray(v * 255), "PNG"),  # png 8 bits
        lambda v: save(Image.fromarray(v * 255).convert("LA"), "PNG"),  # png with alpha
    ]:
        colors = class_masks.MaskColors((("white", (255, 255, 255)), ("black", (0, 0, 0))))
        values = classes(2)
        mask = encode(values)
        seen = np.asarray(Image.open(io.BytesIO(mask)).convert("RGB"))[..., 0]
        np.testing.assert_array_equal(stored(mask, class_masks.MaskPolicy(colors)), np.where(seen == 255, 0, 1))


def test_color_of_no_class_is_named_with_its_pixel() -> None:
    for mask in [
        save(Image.fromarray(np.where(np.arange(SIZE[0])[None, :, None] == 5, 77, RGB).astype(np.uint8)), "PNG"),
        save(
            indexed(np.where(np.arange(SIZE[0]) == 5, 4, INDICES).astype(np.uint8), [*TONES[:12], 77, 77, 77]), "PNG"
        ),  # palette
    ]:
        with pytest.raises(
            checked_image.BadImageError,
            match=r"bad_value: the pixel in row 0, column 5 .* has the color \[77, 77, 77\], .*source.masks.colors",
        ):
            stored(mask, DRAWN)


def test_unknown_color_below_the_first_strip_is_named_with_its_row() -> None:
    tall = np.broadcast_to(np.array(ROAD, np.uint8), (600, 4, 3)).copy()
    tall[555, 2] = 1
    image = IMAGE._replace(height=600, width=4)
    with pytest.raises(checked_image.BadImageError, match=r"row 555, column 2"):
        class_masks.with_mask(image, npy(tall), policy=DRAWN)


# --- rejects ---------------------------------------------------------------------------------------------------------


def npy_of(header: str, data: bytes = b"", version: int = 1) -> bytes:
    return mask_pixels.NPY_SIGNATURE + bytes((version, 0)) + struct.pack("<H", len(header)) + header.encode() + data


def several(format: str) -> bytes:
    pictures = [indexed(classes(9)), indexed(classes(8))]
    return save(pictures[0], format, save_all=True, append_images=pictures[1:])


HUGE = "{'descr': '<i8', 'fortran_order': False, 'shape': (1000000, 1000000), }\n"
PLAIN = "{'descr': '|u1', 'fortran_order': False, 'shape': (18, 29), }"
WEBP = save(Image.fromarray(RGB), "WEBP", lossless=True)


def test_mask_that_holds_no_classes_is_a_bad_image() -> None:
    for mask, reason, detail in [
        (b"", Reason.EMPTY_FILE, "0 bytes"),
        (b"class", Reason.NOT_AN_IMAGE, "text"),
        (gray_png(classes(), 8)[:-1], Reason.TRUNCATED, "no IEND chunk"),
        (save(Image.fromarray(RGB), "JPEG"), Reason.UNSUPPORTED_FORMAT, "blurs classes"),  # jpeg
        (WEBP, Reason.UNSUPPORTED_FORMAT, "blurs classes"),  # webp
        (save(Image.fromarray(RGB), "TIFF", compression="jpeg"), Reason.UNSUPPORTED_FORMAT, "blurs"),  # tiff jpeg
        (several("GIF"), Reason.SEVERAL_FRAMES, "a gif of several"),  # gif of several
        (several("TIFF"), Reason.SEVERAL_FRAMES, "a tiff of several"),  # tiff of several
        (save(Image.fromarray(RGB), "BMP"), Reason.UNSUPPORTED_FORMAT, "source.masks.colors"),  # colors
        (npy(RGB), Reason.UNSUPPORTED_FORMAT, "source.masks.colors"),  # npy of colors
        (save(Image.fromarray(RGB[:-1]), "BMP"), Reason.BAD_VALUE, "17 x 29 pixels"),  # size
        (npy(classes()[:-1]), Reason.BAD_VALUE, "17 x 29 pixels"),  # npy size
        (npy(classes().astype(float)), Reason.UNSUPPORTED_FORMAT, "float64"),  # npy floats
        (save(Image.fromarray(classes().astype(np.float32)), "TIFF"), Reason.UNSUPPORTED_FORMAT, "mode F"),  # floats
        (npy(classes().astype(int) - 1), Reason.BAD_VALUE, "value -1, expected 0 to 255: store"),  # negative
        (npy(classes()[None]), Reason.BAD_VALUE, "(1, 18, 29), expected (height, width)"),  # npy axes
        (npy(classes()[:0]), Reason.BAD_VALUE, "(0, 29)"),  # npy empty
        (npy(classes().astype(object)), Reason.UNSUPPORTED_FORMAT, "never unpickled"),  # npy objects
        (npy(classes().astype("<M8[s]")), Reason.UNSUPPORTED_FORMAT, "datetime64[s]"),  # npy dates
        (npy(np.zeros((18, 29), [("a", "u1")])), Reason.UNSUPPORTED_FORMAT, "a .npy file of [('a'"),  # npy fields
        (npy_of(HUGE, bytes(64)), Reason.TRUNCATED, "takes 8,000,000,000,000"),  # npy giant
        (npy_of(PLAIN, bytes(18 * 29 + 1)), Reason.CORRUPT, "523 bytes follow"),  # npy long
        (npy_of(PLAIN.replace("(18", "(-18"), b""), Reason.CORRUPT, "the shape (-18, 29)"),  # npy negative
        (npy_of(PLAIN.replace("18", "1" * 30), b""), Reason.TRUNCATED, "its shape (1111"),  # npy digits
        (npy_of(PLAIN.replace("u1", "u7"), b""), Reason.CORRUPT, "cannot be read: descr"),  # npy type
        (npy_of(PLAIN, version=9), Reason.CORRUPT, "version"),  # npy version
        (npy(classes())[:9], Reason.CORRUPT, "cannot be read: EOF"),  # npy cut at its length
        (npy(classes())[:40], Reason.CORRUPT, "cannot be read: EOF"),  # npy cut in its header
        (npy_of("__import__('os').system('false')"), Reason.CORRUPT, "cannot be read"),  # npy code
        (b"P5 29 18 255\n" + classes().tobytes(), Reason.UNSUPPORTED_FORMAT, "ppm"),  # pgm
    ]:
        with pytest.raises(checked_image.BadImageError) as caught:
            stored(mask)
        assert caught.value.reason is reason
        assert detail in caught.value.detail


def test_mask_without_the_expected_colors_is_a_bad_image() -> None:
    for mask, detail in [
        (gray_png(classes(), 8)[:-1], "no IEND chunk"),  # cut
        (npy(classes()), "none of source.masks.colors|leave source.masks.colors out"),  # npy
        (save(Image.fromarray(classes(300, np.uint16)), "PNG"), "leave source.masks.colors out"),  # 16 bits
        (save(indexed(np.full((18, 29), 3, np.uint8), TONES), "PNG", bits=8).replace(b"PLTE", b"PLTX"), "CRC|chunk"),
        (bmp(np.full((18, 29), 9, np.uint8), 8, TONES, colors=4), "index 9, and the palette 4"),  # index
    ]:
        with pytest.raises(checked_image.BadImageError, match=detail):
            stored(mask, DRAWN)


def test_damaged_mask_is_a_bad_image_or_one_of_the_images_size() -> None:
    for name in ["png 2 bits", "png palette", "gif colored", "bmp 4 bits gray", "bmp 8 bits", "tiff lzw", "npy int64"]:
        encode, num_classes = NUMBERS[name]
        whole = encode(classes(num_classes))
        rng = random.Random(name)
        for _ in range(150):
            damaged = bytearray(whole)
            for _ in range(rng.randrange(1, 6)):
                damaged[rng.randrange(min(len(damaged), 200 if rng.random() < 0.7 else len(damaged)))] = rng.randrange(
                    256
                )
            if rng.random() < 0.2:
                del damaged[rng.randrange(len(damaged)) :]
            mask = bytes(damaged)
            if name.startswith("png") and rng.random() < 0.5:
                mask = with_right_crcs(mask)
            for policy in (class_masks.NUMBERS, DRAWN):
                try:
                    found = structure.check_image(class_masks.with_mask(IMAGE, mask, policy=policy).mask)
                except checked_image.BadImageError as e:
                    assert e.detail
                else:
                    assert (found.format, found.height, found.width) == ("png", IMAGE.height, IMAGE.width)


def test_mask_of_giant_size_is_not_decoded() -> None:
    for mask in [
        tiff(classes(), 8).replace(struct.pack("<I", SIZE[0]), struct.pack("<I", 60_000)),  # tiff
        bmp(classes(), 8)[:18] + struct.pack("<ii", 50_000, 50_000) + bmp(classes(), 8)[26:],  # bmp
        b"GIF89a\xff\xff\xff\xff" + save(indexed(classes()), "GIF")[10:],  # gif
    ]:
        with pytest.raises(checked_image.BadImageError, match=r"bad_value: .* pixels, and the image has|too_large"):
            stored(mask)
        height, width = (SIZE[1], 60_000) if mask.startswith(b"II") else (50_000, 50_000)
        image = IMAGE._replace(height=height, width=width)  # as its image says too
        with pytest.raises(checked_image.BadImageError):
            class_masks.with_mask(image, mask)


def test_tiff_with_a_giant_tile_is_not_decoded() -> None:
    compressed = zlib.compress(bytes(1 << 16))
    tags = ((256, 29), (257, 18), (258, 8), (259, 8), (262, 1), (277, 1), (322, 32_752), (323, 32_752), (324, 8))
    directory = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in (*tags, (325, len(compressed))))
    mask = struct.pack("<2sHI", b"II", 42, 8 + len(compressed)) + compressed + struct.pack("<H", 10) + directory
    with pytest.raises(checked_image.BadImageError, match=r"too_large: a tiff with tiles of 32752 x 32752 pixels"):
        stored(mask + bytes(4))


# --- masks in black and white ----------------------------------------------------------------------------------------


def one_row(numbers: list[int], format: str = "PNG", mode: str = "L", **options: object) -> bytes:
    """Returns a picture of one row."""
    return save(PIL.Image.fromarray(np.array([numbers], np.uint8), "L").convert(mode), format, **options)


def numbers_of(*masks: bytes) -> list[dict[int, int]]:
    return [mask_pixels.count_numbers(mask) for mask in masks]


def test_mask_of_0_and_255_is_black_and_white() -> None:
    for format in ["PNG", "BMP", "TIFF"]:
        assert mask_pixels.are_black_and_white(numbers_of(one_row([0, 255, 255], format)))
        assert mask_pixels.are_black_and_white(numbers_of(one_row([0, 0], format), one_row([255, 0], format)))


def test_other_mask_is_not() -> None:
    for mask in [
        one_row([0, 1, 255]),  # with-a-class
        one_row([0, 0]),  # all-black
        one_row([255, 255]),  # all-white
        one_row([0, 255], mode="1"),  # one-bit
        one_row([0, 255], mode="RGB"),  # colors
        one_row([0, 255], mode="P"),  # palette
        one_row([0, 255], "TIFF", mode="1"),  # tiff-of-one-bit
        one_row([0, 255], "BMP", mode="1"),  # bmp-of-one-bit
        one_row([0, 255], "JPEG"),  # jpeg
        one_row([0, 255])[:43],  # cut-short
        b"",  # empty
        b"BM",  # signature-alone
    ]:
        assert not mask_pixels.are_black_and_white(numbers_of(mask))
        assert not mask_pixels.are_black_and_white(numbers_of(mask, mask))


def test_colors_in_yaml_are_the_colors() -> None:
    assert yaml.safe_load(mask_pixels.BLACK_AND_WHITE_TEXT) == mask_pixels.BLACK_AND_WHITE


def test_mask_with_grays_between_black_and_white_was_smoothed() -> None:
    for numbers, is_smoothed in [
        ([0] * 500 + [255] * 500 + [*range(20, 120)], True),  # edges
        ([*range(16)] * 30 + [*range(240, 256)] * 30 + [*range(80, 120)], True),  # noise
        ([*range(34)] * 30 + [255] * 400, False),  # 34-classes-and-edges-ignored
        ([*range(256)] * 3, False),  # picture
        ([0] * 900 + [*range(1, 182)], False),  # many-classes
        ([*range(0, 182, 6)] * 30 + [255] * 90, False),  # many-classes-and-edges-ignored
        ([0, 255], False),  # exact
    ]:
        assert mask_pixels.are_smoothed(numbers_of(one_row(numbers))) == is_smoothed
        halves = [one_row(numbers[n::2]) for n in range(2)]
        assert mask_pixels.are_smoothed(numbers_of(*halves)) == is_smoothed
