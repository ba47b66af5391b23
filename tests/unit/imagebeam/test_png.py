"""PNGs in the decoder in C: the pixels of TensorFlow's decoder, and its verdict on broken files."""

from __future__ import annotations

import itertools
import os
import pathlib
import random
import re
import zlib

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

import imagebeam
from imagebeam import errors, features
from imagebeam.reader import image_decoder
from imagebeam.transforms.images import png_structure
from tests import encoded_images
from tests.encoded_images import chunk, insert
from tests.image_sets import save
from tests.pictures import photo
from tests.unit.imagebeam.reader import by_tensorflow, written
from tests.unit.transforms.images.test_turn_upright import PNG_KINDS, random_png

tf = pytest.importorskip("tensorflow")
if os.environ.get("IMAGEBEAM_CI") != "1":  # there they must be built
    pytest.importorskip("imagebeam._native", reason="was not built: docs/reader-speed.md says what it needs")
_native = image_decoder._native
if os.environ.get("IMAGEBEAM_CI") != "1" and not _native.DECODES_PNG:
    pytest.skip("libpng was not built in: docs/reader-speed.md says what it needs", allow_module_level=True)

TRANSPARENT = {0: b"\0\1", 2: b"\0\1\0\2\0\3", 3: b"\x80\0\x7f"}  # tRNS of gray, RGB and palette


def decode(encoded: bytes, height: int, width: int, part: tuple[int, int, int, int] | None = None) -> np.ndarray | str:
    """Returns the pixels of a part in their own size, or the reason why it cannot be decoded."""
    part = part or (0, 0, height, width)
    out = np.full((1, *part[2:], 3), 77, np.uint8)
    failures = _native.decode([encoded], np.array([part], np.int32), np.zeros(1, bool), out, 1)
    if failures:
        assert (out == 77).all()
        return failures[0][1]
    return out[0]


def tensorflow_pixels(encoded: bytes) -> np.ndarray | None:
    try:
        return tf.io.decode_png(encoded, 3).numpy()
    except tf.errors.InvalidArgumentError:
        return None


def test_every_kind_has_the_pixels_of_tensorflow() -> None:
    sizes = [(7, 13), (1, 9), (9, 1), (8, 8), (1, 1), (21, 34)]
    kinds = itertools.product([False, True], [False, True], PNG_KINDS, enumerate(sizes))
    for is_transparent, is_interlaced, kind, (seed, (height, width)) in kinds:
        encoded = random_png(kind, height, width, is_interlaced, seed)
        if is_transparent and kind[0] in TRANSPARENT:
            encoded = insert(encoded, encoded.index(b"IDAT") - 4, chunk(b"tRNS", TRANSPARENT[kind[0]]))
        expected = tensorflow_pixels(encoded)
        found = decode(encoded, height, width)
        assert expected is not None and not isinstance(found, str)
        assert (found == expected).all()
        top, left, rows, columns = height // 2, width // 3, height - height // 2, max(width // 2, 1)
        cut = decode(encoded, height, width, (top, left, rows, columns))
        assert (cut == expected[top : top + rows, left : left + columns]).all()
    for encoded in encoded_images.PNGS.values():  # as Pillow writes them
        expected = tensorflow_pixels(encoded)
        assert expected is not None and (decode(encoded, *expected.shape[:2]) == expected).all()


def damaged(encoded: bytes, rng: random.Random) -> bytes:
    broken = bytearray(encoded)
    action = rng.choice(["change", "cut", "lose", "change"])
    position = rng.randrange(8, len(broken))
    if action == "cut":
        del broken[position:]
    elif action == "lose":
        del broken[position : position + rng.randint(1, 20)]
    else:
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(8, len(broken))] = rng.randrange(256)
    return encoded_images.with_right_crcs(bytes(broken)) if rng.random() < 0.7 else bytes(broken)


@hypothesis.given(strategies.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=400, deadline=None)
def test_broken_png_is_decoded_or_refused_as_in_tensorflow(seed: int) -> None:
    rng = random.Random(seed)
    height, width = rng.randint(1, 20), rng.randint(1, 20)
    broken = damaged(random_png(rng.choice(PNG_KINDS), height, width, rng.random() < 0.3, seed), rng)
    if int.from_bytes(broken[16:18], "big") or int.from_bytes(broken[20:22], "big"):
        return  # a side above 65,535, for which both would take gigabytes
    expected = tensorflow_pixels(broken)
    found = decode(broken, height, width)
    if expected is None:
        assert isinstance(found, str)
    elif expected.shape[:2] == (height, width):
        assert not isinstance(found, str) and (found == expected).all()


def test_broken_png_is_a_failure_with_its_reason() -> None:
    whole = encoded_images.PNGS["rgb"]
    for encoded, message in [
        (whole[:-20], "the file is cut short"),
        (whole[:8], "the header of the PNG is missing"),
        (whole.replace(b"IHDR", b"IHDX"), "the header of the PNG is missing"),
        (encoded_images.png(encoded_images.chunk(b"exAm"), whole[8:]), "the header of the PNG is missing"),
        (random_png((2, 8), 7, 13, False, 0), "the picture has 13 x 7 pixels, not those that the record says"),
    ]:
        found = decode(encoded, 8, 8)
        assert isinstance(found, str) and re.search(message, found), found


def bare_png(height: int, width: int) -> bytes:
    """Returns a PNG of 1 bit whose rows are zeros: 48 KB for 400 million pixels."""
    rows = zlib.compressobj()
    compressed = b"".join(rows.compress(bytes(1 + -(-width // 8))) for _ in range(height)) + rows.flush()
    header = png_structure.encode_header(height, width, depth=1)
    return b"".join((png_structure.SIGNATURE, header, chunk(b"IDAT", compressed), chunk(b"IEND", b"")))


def peak_bytes() -> int:
    [line] = [each for each in pathlib.Path("/proc/self/status").read_text().splitlines() if "VmHWM" in each]
    return int(line.split()[1]) << 10


@pytest.mark.skipif(not pathlib.Path("/proc/self/clear_refs").exists(), reason="memory is measured as Linux does")
@pytest.mark.parametrize("says", [(16, 16), (20_000, 20_000)], ids=["small-record", "true-record"])
def test_large_png_is_refused_before_memory_is_taken(says: tuple[int, int]) -> None:
    encoded = bare_png(20_000, 20_000)
    assert len(encoded) < 60_000
    out, sizes = np.zeros((1, 8, 8, 3), np.uint8), np.array([says], np.int32)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins at what is taken now
    before = peak_bytes()
    more = [b""], None, 1, False, False, None
    [(_, failure)] = _native.decode(
        [encoded], np.array([[0, 0, *says]], np.int32), np.zeros(1, bool), out, 1, *more, sizes
    )
    expected = "its record says 16 x 16" if says == (16, 16) else "are more than 100000000"
    assert expected in failure
    [(_, failure)] = _native.decode([encoded], np.array([[0, 0, 16, 16]], np.int32), np.zeros(1, bool), out, 1)
    assert "are more than 100000000" in failure
    assert peak_bytes() - before < 50 << 20


def write(folder: pathlib.Path, images: list[bytes], sizes: list[tuple[int, int]]) -> imagebeam.ImageDataset:
    examples = [
        written.jpeg_values(index, width, height)
        | ({features.ENCODED: encoded, "image/format": b"png"} if encoded else {})
        for index, (encoded, (width, height)) in enumerate(zip(images, sizes, strict=True))
    ]
    formats = {"png": sum(map(bool, images)), "jpeg": sum(not each for each in images)}
    counted = {"formats": {name: count for name, count in formats.items() if count}}
    return written.write(folder, written.IMAGE, examples, num_shards=1, statistics=counted)


@pytest.mark.parametrize("kind", ["png", "jpeg", "progressive"])
@pytest.mark.parametrize("crop", ["center", "squash"])
def test_image_of_another_size_than_its_record_is_an_error(tmp_path: pathlib.Path, kind: str, crop: str) -> None:
    data = save(photo(60, 40), "PNG" if kind == "png" else "JPEG", progressive=kind == "progressive")
    dataset = write(tmp_path / "out", [data], [(30, 20)])
    with pytest.raises(errors.ExampleError, match=r"the image has 40 x 60 pixels, its record says 20 x 30"):
        next(dataset.as_numpy("train", 1, image_size=16, num_epochs=1, shuffle=None, crop=crop, decoder="native"))
    with pytest.raises(errors.ExampleError, match=r"the image has 40 x 60 pixels, its record says 20 x 30"):
        dataset.as_grain("train")[0]


@pytest.mark.parametrize("crop", ["random", "center", "squash", "resize_shorter"])
def test_decoders_make_the_same_batches_of_png_and_jpeg(tmp_path: pathlib.Path, crop: str) -> None:
    sizes = [(300, 200), (40, 60), (17, 13), (28, 28)]
    images = [save(photo(*size)) for size in sizes[:2]] + [b"", save(photo(28, 28))]
    dataset = write(tmp_path / "out", images, sizes)
    options = {"image_size": 28, "crop": crop, "num_epochs": 1, "shuffle": None}
    native, chosen = (
        next(dataset.as_numpy("train", 4, decoder=decoder, **options))["image"].astype(int)
        for decoder in ("native", "auto")
    )
    tensorflow = by_tensorflow.read(dataset, 4, image_size=28, crop=crop)
    assert (chosen == native).all()
    assert np.abs(native - tensorflow).max() <= 2
    assert np.abs(native - tensorflow).mean() < 0.6
    if crop == "squash":
        assert (native[3] == np.asarray(photo(28, 28))).all()


def test_broken_png_is_named_or_skipped(tmp_path: pathlib.Path) -> None:
    whole = save(photo(30, 20))
    position = whole.index(b"IDAT") + 30
    broken = whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]
    dataset = write(tmp_path / "out", [whole, broken, whole], [(30, 20)] * 3)
    options = {"image_size": 16, "num_epochs": 1, "shuffle": None, "drop_remainder": False, "decoder": "native"}
    with pytest.raises(errors.ExampleError, match=r"record 1 of shard .*: the image cannot be decoded, libpng: IDAT"):
        next(dataset.as_numpy("train", 3, **options))
    assert len(next(dataset.as_numpy("train", 3, on_error="skip", **options))["image"]) == 2
