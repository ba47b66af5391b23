"""Makes TFRecord files of any tool readable where they are: finds out what they hold, commits a catalog and indexes.

The shards are read once, and never changed, moved or removed. A later run reads only what no earlier one has read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from imagebeam import catalog as catalog_lib
from imagebeam import errors, plural, records, snapshots, storage
from imagebeam import features as features_lib
from imagebeam.pipelines import request, verify_dataset
from imagebeam.pipelines.messages import printed_tables, progress
from imagebeam.pipelines.runs import output_lock
from imagebeam.transforms import dataset_settings, elements
from imagebeam.transforms.indexing import choose_features, find_shards, make_catalog, scan_shard
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
        known = [KnownScan(scan_shard.ShardScan.from_json(scan), *stamp) for *stamp, scan in stored]
        return {each.scan.name: each for each in known}
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
    previous: output_folder.FoundCatalog | None  # the catalog of an earlier index
    known: Mapping[str, KnownScan]  # the scans of that index, by the name of the file

    @property
    def fingerprint(self) -> str:
        """Names the staging folder: equal for the same files and options."""
        parts = (scan_shard.ShardScan._fields, self.keys, self.options, sorted(self.found.shards))
        digest = hashlib.blake2b(repr(parts).encode("utf-8", "backslashreplace"), digest_size=12).hexdigest()
        return catalog_lib.INDEXING_PREFIX + digest

    @property
    def staging(self) -> str:
        return self.settings.paths.staging(self.fingerprint)

    @functools.cached_property
    def shards(self) -> dict[str, find_shards.ForeignShard]:
        """The files by name, in their order."""
        return {shard.name: shard for shard in self.found.shards}

    def fits(self, catalog: catalog_lib.Catalog) -> bool:
        """Returns whether an earlier index still fits: no shard has changed, and all files of the index are there."""
        if catalog.indexed.get("options") != dataclasses.asdict(self.options):
            return False
        committed = {(name, shard.name) for name, split in catalog.splits.items() for shard in split.shards}
        if committed != {(shard.split, shard.name) for shard in self.found.shards}:
            return False
        return all(map(self._is_same, self.found.shards)) and self._has_files_of(catalog)

    def is_committed(self, catalog: catalog_lib.Catalog, made: catalog_lib.Catalog) -> bool:
        """Returns whether an earlier index is the same, on a storage that gives files no versions."""
        same = (catalog.fingerprint, catalog.indexed) == (made.fingerprint, made.indexed)
        return same and not any(shard.version for shard in self.found.shards) and self._has_files_of(catalog)

    def _has_files_of(self, catalog: catalog_lib.Catalog) -> bool:
        """Returns whether all files of an index are there with their sizes."""
        files = {name: file.bytes for name, file in catalog.files.items()}
        every = (shard for split in catalog.splits.values() for shard in split.shards)
        files |= {file.name: file.entry.bytes for shard in every for file in shard.side_files(catalog.compression)}
        return all(itertools.starmap(self._has, files.items()))

    def _is_same(self, shard: find_shards.ForeignShard) -> bool:
        before = self.known.get(shard.name)
        return before is not None and shard.version != 0 and before[1:] == (shard.size, shard.version)

    def _has(self, name: str, num_bytes: int) -> bool:
        uri = storage.join(self.folder, name)
        try:
            return storage.storage_of(uri).stat(uri).size in (-1, num_bytes)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def scan(self, workers: int, show_progress: bool) -> list[scan_shard.ShardScan]:
        """Returns the scans of all files in their order; reads those that no earlier run has finished.

        Raises:
            VerificationError: if a file is broken.
        """
        storage.storage_of(self.staging).make_directories(self.staging)
        tasks = [self._task(shard) for shard in self.found.shards]
        done = self._take_up(tasks)
        left = [task for task in tasks if task.name not in done]
        sizes = {name: shard.size for name, shard in self.shards.items()}
        num_workers = min(workers, len(left))
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
                        "index-shard-unreadable",
                        f"shard {storage.join(self.folder, scan.name)} cannot be read: {scan.problem}: fetch it again, "
                        "and run this command again, which goes on",
                    )
                done[scan.name] = scan
                shown.add(scan, sizes[scan.name])
        for name, size in sizes.items():
            if found_bytes := done[name].bytes - size:
                raise errors.BusyError(
                    "index-shard-changed",
                    f"shard {storage.join(self.folder, name)} has changed while it was read, by {found_bytes:,} "
                    "bytes: wait until nothing writes there, and run this command again",
                )
        return [done[task.name] for task in tasks]

    def _task(self, shard: find_shards.ForeignShard) -> scan_shard.ScanTask:
        uri = storage.join(self.folder, shard.name)
        return scan_shard.ScanTask(uri, shard.name, self.found.compression, self.keys, self.staging)

    def _take_up(self, tasks: Sequence[scan_shard.ScanTask]) -> dict[str, scan_shard.ShardScan]:
        """Returns the scans that an earlier run has finished, or that an index before still holds."""
        store = storage.storage_of(self.staging)
        names = output_folder.sizes_in(self.staging).keys()
        done = {}
        for task in tasks:
            with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
                if task.done_uri.rpartition("/")[2] in names:
                    done[task.name] = scan_shard.ShardScan.from_json(json.loads(store.read(task.done_uri)))
                elif self._is_same(self.shards[task.name]) and self.known[task.name].scan.keys == self.keys.as_json():
                    scan = self.known[task.name].scan
                    files = scan.shard.side_files(self.found.compression)
                    contents = [store.read(storage.join(self.folder, file.name)) for file in files]
                    if [catalog_lib.entry_of(data) for data in contents] == [file.entry for file in files]:
                        for file, data in zip(files, contents):
                            store.write_whole(task.staged_uri(file.name), data)
                        done[task.name] = scan
        return done

    def commit(self, made: make_catalog.Made, scans: Sequence[scan_shard.ShardScan]) -> catalog_lib.Catalog:
        """Commits the catalog with the staged files; returns it."""
        stored = [[shard.size, shard.version, scan.to_json()] for shard, scan in zip(self.found.shards, scans)]
        files = {
            catalog_lib.STATISTICS_FILE: json.dumps(made.statistics, indent=1).encode() + b"\n",
            make_catalog.SCANS_FILE: gzip.compress(json.dumps(stored).encode(), mtime=0),
        }
        self._refuse_to_replace(files)
        plan = elements.DatasetPlan(
            action="write",
            message="",
            fingerprint=self.fingerprint,
            splits={},
            labels=made.catalog.labels,
            listed=made.catalog.counts.listed,
            rejected={},
            skipped=made.catalog.counts.skipped,
            committed=None if self.previous is None else self.previous.record,
            run_id=self.settings.run_id,
        )
        return make_catalog.publish_index(self.settings, plan, made.catalog, files)

    def _refuse_to_replace(self, files: Mapping[str, bytes]) -> None:
        """Raises ConfigError if a file of the user has the name of one that the index needs."""
        previous = self.previous
        own = set() if previous is None or previous.catalog is None else set(previous.catalog.files)
        killed = storage.storage_of(self.staging).exists(storage.join(self.staging, catalog_lib.CATALOG_FILE))
        for name in files:
            uri = storage.join(self.folder, name)
            if name not in own and not killed and storage.storage_of(uri).exists(uri):
                raise errors.ConfigError(
                    "index-name-taken",
                    f"{uri} is there already, and the index needs a file of this name: rename or move it",
                )


def _scan_all(
    tasks: Sequence[scan_shard.ScanTask], num_workers: int, shown: _ScanProgress, stack: contextlib.ExitStack
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


# Before all records are read: the number of files of each split and of first records in each that decide the keys.
_SAMPLE_FILES = _SAMPLE_RECORDS = 4
_MAX_NAMED = 10


@dataclasses.dataclass(frozen=True)
class IndexResult:
    """The result of an index that ended well.

    Attributes:
        state: "committed"; "kept" if the index fits the shards already; "planned" if nothing was to be written.
        catalog: of the dataset; of a plan, with the files that were found and what their first records say.
        notes: what the user should know.
        image_size: height and width of the images as a text, such as "224 x 224"; "" if it is not known.
        changes: shards that were added, changed or removed since the earlier index.
        seconds: that it took.
    """

    state: Literal["committed", "kept", "planned"]
    catalog: catalog_lib.Catalog
    notes: tuple[str, ...]
    changes: tuple[str, ...]
    seconds: float
    image_size: str = ""


def index(
    directory: str | os.PathLike[str],
    *,
    image: str | None = None,
    label: str | None = None,
    label_base: int | None = None,
    split: str | None = None,
    partial: bool = False,
    keep_broken: bool = False,
    plan: bool = False,
    workers: int | None = None,
    show_progress: bool = False,
) -> IndexResult:
    """Commits a catalog and indexes for the TFRecord files of another tool in a folder, which stay as they are.

    Afterwards `open_dataset`, `verify`, `inspect`, `report` and `bench` take the folder. Every byte is read once, and
    every checksum compared. A second call reads only files that are new or have changed, and commits nothing if the
    index still fits.

    Args:
        directory: a path or an address.
        image: key of the feature with the image; None to find it.
        label: key of the feature with the label; "none" for none, and None to find it.
        label_base: id of the first class, 0 or 1; None to find it.
        split: a regular expression that finds the split in a path, by its first group; files that it does not match
            are left out. None finds it by the usual names.
        partial: whether files of a numbered series may be missing.
        keep_broken: whether records that cannot be read may be among those of the dataset; they are counted.
        plan: whether to write nothing, and look at the first records alone.
        workers: processes that read; by default as many as cores.
        show_progress: whether to keep a progress line on standard error.

    Raises:
        ConfigError: if there are no TFRecord files, or none with images, or they cannot be read as one dataset.
        VerificationError: if a file or a record is broken.
        BusyError: if another run writes to the folder.

    Examples:
        >>> imagebeam.index("tfrecords").catalog.splits["train"].num_examples  # files of another tool
        472
    """
    start = time.monotonic()
    options = make_catalog.IndexOptions(image, label, label_base, split, partial, keep_broken)
    _check(options)
    folder = verify_dataset.find_folder(directory, "give a folder with TFRecord files", "the TFRecord files")
    if plan:
        found = find_shards.find_shards(folder, options.split, options.partial)
        keys = _choose_keys(folder, found, options)
        merged = make_catalog.Merged.of(_look_at_first(folder, found, keys))
        made = make_catalog.make_catalog(folder, found, keys, merged, options)
        return IndexResult("planned", made.catalog, made.notes, (), time.monotonic() - start)
    records.require_fast_crc32c()
    run_id = output_folder.new_run_id()
    settings = dataset_settings.DatasetSettings(output=folder, identity="", features=(), run_id=run_id)
    with _hold(settings):
        previous = _find_previous(folder)
        found = find_shards.find_shards(folder, options.split, options.partial)
        keys = _choose_keys(folder, found, options)
        known = read_scans(folder, previous)
        changes = () if previous is None else describe_changes(known, found)
        settings = dataclasses.replace(settings, compression=found.compression)
        job = Job(folder, settings, found, keys, options, previous, known)
        if previous is not None and previous.catalog is not None and job.fits(previous.catalog):
            return IndexResult("kept", previous.catalog, (), (), time.monotonic() - start)
        scans = job.scan(request.as_workers(workers), show_progress)
        _refuse_broken(folder, scans, options)
        made = make_catalog.make_catalog(folder, found, keys, make_catalog.Merged.of(scans), options)
        if previous is not None and previous.catalog is not None and job.is_committed(previous.catalog, made.catalog):
            storage.storage_of(job.staging).remove_tree(job.staging)
            return IndexResult("kept", previous.catalog, (), (), time.monotonic() - start)
        catalog = job.commit(made, scans)
    seconds = time.monotonic() - start
    return IndexResult("committed", catalog, made.notes, changes, seconds, make_catalog.describe_size(made.statistics))


def _check(options: make_catalog.IndexOptions) -> None:
    if options.label_base not in (None, 0, 1):
        raise errors.ConfigError("index-label-base", f"label_base is {options.label_base!r}; give 0 or 1")
    for name in ("image", "label", "split"):
        if getattr(options, name) == "":
            raise errors.ConfigError("option-empty", f"--{name} is empty; leave it out, or give a value")


@contextlib.contextmanager
def _hold(settings: dataset_settings.DatasetSettings) -> Iterator[None]:
    """Holds the lock of the folder.

    Raises:
        ConfigError: if the folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(output_lock.hold(settings.paths.metadata, settings.run_id))
        except errors.ConfigError as e:
            here = "; or index a folder of links to them: mkdir NEW && ln -s FOLDER/* NEW/"
            remedy = here if storage.storage_of(settings.output).is_local else ""
            raise errors.ConfigError(
                "index-unwritable",
                f"{settings.output} cannot be written ({e}): the catalog and the indexes lie beside the shards; grant "
                f"write access to the folder, or copy the shards to one{remedy}",
            ) from e
        yield


def _find_previous(folder: str) -> output_folder.FoundCatalog | None:
    """Returns the catalog of an earlier index.

    Raises:
        ConfigError: if the folder holds a dataset of imagebeam.
    """
    found = output_folder.find_catalog(folder)
    if found is None and snapshots.latest_name(folder) is None:
        return None
    if found is None or (found.catalog is not None and not found.catalog.indexed):
        raise errors.ConfigError(
            "index-of-dataset", f"{folder} is a dataset that imagebeam wrote: it needs no index, and reads as it is"
        )
    if found.catalog is None:
        raise errors.ConfigError(
            "index-unreadable", f"{found.error}; if imagebeam index made it, remove it, and run this command again"
        )
    return found


def _choose_keys(folder: str, found: find_shards.FoundShards, options: make_catalog.IndexOptions) -> scan_shard.Keys:
    """Returns the keys of the features that matter, from the first records of some files."""
    sample, where = [], ""
    for shards in found.splits.values():
        for shard in [each for each in shards if each.size][:_SAMPLE_FILES]:
            uri = storage.join(folder, shard.name)
            first = [*scan_shard.read_first(uri, found.compression, _SAMPLE_RECORDS)]
            where = where or (uri if first else "")
            sample += first
    if not sample:
        raise errors.ConfigError("index-no-record", f"the TFRecord files of {folder} hold no record that can be read")
    convert = plural.shell_command(
        ["imagebeam", "convert", "--config", "tfrecord", "--input", folder, "--output", "OUTPUT"]
    )
    return choose_features.choose_keys(sample, options.image, options.label, where, convert)


def _look_at_first(
    folder: str, found: find_shards.FoundShards, keys: scan_shard.Keys
) -> Iterator[scan_shard.ShardScan]:
    """Yields scans of the first records of some files alone."""
    for shards in found.splits.values():
        for number, shard in enumerate(shards):
            count = _SAMPLE_RECORDS if number < _SAMPLE_FILES else 0
            sample = scan_shard.read_first(storage.join(folder, shard.name), found.compression, count) if count else ()
            yield scan_shard.scan_records(shard.name, sample, keys, shard.size)


def _refuse_broken(folder: str, scans: Sequence[scan_shard.ShardScan], options: make_catalog.IndexOptions) -> None:
    """Raises VerificationError if records cannot be read, and the user has not allowed that."""
    num_broken = sum(scan.num_broken for scan in scans)
    if not num_broken or options.keep_broken:
        return
    described = [text for scan in scans for text in scan.broken][:_MAX_NAMED]
    more = f"\n  and {num_broken - len(described):,} more" if num_broken > len(described) else ""
    lines = "".join(f"\n  {each}" for each in described)
    raise errors.VerificationError(
        "index-broken-records",
        f"{plural.count(num_broken, 'record')} of {folder} cannot be read:{lines}{more}\nfetch the files again; or "
        "index them with --keep-broken, and read with on_error='skip'",
    )


def result_rows(result: IndexResult, directory: str) -> list[tuple[str, str]]:
    """Returns the rows of the table at the end."""
    catalog = result.catalog
    rows = []
    for name, split in catalog.splits.items():
        known = "" if result.state == "planned" else f"{plural.count(split.num_examples, 'record')}, "
        shards = plural.count(len(split.shards), "shard")
        rows.append((f"  {name}", f"{known}{shards}, {plural.format_bytes(split.num_bytes)}"))
    by_source = {feature.source: feature for feature in catalog.features}
    size = f", {result.image_size} pixels (height x width)" if result.image_size else ""
    rows.append(("image", by_source[features_lib.ENCODED].key + size))
    label = by_source.get(features_lib.LABEL)
    if label is None:
        rows.append(("label", "none"))
    elif result.state == "planned":
        rows.append(("label", label.key))
    elif catalog.label_kind == "class":
        last = catalog.label_base + len(catalog.labels) - 1
        classes = f"{plural.count(len(catalog.labels), 'class')}, ids {catalog.label_base} to {last}"
        rows.append(("label", f"{label.key}: {classes}: {printed_tables.name_some(catalog.labels)}"))
    else:
        rows.append(("label", f"{label.key}: numbers"))
    taken = (features_lib.ENCODED, features_lib.LABEL)
    others = [f"{each.key} ({each.describe()})" for each in catalog.features if each.source not in taken]
    rows.append(("features", ", ".join(others) or "no others"))
    if catalog.counts.skipped:
        rows.append(("skipped", printed_tables.describe_skipped(catalog.counts.skipped)))
    rows.append(("time", f"{result.seconds:.1f} s"))
    rows.append(("folder", directory))
    return rows
