"""The decoder in C: the features it finds, the images it decodes, and its behaviour with broken input."""

from __future__ import annotations

import io
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

from imagebeam import example, features, records
from imagebeam.reader import image_decoder
from tests import case_tables
from tests.image_sets import save
from tests.pictures import damage, encode, photo, psnr, without_segments

if os.environ.get("IMAGEBEAM_CI") != "1":  # there it must be built
    pytest.importorskip("imagebeam._native", reason="was not built: docs/reader-speed.md says what it needs")
from imagebeam import _native

FEATURES = (
    features.Feature("image/class/label", features.LABEL, features.INT64),
    features.Feature("image/class/text", "image/class/text", features.BYTES),
    features.Feature("weight", "columns/weight", features.FLOAT),
    features.Feature("image/encoded", features.ENCODED, features.BYTES),
)
VALUES: dict[str, Any] = {
    "image/encoded": b"\xff\xd8 and more",
    "image/class/label": -7,
    "image/class/text": b"",
    "columns/weight": 0.25,
}


def record(values: dict[str, Any] = VALUES) -> bytes:
    return b"".join(example.ExampleEncoder(FEATURES).encode(values, values["image/encoded"]))


def feature(kind: int, *values: bytes) -> bytes:
    """An Example of one feature "x", from the fields of its list."""

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    entry = field(1, b"x") + field(2, field(kind, b"".join(values)))
    return field(1, field(1, entry))


NUMPY_DTYPES = {int: "int64", float: "float32"}
KINDS = {int: "int64", float: "float", bytes: "bytes"}


def find_all(contents: list[bytes], kinds: dict[str, type]) -> tuple[list[list[Any]], dict[int, str]]:
    """Returns the values in each record, None for a missing one, and by its index why a record cannot be used."""
    columns = tuple(
        np.full((len(contents), 2), 77, np.int64) if kind is bytes else np.full(len(contents), 77, NUMPY_DTYPES[kind])
        for kind in kinds.values()
    )
    found = np.ones((len(contents), len(kinds)), np.bool_)
    keys = tuple(key.encode() for key in kinds)
    failures = dict(_native.find_features(contents, keys, columns, found))
    rows = []
    for index, content in enumerate(contents):
        cells = [column[index].tolist() for column in columns]
        values = [content[slice(*cell)] if isinstance(cell, list) else cell for cell in cells]
        rows.append([value if has else None for value, has in zip(values, found[index])])
        spans = [cell for cell, has in zip(cells, found[index]) if has and isinstance(cell, list)]
        assert index in failures or all(0 <= start <= stop <= len(content) for start, stop in spans)
    return rows, failures


def find(content: bytes, **kinds: type) -> list[Any]:
    [values], failures = find_all([content], kinds)
    if failures:
        raise ValueError(failures[0])
    return values


def decode(
    encoded: bytes,
    part: tuple[int, int, int, int],
    size: tuple[int, int] = (64, 64),
    flip: bool = False,
    threads: int = 1,
) -> np.ndarray:
    """Returns the image, which must not be a failure."""
    out = np.zeros((1, *size, 3), np.uint8)
    assert _native.decode([encoded], np.array([part], np.int32), np.array([flip]), out, threads) == []
    return out[0]


def failure_of(encoded: bytes, part: tuple[int, int, int, int] = (0, 0, 8, 8)) -> str:
    """Why it cannot be decoded; nothing may be written."""
    out = np.full((1, 8, 8, 3), 77, np.uint8)
    [(index, failure)] = _native.decode([encoded], np.array([part], np.int32), np.zeros(1, bool), out, 1)
    assert index == 0
    assert (out == 77).all()
    return failure


def test_features_are_found_as_the_parser_in_python_finds_them() -> None:
    content = record()
    parsed = {key: values[0] for key, values in example.parse_example(content).items()}
    assert find(content, **{key: type(value) for key, value in parsed.items()}) == list(parsed.values())
    assert find(content, weight=float, nothing=int, none=bytes) == [0.25, None, None]
    assert find(b"", weight=float) == [None]


def test_features_of_many_records_are_found_as_of_each_alone() -> None:
    whole = [record(), b"", feature(2, b"\x0a\x04\x00\x00\x80\x3f")]
    contents = [*whole, b"<html>", record() * 2, feature(3, b"\x08\x05")]
    kinds: dict[str, type] = {"image/encoded": bytes, "x": float, "weight": float}
    rows, failures = find_all(contents, kinds)
    for index, content in enumerate(contents):
        [alone], failed = find_all([content], kinds)
        assert failures.get(index) == failed.get(0)
        assert index in failures or rows[index] == alone
    assert failures == {3: "not a tf.train.Example", 5: "feature 'x' is not stored as float"}
    assert find_all([], kinds) == ([], {})


def test_every_way_to_write_a_value_is_read() -> None:
    for content, value in [
        (feature(3, b"\x0a\x01\x05"), 5),
        (feature(3, b"\x08\x05"), 5),
        (feature(2, b"\x0a\x04\x00\x00\x80\x3f"), 1.0),
        (feature(2, b"\x0d\x00\x00\x80\x3f"), 1.0),
        (feature(1, b"\x0a\x02ab"), b"ab"),
        (feature(3, b"\x0a\x00"), None),
        (feature(1), None),
    ]:
        for kind in (int, float, bytes):
            with case_tables.named(content, kind):
                if value is None or isinstance(value, kind):
                    assert find(content, x=kind) == [value]
                else:
                    with pytest.raises(ValueError, match=f"feature 'x' is not stored as {KINDS[kind]}"):
                        find(content, x=kind)


def test_record_that_is_not_an_example_or_has_several_values_is_refused() -> None:
    for key, kind, content, message in [
        ("x", int, feature(3, b"\x0a\x02\x05\x06"), "feature 'x' has no single value"),
        ("x", int, feature(3, b"\x08\x05\x08\x06"), "feature 'x' has no single value"),
        ("x", bytes, feature(1, b"\x0a\x01a\x0a\x01b"), "feature 'x' has no single value"),
        ("image/encoded", bytes, b"\xff\xff\xff", "not a tf.train.Example"),
        ("image/encoded", bytes, record()[:-3], "no single value|not a tf.train.Example"),
        ("image/encoded", bytes, b"<html>", "not a tf.train.Example"),
    ]:
        with case_tables.named(content), pytest.raises(ValueError, match=message):
            find(content, **{key: kind})


@hypothesis.given(strategies.data())
@hypothesis.settings(max_examples=300, deadline=None)
def test_broken_records_are_refused_or_read_within_their_bounds(data: strategies.DataObject) -> None:
    content = bytearray(record())
    for _ in range(data.draw(strategies.integers(1, 4))):
        content[data.draw(strategies.integers(0, len(content) - 1))] = data.draw(strategies.integers(0, 255))
    kinds = {each.key: {"int64": int, "float": float, "bytes": bytes}[each.kind] for each in FEATURES}
    find_all([bytes(content)], kinds)  # checks the bounds


def test_arguments_of_records_that_do_not_fit_are_refused() -> None:
    found = np.zeros((1, 1), np.bool_)
    for columns, have in [
        ((np.zeros(2, np.int64),), found),
        ((np.zeros(1, np.int64),), np.zeros((1, 2), np.bool_)),
        ((np.zeros(1, np.int16),), found),
        ((np.zeros((1, 3), np.int64),), found),
        ((np.zeros((1, 2), np.int32),), found),
        ((), found),
    ]:
        with (
            case_tables.named(columns, have),
            pytest.raises(ValueError, match="records, columns and found do not fit each"),
        ):
            _native.find_features([b""], (b"x",), columns, have)
    with pytest.raises(TypeError, match="keys are bytes"):
        _native.find_features([b""], ("x",), (np.zeros(1, np.int64),), found)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="records are bytes"):
        _native.find_features([None], (b"x",), (np.zeros(1, np.int64),), found)  # type: ignore[list-item]
    for stops in [np.zeros(1, np.int64), np.zeros(2, np.int32)]:
        with case_tables.named(stops), pytest.raises(ValueError, match="starts and stops do not fit each other"):
            _native.read_records(0, np.zeros(2, np.int64), stops)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 3071, 3072, 3073, 6144, 10_001])
def test_record_is_read_if_its_checksum_is_right(size: int, tmp_path: pathlib.Path) -> None:
    content = random.Random(size).randbytes(size)
    path = tmp_path / "shard"
    checksum = records.mask_crc(records.extend_crc(0, content)).to_bytes(4, "little")
    path.write_bytes(records.frame_header(size) + content + checksum)
    start, stop = records.HEADER_BYTES, records.HEADER_BYTES + size
    spans = [(start, stop), (start, stop + 1), (start - 1, stop), (-1, stop), (stop, start - 1), (start, 1 << 20)]
    starts, stops = (np.array(each, np.int64) for each in zip(*spans, (start, stop)))
    with path.open("r+b", buffering=0) as file:
        found = _native.read_records(file.fileno(), starts, stops)
        if found[0] is None:
            assert "sse4_2" not in pathlib.Path("/proc/cpuinfo").read_text()
            return
        assert found == [content, None, None, None, None, None, content]
        assert _native.read_records(file.fileno(), starts[:0], stops[:0]) == []
        file.seek(stop)
        file.write(b"\0\0\0\0")
        assert _native.read_records(file.fileno(), starts, stops) == [None] * 7
    assert _native.read_records(-1, starts, stops) == [None] * 7


def test_part_equals_that_of_the_whole_image_resized() -> None:
    tf = pytest.importorskip("tensorflow")
    sizes = [(24, 24), (48, 48), (64, 64), (100, 37), (224, 224)]  # the first ones are decoded reduced by 8, 4 and 2
    parts = [(0, 0, 200, 300), (31, 57, 100, 120), (199, 299, 1, 1), (3, 250, 197, 7)]
    kinds: list[dict[str, Any]] = [{}, {"subsampling": 0}, {"progressive": True}, {"quality": 40}]
    for size, part, options in itertools.product(sizes, parts, kinds):
        encoded = encode(photo(300, 200), **options)
        fitting = [each for each in (2, 4, 8) if part[2] >= each * size[0] and part[3] >= each * size[1]]
        reduction = max(fitting, default=1)
        whole = tf.io.decode_jpeg(encoded, 3, reduction)
        top, left, height, width = (each // reduction for each in part)
        cut = whole[top : top + max(height, 1), left : left + max(width, 1)]
        error = decode(encoded, part, size) - tf.image.resize(cut, size).numpy()
        assert np.abs(error).max() < 2
        assert abs(error.mean()) < 0.2
        assert np.sqrt((error**2).mean()) < 0.5  # levels: half of one is what rounding alone may take


def test_flipped_image_is_the_same_from_right_to_left() -> None:
    encoded = encode(photo(300, 200))
    for size in ((64, 64), (33, 51)):
        plain, mirrored = (decode(encoded, (10, 20, 150, 170), size, flip) for flip in (False, True))
        assert psnr(plain[:, ::-1], mirrored) > 50
        assert not (plain == mirrored).all()


def test_threads_make_the_same_batch() -> None:
    rng = random.Random(0)
    pictures = [encode(photo(60 + 7 * index, 50 + 5 * index)) for index in range(9)]
    encoded = [rng.choice(pictures) for _ in range(70)]
    parts = np.array([[0, 0, *Image.open(io.BytesIO(each)).size[::-1]] for each in encoded], np.int32)
    flips = np.array([rng.random() < 0.5 for _ in encoded])
    batches = []
    for threads in (1, 2, 7, 200):
        out = np.zeros((len(encoded), 32, 24, 3), np.uint8)
        assert _native.decode([memoryview(each) for each in encoded], parts, flips, out, threads) == []
        batches.append(out)
    assert all((each == batches[0]).all() for each in batches)


def jpegs_of_every_kind(width: int = 70, height: int = 50) -> list[bytes]:
    """One of each kind of JPEG that Pillow writes, all of one size."""
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"subsampling": 0, "restart_marker_blocks": 3},
        {"subsampling": 1, "quality": 30, "optimize": True},
        {"progressive": True},
        {"progressive": True, "quality": 60, "restart_marker_rows": 1},
    )
    made = []
    for mode in ("RGB", "L", "CMYK"):
        for kind in kinds:
            options = {name: value for name, value in kind.items() if mode != "L" or name != "subsampling"}
            made.append(encode(photo(width, height).convert(mode), **options))
    return made


def decode_whole(images: list[bytes], threads: int = 1) -> list[bytes | str]:
    """Returns the pixels of each JPEG of 70 x 50, or the reason why it is refused."""
    out = np.zeros((len(images), 50, 70, 3), np.uint8)
    parts = np.tile(np.array([0, 0, 50, 70], np.int32), (len(images), 1))
    failures = dict(_native.decode(images, parts, np.zeros(len(images), bool), out, threads))
    return [failures.get(index, pixels.tobytes()) for index, pixels in enumerate(out)]


@hypothesis.given(strategies.integers(0, 2**32 - 1), strategies.sampled_from([1, 2, 3, 7]))
@hypothesis.settings(max_examples=40, deadline=None)
def test_image_does_not_depend_on_images_decoded_before(seed: int, threads: int) -> None:
    rng = random.Random(seed)
    encoded = jpegs_of_every_kind()
    encoded += [without_segments(each, marker) for each in encoded for marker in (0xC4, 0xDB, 0xDD, 0xEE)]
    encoded += [damage(rng.choice(encoded), rng) for _ in range(40)]
    alone = [decode_whole([each])[0] for each in encoded]
    order = rng.choices(range(len(encoded)), k=120)
    assert decode_whole([encoded[index] for index in order], threads) == [alone[index] for index in order]


def test_every_kind_has_the_pixels_of_tensorflow() -> None:
    tf = pytest.importorskip("tensorflow")
    encoded = jpegs_of_every_kind()
    assert decode_whole(encoded) == [tf.io.decode_jpeg(each, 3).numpy().tobytes() for each in encoded]


def test_frame_of_motion_jpeg_is_decoded_with_the_standard_tables() -> None:
    tf = pytest.importorskip("tensorflow")
    before = [encode(photo(70, 50), quality=30, optimize=True), encode(photo(70, 50), progressive=True)]
    kinds: list[dict[str, Any]] = [{}, {"subsampling": 0, "quality": 60}, {"restart_marker_blocks": 2}]
    wholes = [encode(photo(70, 50), **options) for options in kinds]
    wholes += [encode(photo(70, 50).convert("L"), **options) for options in (kinds[0], kinds[2])]
    for first, whole in itertools.product(before, wholes):
        frame = without_segments(whole, 0xC4)
        assert len(frame) < len(whole)
        _, found, expected = decode_whole([first, frame, whole])
        assert found == expected == tf.io.decode_jpeg(frame, 3).numpy().tobytes()


def test_jpeg_without_quantization_tables_is_refused_whatever_came_before() -> None:
    for whole in (encode(photo(70, 50)), encode(photo(70, 50), progressive=True)):
        without = without_segments(whole, 0xDB)
        assert decode_whole([without, whole, without])[::2] == ["Quantization table 0x00 was not defined"] * 2


@hypothesis.given(strategies.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=300, deadline=None)
def test_broken_images_are_decoded_or_refused_as_in_tensorflow(seed: int) -> None:
    tf = pytest.importorskip("tensorflow")
    rng = random.Random(seed)
    broken = damage(rng.choice(jpegs_of_every_kind()), rng)
    [found] = decode_whole([broken])
    try:
        picture = tf.io.decode_jpeg(broken, 3).numpy()
    except tf.errors.InvalidArgumentError:
        assert isinstance(found, str)
        return
    hypothesis.assume(picture.shape == (50, 70, 3))  # else the height or width is damaged
    assert found == picture.tobytes()


def test_levels_become_the_values_of_their_channel() -> None:
    parts, flips = np.array([[0, 0, 70, 90], [5, 6, 20, 20]], np.int32), np.array([0, 1], bool)
    arguments = [encode(photo(90, 70))] * 2, parts, flips
    whole_frames = np.tile([0.0, 1.0, 0.0, 1.0], (2, 1))
    for frames, dtype in itertools.product((None, whole_frames), ("uint16", "float16", "float32", "int32")):
        out, levels = np.zeros((2, 20, 20, 3), dtype), np.zeros((2, 20, 20, 3), np.uint8)
        values = np.random.default_rng(0).permutation(3 * 256).reshape(3, 256).astype(dtype)
        more = [b"", b""], frames, 1, False, False
        assert _native.decode(*arguments, levels, 1, *more) == []
        assert _native.decode(*arguments, out, 2, *more, values) == []
        assert (out == values[np.arange(3), levels]).all()


def test_image_of_the_wanted_size_is_not_changed() -> None:
    for flip in [False, True]:
        encoded = encode(photo(70, 50))
        expected = np.frombuffer(decode_whole([encoded])[0], np.uint8).reshape(50, 70, 3)  # type: ignore[arg-type]
        assert (decode(encoded, (7, 3, 40, 60), (40, 60), flip) == expected[7:47, 3:63][:, :: -1 if flip else 1]).all()
        whole = Image.frombytes("RGB", (70, 50), expected.tobytes())
        if _native.DECODES_PNG:
            part = decode(save(whole), (7, 3, 40, 60), (40, 60), flip)
            assert (part == expected[7:47, 3:63][:, :: -1 if flip else 1]).all()


def test_frame_that_begins_just_before_a_pixel_gives_all_weight_to_it() -> None:
    pixels = np.random.default_rng(0).choice(np.array([0, 1, 254, 255], np.uint8), (9, 40, 3))
    for flip, before in itertools.product((False, True), (0, 1e-9)):
        out, shape = np.zeros((1, 7, 37, 3), np.uint8), np.array([[9, 40, 3]], np.int32)
        frame = np.array([[1 - before, 1.0, 2 - before, 1.0]])
        arguments = [pixels.tobytes()], np.array([[0, 0, 9, 40]], np.int32), np.array([flip]), out, 1, [b""], frame
        assert _native.decode(*arguments, 1, False, False, None, None, shape) == []
        assert (out[0] == pixels[1:8, 2:39][:, :: -1 if flip else 1]).all()


def test_failures_are_returned_by_index_and_the_others_decoded() -> None:
    whole = encode(photo(40, 40))
    out = np.zeros((4, 8, 8, 3), np.uint8)
    parts, flips = np.tile(np.array([0, 0, 40, 40], np.int32), (4, 1)), np.zeros(4, bool)
    failures = _native.decode([whole, whole[:-200], b"", whole], parts, flips, out, 2)
    assert [index for index, _ in failures] == [1, 2]
    assert (out[0] == out[3]).all()
    assert out[0].any()


def test_image_that_cannot_be_decoded_is_a_failure_with_its_reason() -> None:
    whole, several_scans = encode(photo(40, 40)), encode(photo(40, 40), progressive=True)
    position = several_scans.index(b"\xff\xc2") + 5
    announced = several_scans[:position] + bytes([0xF0, 0, 0xF0, 0]) + several_scans[position + 4 :]  # of 23 GB
    for encoded, message in [
        (b"<html>", "Not a JPEG file"),
        (b"", "Empty input file"),
        (whole[:300], "Premature end of JPEG file"),
        (whole[:2], "Premature end of JPEG file"),
        (announced, "61440 x 61440 pixels, which are decoded as a whole, are more than 100000000"),
    ]:
        assert message in failure_of(encoded)
    for part in [(0, 0, 41, 40), (1, 0, 40, 40), (-1, 0, 8, 8), (0, 0, 0, 8), (0, 2**31 - 1, 8, 8)]:
        assert failure_of(whole, part) == "the picture has 40 x 40 pixels, not those that the record says"


def test_parts_beyond_all_images_are_failures_also_with_entry_points() -> None:
    encoded = encode(photo(120, 80))
    parts = np.array([[0, 0, 8, 8], [2**31 - 1, 0, 2**31 - 1, 8]], np.int32)
    points = [_native.find_entry_points(encoded)] * 2
    given = ([encoded] * 2, parts, np.zeros(2, bool), np.zeros((2, 8, 8, 3), np.uint8), -(2**31), points)
    assert [index for index, _ in _native.decode(*given)] == [1]
    shared = (None, 1, False, False, None, None, None, None, None, None, bytes(3), True)
    assert [index for index, _ in _native.decode(*given, *shared)] == [0, 1]


def test_arguments_of_a_batch_that_do_not_fit_are_refused() -> None:
    fixed = np.zeros((1, 8, 8, 3), np.uint8)
    fixed.flags.writeable = False
    floats = np.zeros((1, 8, 8, 3), np.float32)
    for change, message in [
        ({"parts": np.zeros((2, 4), np.int32)}, "images, parts, flips and points do not fit each other"),
        ({"parts": np.zeros((1, 4), np.int64)}, "images, parts, flips and points do not fit each other"),
        ({"flips": np.zeros(2, bool)}, "images, parts, flips and points do not fit each other"),
        ({"out": np.zeros((1, 8, 8), np.uint8)}, "images and out do not fit each other"),
        ({"out": []}, "out is an empty list"),
        ({"out": [np.zeros((1, 8, 8, 3), np.uint8)] * 2}, "do not fit each other"),
        ({"out": [np.zeros((1, 8, 8, 3), np.uint8), fixed]}, "do not fit each other"),
        ({"out": np.zeros((1, 8, 8, 4), np.uint8)}, "do not fit each other"),
        ({"out": floats}, "do not fit each other"),
        ({"out": np.zeros((1, 0, 8, 3), np.uint8)}, "do not fit each other"),
        ({"out": fixed}, "read-only|not writable"),
        ({"out": np.zeros((1, 8, 16, 3), np.uint8)[:, :, ::2]}, "do not fit each other"),
        ({"out": np.zeros((1, 16, 8, 3), np.uint8)[:, ::2]}, "do not fit each other"),
        ({"points": []}, "do not fit each other"),
        ({"points": ["text"]}, "bytes"),
        ({"values": np.zeros((3, 256), np.uint8)}, "do not fit each other"),
        ({"out": floats.astype(np.float64), "values": np.zeros((3, 256))}, "do not fit each other"),
        ({"out": floats, "values": np.zeros((3, 256), np.float16)}, "do not fit each other"),
        ({"out": floats, "values": np.zeros((1, 256), np.float32)}, "do not fit each other"),
        ({"sizes": np.zeros((2, 2), np.int32)}, "images, sizes and shapes do not fit each other"),
        ({"sizes": np.zeros((1, 2), np.int64)}, "images, sizes and shapes do not fit each other"),
        ({"colors": np.array([[1, 1, 1, 0, 24]], np.float32)}, "places, colors, erased, fill and out"),
        ({"colors": np.array([[1, 1, 1, 0, -1]], np.float32)}, "places, colors, erased, fill and out"),
        ({"colors": np.array([[1, np.inf, 1, 0, 0]], np.float32)}, "places, colors, erased, fill and out"),
    ]:
        arguments = {
            "images": [encode(photo(8, 8))],
            "parts": np.array([[0, 0, 8, 8]], np.int32),
            "flips": np.zeros(1, bool),
            "out": np.zeros((1, 8, 8, 3), np.uint8),
            "threads": 1,
            "points": [b""],
            "frames": None,
            "filter": 1,
            "antialias": False,
            "accurate_dct": False,
            "values": None,
            "sizes": None,
            "shapes": None,
            "places": None,
            "colors": None,
            **change,
        }
        with case_tables.named(change), pytest.raises((ValueError, BufferError, TypeError), match=message):
            _native.decode(*arguments.values())


def test_library_is_named() -> None:
    assert (image_decoder.library() or "").startswith("libjpeg-turbo ")
