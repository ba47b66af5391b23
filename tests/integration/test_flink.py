"""A conversion on a Flink cluster; `make clusters-test` runs more of them, on Spark too (cluster_runners.py)."""

from __future__ import annotations

import pathlib

import pytest

from tests import command_line, datasets
from tests.golden import test_golden
from tests.servers import clusters

pytestmark = pytest.mark.integration


def test_flink_writes_the_golden_bytes_and_prints_nothing(tmp_path: pathlib.Path) -> None:
    arguments = ("convert", "--quiet", "--input", test_golden.IMAGES, "--output", tmp_path / "out")
    (tmp_path / "cluster").mkdir()
    with clusters.run(clusters.Flink, tmp_path / "cluster", num_workers=1) as flink:
        done = command_line.run(*arguments, "--set", "output.num_shards=3", *flink.options())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    test_golden.assert_golden(datasets.shard_digests(tmp_path / "out"))
    assert not (tmp_path / "out" / ".imagebeam").exists()
