"""The lossless turns in C: coefficients, pixels, markers, limits and broken input."""

from __future__ import annotations

import base64
import concurrent.futures
import io
import os
import random
import resource
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from PIL import Image

from imagebeam.transforms.images import orientations, pixels
from tests import encoded_images, jpeg_coefficients
from tests.pictures import damage, encode, photo, without_segments

if os.environ.get("IMAGEBEAM_CI") != "1":  # there it must be built
    pytest.importorskip("imagebeam._turn", reason="was not built here: docs/upright.md says what it needs")
from imagebeam import _turn

TURNS = range(2, 9)
ENOUGH = 1 << 24  # bytes
# 64 x 32, by `cjpeg -sample 4x1 -quality 20 -baseline -optimize` of libjpeg-turbo, because Pillow cannot write it.
FOUR_ONE_ONE = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDACgcHiMeGSgjISMtKygwPGRBPDc3PHtYXUlkkYCZlo+AjIqgtObDoKrarYqMyP/L2u71////m8H/"
    "///6/+b9//j/2wBDASstLTw1PHZBQXb4pYyl+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj4+Pj/wAAR"
    "CAAgAEADAUEAAhEBAxEB/8QAFwABAQEBAAAAAAAAAAAAAAAAAQACBf/EACAQAAICAQQDAQAAAAAAAAAAAAABAhEhEiIxQQNCUaH/xAAWAQEB"
    "AQAAAAAAAAAAAAAAAAAAAgH/xAAXEQEBAQEAAAAAAAAAAAAAAAAAAREh/9oADAMBAAIRAxEAPwDkjRrTu0+1X+WZoMVFWa7CgCmkU3JPtJ5R"
    "l5bcnk1Dy0925c1JgkmdMpxTw2lzgMY0u2ST+MGEy3elFNSb7aWEZeG1JZNQ8VvdtXFyQVLM6ZQi3hNrjAYxpVMk39YMJku9Q2a1btXtVflG"
    "bArK832FgFP/2Q=="
)
SAMPLINGS = {
    "gray": encode(photo(96, 64).convert("L")),
    "444": encode(photo(96, 64), subsampling=0),
    "422": encode(photo(96, 64), subsampling=1),
    "420": encode(photo(96, 64), subsampling=2),
    "440": _turn.turn_jpeg(encode(photo(64, 96), subsampling=1), 5, ENOUGH) or b"",
    "411": FOUR_ONE_ONE,
    "cmyk": encode(photo(96, 64).convert("CMYK")),
    "ycck": encode(photo(96, 64).convert("CMYK")).replace(b"Adobe\0\x64\0\0\0\0\0", b"Adobe\0\x64\0\0\0\0\2"),
    "rgb": encode(photo(96, 64), keep_rgb=True),
    "restart by blocks": encode(photo(96, 64), restart_marker_blocks=5),
    "restart by rows": encode(photo(96, 64), restart_marker_rows=2),
    "standard huffman tables": without_segments(encode(photo(96, 64)), 0xC4),
}
OTHER_CODINGS = {
    "progressive": encode(photo(96, 64), progressive=True),
    "progressive with restarts": encode(photo(96, 64), progressive=True, restart_marker_rows=1),
    "arithmetic": encoded_images.ARITHMETIC,
    "arithmetic progressive": encoded_images.ARITHMETIC_PROGRESSIVE,
}
WHOLE = SAMPLINGS | OTHER_CODINGS

# Largest difference of a turned JPEG's decoded pixels from the source's, turned: the inverse transform does columns
# first and rounds before it does rows, which is off by up to 1. Converted from YCbCr, with weights up to 1.772, that is
# up to 3; and where chroma is interpolated, which rounds to the left and right in turn, up to 5.
MAX_DIFFERENCE = {"gray": 1, "cmyk": 1, "rgb": 1, "444": 3, "arithmetic": 1, "arithmetic progressive": 1}
MAX_OTHER_DIFFERENCE = 5


def turn(jpeg: bytes, orientation: int) -> bytes:
    """Returns the JPEG turned, which must be possible."""
    turned = _turn.turn_jpeg(jpeg, orientation, ENOUGH)
    assert turned is not None
    return turned


def decode(jpeg: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(jpeg))).astype(int)


def decode_then_turn(jpeg: bytes, orientation: int) -> np.ndarray:
    return np.asarray(pixels.turn_upright(Image.open(io.BytesIO(jpeg)), orientation)).astype(int)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", [name for name in SAMPLINGS if name != "standard huffman tables"])
def test_turned_coefficients_are_those_of_the_source_mirrored_and_transposed(name: str, orientation: int) -> None:
    found = jpeg_coefficients.read(turn(SAMPLINGS[name], orientation))
    steps = (
        orientations.mirrors_columns(orientation),
        orientations.mirrors_rows(orientation),
        orientations.swaps_sides(orientation),
    )
    expected = [jpeg_coefficients.turn(each, *steps) for each in jpeg_coefficients.read(SAMPLINGS[name])]
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert name == "gray" or one[:2] == other[:2]
        assert (one.table == other.table).all()
        assert (one.blocks == other.blocks).all()


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("name", WHOLE)
def test_turned_pixels_are_those_of_the_source_up_to_rounding(name: str, orientation: int) -> None:
    found, expected = decode(turn(WHOLE[name], orientation)), decode_then_turn(WHOLE[name], orientation)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= MAX_DIFFERENCE.get(name, MAX_OTHER_DIFFERENCE)
    assert abs((found - expected).mean()) < 0.5


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("name", WHOLE)
def test_turned_there_and_back_is_the_same_jpeg(name: str, orientation: int) -> None:
    back = turn(turn(WHOLE[name], orientation), orientations.inverse(orientation))
    assert back == turn(WHOLE[name], 1)


@pytest.mark.parametrize(
    ("name", "marker"),
    [("progressive", 0xC2), ("arithmetic", 0xC9), ("arithmetic progressive", 0xCA), ("420", 0xC0)],
)
def test_kind_of_jpeg_stays(name: str, marker: int) -> None:
    assert marker in {code for code, _ in jpeg_coefficients.segments(turn(WHOLE[name], 6))}


@pytest.mark.parametrize(
    ("name", "orientation", "interval"),
    [("restart by blocks", 6, 5), ("restart by rows", 2, 12), ("restart by rows", 6, 8), ("420", 6, None)],
)
def test_restart_interval_stays_that_of_blocks_or_of_rows(name: str, orientation: int, interval: int | None) -> None:
    found = dict(jpeg_coefficients.segments(turn(SAMPLINGS[name], orientation))).get(0xDD)
    assert found == (None if interval is None else interval.to_bytes(2, "big"))


@pytest.mark.parametrize("name", SAMPLINGS)
def test_size_in_bytes_stays_about_equal(name: str) -> None:
    source = turn(SAMPLINGS[name], 1)
    assert name == "standard huffman tables" or len(source) <= len(SAMPLINGS[name])
    assert all(abs(len(turn(SAMPLINGS[name], each)) / len(source) - 1) < 0.03 for each in TURNS)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("width", [96, 88, 90])
@pytest.mark.parametrize("height", [64, 56, 61])
@pytest.mark.parametrize(
    ("mode", "options", "mcu"),
    [
        ("RGB", {"subsampling": 2}, (16, 16)),
        ("L", {}, (8, 8)),
        ("RGB", {"subsampling": 1}, (16, 8)),
        ("RGB", {"subsampling": 0, "progressive": True}, (8, 8)),
    ],
    ids=str,
)
def test_side_to_be_mirrored_must_be_whole_blocks(
    mode: str, options: dict[str, Any], mcu: tuple[int, int], width: int, height: int, orientation: int
) -> None:
    source = encode(photo(width, height).convert(mode), **options)
    turned = _turn.turn_jpeg(source, orientation, ENOUGH)
    is_partial = orientations.mirrors_columns(orientation) and width % mcu[0]
    if is_partial or (orientations.mirrors_rows(orientation) and height % mcu[1]):
        assert turned is None
    else:
        assert turned is not None
        assert np.abs(decode(turned) - decode_then_turn(source, orientation)).max() <= MAX_OTHER_DIFFERENCE


@pytest.mark.parametrize("orientation", TURNS)
def test_metadata_are_kept_byte_for_byte_and_in_order(orientation: int) -> None:
    source = encode(
        photo(96, 64), exif=b"Exif\0\0 any bytes", icc_profile=bytes(range(256)) * 500, comment=b"a\0b", dpi=(1, 2)
    )

    def metadata(jpeg: bytes) -> list[tuple[int, bytes]]:
        return [each for each in jpeg_coefficients.segments(jpeg) if 0xE0 <= each[0] <= 0xEF or each[0] == 0xFE]

    assert len(metadata(source)) == 5
    assert metadata(turn(source, orientation)) == metadata(source)


def test_bytes_after_the_end_are_dropped() -> None:
    assert turn(SAMPLINGS["420"] + b"another picture", 6) == turn(SAMPLINGS["420"], 6)


def test_segment_between_scans_cannot_move() -> None:
    source = OTHER_CODINGS["progressive"]
    second_scan = source.index(b"\xff\xda", source.index(b"\xff\xda") + 2)
    assert _turn.turn_jpeg(encoded_images.insert(source, second_scan, b"\xff\xfe\0\4hi"), 2, ENOUGH) is None


@pytest.mark.parametrize(
    ("jpeg", "message"),
    [
        (b"", "Empty input file"),
        (b"<html>", "Not a JPEG file"),
        (SAMPLINGS["420"][:-300], "Premature end of JPEG file"),
        (SAMPLINGS["420"][:300], "Premature end of JPEG file"),
        (without_segments(SAMPLINGS["420"], 0xDB), "Quantization table 0x00 was not defined"),
        (SAMPLINGS["420"].replace(b"\xff\xc0", b"\xff\xc3"), "Unsupported JPEG process: SOF type 0xc3"),
        (encoded_images.insert(SAMPLINGS["420"], 2, b"stray"), "extraneous bytes before marker"),
    ],
    ids=["empty", "html", "cut", "cut early", "no tables", "lossless", "stray bytes"],
)
def test_broken_jpeg_is_refused_whatever_came_before(jpeg: bytes, message: str) -> None:
    for orientation in TURNS:
        turn(SAMPLINGS["420"], orientation)
        with pytest.raises(ValueError, match=message):
            _turn.turn_jpeg(jpeg, orientation, ENOUGH)


def test_large_header_takes_no_memory() -> None:
    frame = SAMPLINGS["444"].index(b"\xff\xc0") + 5
    large = encoded_images.overwrite(SAMPLINGS["444"], frame, (65_496).to_bytes(2, "big") * 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="65496 x 65496 pixels take 51476712192 bytes of memory, at most 16777216 are"):
        _turn.turn_jpeg(large, 3, ENOUGH)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_limit_of_memory_is_exact() -> None:
    needed = 4 * 96 * 64 * 3
    assert _turn.turn_jpeg(SAMPLINGS["444"], 6, needed)
    for limit in (needed - 1, 0, -1):
        with pytest.raises(
            ValueError, match=f"64 x 96 pixels take {needed} bytes of memory, at most {max(limit, 0)} are"
        ):
            _turn.turn_jpeg(SAMPLINGS["444"], 6, limit)


@pytest.mark.parametrize("orientation", [0, 9, -1])
def test_unknown_orientation_is_refused(orientation: int) -> None:
    with pytest.raises(ValueError, match=f"EXIF orientation {orientation}, expected 1 to 8"):
        _turn.turn_jpeg(SAMPLINGS["420"], orientation, ENOUGH)


@hypothesis.given(strategies.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=50, deadline=None)
def test_broken_jpegs_are_refused_or_turned_to_whole_ones(seed: int) -> None:
    rng = random.Random(seed)
    sources = list(WHOLE.values())
    for _ in range(60):
        broken, orientation = damage(rng.choice(sources), rng), rng.randint(1, 8)
        try:
            turned = _turn.turn_jpeg(broken, orientation, ENOUGH)
        except ValueError:
            continue
        if turned is not None:
            assert turned == _turn.turn_jpeg(broken, orientation, ENOUGH)
            if b"\xff\xc9" not in broken and b"\xff\xca" not in broken:  # see turn_jpeg.turn_without_loss
                assert turn(turned, 1) == turned


def test_threads_turn_the_same_jpegs() -> None:
    jobs = [(jpeg, orientation) for jpeg in WHOLE.values() for orientation in TURNS]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda job: turn(*job), jobs)) == [turn(*job) for job in jobs]


def test_library_is_named() -> None:
    assert _turn.LIBRARY.startswith("libjpeg-turbo ")
