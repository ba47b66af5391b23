from __future__ import annotations

import dataclasses
import gzip
import io
import os
import pathlib
import re
import resource
from collections.abc import Sequence

import google_crc32c
import pytest
import tensorflow as tf
from apache_beam.io import tfrecordio
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebeam import errors, records
from imagebeam.records import ShardName
from tests import error_texts

COMPRESSIONS = ("none", "gzip")
SMALL = [b"", b"one", b"", bytes(range(40))]
OFFSETS = [0, 16, 35, 51]  # of SMALL in a file
END = 107
BAD_LENGTH = "the checksum of a record's length does not match"

Pieces = Sequence[tuple[bytes, bytes]]  # prefix and payload of each record


def write(file: io.IOBase, pieces: Pieces, compression: str = "none") -> records.RecordWriter:
    writer = records.RecordWriter(file, compression)
    for prefix, payload in pieces:
        writer.write(prefix, payload)
    writer.finish()
    return writer


def encode(contents: Sequence[bytes], compression: str = "none") -> bytes:
    file = io.BytesIO()
    write(file, [(content, b"") for content in contents], compression)
    return file.getvalue()


def encode_with_beam(contents: Sequence[bytes]) -> bytes:
    file = io.BytesIO()
    for content in contents:
        tfrecordio._TFRecordUtil.write_record(file, content)
    return file.getvalue()


def read(data: bytes, compression: str = "none") -> list[bytes]:
    return [record.data for record in records.read_records(io.BytesIO(data), compression)]


def read_until_error(data: bytes, compression: str = "none") -> tuple[list[bytes], errors.RecordError | None]:
    """The records before the first error, and the error."""
    found = []
    try:
        for record in records.read_records(io.BytesIO(data), compression):
            found.append(record.data)
    except errors.RecordError as e:
        return found, e
    return found, None


def record_at(position: int) -> int:
    """Index of the record of SMALL that holds a byte of the file."""
    return max(index for index, offset in enumerate(OFFSETS) if offset <= position)


def damage(data: bytes, position: int, mask: int = 0x40) -> bytes:
    return data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :]


# Writing


def test_tensorflow_writes_the_same_and_reads_it(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "shard")
    with tf.io.TFRecordWriter(path) as writer:
        for content in SMALL:
            writer.write(content)
    assert encode(SMALL) == pathlib.Path(path).read_bytes()
    for compression in COMPRESSIONS:
        pathlib.Path(path).write_bytes(encode(SMALL, compression))
        dataset = tf.data.TFRecordDataset(path, compression_type="GZIP" if compression == "gzip" else "")
        assert [record.numpy() for record in dataset] == SMALL


@settings(deadline=None)
@given(st.lists(st.tuples(st.binary(), st.binary(max_size=200))), st.sampled_from(COMPRESSIONS))
def test_records_of_any_cut_round_trip_and_are_counted(pieces: Pieces, compression: str) -> None:
    file = io.BytesIO()
    writer = write(file, pieces, compression)
    contents, data = [prefix + payload for prefix, payload in pieces], file.getvalue()
    found = list(records.read_records(io.BytesIO(data), compression))

    assert [record.data for record in found] == contents
    assert list(writer.offsets) == [record.offset for record in found]
    assert writer.num_records == len(contents)
    assert (writer.num_bytes, writer.crc32c) == (len(data), google_crc32c.value(data))
    assert (gzip.decompress(data) if compression == "gzip" else data) == encode_with_beam(contents)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_records_beyond_the_flush_limits_round_trip(tmp_path: pathlib.Path, compression: str) -> None:
    flushes_by_count, flushes_by_bytes = [(332, 3), (333, 3), (2500, 1)], [(5, 1 << 19), (2, (1 << 20) + 1)]
    for count, size in flushes_by_count + flushes_by_bytes:
        contents = [bytes([index % 251]) * size for index in range(count)]
        path = tmp_path / f"{count}-records"
        with open(path, "xb", buffering=0) as file:  # the system refuses more than IOV_MAX buffers
            writer = write(file, [(content[:1], content[1:]) for content in contents], compression)
        with open(path, "rb", buffering=0) as file:
            assert [record.data for record in records.read_records(file, compression)] == contents
        assert (writer.num_bytes, writer.crc32c) == (path.stat().st_size, google_crc32c.value(path.read_bytes()))


# Files that take or give less than they are asked for


def test_short_writev_loses_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for accepted in (0, 1, 13, END - 1):
        monkeypatch.setattr(os, "writev", lambda fd, buffers, most=accepted: os.write(fd, b"".join(buffers)[:most]))
        with open(tmp_path / "shard", "wb", buffering=0) as file:
            writer = write(file, [(content, b"") for content in SMALL])
        assert (tmp_path / "shard").read_bytes() == encode(SMALL)
        assert (writer.num_bytes, writer.crc32c) == (END, google_crc32c.value(encode(SMALL)))


class SlowFile(io.BytesIO):
    """Reads and writes at most five bytes at a time."""

    def write(self, data: memoryview) -> int:
        return super().write(data[:5])

    def read(self, size: int = -1) -> bytes:
        return super().read(min(size, 5))


class MuteFile(io.BytesIO):
    """Writes all bytes, and returns None."""

    def write(self, data: memoryview) -> None:
        super().write(data)


def test_short_writes_and_reads_lose_nothing() -> None:
    for compression in COMPRESSIONS:
        for kind in [SlowFile, MuteFile]:
            file = kind()
            write(file, [(content, b"") for content in SMALL], compression)
            assert file.getvalue() == encode(SMALL, compression)
            file.seek(0)
            assert [record.data for record in records.read_records(file, compression)] == SMALL


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_file_that_takes_a_part_alone_raises(tmp_path: pathlib.Path, compression: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open(tmp_path / "shard", "xb", buffering=0) as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))  # as a disk with room for 20 bytes
        try:
            with pytest.raises(OSError, match="File too large"):
                write(file, [(content, b"") for content in SMALL], compression)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "shard").stat().st_size == 20


# Damage


def assert_error(data: bytes, index: int, complaint: str, compression: str = "none") -> None:
    """The records before one with that index are read; then follows an error at its offset."""
    found, error = read_until_error(data, compression)
    assert error is not None
    offset = [*OFFSETS, END][index]
    assert (found, error.offset) == (SMALL[:index], offset)
    assert re.fullmatch(complaint, error.detail), error.detail
    assert str(error) == f"{error.detail} at byte offset {offset}"


def test_flipped_byte_is_an_error_of_its_record() -> None:
    for position in range(END):
        index = record_at(position)
        in_length = position - OFFSETS[index] < records.HEADER_BYTES
        of_data = f"the checksum of a record of {len(SMALL[index])} bytes does not match"
        assert_error(damage(encode(SMALL), position), index, BAD_LENGTH if in_length else of_data)


def test_truncated_file_is_an_error_unless_cut_between_records() -> None:
    for length in range(END):
        index = record_at(length)
        held = length - OFFSETS[index]
        if not held:
            assert read_until_error(encode(SMALL)[:length]) == (SMALL[:index], None)
        elif held < records.HEADER_BYTES:
            complaint = f"a record's header is cut short after {held} of 12 bytes"
            assert_error(encode(SMALL)[:length], index, complaint)
        else:
            assert_error(encode(SMALL)[:length], index, f"a record of {len(SMALL[index])} bytes is cut short")


def test_extra_bytes_are_an_error_at_the_end() -> None:
    for extra, complaint in (
        (b"x", "a record's header is cut short after 1 of 12 bytes"),
        (bytes(12), BAD_LENGTH),
        (encode([b"more"])[:-1], "a record of 4 bytes is cut short"),
        (records.frame_header(2**63) + b"short", f"a record of {2**63} bytes is cut short"),
    ):
        assert_error(encode(SMALL) + extra, len(SMALL), complaint)


def test_gzip_flipped_bit_never_drops_or_changes_a_record() -> None:
    whole = encode(SMALL, "gzip")
    clean = 0
    for position in range(len(whole)):
        for bit in range(8):
            found, error = read_until_error(damage(whole, position, 1 << bit), "gzip")
            if error is None:
                clean += 1
                assert found == SMALL
            else:
                assert found == SMALL[: len(found)]
                assert error.offset == [*OFFSETS, END][len(found)]
    assert clean < 8 * 8  # bits of gzip's header that say nothing of the content: time, system, level, text


def test_gzip_file_that_is_truncated_or_has_extra_bytes_is_an_error() -> None:
    whole = encode(SMALL, "gzip")
    for length in range(len(whole)):
        found, _ = read_until_error(whole[:length], "gzip")
        assert_error(whole[:length], len(found), "the gzip stream is cut short", "gzip")
    broken = "the gzip stream is broken .Error -3 .*incorrect header check.*"
    for extra, complaint in ((b"\x1f", "the gzip stream is cut short"), (bytes(20), broken), (encode([b"x"]), broken)):
        assert_error(whole + extra, len(SMALL), complaint, "gzip")


def test_gzip_files_joined_are_read_to_the_end_as_tensorflow_does(tmp_path: pathlib.Path) -> None:
    joined = encode([b"a", b"b"], "gzip") + encode([b"c"], "gzip") + encode([b"d"], "gzip")
    (tmp_path / "joined").write_bytes(joined)
    assert read(joined, "gzip") == [b"a", b"b", b"c", b"d"]
    dataset = tf.data.TFRecordDataset(str(tmp_path / "joined"), compression_type="GZIP")
    assert [record.numpy() for record in dataset] == [b"a", b"b", b"c", b"d"]
    assert read(encode([], "gzip") + joined, "gzip") == [b"a", b"b", b"c", b"d"]


def test_file_of_the_other_compression_is_an_error_at_its_start() -> None:
    assert_error(encode(SMALL, "gzip"), 0, BAD_LENGTH)
    assert_error(encode(SMALL), 0, "the gzip stream is broken .*", "gzip")


# Checksums and the index


def test_slow_crc32c_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    records.require_fast_crc32c()
    monkeypatch.setattr(google_crc32c, "implementation", "python")
    with error_texts.raises("crc32c-slow"):
        records.require_fast_crc32c()


@given(st.lists(st.integers(0, 2**64 - 1)), st.integers(0, 2**64 - 1))
def test_index_round_trips_as_little_endian(offsets: list[int], end: int) -> None:
    encoded = records.encode_index(offsets, end)
    assert encoded == b"".join(offset.to_bytes(8, "little") for offset in [*offsets, end])
    assert list(records.decode_index(encoded)) == [*offsets, end]


def test_index_of_a_broken_size_is_refused() -> None:
    for size in [0, 1, 7, 9]:
        with pytest.raises(ValueError, match=f"an index of {size} bytes is not a whole number of 8-byte offsets"):
            records.decode_index(bytes(size))


def test_checksum_of_a_file_is_that_of_its_rest() -> None:
    data = bytes(range(251)) * 10_000
    file = io.BytesIO(data)
    file.seek(7)
    assert records.checksum_file(file) == (len(data) - 7, google_crc32c.value(data[7:]))


# Names of shards


splits = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]*", fullmatch=True)
suffixes = st.sampled_from(["", ".tfrecord", ".tfrecord.gz", ".x-y"])
shard_counts = st.integers(1, 200) | st.integers(99_990, 100_010) | st.integers(1, 2**40)


@st.composite
def shard_names(draw: st.DrawFn, splits: st.SearchStrategy[str] = splits) -> ShardName:
    num_shards = draw(shard_counts)
    return ShardName(draw(splits), draw(st.integers(0, num_shards - 1)), num_shards, draw(suffixes))


def test_name_formats_and_parses() -> None:
    for name, text in (
        (ShardName("train", 0, 16), "train-00000-of-00016.tfrecord"),
        (ShardName("validation", 127, 128, ""), "validation-00127-of-00128"),
        (ShardName("a-b", 99_999, 100_000), "a-b-099999-of-100000.tfrecord"),
    ):
        assert (str(name), ShardName.parse(text)) == (text, name)


@given(shard_names())
def test_parse_is_the_inverse_of_format_and_names_sort_as_their_indexes(name: ShardName) -> None:
    assert ShardName.parse(str(name)) == name
    indexes = sorted({0, name.shard_index, name.num_shards // 2, name.num_shards - 1})
    names = [str(ShardName(name.split, index, name.num_shards)) for index in indexes]
    assert names == sorted(names)


@settings(deadline=None)
@given(shard_names(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]*", fullmatch=True)))
def test_names_are_those_that_tensorflow_datasets_looks_for(name: ShardName) -> None:
    naming = pytest.importorskip("tensorflow_datasets.core.naming")
    template = naming.ShardedFileTemplate("", "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}", "name", name.split, "tfrecord")
    text = str(dataclasses.replace(name, suffix=".tfrecord"))
    assert template.relative_filepath(shard_index=name.shard_index, num_shards=name.num_shards) == text
    info = template.parse_filename_info(text)
    assert (info.split, info.shard_index, info.num_shards) == (name.split, name.shard_index, name.num_shards)


def test_other_names_are_refused() -> None:
    for text in (
        "train.tfrecord",
        "-00000-of-00001.tfrecord",
        "train-0000-of-0001.tfrecord",
        "train-000000-of-000001.tfrecord",
        "train-00000-of-100000.tfrecord",
        "train-00000-of-00001tfrecord",
        "train-00000-of-00001.tf record",
        "train-00000-of-00001.tfrecord\n",
        "train-\u0660\u0660\u0660\u0660\u0660-of-\u0660\u0660\u0660\u0660\u0661",  # digits, but not ASCII
    ):
        with pytest.raises(ValueError, match=re.escape(f"{text!r} is not the name of a shard; expected for example")):
            ShardName.parse(text)
    for index, num_shards in [(-1, 2), (2, 2), (0, 0)]:
        with pytest.raises(ValueError, match=rf"shard index {index} is outside 0..{num_shards - 1}"):
            ShardName("train", index, num_shards)
    with pytest.raises(ValueError, match="is outside"):
        ShardName.parse("train-00002-of-00002.tfrecord")
