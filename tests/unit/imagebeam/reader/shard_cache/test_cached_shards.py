from __future__ import annotations

import functools
import logging
import os
import pathlib
import pickle
import random
import re
import time
from collections.abc import Callable
from typing import Any

import google_crc32c
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


def test_broken_index_is_not_kept(tmp_path: pathlib.Path) -> None:
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


def test_shard_that_a_reader_waits_for_goes_before_those_fetched_ahead(
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


def test_fetching_ahead_that_fails_is_logged_and_does_not_go_on(
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


def test_every_reader_that_waits_for_a_shard_gets_its_error(
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


# Downloads


def test_damaged_download_is_tried_again_after_the_waits(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    content = far_dataset.content_of(folder, 0)
    far.faults[far_dataset.name_of(0)] = [b"?" + content[1:], b"!" + content[1:]]
    place = far_dataset.open_place(folder, tmp_path / "cache", damage_waits_sec=(0.1, 0.2))

    begin = time.monotonic()
    assert place.read(0, 0, far_dataset.WHOLE) == content
    assert time.monotonic() - begin >= 0.3
    assert far_dataset.settle(folder) == [0, 0, 0]


def test_download_that_comes_short_is_tried_again_at_once(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    content = far_dataset.content_of(folder, 0)
    far.faults[far_dataset.name_of(0)] = [content[:-1]]
    assert far_dataset.open_place(folder, tmp_path / "cache").read(0, 0, far_dataset.WHOLE) == content
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
        far_dataset.open_place(folder, tmp_path / "cache").read(0, 0, 1)

    assert far_dataset.settle(folder) == [0, 0, 0]
    assert far_dataset.files_in(tmp_path / "cache") == {}


def test_shard_that_cannot_be_reached_is_an_error_after_the_budget(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem], short_budget: None
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    place = far_dataset.open_place(folder, tmp_path / "cache")
    faults = far.faults[far_dataset.name_of(0)] = [ConnectionError("reset"), RuntimeError("503"), TimeoutError("slow")]
    faults += [TimeoutError("slow")] * 1000
    uri = f"far://{folder}/{far_dataset.name_of(0)}"
    complaint = (
        f"shard {uri} cannot be downloaded ({uri}: TimeoutError: slow (tried for 0.05 s)): "
        "check that its address can be reached from here, and run again; what was downloaded is kept"
    )
    with pytest.raises(errors.ShardError, match=re.escape(complaint)):
        place.read(0, 0, 1)
    assert len(far_dataset.settle(folder)) >= 3
    assert far_dataset.files_in(tmp_path / "cache") == {}

    faults.clear()
    assert place.read(0, 0, far_dataset.WHOLE) == far_dataset.content_of(folder, 0)


def test_fault_that_passes_delays_a_download(tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    place = far_dataset.open_place(folder, tmp_path / "cache")
    far.faults[far_dataset.name_of(0)] = [ConnectionError("reset"), RuntimeError("503"), TimeoutError("slow")]
    assert place.read(0, 0, far_dataset.WHOLE) == far_dataset.content_of(folder, 0)
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
        far_dataset.open_place(folder, tmp_path / "cache").read(0, 0, 1)
    assert far_dataset.settle(folder) == [0]


def test_catalog_that_cannot_be_reached_is_an_error_with_that_of_the_client(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem], short_budget: None
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    far.faults["catalog.json"] = [RuntimeError("gone\nfor long")] * 1000
    uri = f"far://{folder}/catalog.json"
    complaint = f"{uri}: RuntimeError: gone\nfor long (tried for 0.05 s): check the address, and that it can be reached"
    with pytest.raises(errors.CatalogError, match=re.escape(complaint)):
        far_dataset.open_source(folder, tmp_path / "cache")
    far.faults["catalog.json"] = [RuntimeError("503"), TimeoutError("slow")]
    assert far_dataset.open_source(folder, tmp_path / "cache").load_catalog().name == "noise"


def test_shards_that_cannot_be_listed_for_a_fault_are_an_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, short_budget: None
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    source = far_dataset.open_source(folder, tmp_path / "cache")

    def fail(self: Any, path: str, **_: Any) -> None:
        raise ConnectionError("reset")

    monkeypatch.setattr(far_dataset.FarFileSystem, "ls", fail)
    complaint = f"the shards of far://{folder} cannot be listed (far://{folder}: ConnectionError: reset (tried for 0.05"
    with pytest.raises(errors.ShardError, match=re.escape(complaint)):
        source.check_shards(source.load_catalog())


def test_storage_options_reach_the_storage_also_of_a_pickled_source(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    source = far_dataset.open_source(folder, tmp_path / "cache", storage_options={"token": "t"})
    for each in (source, pickle.loads(pickle.dumps(source))):
        filesystem = each._remote.store.filesystem(f"far://{folder}")
        assert filesystem.storage_options["token"] == "t"


def test_address_of_no_known_scheme_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.ConfigError, match=r"address 'nope://b/x': scheme 'nope' is not known; write a path, or"):
        cached_source.CachedSource("nope://b/x", str(tmp_path / "cache"), far_dataset.UNBOUNDED)


def test_address_of_hdfs_without_a_port_is_refused(tmp_path: pathlib.Path) -> None:
    source = cached_source.CachedSource("hdfs://b/x", str(tmp_path / "cache"), far_dataset.UNBOUNDED)
    with pytest.raises(errors.ConfigError, match=r"'hdfs://b/x/catalog.json' .* write hdfs://NAMENODE:9870/FOLDER"):
        source.load_catalog()


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
def test_files_of_removed_shards_are_closed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
