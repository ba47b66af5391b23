"""Datasets at gs://, read through TensorFlow's own file system and through the cache, from an emulator of the storage.

The reader runs in processes of its own: TensorFlow must get the address of the emulator before its first request.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import imagebeam
from tests import datasets, image_sets
from tests.servers import gcs

pytestmark = pytest.mark.integration

BATCH_SIZE, NUM_SHARDS = 8, 3
FIRST = "train-00000-of-00003.tfrecord"
Process = Callable[..., Any]
Batches = list[dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Datasets:
    """The same dataset on the local disk and at gs://."""

    emulator: gcs.Emulator
    bucket: Any
    images: pathlib.Path
    local: pathlib.Path
    uri: str

    def copy(self, name: str) -> str:
        """Uploads another copy, which a test may change; returns its address."""
        gcs.upload(self.local, self.bucket, name)
        return f"gs://{self.bucket.name}/{name}"


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Datasets]:
    folder = tmp_path_factory.mktemp("gcs")
    image_sets.write_folder(folder / "in", per_label=30)
    datasets.make(folder / "in", folder / "pets", output={"num_shards": NUM_SHARDS})
    with gcs.run(folder) as emulator:
        bucket = emulator.bucket("bucket")
        gcs.upload(folder / "pets", bucket, "pets")
        yield Datasets(emulator, bucket, folder / "in", folder / "pets", "gs://bucket/pets")


@pytest.fixture(scope="module")
def process(pets: Datasets) -> Iterator[Process]:
    """A process that reads, shared by the tests."""
    with pets.emulator.process() as call:
        yield call


# --- functions that run in that process


def read(uri: str, shuffle: str | None, cache_dir: str | None = None, num_epochs: int = 1) -> Batches:
    """Returns the batches of "train"."""
    dataset = imagebeam.open_dataset(uri, cache_dir=cache_dir, storage_options={"token": "anon"} if cache_dir else None)
    batches = dataset.as_numpy(
        "train",
        BATCH_SIZE,
        image_size=16,
        shuffle=shuffle,
        shuffle_records=16,
        seed=3,
        num_epochs=num_epochs,
        features=["image/key"],
        drop_remainder=False,
    )
    return list(batches)


def read_part(uri: str) -> Batches:
    """Reads one of three processes' part."""
    dataset = imagebeam.open_dataset(uri, storage_options={"token": "google_default"})
    asked = {"shuffle": "global", "process_index": 1, "process_count": 3, "num_epochs": 1, "drop_remainder": False}
    return list(dataset.as_numpy("train", BATCH_SIZE, image_size=16, **asked))


def read_late(uri: str, shard: str) -> Batches:
    """Opens the dataset, removes a shard, and reads."""
    import tensorflow as tf

    dataset = imagebeam.open_dataset(uri)
    tf.io.gfile.remove(f"{uri}/{shard}")
    return list(dataset.as_numpy("train", BATCH_SIZE, image_size=16, shuffle=None, num_epochs=1))


def open_dataset(uri: str) -> Mapping[str, int]:
    """Returns the number of examples in each split."""
    dataset = imagebeam.open_dataset(uri)
    return {name: dataset.num_examples(name) for name in dataset.splits}


def index_shards(uri: str) -> str:
    """Indexes the shards in a folder; returns what became of that."""
    return imagebeam.index(uri, workers=2).state


def read_records(uris: list[str]) -> list[bytes]:
    """Returns the records of shards, read by TensorFlow alone."""
    import tensorflow as tf

    return list(tf.data.TFRecordDataset(uris).as_numpy_iterator())


# --- checks


def keys_of(batches: Batches) -> list[str]:
    return [key.decode() for batch in batches for key in batch["image/key"].tolist()]


def assert_same(batches: Batches, expected: Batches) -> None:
    assert len(batches) == len(expected)
    for one, other in zip(batches, expected):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def downloads(requests: list[str], folder: str = "") -> list[str]:
    """Returns the names of the files whose bytes were requested, of all folders or of one."""
    marks = ("/bucket/", "/download/storage/v1/b/bucket/o/", "/storage/v1/b/bucket/o/")
    names = []
    for method, _, address, *_ in map(str.split, requests):
        if method == "GET" and ("alt=media" in address or address.startswith("/bucket/")):
            path = address.partition("?")[0].replace("%2F", "/")
            name = next(path.removeprefix(mark) for mark in marks if path.startswith(mark))
            if name.startswith(folder):  # an earlier test may still fetch ahead from another one
                names.append(name.split("/")[-1])
    return names


def bytes_of_shards(requests: list[str]) -> int:
    """Returns the bytes of shards that were requested."""
    ranges = [line.split("bytes=")[1].split("-") for line in requests if ".tfrecord" in line and "bytes=" in line]
    return sum(int(last) + 1 - int(first) for first, last in ranges)


def test_catalog_at_gs_is_read_and_the_shards_are_listed(pets: Datasets, process: Process) -> None:
    before = len(pets.emulator.requests())
    assert process(open_dataset, pets.uri) == {"train": 60}
    requests = pets.emulator.requests()[before:]
    assert downloads(requests) == ["catalog.json"]
    assert not [line for line in requests if ".tfrecord" in line]


@pytest.mark.parametrize("shuffle", ["stream", "global", None])
def test_dataset_at_gs_gives_the_batches_of_a_local_one(shuffle: str | None, pets: Datasets, process: Process) -> None:
    before = len(pets.emulator.requests())
    batches = process(read, pets.uri, shuffle, None, 2)
    read_once = sum(path.stat().st_size for path in pets.local.glob("*.tfrecord"))
    assert 0 < bytes_of_shards(pets.emulator.requests()[before:]) <= 1.0 * read_once  # it is small: kept in memory
    keys = keys_of(batches)
    expected = sorted(datasets.keys(pets.local))
    assert len(expected) == 60
    assert sorted(keys[:60]) == sorted(keys[60:]) == expected
    assert (keys[:60] == keys[60:]) == (shuffle is None)
    assert_same(batches, process(read, str(pets.local), shuffle, None, 2))


def test_process_of_a_global_order_at_gs_requests_the_bytes_of_its_records(pets: Datasets, process: Process) -> None:
    before = len(pets.emulator.requests())
    batches = process(read_part, pets.uri)
    requests = pets.emulator.requests()[before:]
    assert sum(len(batch["image"]) for batch in batches) == 20
    read_once = sum(path.stat().st_size for path in pets.local.glob("*.tfrecord"))
    assert 0 < bytes_of_shards(requests) <= 1.2 * read_once / 3
    assert len([name for name in downloads(requests) if name.endswith(".index")]) == NUM_SHARDS  # each once


def test_shard_at_gs_is_read_by_tensorflow_alone(pets: Datasets, process: Process) -> None:
    shards = [f"train-{index:05d}-of-{NUM_SHARDS:05d}.tfrecord" for index in range(NUM_SHARDS)]
    records = process(read_records, [f"{pets.uri}/{shard}" for shard in shards])
    assert records == process(read_records, [str(pets.local / shard) for shard in shards])
    assert len(records) == 60


@pytest.mark.parametrize("address", ["gs://bucket/nothing", "gs://no-such-bucket/pets"], ids=["folder", "bucket"])
def test_address_without_a_catalog_is_refused(address: str, process: Process, tmp_path: pathlib.Path) -> None:
    for call in ((open_dataset, address), (read, address, None, str(tmp_path))):
        with pytest.raises(imagebeam.CatalogError, match=rf"^{address} holds no catalog\.json"):
            process(*call)


INDEX = f"index/{FIRST.replace('.tfrecord', '.index')}"
Damage = tuple[str, Callable[[bytes], bytes | None], bool, str]  # file, its change, over the cache, error


def flip(data: bytes) -> bytes:
    return data[:100] + bytes([data[100] ^ 1]) + data[101:]


DAMAGED: dict[str, Damage] = {
    "missing": (FIRST, lambda data: None, False, "shard {uri}/{file} is missing \\(there is no {uri}/{file}\\)"),
    "short": (FIRST, lambda data: data[:-1], False, "shard {uri}/{file} has .* bytes, the catalog says .*: it was cut"),
    "unindexed": (INDEX, lambda data: None, False, "index {uri}/{file} cannot be read .*: run imagebeam verify {uri}"),
    "missing-too": (FIRST, lambda data: None, True, "shard {uri}/{file} is missing \\("),
    "changed": (FIRST, flip, True, "shard {uri}/{file} comes as .* the catalog says"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_file_at_gs_is_named(pets: Datasets, process: Process, tmp_path: pathlib.Path, name: str) -> None:
    file, change, is_cached, message = DAMAGED[name]
    uri, blob = pets.copy(name), pets.bucket.blob(f"{name}/{file}")
    data = change((pets.local / file).read_bytes())
    if data is None:
        blob.delete()
    else:
        blob.upload_from_string(data)
    with pytest.raises(imagebeam.ShardError, match="^" + message.format(uri=uri, file=file)):
        process(read, uri, "stream", str(tmp_path) if is_cached else None)
    assert not list(tmp_path.glob(f"imagebeam-*/{FIRST}"))


def test_shard_that_goes_from_gs_while_it_is_read_is_named(pets: Datasets, process: Process) -> None:
    uri = pets.copy("vanishing")
    expected = rf"^record 0 of shard {uri}/{FIRST}, byte offset 0: there is no {uri}/{FIRST}"
    with pytest.raises(imagebeam.ExampleError, match=expected):
        process(read_late, uri, FIRST)


@pytest.mark.parametrize("shuffle", ["stream", "global"])
def test_cache_downloads_each_shard_of_gs_once_and_nothing_the_next_time(
    shuffle: str, pets: Datasets, process: Process, tmp_path: pathlib.Path
) -> None:
    expected = process(read, str(pets.local), shuffle, None, 2)
    before, folder = len(pets.emulator.requests()), pets.uri.removeprefix("gs://bucket/") + "/"
    assert_same(process(read, pets.uri, shuffle, str(tmp_path), 2), expected)
    names = downloads(pets.emulator.requests()[before:], folder)
    kept = {path.name for path in pets.local.rglob("*") if path.suffix in (".tfrecord", ".index")}
    assert len(kept) == 2 * NUM_SHARDS
    assert sorted(name for name in names if name != "catalog.json" and name != "statistics.json") == sorted(kept)

    before = len(pets.emulator.requests())
    with pets.emulator.process() as another:
        assert_same(another(read, pets.uri, shuffle, str(tmp_path), 2), expected)
    assert set(downloads(pets.emulator.requests()[before:], folder)) == {"catalog.json", "statistics.json"}


def test_shards_without_a_catalog_are_indexed_in_the_bucket(pets: Datasets, process: Process) -> None:
    for path in pets.local.glob("*.tfrecord"):
        pets.bucket.blob(f"foreign/{path.name}").upload_from_filename(path)
    uri = "gs://bucket/foreign"
    with pets.emulator.process() as without_tensorflow:
        assert without_tensorflow(index_shards, uri) == "committed"
        assert without_tensorflow(index_shards, uri) == "kept"
    names = sorted(blob.name.removeprefix("foreign/") for blob in pets.bucket.list_blobs(prefix="foreign/"))
    shards = sorted(path.name for path in pets.local.glob("*.tfrecord"))
    beside = [f"index/{name.removesuffix('.tfrecord')}.{of}" for name in shards for of in ("index", "sizes")]
    assert names == sorted([*shards, *beside, "catalog.json", "index/scans.json.gz", "statistics.json"])
    assert_same(process(read, uri, None), process(read, pets.uri, None))
