"""Measures seconds and memory to list and plan references, and whether both grow at most linearly.

No image is read, but the files must exist, since every row's file is looked up: they are hard links to a few tiny ones.
Run from the root of the repository: python -m benchmarks.references > references.json
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness

# The options of `imagebeam plan` for the manifest.
PLAN_OPTIONS = (
    *("--set", "source.by=manifest"),
    *("--set", "source.manifest.key=key"),
    *("--set", "source.manifest.image=image"),
    *("--set", "label.by=column"),
    *("--set", "label.column=label"),
)

_NUM_CLASSES = 1000
_WARM_UP_COUNT = 1000
_MAX_LINKS = 60_000  # to one file: ext4 allows 65,000


def label_of(row: int) -> str:
    """Returns the class of a row. Rows cycle through the classes, so a short manifest is the start of a longer one."""
    return f"n{1440764 + row % _NUM_CLASSES:08d}"


def write_manifest(path: Path, count: int) -> Path:
    """Writes `count` rows key,image,label, with keys and paths as long as ImageNet's."""
    with path.open("w", encoding="ascii") as file:
        file.write("key,image,label\n")
        for row in range(count):
            label = label_of(row)
            name = f"{label}/{label}_{row:08d}"
            file.write(f"{name},images/{name}.JPEG,{label}\n")
    return path


def make_images(folder: Path, count: int) -> None:
    """Makes the files that manifests of up to `count` rows in `folder` name; their content is not read."""
    for row in range(min(_NUM_CLASSES, count)):
        (folder / "images" / label_of(row)).mkdir(parents=True)
    for row in range(count):
        if row % _MAX_LINKS == 0:
            original = folder / f"original-{row // _MAX_LINKS}"
            original.write_bytes(b"image")
        label = label_of(row)
        os.link(original, f"{folder}/images/{label}/{label}_{row:08d}.JPEG")


# --- the steps: what one process does with a manifest ----------------------------------------------------------------


def plan_command(manifest: Path) -> list[str]:
    """Returns the command `imagebeam plan` over the manifest, as a user runs it."""
    return [sys.executable, "-m", "imagebeam", "plan", "--input", str(manifest), *PLAN_OPTIONS]


def place_command(manifest: Path) -> list[str]:
    """Returns the command that runs `place` below in its own process."""
    return [sys.executable, "-m", "benchmarks.references", "--place", str(manifest)]


def place(manifest: Path) -> None:
    """Runs list -> place over the manifest: every reference reaches its shard."""
    from imagebeam.pipelines import make_job
    from imagebeam.pipelines.config import model as config_lib

    addresses = [f"source.uri={manifest}", f"output.uri={manifest.parent / 'output'}"]
    job = make_job.make_job(config_lib.load_config(None, [*PLAN_OPTIONS[1::2], *addresses, "output.num_shards=128"]))
    list_and_place(job.source, job, _count_runs)


def list_and_place(source: Any, job: Any, take: Callable[[Any], Any]) -> None:
    """Runs list -> place with the project's transforms alone, in this process; calls `take` with each placed shard.

    This is the one function here that knows the transforms; it runs in a process of its own, and imports them itself,
    so that neither the harness nor the other step pays for them.
    """
    import apache_beam as beam
    from apache_beam.runners.portability import fn_api_runner

    from imagebeam.transforms import (
        assign_splits,
        label_images,
        list_images,
        place_in_shards,
        plan_dataset,
        rank_references,
    )

    with beam.Pipeline(runner=fn_api_runner.FnApiRunner()) as pipe:
        listed = pipe | list_images.ListImages(source)
        labelled = listed.images | label_images.LabelImages(job.label)
        assigned = labelled.images | assign_splits.AssignSplits(job.split)
        rejects = (listed.rejects, labelled.rejects, assigned.rejects) | beam.Flatten()
        ranked = assigned.images | rank_references.RankInSplits(job.order)
        plan_of = plan_dataset.PlanDataset(job.settings, [listed.tallies], rejects, job.table)
        plan, ranking = ranked.rankings | plan_of
        placed = ranked.runs | place_in_shards.PlaceInShards(plan, ranking)
        _ = placed | "Take" >> beam.Map(take)


def _count_runs(element: Any) -> int:
    """Iterates over every run of a shard, as the writer would."""
    return sum(1 for _ in element[1])


STEPS: dict[str, Callable[[Path], list[str]]] = {"plan": plan_command, "place": place_command}


# --- measure ---------------------------------------------------------------------------------------------------------


def measure_step(step: str, manifests: Mapping[int, Path], rounds: int) -> dict[str, Any]:
    """Returns one step's part of the output: every count in turn, and how time and memory grow with it."""
    command = STEPS[step]
    runs = {str(count): functools.partial(harness.run, command(path)) for count, path in manifests.items()}
    results = harness.run_in_turn(runs, rounds, name=f"{step},")
    # What was stopped has no time; its memory would be the limit's.
    counts = [count for count in manifests if not any(m.stopped for m in results[str(count)])]
    finished = [results[str(count)] for count in counts]

    def grown(values: Callable[[harness.Measurement], float]) -> dict[str, Any] | None:
        return harness.growth(counts, [statistics.median(map(values, measurements)) for measurements in finished])

    return {
        "counts": {count: harness.summarize(m, int(count), "references") for count, m in results.items()},
        "growth": {
            "seconds": grown(lambda m: m.seconds),
            "cpu_seconds": grown(lambda m: m.cpu_seconds),
            "peak_rss_mb": grown(lambda m: m.peak_rss_bytes / harness.MEGABYTE),
            "peak_pss_mb": grown(lambda m: m.peak_pss_bytes / harness.MEGABYTE),
        },
    }


def measure(steps: Sequence[str], counts: Sequence[int], rounds: int, scratch: Path) -> dict[str, Any]:
    """Runs the whole benchmark; returns the object to print."""
    machine = harness.describe_machine()
    with tempfile.TemporaryDirectory(prefix="imagebeam-references-", dir=scratch) as temporary:
        folder = Path(temporary)
        harness.progress(f"writing manifests of {', '.join(map(str, counts))} rows and what they name")
        make_images(folder, max(_WARM_UP_COUNT, *counts))
        manifests = {count: write_manifest(folder / f"manifest-{count}.csv", count) for count in counts}
        harness.warm_files(manifests.values())
        warm_up = write_manifest(folder / "warm-up.csv", _WARM_UP_COUNT)
        for step in steps:
            harness.progress(f"warm-up {step}")
            harness.run(STEPS[step](warm_up))
        return {
            "benchmark": "references",
            "machine": machine,
            "rounds": rounds,
            "manifest_mb": {
                str(count): round(path.stat().st_size / harness.MEGABYTE, 1) for count, path in manifests.items()
            },
            "steps": {step: measure_step(step, manifests, rounds) for step in steps},
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", nargs="+", choices=STEPS, default=["plan"], help="default: plan")
    parser.add_argument("--count", type=int, nargs="+", default=[250_000, 500_000, 1_000_000], help="rows")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each count")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--place", type=Path, metavar="MANIFEST", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.place:
        place(args.place)
        return 0
    if min(args.count) < 1 or args.rounds < 1:
        parser.error("--count and --rounds take numbers from 1")
    return harness.print_result(lambda: measure(args.step, sorted(set(args.count)), args.rounds, args.scratch))


if __name__ == "__main__":
    sys.exit(main())
