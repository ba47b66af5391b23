from __future__ import annotations

import functools
import os
import pathlib
import random
import re
import threading
import time
from collections.abc import Callable

import google_crc32c
import pytest

from imagebeam import errors
from imagebeam.reader import shard_reader
from tests import patience
from tests.unit.imagebeam.reader import far_dataset

pytestmark = pytest.mark.usefixtures("far")


def test_parallel_threads_download_each_shard_once_and_no_more_than_allowed_at_a_time(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=30)
    far.wait_sec = 0.01
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
    whole = path.read_bytes()
    cache = far_dataset.open_cache(folder, tmp_path / "cache")
    for broken in (whole[:-8], whole[:-8] + bytes(8), bytes(len(whole)), whole[8:16] * 3 + whole[-8:], b"x"):
        path.write_bytes(broken)
        assert cache.read_index(uri, shard) == broken
        assert far_dataset.files_in(tmp_path / "cache") == {}

    path.write_bytes(whole)
    assert cache.read_index(uri, shard) == whole
    path.write_bytes(b"")
    assert cache.read_index(uri, shard) == whole
    (kept,) = (tmp_path / "cache").glob("imagebeam-*/*.index")
    kept.write_bytes(b"cut")
    path.write_bytes(whole)
    assert cache.read_index(uri, shard) == whole


def test_shards_that_follow_are_downloaded_in_their_order_after_those_that_a_reader_waits_for(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=20)
    files = far_dataset.open_files(folder, tmp_path / "cache", ahead=range(2, 20), num_downloads=1)
    far.wait_sec = 0.02
    for shard in (5, 19, 12):
        files.open(shard)
    order = far_dataset.settle(folder)
    assert order[0] == 5 and order.index(19) <= 2 and order.index(12) <= 4
    assert [shard for shard in order if shard not in (5, 19, 12)] == [*range(6, 12), *range(13, 19), *range(2, 5)]


def test_shard_that_nobody_waits_for_waits_for_no_room(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    far.wait_sec = 0.3
    held = threading.Thread(target=far_dataset.open_files(folder, tmp_path / "cache", 3048).open, args=(0,))
    held.start()
    patience.wait_until(lambda: far_dataset.downloads_of(folder) == [0])
    cache = far_dataset.open_cache(folder, tmp_path / "cache", 3048)
    cache.open(far_dataset.shards_of(folder)[0], far_dataset.shards_of(folder)[1:])
    held.join()
    assert far_dataset.settle(folder) == [0]
    assert far_dataset.kept_in(tmp_path / "cache") == [0]


def test_download_ahead_that_fails_is_logged_and_ends_the_others(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem], caplog: pytest.LogCaptureFixture
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
        split = shard_reader.SplitShards(f"far://{folder}", far_dataset.shards_of(folder), None)
        offsets = shard_reader.Offsets(split, lambda uri: pathlib.Path(uri.removeprefix("far://")).read_bytes())
        reader = shard_reader.DirectReader(split, files, offsets)
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


def test_every_reader_that_waits_for_a_shard_gets_its_error(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    far.faults[far_dataset.name_of(0)] = [PermissionError("denied")] * 20
    files = far_dataset.open_files(folder, tmp_path / "cache")

    def read() -> None:
        with pytest.raises(errors.ShardError, match="grant read access"):
            files.open(0).read(0, 1)

    far_dataset.run_threads(*[read] * 5)


# Downloads


def test_damaged_download_is_tried_again_after_the_waits(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    content = far_dataset.content_of(folder, 0)
    far.faults[far_dataset.name_of(0)] = [b"?" + content[1:], b"!" + content[1:]]
    files = far_dataset.open_files(folder, tmp_path / "cache", damage_waits_sec=(0.1, 0.2))

    begin = time.monotonic()
    assert files.open(0).read(0, far_dataset.WHOLE) == content
    assert time.monotonic() - begin >= 0.3
    assert far_dataset.settle(folder) == [0, 0, 0]


def test_download_that_comes_short_is_tried_again_at_once(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    content = far_dataset.content_of(folder, 0)
    far.faults[far_dataset.name_of(0)] = [content[:-1]]
    assert far_dataset.open_files(folder, tmp_path / "cache").open(0).read(0, far_dataset.WHOLE) == content
    assert far_dataset.settle(folder) == [0, 0]


@pytest.mark.parametrize("change", [lambda content: content[:1000], lambda content: b"!" + content[1:]])
def test_shard_that_stays_damaged_is_an_error_with_both_values(
    tmp_path: pathlib.Path, change: Callable[[bytes], bytes]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    content = far_dataset.content_of(folder, 0)
    (folder / far_dataset.name_of(0)).write_bytes(change(content))
    found = change(content)
    complaint = (
        f"shard far://{folder}/{far_dataset.name_of(0)} comes as {len(found):,} bytes with crc32c "
        f"{google_crc32c.value(found):08x}, the catalog says 3,048 bytes with {google_crc32c.value(content):08x}: "
        "it was cut short or replaced; "
        "run imagebeam verify, then convert again with --overwrite"
    )
    with pytest.raises(errors.ShardError, match=re.escape(complaint)):
        far_dataset.open_files(folder, tmp_path / "cache").open(0).read(0, 1)

    assert far_dataset.settle(folder) == [0, 0, 0]
    assert far_dataset.files_in(tmp_path / "cache") == {}


def test_shard_that_cannot_be_reached_is_an_error_after_the_budget(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem], short_budget: None
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    files = far_dataset.open_files(folder, tmp_path / "cache")
    faults = far.faults[far_dataset.name_of(0)] = [ConnectionError("reset"), RuntimeError("503"), TimeoutError("slow")]
    faults += [TimeoutError("slow")] * 1000
    uri = f"far://{folder}/{far_dataset.name_of(0)}"
    complaint = (
        f"shard {uri} cannot be downloaded ({uri}: TimeoutError: slow (tried for 0.05 s)): "
        "check that its address can be reached from here, and run again; what was downloaded is kept"
    )
    with pytest.raises(errors.ShardError, match=re.escape(complaint)):
        files.open(0).read(0, 1)
    assert len(far_dataset.settle(folder)) >= 3
    assert far_dataset.files_in(tmp_path / "cache") == {}

    faults.clear()
    assert files.open(0).read(0, far_dataset.WHOLE) == far_dataset.content_of(folder, 0)


def test_fault_that_passes_delays_a_download(tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    files = far_dataset.open_files(folder, tmp_path / "cache")
    far.faults[far_dataset.name_of(0)] = [ConnectionError("reset"), RuntimeError("503"), TimeoutError("slow")]
    assert files.open(0).read(0, far_dataset.WHOLE) == far_dataset.content_of(folder, 0)
    assert far_dataset.settle(folder) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (
            FileNotFoundError("no such object"),
            "is missing (there is no {uri}): run imagebeam verify, then convert again",
        ),
        (
            PermissionError("no"),
            "cannot be read ({uri}: access denied (no); docs/storage.md lists what is needed): grant read access to it",
        ),
    ],
    ids=["missing", "denied"],
)
def test_shard_that_is_refused_is_an_error_at_once(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem], fault: OSError, complaint: str
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    far.faults[far_dataset.name_of(0)] = [fault]
    uri = f"far://{folder}/{far_dataset.name_of(0)}"
    with pytest.raises(errors.ShardError, match=re.escape(f"shard {uri} {complaint.format(uri=uri)}")):
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
