from __future__ import annotations

import errno
import multiprocessing
import os
import pathlib
import pickle
import re
import shutil
from collections.abc import Callable
from typing import Any

import fsspec
import fsspec.core
import numpy as np
import pytest

from imagebeam import catalog as catalog_lib
from imagebeam import dataset as dataset_lib
from imagebeam import errors, storage
from imagebeam.reader.shard_cache import cached_source
from imagebeam.storage import remote
from tests import patience
from tests.unit.imagebeam.reader import far_dataset

pytestmark = pytest.mark.usefixtures("far")


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_dataset_read_through_the_cache_has_the_bytes_of_the_local_one(
    tmp_path: pathlib.Path, compression: str
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", compression=compression)
    memory = fsspec.filesystem("memory")
    memory.rm("/", recursive=True) if memory.ls("/") else None
    memory.put(str(folder), "/here", recursive=True)

    local = dataset_lib.open_dataset(str(folder))
    cached = dataset_lib.open_dataset("memory://here", cache_dir=str(tmp_path / "cache"))

    assert cached.catalog == local.catalog
    for split in ("train", "test"):
        expected, found = (
            list(each._source.fetcher(each.catalog, split).fetch(np.arange(each.num_examples(split))))
            for each in (local, cached)
        )
        assert found == expected
        assert all(isinstance(each, bytes) for each in found)


def test_read_returns_less_at_the_end_of_the_shard(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    place = far_dataset.open_place(folder, tmp_path / "cache")
    content = far_dataset.content_of(folder, 2)

    assert place.read(2, 0, len(content)) == content
    assert place.read(2, 100, 200) == content[100:200]
    assert place.read(2, len(content) - 5, len(content) + 5) == content[-5:]


def test_two_open_files_of_a_shard_have_their_own_positions(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", compression="gzip")
    source = far_dataset.open_source(folder, tmp_path / "cache")
    with (
        source.files(far_dataset.shards_of(folder)).open(1) as first,
        source.files(far_dataset.shards_of(folder)).open(1) as second,
    ):
        assert first.read(10) == far_dataset.content_of(folder, 1)[:10]
        assert second.read() == far_dataset.content_of(folder, 1)
        assert first.read() == far_dataset.content_of(folder, 1)[10:]
    assert far_dataset.settle(folder) == [1]


def test_restart_downloads_nothing(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    expected = far_dataset.fetch_all(far_dataset.open_source(folder, tmp_path / "cache"))
    assert sorted(far_dataset.settle(folder)) == [0, 1, 2, 3]
    assert len(far_dataset.log_of(folder, "cat")) == 2 + 4  # the catalog twice, each index once

    assert far_dataset.fetch_all(far_dataset.open_source(folder, tmp_path / "cache")) == expected

    assert len(far_dataset.settle(folder)) == 4
    assert len([name for name in far_dataset.log_of(folder, "cat") if name.endswith(".index")]) == 4
    assert sorted(far_dataset.files_in(tmp_path / "cache")) == sorted(
        path.name for path in folder.rglob("train-*") if path.is_file()
    )


def test_content_that_was_replaced_is_not_read_from_the_cache(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    before = far_dataset.fetch_all(far_dataset.open_source(folder, tmp_path / "cache"))
    shutil.rmtree(folder)
    far_dataset.write_dataset(folder, num_bytes=1001)  # of the same fingerprint

    after = far_dataset.fetch_all(far_dataset.open_source(folder, tmp_path / "cache"))

    assert [len(each) for each in before + after] == [1000] * 12 + [1001] * 12


def test_pickled_fetcher_reads_on(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    source = far_dataset.open_source(folder, tmp_path / "cache")
    expected = far_dataset.fetch_all(source)
    fetcher = pickle.loads(pickle.dumps(source.fetcher(source.load_catalog(), "train")))

    assert list(fetcher.fetch(np.arange(12))) == expected


def _read_in_fork(place: Any, content: bytes) -> None:
    assert place.read(3, 0, far_dataset.WHOLE) == content
    os._exit(42)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_process_reads_what_its_parent_is_downloading(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    far.wait_sec = 0.5
    place = far_dataset.open_place(folder, tmp_path / "cache")
    place.announce(3, 0, 1)
    patience.wait_until(lambda: far_dataset.downloads_of(folder) == [3])
    content = far_dataset.content_of(folder, 3)
    process = multiprocessing.get_context("fork").Process(target=_read_in_fork, args=(place, content))
    process.start()
    process.join(patience.HANG_SEC)

    assert process.exitcode == 42
    assert place.read(3, 0, far_dataset.WHOLE) == content
    assert far_dataset.settle(folder) == [3]


# The files at the address


def test_shards_are_checked_with_one_listing(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=40)
    dataset_lib.open_dataset(f"far://{folder}", cache_dir=str(tmp_path / "cache"))

    assert far_dataset.log_of(folder, "ls") == ["set"]
    assert far_dataset.log_of(folder, "info") == []
    assert far_dataset.files_in(tmp_path / "cache") == {}


def test_sizes_are_requested_one_by_one_if_the_storage_cannot_list(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    far.can_list = False
    dataset_lib.open_dataset(f"far://{folder}", cache_dir=str(tmp_path / "cache"))

    assert sorted(far_dataset.log_of(folder, "info")) == sorted(path.name for path in folder.glob("*-of-*"))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (os.unlink, r"is missing \(.*\): run imagebeam verify, then convert again"),
        (lambda path: os.truncate(path, 1000), "has 1,000 bytes, the catalog says 3,048: it was cut short"),
    ],
    ids=["missing", "cut"],
)
def test_shard_that_is_not_whole_is_an_error_when_the_dataset_is_opened(
    tmp_path: pathlib.Path, change: Callable[[pathlib.Path], None], complaint: str
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    change(folder / far_dataset.name_of(1))
    with pytest.raises(errors.ShardError, match=f"shard far://{folder}/{far_dataset.name_of(1)} {complaint}"):
        dataset_lib.open_dataset(f"far://{folder}", cache_dir=str(tmp_path / "cache"))


def test_address_without_catalog_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(errors.CatalogError, match=f"far://{tmp_path}/set holds no catalog.json"):
        far_dataset.open_source(tmp_path / "set", tmp_path / "cache")


def test_shard_name_with_a_path_is_refused(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    catalog = catalog_lib.load_catalog(str(folder))
    catalog.splits["train"] = catalog_lib.Split((catalog_lib.Shard("../../evil", 1, 1, 1),))  # type: ignore[index]
    (folder / "catalog.json").write_text(catalog.to_json())
    complaint = f"far://{folder} names a shard '../../evil', which is not a plain file name; convert again"
    with pytest.raises(errors.CatalogError, match=re.escape(complaint)):
        far_dataset.open_source(folder, tmp_path / "cache")


def test_cache_folder_at_an_address_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match=re.escape("cache_dir is 'gs://b/c'; give a folder on a local disk")):
        cached_source.CachedSource("memory://x", "gs://b/c", far_dataset.UNBOUNDED)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_shard_larger_than_the_cache_is_an_error_before_any_is_read(tmp_path: pathlib.Path, compression: str) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", compression=compression)
    largest = max(far_dataset.shards_of(folder), key=lambda shard: shard.bytes)
    total = sum(shard.bytes for shard in far_dataset.shards_of(folder))
    bound = largest.bytes - 1
    source = far_dataset.open_source(folder, tmp_path / "cache", bound)
    complaint = (
        f"shard far://{folder}/{largest.name} has {largest.bytes:,} bytes, more than cache_bytes={bound:,}: "
        f"give at least as many, better those of the whole split, {total:,}"
    )
    with pytest.raises(errors.ConfigError, match=re.escape(complaint)):
        far_dataset.fetch_all(source)
    assert far_dataset.settle(folder) == []
    assert len(far_dataset.fetch_all(source, "test")) == 3


# Fetching ahead


def test_shards_of_one_fetch_are_downloaded_at_once(
    tmp_path: pathlib.Path, far: type[far_dataset.FarFileSystem]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    far.wait_sec = 0.2
    source = far_dataset.open_source(folder, tmp_path / "cache")
    fetcher = source.fetcher(source.load_catalog(), "train")
    assert len(next(fetcher.fetch(np.array([10, 1, 4])))) == 1000
    assert sorted(far_dataset.downloads_of(folder)) == [0, 1, 3]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([5], []),
        ([0, 1], [2, 3, 4, 5]),
        ([3, 11], [19]),
        ([17, 1, 13], [5, 9]),
        ([4, 8, 6], [10, 12, 14, 16]),
        ([0, 19, 7], [*range(1, 7), *range(8, 19)]),
        ([19, 18], []),
    ],
    ids=["one", "from-the-start", "every-eighth", "every-fourth", "every-second", "all", "backwards"],
)
def test_shards_that_certainly_belong_to_the_share_are_fetched_ahead(
    tmp_path: pathlib.Path, asked: list[int], expected: list[int]
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=20)
    place = far_dataset.open_place(folder, tmp_path / "cache")
    for shard in asked:
        place.read(shard, 0, 1)
    assert sorted(set(far_dataset.settle(folder)) - set(asked)) == expected
    assert len(far_dataset.settle(folder)) == len(set(far_dataset.settle(folder)))


def test_walk_through_more_than_fits_is_fetched_ahead_of(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=20)
    place = far_dataset.open_place(folder, tmp_path / "cache", 7 * 3048)
    for shard in range(8):
        place.read(shard, 0, 1)
        far_dataset.settle(folder)
    assert sorted(far_dataset.settle(folder)) == list(range(11))  # half of seven are three
    for shard in range(8, 20):
        place.read(shard, 0, 1)
        far_dataset.settle(folder)
    place.read(0, 0, 1)
    assert sorted(far_dataset.settle(folder))[:4] == [0, 0, 1, 1]  # the next epoch begins
    assert len(far_dataset.settle(folder)) == 23


def test_random_order_of_more_than_fits_is_not_fetched_ahead_of(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=20)
    place = far_dataset.open_place(folder, tmp_path / "cache", 7 * 3048)
    asked = [0, 19, 5, 12, 3, 9]
    for shard in asked:
        place.read(shard, 0, 1)
    assert far_dataset.settle(folder) == asked


def test_dataset_at_an_address_that_does_not_answer_is_given_up_with_a_small_budget(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[float] = []

    def give_up(store: remote.RemoteStorage, uri: str, *_: Any, **__: Any) -> bytes:
        budgets.append(remote._budget_sec.get())
        raise storage.UnavailableError(errno.EIO, f"{uri}: refused")

    monkeypatch.setattr(remote.RemoteStorage, "read", give_up)
    source = cached_source.CachedSource("memory://nowhere", str(tmp_path), 1 << 20)
    message = "^memory://nowhere/catalog.json: refused: check the address, and that it can be reached from here"
    with pytest.raises(errors.CatalogError, match=message):
        source.load_catalog()
    assert budgets == [cached_source._OPEN_BUDGET_SEC]
