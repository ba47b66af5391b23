"""Makes TFRecord files of any tool readable where they are: finds out what they hold, commits a catalog and indexes.

The shards are read once, and never changed, moved or removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from typing import Literal

from imagebeam import catalog as catalog_lib
from imagebeam import errors, plural, records, shell_words, snapshots, storage
from imagebeam import features as features_lib
from imagebeam.pipelines import call_arguments, index_job, verify_dataset
from imagebeam.pipelines.messages import printed_tables
from imagebeam.pipelines.runs import output_lock
from imagebeam.transforms import dataset_settings
from imagebeam.transforms.indexing import choose_features, find_shards, make_catalog, scan_shard
from imagebeam.transforms.output import output_folder

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
    settings = _settings(folder, run_id)
    with _hold(settings):
        previous = _find_previous(folder)
        found = find_shards.find_shards(folder, options.split, options.partial)
        keys = _choose_keys(folder, found, options)
        known = index_job.read_scans(folder, previous)
        changes = () if previous is None else index_job.describe_changes(known, found)
        settings = dataclasses.replace(settings, compression=found.compression)
        job = index_job.Job(folder, settings, found, keys, options)
        if previous is not None and previous.catalog is not None and job.fits(previous.catalog, known):
            return IndexResult("kept", previous.catalog, (), (), time.monotonic() - start)
        scans = job.scan(known, call_arguments.as_workers(workers), show_progress)
        _refuse_broken(folder, scans, options)
        made = make_catalog.make_catalog(folder, found, keys, make_catalog.Merged.of(scans), options)
        if previous is not None and previous.catalog is not None and job.is_committed(previous.catalog, made.catalog):
            job.clear()
            return IndexResult("kept", previous.catalog, (), (), time.monotonic() - start)
        catalog = job.commit(made, scans, previous)
    seconds = time.monotonic() - start
    return IndexResult("committed", catalog, made.notes, changes, seconds, make_catalog.describe_size(made.statistics))


def _check(options: make_catalog.IndexOptions) -> None:
    if options.label_base not in (None, 0, 1):
        raise errors.ConfigError(f"label_base is {options.label_base!r}; give 0 or 1")
    for name in ("image", "label", "split"):
        if getattr(options, name) == "":
            raise errors.ConfigError(f"--{name} is empty; leave it out, or give a value")


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
                f"{settings.output} cannot be written ({e}): the catalog and the indexes lie beside the shards; grant "
                f"write access to the folder, or copy the shards to one{remedy}"
            ) from e
        yield


def _settings(folder: str, run_id: str) -> dataset_settings.DatasetSettings:
    return dataset_settings.DatasetSettings(output=folder, identity="", features=(), run_id=run_id)


def _find_previous(folder: str) -> output_folder.FoundCatalog | None:
    """Returns the catalog of an earlier index.

    Raises:
        ConfigError: if the folder holds a dataset of imagebeam.
    """
    found = output_folder.find_catalog(folder)
    if found is None and snapshots.latest_name(folder) is None:
        return None
    if found is None or (found.catalog is not None and not found.catalog.indexed):
        raise errors.ConfigError(f"{folder} is a dataset that imagebeam wrote: it needs no index, and reads as it is")
    if found.catalog is None:
        raise errors.ConfigError(f"{found.error}; if imagebeam index made it, remove it, and run this command again")
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
        raise errors.ConfigError(f"the TFRecord files of {folder} hold no record that can be read")
    convert = shell_words.join(
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
        f"{plural.count(num_broken, 'record')} of {folder} cannot be read:{lines}{more}\nfetch the files again; or "
        "index them with --keep-broken, and read with on_error='skip'"
    )


def result_rows(result: IndexResult, directory: str) -> list[tuple[str, str]]:
    """Returns the rows of the table at the end."""
    catalog = result.catalog
    rows = []
    for name, split in catalog.splits.items():
        parts = [plural.count(len(split.shards), "shard")]
        if result.state != "planned":
            parts.insert(0, plural.count(split.num_examples, "record"))
        num_bytes = split.num_bytes
        rows.append((f"  {name}", ", ".join([*parts, plural.format_bytes(num_bytes)])))
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
    others = [f"{each.key} ({each.kind}{' list' * each.many})" for each in catalog.features if each.source not in taken]
    rows.append(("features", ", ".join(others) or "no others"))
    if catalog.counts.passed_over:
        rows.append(("passed over", printed_tables.describe_passed_over(catalog.counts.passed_over)))
    rows.append(("time", f"{result.seconds:.1f} s"))
    rows.append(("folder", directory))
    return rows
