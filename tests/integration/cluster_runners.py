"""Conversions on Flink and on Spark, each a cluster with two workers on this machine: `make clusters-test`.

test_flink.py has the part of it that runs in every change.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests import coco_sets, command_line, datasets, image_sets, patience
from tests.servers import clusters

pytestmark = pytest.mark.integration


def write_photos(folder: pathlib.Path) -> None:
    image_sets.write_folder(folder, labels=["cat", "dog", "owl"], per_label=8)
    (folder / "cat" / "broken.jpg").write_bytes(b"\xff\xd8 no image")


def write_table(folder: pathlib.Path) -> None:
    keys = image_sets.write_folder(folder, per_label=10)
    rows = [f"{key},{index % 3}.5,{'ab'[index % 2]}" for index, key in enumerate(keys)]
    (folder / "table.csv").write_text("\n".join(["image,age,city", *rows]) + "\n")


class Case(NamedTuple):
    """Images, and the settings of a conversion of them."""

    write: Callable[[pathlib.Path], object]
    settings: tuple[str, ...] = ()
    preset: str = "image_folder"
    file: str = "."  # the input in the folder


COLUMNS = {"age": {"type": "float", "transform": "z_score"}, "city": {"transform": "vocabulary"}}
FEW_SHARDS = ("output.num_shards=3", "rejects.max_fraction=0.5")
NOWHERE = "127.0.0.1:1"
CASES = {
    "plain": Case(write_photos),
    "resized": Case(write_photos, ("image.resize=[16, 16]", "image.encode=png")),
    "detection": Case(coco_sets.write, preset="coco"),
    "columns": Case(
        write_table,
        ("source={by: manifest, manifest: {key: image}}", "label.by=none", f"columns={json.dumps(COLUMNS)}"),
        file="table.csv",
    ),
}


def arguments_of(case: Case, folder: pathlib.Path, output: pathlib.Path) -> list[str]:
    settings = [part for each in (*FEW_SHARDS, *case.settings) for part in ("--set", each)]
    where = ["--input", str(folder / case.file), "--output", str(output)]
    return ["convert", "--quiet", "--config", case.preset, *where, *settings]


@pytest.fixture(scope="module", params=[clusters.Flink, clusters.Spark], ids=lambda kind: kind.__name__)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[clusters.Cluster]:
    with clusters.run(request.param, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def succeed(*arguments: str) -> None:
    done = command_line.run(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- the same bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_cluster_writes_the_bytes_of_a_local_run(cluster: clusters.Cluster, tmp_path: pathlib.Path, name: str) -> None:
    CASES[name].write(tmp_path / "in")
    command_line.succeed(*arguments_of(CASES[name], tmp_path / "in", tmp_path / "local"))
    succeed(*arguments_of(CASES[name], tmp_path / "in", tmp_path / "out"), *cluster.options())
    datasets.assert_same(tmp_path / "out", tmp_path / "local")


def test_second_night_on_a_cluster_is_that_of_a_local_run(cluster: clusters.Cluster, tmp_path: pathlib.Path) -> None:
    write_photos(tmp_path / "in")
    for night in range(2):
        (tmp_path / "in" / "cat" / f"{night}-new.jpg").write_bytes(image_sets.make_image(100 + night))
        for name, options in (("local", []), ("out", cluster.options())):
            done = command_line.run(
                *arguments_of(CASES["plain"], tmp_path / "in", tmp_path / name), "--update", *options
            )
            assert (done.returncode, done.stderr) == (0, "")
    local, found = (
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.tfrecord")}
        for name in ("local", "out")
    )
    assert sorted(found.values()) == sorted(local.values())


def test_pool_of_workers_writes_the_same_bytes(cluster: clusters.Cluster, tmp_path: pathlib.Path) -> None:
    write_photos(tmp_path / "in")
    command_line.succeed(*arguments_of(CASES["plain"], tmp_path / "in", tmp_path / "local"))
    options = cluster.options(environment_type="EXTERNAL", environment_config=cluster.start_pool())
    succeed(*arguments_of(CASES["plain"], tmp_path / "in", tmp_path / "out"), *options)
    datasets.assert_same(tmp_path / "out", tmp_path / "local")


# --- the job server --------------------------------------------------------------------------------------------------


def test_options_that_the_job_server_lists_are_taken_and_others_refused(
    cluster: clusters.Cluster, tmp_path: pathlib.Path
) -> None:
    write_photos(tmp_path / "in")
    where = arguments_of(CASES["plain"], tmp_path / "in", tmp_path / "out")
    option = {"FlinkRunner": "--number_of_execution_retries", "SparkRunner": "--checkpoint_duration_millis"}
    listed = option[cluster.runner]
    refused = command_line.run(*where, *cluster.options(), f"{listed}x=2")
    assert (refused.returncode, f"did you mean {listed}?" in refused.stderr) == (2, True)
    succeed(*where, *cluster.options(), f"{listed}=2")


def test_job_server_without_its_cluster_is_named_with_the_remedy(
    cluster: clusters.Cluster, tmp_path: pathlib.Path
) -> None:
    write_photos(tmp_path / "in")
    lost, endpoint = cluster.serve([str(each).replace(cluster.address, NOWHERE) for each in cluster.server_command])
    options = [each.replace(cluster.endpoint, endpoint) for each in cluster.options()]
    done = command_line.run(*arguments_of(CASES["plain"], tmp_path / "in", tmp_path / "out"), *options)
    lost.stop()
    assert done.returncode == 1
    assert f"(job server {endpoint}: the job server does not reach its cluster" in done.stderr


# --- what dies -------------------------------------------------------------------------------------------------------

HOLD = """
import os, pathlib, threading, time
FOLDER = pathlib.Path({folder!r})
def hold(pixels, reference):
    own = FOLDER / f"{{os.getpid()}}-{{threading.get_ident()}}"
    own.write_text(str(os.getpid()))
    own.rename(FOLDER / "begun")
    while not (FOLDER / "go").exists():
        time.sleep(0.01)
    return pixels
"""


KILL = """
import os, signal
def kill(pixels, reference):
    if reference.key == "dog/3.jpg":
        os.kill(os.getpid(), signal.SIGKILL)
    return pixels
"""


class Held:
    """A conversion that waits at an image until the file `go` appears."""

    def __init__(self, cluster: clusters.Cluster, folder: pathlib.Path):
        self.folder, self.cluster = folder, cluster
        module = re.sub(r"\W", "_", folder.name)
        (cluster.code / f"{module}.py").write_text(HOLD.format(folder=str(folder)))
        write_photos(folder / "in")
        self._case = CASES["plain"]._replace(settings=(f"image.function={module}:hold",))
        self._environment = {"PYTHONPATH": f"{cluster.code}:{command_line.ROOT}"}
        self.process = self.start()
        patience.wait_until(lambda: (folder / "begun").exists() or self.process.poll() is not None)

    def start(self) -> command_line.Process:
        where = arguments_of(self._case, self.folder / "in", self.folder / "out")
        return command_line.start(*where, *self.cluster.options(), environment=self._environment)

    def go_on(self) -> None:
        (self.folder / "go").touch()

    def assert_same_command_ends_right(self) -> None:
        self.go_on()
        command_line.finish(self.start(), 0)
        self.assert_right()

    def assert_right(self) -> None:
        local = self.folder / "local"
        where = arguments_of(self._case, self.folder / "in", local)
        command_line.run(*where, environment=self._environment, exit_code=0)
        datasets.assert_same(self.folder / "out", local)


def parent_of(pid: int) -> int:
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("what", ["python", "java"])
def test_job_outlives_a_killed_worker(cluster: clusters.Cluster, tmp_path: pathlib.Path, what: str) -> None:
    held = Held(cluster, tmp_path)
    python = int((tmp_path / "begun").read_text())
    victim = python if what == "python" else parent_of(parent_of(python))
    os.kill(victim, signal.SIGKILL)
    held.go_on()
    command_line.finish(held.process, 0)
    held.assert_right()
    cluster.replace_dead_workers()


def test_interrupt_cancels_the_job(cluster: clusters.Cluster, tmp_path: pathlib.Path) -> None:
    held = Held(cluster, tmp_path)
    held.process.send_signal(signal.SIGINT)
    done = command_line.finish(held.process, 128 + signal.SIGINT)
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out" / ".imagebeam" / "lock").exists()
    held.assert_same_command_ends_right()


@pytest.mark.parametrize("what", ["launcher", "server"])
def test_same_command_ends_right_after_the_end_of(cluster: clusters.Cluster, tmp_path: pathlib.Path, what: str) -> None:
    held = Held(cluster, tmp_path)
    if what == "launcher":
        held.process.kill()
        held.process.communicate()
        assert "is RUNNING at the job server" in command_line.succeed("status", tmp_path / "out").stdout
    else:
        cluster.server.kill()
        done = command_line.finish(held.process, 1)
        assert "the runner does not answer any more" in done.stderr
        cluster.start_server()
    held.assert_same_command_ends_right()


def test_image_that_kills_its_worker_is_named_and_rejected(cluster: clusters.Cluster, tmp_path: pathlib.Path) -> None:
    (cluster.code / f"kill_{cluster.runner}.py").write_text(KILL)
    write_photos(tmp_path / "in")
    case = CASES["plain"]._replace(settings=(f"image.function=kill_{cluster.runner}:kill",))
    where = arguments_of(case, tmp_path / "in", tmp_path / "out")
    environment = {"PYTHONPATH": f"{cluster.code}:{command_line.ROOT}"}
    command_line.run(*where, *cluster.options(), environment=environment, exit_code=0)
    assert datasets.rejects(tmp_path / "out") == {"cat/broken.jpg": "not_an_image", "dog/3.jpg": "crashed"}
