"""Conversions from and to hdfs:// write what a local run writes, whatever happens on the way."""

from __future__ import annotations

import dataclasses
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import imagebeam
from imagebeam import storage
from imagebeam.pipelines import keep_snapshots, status
from imagebeam.storage import remote
from tests import command_line, datasets, image_sets, lost_answers, patience, races, written_files
from tests.datasets import NUM_IMAGES, assert_same, write_images
from tests.servers import faults, hdfs

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


def convert(source: str, output: str, workers: int = 1) -> command_line.Completed:
    settings = ["--set", f"output.num_shards={NUM_SHARDS}", "--workers", str(workers)]
    return command_line.succeed("convert", "--input", source, "--output", output, *settings)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hdfs.Cluster]:
    with hdfs.run(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=["NameNode", "HttpFS"])
def port(
    request: pytest.FixtureRequest, cluster: hdfs.Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    if request.param == "NameNode":
        yield cluster.port
    else:
        with hdfs.run_gateway(cluster, tmp_path_factory.mktemp("gateway")) as port:
            yield port


@pytest.fixture(scope="module")
def stored(cluster: hdfs.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """NUM_IMAGES images of two classes, some of them with odd names."""
    folder = tmp_path_factory.mktemp("hdfs")
    write_images(folder / "in")
    datasets.make(folder / "in", folder / "out", output={"num_shards": NUM_SHARDS})
    upload(cluster, folder / "in")
    return Stored(cluster, folder / "in", folder / "out")


def upload(cluster: hdfs.Cluster, folder: pathlib.Path) -> None:
    """Puts the images of a folder into /images, sixteen at a time."""
    from concurrent import futures

    filesystem = cluster.filesystem()

    def put(path: pathlib.Path) -> None:
        filesystem.pipe_file(f"/images/{path.relative_to(folder).as_posix()}", path.read_bytes())

    with futures.ThreadPoolExecutor(16) as threads:
        list(threads.map(put, [path for path in folder.rglob("*") if path.is_file()]))


@pytest.mark.slow
def test_images_are_read_and_shards_written_as_on_the_local_disk(
    stored: Stored, port: int, tmp_path: pathlib.Path
) -> None:
    output = f"out-{port}"
    completed = convert(stored.uri("images", port), stored.uri(output, port), workers=2)
    assert f"listed    {NUM_IMAGES} images" in completed.stdout
    assert_same(stored.download(output, tmp_path / "found"), stored.expected)
    assert not stored.cluster.filesystem().exists(f"/{output}/.imagebeam/lock")
    again = convert(stored.uri("images", port), stored.uri(output, port))
    assert "holds this dataset already" in again.stdout
    verified = command_line.succeed("verify", stored.uri(output, port)).stdout
    assert f"{NUM_IMAGES} records in 4 shards match the catalog" in verified


def test_images_are_read_into_a_local_dataset(stored: Stored, tmp_path: pathlib.Path) -> None:
    convert(stored.uri("images"), str(tmp_path / "out"))
    assert_same(tmp_path / "out", stored.expected)


def test_reader_takes_the_address_through_its_cache(stored: Stored, tmp_path: pathlib.Path) -> None:
    stored.cluster.filesystem().put(str(stored.expected), "/read", recursive=True)
    options: dict[str, Any] = {"image_size": 16, "num_epochs": 1, "shuffle": "global", "drop_remainder": False}
    far = imagebeam.open_dataset(stored.uri("read"), cache_dir=str(tmp_path)).as_numpy("train", 100, **options)
    near = imagebeam.open_dataset(str(stored.expected)).as_numpy("train", 100, **options)
    for one, other in zip(far, near, strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])


@pytest.mark.slow
def test_faults_change_nothing(stored: Stored, tmp_path: pathlib.Path) -> None:
    url = f"http://127.0.0.1:{stored.cluster.port}"
    with faults.FaultyProxy(url, seed=1, fraction=0.15, rewrite_hosts=True) as proxy:
        convert(stored.uri("images", proxy.port), stored.uri("faulty", proxy.port), workers=2)
        counts = proxy.counts
    assert sum(counts[kind] for kind in faults.KINDS) >= 10, counts
    assert_same(stored.download("faulty", tmp_path / "found"), stored.expected)


@pytest.mark.slow
def test_other_data_node_is_used_when_one_dies(stored: Stored, tmp_path: pathlib.Path) -> None:
    settings = ["--set", f"output.num_shards={NUM_SHARDS}", "--workers", "1"]
    process = command_line.start("convert", "--input", stored.images, "--output", stored.uri("survived"), *settings)
    filesystem = stored.cluster.filesystem()
    try:
        patience.wait_until(lambda: filesystem.exists("/survived/.imagebeam/lock") or process.poll() is not None)
        assert process.poll() is None
        stored.cluster.kill(1)
        command_line.finish(process, 0)
    finally:
        stored.cluster.start(1)
    assert_same(stored.download("survived", tmp_path / "found"), stored.expected)


@pytest.mark.slow
def test_safe_mode_is_waited_for(stored: Stored, tmp_path: pathlib.Path) -> None:
    is_over = threading.Event()
    stored.cluster.safe_mode(True)
    try:
        url = f"http://127.0.0.1:{stored.cluster.port}"
        with faults.FaultyProxy(url, seed=1, fraction=0, rewrite_hosts=True) as proxy:

            def leave() -> None:
                patience.wait_until(lambda: proxy.counts["upstream-403"] >= 3 or is_over.is_set())
                stored.cluster.safe_mode(False)

            leaving = threading.Thread(target=leave, daemon=True)
            leaving.start()
            try:
                convert(str(stored.images), stored.uri("waited", proxy.port))
            finally:
                is_over.set()
                leaving.join()
            assert proxy.counts["upstream-403"] >= 3  # refused, and tried again
    finally:
        stored.cluster.safe_mode(False)
    assert_same(stored.download("waited", tmp_path / "found"), stored.expected)


def test_updates_at_hdfs_write_what_differs_though_all_times_do(cluster: hdfs.Cluster, tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", per_label=4)
    files = sorted((tmp_path / "in").glob("*/*.*"))
    filesystem, dataset = cluster.filesystem(), f"{cluster.address}/nights/out"
    options = {"compare": "content", "max_removed_fraction": 0.5}
    config = {"source": {"uri": f"{cluster.address}/nights/in"}, "output": {"uri": dataset}, "update": options}

    def night() -> dict[str, Any]:
        for path in files:  # as a copy without its times
            filesystem.pipe_file(f"/nights/in/{path.relative_to(tmp_path / 'in')}", path.read_bytes())
        counts = dict(imagebeam.convert(config, workers=1, update=True).catalog.snapshot)
        return {name: counts[name] for name in ("name", "added", "changed", "removed", "unchanged")}

    assert night() == {"name": "000001", "added": 8, "changed": 0, "removed": 0, "unchanged": 0}
    keep_snapshots.set_pin(dataset, "000001", is_pinned=True)
    written_files.flip(files[0], -20)  # of the same size
    filesystem.rm(f"/nights/in/{files.pop().relative_to(tmp_path / 'in')}")
    assert night() == {"name": "000002", "added": 0, "changed": 1, "removed": 1, "unchanged": 6}
    assert imagebeam.compact(dataset, workers=1).snapshot == "000003"
    assert night()["name"] == "000003"  # nothing has changed, and the compacted snapshot knows the contents
    removal = keep_snapshots.keep_snapshots(dataset, 1)
    assert (removal.removed, removal.pinned) == (["000002"], ["000001"])
    assert not imagebeam.verify(dataset).problems
    assert [imagebeam.load_catalog(dataset, snapshot=number).counts.written for number in (1, 3)] == [8, 7]
    assert status.status(dataset).state == "committed"


def test_operation_is_done_once_whatever_answer_is_lost(cluster: hdfs.Cluster, port: int) -> None:
    with faults.FaultyProxy(f"http://127.0.0.1:{port}", seed=0, fraction=0, rewrite_hosts=True) as proxy:
        folder = f"hdfs://beam@127.0.0.1:{proxy.port}/lost-{port}"
        lost_answers.check_server(storage.storage_of(folder), folder, proxy, replaces_at_once=port == cluster.port)


def test_two_runs_commit_one_whole_dataset(port: int) -> None:
    for number, case in enumerate(races.CASES_OF_STORAGES):
        races.play(f"hdfs://beam@127.0.0.1:{port}/races-{port}/{number}", *case)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hdfs://127.0.0.1:9/images", "cannot be reached"),
        ("hdfs://folder/images", "write hdfs://NAMENODE:9870/FOLDER"),
        ("hdfs:///images", "write hdfs://NAMENODE:9870/FOLDER"),
    ],
)
def test_address_that_does_not_exist_is_refused(
    address: str, message: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "CHECK_BUDGET_SEC", 0.3)  # it tries twice, instead of for 3 s
    completed = command_line.call("convert", "--input", address, "--output", tmp_path / "out")
    assert (completed.returncode, message in completed.stderr) == (2, True), completed.stderr
