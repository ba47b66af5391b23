"""Measures images per second and memory of `imagebeam convert` and the usual alternatives, in turn in one run.

Run from the root of the repository: python -m benchmarks.convert --images DIR > convert.json
"""

from __future__ import annotations

import argparse
import functools
import shutil
from pathlib import Path
from typing import Any

from benchmarks import harness, inputs

_PEERS = {"loop": "tfrecord_loop.py", "naive": "naive_beam.py", "bare": "bare_writer.py", "imagebeam": None}
_PAIRS = [("imagebeam", "loop"), ("imagebeam", "naive"), ("imagebeam", "bare")]
_NUM_SHARDS = 16
_WARM_UP_COUNT = 64
# In-memory Beam holds six to seven times its input, and memory that a virtual machine has not touched yet is slow.
_WARM_MEMORY_PER_INPUT_BYTE = 8


def _command(peer: str, source: Path, output: Path, workers: int) -> list[str]:
    if script := _PEERS[peer]:
        return harness.peer_command(script, source, output, _NUM_SHARDS)
    settings = [*inputs.SETTINGS, f"output.num_shards={_NUM_SHARDS}"]
    options = ["--input", source, "--output", output, "--workers", workers]
    return harness.imagebeam_command("convert", "imagenet_files", settings, *options)


def _measure_count(args: argparse.Namespace, images: list[Path], count: int, rounds: int, scratch: Path) -> dict:
    """Returns one count's part of the output."""
    source = inputs.link_images(images, count, scratch / "input")
    try:
        num_bytes = sum(path.stat().st_size for path in source.iterdir())
        harness.warm_memory(_WARM_MEMORY_PER_INPUT_BYTE * num_bytes)
        output = scratch / "output"
        runs = {
            peer: functools.partial(
                harness.run_writer, peer, _command(peer, source, output, args.workers), output, count, num_bytes
            )
            for peer in args.peers
        }
        results = harness.run_in_turn(runs, rounds, name=f"{count} images,")
    finally:
        shutil.rmtree(source)
    return {"input_mb": round(num_bytes / harness.MEGABYTE, 1), **harness.compare(results, _PAIRS, count)}


def _measure(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    images = inputs.find_images(args.images, scratch)
    _measure_count(args, images, _WARM_UP_COUNT, 1, scratch)  # a peer that cannot run fails here, not an hour later
    counts = {count: _measure_count(args, images, count, args.rounds, scratch) for count in args.count}
    return {"num_files": len(images), "num_shards": _NUM_SHARDS, "counts": counts}


if __name__ == "__main__":
    parser = harness.make_parser(__doc__, peers=list(_PEERS))
    inputs.add_option(parser)
    parser.add_argument("--count", type=harness.positive, nargs="+", default=[10_000, 40_000], help="images per run")
    parser.add_argument("--workers", type=harness.positive, default=2, help="of imagebeam (default: %(default)s)")
    harness.main("convert", _measure, parser.parse_args())
