"""The work of `imagebeam index`: reads the files that no earlier run has read, and commits what was found."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import cpu_count, errors, plural, records, storage
from imagebeam.pipelines.messages import progress
from imagebeam.transforms import dataset_settings, elements
from imagebeam.transforms.indexing import find_shards, make_catalog, scan_shard
from imagebeam.transforms.output import output_folder
from imagebeam.transforms.shard import writer_processes

_BYTES_FOR_PROCESS = 64 << 20  # a further process is worth its start if it reads this many bytes


def read_scans(folder: str, previous: output_folder.FoundCatalog | None) -> Mapping[str, KnownScan]:
    """Returns the scans of an earlier index by the name of the file; {} if they are lost or unreadable."""
    if previous is None:
        return {}
    uri = storage.join(folder, make_catalog.SCANS_FILE)
    try:
        stored = json.loads(gzip.decompress(storage.storage_of(uri).read(uri)))
        return {
            scan.name: KnownScan(scan, *stamp)
            for *stamp, scan in (
                (size, version, scan_shard.ShardScan.from_json(each)) for size, version, each in stored
            )
        }
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return {}


class KnownScan(NamedTuple):
    """A scan of an earlier index, and the size and version of the file at that time."""

    scan: scan_shard.ShardScan
    size: int
    version: int


def describe_changes(known: Mapping[str, KnownScan], found: find_shards.FoundShards) -> tuple[str, ...]:
    """Returns a line for each file that is new, gone, or may have changed."""
    now = {shard.name: shard for shard in found.shards}
    lines = [f"{name}: new" for name in sorted(now.keys() - known.keys())]
    lines += [f"{name}: gone" for name in sorted(known.keys() - now.keys())]
    for name in sorted(now.keys() & known.keys()):
        before, shard = known[name], now[name]
        if before.size != shard.size:
            lines.append(f"{name}: {before.size:,} bytes before, {shard.size:,} now")
        elif not shard.version or before.version != shard.version:
            lines.append(f"{name}: changed at another time")
    return tuple(lines)


@dataclasses.dataclass(frozen=True)
class Job:
    """The index of the files that were found."""

    folder: str
    settings: dataset_settings.DatasetSettings
    found: find_shards.FoundShards
    keys: scan_shard.Keys
    options: make_catalog.IndexOptions

    @property
    def fingerprint(self) -> str:
        """Names the staging folder: equal for the same files and options."""
        parts = (scan_shard.ShardScan._fields, self.keys, self.options, sorted(self.found.shards))
        digest = hashlib.blake2b(repr(parts).encode("utf-8", "backslashreplace"), digest_size=12).hexdigest()
        return catalog_lib.INDEXING_PREFIX + digest

    @property
    def staging(self) -> str:
        return self.settings.paths.staging(self.fingerprint)

    def fits(self, catalog: catalog_lib.Catalog, known: Mapping[str, KnownScan]) -> bool:
        """Returns whether an earlier index still fits: no shard has changed, and all files of the index are there."""
        if catalog.indexed.get("options") != dataclasses.asdict(self.options):
            return False
        committed = {(name, shard.name) for name, split in catalog.splits.items() for shard in split.shards}
        if committed != {(shard.split, shard.name) for shard in self.found.shards}:
            return False
        if not all(self._is_same(shard, known) for shard in self.found.shards):
            return False
        return self._has_files_of(catalog)

    def is_committed(self, catalog: catalog_lib.Catalog, made: catalog_lib.Catalog) -> bool:
        """Returns whether an earlier index is the same, on a storage that gives files no versions."""
        same = (catalog.fingerprint, catalog.indexed) == (made.fingerprint, made.indexed)
        return same and not any(shard.version for shard in self.found.shards) and self._has_files_of(catalog)

    def clear(self) -> None:
        """Removes the staging folder."""
        storage.storage_of(self.staging).remove_tree(self.staging)

    def _has_files_of(self, catalog: catalog_lib.Catalog) -> bool:
        """Returns whether all files of an index are there with their sizes."""
        names = {name: file.bytes for name, file in catalog.files.items()}
        if catalog.compression == "none":
            every = (shard for split in catalog.splits.values() for shard in split.shards)
            names |= {shard.index_name: shard.index_file.bytes for shard in every}
        return all(self._has(name, num_bytes) for name, num_bytes in names.items())

    def _is_same(self, shard: find_shards.ForeignShard, known: Mapping[str, KnownScan]) -> bool:
        before = known.get(shard.name)
        return before is not None and shard.version != 0 and before[1:] == (shard.size, shard.version)

    def _has(self, name: str, num_bytes: int) -> bool:
        uri = storage.join(self.folder, name)
        try:
            return storage.storage_of(uri).stat(uri).size in (-1, num_bytes)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def scan(
        self, known: Mapping[str, KnownScan], workers: int | None, show_progress: bool
    ) -> list[scan_shard.ShardScan]:
        """Returns the scans of all files in their order; reads those that no earlier run has finished.

        Raises:
            VerificationError: if a file is broken.
        """
        storage.storage_of(self.staging).make_directories(self.staging)
        tasks = [self._task(shard) for shard in self.found.shards]
        done = self._take_up(tasks, known)
        left = [task for task in tasks if task.name not in done]
        sizes = {shard.name: shard.size for shard in self.found.shards}
        num_workers = min(workers or cpu_count.available_cores(), len(left))
        if storage.storage_of(self.folder).is_local:  # to start a process takes as long as to read some megabytes
            num_workers = min(num_workers, 1 + sum(sizes[task.name] for task in left) // _BYTES_FOR_PROCESS)
        shown = _ScanProgress(len(tasks), sum(sizes.values()))
        with contextlib.ExitStack() as stack:
            if show_progress:
                stack.enter_context(shown)
            for scan in done.values():
                shown.add(scan, sizes[scan.name])
            for scan in _scan_all(left, num_workers, shown, stack):
                if scan.problem:
                    raise errors.VerificationError(
                        f"shard {storage.join(self.folder, scan.name)} cannot be read: {scan.problem}: fetch it again, "
                        "and run this command again, which goes on"
                    )
                done[scan.name] = scan
                shown.add(scan, sizes[scan.name])
        for shard in self.found.shards:
            if found_bytes := done[shard.name].bytes - shard.size:
                raise errors.BusyError(
                    f"shard {storage.join(self.folder, shard.name)} has changed while it was read, by {found_bytes:,} "
                    "bytes: wait until nothing writes there, and run this command again"
                )
        return [done[task.name] for task in tasks]

    def _task(self, shard: find_shards.ForeignShard) -> scan_shard.ScanTask:
        staged = make_catalog.staged_index_name(catalog_lib.Shard(shard.name, 0, 0, 0))
        return scan_shard.ScanTask(
            storage.join(self.folder, shard.name),
            shard.name,
            self.found.compression,
            self.keys,
            storage.join(self.staging, staged),
            storage.join(self.staging, f"{staged}.done"),
        )

    def _take_up(
        self, tasks: Sequence[scan_shard.ScanTask], known: Mapping[str, KnownScan]
    ) -> dict[str, scan_shard.ShardScan]:
        """Returns the scans that an earlier run has finished, or that an index before still holds."""
        store = storage.storage_of(self.staging)
        names = output_folder.sizes_in(self.staging).keys()
        shards = {shard.name: shard for shard in self.found.shards}
        done = {}
        for task in tasks:
            with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
                if task.done_uri.rpartition("/")[2] in names:
                    done[task.name] = scan_shard.ShardScan.from_json(json.loads(store.read(task.done_uri)))
                elif self._is_same(shards[task.name], known) and known[task.name].scan.keys == self.keys.as_json():
                    scan = known[task.name].scan
                    if scan.index_crc32c is not None:
                        old = storage.join(self.folder, catalog_lib.Shard(task.name, 0, 0, 0).index_name)
                        data = store.read(old)
                        if records.extend_crc(0, data) != scan.index_crc32c:
                            continue
                        store.write_whole(task.index_uri, data)
                    done[task.name] = scan
        return done

    def commit(
        self,
        made: make_catalog.Made,
        scans: Sequence[scan_shard.ShardScan],
        previous: output_folder.FoundCatalog | None,
    ) -> catalog_lib.Catalog:
        """Commits the catalog with the staged indexes; returns it."""
        shards = {shard.name: shard for shard in self.found.shards}
        stored = [[shards[scan.name].size, shards[scan.name].version, scan.to_json()] for scan in scans]
        files = {
            catalog_lib.STATISTICS_FILE: json.dumps(made.statistics, indent=1).encode() + b"\n",
            make_catalog.SCANS_FILE: gzip.compress(json.dumps(stored).encode(), mtime=0),
        }
        self._refuse_to_replace(files, previous)
        plan = elements.DatasetPlan(
            action="write",
            message="",
            exit_code=0,
            fingerprint=self.fingerprint,
            splits={},
            labels=made.catalog.labels,
            listed=made.catalog.counts.listed,
            rejected={},
            passed_over=made.catalog.counts.passed_over,
            committed=None if previous is None else previous.record,
            run_id=self.settings.run_id,
        )
        return make_catalog.publish_index(self.settings, plan, made.catalog, files)

    def _refuse_to_replace(self, files: Mapping[str, bytes], previous: output_folder.FoundCatalog | None) -> None:
        """Raises ConfigError if a file of the user has the name of one that the index needs."""
        own = set() if previous is None or previous.catalog is None else set(previous.catalog.files)
        killed = storage.storage_of(self.staging).exists(storage.join(self.staging, catalog_lib.CATALOG_FILE))
        for name in files:
            uri = storage.join(self.folder, name)
            if name not in own and not killed and storage.storage_of(uri).exists(uri):
                raise errors.ConfigError(
                    f"{uri} is there already, and the index needs a file of this name: rename or move it"
                )


def _scan_all(
    tasks: Sequence[scan_shard.ScanTask],
    num_workers: int,
    shown: _ScanProgress,
    stack: contextlib.ExitStack,
) -> Iterator[scan_shard.ShardScan]:
    """Yields the scans, in the order of the tasks; in this process if one worker is enough."""
    if num_workers <= 1:
        yield from map(scan_shard.scan_shard, tasks)
        return
    pool = stack.enter_context(writer_processes.start(num_workers))
    shown.count_begun = pool.count_images
    for future in [pool.submit(scan_shard.scan_shard, task) for task in tasks]:
        yield future.result()


class _ScanProgress(progress.ShownLine):
    """The line that is shown while files are read."""

    def __init__(self, num_shards: int, num_bytes: int):
        super().__init__()
        self._num_shards, self._num_bytes = num_shards, num_bytes
        self._done = self._done_bytes = self._records = 0
        self._begin = time.monotonic()
        self.count_begun: Callable[[], int] = lambda: 0

    def add(self, scan: scan_shard.ShardScan, num_bytes: int) -> None:
        """Counts a file that was read."""
        self._done += 1
        self._done_bytes += num_bytes
        self._records += scan.records

    def line(self) -> str:
        self._fields = {"stage": "indexing", "shards_done": self._done, "shards_planned": self._num_shards}
        elapsed = time.monotonic() - self._begin
        rate = self._done_bytes / elapsed if elapsed > 0 else 0.0
        left = f"{(self._num_bytes - self._done_bytes) / rate:,.0f} s left" if rate > 0 else "..."
        return (
            f"shards {self._done:,}/{self._num_shards:,}  records {self._records + self.count_begun():,}  "
            f"{plural.format_bytes(self._done_bytes)} of {plural.format_bytes(self._num_bytes)}  {left}"
        )
