"""Open files: their number is bounded, and they are closed with their dataset."""

from __future__ import annotations

import gc
import os
import pathlib
import resource
import threading
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam.reader import shard_files
from tests import datasets, image_sets, patience
from tests.unit.imagebeam.reader import far_dataset, written
from tests.unit.imagebeam.reader.feeding import finish, start

NUM_SHARDS = 300
LIMIT = 1024

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="/proc/self/fd lists open files")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """300 shards of an example each."""
    folder = tmp_path_factory.mktemp("descriptors") / "out"
    values = written.jpeg_values(0)
    examples = [{**values, "image/key": f"{index}".encode()} for index in range(NUM_SHARDS)]
    written.write(folder, written.IMAGE, examples, num_shards=NUM_SHARDS)
    return folder


@pytest.fixture
def gzip_shards(tmp_path: pathlib.Path) -> pathlib.Path:
    image_sets.write_folder(tmp_path / "in", ("cat", "dog"), 10)
    datasets.make(tmp_path / "in", tmp_path / "out", output={"num_shards": 10, "compression": "gzip"})
    return tmp_path / "out"


def _open_many_times(directory: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    kept = []
    for _ in range(6):
        dataset = imagebeam.open_dataset(directory)
        source = dataset.as_grain("train", decode=False)
        keys = {source[index]["image/key"] for index in range(len(source))}
        assert len(keys) == NUM_SHARDS
        kept.append((dataset, source))
    print(len(far_dataset.opened_in(pathlib.Path(directory))))


@needs_proc
def test_many_datasets_of_many_shards_are_open_under_the_usual_limit(shards: pathlib.Path) -> None:
    assert 0 < finish(start(_open_many_times, str(shards))) <= LIMIT // 4


def _open_under_a_low_limit(directory: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    source = imagebeam.open_dataset(directory).as_grain("train", decode=False)
    for index in range(len(source)):
        source[index]
    print(len(far_dataset.opened_in(pathlib.Path(directory))))


@needs_proc
def test_files_take_a_quarter_of_what_the_process_may_open(shards: pathlib.Path) -> None:
    assert finish(start(_open_under_a_low_limit, str(shards))) == 25


@needs_proc
@pytest.mark.parametrize("feed", ["as_grain", "as_numpy", "find_ints"])
def test_files_are_closed_with_their_dataset(shards: pathlib.Path, feed: str) -> None:
    gc.freeze()  # collecting then looks only at what this test makes
    dataset = imagebeam.open_dataset(str(shards))
    feeds: Any
    if feed == "as_grain":
        feeds = dataset.as_grain("train[:20]", decode=False)
        assert [feeds[index]["image/key"] for index in range(2)] == [b"0", b"1"]
    elif feed == "as_numpy":
        pytest.importorskip("tensorflow")
        feeds = dataset.as_numpy("train[:20]", 4, image_size=16, num_epochs=1)
        assert len(list(feeds)) == 5
    else:
        feeds = far_dataset.open_reader(dataset._source)
        assert len(list(feeds.find_ints("image/width", np.zeros(0, np.int64)))) == NUM_SHARDS
    assert far_dataset.opened_in(shards)
    del dataset, feeds
    gc.collect()
    patience.wait_until(lambda: far_dataset.opened_in(shards) == [])  # TensorFlow's iterators are freed on a thread


@needs_proc
def test_compressed_shards_close_with_their_dataset(gzip_shards: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorflow")
    gc.freeze()
    monkeypatch.setattr(shard_files, "_MAX_OPEN", 4)
    dataset = imagebeam.open_dataset(str(gzip_shards))
    batches = dataset.as_numpy("train", 2, image_size=16, num_epochs=1, features=("image/key",))
    assert len({key for batch in batches for key in batch["image/key"]}) == 20
    assert 0 < len(far_dataset.opened_in(gzip_shards)) <= 4
    del dataset, batches
    gc.collect()
    patience.wait_until(lambda: far_dataset.opened_in(gzip_shards) == [])


@needs_proc
def test_descriptor_is_open_while_a_thread_reads_from_it(shards: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_files, "_MAX_OPEN", 1)  # every read closes the file of another
    source = imagebeam.open_dataset(str(shards)).as_grain("train[:8]", decode=False)
    wrong = []

    def read(index: int) -> None:
        wrong.extend(each for _ in range(300) if (each := source[index]["image/key"]) != f"{index}".encode())

    threads = [threading.Thread(target=read, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(far_dataset.opened_in(shards)) <= 1
