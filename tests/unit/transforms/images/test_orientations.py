"""Points, boxes and sizes of turned images, compared with turned pixels."""

from __future__ import annotations

import struct

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from PIL import Image

from imagebeam.transforms.images import orientations, pixels, structure
from imagebeam.transforms.images.orientations import Box
from tests import pictures
from tests.pictures import encode, photo

ORIENTATIONS = range(1, 9)
fractions = strategies.floats(0, 1)


def test_box_holds_the_same_pixels() -> None:
    for orientation in ORIENTATIONS:
        picture = Image.fromarray(np.arange(8 * 16, dtype=np.uint8).reshape(8, 16))
        turned = pixels.turn_upright(picture, orientation)
        assert turned.size[::-1] == orientations.turn_size(8, 16, orientation)
        assert (np.asarray(turned) == pictures.turn_pixels(np.asarray(picture), orientation)).all()

        def cut(image: Image.Image, box: Box) -> np.ndarray:
            width, height = image.size
            return np.asarray(image.crop([round(side) for side in (
                box.xmin * width, box.ymin * height, box.xmax * width, box.ymax * height)]))  # fmt: skip

        box = Box(xmin=2 / 16, xmax=7 / 16, ymin=1 / 8, ymax=4 / 8)
        expected = pictures.turn_pixels(cut(picture, box), orientation)
        assert cut(turned, orientations.turn_box(box, orientation)).tolist() == expected.tolist()


def test_point_is_at_the_same_pixel() -> None:
    for orientation in ORIENTATIONS:
        for row in [0, 3, 7]:
            for column in [0, 5, 15]:
                image = np.zeros((8, 16), np.uint8)
                image[row, column] = 1
                turned = pictures.turn_pixels(image, orientation)
                x, y = orientations.turn_point((column + 0.5) / 16, (row + 0.5) / 8, orientation)
                assert turned[int(y * turned.shape[0]), int(x * turned.shape[1])] == 1


@hypothesis.given(fractions, fractions, fractions, fractions, strategies.sampled_from(ORIENTATIONS))
@hypothesis.settings(deadline=None)
def test_turning_there_and_back_is_the_identity(xmin: float, xmax: float, ymin: float, ymax: float, turn: int) -> None:
    box = Box(min(xmin, xmax), max(xmin, xmax), min(ymin, ymax), max(ymin, ymax))
    turned = orientations.turn_box(box, turn)
    assert turned.xmin <= turned.xmax
    assert turned.ymin <= turned.ymax
    back = orientations.turn_box(turned, orientations.inverse(turn))
    assert back == pytest.approx(box, rel=0, abs=2**-53)
    assert np.float32(back).tolist() == pytest.approx(np.float32(box).tolist(), rel=0, abs=2**-53)
    corner = orientations.turn_point(box.xmin, box.ymin, turn)
    assert corner[0] in (turned.xmin, turned.xmax)
    assert corner[1] in (turned.ymin, turned.ymax)
    point = orientations.turn_point(*corner, orientations.inverse(turn))
    assert point == pytest.approx((box.xmin, box.ymin), rel=0, abs=2**-53)


def test_unknown_orientation_is_refused() -> None:
    for orientation in (0, 9):
        with pytest.raises(ValueError, match=f"EXIF orientation {orientation}, expected 1 to 8"):
            orientations.turn_box(Box(0, 1, 0, 1), orientation)
        with pytest.raises(ValueError, match=f"EXIF orientation {orientation}, expected 1 to 8"):
            orientations.turn_point(0, 0, orientation)


# --- EXIF data -------------------------------------------------------------------------------------------------------


def tiff(order: str, *entries: bytes, start: int = 8) -> bytes:
    mark = b"II*\0" if order == "<" else b"MM\0*"
    gap = bytes(start - 8)
    return mark + struct.pack(order + "I", start) + gap + struct.pack(order + "H", len(entries)) + b"".join(entries)


def entry(order: str, tag: int, kind: int, value: int, number: int = 1) -> bytes:
    size = {1: "B3x", 3: "H2x", 4: "I"}[kind]
    return struct.pack(f"{order}HHI{size}", tag, kind, number, value)


def test_orientation_is_read_in_every_byte_order_and_type() -> None:
    for order in ["<", ">"]:
        for kind in [1, 3, 4]:
            for start in [8, 30]:
                for orientation in range(10):
                    others = [entry(order, 0x010F, 4, 77), entry(order, 0x0128, 3, 2)]
                    data = tiff(order, others[0], entry(order, 0x0112, kind, orientation), others[1], start=start)
                    expected = orientation if 1 <= orientation <= 8 else 1
                    assert orientations.read_orientation(b"xx" + data, 2, 2 + len(data)) == expected


def test_broken_exif_asks_for_no_turn() -> None:
    for data in [
        b"",  # empty
        b"II*\0",  # cut
        b"II*\0\xff\xff\xff\xff",  # far
        b"II*\0\x08\0\0\0",  # no-count
        b"II*\0\x08\0\0\0\x05\0",  # no-entries
        b"XX*\0" + tiff("<", entry("<", 0x0112, 3, 6))[4:],  # order
        tiff("<", entry("<", 0x0112, 3, 6, number=2)),  # two-values
        tiff("<", entry("<", 0x0112, 3, 6))[:-1],  # cut-entry
        tiff("<", struct.pack("<HHI4s", 0x0112, 5, 1, b"\6\0\0\0")),  # fraction
    ]:
        assert orientations.read_orientation(data, 0, len(data)) == 1
        assert structure.check_image(encode(photo(23, 17), exif=orientations.EXIF_HEADER + data)).orientation == 1


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(strategies.binary(max_size=60), strategies.sampled_from([b"", b"II*\0", b"MM\0*"]))
def test_any_exif_has_an_orientation(data: bytes, head: bytes) -> None:
    assert 1 <= orientations.read_orientation(head + data, 0, len(head + data)) <= 8


def test_second_exif_segment_does_not_hide_the_first() -> None:
    turned = encode(photo(23, 17), exif=orientations.EXIF_HEADER + tiff("<", entry("<", 0x0112, 3, 6)))
    second = orientations.EXIF_HEADER + tiff("<", entry("<", 0x0112, 3, 1))
    segment = b"\xff\xe1" + struct.pack(">H", len(second) + 2) + second
    where = turned.index(b"\xff\xdb")
    assert structure.check_image(turned[:where] + segment + turned[where:]).orientation == 6


def exif_with_sizes(order: str, kinds: tuple[int, int], orientation: int) -> bytes:
    """EXIF data with an orientation and two folders that state 96 x 64 pixels, in these types of integers."""
    width, height = kinds
    main = [
        entry(order, 0x0100, width, 96),
        entry(order, 0x0101, height, 64),
        entry(order, 0x0112, 3, orientation),
        entry(order, 0x8769, 4, 8 + 2 + 4 * 12 + 4),
    ]
    sizes = [entry(order, 0xA001, 3, 1), entry(order, 0xA002, width, 96), entry(order, 0xA003, height, 64)]
    return tiff(order, *main) + bytes(4) + struct.pack(order + "H", len(sizes)) + b"".join(sizes) + b"rest"


def test_orientation_is_reset_and_sizes_are_exchanged() -> None:
    for order in ["<", ">"]:
        for kinds in [(3, 3), (4, 4), (3, 4), (4, 3)]:
            for swaps_sides in [False, True]:
                for orientation in range(1, 9):
                    source = b"xx" + exif_with_sizes(order, kinds, orientation)
                    changed = bytearray(source + b"yy")
                    orientations.set_upright(changed, 2, len(source), swaps_sides)
                    expected = exif_with_sizes(order, kinds, 1)
                    assert len(changed) == len(source) + 2
                    if swaps_sides:
                        found = Image.Exif()
                        found.load(orientations.EXIF_HEADER + bytes(changed[2:]))
                        assert (found[0x0112], found[0x0100], found[0x0101]) == (1, 64, 96)
                        assert (found.get_ifd(0x8769)[0xA002], found.get_ifd(0x8769)[0xA003]) == (64, 96)
                        orientations.set_upright(changed, 2, len(source), True)
                    assert changed == b"xx" + expected + b"yy"


def test_size_that_is_alone_stays() -> None:
    source = tiff("<", entry("<", 0x0100, 3, 96), entry("<", 0x0112, 3, 6))
    changed = bytearray(source)
    orientations.set_upright(changed, 0, len(changed), True)
    assert changed == tiff("<", entry("<", 0x0100, 3, 96), entry("<", 0x0112, 3, 1))


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(
    strategies.one_of(
        strategies.binary(max_size=90),
        strategies.lists(
            strategies.tuples(
                strategies.sampled_from([0x0112, 0x8769, 0x0100, 0x0101, 0xA002]),
                strategies.sampled_from([1, 3, 4]),
                strategies.integers(0, 90),
            ).map(lambda each: entry("<", *each)),
            max_size=6,
        ).map(lambda entries: tiff("<", *entries)),
    ),
    strategies.booleans(),
)
def test_any_exif_becomes_upright(data: bytes, swaps_sides: bool) -> None:
    changed = bytearray(b"xx" + data + b"yy")
    orientations.set_upright(changed, 2, 2 + len(data), swaps_sides)
    assert len(changed) == len(data) + 4
    assert changed.startswith(b"xx")
    assert changed.endswith(b"yy")
    assert orientations.read_orientation(bytes(changed), 2, 2 + len(data)) == 1
