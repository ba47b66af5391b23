"""A dataset of random records at far://, and what a cache of it reads, keeps and downloads, for tests."""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import os
import pathlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import fsspec
import fsspec.core
import google_crc32c
import numpy as np

from imagebeam import catalog as catalog_lib
from imagebeam import records
from imagebeam.reader import record_bytes
from imagebeam.reader.shard_cache import cached_source
from tests import patience

ROOT = pathlib.Path(__file__).parents[4]
UNBOUNDED = 1 << 40
WHOLE = 1 << 16  # bytes: more than a shard has
Faults = dict[str, list[Any]]  # by the name of a file: what comes in its place, once each


class FarFileSystem(fsspec.AbstractFileSystem):
    """Local files at far://, which come slowly, are counted in a file beside the dataset, and fail as a test asks."""

    protocol = "far"
    cachable = False
    wait_sec = 0.0  # of each get
    pieces = 1  # in which it comes
    can_list = True
    faults: ClassVar[Faults] = {}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        self._log("ls", path)
        if not self.can_list:
            raise NotImplementedError
        with os.scandir(path) as entries:
            return [
                {"name": e.path, "size": e.stat().st_size, "type": "file"}
                if e.is_file()
                else {"name": e.path, "size": None, "type": "directory"}
                for e in entries
            ]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        self._log("info", path)
        return {"name": path, "size": os.path.getsize(path), "type": "file"}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        self._log("cat", path)
        return self._content(path)

    def get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        self._log("get", rpath)
        content = self._content(rpath)
        with open(lpath, "wb", buffering=0) as file:
            for piece in range(self.pieces):
                time.sleep(self.wait_sec / self.pieces)
                size = -(-len(content) // self.pieces)
                file.write(content[piece * size : (piece + 1) * size])
        self._log("got", rpath)

    def _content(self, path: str) -> bytes:
        faults = self.faults.get(os.path.basename(path))
        if faults:
            fault = faults.pop(0)
            if isinstance(fault, Exception):
                raise fault
            return fault
        return pathlib.Path(path).read_bytes()

    def _log(self, operation: str, path: str) -> None:
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        with open(folder.removesuffix("/index") + ".log", "a") as log:
            log.write(f"{operation} {os.path.basename(path)}\n")


fsspec.register_implementation("far", FarFileSystem, clobber=True)


def write_dataset(
    folder: pathlib.Path, num_shards: int = 4, num_records: int = 3, num_bytes: int = 1000, compression: str = "none"
) -> pathlib.Path:
    """Shards of `num_records` random records of `num_bytes` each in "train", and a small split "test"."""
    rng = random.Random(str(folder.name))
    (folder / "index").mkdir(parents=True)
    splits = {}
    for split, count in (("train", num_shards), ("test", 1)):
        shards = []
        for index in range(count):
            buffer = io.BytesIO()
            writer = records.RecordWriter(buffer, compression)
            for _ in range(num_records):
                writer.write(rng.randbytes(num_bytes if split == "train" else 10))
            writer.finish()
            data = buffer.getvalue()
            name = f"{split}-{index:05d}-of-{count:05d}.tfrecord"
            shard = catalog_lib.Shard(name, num_records, len(data), google_crc32c.value(data))
            (folder / name).write_bytes(data)
            if compression == "none":
                (folder / shard.index_name).write_bytes(records.encode_index(writer.offsets, len(data)))
            shards.append(shard)
        splits[split] = catalog_lib.Split(tuple(shards))
    catalog = catalog_lib.Catalog(
        name="noise",
        fingerprint="f",
        compression=compression,
        splits=splits,
        labels=(),
        label_kind=None,
        label_base=0,
        features=(),
        config={},
        counts=catalog_lib.Counts(0, 0, {}, {}),
        versions={},
        created="",
    )
    (folder / "catalog.json").write_text(catalog.to_json())
    return folder


def open_source(folder: pathlib.Path, cache_dir: pathlib.Path, max_bytes: int = UNBOUNDED, **options: Any) -> Any:
    """A source of far://, its catalog loaded."""
    options = {"damage_waits_sec": (0, 0), **options}
    source = cached_source.CachedSource(f"far://{folder}", str(cache_dir), max_bytes, **options)
    source.load_catalog()
    return source


def open_place(folder: pathlib.Path, cache_dir: pathlib.Path, max_bytes: int = UNBOUNDED, **options: Any) -> Any:
    return open_source(folder, cache_dir, max_bytes, **options).place(shards_of(folder), None)


def shards_of(folder: pathlib.Path) -> Sequence[catalog_lib.Shard]:
    return catalog_lib.load_catalog(str(folder)).splits["train"].shards


def name_of(shard: int, num_shards: int = 4) -> str:
    return f"train-{shard:05d}-of-{num_shards:05d}.tfrecord"


def content_of(folder: pathlib.Path, shard: int) -> bytes:
    return (folder / shards_of(folder)[shard].name).read_bytes()


def log_of(folder: pathlib.Path, operation: str) -> list[str]:
    """The names of the files that were read in some way, in their order."""
    log = pathlib.Path(f"{folder}.log")
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [name for each, name in lines if each == operation]


def downloads_of(folder: pathlib.Path) -> list[int]:
    """The shards of "train" that were downloaded, in their order."""
    return [int(name.split("-")[1]) for name in log_of(folder, "get") if name.startswith("train")]


def wait_for_downloads() -> None:
    patience.wait_until(lambda: not any(thread.name == "imagebeam-download" for thread in threading.enumerate()))


def settle(folder: pathlib.Path) -> list[int]:
    """The downloads of "train" once nothing more is under way."""
    wait_for_downloads()
    return downloads_of(folder)


def run_threads(*runs: Callable[[], object]) -> None:
    """Runs functions at the same time, and raises what one of them raised."""
    with concurrent.futures.ThreadPoolExecutor(len(runs)) as pool:
        for future in [pool.submit(run) for run in runs]:
            future.result()


def files_in(cache_dir: pathlib.Path) -> dict[str, int]:
    """The sizes of the files that count, by name."""
    return {path.name: path.stat().st_size for path in cache_dir.glob("imagebeam-*/*") if "~lock" not in path.name}


def kept_in(cache_dir: pathlib.Path) -> list[int]:
    """The shards of "train" that are there."""
    return sorted(int(name.split("-")[1]) for name in files_in(cache_dir) if name.endswith(".tfrecord"))


def opened_in(cache_dir: pathlib.Path) -> list[str]:
    """The files that this process holds open, removed ones too."""
    opened = []
    for link in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            opened.append(os.readlink(f"/proc/self/fd/{link}"))
    return [path for path in opened if path.startswith(str(cache_dir))]


def fetch_all(source: Any, split: str = "train") -> list[bytes | record_bytes.Trouble]:
    catalog = source.load_catalog()
    return list(source.fetcher(catalog, split).fetch(np.arange(catalog.splits[split].num_examples)))


def start_process(folder: pathlib.Path, cache_dir: pathlib.Path, order: Sequence[int], **behaviour: Any) -> Any:
    """A process that reads shards in an order, and prints "ok" where all of their bytes are right."""
    code = f"""
from tests.unit.imagebeam.reader import far_dataset as t
for name, value in {behaviour!r}.items():
    setattr(t.FarFileSystem, name, value)
import pathlib
folder = pathlib.Path({str(folder)!r})
place = t.open_place(folder, pathlib.Path({str(cache_dir)!r}))
print("ready", flush=True)
input()
assert all(place.read(shard, 0, t.WHOLE) == t.content_of(folder, shard) for shard in {list(order)!r})
print("ok")
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process
