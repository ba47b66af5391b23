from __future__ import annotations

import functools
import logging
import os
import pathlib
import random
import re
import time

import pytest

from imagebeam import errors
from imagebeam.reader import open_files
from imagebeam.reader.shard_cache import cached_shards, cached_source
from tests import patience
from tests.unit.imagebeam.reader import far_dataset

pytestmark = pytest.mark.usefixtures("far")
needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are seen in /proc")


def test_parallel_threads_download_each_shard_once_and_no_more_than_allowed_at_a_time(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=30)
    far.wait_sec = 0.01
    place = far_dataset.open_place(folder, tmp_path / "cache", num_downloads=3)

    def read_all(seed: int) -> None:
        for shard in random.Random(seed).sample(range(30), 30):
            assert place.read(shard, 7, 2000) == far_dataset.content_of(folder, shard)[7:2000]

    far_dataset.run_threads(*[functools.partial(read_all, seed) for seed in range(8)])

    assert sorted(far_dataset.settle(folder)) == list(range(30))
    running, highest = 0, 0
    for line in pathlib.Path(f"{folder}.log").read_text().splitlines():
        running += {"get": 1, "got": -1}.get(line.split()[0], 0)
        highest = max(highest, running)
    assert highest == 3


def test_index_that_is_none_is_not_kept(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    uri = f"far://{folder}/index/train-00000-of-00004.index"
    path = folder / "index/train-00000-of-00004.index"
    whole = path.read_bytes()
    source = far_dataset.open_source(folder, tmp_path / "cache")
    for broken in (whole[:-8], whole[:-8] + bytes(8), bytes(len(whole)), whole[8:16] * 3 + whole[-8:], b"x"):
        path.write_bytes(broken)
        assert source.read(uri) == broken
        assert far_dataset.files_in(tmp_path / "cache") == {}

    path.write_bytes(whole)
    assert source.read(uri) == whole
    path.write_bytes(b"")
    assert source.read(uri) == whole
    (kept,) = (tmp_path / "cache").glob("imagebeam-*/*.index")
    kept.write_bytes(b"cut")
    path.write_bytes(whole)
    assert source.read(uri) == whole


def test_kept_file_of_another_size_is_downloaded_over(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    far_dataset.open_place(folder, tmp_path / "cache").read(0, 0, 1)
    (kept,) = (tmp_path / "cache").glob("imagebeam-*/train*")
    os.truncate(kept, 1000)

    assert far_dataset.open_place(folder, tmp_path / "cache").read(0, 0, far_dataset.WHOLE) == far_dataset.content_of(
        folder, 0
    )
    assert kept.stat().st_size == 3048


def test_shard_that_is_asked_for_goes_before_those_fetched_ahead(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=20)
    place = far_dataset.open_place(folder, tmp_path / "cache", num_downloads=1)
    far.wait_sec = 0.02
    for shard in (0, 19, 12, 5):
        place.read(shard, 0, 1)
    assert far_dataset.settle(folder)[:3] == [0, 19, 12]
    assert 5 in far_dataset.downloads_of(folder)[3:6]
    assert [shard for shard in far_dataset.downloads_of(folder)[3:] if shard != 5] == [
        *range(13, 19),
        *range(1, 5),
        *range(6, 12),
    ]


def test_announced_shard_is_downloaded_while_nobody_waits(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    place = far_dataset.open_place(folder, tmp_path / "cache")
    place.announce(2, 0, 10)
    assert far_dataset.settle(folder) == [2]
    place.announce(2, 0, 10)
    assert place.read(2, 0, 10) == far_dataset.content_of(folder, 2)[:10]
    assert far_dataset.settle(folder) == [2]


def test_announced_shard_waits_for_no_room(tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    place = far_dataset.open_place(folder, tmp_path / "cache", 3048)
    far.wait_sec = 0.3
    place.announce(0, 0, 1)
    patience.wait_until(lambda: far_dataset.downloads_of(folder) == [0])
    place.announce(1, 0, 1)
    assert far_dataset.settle(folder) == [0]
    assert far_dataset.kept_in(tmp_path / "cache") == [0]


def test_shard_that_was_removed_but_is_open_is_not_downloaded_for_an_announcement(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    place = far_dataset.open_place(folder, tmp_path / "cache")
    place.read(0, 0, 1)
    (kept,) = (tmp_path / "cache").glob("imagebeam-*/train*")
    kept.unlink()
    place.announce(0, 0, 1)
    assert far_dataset.settle(folder) == [0]


def test_fetching_ahead_that_fails_is_told_and_does_not_go_on(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem], caplog: pytest.LogCaptureFixture
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=40)
    far.faults[far_dataset.name_of(2, 40)] = [PermissionError("denied")]
    place = far_dataset.open_place(folder, tmp_path / "cache", num_downloads=1)
    place.read(0, 0, 1)
    place.read(39, 0, 1)
    assert far_dataset.settle(folder) == [0, 39]
    far.wait_sec = 0.01
    place.read(1, 0, 1)

    assert far_dataset.settle(folder) == [0, 39, 1, 2]
    assert "fetching ahead stops until the next shard is asked for: shard far://" in caplog.text
    assert place.read(2, 0, 10) == far_dataset.content_of(folder, 2)[:10]


def test_every_reader_that_waits_for_a_shard_is_told(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    far.faults[far_dataset.name_of(0)] = [PermissionError("denied")] * 20
    place = far_dataset.open_place(folder, tmp_path / "cache")

    def read() -> None:
        with pytest.raises(errors.ShardError, match="grant read access"):
            place.read(0, 0, 1)

    far_dataset.run_threads(*[read] * 5)


def test_each_download_is_logged_in_one_line(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "imagebeam")
    folder = far_dataset.write_dataset(tmp_path / "set")
    far_dataset.fetch_all(far_dataset.open_source(folder, tmp_path / "cache"))
    far_dataset.settle(folder)
    assert len(caplog.messages) == 4
    for shard, message in enumerate(sorted(caplog.messages)):
        assert re.fullmatch(rf"downloaded {far_dataset.name_of(shard)}, 3,048 bytes in \d+\.\d s", message)


# Open files


def test_removed_shard_is_read_on_for_a_while_and_then_downloaded_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_shards, "_REFRESH_SEC", 0.5)
    folder = far_dataset.write_dataset(tmp_path / "set")
    place = far_dataset.open_place(folder, tmp_path / "cache")
    place.read(0, 0, 1)
    (kept,) = (tmp_path / "cache").glob("imagebeam-*/train*")
    kept.unlink()

    assert place.read(0, 0, far_dataset.WHOLE) == far_dataset.content_of(folder, 0)
    assert far_dataset.settle(folder) == [0]
    time.sleep(0.5)
    assert place.read(0, 0, far_dataset.WHOLE) == far_dataset.content_of(folder, 0)
    assert far_dataset.settle(folder) == [0, 0]


@needs_proc
def test_files_of_removed_shards_are_let_go(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_source, "_NUM_AHEAD", 0)
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=20)
    place = far_dataset.open_place(folder, tmp_path / "cache", 2 * 3048)
    for shard in range(20):
        place.read(shard, 0, 1)
    assert len(far_dataset.opened_in(tmp_path / "cache")) <= 2


@needs_proc
def test_few_files_stay_open(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "_MAX_OPEN", 3)
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=8)
    place = far_dataset.open_place(folder, tmp_path / "cache")
    for shard in (*range(8), *range(8)):
        assert place.read(shard, 0, far_dataset.WHOLE) == far_dataset.content_of(folder, shard)
    assert sorted(far_dataset.settle(folder)) == list(range(8))
    assert len(far_dataset.opened_in(tmp_path / "cache")) == 3
