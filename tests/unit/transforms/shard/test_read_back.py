from __future__ import annotations

import os
import pathlib

import google_crc32c
import pytest

from imagebeam.transforms.shard import read_back


@pytest.mark.parametrize("step", [1, 7, 100, 5000], ids="{}-bytes-a-write".format)
def test_read_back_of_growing_file_gives_its_size_and_checksum(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(read_back, "_WINDOW_BYTES", 64)
    monkeypatch.setattr(read_back, "_READ_BYTES", 10)
    content = bytes(range(256)) * 4
    with open(tmp_path / "file", "x+b", buffering=0) as file:
        stored = read_back.ReadBack(file.fileno())
        for start in range(0, len(content), step):
            file.write(content[start : start + step])
            stored.advance(file.tell())
            assert file.tell() - stored.num_bytes < 64
        assert stored.finish() == (len(content), google_crc32c.value(content))


@pytest.mark.parametrize("position", [0, 63, 64, 1000], ids="byte-{}".format)
def test_read_back_notices_a_byte_that_changed_on_the_disk(tmp_path: pathlib.Path, position: int) -> None:
    content = bytes(1024)
    with open(tmp_path / "file", "x+b", buffering=0) as file:
        stored = read_back.ReadBack(file.fileno())
        file.write(content)
        os.pwrite(file.fileno(), b"\1", position)
        stored.advance(len(content))
        assert stored.finish() != (len(content), google_crc32c.value(content))


def test_read_back_of_truncated_file_gives_its_real_size(tmp_path: pathlib.Path) -> None:
    with open(tmp_path / "file", "x+b", buffering=0) as file:
        stored = read_back.ReadBack(file.fileno())
        file.write(b"half")
        stored.advance(1 << 30)
        assert stored.finish() == (4, google_crc32c.value(b"half"))
