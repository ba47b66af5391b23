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
from imagebeam.reader import dataset_source, record_selection, shard_cache, shard_files
from tests import patience
from tests.unit.imagebeam.reader import restarts

ROOT = pathlib.Path(__file__).parents[4]
UNBOUNDED = 1 << 40
WHOLE = 1 << 16  # bytes: more than a shard has
Faults = dict[str, list[Any]]  # by the name of a file: what comes in its place, or is called before it, once each


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
        content = self._content(path)[start:end]
        self._log("cat", path, len(content))
        return content

    def get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        self._log("get", rpath)
        with open(lpath, "wb", buffering=0) as file:
            content = self._content(rpath)
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
            if not callable(fault):
                return fault
            fault()
        return pathlib.Path(path).read_bytes()

    def _log(self, operation: str, path: str, num_bytes: int = 0) -> None:
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        with open(folder.removesuffix("/index") + ".log", "a") as log:
            log.write(f"{operation} {os.path.basename(path)} {num_bytes}\n")


fsspec.register_implementation("far", FarFileSystem, clobber=True)


def write_dataset(
    folder: pathlib.Path,
    num_shards: int = 4,
    num_records: int | Sequence[int] = 3,
    num_bytes: int = 1000,
    compression: str = "none",
) -> pathlib.Path:
    """Shards of random records of `num_bytes` each in "train", and a small split "test".

    `num_records` is the number in each shard, or one for each of them.
    """
    rng = random.Random(str(folder.name))
    (folder / "index").mkdir(parents=True)
    splits = {}
    sizes = [num_records] * num_shards if isinstance(num_records, int) else num_records
    for split, counts in (("train", sizes), ("test", sizes[:1])):
        shards, count = [], len(counts)
        for index, size in enumerate(counts):
            buffer = io.BytesIO()
            writer = records.RecordWriter(buffer, compression)
            for _ in range(size):
                writer.write(rng.randbytes(num_bytes if split == "train" else 10))
            writer.finish()
            data = buffer.getvalue()
            name = f"{split}-{index:05d}-of-{count:05d}.tfrecord"
            shard = catalog_lib.Shard(name, size, len(data), google_crc32c.value(data))
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


def open_cache(folder: pathlib.Path, cache_dir: pathlib.Path, max_bytes: int = UNBOUNDED, **options: Any) -> Any:
    """The cache of a dataset at far://."""
    catalog = catalog_lib.load_catalog(str(folder))
    room = shard_cache.Room(str(cache_dir), max_bytes)
    options = {"damage_waits_sec": (0, 0), **options}
    return shard_cache.ShardCache(f"far://{folder}", {}, room, catalog, **options)


def open_files(
    folder: pathlib.Path, cache_dir: pathlib.Path, max_bytes: int = UNBOUNDED, ahead: Sequence[int] = (), **options: Any
) -> shard_cache.CachedFiles:
    """The shards of "train" in a cache; those of `ahead` are downloaded with the first."""
    cache = open_cache(folder, cache_dir, max_bytes, **options)
    return shard_cache.CachedFiles(cache, shard_files.SplitShards(f"far://{folder}", shards_of(folder), None), ahead)


def reads_of(sizes: Sequence[int], block_records: int = 2, window_blocks: int | None = 2) -> record_selection.Reads:
    """All records of shards of these sizes."""
    return record_selection.Reads(restarts.select_all(sizes).share_of(0, 1), block_records, window_blocks)


def open_reader(source: dataset_source.DatasetSource, split: str = "train", **blocks: Any) -> Any:
    """A reader for all records of a split."""
    catalog = source.load_catalog()
    sizes = [shard.records for shard in catalog.splits[split].shards]
    return source.open_reader(catalog, (split,), reads_of(sizes, **blocks))


def fetch(reader: Any, wanted: Sequence[int], epoch: int = 0) -> list[bytes | shard_files.RecordFault]:
    return list(reader.fetch(np.array(wanted, np.int64), np.full(len(wanted), epoch)))


def stored_in(folder: pathlib.Path) -> list[bytes]:
    """The records of "train" in order."""
    compression = catalog_lib.load_catalog(str(folder)).compression
    found = []
    for shard in shards_of(folder):
        with open(folder / shard.name, "rb") as file:
            found += [record.data for record in records.read_records(file, compression)]
    return found


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
    return [name for each, name, _ in lines if each == operation]


def bytes_read(folder: pathlib.Path) -> int:
    """The bytes of shards that were read in place."""
    log = pathlib.Path(f"{folder}.log")
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return sum(int(size) for operation, name, size in lines if operation == "cat" and name.endswith(".tfrecord"))


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


def fetch_all(address: str, cache_dir: pathlib.Path | None, **options: Any) -> list[bytes | shard_files.RecordFault]:
    """All records of "train" of a dataset that is opened."""
    reader = open_reader(dataset_source.DatasetSource(address, cache_dir and str(cache_dir), **options))
    return fetch(reader, range(int(reader.split.ends[-1])))


def start_process(folder: pathlib.Path, cache_dir: pathlib.Path, order: Sequence[int], **behaviour: Any) -> Any:
    """A process that reads shards in an order, and prints "ok" where all of their bytes are right."""
    code = f"""
from tests.unit.imagebeam.reader import far_dataset as t
for name, value in {behaviour!r}.items():
    setattr(t.FarFileSystem, name, value)
import pathlib
folder = pathlib.Path({str(folder)!r})
files = t.open_files(folder, pathlib.Path({str(cache_dir)!r}))
print("ready", flush=True)
input()
assert all(files.open(shard).read(0, t.WHOLE) == t.content_of(folder, shard) for shard in {list(order)!r})
print("ok")
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process
