"""The writer's inner loops in C: markers, files, examples, checksums and records, against the same in Python."""

from __future__ import annotations

import errno
import mmap
import os
import pathlib
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import google_crc32c
import hypothesis
import pytest
from hypothesis import strategies

from imagebeam import example_encoder, features, records
from imagebeam.features import Feature
from imagebeam.transforms.images import jpeg_structure
from imagebeam.transforms.shard import read_ahead
from tests.encoded_images import JPEG

if os.environ.get("IMAGEBEAM_CI") != "1":  # there it must be built
    pytest.importorskip("imagebeam._writer", reason="was not built here: docs/reader.md tells what it needs")
from imagebeam import _writer

has_checksums = pytest.mark.skipif(not hasattr(_writer, "put_record"), reason="this processor has no SSE 4.2")
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


def test_markers_are_found_without_avx2_too() -> None:
    script = f"""if True:
        import random
        from imagebeam import _writer
        from imagebeam.transforms.images import jpeg_structure
        generator = random.Random(0)
        for _ in range(300):
            content = bytes(generator.choices([0xFF, 0, 0xD3, 0xD8, 0x41], [3, 3, 1, 1, 30], k=200))
            match = jpeg_structure._search_marker(content, 3)
            assert _writer.find_marker(content, 3) == (-1 if match is None else match.start())
        print({len(EDGES)})
    """
    environment = os.environ | {"IMAGEBEAM_NO_AVX2": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True, text=True)
    assert done.stdout.strip() == str(len(EDGES))


def test_prefix_that_is_not_cached_is_left_to_python() -> None:
    encoder = example_encoder.ExampleEncoder(
        [
            Feature("name", "columns/name", features.BYTES),
            Feature("label", "columns/label", features.INT64),
            Feature("i", features.ENCODED, features.BYTES),
        ]
    )
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
    with pytest.raises(TypeError, match="unhashable"):
        _writer.encode_prefix(encoder._plain, values | {"columns/label": []}, *arguments)
    with pytest.raises(TypeError, match="takes a list, a dict and bytes first"):
        _writer.encode_prefix((), values, *arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="encode_prefix takes 5 arguments, 1 were given"):
        _writer.encode_prefix([])  # type: ignore[call-arg]


def test_file_as_it_was_listed_is_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "image\udcff.jpg"
    for size in (0, 1, 200_000):
        path.write_bytes(content := os.urandom(size))
        assert _writer.read_file(str(path), size, path.stat().st_mtime_ns) == content
        assert _writer.read_file(str(path), size, 0) == content


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
    with pytest.raises(TypeError, match="read_part takes 4 arguments, 1 were given"):
        _writer.read_part(0)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        _writer.read_part("0", 0, 1, 0)  # type: ignore[arg-type]


def test_file_that_is_not_as_it_was_listed_is_left_to_python(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "image.jpg"
    path.write_bytes(b"image")
    os.mkfifo(tmp_path / "pipe")
    assert _writer.read_file(str(path), 4, 0) is None
    assert _writer.read_file(str(path), 6, 0) is None
    assert _writer.read_file(str(path), -1, 0) is None
    assert _writer.read_file(str(path), 5, path.stat().st_mtime_ns + 1) is None
    assert _writer.read_file(str(tmp_path / "gone"), 5, 0) is None
    assert _writer.read_file(str(tmp_path), 5, 0) is None
    assert _writer.read_file(str(tmp_path / "pipe"), 0, 0) is None
    with pytest.raises(ValueError, match="embedded null byte"):
        _writer.read_file("a\0b", 5, 0)
    with pytest.raises(TypeError, match="read_file takes 3 arguments, 1 were given"):
        _writer.read_file("a")  # type: ignore[call-arg]


def test_check_of_what_is_not_bytes_raises() -> None:
    with pytest.raises(TypeError, match="check_jpeg takes bytes"):
        _writer.check_jpeg(bytearray(b"\xff\xd8"))  # type: ignore[arg-type]


@has_checksums
@pytest.mark.parametrize("size", sorted(EDGES))
def test_checksum_is_that_of_google_crc32c(size: int) -> None:
    before, content = b"before", random.Random(size).randbytes(size)
    crc = google_crc32c.value(before)
    for data in (content, bytearray(content), memoryview(b"x" + content)[1:]):
        assert _writer.extend_crc(crc, data) == google_crc32c.value(before + content)


@has_checksums
@pytest.mark.parametrize("size", sorted(EDGES))
def test_record_in_a_buffer_is_framed_as_in_python(size: int) -> None:
    prefix, payload = b"p" * (size % 300), random.Random(size).randbytes(size)
    length = len(prefix) + size
    body = records.frame_header(length) + prefix + payload
    expected = body + records._CRC.pack(records.mask_crc(google_crc32c.value(prefix + payload)))
    buffer = bytearray(b"-" * (length + 30))
    crc = _writer.put_record(buffer, 7, prefix, payload, google_crc32c.value(b"before"))
    assert buffer == b"-" * 7 + expected + b"-" * 7
    assert crc == google_crc32c.value(b"before" + expected)


@has_checksums
@pytest.mark.parametrize("position", [-1, 15, 100])
def test_record_without_room_raises_and_changes_nothing(position: int) -> None:
    buffer = bytearray(40)
    with pytest.raises(ValueError, match=f"a record of 26 bytes has no room at byte {position} of 40"):
        _writer.put_record(buffer, position, b"12345", b"67890", 0)
    assert buffer == bytes(40)


@has_checksums
def test_jpeg_is_put_as_python_puts_it(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "image\udcff.jpg"
    path.write_bytes(JPEG)
    encoder = example_encoder.ExampleEncoder(features.resolve_features({}, None, {}))
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


@has_checksums
def test_put_jpeg_refuses_other_arguments(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "image.jpg"
    path.write_bytes(JPEG)
    encoder = example_encoder.ExampleEncoder([Feature("i", features.ENCODED, features.BYTES)])
    assert encoder.layout is not None
    plain, key, tag = encoder.layout
    file = str(path), len(JPEG), 0
    with pytest.raises(TypeError, match="put_jpeg takes 10 arguments, 1 were given"):
        _writer.put_jpeg("a")  # type: ignore[call-arg]
    for each in ((tuple(plain), key, tag, {}), (plain, "i", tag, {}), (plain, key, tag, [])):
        with pytest.raises(TypeError, match="put_jpeg takes a list, bytes, a number and a dict last"):
            _writer.put_jpeg(*file, bytearray(9), 0, 0, *each)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _writer.put_jpeg(*file, bytearray(9), 0, 0, plain, key, "10", {})  # type: ignore[arg-type]
    with pytest.raises(BufferError, match="not writable"):
        _writer.put_jpeg(*file, b"constant", 0, 0, plain, key, tag, {})
    with pytest.raises(ValueError, match="embedded null byte"):
        _writer.put_jpeg("a\0b", 5, 0, bytearray(9), 0, 0, plain, key, tag, {})
    with pytest.raises(TypeError, match="unhashable"):
        label = example_encoder.ExampleEncoder(
            [Feature("label", "columns/label", features.INT64), Feature("i", features.ENCODED, features.BYTES)]
        )
        assert label.layout is not None
        _writer.put_jpeg(*file, bytearray(9), 0, 0, *label.layout, {"columns/label": []})


PARTS = [(4, b"prefix"), (0, b""), (7, b"longer prefix")]  # byte offsets in the file, and prefixes


@pytest.fixture
def file_of_parts(tmp_path: pathlib.Path) -> Iterator[tuple[int, int, bytes]]:
    """Descriptor, version and content."""
    path = tmp_path / "parts"
    path.write_bytes(bytes(range(10, 20)))
    with open(path, "rb") as file:
        yield file.fileno(), path.stat().st_mtime_ns, path.read_bytes()


def _framed(content: bytes, length: int, count: int) -> tuple[bytes, int]:
    """Returns what Python writes of the first parts, and its checksum after `b"before"`."""
    buffer, position, crc = bytearray(1000), 0, google_crc32c.value(b"before")
    for offset, prefix in PARTS[:count]:
        part = content[offset : offset + length]
        crc = _writer.put_record(buffer, position, prefix, part, crc)
        position += len(prefix) + length + 16
    return bytes(buffer[:position]), crc


@has_checksums
@pytest.mark.parametrize("length", [0, 1, 3])
@pytest.mark.parametrize("has_version", [False, True])
def test_parts_are_put_as_records_are(file_of_parts: tuple[int, int, bytes], length: int, has_version: bool) -> None:
    file, version, content = file_of_parts
    parts = [(file, version if has_version else 0, *part) for part in PARTS]
    expected, crc = _framed(content, length, 3)
    buffer = bytearray(b"-" * (len(expected) + 10))
    found = _writer.put_parts(parts, length, buffer, 5, google_crc32c.value(b"before"), 10**12)
    assert (bytes(buffer), found) == (b"-----" + expected + b"-----", (3, len(expected), crc, False))
    assert _writer.put_parts([], length, buffer, 5, 9, 0) == (0, 0, 9, False)


@has_checksums
def test_parts_end_before_one_that_cannot_be_put(file_of_parts: tuple[int, int, bytes]) -> None:
    file, version, content = file_of_parts
    parts = [(file, version, *part) for part in PARTS]
    before = google_crc32c.value(b"before")

    def put(parts: Any, length: int = 3, size: int = 200, position: int = 0) -> Any:
        buffer = bytearray(size)
        count, num_bytes, crc, is_slow = _writer.put_parts(parts, length, buffer, position, before, 10**12)
        framed, expected_crc = _framed(content, length, count) if count else (b"", before)
        assert (bytes(buffer[position : position + num_bytes]), crc, is_slow) == (framed, expected_crc, False)
        return count

    whole = len(_framed(content, 3, 3)[0])
    assert [put(parts, size=size) for size in (whole, whole - 1, 0)] == [3, 2, 0]
    assert [put(parts, position=position) for position in (200, 201, -1)] == [0, 0, 0]
    assert [put(parts, length) for length in (3, 4, 6, 7, -1, -16)] == [3, 2, 2, 0, 0, 0]  # the file ends
    changed = [*parts[:2], (file, version + 1, *PARTS[2])]
    assert [put(each) for each in (changed, changed[2:], changed[:2])] == [0, 0, 2]
    closed = [*parts[:2], (-1, 0, *PARTS[2])]
    assert [put(each) for each in (closed, [(-1, 1, *PARTS[0])])] == [2, 0]
    assert put([*parts[:1], (file, version, -1, b"")]) == 1
    assert _writer.put_parts(parts * 100, 3, bytearray(10**4), 0, 0, 10**12)[0] == 256


@has_checksums
def test_parts_of_file_that_changes_meanwhile_are_not_put(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "parts"
    path.write_bytes(bytes(4096))
    os.utime(path, (0, 1))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 4096) as buffer:  # so that reading it writes into it
        found = _writer.put_parts([(file.fileno(), 10**9, 0, b"prefix")], 10, buffer, 100, 9, 10**12)
        is_changed = os.fstat(file.fileno()).st_mtime_ns != 10**9  # by a write into memory, not on every file system
    assert found[0] == (0 if is_changed else 1)
    assert not is_changed or found == (0, 0, 9, False)


@has_checksums
def test_parts_end_after_a_read_that_waited(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "parts"
    path.write_bytes(bytes(1 << 20))
    with open(path, "r+b") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):  # so that reads wait, where the file is on a disk
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        parts, buffer = [(file.fileno(), 0, number << 12, b"") for number in range(256)], bytearray(1 << 20)
        before = read_ahead._count_waits()
        count, _, _, is_slow = _writer.put_parts(parts, 8, buffer, 0, 0, -1)
        has_waited = read_ahead._count_waits() > before
    assert has_waited or not is_slow
    assert is_slow or count == 256


@has_checksums
def test_put_parts_refuses_other_arguments(file_of_parts: tuple[int, int, bytes]) -> None:
    file, version, _ = file_of_parts
    with pytest.raises(TypeError, match="put_parts takes 6 arguments, 1 were given"):
        _writer.put_parts([])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="put_parts takes a list first"):
        _writer.put_parts((), 1, bytearray(9), 0, 0, 0)  # type: ignore[arg-type]
    for part in ((file, version, 0), (file, version, 0, "prefix"), [file, version, 0, b""]):
        with pytest.raises(TypeError, match="put_parts takes parts of three numbers and bytes, part 1 is another"):
            _writer.put_parts([(file, version, 0, b""), part], 1, bytearray(90), 0, 0, 0)  # type: ignore[list-item]
    with pytest.raises(OverflowError):
        _writer.put_parts([(file, version, 1 << 64, b"")], 1, bytearray(90), 0, 0, 0)
    with pytest.raises(BufferError, match="not writable"):
        _writer.put_parts([], 1, b"constant", 0, 0, 0)


def test_layout_is_that_of_encoded_images_alone() -> None:
    numbers = Feature("i", features.ENCODED, features.INT64, True)
    assert example_encoder.ExampleEncoder([numbers]).layout is None
    assert example_encoder.ExampleEncoder([]).layout is None


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
