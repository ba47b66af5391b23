from __future__ import annotations

import errno
import os
import pathlib
import random
import threading
from collections.abc import Iterator
from concurrent import futures

import google_crc32c
import pytest

from imagebeam import records
from imagebeam.transforms.shard import shard_file

BUFFER_BYTES = 1 << 14
CONTENT = random.Random(0).randbytes(5 * BUFFER_BYTES + 4321)

both_ways = pytest.mark.parametrize("is_direct", [True, False], ids=["direct", "cached"])


@pytest.fixture
def descriptor(tmp_path: pathlib.Path) -> Iterator[int]:
    with open(tmp_path / "shard", "x+b", buffering=0) as file:
        yield file.fileno()


def open_shard(descriptor: int, is_direct: bool = True) -> shard_file.ShardFile:
    return shard_file.ShardFile(descriptor, is_direct, BUFFER_BYTES)


def write(descriptor: int, content: bytes, step: int = 5000, is_direct: bool = True) -> tuple[int, int]:
    with open_shard(descriptor, is_direct) as file:
        for start in range(0, len(content), step):
            file.write(content[start : start + step])
        return file.finish()


@both_ways
@pytest.mark.parametrize("has_c", [True, False], ids=["in-c", "in-python"])
def test_finish_returns_size_and_checksum_of_the_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, has_c: bool, is_direct: bool
) -> None:
    if not has_c:
        monkeypatch.setattr(shard_file, "extend_crc", shard_file._extend_crc)
    for size in (0, 1, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1, 2 * BUFFER_BYTES, len(CONTENT)):
        for step in (100, BUFFER_BYTES, len(CONTENT)):
            path, content = tmp_path / f"{size}-{step}", CONTENT[:size]
            with open(path, "x+b", buffering=0) as file:
                assert write(file.fileno(), content, step, is_direct) == (size, google_crc32c.value(content))
            assert path.read_bytes() == content


@pytest.mark.parametrize("has_c", [True, False], ids=["in-c", "in-python"])
def test_records_in_a_shard_file_are_those_in_any_file(
    tmp_path: pathlib.Path, descriptor: int, monkeypatch: pytest.MonkeyPatch, has_c: bool
) -> None:
    if not has_c:
        monkeypatch.setattr(records, "_put_record", None)
    generator = random.Random(2)
    sizes = [0, 1, 3 * BUFFER_BYTES, *(generator.randrange(6000) for _ in range(40))]
    pieces = [(generator.randbytes(size % 300), generator.randbytes(size)) for size in sizes]
    with open(tmp_path / "plain", "x+b", buffering=0) as plain, open_shard(descriptor) as file:
        writers = records.RecordWriter(plain), records.RecordWriter(file)
        for writer in writers:
            for prefix, payload in pieces:
                writer.write(prefix, payload)
            writer.finish()
        found = [(each.num_records, each.num_bytes, each.crc32c, each.offsets) for each in writers]
        assert found[0] == found[1]
        assert file.finish() == found[1][1:3]
    assert (tmp_path / "shard").read_bytes() == (tmp_path / "plain").read_bytes()


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="this system has no direct writes")
def test_full_buffers_are_written_direct_and_the_rest_is_not(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    written, pwrite = [], os.pwrite

    def note(file: int, data: memoryview, offset: int) -> int:
        written.append((offset, len(data), bool(shard_file.fcntl.fcntl(file, shard_file.fcntl.F_GETFL) & os.O_DIRECT)))
        return pwrite(file, data, offset)

    monkeypatch.setattr(os, "pwrite", note)
    write(descriptor, CONTENT[: 2 * BUFFER_BYTES + 5000])
    assert written == [(0, BUFFER_BYTES, True), (BUFFER_BYTES, BUFFER_BYTES, True), (2 * BUFFER_BYTES, 5000, False)]


@pytest.mark.parametrize("num_direct", [0, 1, 3], ids="{}-direct-writes-work".format)
def test_file_system_that_takes_no_direct_write_gets_cached_ones(
    tmp_path: pathlib.Path, descriptor: int, monkeypatch: pytest.MonkeyPatch, num_direct: int
) -> None:
    tried, pwrite = [], os.pwrite

    def refuse(file: int, data: memoryview, offset: int) -> int:
        if shard_file.fcntl.fcntl(file, shard_file.fcntl.F_GETFL) & shard_file._DIRECT:
            tried.append(offset)
            if len(tried) > num_direct:
                raise OSError(errno.EINVAL, "Invalid argument")
            data = data[:4096]  # and a part at a time
        return pwrite(file, data, offset)

    monkeypatch.setattr(os, "pwrite", refuse)
    assert write(descriptor, CONTENT) == (len(CONTENT), google_crc32c.value(CONTENT))
    assert (tmp_path / "shard").read_bytes() == CONTENT
    assert len(tried) == (num_direct + 1 if shard_file._DIRECT else 0)


def test_file_system_without_the_flag_gets_cached_writes(
    tmp_path: pathlib.Path, descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = shard_file.fcntl.fcntl

    def refuse(file: int, command: int, *flags: int) -> int:
        if flags and flags[0] & shard_file._DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return fcntl(file, command, *flags)

    monkeypatch.setattr(shard_file.fcntl, "fcntl", refuse)
    assert write(descriptor, CONTENT) == (len(CONTENT), google_crc32c.value(CONTENT))
    assert (tmp_path / "shard").read_bytes() == CONTENT


@both_ways
@pytest.mark.parametrize("position", [0, BUFFER_BYTES - 1, BUFFER_BYTES, len(CONTENT) - 1], ids="byte-{}".format)
def test_finish_notices_a_byte_that_changed_in_memory(
    descriptor: int, monkeypatch: pytest.MonkeyPatch, position: int, is_direct: bool
) -> None:
    pwrite = os.pwrite

    def flip(file: int, data: memoryview, offset: int) -> int:
        if offset <= position < offset + len(data):
            data[position - offset] ^= 1
        return pwrite(file, data, offset)

    monkeypatch.setattr(os, "pwrite", flip)
    size, crc32c = write(descriptor, CONTENT, is_direct=is_direct)
    assert (size, crc32c == google_crc32c.value(CONTENT)) == (len(CONTENT), False)


def test_finish_notices_a_byte_that_changed_in_the_page_cache(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite

    def flip(file: int, data: memoryview, offset: int) -> int:
        return pwrite(file, bytes([data[0] ^ 1]) + bytes(data[1:]), offset)

    monkeypatch.setattr(os, "pwrite", flip)
    assert write(descriptor, CONTENT, is_direct=False) != (len(CONTENT), google_crc32c.value(CONTENT))


def test_finish_notices_that_the_file_was_cut(tmp_path: pathlib.Path, descriptor: int) -> None:
    with open_shard(descriptor, is_direct=False) as file:
        file.write(CONTENT[: 2 * BUFFER_BYTES])
        futures.wait(file._writing)
        os.truncate(tmp_path / "shard", 1000)
        assert file.finish()[0] == 1000


@both_ways
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_write_to_a_failing_disk_raises(
    descriptor: int, monkeypatch: pytest.MonkeyPatch, number: int, is_direct: bool
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(OSError, match=os.strerror(number)):
        write(descriptor, CONTENT, is_direct=is_direct)


def test_slow_disk_gets_full_buffers_while_others_are_filled(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write, pwrite = threading.Event(), os.pwrite

    def write_later(file: int, data: memoryview, offset: int) -> int:
        may_write.wait()
        return pwrite(file, data, offset)

    monkeypatch.setattr(os, "pwrite", write_later)
    num_full = shard_file._NUM_BUFFERS - 1
    with open_shard(descriptor) as file, futures.ThreadPoolExecutor(1) as filler:
        file.write(CONTENT[: num_full * BUFFER_BYTES])  # returns while the disk takes nothing
        rest = filler.submit(file.write, CONTENT[num_full * BUFFER_BYTES :])
        may_write.set()
        rest.result()
        assert file.finish() == (len(CONTENT), google_crc32c.value(CONTENT))
