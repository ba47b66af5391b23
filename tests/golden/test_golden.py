"""The same images and config give the same bytes: the shards of 20 images, held against digests.json.

A change of these bytes breaks every resumed run and every published digest. Where it is meant, raise _WRITER_VERSION in
transforms/plan/decide_plan.py and write the new digests with `python -m tests.golden.test_golden --write`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pathlib
import random
import sys
import tempfile
from typing import ClassVar

import pytest

from imagebeam.pipelines import convert
from imagebeam.transforms.shard import writer_processes
from tests import command_line, datasets, written_files

FOLDER = pathlib.Path(__file__).parent
IMAGES = FOLDER / "images"
DIGESTS = FOLDER / "digests.json"
REMEDY = "the shards' bytes changed; if they should: python -m tests.golden.test_golden --write (see the module's text)"

TWO_BEAM_WORKERS = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")


def convert_images(output: pathlib.Path, images: pathlib.Path = IMAGES, workers: int = 1, **more: object) -> None:
    config = {"source": {"uri": str(images)}, "output": {"uri": str(output), "num_shards": 3, **more}}
    convert.convert(config, workers=workers)


def assert_golden(digests: dict[str, str]) -> None:
    assert digests == json.loads(DIGESTS.read_text()), REMEDY


os_scandir = os.scandir


class ShuffledScan:
    """os.scandir, its entries in random order."""

    paths: ClassVar[set[str]] = set()  # all that were listed

    def __init__(self, path: str):
        self.paths.add(str(path))
        with os_scandir(path) as entries:
            self._entries = sorted(entries, key=lambda entry: entry.name)
        random.Random(len(self._entries)).shuffle(self._entries)

    def __enter__(self) -> ShuffledScan:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __iter__(self) -> ShuffledScan:
        return self

    def __next__(self) -> os.DirEntry[str]:
        if not self._entries:
            raise StopIteration
        return self._entries.pop()


@pytest.mark.parametrize("workers", [1, 2])
def test_shards_by_python_call_are_golden(tmp_path: pathlib.Path, workers: int) -> None:
    convert_images(tmp_path / "out", workers=workers)
    assert_golden(datasets.shard_digests(tmp_path / "out"))


@pytest.mark.parametrize("arguments", [(), TWO_BEAM_WORKERS], ids=["command", "two-workers-of-beam"])
def test_shards_by_command_are_golden(tmp_path: pathlib.Path, arguments: tuple[str, ...]) -> None:
    where = ("--input", IMAGES, "--output", tmp_path / "out")
    command_line.run("convert", *where, "--set", "output.num_shards=3", *arguments, exit_code=0)
    assert_golden(datasets.shard_digests(tmp_path / "out"))


@pytest.mark.parametrize("seed", range(3))
def test_shards_of_folder_made_and_listed_in_another_order_are_golden(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    paths = sorted(IMAGES.glob("*/*"))
    random.Random(seed).shuffle(paths)
    for path in paths:
        written_files.write(tmp_path / "images", {str(path.relative_to(IMAGES)): path.read_bytes()})
    monkeypatch.setattr(os, "scandir", ShuffledScan)
    monkeypatch.setattr(writer_processes, "current", lambda: None)  # the images are listed in this process
    ShuffledScan.paths.clear()
    convert_images(tmp_path / "out", tmp_path / "images")
    assert ShuffledScan.paths >= {
        f"{tmp_path}/images",
        *(f"{tmp_path}/images/{label}" for label in ("cat", "dog", "owl")),
    }
    assert_golden(datasets.shard_digests(tmp_path / "out"))


def test_records_of_gzip_shards_are_golden(tmp_path: pathlib.Path) -> None:
    convert_images(tmp_path / "out", compression="gzip")  # versions of zlib compress differently, so not the files
    streams = {path.name: gzip.decompress(path.read_bytes()) for path in (tmp_path / "out").glob("*-of-*")}
    assert_golden({name.removesuffix(".gz"): hashlib.sha256(data).hexdigest() for name, data in streams.items()})


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.golden.test_golden --write")
    with tempfile.TemporaryDirectory() as directory:
        convert_images(pathlib.Path(directory, "out"))
        DIGESTS.write_text(json.dumps(datasets.shard_digests(pathlib.Path(directory, "out")), indent=1) + "\n")
