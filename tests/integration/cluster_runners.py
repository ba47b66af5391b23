"""Conversions on Flink and on Spark, each a cluster with two workers on this machine: `make clusters-test`.

test_flink.py has the part of it that runs in every change.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests import coco_sets, command_line, datasets, image_sets
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
