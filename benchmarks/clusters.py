"""Measures `imagebeam convert` of small images here, on Flink and on Spark, whose clusters are made on this machine.

Each round starts a cluster anew, and converts twice on it: "cold", and "warm" with the Java processes of the first run.

Run from the root of the repository: python -m benchmarks.clusters --count 5000 > clusters.json
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks import harness
from tests import image_sets
from tests.servers import clusters

_KINDS: dict[str, type[clusters.Cluster]] = {"flink": clusters.Flink, "spark": clusters.Spark}
_LABELS = [f"label{index}" for index in range(10)]
_NUM_SHARDS = 16


def _cpu_seconds(programs: Sequence[clusters.Program]) -> float:
    """Returns what the processes of a cluster have used, also those that have ended."""
    total = 0.0
    for process in (each for program in programs for each in harness.tree(program.process.pid)):
        with contextlib.suppress(psutil.Error):  # ended meanwhile: its parent has its time
            total += sum(process.cpu_times()[:4])
    return total


def _convert(source: Path, output: Path, count: int, *options: str) -> harness.Measurement:
    where = "--quiet", "--input", source, "--output", output
    command = harness.imagebeam_command("convert", "image_folder", [f"output.num_shards={_NUM_SHARDS}"], *where)
    return harness.run_writer("imagebeam", [*command, *options], output, count)


def _measure_cluster(name: str, args: argparse.Namespace, source: Path, scratch: Path) -> list[harness.Measurement]:
    """Returns the cold and the warm run."""
    folder = scratch / name
    folder.mkdir()
    found = []
    with clusters.run(_KINDS[name], folder, num_workers=args.cluster_workers) as cluster:
        for _ in range(2):
            before = _cpu_seconds(cluster.programs)
            launcher = _convert(source, scratch / "output", args.count, *cluster.options(), *args.options)
            cpu_seconds = launcher.cpu_seconds + _cpu_seconds(cluster.programs) - before
            found.append(dataclasses.replace(launcher, cpu_seconds=cpu_seconds))
    shutil.rmtree(folder)
    return found


def _measure(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    source = scratch / "input"
    image_sets.write_folder(source, _LABELS, per_label=args.count // len(_LABELS))
    args.count -= args.count % len(_LABELS)
    runs = {}
    for peer in args.peers:
        if peer == "local":
            runs[peer] = functools.partial(_convert, source, scratch / "output", args.count)
            continue
        pending: list[harness.Measurement] = []  # the warm run follows the cold one on the same cluster

        def measure(peer: str, pending: list[harness.Measurement]) -> harness.Measurement:
            if not pending:
                pending += _measure_cluster(peer, args, source, scratch)
            return pending.pop(0)

        runs |= {f"{peer}-{kind}": functools.partial(measure, peer, pending) for kind in ("cold", "warm")}
    results = harness.run_in_turn(runs, args.rounds, name=f"{args.count} images,")
    pairs = [(second, first) for first in results for second in results if first != second == "local"]
    return {"num_shards": _NUM_SHARDS, "options": args.options, **harness.compare(results, pairs, args.count)}


if __name__ == "__main__":
    parser = harness.make_parser(__doc__, peers=["local", *_KINDS])
    parser.add_argument("--count", type=harness.positive, default=5000, help="images per run (default: %(default)s)")
    parser.add_argument(
        "--cluster-workers", type=harness.positive, default=2, help="of a cluster (default: %(default)s)"
    )
    parser.add_argument("options", nargs="*", help="of Beam, for the clusters, after --")
    harness.main("clusters", _measure, parser.parse_args())
