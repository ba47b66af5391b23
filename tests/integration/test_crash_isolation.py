"""An image that kills the worker of another runner than the local one."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests import command_line, datasets, image_sets
from tests.unit.transforms.shard.test_crash_isolation import HEIC, write_plugin

pytestmark = pytest.mark.integration


def test_image_that_killed_a_worker_of_beam_is_named_by_the_same_command(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plugin(tmp_path, monkeypatch)
    image_sets.write_folder(tmp_path / "images", per_label=6)
    (tmp_path / "images/cat/a.heic").write_bytes(HEIC + b"kill")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "plugin"))
    settings = [each for text in ("output.num_shards=2", "rejects.max_fraction=0.5") for each in ("--set", text)]
    command = ["convert", "--quiet", "--input", tmp_path / "images", "--output", tmp_path / "out", *settings]
    command += ["--direct_running_mode=multi_processing", "--direct_num_workers=1"]
    first = command_line.call(*command)
    assert first.returncode == 1
    assert first.stderr.endswith("an image may have killed a worker: the same command finds and rejects it\n")
    second = command_line.call(*command)
    assert (second.returncode, second.stderr) == (0, "")
    (reject,) = map(json.loads, (tmp_path / "out" / "rejects.jsonl").read_text().splitlines())
    assert (reject["key"], reject["reason"]) == ("cat/a.heic", "crashed")
    assert len(list(datasets.read(tmp_path / "out", "train"))) == 12
    assert not (tmp_path / "out" / ".imagebeam").exists()
