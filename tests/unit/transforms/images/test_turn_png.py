"""PNGs of every kind, turned and compared pixel by pixel with a slow reader written from the specification."""

from __future__ import annotations

import io
import random
import zlib

import numpy as np
import pytest
from PIL import Image

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import (
    checked_image,
    exif,
    orientations,
    png_chunks,
    png_pixels,
    structure,
    turn_png,
    turn_upright,
)
from tests import encoded_images
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


def reference_pixels(data: bytes) -> np.ndarray:
    """Returns the values, [height, width, channels]: every filter byte by byte, as in the specification."""
    header = png_pixels.read_header(data)
    channels, depth = CHANNELS[header.color_type], header.depth
    back = max(1, channels * depth // 8)
    kinds = {kind: content for kind, content, _ in png_chunks.read_chunks(data)}
    lines = zlib.decompress(kinds[b"IDAT"])
    values = np.zeros((header.height, header.width, channels), int)
    position = 0
    for rows, columns in passes(header.height, header.width, header.is_interlaced):
        size = -(-len(columns) * channels * depth // 8)
        above = [0] * size
        for y in rows:
            kind, line = lines[position], list(lines[position + 1 : position + 1 + size])
            position += 1 + size
            for i in range(size):
                a, b, c = (line[i - back] if i >= back else 0), above[i], (above[i - back] if i >= back else 0)
                p = a + b - c
                paeth = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
                line[i] = (line[i] + [0, a, b, (a + b) // 2, paeth][kind]) & 255
            bits = "".join(f"{byte:08b}" for byte in line)
            for index, x in enumerate(columns):
                for channel in range(channels):
                    start = (index * channels + channel) * depth
                    values[y, x, channel] = int(bits[start : start + depth], 2)
            above = line
    return values


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


@pytest.mark.parametrize("is_interlaced", [False, True], ids=["plain", "interlaced"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_pixel_is_at_its_place(kind: tuple[int, int], is_interlaced: bool) -> None:
    for orientation in range(1, 9):
        height, width = random.Random(orientation).choice([(7, 13), (13, 7), (1, 9), (9, 1), (8, 8), (1, 1)])
        source = random_png(kind, height, width, is_interlaced, orientation)
        turned = turn_png.turn_png(source, orientation)
        expected = turn_png.turn_pixels(reference_pixels(source), orientation)
        assert (reference_pixels(turned) == expected).all()
        before, after = structure.check_image(source), structure.check_image(turned)
        size = orientations.turn_size(height, width, orientation)
        assert after == before._replace(data=turned, height=size[0], width=size[1], orientation=1)
        assert turn_png.turn_png(turned, orientations.inverse(orientation)) == turn_png.turn_png(source, 1)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_other_chunks_are_kept_in_order(kind: tuple[int, int]) -> None:
    source = random_png(kind, 5, 9, False, 0)
    found = turn_upright.turn_upright(structure.check_image(source))
    assert found.is_lossless
    before, after = (list(png_chunks.read_chunks(each)) for each in (source, found.image.data))
    assert [each.kind for each in before] == [each.kind for each in after]
    kept = [content for name, content, _ in before if name not in (b"IHDR", b"IDAT")]
    expected = [UPRIGHT if content == TURNED else content for content in kept]
    assert [content for name, content, _ in after if name not in (b"IHDR", b"IDAT")] == expected
    header = png_pixels.read_header(found.image.data)
    assert header == (9, 5, kind[1], kind[0], False)


@pytest.mark.parametrize("name", encoded_images.PNGS)
def test_png_of_pillow_is_turned_as_pillow_turns_it(name: str) -> None:
    source = encoded_images.PNGS[name]
    for orientation in range(2, 9):
        turned = structure.check_image(turn_png.turn_png(source, orientation), "decode")
        found, expected = (np.asarray(Image.open(io.BytesIO(each))) for each in (turned.data, source))
        assert (found == turn_png.turn_pixels(expected, orientation)).all()
        assert len(turned.data) < 1.3 * len(source)


def test_filters_make_photos_as_small_as_pillow_makes_them() -> None:
    file = io.BytesIO()
    photo(300, 200).save(file, "PNG")
    assert len(turn_png.turn_png(file.getvalue(), 6)) < 1.05 * len(file.getvalue())


def test_animated_png_keeps_its_first_image() -> None:
    turned = turn_png.turn_png(encoded_images.PNGS["animated"], 6)
    assert {each.kind for each in png_chunks.read_chunks(turned)} == {b"IHDR", b"IDAT", b"IEND"}


def test_mask_keeps_classes_and_palette() -> None:
    mask = random_png((3, 4), 6, 10, False, 1)
    turned = turn_upright.turn_mask(mask, 8)
    assert (reference_pixels(turned) == turn_png.turn_pixels(reference_pixels(mask), 8)).all()
    assert PALETTE in turned


@pytest.mark.parametrize(
    ("compressed", "message"),
    [
        (b"\0\1\2", "the pixels cannot be decompressed: Error -3"),
        (zlib.compress(bytes(71)), "71 bytes of pixels, the header says 72"),
        (zlib.compress(bytes([9] * 72)), "Pillow: unrecognized data stream contents"),
    ],
    ids=["no stream", "too few", "unknown filter"],
)
def test_damaged_pixels_are_a_reject(compressed: bytes, message: str) -> None:
    source = png(ihdr(8, 8), chunk(b"IDAT", compressed), encoded_images.IEND)
    with pytest.raises(checked_image.BadImageError, match=message) as raised:
        turn_png.turn_png(source, 6)
    assert raised.value.reason is Reason.UNDECODABLE


def test_large_png_is_refused_before_it_is_decompressed() -> None:
    source = png(ihdr(20_000, 20_000, 16, 6), chunk(b"IDAT", zlib.compress(b"")), encoded_images.IEND)
    with pytest.raises(checked_image.BadImageError, match="20000 x 20000 pixels are more than decoders take"):
        turn_png.turn_png(source, 6)


def test_unknown_orientation_is_refused() -> None:
    with pytest.raises(ValueError, match="EXIF orientation 0, expected 1 to 8"):
        turn_upright.turn_mask(encoded_images.PNGS["gray"], 0)


def test_broken_exif_stays_as_it_is() -> None:
    source = png(ihdr(8, 8), chunk(b"eXIf", TURNED[:12]), encoded_images.IDAT, encoded_images.IEND)
    assert chunk(b"eXIf", TURNED[:12]) in turn_png.turn_png(source, 6)
    assert exif.read_orientation(UPRIGHT, 0, len(UPRIGHT)) == 1
