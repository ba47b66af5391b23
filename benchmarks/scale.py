"""Measures list -> label -> split -> rank -> plan -> place on generated references: time, memory, shuffled bytes.

No file exists and none is looked at, so the number of references is limited by memory alone: the local runner keeps all
that crosses a shuffle in memory. Run from the root of the repository: python -m benchmarks.scale > scale.json
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from imagebeam.transforms import elements
from imagebeam.transforms.sources import image_source

_NUM_CLASSES = 1000
_NUM_SHARDS = 1024
_SPLITS = {
    "none": ["split.by=none"],
    "hash": ["split.by=hash", "split.fractions={train: 0.9, test: 0.1}"],
    "stratified": ["split.by=hash", "split.fractions={train: 0.9, test: 0.1}", "split.stratify=true"],
}


# In this process, where the local runner runs everything. A run imports this module, so that Beam pickles names alone.
_num_bytes: collections.Counter[str] = collections.Counter()
_RUN = "import sys; from benchmarks import scale; scale.run(*sys.argv[1:])"


@dataclasses.dataclass(frozen=True)
class GeneratedSource:
    """References with names as long as ImageNet's, made where they are looked up."""

    count: int
    num_classes: int = _NUM_CLASSES

    def list_all(self) -> Iterator[image_source.Listing]:
        return (self.look_up(batch) for batch in self.list_rows())

    def list_rows(self) -> Iterator[image_source.RowBatch]:
        for start in range(0, self.count, image_source.MAX_REFS):
            yield image_source.RowBatch(b"%d" % start)

    def look_up(self, batch: image_source.RowBatch) -> image_source.Listing:
        start, found = int(batch.packed), image_source.ListingBuilder()
        for row in range(start, min(start + image_source.MAX_REFS, self.count)):
            folder = f"n{1440764 + row % self.num_classes:08d}"
            key = f"{folder}/{folder}_{row:09d}.JPEG"
            found.refs.append(elements.ImageRef(key, f"gs://bucket/train/{key}", 100_000 + row % 7919, 1 + row))
        return found.take()


def run(count: str, split: str, num_classes: str, report: str) -> None:
    """Runs the steps over `count` references in this process; writes the bytes that crossed each shuffle."""
    source = GeneratedSource(int(count), int(num_classes))
    import apache_beam as beam
    from apache_beam.runners.portability import fn_api_runner

    from imagebeam.pipelines import config, make_job
    from imagebeam.transforms import (
        assign_splits,
        label_images,
        list_images,
        place_in_shards,
        plan_dataset,
        rank_references,
    )

    _count_packed_bytes()
    with tempfile.TemporaryDirectory() as folder:
        addresses = [f"source.uri={folder}", f"output.uri={folder}/output", f"output.num_shards={_NUM_SHARDS}"]
        job = make_job.make_job(config.load_config(None, [*addresses, *_SPLITS[split]]))
        with beam.Pipeline(runner=fn_api_runner.FnApiRunner()) as pipe:
            listed = pipe | list_images.ListImages(source)
            labelled = listed.images | label_images.LabelImages(job.label)
            assigned = labelled.images | assign_splits.AssignSplits(job.split)
            rejects = (listed.rejects, labelled.rejects, assigned.rejects) | beam.Flatten()
            ranked = assigned.images | rank_references.RankInSplits(job.order)
            plan = ranked.ranking | plan_dataset.PlanDataset(job.settings, listed.tallies, rejects, job.table)
            placed = ranked.runs | place_in_shards.PlaceInShards(plan)
            _ = placed | "CountPlaced" >> beam.Map(_count_placed)
    Path(report).write_text(json.dumps(_num_bytes))


def _count_packed_bytes() -> None:
    """Counts the bytes of rows that are packed on the way to their intervals, from now on."""
    pack_rows = elements.pack_rows

    def count(rows: Sequence[tuple[Any, ...]]) -> bytes:
        packed = pack_rows(rows)
        if sys._getframe(1).f_code.co_name == "_take":  # of rank_references
            _num_bytes["grouped"] += len(packed)
        return packed

    elements.pack_rows = count


def _count_placed(element: Any) -> None:
    """Iterates over every run of a shard, as the writer would."""
    _num_bytes["placed"] += sum(len(packed) for _, packed in element[1])


def measure(counts: Sequence[int], split: str, num_classes: int, rounds: int) -> dict[str, Any]:
    """Runs the whole benchmark; returns the object to print."""
    machine = harness.describe_machine()
    with tempfile.TemporaryDirectory(prefix="imagebeam-scale-") as folder:
        reports = {count: Path(folder) / f"{count}.json" for count in counts}
        commands = {
            str(count): [sys.executable, "-c", _RUN, str(count), split, str(num_classes), str(path)]
            for count, path in reports.items()
        }
        results = harness.run_in_turn(
            {count: functools.partial(harness.run, command) for count, command in commands.items()}, rounds
        )
        found = {}
        for count in counts:
            measured = harness.summarize(results[str(count)], count, "references")
            packed = json.loads(reports[count].read_text())
            measured["shuffle_bytes_per_reference"] = {name: round(size / count, 1) for name, size in packed.items()}
            found[str(count)] = measured

    def grown(name: str) -> dict[str, Any] | None:
        values = [statistics.median([getattr(each, name) for each in results[str(count)]]) for count in counts]
        return harness.growth(counts, values)

    return {
        "benchmark": "scale",
        "machine": machine,
        "split": split,
        "classes": num_classes,
        "counts": found,
        "growth": {name: grown(name) for name in ("seconds", "cpu_seconds", "peak_rss_bytes")},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, nargs="+", default=[250_000, 500_000, 1_000_000], help="references")
    parser.add_argument("--split", choices=_SPLITS, default="none")
    parser.add_argument("--classes", type=int, default=_NUM_CLASSES)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    if min(args.count) < 1 or args.rounds < 1 or args.classes < 1:
        parser.error("--count, --classes and --rounds take numbers from 1")
    return harness.print_result(lambda: measure(sorted(set(args.count)), args.split, args.classes, args.rounds))


if __name__ == "__main__":
    sys.exit(main())
