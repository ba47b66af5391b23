"""Conversions from and to hdfs:// write what a local run writes, whatever happens on the way."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import imagebeam
from tests import command_line, datasets, patience
from tests.servers import faults, hdfs
from tests.stored import NUM_IMAGES, assert_same, write_images

pytestmark = pytest.mark.integration

NUM_SHARDS = 4


@dataclasses.dataclass(frozen=True)
class Stored:
    """The same images on the local disk and in HDFS, and the dataset of a local run."""

    cluster: hdfs.Cluster
    images: pathlib.Path
    expected: pathlib.Path

    def uri(self, path: str, port: int | None = None) -> str:
        return f"hdfs://beam@127.0.0.1:{port or self.cluster.port}/{path}"

    def download(self, path: str, folder: pathlib.Path) -> pathlib.Path:
        """Downloads a folder of HDFS into a new local one."""
        self.cluster.filesystem().get(f"/{path}", str(folder), recursive=True)
        return folder


def convert(source: str, output: str, *more: str) -> command_line.Completed:
    settings = ["--set", f"output.num_shards={NUM_SHARDS}", "--workers", "2", *more]
    return command_line.run("convert", "--input", source, "--output", output, *settings)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """NUM_IMAGES images of two classes, some of them with odd names."""
    folder = tmp_path_factory.mktemp("hdfs")
    write_images(folder / "in")
    datasets.make(folder / "in", folder / "out", output={"num_shards": NUM_SHARDS})
    (folder / "cluster").mkdir()
    with hdfs.run(folder / "cluster") as cluster:
        found = Stored(cluster, folder / "in", folder / "out")
        upload(cluster, folder / "in")
        yield found


def upload(cluster: hdfs.Cluster, folder: pathlib.Path) -> None:
    """Puts the images of a folder into /images, sixteen at a time."""
    from concurrent import futures

    filesystem = cluster.filesystem()

    def put(path: pathlib.Path) -> None:
        filesystem.pipe_file(f"/images/{path.relative_to(folder).as_posix()}", path.read_bytes())

    with futures.ThreadPoolExecutor(16) as threads:
        list(threads.map(put, [path for path in folder.rglob("*") if path.is_file()]))


@pytest.mark.slow
def test_images_are_read_and_shards_written_as_on_the_local_disk(stored: Stored, tmp_path: pathlib.Path) -> None:
    completed = convert(stored.uri("images"), stored.uri("out"))
    assert completed.returncode == 0, completed.stderr
    assert f"listed    {NUM_IMAGES} images" in completed.stdout
    assert_same(stored.download("out", tmp_path / "found"), stored.expected)
    assert not stored.cluster.filesystem().exists("/out/.imagebeam/lock")
    again = convert(stored.uri("images"), stored.uri("out"))
    assert (again.returncode, "holds this dataset already" in again.stdout) == (0, True), again.stderr
    completed = command_line.run("verify", stored.uri("out"))
    assert f"{NUM_IMAGES} records in 4 shards match the catalog" in completed.stdout, completed.stderr


def test_images_are_read_into_a_local_dataset(stored: Stored, tmp_path: pathlib.Path) -> None:
    completed = convert(stored.uri("images"), str(tmp_path / "out"))
    assert completed.returncode == 0, completed.stderr
    assert_same(tmp_path / "out", stored.expected)


def test_reader_takes_the_address_through_its_cache(stored: Stored, tmp_path: pathlib.Path) -> None:
    if not stored.cluster.filesystem().exists("/read/catalog.json"):
        assert convert(str(stored.images), stored.uri("read")).returncode == 0
    options: dict[str, Any] = {"image_size": 16, "num_epochs": 1, "shuffle": "global", "drop_remainder": False}
    far = imagebeam.open_dataset(stored.uri("read"), cache_dir=str(tmp_path)).as_numpy("train", 100, **options)
    near = imagebeam.open_dataset(str(stored.expected)).as_numpy("train", 100, **options)
    for one, other in zip(far, near, strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])


@pytest.mark.slow
def test_faults_change_nothing(stored: Stored, tmp_path: pathlib.Path) -> None:
    url = f"http://127.0.0.1:{stored.cluster.port}"
    with faults.FaultyProxy(url, seed=1, fraction=0.15, rewrite_hosts=True) as proxy:
        completed = convert(stored.uri("images", proxy.port), stored.uri("faulty", proxy.port))
        counts = dict(proxy.counts)
    assert completed.returncode == 0, completed.stderr
    assert sum(counts.values()) > NUM_IMAGES, counts
    assert_same(stored.download("faulty", tmp_path / "found"), stored.expected)


@pytest.mark.slow
def test_other_data_node_is_used_when_one_dies(stored: Stored, tmp_path: pathlib.Path) -> None:
    settings = ["--set", f"output.num_shards={NUM_SHARDS}", "--workers", "2"]
    process = command_line.start("convert", "--input", stored.images, "--output", stored.uri("survived"), *settings)
    filesystem = stored.cluster.filesystem()
    try:
        while not filesystem.exists("/survived/.imagebeam/lock"):
            assert process.poll() is None
        stored.cluster.kill(1)
        _, stderr = process.communicate(timeout=patience.HANG_SEC)
    finally:
        process.kill()
        process.wait()
        stored.cluster.start(1)
    assert process.returncode == 0, stderr
    assert_same(stored.download("survived", tmp_path / "found"), stored.expected)


@pytest.mark.slow
def test_safe_mode_is_waited_for(stored: Stored, tmp_path: pathlib.Path) -> None:
    stored.cluster.safe_mode(True)
    leave = threading.Timer(6.0, stored.cluster.safe_mode, [False])
    leave.start()
    try:
        completed = convert(str(stored.images), stored.uri("waited"))
        has_waited = leave.finished.is_set()
    finally:
        leave.join()
    assert completed.returncode == 0, completed.stderr
    assert has_waited
    assert_same(stored.download("waited", tmp_path / "found"), stored.expected)


def test_second_run_on_the_same_output_is_refused(stored: Stored) -> None:
    lease = {"process": 1, "host": "elsewhere", "token": "x", "time": 4102444800.0}
    stored.cluster.filesystem().pipe_file("/locked/.imagebeam/lock", json.dumps(lease).encode())
    completed = convert(str(stored.images), stored.uri("locked"))
    assert completed.returncode == 2
    assert "another run writes to this output (process 1 on elsewhere" in completed.stderr


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hdfs://127.0.0.1:9/images", "cannot be reached"),
        ("hdfs://folder/images", "write hdfs://NAMENODE:9870/FOLDER"),
        ("hdfs:///images", "write hdfs://NAMENODE:9870/FOLDER"),
    ],
)
def test_address_that_does_not_exist_is_refused(address: str, message: str, tmp_path: pathlib.Path) -> None:
    completed = convert(address, str(tmp_path / "out"))
    assert (completed.returncode, message in completed.stderr) == (2, True), completed.stderr
