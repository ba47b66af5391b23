"""Measures seconds and memory to list and place many references, and whether both grow at most linearly.

The references are rows of a manifest. `source.manifest.trust` is true, so no file is looked up and none exists. Run
from the root of the repository: python -m benchmarks.references > references.json
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import harness

_SETTINGS = (
    "source={by: manifest, manifest: {key: key, image: image, size: size, trust: true}}",
    "label={by: column, column: label}",
)
_SPLITS = {
    "none": ["split.by=none"],
    "hash": ["split.by=hash", "split.fractions={train: 0.9, test: 0.1}"],
    "stratified": ["split.by=hash", "split.fractions={train: 0.9, test: 0.1}", "split.stratify=true"],
}
_STEPS = ("plan", "place")
_PLACE = "import sys; from benchmarks import references; references.place(*sys.argv[1:])"
_NUM_CLASSES = 1000
_WARM_UP_COUNT = 1000


def _write_manifest(path: Path, count: int) -> Path:
    """Writes `count` rows with keys and paths as long as ImageNet's."""
    with path.open("w", encoding="ascii") as file:
        file.write("key,image,label,size\n")
        for row in range(count):
            label = f"n{1440764 + row % _NUM_CLASSES:08d}"
            name = f"{label}/{label}_{row:08d}"
            file.write(f"{name},images/{name}.JPEG,{label},{100_000 + row % 7919}\n")
    return path


def _command(step: str, manifest: Path, split: str) -> list[str]:
    settings = [*_SETTINGS, *_SPLITS[split]]
    if step == "place":
        return [sys.executable, "-c", _PLACE, str(manifest), *settings]
    return harness.imagebeam_command("plan", "image_folder", settings, "--input", manifest)


def place(manifest: str, *settings: str) -> None:
    """Runs the steps from the listing to the references of each shard, as one process of Beam's local runner does."""
    import apache_beam as beam
    from apache_beam.runners.portability import fn_api_runner

    from imagebeam.pipelines import job as job_lib
    from imagebeam.pipelines.config import model as config_lib
    from imagebeam.transforms import list_images, rank_references, stratify_splits, write_shards
    from imagebeam.transforms.plan import plan_dataset

    addresses = [f"source.uri={manifest}", f"output.uri={manifest}.output", "output.num_shards=1024"]
    job = job_lib.make_job(job_lib.Checked(config_lib.load_config(None, [*settings, *addresses]), 1))
    with beam.Pipeline(runner=fn_api_runner.FnApiRunner()) as pipe:
        listed = pipe | list_images.ListImages(job.source, job.rules)
        split = listed.images | stratify_splits.StratifySplits(job.split)
        ranked = split | rank_references.RankInSplits(job.order)
        plan_of = plan_dataset.PlanDataset(job.settings, listed.tallies, listed.rejects, job.table)
        plan, ranking = ranked.rankings | plan_of
        placed = ranked.runs | write_shards.PlaceInShards(plan, ranking)
        _ = placed | "Take" >> beam.Map(_count_runs)


def _count_runs(element: Any) -> int:
    """Iterates over every run of a shard, as the writer would."""
    return sum(1 for _ in element[1])


def _measure_step(step: str, manifests: dict[int, Path], args: argparse.Namespace) -> dict[str, Any]:
    """Returns one step's part of the output: every count in turn, and how time and memory grow with it."""
    runs = {
        str(count): functools.partial(harness.run, _command(step, path, args.split))
        for count, path in manifests.items()
    }
    results = harness.run_in_turn(runs, args.rounds, name=f"{step},")
    # A stopped run has no time, and its memory would be the limit's.
    counts = [count for count in manifests if not any(m.stopped for m in results[str(count)])]

    def grown(cost: Callable[[harness.Measurement], float]) -> dict[str, Any] | None:
        return harness.growth(counts, [statistics.median(map(cost, results[str(count)])) for count in counts])

    return {
        "counts": {count: harness.summarize(m, int(count), "references") for count, m in results.items()},
        "growth": {
            "seconds": grown(lambda m: m.seconds),
            "cpu_seconds": grown(lambda m: m.cpu_seconds),
            "peak_rss_mb": grown(lambda m: m.peak_rss_bytes / harness.MEGABYTE),
        },
    }


def _measure(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    manifests = {count: _write_manifest(scratch / f"{count}.csv", count) for count in sorted(set(args.count))}
    warm_up = _write_manifest(scratch / "warm-up.csv", _WARM_UP_COUNT)
    for step in args.step:
        harness.run(_command(step, warm_up, args.split))
    return {"split": args.split, "steps": {step: _measure_step(step, manifests, args) for step in args.step}}


if __name__ == "__main__":
    parser = harness.make_parser(__doc__)
    parser.add_argument("--step", nargs="+", choices=_STEPS, default=list(_STEPS), help="default: both")
    parser.add_argument("--count", type=harness.positive, nargs="+", default=[250_000, 500_000, 1_000_000])
    parser.add_argument("--split", choices=_SPLITS, default="none")
    harness.main("references", _measure, parser.parse_args())
