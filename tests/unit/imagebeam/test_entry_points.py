"""Entry points of JPEGs: which images have them, and that a part decoded with their help has the same pixels."""

from __future__ import annotations

import itertools
import os
import pathlib
import random
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from PIL import Image

import imagebeam
from imagebeam import features
from imagebeam.pipelines import verify_dataset
from imagebeam.reader import image_decoder
from imagebeam.transforms.images import checked_image, reader_decoder
from tests import datasets, error_texts
from tests.pictures import damage, encode, photo, without_segments

if os.environ.get("IMAGEBEAM_CI") != "1":  # there they must be built
    pytest.importorskip("imagebeam._native", reason="was not built: docs/reader-speed.md says what it needs")
from imagebeam import _native, _writer

Part = tuple[int, int, int, int]  # top, left, height, width

KINDS: list[tuple[str, dict[str, Any]]] = [("L", {})]
KINDS += [(mode, {"subsampling": each}) for mode in ("RGB", "CMYK") for each in (0, 1, 2)]  # 4:4:4, 4:2:2, 4:2:0
MIDDLE = (90, 130, 80, 70)


def decode(encoded: bytes, part: Part, size: tuple[int, int] = (32, 32), points: bytes | None = None) -> bytes | str:
    """Returns the pixels, or the reason why the image cannot be decoded."""
    out = np.zeros((1, *size, 3), np.uint8)
    more = () if points is None else ([points],)
    failures = _native.decode([encoded], np.array([part], np.int32), np.zeros(1, bool), out, 1, *more)
    return failures[0][1] if failures else out.tobytes()


def warns_of_nothing(encoded: bytes) -> bool:
    return _writer.turn_jpeg(encoded, 1, False) is not None


def cut(encoded: bytes, part: Part) -> tuple[bytes, Part]:
    """Returns the smaller JPEG, which must exist, and where the part is in it."""
    found = _native.cut(encoded, _native.find_entry_points(encoded), part)
    assert found is not None
    return found


@hypothesis.given(strategies.data())
@hypothesis.settings(max_examples=150, deadline=None)
def test_part_has_the_same_pixels_with_entry_points(data: strategies.DataObject) -> None:
    mode, sampling = data.draw(strategies.sampled_from(KINDS))
    width, height = data.draw(strategies.integers(1, 400)), data.draw(strategies.integers(1, 300))
    quality, optimize = data.draw(strategies.sampled_from([20, 75, 98])), data.draw(strategies.booleans())
    encoded = encode(
        photo(400, 300).convert(mode).resize((width, height)), quality=quality, optimize=optimize, **sampling
    )
    points = _native.find_entry_points(encoded)
    assert points
    for _ in range(4):
        part_height, part_width = data.draw(strategies.integers(1, height)), data.draw(strategies.integers(1, width))
        top = data.draw(strategies.integers(0, height - part_height))
        left = data.draw(strategies.integers(0, width - part_width))
        part = (top, left, part_height, part_width)
        size = data.draw(strategies.sampled_from([(32, 32), (9, 50), (224, 224)]))
        expected = decode(encoded, part, size)
        assert isinstance(expected, bytes)
        assert decode(encoded, part, size, points) == expected
        found = _native.cut(encoded, points, part)
        if found is not None:  # not decoded whole after a warning: the smaller JPEG itself gives these pixels
            assert decode(*found, size) == expected
            assert mode == "CMYK" or warns_of_nothing(found[0])  # TurboJPEG reads no CMYK with subsampling


def test_crop_is_cut_out_of_every_kind_of_image() -> None:
    for optimize, (mode, options) in itertools.product([False, True], KINDS):
        encoded = encode(photo(400, 300).convert(mode), optimize=optimize, **options)
        smaller, (top, left, height, width) = cut(encoded, MIDDLE)
        assert len(smaller.rstrip(b"\0")) < 0.6 * len(encoded)
        assert top < 90 and left < 130 and (height, width) == MIDDLE[2:]
        lower = cut(encoded, (200, 0, 100, 400))  # whole rows, to the end
        assert lower[1][1:] == (0, 100, 400)


def test_differences_without_a_code_in_the_tables_of_the_image_are_possible() -> None:
    pixels = np.tile(np.linspace(0, 255, 512).astype(np.uint8), (64, 1))  # rises slowly: no large difference in a row
    encoded = encode(Image.fromarray(pixels), quality=100, optimize=True)
    for left in (0, 70, 200, 440):
        part = (24, left, 16, 60)
        smaller, there = cut(encoded, part)
        assert decode(smaller, there) == decode(encoded, part)
        assert warns_of_nothing(smaller)


def test_image_whose_means_grow_beyond_all_encoders_has_no_entry_points() -> None:
    header = encode(Image.new("L", (8 * 520, 8)))
    header = header[: header.index(b"\xff\xda") + 10]
    block = "111111110" + "1" * 11 + "1010"  # the mean rises by 2047, and the block ends
    for count, has_points in ((500, True), (520, False)):
        bits = block * count + ("00" + "1010") * (520 - count)
        coded = int(bits + "1" * (-len(bits) % 8), 2).to_bytes(-(-len(bits) // 8), "big")
        assert bool(_native.find_entry_points(header + coded.replace(b"\xff", b"\xff\0") + b"\xff\xd9")) == has_points


WHOLE = encode(photo(120, 80))
ENTROPY_CODED = WHOLE.index(b"\xff\xda") + 14


def test_image_that_cannot_be_cut_has_no_entry_points() -> None:
    for encoded in [
        encode(photo(120, 80), progressive=True),
        encode(photo(120, 80), restart_marker_blocks=4),
        without_segments(WHOLE, 0xC4),
        without_segments(WHOLE, 0xC0),
        WHOLE[:-2],
        WHOLE[:-40] + b"\xff\xd9",
        WHOLE[:-40] + b"\xff\xd0" + WHOLE[-40:],
        WHOLE[:-2] + b"\0\0\xff\xd9",
        WHOLE[:ENTROPY_CODED] + b"\xff\xd9",
        b"",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
    ]:
        assert _native.find_entry_points(encoded) == b""


def test_metadata_and_bytes_behind_the_image_are_no_obstacle() -> None:
    encoded = encode(photo(400, 300), exif=b"Exif\0\0" + bytes(5000), comment=b"of a kind") + b"and more"
    part = (90, 130, 210, 270)
    smaller, there = cut(encoded, part)
    assert decode(smaller, there) == decode(encoded, part)


@hypothesis.given(strategies.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=150, deadline=None)
def test_wrong_entry_points_never_make_a_good_image_a_failure(seed: int) -> None:
    rng = random.Random(seed)
    encoded = encode(photo(400, 300), subsampling=rng.choice([0, 2]), optimize=True)
    points = bytearray(_native.find_entry_points(encoded))
    if rng.random() < 0.3:
        del points[rng.randrange(len(points)) :]
    for _ in range(rng.randint(1, 3)):
        if points:
            points[rng.randrange(len(points))] = rng.randrange(256)
    assert isinstance(decode(encoded, MIDDLE, points=bytes(points)), bytes)


def test_entry_points_of_another_image_or_version_are_skipped() -> None:
    for optimize in [False, True]:
        encoded, other = encode(photo(400, 300)), encode(photo(300, 400), optimize=optimize)
        points = _native.find_entry_points(encoded)
        expected = decode(encoded, MIDDLE)
        for wrong in (b"", _native.find_entry_points(other), b"\x02" + points[1:], points[:-9], b"\x01"):
            assert decode(encoded, MIDDLE, points=wrong) == expected


@hypothesis.given(strategies.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=150, deadline=None)
def test_image_damaged_since_is_decoded_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    encoded = encode(photo(400, 300), subsampling=rng.choice([0, 2]))
    points = _native.find_entry_points(encoded)
    broken = damage(encoded, rng)
    found = decode(broken, MIDDLE, points=points)
    if len(broken) != len(encoded) or isinstance(found, str):
        assert found == decode(broken, MIDDLE)


def test_part_outside_of_the_image_is_the_same_failure() -> None:
    encoded = encode(photo(400, 300))
    points = _native.find_entry_points(encoded)
    for part in ((0, 0, 301, 400), (-1, 0, 8, 8), (0, 2**31 - 1, 8, 8), (0, 0, 0, 8)):
        assert decode(encoded, part, points=points) == decode(encoded, part)
        assert "not those that the record says" in str(decode(encoded, part, points=points))


def test_entry_points_of_what_is_not_bytes_are_refused() -> None:
    with pytest.raises(TypeError, match="data is bytes"):
        _native.find_entry_points("text")  # type: ignore[arg-type]


# --- in datasets -----------------------------------------------------------------------------------------------------


def test_only_jpegs_have_entry_points() -> None:
    encoded = encode(photo(120, 80))
    image = checked_image.Image(encoded, "jpeg", 80, 120, 3, "RGB")
    assert reader_decoder.find_entry_points(image) == _native.find_entry_points(encoded) != b""
    assert reader_decoder.find_entry_points(image._replace(format="png")) == b""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A dataset with entry points of JPEGs, one of which has none."""
    root = tmp_path_factory.mktemp("entry_points")
    (root / "images" / "cat").mkdir(parents=True)
    for index in range(9):
        picture = photo(200 + 20 * index, 180 + 9 * index)
        (root / "images" / "cat" / f"{index}.jpg").write_bytes(encode(picture, progressive=index == 4))
    datasets.make(root / "images", root / "out", features={features.ENTRY_POINTS: "points"}, output={"num_shards": 2})
    return root / "out"


def test_batches_are_the_same_with_entry_points(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorflow")
    passed: list[bytes] = []
    native_decode = _native.decode

    def batches(uses_points: bool) -> list[bytes]:
        def decode_or_record(*arguments: Any) -> Any:
            *before, points = arguments[:6]
            passed.extend(map(bytes, points))
            return native_decode(*before, points if uses_points else [b""] * len(points), *arguments[6:])

        monkeypatch.setattr(_native, "decode", decode_or_record)
        read = imagebeam.open_dataset(str(folder)).as_numpy(
            "train", 3, image_size=64, crop="random", num_epochs=2, seed=3, decoder="native", features=("points",)
        )
        return [batch["image"].tobytes() + b"".join(batch["points"]) for batch in read]

    assert image_decoder.library() is not None
    assert batches(True) == batches(False)
    assert sorted(map(bool, passed)) == [False] * 4 + [True] * 32


def test_verify_finds_entry_points_of_another_image(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verify_dataset.verify(folder, decode=True).problems == ()
    wrong = _native.find_entry_points(encode(photo(120, 80)))
    monkeypatch.setattr(reader_decoder, "find_entry_points_in", lambda encoded: wrong)
    problems = verify_dataset.verify(folder, decode=True).problems
    assert len(problems) == 9
    assert "points are not the entry points of this image: write the dataset again" in problems[0].detail


def test_single_examples_have_entry_points_only_if_they_are_asked_for(folder: pathlib.Path) -> None:
    pytest.importorskip("PIL")
    opened = imagebeam.open_dataset(str(folder))
    assert "points" not in opened.as_grain("train")[0]
    assert "points" in opened.as_grain("train", features=("points",))[0]


def test_feature_needs_code_in_c(folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_decoder, "_native", None)
    with error_texts.raises("extension-missing"):
        datasets.make(folder.parent / "images", tmp_path / "out", features={features.ENTRY_POINTS: "points"})
