"""Measures list -> label -> split -> rank -> plan -> place on generated references: time, memory, shuffled bytes.

With --update, the references are those of a snapshot that is there: list -> label -> split -> compare -> plan.

No file exists and none is looked at, so the number of references is limited by memory alone: the local runner keeps all
that crosses a shuffle in memory. Run from the root of the repository: python -m benchmarks.scale > scale.json
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness, references
from imagebeam import catalog as catalog_lib
from imagebeam import snapshots
from imagebeam.transforms import elements
from imagebeam.transforms.snapshots import image_states, snapshot_settings
from imagebeam.transforms.sources import image_source

_NUM_CLASSES = 1000
_NUM_SHARDS = 1024
_RECORDS_IN_SHARD = 1000
_SPLITS = {
    "none": ["split.by=none"],
    "hash": ["split.by=hash", "split.fractions={train: 0.9, test: 0.1}"],
    "stratified": ["split.by=hash", "split.fractions={train: 0.9, test: 0.1}", "split.stratify=true"],
}


# In this process, where the local runner runs everything. A run imports this module, so that Beam pickles names alone.
_num_bytes: collections.Counter[str] = collections.Counter()
_RUN = "import sys; from benchmarks import scale; scale.run(*sys.argv[1:])"
_UPDATE = "import sys; from benchmarks import scale; scale.update(*sys.argv[1:])"
_WRITE = "import sys; from benchmarks import scale; scale.write_snapshot(*sys.argv[1:])"


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
    from imagebeam.pipelines import make_job
    from imagebeam.pipelines.config import model as config_lib

    _count_packed_bytes()
    with tempfile.TemporaryDirectory() as folder:
        addresses = [f"source.uri={folder}", f"output.uri={folder}/output", f"output.num_shards={_NUM_SHARDS}"]
        job = make_job.make_job(config_lib.load_config(None, [*addresses, *_SPLITS[split]]))
        references.list_and_place(source, job, _count_placed)
    Path(report).write_text(json.dumps(_num_bytes))


def write_snapshot(count: str, num_classes: str, dataset: str) -> None:
    """Writes what an update reads of a snapshot of `count` references: the catalog and the states, without shards."""
    source = GeneratedSource(int(count), int(num_classes))
    folder = Path(dataset) / snapshots.DIRECTORY / "000001"
    (folder / catalog_lib.STATE_DIRECTORY).mkdir(parents=True)
    made = write_states(folder, source.list_all())
    labels = tuple(sorted(f"n{1440764 + number:08d}" for number in range(int(num_classes))))
    counts = catalog_lib.Counts(int(count), int(count), {}, {})
    splits = {"train": catalog_lib.Split(tuple(made))}
    facts = {"name": "000001", "base": None}
    catalog = catalog_lib.Catalog(
        "scale", "0", "none", splits, labels, "class", 0, (), {}, counts, {}, "", snapshot=facts
    )
    (folder / catalog_lib.CATALOG_FILE).write_text(catalog.to_json())


def write_states(folder: Path, listings: Iterable[image_source.Listing]) -> list[catalog_lib.Shard]:
    """Writes the states of all listed images into the folder of a snapshot; returns the shards that they are of."""
    refs = (ref for listing in listings for ref in elements.unpack_refs(listing.packed_refs))
    made = []
    while rows := list(itertools.islice(refs, _RECORDS_IN_SHARD)):
        shard = catalog_lib.Shard(f"train-{len(made):05d}.tfrecord", len(rows), 1, 1)
        states = image_states.StateBuilder()
        for ref in rows:
            labelled = ref.with_label(ref.key.split("/")[0], "").with_split("train")
            facts = image_states.facts_of(labelled, keep_position=False)
            states.add(labelled._replace(facts=facts), elements.Measures("jpeg", "RGB", 1, 480, 640, ref.size))
        (folder / shard.state_name).write_bytes(states.encode())
        made.append(shard)
    return made


def update(count: str, num_classes: str, dataset: str, report: str) -> None:
    """Runs the steps of an update without a change in this process; writes the bytes that crossed the shuffle."""
    source = GeneratedSource(int(count), int(num_classes))
    import apache_beam as beam
    from apache_beam.runners.portability import fn_api_runner

    from imagebeam.pipelines import make_job
    from imagebeam.pipelines.config import model as config_lib
    from imagebeam.transforms import assign_splits, label_images, list_images
    from imagebeam.transforms.updates import compare_with_snapshot

    _count_packed_bytes()
    snapshot = snapshot_settings.SnapshotSettings(dataset, "000002", "000001")
    job = make_job.make_job(
        config_lib.load_config(None, [f"source.uri={Path(dataset).parent}", f"output.uri={dataset}", *_SPLITS["none"]]),
        snapshot=snapshot,
    )
    with beam.Pipeline(runner=fn_api_runner.FnApiRunner()) as pipe:
        listed = pipe | list_images.ListImages(source)
        labelled = listed.images | label_images.LabelImages(job.label)
        assigned = labelled.images | assign_splits.AssignSplits(job.split)
        rejects = (listed.rejects, labelled.rejects, assigned.rejects) | beam.Flatten()
        compared = assigned.images | compare_with_snapshot.CompareWithSnapshot(snapshot, rejects, False)
        _ = pipe | beam.Impulse() | "Check" >> beam.Map(_require_unchanged, int(count), compared.comparison)
    Path(report).write_text(json.dumps(_num_bytes))


def _require_unchanged(_: bytes, count: int, comparison: Any) -> None:
    assert comparison.totals() == {"added": 0, "changed": 0, "removed": 0, "unchanged": count}


def _count_packed_bytes() -> None:
    """Counts the bytes of rows that are packed on the way to their intervals, from now on."""
    pack_rows = elements.pack_rows

    def count(rows: Sequence[tuple[Any, ...]]) -> bytes:
        packed = pack_rows(rows)
        if sys._getframe(1).f_code.co_name in ("_take", "take"):  # of rank_references, of compare_with_snapshot
            _num_bytes["grouped"] += len(packed)
        return packed

    elements.pack_rows = count


def _count_placed(element: Any) -> None:
    """Iterates over every run of a shard, as the writer would."""
    _num_bytes["placed"] += sum(len(packed) for _, packed in element[1])


def measure(counts: Sequence[int], split: str, num_classes: int, rounds: int, updates: bool) -> dict[str, Any]:
    """Runs the whole benchmark; returns the object to print."""
    machine = harness.describe_machine()
    with tempfile.TemporaryDirectory(prefix="imagebeam-scale-") as folder:
        reports = {count: Path(folder) / f"{count}.json" for count in counts}
        commands = {
            str(count): [sys.executable, "-c", _RUN, str(count), split, str(num_classes), str(path)]
            for count, path in reports.items()
        }
        for count, path in reports.items() if updates else ():
            given = [str(count), str(num_classes), str(Path(folder) / f"dataset-{count}")]
            harness.run([sys.executable, "-c", _WRITE, *given])
            commands[str(count)] = [sys.executable, "-c", _UPDATE, *given, str(path)]
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
        "split": "none" if updates else split,
        "update": updates,
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
    parser.add_argument("--update", action="store_true", help="compare with a snapshot of the same references")
    args = parser.parse_args()
    if min(args.count) < 1 or args.rounds < 1 or args.classes < 1:
        parser.error("--count, --classes and --rounds take numbers from 1")
    counts = sorted(set(args.count))
    return harness.print_result(lambda: measure(counts, args.split, args.classes, args.rounds, args.update))


if __name__ == "__main__":
    sys.exit(main())
