"""The reader in environments that have no TensorFlow."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests import batch_digests, command_line, datasets, environments, image_sets

ON_JAX = """
import json, sys
import imagebeam, jax
dataset = imagebeam.open_dataset(sys.argv[1])
sharding = jax.sharding.NamedSharding(jax.make_mesh((4,), ("data",)), jax.sharding.PartitionSpec("data"))
options = {"image_size": 16, "shuffle": "global", "dtype": "bfloat16", "features": ("image/key",)}
batches = dataset.as_jax("train", sharding, 8, **options)
keys = [key.decode() for _ in range(3) for key in next(batches)["image/key"]]
state = batches.state()
following = [key.decode() for key in next(batches)["image/key"]]
batches.restore(state)
assert [key.decode() for key in next(batches)["image/key"]] == following
print(json.dumps([keys, sorted({"tensorflow", "apache_beam", "keras"} & set(sys.modules))]))
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("dataset")
    image_sets.write_folder(folder / "in", ("cat", "dog"), 9)
    (folder / "in" / "dog" / "0.jpg").write_bytes(image_sets.make_image(1, "WEBP", "RGB", (60, 50)))  # by Pillow
    datasets.make(folder / "in", folder / "out", output={"num_shards": 3})
    return str(folder / "out")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(environments.copy_sources(tmp_path_factory.mktemp("source") / "imagebeam"))


def test_batches_are_those_of_an_environment_with_tensorflow(dataset: str, source: str, tmp_path: pathlib.Path) -> None:
    python = environments.make(tmp_path / "venv", f"{source}[numpy]")
    done = command_line.run_other(python, command_line.ROOT / "tests" / "batch_digests.py", dataset, PYTHONPATH="")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert not found["tensorflow"]
    assert found["digests"] == batch_digests.digests(dataset, "as_tf") == batch_digests.digests(dataset, "as_numpy")
    assert len(set(found["digests"])) == len(found["digests"])
    installed = {path.name for path in (tmp_path / "venv").glob("lib/python*/site-packages/*")}
    assert not installed & {"tensorflow", "apache_beam", "jax"}


def test_jax_needs_no_tensorflow(dataset: str, source: str, tmp_path: pathlib.Path) -> None:
    python = environments.make(tmp_path / "venv", f"{source}[jax]")
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu", "PYTHONPATH": ""}
    done = command_line.run_other(python, "-c", ON_JAX, dataset, cwd=tmp_path, **flags)
    assert done.returncode == 0, done.stderr
    keys, imported = json.loads(done.stdout)
    assert imported == []
    assert len(set(keys[:18])) == 18  # an epoch
