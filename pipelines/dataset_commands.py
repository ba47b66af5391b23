"""Commands on a dataset that is there: snapshots, status, verify, inspect, report, bench.

They import the modules that they need when they run, so that each starts at once.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import time

import imagebeam
from imagebeam import catalog as catalog_lib
from imagebeam import errors, plural
from imagebeam import snapshots as snapshots_lib
from imagebeam.pipelines.messages import printed_tables, run_journal, terminal

_MAX_NOTES = 100  # problems of a dataset in a summary


def snapshots(known: argparse.Namespace, _: list[str]) -> int:
    """Lists the snapshots of a dataset, pins them, or removes old ones. Returns the exit code."""
    from imagebeam.pipelines import keep_snapshots

    for name, is_pinned in ((known.pin, True), (known.unpin, False)):
        if name is not None:
            keep_snapshots.set_pin(known.directory, name, is_pinned)
    if known.keep is not None:
        remove_snapshots(known.directory, known.keep)
    if known.report is not None:
        rows = printed_tables.report_rows(keep_snapshots.load_report(known.directory, known.report))
    else:
        rows = keep_snapshots.snapshot_rows(keep_snapshots.list_snapshots(known.directory))
    printed_tables.print_table(rows)
    return 0


def remove_snapshots(directory: str, num_kept: int) -> None:
    """Removes all snapshots but the newest ones and those that are pinned, and prints which."""
    from imagebeam.pipelines import keep_snapshots

    removal = keep_snapshots.keep_snapshots(directory, num_kept)
    if removal.removed:
        files = plural.count(removal.num_files, "file")
        terminal.say(
            f"removed {plural.count(len(removal.removed), 'snapshot')}: {', '.join(removal.removed)} ({files})"
        )
    if removal.pinned:
        terminal.say(f"kept, because pinned: {', '.join(removal.pinned)}")


def status(known: argparse.Namespace, _: list[str]) -> int:
    """Prints how the last run of an output ended, or how it goes on. Returns the exit code."""
    from imagebeam.pipelines import status

    found = status.status(known.directory)
    if known.json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        printed_tables.print_table(status.status_rows(found))
    return found.exit_code


def verify(known: argparse.Namespace, _: list[str]) -> int:
    """Compares a dataset with its catalog. Returns the exit code."""
    from imagebeam.pipelines import verify_dataset

    start = time.monotonic()
    if known.decode and verify_dataset.needs_tensorflow(known.directory, known.snapshot):
        if not known.verbose:  # TensorFlow logs each image that it refuses, and once more when the process ends
            os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
        _import_tensorflow(known.verbose)
    journal: run_journal.Journal = known.journal
    result = verify_dataset.verify(known.directory, known.decode, known.snapshot)
    journal.take_catalog(result.catalog)
    journal.notes = [str(problem) for problem in result.problems[:_MAX_NOTES]]
    for problem in result.problems:
        terminal.complain(str(problem))
    counts = result.catalog.counts
    decoded = ", every image decoded" if known.decode else ""
    if result.problems:
        terminal.complain(result.advice)
        error = errors.VerificationError("dataset-differs", result.advice)
        journal.end("failed", error.exit_code, error.text, error)
        return error.exit_code
    journal.end("verified", 0)
    records = plural.count(counts.written, "record")
    snapshot = snapshots_lib.name_of(result.catalog)
    which = f", snapshot {snapshot}" if snapshot else ""
    shown = (
        f"{known.directory}{which}: {records} in {plural.count(result.num_shards, 'shard')} "
        f"{'matches' if counts.written == 1 else 'match'} the catalog{decoded} ({time.monotonic() - start:.1f} s)"
    )
    terminal.say_in_lines(shown)
    return 0


def inspect(known: argparse.Namespace, _: list[str]) -> int:
    """Prints what a dataset holds, with some of its examples. Returns the exit code."""
    from imagebeam.pipelines import inspect_buckets, inspect_dataset, verify_dataset

    inspect_buckets.check_options(known)
    directory, catalog = snapshots_lib.find(verify_dataset.find_folder(known.directory), known.snapshot)
    split = known.split or next(iter(catalog.splits))
    _check_split(split, catalog)
    if known.buckets is not None:
        dataset = imagebeam.open_dataset(known.directory, snapshot=known.snapshot)
        found = inspect_buckets.inspect(dataset, known)
        if known.json:
            print(json.dumps(found.to_json(), indent=1))
        else:
            print("\n".join(inspect_buckets.lines(found)))
        return 0
    if known.json:
        described = inspect_dataset.to_json(catalog, directory)
        if known.n is not None:
            examples = itertools.islice(inspect_dataset.read_examples(directory, catalog, split), known.n)
            described["examples"] = list(map(inspect_dataset.example_to_json, examples))
        if known.save_to is not None:
            described["saved"] = inspect_dataset.save_images(directory, catalog, split, known.n or 5, known.save_to)
        print(json.dumps(described, indent=1))
        return 0
    printed_tables.print_table(inspect_dataset.catalog_rows(catalog, directory))
    terminal.say("features of each example:")
    printed_tables.print_table(inspect_dataset.feature_rows(catalog))
    for index, values in zip(range(known.n or 0), inspect_dataset.read_examples(directory, catalog, split)):
        print()
        shown = f"{split} {index}: {inspect_dataset.describe_example(values)}"
        terminal.say_in_lines(shown)
        if terminal.reader_has_gone() and known.save_to is None:
            return terminal.NOBODY_READS
    if known.save_to is not None:
        paths = inspect_dataset.save_images(directory, catalog, split, known.n or 5, known.save_to)
        print()
        terminal.say(f"{plural.count(len(paths), 'image')} written to {known.save_to}")
    return 0


def report(known: argparse.Namespace, _: list[str]) -> int:
    """Writes the report of a dataset. Returns the exit code."""
    from imagebeam.pipelines import inspect_dataset

    num_bytes = inspect_dataset.write_report(known.directory, known.output, known.snapshot)
    terminal.say(f"{plural.format_bytes(num_bytes)} written to {known.output}: open it in a browser")
    return 0


def bench(known: argparse.Namespace, _: list[str]) -> int:
    """Measures how fast a dataset is read. Returns the exit code."""
    from imagebeam import storage
    from imagebeam.pipelines import bench_reader, verify_dataset

    if storage.scheme_of(known.directory) == "file":  # TensorFlow reads gs:// even if our own client is not installed
        verify_dataset.find_folder(known.directory)
    dataset = imagebeam.open_dataset(known.directory, cache_dir=known.cache_dir, snapshot=known.snapshot)
    split = known.split or ("train" if "train" in dataset.splits else next(iter(dataset.splits)))
    _check_split(split.partition("[")[0], dataset.catalog)
    _import_tensorflow(known.verbose)
    terminal.tell(f"measuring 4 x {known.seconds:g} s; other running programs lower the result")
    asked = {name: getattr(known, name) for name in ("batch_size", "image_size", "dtype", "seconds", "threads")}
    result = bench_reader.run_bench(dataset, split, **asked)
    if known.json:
        print(json.dumps(result.to_json(), indent=1))
        return 0
    printed_tables.print_table(bench_reader.bench_rows(result))
    terminal.say_in_lines(bench_reader.summarize(result))
    return 0


def _check_split(split: str, catalog: catalog_lib.Catalog) -> None:
    if split not in catalog.splits:
        raise errors.ConfigError("split-unknown", f"--split {split!r} is not one of {', '.join(catalog.splits)}")


def _import_tensorflow(verbose: bool) -> None:
    """Imports TensorFlow for reading alone. If it is not installed, the reader reports that."""
    with contextlib.suppress(ModuleNotFoundError), contextlib.nullcontext() if verbose else terminal.hush_libraries():
        import tensorflow as tf

        # Otherwise the first tensor would take all memory of a GPU, where a training may be running.
        tf.config.set_visible_devices([], "GPU")
