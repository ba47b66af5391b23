"""Measures the analysis of columns of z_score and bucketize on generated values: time, memory, bytes to one worker.

The local runner analyses in one process, so the time is that of all workers together, with 10 s to start TensorFlow and
tf.Transform. Run from the root of the repository: python -m benchmarks.columns > columns.json
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import pickle
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from imagebeam import features
from imagebeam.transforms import elements
from imagebeam.transforms.columns import transformed_column

_NUM_SHARDS = 64
_AGE = transformed_column.ColumnTransform("age", "age", 0, features.FLOAT, "z_score")
_PRICE = transformed_column.ColumnTransform("price", "price", 1, features.FLOAT, "bucketize")

# In this process, where the local runner runs everything. A run imports this module, so that Beam pickles names alone.
_bytes_by_interval: collections.Counter[int] = collections.Counter()
_sums: collections.Counter[str] = collections.Counter()
_RUN = "import sys; from benchmarks import columns; columns.run(*sys.argv[1:])"


def make_shard(shard_index: int, num_refs: int) -> Any:
    """Returns a placed shard: ages spread like a normal distribution, prices over many orders of magnitude."""
    rng = np.random.default_rng(shard_index)
    rows = zip(rng.normal(40, 12, num_refs).tolist(), rng.lognormal(3, 2, num_refs).tolist())
    refs = [elements.ImageRef(f"{row:09}", "", split="train", columns=values) for row, values in enumerate(rows)]
    return ("train", shard_index), [(shard_index * num_refs, elements.pack_refs(refs))]


def run(count: str, report: str) -> None:
    """Analyses `count` references in this process; writes how many bytes reached one worker at most."""
    import apache_beam as beam
    from apache_beam.runners.portability import fn_api_runner

    from imagebeam.transforms.columns import column_preprocessing, transform_columns

    _count_bytes()
    transforms = (_AGE, _PRICE)
    with tempfile.TemporaryDirectory() as folder, beam.Pipeline(runner=fn_api_runner.FnApiRunner()) as pipe:
        shards = pipe | beam.Create(range(_NUM_SHARDS)) | beam.Map(make_shard, num_refs=int(count) // _NUM_SHARDS)
        batches = shards | beam.ParDo(transform_columns._TakeValuesFn(transforms, None)).with_output_types(Any)
        _ = batches | column_preprocessing.AnalyzeColumns(transforms, folder)
    found = {
        "intervals": len(_bytes_by_interval),
        "counts_bytes": sum(_bytes_by_interval.values()),
        "largest_interval_bytes": max(_bytes_by_interval.values()),
        **_sums,
    }
    Path(report).write_text(json.dumps(found))


def _count_bytes() -> None:
    """Counts the bytes of counts on the way to their intervals, and of sums on the way to one worker, from now on."""
    from imagebeam.transforms.columns import analyze_values, exact_statistics

    count_ordinals = exact_statistics.count_ordinals

    def count(ordinals: Any) -> Any:
        found = count_ordinals(ordinals)
        _bytes_by_interval.update({interval: sum(map(len, counts)) for interval, counts in found.items()})
        return found

    def merge(self: Any, accumulators: Any) -> Any:
        def counted() -> Iterator[Any]:
            for each in accumulators:
                _sums.update(sums=1, sums_bytes=len(pickle.dumps(each)))
                yield each

        return exact_statistics.Moments().merge(counted())

    exact_statistics.count_ordinals = count
    analyze_values._SumUpFn.merge_accumulators = merge  # type: ignore[method-assign]


def measure(count: int, rounds: int) -> dict[str, Any]:
    """Runs the whole benchmark; returns the object to print."""
    machine = harness.describe_machine()
    with tempfile.TemporaryDirectory(prefix="imagebeam-columns-") as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-c", _RUN, str(count), str(report)]
        results = harness.run_in_turn({"columns": functools.partial(harness.run, command)}, rounds)
        found = harness.summarize(results["columns"], count, "references") | json.loads(report.read_text())
    return {"benchmark": "columns", "machine": machine, "references": count, **found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000, help="references")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    if args.count < _NUM_SHARDS or args.rounds < 1:
        parser.error(f"--count takes numbers from {_NUM_SHARDS}, --rounds from 1")
    return harness.print_result(lambda: measure(args.count, args.rounds))


if __name__ == "__main__":
    sys.exit(main())
