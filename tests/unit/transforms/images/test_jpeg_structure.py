from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from PIL import Image as PillowImage

from imagebeam.transforms.elements import Reason
from imagebeam.transforms.images import checked_image, jpeg_structure, structure
from tests.encoded_images import DHT, DQT, EOI, JPEG, JPEGS, SOF, SOS, assert_rejected, insert, overwrite, without
from tests.image_sets import save
from tests.pictures import damage, encode, photo, without_segments

JPEG_MIDDLE = (JPEG.index(SOS) + len(JPEG)) // 2
AT_DQT, AT_DHT, AT_SOF, AT_SOS = (JPEG.index(marker) for marker in (DQT, DHT, SOF, SOS))
CORRUPT_JPEGS = [
    (insert(JPEG, AT_SOF, b"stray"), rf"^5 stray bytes at byte {AT_SOF}, after the segment at byte \d+$"),
    (JPEG[:AT_SOS] + EOI, rf"^the end-of-image marker at byte {AT_SOS} comes before any scan$"),  # no scan
    (b"\xff\xd8" + EOI, "comes before any scan"),  # no segment
    (insert(JPEG, 2, b"\xff\x01"), "^illegal marker FF 01 at byte 2$"),  # marker of no segment
    (insert(JPEG, 20, b"\xff\xd8"), "^illegal marker FF D8 at byte 20$"),  # second start
    (overwrite(JPEG, JPEG_MIDDLE, b"\xff\x05"), f"^illegal marker FF 05 at byte {JPEG_MIDDLE}$"),  # scan overwritten
    (overwrite(JPEG, JPEG_MIDDLE, b"\xff\xc3"), "illegal marker FF C3"),  # scan overwritten with a frame
    (
        overwrite(JPEG, JPEG_MIDDLE, b"\xff\xfe\0\4ab"),
        rf"stray bytes at byte {JPEG_MIDDLE + 6}, after the segment at byte {JPEG_MIDDLE}$",
    ),
    (
        overwrite(JPEG, JPEG_MIDDLE, b"\xff\xe5\xff\xf0"),
        rf"^the segment FF E5 at byte {JPEG_MIDDLE}, of 65520 bytes, spans the end of image$",
    ),
    (without(JPEG, SOF, DHT), r"^the scan at byte \d+ has no frame header$"),  # no frame
    (without(JPEG, DQT, SOF), r"^the scan at byte \d+ needs quantization table 0, which no segment before it holds$"),
    (
        overwrite(JPEG, AT_SOF + 12, b"\3"),
        rf"^the scan at byte {AT_SOS} needs quantization table 3, which no segment before it holds$",
    ),
    (
        without_segments(JPEGS["progressive"], 0xC4),
        r"^the scan at byte \d+ needs Huffman table 0 for DC, which no segment before it holds$",
    ),
    (
        overwrite(JPEG, AT_SOS + 6, b"\2"),
        rf"^the scan at byte {AT_SOS} needs Huffman table 2 for AC, which no segment before it holds$",
    ),
    (
        overwrite(JPEG, AT_SOS + 7, b"\x55"),
        rf"^the scan at byte {AT_SOS} needs component 85, which is not in the frame header$",
    ),
    (overwrite(JPEG, AT_SOS + 7, b"\1"), rf"^the scan at byte {AT_SOS} needs component 1, which it has already$"),
    (overwrite(JPEG, AT_SOS + 4, b"\0"), rf"^the scan header at byte {AT_SOS} has a wrong length, 12 bytes$"),
    (JPEG[:AT_SOS] + b"\xff\xda\0\2", "^the scan header at byte .* 2 bytes$"),  # scan header of no bytes
    (insert(JPEG, AT_SOF, b"\xff\xc0\0\x0b\x08\0\1\0\1\1\1\x11\0"), "second frame"),  # second frame
    (overwrite(JPEG, AT_DHT + 5, b"\xff"), rf"^the tables FF C4 at byte {AT_DHT} do not fill their \d+ bytes$"),
    (overwrite(JPEG, AT_DHT + 4, b"\4"), "tables FF C4"),  # huffman table 4
    (overwrite(JPEG, AT_DQT + 4, b"\x10"), "tables FF DB"),  # quantization table of 16 bits
    (overwrite(JPEG, AT_SOF + 2, b"\0\3"), rf"^the frame header at byte {AT_SOF} has a wrong length, 3 bytes$"),
    (overwrite(JPEG, AT_SOF + 9, b"\4"), "frame header .* 17 bytes"),  # frame of 4 components
    (overwrite(JPEG, AT_SOF + 5, b"\0\0"), r"frame header .* says 0 x 23 pixels$"),  # height 0
    (overwrite(JPEG, AT_SOF + 7, b"\0\0"), r"frame header .* says 17 x 0 pixels$"),  # width 0
]
BROKEN_JPEGS = [
    *((data, Reason.CORRUPT, text) for data, text in CORRUPT_JPEGS),
    (
        overwrite(JPEG, 4, b"\xff\xf0"),
        Reason.TRUNCATED,
        rf"^the segment FF E0 at byte 2 ends at byte 65524, the file has {len(JPEG)} bytes: it was cut short, fetch it",
    ),
    (
        JPEG.replace(SOF, b"\xff\xc3"),
        Reason.UNSUPPORTED_FORMAT,
        rf"^lossless or hierarchical jpeg \(marker FF C3 at byte {AT_SOF}\): convert it first$",
    ),
    (JPEG.replace(SOF, b"\xff\xf7"), Reason.UNSUPPORTED_FORMAT, "^lossless .* FF F7"),  # jpeg-ls
    (
        overwrite(JPEG, AT_SOF + 4, b"\x0c"),
        Reason.UNSUPPORTED_FORMAT,
        "^jpeg of 3 components of 12 bits, expected 1, 3 or 4 of 8 bits: convert it first$",
    ),
    (
        insert(JPEG, AT_SOF, b"\xff\xc0\0\x0e\x08\0\x11\0\x17\2\1\x11\0\2\x11\0"),
        Reason.UNSUPPORTED_FORMAT,
        "^jpeg of 2 components",
    ),
    (
        overwrite(JPEG, AT_SOF + 5, struct.pack(">H", 65_501)),
        Reason.TOO_LARGE,
        "^65501 x 23 pixels are more than decoders take: scale it down$",
    ),
    (overwrite(JPEG, AT_SOF + 5, struct.pack(">HH", 8192, 21846)), Reason.TOO_LARGE, "^8192 x 21846 pixels"),
]


@pytest.fixture(autouse=True, params=["in-c", "in-python"])
def checker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Checks JPEGs of the usual kind in C or in Python. Where the C extension was not built, both do the same."""
    if request.param == "in-python":
        monkeypatch.setattr(jpeg_structure, "_check_in_c", lambda data: None)
    return request.param


def test_check_image_of_broken_jpeg_is_rejected() -> None:
    for case in BROKEN_JPEGS:
        assert_rejected(*case)


@pytest.mark.parametrize("name", ["baseline", "optimized", "gray", "cmyk", "rgb", "extended", "restart markers"])
def test_check_image_of_jpeg_without_huffman_tables_takes_it_as_tensorflow_does(name: str) -> None:
    tf = pytest.importorskip("tensorflow")
    frame = without_segments(JPEGS[name], 0xC4)  # a frame of Motion JPEG, but for one that has tables of its own
    assert structure.check_image(frame, "decode").height == 17
    assert tf.io.decode_jpeg(frame).shape[:2] == (17, 23)
    if name != "optimized":
        assert (tf.io.decode_jpeg(frame).numpy() == tf.io.decode_jpeg(JPEGS[name]).numpy()).all()


def test_check_image_of_scan_overwritten_by_random_bytes_is_corrupt() -> None:
    generator = random.Random(0)
    data = save(PillowImage.frombytes("L", (200, 200), generator.randbytes(40_000)), "JPEG")
    num_missed = 0
    for _ in range(200):
        position = generator.randrange(data.index(SOS) + 10, len(data) - 4098)
        damaged = overwrite(data, position, generator.randbytes(4096))
        try:
            structure.check_image(damaged)
            num_missed += 1
        except checked_image.BadImageError as e:
            assert any(position <= int(byte) < position + 4096 for byte in re.findall(r"byte (\d+)", e.detail)), (
                e.detail
            )
    assert num_missed <= 4  # one in 246, where the first marker that chance forms is the end of the image


def outcome(check: Callable[[], checked_image.Image]) -> checked_image.Image | str:
    try:
        return check()
    except checked_image.BadImageError as e:
        return str(e)


def exif_jpegs() -> list[bytes]:
    """JPEGs that state an orientation, once and twice, and one whose EXIF header has nothing after it."""
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0"
    segments = [b"\xff\xe1" + struct.pack(">H", 2 + len(content)) + content for content in (exif, exif[:6])]
    return [insert(JPEG, 2, each) for each in (segments[0], segments[0] * 2, segments[1], segments[1] + segments[0])]


def test_check_in_c_finds_what_the_check_in_python_finds() -> None:
    for start in [0, 3]:
        generator = random.Random(start)
        whole = [*JPEGS.values(), *exif_jpegs()]
        damaged = [damage(generator.choice(whole), generator, start) for _ in range(3000)]
        damaged += [jpeg for jpeg, *_ in BROKEN_JPEGS] + [JPEG[:size] for size in range(4)]
        for jpeg in whole + damaged:
            in_python = outcome(lambda jpeg=jpeg: jpeg_structure._check_segments(jpeg, False))  # type: ignore[misc]
            assert outcome(lambda jpeg=jpeg: jpeg_structure.check_jpeg(jpeg)) == in_python  # type: ignore[misc]


def test_check_in_c_leaves_no_usual_jpeg_to_python(checker: str) -> None:
    pytest.importorskip("imagebeam._writer", reason="was not built: docs/reader-speed.md says what it needs")
    if checker == "in-c":
        left = [name for name, jpeg in JPEGS.items() if jpeg_structure._check_in_c(jpeg) is None]
        assert left == []
        assert jpeg_structure.check_jpeg(exif_jpegs()[0]).orientation == 6


# --- tables, as libjpeg-turbo and TensorFlow ask for them ------------------------------------------------------------


SMALL = (23, 17)  # width, height
KINDS = [
    encode(photo(*SMALL).convert(mode), **options)
    for mode in ("RGB", "L", "CMYK")
    for options in ({}, {"progressive": True}, {"optimize": True}, {"restart_marker_blocks": 1})
]


def failure_of(data: bytes) -> str:
    """Returns the error of libjpeg-turbo; "" if it decodes `data`."""
    native = pytest.importorskip("imagebeam._native", reason="was not built: docs/reader-speed.md says what it needs")
    out = np.zeros((1, SMALL[1], SMALL[0], 3), np.uint8)
    failures = native.decode([data], np.array([[0, 0, *out.shape[1:3]]], np.int32), np.zeros(1, bool), out, 1)
    return failures[0][1] if failures else ""


def with_other_tables(data: bytes, rng: random.Random) -> bytes:
    """Changes which tables and components the segments of a JPEG name."""
    changed = bytearray(data)
    segments = [match.start() for match in re.finditer(rb"\xff[\xc0\xc2\xc4\xda\xdb](?=.{13})", data, re.DOTALL)]
    for _ in range(rng.randint(1, 2)):
        changed[rng.choice(segments) + rng.randint(4, 14)] = rng.choice([0, 1, 2, 3, 16, 17])
    return bytes(changed)


@hypothesis.settings(max_examples=400, deadline=None)
@hypothesis.given(strategies.integers(0, 2**32 - 1))
def test_jpeg_without_a_table_is_rejected_where_decoders_refuse_it(seed: int) -> None:
    tf = pytest.importorskip("tensorflow")
    rng = random.Random(seed)
    data = rng.choice(KINDS)
    if rng.random() < 0.3:
        data = without_segments(data, rng.choice([0xC4, 0xDB]))
    if rng.random() < 0.9:
        data = with_other_tables(data, rng)
    try:
        structure.check_image(data)
    except checked_image.BadImageError as e:
        if " needs " in e.detail:
            with pytest.raises(tf.errors.InvalidArgumentError):
                tf.io.decode_jpeg(data)
    else:
        assert "was not defined" not in failure_of(data)
        assert "Invalid component ID" not in failure_of(data)
