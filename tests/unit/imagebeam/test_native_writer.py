"""The writer's inner loops in C: markers, files, examples, checksums and records, against the same in Python."""

from __future__ import annotations

import errno
import os
import pathlib
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import google_crc32c
import hypothesis
import pytest
from hypothesis import strategies

from imagebeam import example, features, records
from imagebeam.features import Feature
from imagebeam.transforms.images import jpeg_structure
from tests import case_tables
from tests.encoded_images import JPEG

if os.environ.get("IMAGEBEAM_CI") != "1":  # there it must be built
    pytest.importorskip("imagebeam._writer", reason="was not built: docs/reader-speed.md says what it needs")
from imagebeam import _writer

EDGES = {0, 1, 7, 8, 9, *(3 * (1 << log) + extra for log in (7, 10, 13) for extra in (-1, 0, 1)), 100_001}

markers = strategies.lists(strategies.sampled_from([0xFF, 0xFF, 0x00, 0xD0, 0xD7, 0xD8, 0xCF, 0x41]), max_size=12).map(
    bytes
)


@hypothesis.given(markers, strategies.sampled_from([0, 25, 31, 32, 33, 64]), strategies.sampled_from([0, 1, 40]))
@hypothesis.settings(max_examples=500, deadline=None)
def test_markers_are_found_as_the_regex_finds_them(content: bytes, before: int, after: int) -> None:
    content = b"A" * before + content + b"A" * after
    for position in range(len(content) + 2):
        match = jpeg_structure._search_marker(content, position)
        assert _writer.find_marker(content, position) == (-1 if match is None else match.start())


@pytest.mark.skipif("IMAGEBEAM_PLAIN_C" in os.environ, reason="runs in the processor without vector instructions")
def test_everything_holds_without_instructions_of_the_processor() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    env = os.environ | {"IMAGEBEAM_PLAIN_C": "1"}
    done = subprocess.run(command, env=env, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stdout


def test_prefix_that_is_not_cached_is_left_to_python() -> None:
    name, label = Feature("name", "columns/name", features.BYTES), Feature("label", "columns/label", features.INT64)
    encoder = example.ExampleEncoder([name, label, Feature("i", features.ENCODED, features.BYTES)])
    values: dict[str, Any] = {"columns/name": b"cat", "columns/label": 3}
    arguments = encoder._image_key, encoder._image_tag, 5
    assert _writer.encode_prefix(encoder._plain, values, *arguments) is None
    expected, _ = encoder.encode(values, bytes(5))
    assert _writer.encode_prefix(encoder._plain, values, *arguments) == expected
    assert _writer.encode_prefix(encoder._plain, values, *arguments[:2], -1) is None
    assert _writer.encode_prefix(encoder._plain * 64, values, *arguments) is None
    for other in ({"columns/name": "cat"}, {"columns/name": b"dogs"}, {"columns/label": 4}):
        assert _writer.encode_prefix(encoder._plain, values | other, *arguments) is None
    assert _writer.encode_prefix(encoder._plain, {}, *arguments) is None


def test_file_is_read_if_it_is_as_it_was_listed_or_left_to_python(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "image\udcff.jpg"
    for size in (0, 1, 200_000):
        path.write_bytes(content := os.urandom(size))
        assert _writer.read_file(str(path), size, path.stat().st_mtime_ns) == content
        assert _writer.read_file(str(path), size, 0) == content
    os.mkfifo(tmp_path / "pipe")
    for name, size, version in [
        *((path.name, wrong, 0) for wrong in (199_999, 200_001, -1)),
        (path.name, 200_000, path.stat().st_mtime_ns + 1),
        *(("gone", 5, 0), ("", 5, 0), ("pipe", 0, 0)),
    ]:
        assert _writer.read_file(str(tmp_path / name), size, version) is None


def test_part_of_an_open_file_is_read_or_left_to_python(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "images.idx"
    path.write_bytes(b"0123456789")
    version = path.stat().st_mtime_ns
    with open(path, "rb") as file:
        descriptor = file.fileno()
        for offset, length in [(0, 10), (3, 4), (10, 0)]:
            assert _writer.read_part(descriptor, offset, length, version) == b"0123456789"[offset : offset + length]
        assert _writer.read_part(descriptor, 9, 1, 0) == b"9"
        assert _writer.read_part(descriptor, 9, 2, version) is None
        assert _writer.read_part(descriptor, 0, 1, version + 1) is None
        assert _writer.read_part(descriptor, -1, 1, 0) is None
        assert _writer.read_part(descriptor, 0, -1, 0) is None
    assert _writer.read_part(descriptor, 0, 1, 0) is None


def test_record_in_a_buffer_is_framed_as_in_python() -> None:
    for size in sorted(EDGES):
        prefix, payload = b"p" * (size % 300), random.Random(size).randbytes(size)
        length = len(prefix) + size
        body = records.frame_header(length) + prefix + payload
        expected = body + records._CRC.pack(records.mask_crc(google_crc32c.value(prefix + payload)))
        buffer = bytearray(b"-" * (length + 30))
        crc = _writer.put_record(buffer, 7, prefix, payload, google_crc32c.value(b"before"))
        assert buffer == b"-" * 7 + expected + b"-" * 7
        assert crc == google_crc32c.value(b"before" + expected)


def test_record_without_room_raises_and_changes_nothing() -> None:
    for position in [-1, 15, 100]:
        buffer = bytearray(40)
        with pytest.raises(ValueError, match=f"a record of 26 bytes has no room at byte {position} of 40"):
            _writer.put_record(buffer, position, b"12345", b"67890", 0)
        assert buffer == bytes(40)


def test_jpeg_is_put_as_python_puts_it(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "image\udcff.jpg"
    path.write_bytes(JPEG)
    encoder = example.ExampleEncoder(features.resolve_features({}, None, {}))
    assert encoder.layout is not None
    known: dict[str, Any] = {"image/filename": b"a", "image/key": b"key"}
    listed = str(path), len(JPEG), path.stat().st_mtime_ns

    def put(buffer: Any, position: int, values: dict[str, Any], *file: Any) -> Any:
        return _writer.put_jpeg(*(file or listed), buffer, position, 7, *encoder.layout, values)  # type: ignore[misc]

    buffer, values = bytearray(len(JPEG) + 400), dict(known)
    read_nsec, *left = put(buffer, 5, values)
    assert read_nsec > 0
    assert left == [JPEG, 0, 0, 0, 0, 0]  # no part was met before
    described = {"image/format": b"jpeg", "image/colorspace": b"RGB", "image/height": 17, "image/width": 23}
    assert values == known | described | {"image/channels": 3}
    prefix, _ = encoder.encode(values, JPEG)
    expected = bytearray(len(buffer))
    crc, size = _writer.put_record(expected, 5, prefix, JPEG, 7), len(prefix) + len(JPEG) + 16
    assert buffer == bytearray(len(buffer))
    _, *found = put(buffer, 5, dict(known))
    assert (buffer, found) == (expected, [None, 17, 23, 3, size, crc])
    for position in (-1, len(buffer) - size + 1, len(buffer) + 1):
        assert put(buffer, position, dict(known))[1] == JPEG
    assert buffer == expected
    assert put(bytearray(size), 0, dict(known))[1] is None
    assert put(buffer, 5, {})[1] == JPEG
    for other in ((listed[0], len(JPEG) + 1, 0), (listed[0], len(JPEG), 1), (listed[0], -1, 0), ("missing", 5, 0)):
        assert put(buffer, 5, dict(known), *other) is None
    path.write_bytes(JPEG[:-2])
    assert put(buffer, 5, dict(known), listed[0], len(JPEG) - 2, 0)[1:] == (JPEG[:-2], 0, 0, 0, 0, 0)
    assert buffer == expected


def test_arguments_of_other_kinds_are_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "image.jpg"
    path.write_bytes(JPEG)
    image, label = Feature("i", features.ENCODED, features.BYTES), Feature("n", "columns/n", features.INT64)
    labeled, layout = (example.ExampleEncoder(wanted).layout for wanted in ([label, image], [image]))
    assert labeled is not None and layout is not None
    plain, key, tag = layout
    file, buffer = (str(path), len(JPEG), 0), (bytearray(9), 0, 0)
    no_number = "'str' object cannot be interpreted as an integer"
    kinds = "put_jpeg takes a list, bytes, a number and a dict last"
    refusals: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
        (_writer.read_file, ("a\0b", 5, 0), "embedded null byte"),
        (_writer.read_file, ("a",), "read_file takes 3 arguments, 1 were given"),
        (_writer.read_part, (0,), "read_part takes 4 arguments, 1 were given"),
        (_writer.read_part, ("0", 0, 1, 0), no_number),
        (_writer.check_jpeg, (bytearray(b"\xff\xd8"),), "check_jpeg takes bytes"),
        (_writer.encode_prefix, ([],), "encode_prefix takes 5 arguments, 1 were given"),
        (_writer.encode_prefix, ((), {}, key, tag, 5), "takes a list, a dict and bytes first"),
        (_writer.encode_prefix, (labeled[0], {"columns/n": []}, key, tag, 5), "unhashable"),
        (_writer.put_jpeg, ("a",), "put_jpeg takes 10 arguments, 1 were given"),
        (_writer.put_jpeg, (*file, *buffer, tuple(plain), key, tag, {}), kinds),
        (_writer.put_jpeg, (*file, *buffer, plain, "i", tag, {}), kinds),
        (_writer.put_jpeg, (*file, *buffer, plain, key, tag, []), kinds),
        (_writer.put_jpeg, (*file, *buffer, plain, key, "10", {}), no_number),
        (_writer.put_jpeg, (*file, b"constant", 0, 0, plain, key, tag, {}), "not writable"),
        (_writer.put_jpeg, ("a\0b", 5, 0, *buffer, *layout, {}), "embedded null byte"),
        (_writer.put_jpeg, (*file, *buffer, *labeled, {"columns/n": []}), "unhashable"),
    ]
    for function, arguments, message in refusals:
        with case_tables.named(arguments), pytest.raises((BufferError, TypeError, ValueError), match=message):
            function(*arguments)


def test_layout_is_that_of_encoded_images_alone() -> None:
    numbers = Feature("i", features.ENCODED, features.INT64, True)
    assert example.ExampleEncoder([numbers]).layout is None
    assert example.ExampleEncoder([]).layout is None


def test_reading_a_file_keeps_no_descriptor(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "image.jpg"
    path.write_bytes(b"image")
    expected = os.open(path, os.O_RDONLY)
    os.close(expected)
    for _ in range(3):
        _writer.read_file(str(path), 5, 0)
        _writer.read_file(str(path), 4, 0)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(expected)
