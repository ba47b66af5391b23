from __future__ import annotations

import contextlib
import errno
import functools
import pathlib
import random
import re
import shutil
import signal
import threading
import time

import pytest

from imagebeam import errors
from imagebeam.reader import cache_room, dataset_source
from tests import patience
from tests.unit.imagebeam.reader import far_dataset

pytestmark = pytest.mark.usefixtures("far")


def test_shards_used_longest_ago_make_room(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    files = far_dataset.open_files(folder, tmp_path / "cache", 3 * 3048, refresh_sec=0)
    for shard, expected in [(0, [0]), (1, [0, 1]), (2, [0, 1, 2]), (0, [0, 1, 2]), (3, [0, 2, 3]), (1, [0, 1, 3])]:
        assert files.open(shard).read(0, far_dataset.WHOLE) == far_dataset.content_of(folder, shard)
        assert far_dataset.kept_in(tmp_path / "cache") == expected
    assert far_dataset.settle(folder) == [0, 1, 2, 3, 1]
    warning = "had to be downloaded again: what this machine reads does not fit into cache_bytes=9,144"
    assert caplog.text.count("had to be downloaded again") == 1
    assert f"far://{folder}/{far_dataset.name_of(1)} {warning}" in caplog.text


def test_shards_of_other_datasets_make_room_and_foreign_files_stay(tmp_path: pathlib.Path) -> None:
    one, other = far_dataset.write_dataset(tmp_path / "one"), far_dataset.write_dataset(tmp_path / "other")
    (tmp_path / "cache/imagebeam").mkdir(parents=True)
    for foreign in ("mine", "imagebeam/mine", "imagebeam-notes"):
        (tmp_path / "cache" / foreign).write_bytes(bytes(100_000))
    for folder in (one, other):
        files = far_dataset.open_files(folder, tmp_path / "cache", 2 * 3048)
        for shard in (1, 0):
            files.open(shard).read(0, 1)

    (left,) = [path for path in (tmp_path / "cache").glob("imagebeam-*") if path.is_dir()]  # the other's folder went
    assert far_dataset.kept_in(tmp_path / "cache") == [0, 1]
    assert (left / far_dataset.name_of(0)).read_bytes() == far_dataset.content_of(other, 0)
    assert [path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.stat().st_size == 100_000] == [
        100_000
    ] * 3


@pytest.mark.parametrize("num_kept", [1, 3])
def test_bound_holds_at_every_moment_under_threads_that_read_at_random(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem], monkeypatch: pytest.MonkeyPatch, num_kept: int
) -> None:
    monkeypatch.setattr(cache_room, "_POLL_SEC", 0.001)
    far.wait_sec, far.pieces = 0.002, 4
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=10)
    contents = [far_dataset.content_of(folder, shard) for shard in range(10)]
    totals = [0]
    is_done = threading.Event()

    def read(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(25):
            shard = rng.randrange(10)
            files = far_dataset.open_files(folder, tmp_path / "cache", num_kept * 3048)  # as of another process
            assert files.open(shard).read(0, far_dataset.WHOLE) == contents[shard]

    def watch() -> None:
        while not is_done.is_set():
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile: the sum is of no one moment
                totals.append(sum(path.stat().st_size for path in (tmp_path / "cache").glob("imagebeam-*/*")))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        far_dataset.run_threads(*[functools.partial(read, seed) for seed in range(4)])
    finally:
        is_done.set()
        watcher.join()

    far_dataset.settle(folder)
    assert sum(far_dataset.files_in(tmp_path / "cache").values()) <= num_kept * 3048
    assert 3048 <= max(totals) <= (num_kept + 1) * 3048  # a sum may count a file that went while it was made


def test_cache_folder_that_cannot_be_created_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(errors.ConfigError, match=f"cache_dir {tmp_path}/file/cache cannot be used .*Not a directory"):
        dataset_source.DatasetSource("memory://x", str(tmp_path / "file/cache"))


def test_full_disk_is_an_error_at_once(tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    far.faults[far_dataset.name_of(0)] = [OSError(errno.ENOSPC, "no room")]
    complaint = (
        f"cache_dir {tmp_path}/cache cannot be used ([Errno {errno.ENOSPC}] no room): free space there, "
        "lower cache_bytes, or give a folder on another local disk"
    )
    with pytest.raises(errors.ConfigError, match=re.escape(complaint)):
        far_dataset.open_files(folder, tmp_path / "cache").open(0).read(0, 1)
    assert far_dataset.settle(folder) == [0]
    assert far_dataset.files_in(tmp_path / "cache") == {}


def test_cache_folder_that_vanishes_during_a_download_is_an_error(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    files = far_dataset.open_files(folder, tmp_path / "cache")
    far.wait_sec = 0.3

    def read() -> None:
        with pytest.raises(errors.ConfigError, match=f"cache_dir {tmp_path}/cache cannot be used .*No such file"):
            files.open(0)

    def remove() -> None:
        patience.wait_until(lambda: far_dataset.downloads_of(folder) == [0])
        patience.wait_until(lambda: len(far_dataset.files_in(tmp_path / "cache")) == 1)
        shutil.rmtree(tmp_path / "cache")

    far_dataset.run_threads(read, remove)
    assert files.open(0).read(0, far_dataset.WHOLE) == far_dataset.content_of(folder, 0)  # made again


# Several processes


def test_processes_download_each_shard_once(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=12)
    orders = [range(12), range(12), range(11, -1, -1)]
    processes = [far_dataset.start_process(folder, tmp_path / "cache", order, wait_sec=0.1) for order in orders]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate(timeout=patience.HANG_SEC)[0] for process in processes] == ["ok\n"] * 3

    assert sorted(far_dataset.downloads_of(folder)) == list(range(12))
    assert not list((tmp_path / "cache").rglob("*~*"))


def test_kill_in_the_middle_of_a_download_leaves_nothing_that_is_taken_for_whole(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    process = far_dataset.start_process(folder, tmp_path / "cache", [2], wait_sec=60, pieces=600)
    process.stdin.write("\n")
    process.stdin.flush()
    patience.wait_until(lambda: any(0 < size < 3048 for size in far_dataset.files_in(tmp_path / "cache").values()))
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=patience.HANG_SEC)
    assert len(list((tmp_path / "cache").rglob("*~*"))) == 2  # a part, and an unlocked lock file

    files = far_dataset.open_files(folder, tmp_path / "cache", 3048)  # the part takes no room either
    assert files.open(0).read(0, far_dataset.WHOLE) == far_dataset.content_of(folder, 0)
    assert far_dataset.files_in(tmp_path / "cache") == {far_dataset.name_of(0): 3048}
    assert files.open(2).read(0, far_dataset.WHOLE) == far_dataset.content_of(folder, 2)
    assert far_dataset.files_in(tmp_path / "cache") == {far_dataset.name_of(2): 3048}
    assert far_dataset.settle(folder) == [2, 0, 2]


def test_shard_whose_downloader_is_killed_is_downloaded_by_the_process_that_waits(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    process = far_dataset.start_process(folder, tmp_path / "cache", [2], wait_sec=60, pieces=600)
    process.stdin.write("\n")
    process.stdin.flush()
    patience.wait_until(lambda: far_dataset.downloads_of(folder) == [2])
    found: list[bytes] = []
    files = far_dataset.open_files(folder, tmp_path / "cache")
    thread = threading.Thread(target=lambda: found.append(files.open(2).read(0, far_dataset.WHOLE)))
    thread.start()
    time.sleep(patience.MOMENT_SEC)
    assert found == []
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=patience.HANG_SEC)
    thread.join(patience.HANG_SEC)

    assert found == [far_dataset.content_of(folder, 2)]
    assert far_dataset.settle(folder) == [2, 2]
