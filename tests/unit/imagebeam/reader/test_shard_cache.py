"""Whole shards in a cache: downloads, their order and faults, the limit of bytes, and several processes."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import pathlib
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from imagebeam.reader import dataset_source, shard_cache, shard_files, shard_reader
from tests import error_texts, patience
from tests.unit.imagebeam.reader import far_dataset

Far = type[far_dataset.FarFileSystem]

pytestmark = pytest.mark.usefixtures("far")


def test_threads_download_each_shard_once_and_no_more_than_allowed_at_a_time(tmp_path: pathlib.Path, far: Far) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=30)
    far.wait_sec = 0.01
    first_three, numbers = threading.Barrier(3), itertools.count()

    def meet() -> None:
        if next(numbers) < 3:
            first_three.wait(patience.HANG_SEC)

    far.faults.update({far_dataset.name_of(shard, 30): [meet] for shard in range(30)})
    files = far_dataset.open_files(folder, tmp_path / "cache", num_downloads=3)

    def read_all(seed: int) -> None:
        for shard in random.Random(seed).sample(range(30), 30):
            assert files.open(shard).read(7, 2000) == far_dataset.content_of(folder, shard)[7:2000]

    far_dataset.run_threads(*[functools.partial(read_all, seed) for seed in range(8)])

    assert sorted(far_dataset.settle(folder)) == list(range(30))
    running, highest = 0, 0
    for line in pathlib.Path(f"{folder}.log").read_text().splitlines():
        running += {"get": 1, "got": -1}.get(line.split()[0], 0)
        highest = max(highest, running)
    assert highest == 3


def test_broken_index_is_not_kept(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    shard = far_dataset.shards_of(folder)[0]
    uri, path = f"far://{folder}/{shard.index_name}", folder / shard.index_name
    whole, (index,) = path.read_bytes(), shard.side_files("none")
    cache = far_dataset.open_cache(folder, tmp_path / "cache")
    for broken in (whole[:-8], whole[:-8] + bytes(8), bytes(len(whole)), whole[8:16] * 3 + whole[-8:], b"x"):
        path.write_bytes(broken)
        assert cache.read_side_file(uri, shard, index) == broken
        assert far_dataset.files_in(tmp_path / "cache") == {}

    path.write_bytes(whole)
    assert cache.read_side_file(uri, shard, index) == whole
    path.write_bytes(b"")
    assert cache.read_side_file(uri, shard, index) == whole
    (kept,) = (tmp_path / "cache").glob("imagebeam-*/*.index")
    kept.write_bytes(b"cut")
    path.write_bytes(whole)
    assert cache.read_side_file(uri, shard, index) == whole


def test_shards_that_follow_are_downloaded_in_order_after_those_waited_for(tmp_path: pathlib.Path, far: Far) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=20)
    files = far_dataset.open_files(folder, tmp_path / "cache", ahead=range(2, 20), num_downloads=1)
    tasks = files._cache._tasks._tasks

    def wait_for_two_readers() -> None:
        patience.wait_until(lambda: sum(task.is_asked for task in tasks.values()) == 2)

    far.faults[far_dataset.name_of(6, 20)] = [wait_for_two_readers]
    files.open(5)
    far_dataset.run_threads(functools.partial(files.open, 19), functools.partial(files.open, 12))
    assert far_dataset.settle(folder) == [5, 6, 12, 19, *range(7, 12), *range(13, 19), *range(2, 5)]


def test_shard_nobody_waits_for_waits_for_no_room(tmp_path: pathlib.Path, far: Far) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    cache, tried = far_dataset.open_cache(folder, tmp_path / "cache", 3048), []
    download = cache._tasks._run

    def download_and_note(task: Any) -> Any:
        found = download(task)
        tried.append(task.key)
        return found

    cache._tasks._run = download_and_note
    far.faults[far_dataset.name_of(0)] = [lambda: patience.wait_until(lambda: len(tried) == 3)]
    held = threading.Thread(target=far_dataset.open_files(folder, tmp_path / "cache", 3048).open, args=(0,))
    held.start()
    patience.wait_until(lambda: far_dataset.downloads_of(folder) == [0])
    cache.open(far_dataset.shards_of(folder)[0], far_dataset.shards_of(folder)[1:])
    held.join()
    assert far_dataset.settle(folder) == [0]
    assert far_dataset.kept_in(tmp_path / "cache") == [0]


def test_download_ahead_that_fails_is_logged_and_ends_the_others(
    tmp_path: pathlib.Path, far: Far, caplog: pytest.LogCaptureFixture
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=40)
    far.faults[far_dataset.name_of(2, 40)] = [PermissionError("denied")]
    files = far_dataset.open_files(folder, tmp_path / "cache", ahead=range(40), num_downloads=1)
    far.wait_sec = 0.01
    files.open(0)
    assert far_dataset.settle(folder) == [0, 1, 2]
    assert "fetching ahead stops until the next shard is asked for: shard far://" in caplog.text
    assert files.open(2).read(0, 10) == far_dataset.content_of(folder, 2)[:10]


def test_cache_that_others_fill_downloads_few_shards_again_and_reads_the_others_in_place(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where each block of a shard would download the shard again."""
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=8, num_records=16)
    size, stored = 16 * 1016, far_dataset.stored_in(folder)
    order = random.Random(0).sample(range(len(stored)), len(stored))
    for max_bytes in (2 * size + 500, 20 * size):  # the room that is left
        cache = tmp_path / f"cache-{max_bytes}"
        before = far_dataset.bytes_read(folder) + size * len(far_dataset.settle(folder))
        files = far_dataset.open_files(folder, cache, max_bytes, refresh_sec=0)
        split = shard_files.SplitShards(f"far://{folder}", far_dataset.shards_of(folder), None)
        offsets = shard_files.Offsets(split, lambda uri: pathlib.Path(uri.removeprefix("far://")).read_bytes())
        reader = shard_reader.ShardReader(shard_reader.IndexedRecords(split, files, offsets))
        for _ in range(3):
            assert [far_dataset.fetch(reader, [record]) for record in order] == [[stored[record]] for record in order]
        read = far_dataset.bytes_read(folder) + size * len(far_dataset.settle(folder)) - before
        assert read <= (1 if max_bytes > 8 * size else 4) * 8 * size
    assert caplog.text.count("had to be downloaded again: what this machine reads does not fit") == 1


def test_kept_file_of_another_size_is_downloaded_over(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    far_dataset.open_files(folder, tmp_path / "cache").open(0).read(0, 1)
    (kept,) = (tmp_path / "cache").glob("imagebeam-*/train*")
    os.truncate(kept, 1000)

    assert far_dataset.open_files(folder, tmp_path / "cache").open(0).read(
        0, far_dataset.WHOLE
    ) == far_dataset.content_of(folder, 0)
    assert kept.stat().st_size == 3048


def test_all_who_wait_for_a_shard_get_its_error(tmp_path: pathlib.Path, far: Far) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    far.faults[far_dataset.name_of(0)] = [PermissionError("denied")] * 20
    files = far_dataset.open_files(folder, tmp_path / "cache")

    def read() -> None:
        with error_texts.raises("shard-unreadable"):
            files.open(0).read(0, 1)

    far_dataset.run_threads(*[read] * 5)


# Downloads


@pytest.mark.parametrize(
    ("faults_of", "waits_sec"),
    [
        pytest.param(lambda content: [b"?" + content[1:], b"!" + content[1:]], 0.3, id="damaged"),
        pytest.param(lambda content: [content[:-1]], 0.0, id="short"),
        pytest.param(lambda _: [ConnectionError("reset"), RuntimeError("503"), TimeoutError()], 0.0, id="refused"),
    ],
)
def test_download_that_fails_for_a_while_is_tried_again(
    tmp_path: pathlib.Path, far: Far, faults_of: Callable[[bytes], list[Any]], waits_sec: float
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    content = far_dataset.content_of(folder, 0)
    faults = far.faults[far_dataset.name_of(0)] = faults_of(content)
    files = far_dataset.open_files(folder, tmp_path / "cache", damage_waits_sec=(waits_sec / 3, 2 * waits_sec / 3))
    num_downloads, begin = len(faults) + 1, time.monotonic()
    assert files.open(0).read(0, far_dataset.WHOLE) == content
    assert time.monotonic() - begin >= waits_sec
    assert far_dataset.settle(folder) == [0] * num_downloads


@pytest.mark.parametrize("change", [lambda content: content[:1000], lambda content: b"!" + content[1:]])
def test_shard_that_stays_damaged_is_an_error(tmp_path: pathlib.Path, change: Callable[[bytes], bytes]) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    content = far_dataset.content_of(folder, 0)
    (folder / far_dataset.name_of(0)).write_bytes(change(content))
    with error_texts.raises("shard-differs"):
        far_dataset.open_files(folder, tmp_path / "cache").open(0).read(0, 1)

    assert far_dataset.settle(folder) == [0, 0, 0]
    assert far_dataset.files_in(tmp_path / "cache") == {}


def test_unreachable_shard_is_an_error_after_the_budget(tmp_path: pathlib.Path, far: Far, short_budget: None) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    files = far_dataset.open_files(folder, tmp_path / "cache")
    faults = far.faults[far_dataset.name_of(0)] = [ConnectionError("reset"), RuntimeError("503"), TimeoutError("slow")]
    faults += [TimeoutError("slow")] * 1000
    with error_texts.raises("shard-unreadable"):
        files.open(0).read(0, 1)
    assert len(far_dataset.settle(folder)) >= 3
    assert far_dataset.files_in(tmp_path / "cache") == {}

    faults.clear()
    assert files.open(0).read(0, far_dataset.WHOLE) == far_dataset.content_of(folder, 0)


@pytest.mark.parametrize(
    ("fault", "code"),
    [(FileNotFoundError("no such object"), "shard-missing"), (PermissionError("no"), "shard-unreadable")],
)
def test_shard_that_is_refused_is_an_error_at_once(tmp_path: pathlib.Path, far: Far, fault: OSError, code: str) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    far.faults[far_dataset.name_of(0)] = [fault]
    with error_texts.raises(code):
        far_dataset.open_files(folder, tmp_path / "cache").open(0).read(0, 1)
    assert far_dataset.settle(folder) == [0]


# Open files


def test_removed_shard_is_read_on_for_a_while_and_then_downloaded_again(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    files = far_dataset.open_files(folder, tmp_path / "cache")
    files.open(0)
    (kept,) = (tmp_path / "cache").glob("imagebeam-*/train*")
    kept.unlink()
    assert files.open(0).read(0, far_dataset.WHOLE) == far_dataset.content_of(folder, 0)
    assert far_dataset.settle(folder) == [0]
    files = far_dataset.open_files(folder, tmp_path / "cache", refresh_sec=0)
    for downloads in ([0, 0], [0, 0, 0]):
        assert files.open(0).read(0, far_dataset.WHOLE) == far_dataset.content_of(folder, 0)
        assert far_dataset.settle(folder) == downloads
        (kept,) = (tmp_path / "cache").glob("imagebeam-*/train*")
        kept.unlink()


def test_shards_used_longest_ago_make_room(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
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
    tmp_path: pathlib.Path, far: Far, monkeypatch: pytest.MonkeyPatch, num_kept: int
) -> None:
    monkeypatch.setattr(shard_cache, "_POLL_SEC", 0.001)
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
    with error_texts.raises("cache-unusable"):
        dataset_source.DatasetSource("memory://x", str(tmp_path / "file/cache"))


def test_full_disk_is_an_error_at_once(tmp_path: pathlib.Path, far: Far) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    far.faults[far_dataset.name_of(0)] = [OSError(errno.ENOSPC, "no room")]
    with error_texts.raises("cache-unusable"):
        far_dataset.open_files(folder, tmp_path / "cache").open(0).read(0, 1)
    assert far_dataset.settle(folder) == [0]
    assert far_dataset.files_in(tmp_path / "cache") == {}


def test_cache_folder_that_vanishes_during_a_download_is_an_error(tmp_path: pathlib.Path, far: Far) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    files = far_dataset.open_files(folder, tmp_path / "cache")
    far.faults[far_dataset.name_of(0)] = [lambda: shutil.rmtree(tmp_path / "cache")]
    with error_texts.raises("cache-unusable"):
        files.open(0)
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
