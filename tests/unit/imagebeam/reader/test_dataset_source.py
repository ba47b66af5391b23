"""Datasets on a local disk, at an address and in a cache: how each is opened, and the same records from all."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pathlib
import pickle
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import errors, records
from imagebeam.reader import dataset_source, record_selection, shard_files
from tests import error_texts, patience, written_files
from tests.unit.imagebeam.reader import far_dataset, restarts

Far = type[far_dataset.FarFileSystem]

pytestmark = pytest.mark.usefixtures("far")
NUM_SHARDS, NUM_RECORDS, NUM_BYTES = 4, 3, 1000
PLACES = ("local", "in place", "cache", "small cache")


@pytest.fixture(scope="module", params=["none", "gzip"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("sets") / "set"
    return far_dataset.write_dataset(path, NUM_SHARDS, NUM_RECORDS, NUM_BYTES, request.param)


def open_source(place: str, folder: pathlib.Path, cache_dir: pathlib.Path) -> dataset_source.DatasetSource:
    if place == "local":
        return dataset_source.DatasetSource(str(folder))
    cache = {"in place": {}, "cache": {"cache_dir": str(cache_dir)}}.get(
        place, {"cache_dir": str(cache_dir), "cache_bytes": 2 * far_dataset.shards_of(folder)[0].bytes}
    )
    return dataset_source.DatasetSource(f"far://{folder}", **cache)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", PLACES)
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=st.lists(st.integers(0, NUM_SHARDS * NUM_RECORDS - 1), max_size=20), window=st.sampled_from([None, 2]))
def test_records_are_yielded_in_any_order_also_by_a_pickled_reader_and_in_another_epoch(
    place: str, folder: pathlib.Path, tmp_path: pathlib.Path, wanted: list[int], window: int | None
) -> None:
    if window is None and "gzip" in (folder / "catalog.json").read_text():
        window = 1
    stored = far_dataset.stored_in(folder)
    reader = far_dataset.open_reader(open_source(place, folder, tmp_path / "cache"), window_blocks=window)
    for each in (reader, pickle.loads(pickle.dumps(reader))):
        assert far_dataset.fetch(each, wanted) == [stored[record] for record in wanted]
        assert far_dataset.fetch(each, wanted[:3], epoch=1) == [stored[record] for record in wanted[:3]]


@pytest.mark.parametrize("place", PLACES)
def test_record_with_a_flipped_bit_is_a_trouble_with_its_place(place: str, tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", NUM_SHARDS, NUM_RECORDS, NUM_BYTES)
    stored = far_dataset.stored_in(folder)
    path = folder / far_dataset.name_of(1)
    size = NUM_BYTES + records.HEADER_BYTES + records.FOOTER_BYTES
    content = written_files.flip(path, size + records.HEADER_BYTES)
    fields = catalog_lib.load_catalog(str(folder))
    shards = tuple(
        dataclasses.replace(shard, crc32c=records.extend_crc(0, content)) if shard.name == path.name else shard
        for shard in fields.splits["train"].shards
    )
    fields.splits["train"] = catalog_lib.Split(shards)  # type: ignore[index]
    (folder / "catalog.json").write_text(fields.to_json())
    source = open_source(place, folder, tmp_path / "cache")
    reader = far_dataset.open_reader(source)
    before, broken, after = far_dataset.fetch(reader, [3, 4, 5])
    assert [before, after] == [stored[3], stored[5]]
    assert isinstance(broken, shard_files.RecordFault)
    uri = f"{source.directory}/{path.name}"
    assert (broken.shard, broken.index, broken.offset, broken.key) == (uri, 1, size, "")
    detail = f"the checksum of a record of {NUM_BYTES} bytes does not match"
    assert str(broken) == f"record 1 of shard {uri}, byte offset {size}: {detail}"
    assert reader.fault(4, detail) == broken


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("offsets", "code"), [([0, 1016, 2032], "index-wrong-count"), ([0, 1016, 1010, 3048], "index-damaged")]
)
def test_wrong_index_is_named(place: str, offsets: list[int], code: str, tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    index = far_dataset.shards_of(folder)[0].index_name
    (folder / index).write_bytes(np.array(offsets, "<u8").tobytes())
    source = open_source(place, folder, tmp_path / "cache")
    reader = far_dataset.open_reader(source)
    for _ in range(2):
        with error_texts.raises(code):
            far_dataset.fetch(reader, [0, 11])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("change", "code"),
    [(os.unlink, "shard-missing"), (lambda path: os.truncate(path, 1000), "shard-differs")],
    ids=["missing", "cut"],
)
def test_shard_that_is_not_whole_is_an_error_when_the_dataset_is_opened(
    place: str, change: Callable[[pathlib.Path], None], code: str, tmp_path: pathlib.Path
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    change(folder / far_dataset.name_of(1))
    source = open_source(place, folder, tmp_path / "cache")
    with error_texts.raises(code):
        source.check_shards(source.load_catalog())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda data: data[:-100], "the gzip stream is cut short at byte offset"),
        (lambda data: data[:500] + b"?" + data[501:], "cannot be read: the "),
    ],
    ids=["cut", "broken"],
)
def test_compressed_shard_that_is_damaged_is_named_where_it_is_read(
    change: Callable[[bytes], bytes], complaint: str, tmp_path: pathlib.Path
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", compression="gzip", num_bytes=5000)
    path = folder / far_dataset.name_of(1)
    path.write_bytes(change(path.read_bytes()))
    reader = far_dataset.open_reader(dataset_source.DatasetSource(str(folder)))
    with pytest.raises(errors.ShardError, match=f"^shard {path} .*{complaint}"):
        far_dataset.fetch(reader, range(6))


@pytest.mark.parametrize("stated", [2, 4])
def test_compressed_shard_with_another_number_of_records_is_refused(stated: int, tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=1, compression="gzip")
    catalog = catalog_lib.load_catalog(str(folder))
    [shard] = catalog.splits["train"].shards
    catalog.splits["train"] = catalog_lib.Split((dataclasses.replace(shard, records=stated),))  # type: ignore[index]
    (folder / "catalog.json").write_text(catalog.to_json())
    reader = far_dataset.open_reader(dataset_source.DatasetSource(str(folder)))
    with error_texts.raises("shard-wrong-count"):
        far_dataset.fetch(reader, range(stated))


def test_missing_index_is_named(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    (folder / far_dataset.shards_of(folder)[0].index_name).unlink()
    with error_texts.raises("index-unreadable"):
        far_dataset.fetch(far_dataset.open_reader(dataset_source.DatasetSource(str(folder))), [0])


@pytest.mark.parametrize(
    ("address", "options", "code"),
    [
        ("{folder}", {"storage_options": {"tokn": 1}}, "storage-options-unknown"),
        ("gs://b/x", {"storage_options": {"anon": True}}, "storage-options-unknown"),
        ("gs://b/x", {"storage_options": {"anon": 1}, "cache_dir": "{folder}/c"}, "storage-options-unknown"),
        ("memory://x", {"cache_dir": "gs://b/c"}, "option-bad-value"),
        ("nope://b/x", {}, "address-unknown-scheme"),
        ("hdfs://b/x", {}, "address-no-namenode"),
    ],
)
def test_address_and_options_that_do_not_fit_are_refused(
    address: str, options: dict[str, Any], code: str, folder: pathlib.Path
) -> None:
    given = {name: each.format(folder=folder) if isinstance(each, str) else each for name, each in options.items()}
    with error_texts.raises(code):
        imagebeam.open_dataset(address.format(folder=folder), **given)


@pytest.mark.parametrize("with_cache", [False, True])
def test_storage_options_reach_a_pickled_source(with_cache: bool, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    cache_dir = str(tmp_path / "cache") if with_cache else None
    source = dataset_source.DatasetSource(f"far://{folder}", cache_dir, storage_options={"token": "t"})
    source.load_catalog()
    for each in (source, pickle.loads(pickle.dumps(source))):
        assert each.store.filesystem(f"far://{folder}").storage_options["token"] == "t"


def test_cache_that_is_too_small_says_how_large_it_must_be_and_reads_in_place(
    folder: pathlib.Path, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = len(far_dataset.settle(folder))
    reader = far_dataset.open_reader(open_source("small cache", folder, tmp_path / "cache"))
    assert far_dataset.fetch(reader, range(12)) == far_dataset.stored_in(folder)
    assert len(far_dataset.settle(folder)) == before
    total = sum(shard.bytes for shard in far_dataset.shards_of(folder))
    assert f"they are read at their address in every epoch, and not kept; give cache_bytes={total}" in caplog.text


def test_part_of_compressed_shards_says_how_much_is_decompressed_for_nothing(
    folder: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = imagebeam.open_dataset(folder)
    sizes = [shard.records for shard in far_dataset.shards_of(folder)]
    reads = far_dataset.reads_of(sizes)
    dataset._source.open_reader(dataset.catalog, ("train",), reads)
    assert caplog.text == ""
    part = record_selection.Reads(restarts.select_all(sizes).share_of(2, 5), 1, 1)
    dataset._source.open_reader(dataset.catalog, ("train",), part)
    is_compressed = dataset.catalog.compression != "none"
    assert ("times the records that this process reads are decompressed in an epoch" in caplog.text) == is_compressed


# Through the cache


def test_restart_downloads_nothing(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    expected = far_dataset.fetch_all(f"far://{folder}", tmp_path / "cache")
    assert sorted(far_dataset.settle(folder)) == [0, 1, 2, 3]
    assert far_dataset.fetch_all(f"far://{folder}", tmp_path / "cache") == expected
    assert len(far_dataset.settle(folder)) == 4
    assert len([name for name in far_dataset.log_of(folder, "cat") if name.endswith(".index")]) == 4
    assert sorted(far_dataset.files_in(tmp_path / "cache")) == sorted(
        path.name for path in folder.rglob("train-*") if path.is_file()
    )


def test_content_that_was_replaced_is_not_read_from_the_cache(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    before = far_dataset.fetch_all(f"far://{folder}", tmp_path / "cache")
    shutil.rmtree(folder)
    far_dataset.write_dataset(folder, num_bytes=1001)  # of the same fingerprint
    after = far_dataset.fetch_all(f"far://{folder}", tmp_path / "cache")
    assert [len(each) for each in before + after] == [1000] * 12 + [1001] * 12  # type: ignore[arg-type]


def _read_in_fork(files: Any, content: bytes) -> None:
    assert files.open(3).read(0, far_dataset.WHOLE) == content
    os._exit(42)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_reads_what_its_parent_is_downloading(tmp_path: pathlib.Path, far: Far) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    files = far_dataset.open_files(folder, tmp_path / "cache", ahead=[3])
    files.open(0)
    far.wait_sec = 0.5
    files = far_dataset.open_files(folder, tmp_path / "cache", ahead=[3])
    files.open(0)
    patience.wait_until(lambda: 3 in far_dataset.downloads_of(folder))
    content = far_dataset.content_of(folder, 3)
    process = multiprocessing.get_context("fork").Process(target=_read_in_fork, args=(files, content))
    process.start()
    process.join(patience.HANG_SEC)
    assert process.exitcode == 42
    assert files.open(3).read(0, far_dataset.WHOLE) == content
    assert sorted(far_dataset.settle(folder)) == [0, 3]


# The files at the address


def test_shards_are_checked_with_one_listing(tmp_path: pathlib.Path, far: Far) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set", num_shards=40)
    imagebeam.open_dataset(f"far://{folder}", cache_dir=str(tmp_path / "cache"))
    assert (far_dataset.log_of(folder, "ls"), far_dataset.log_of(folder, "info")) == (["set"], [])
    assert far_dataset.files_in(tmp_path / "cache") == {}
    far.can_list = False
    imagebeam.open_dataset(f"far://{folder}")
    assert sorted(far_dataset.log_of(folder, "info")) == sorted(path.name for path in folder.glob("*-of-*"))


def test_storage_that_does_not_answer_is_an_error_with_that_of_the_client(
    tmp_path: pathlib.Path, far: Far, short_budget: None
) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    far.faults["catalog.json"] = [RuntimeError("gone\nfor long")] * 1000
    with error_texts.raises("dataset-unreadable"):
        imagebeam.open_dataset(f"far://{folder}")
    far.faults["catalog.json"] = [RuntimeError("503"), TimeoutError("slow")]
    assert imagebeam.open_dataset(f"far://{folder}").catalog.name == "noise"


def test_record_that_a_storage_refuses_is_a_trouble_once(tmp_path: pathlib.Path, far: Far, short_budget: None) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    reader = far_dataset.open_reader(dataset_source.DatasetSource(f"far://{folder}"))
    faults = far.faults[far_dataset.name_of(0)] = [TimeoutError("slow")] * 10000
    [found] = far_dataset.fetch(reader, [1])
    assert "TimeoutError: slow (tried for 0.05 s)" in str(found) and "record 1 of shard far://" in str(found)
    faults.clear()
    assert far_dataset.fetch(reader, [1]) == [far_dataset.stored_in(folder)[1]]


def test_shard_name_with_a_path_is_refused(tmp_path: pathlib.Path) -> None:
    folder = far_dataset.write_dataset(tmp_path / "set")
    catalog = catalog_lib.load_catalog(str(folder))
    catalog.splits["train"] = catalog_lib.Split((catalog_lib.Shard("../../evil", 1, 1, 1),))  # type: ignore[index]
    (folder / "catalog.json").write_text(catalog.to_json())
    with error_texts.raises("catalog-bad-shard-name"):
        imagebeam.open_dataset(f"far://{folder}", cache_dir=tmp_path / "cache")
