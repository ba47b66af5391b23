"""Measures `imagebeam convert --update` of images at gs:// that have not changed, against `imagebeam plan` of the same.

Both list a bucket of the emulator of the tests, which Go builds. The snapshot is made of the listing: its catalog and
states are real, its shards are files of one byte. Run from the root of the repository: python -m benchmarks.update
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import harness, scale
from imagebeam import catalog as catalog_lib
from imagebeam import snapshots
from imagebeam.transforms.sources import files
from tests.servers import gcs

_URI = "gs://large/images"
_WRITE = "import sys; from benchmarks import update; update.write_snapshot(*sys.argv[1:])"


def write_snapshot(dataset: str) -> None:
    """Writes a snapshot of the whole bucket, as far as an update without a change looks at it."""
    import imagebeam

    plan = imagebeam.plan({"source": {"uri": _URI}, "output": {"uri": dataset}}, update=True)
    folder = Path(dataset) / snapshots.DIRECTORY / "000001"
    (folder / snapshots.STATE_DIRECTORY).mkdir(parents=True)
    shards = scale.write_states(folder, files.FilesSource(_URI).list_all())
    for shard in shards:
        (folder / shard.name).write_bytes(b"x")
    counts = catalog_lib.Counts(plan.listed, plan.listed, {}, plan.passed_over)
    splits = {"train": catalog_lib.Split(tuple(shards))}
    catalog = catalog_lib.Catalog(
        *("update", plan.fingerprint, "none", splits, plan.labels, "class", 0, (), {}, counts, {}, ""),
        snapshot=plan.snapshot,
        inputs=plan.inputs,
    )
    (folder / catalog_lib.CATALOG_FILE).write_text(catalog.to_json())
    (Path(dataset) / snapshots.LATEST_FILE).write_text("000001\n")


def measure(count: int, rounds: int) -> dict[str, Any]:
    """Runs the whole benchmark; returns the object to print."""
    with tempfile.TemporaryDirectory(prefix="imagebeam-update-") as folder, gcs.run(Path(folder), count) as emulator:
        dataset = f"{folder}/dataset"
        run = functools.partial(harness.run, env=emulator.environment)
        run([sys.executable, "-c", _WRITE, dataset])
        imagebeam = [sys.executable, "-m", "imagebeam"]
        addresses = ["--input", _URI, "--output", dataset]
        commands = {
            "plan": [*imagebeam, "plan", "--input", _URI, "--output", f"{folder}/new"],
            "update": [*imagebeam, "convert", "--update", *addresses],
            "update_by_content": [*imagebeam, "convert", "--update", *addresses, "--set", "update.compare=content"],
        }
        results = harness.run_in_turn(
            {name: functools.partial(run, command) for name, command in commands.items()}, rounds
        )
        assert len(list(Path(dataset).glob("snapshots/*"))) == 1, "an update has found a change"
        cpu = {name: statistics.median(each.cpu_seconds for each in found) for name, found in results.items()}
        return {
            "benchmark": "update",
            "machine": harness.describe_machine(),
            "commands": {name: harness.summarize(found, count, "references") for name, found in results.items()},
            "cpu_over_plan": {name: round(seconds / cpu["plan"], 2) for name, seconds in cpu.items()},
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200_000, help="objects")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.count < 1 or args.rounds < 1:
        parser.error("--count and --rounds take numbers from 1")
    return harness.print_result(lambda: measure(args.count, args.rounds))


if __name__ == "__main__":
    sys.exit(main())
